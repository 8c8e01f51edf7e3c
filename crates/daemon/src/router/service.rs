//! The methods of the `Router` service, one by one: each asks the router's thread, or the kernel.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use api::v1;
use api::v1::router_server::Router;
use control::model::Feature;
use control::{Controller, Error};
use router::messages::{Asked, AskedNeighbours, PIECE, Refusal};
use router::view::Selection;
use tokio::sync::mpsc::Sender;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::control::Control;
use super::{render, watch};
use crate::access::{Caller, Permitted, taken};
use crate::app::{App, monotonic_ns};
use crate::events;
use crate::v1::bounds::REPLY_TENTHS;
use crate::v1::budget;
use crate::v1::interface;
use crate::v1::service::{answer, refused};
use crate::v1::turns::Length;

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    app: Arc<App>,
    control: Arc<Control>,
}

type Answer<T> = Result<Response<T>, Status>;
type Stream<T> = ReceiverStream<Result<T, Status>>;

impl Service {
    pub fn new(app: Arc<App>) -> Service {
        let control = app.router.clone();
        Service { app, control }
    }

    /// Runs an operation of the controller's where it may wait for the router's thread, for who
    /// asks.
    async fn operate<T: Send + 'static>(
        &self,
        caller: Caller,
        operation: impl FnOnce(&mut Controller) -> Result<T, Error> + Send + 'static,
    ) -> Answer<T> {
        let app = self.app.clone();
        answer(&self.app, &caller.clone(), move || {
            let mut control = app.operations.control_for(&caller)?;
            let mut control = Permitted::new(&mut control, &caller);
            operation(control.whole()?).map_err(refused)
        })
        .await
    }
}

/// All that is counted, now.
pub async fn status(control: &Control) -> Result<v1::RouterStatus, Refusal> {
    let looked = control.look(|thread| {
        let (report, acl) = (thread.report(), thread.acl_report());
        (report, acl, thread.members(), monotonic_ns())
    });
    let (report, acl, members, time_ns) = looked.await?;
    let members = members.into_iter().map(render::member).collect();
    let acl = acl.as_ref();
    Ok(router::messages::status(&report?, acl, members, time_ns))
}

#[tonic::async_trait]
impl Router for Service {
    async fn list_router_interfaces(
        &self,
        request: Request<v1::ListRouterInterfacesRequest>,
    ) -> Answer<v1::ListRouterInterfacesResponse> {
        let (caller, _) = taken(request)?;
        let _turn = self.app.turns.take(&caller, Length::Short).await;
        let members = self.control.look(|thread| thread.members()).await?;
        let interfaces = members.into_iter().map(render::member).collect();
        Ok(Response::new(v1::ListRouterInterfacesResponse {
            interfaces,
        }))
    }

    async fn add_router_interface(
        &self,
        request: Request<v1::AddRouterInterfaceRequest>,
    ) -> Answer<v1::RouterInterface> {
        let (caller, request) = taken(request)?;
        let wanted = interface::wanted(&request.name, request.mode).map_err(refused)?;
        self.operate(caller, |control| {
            let added = control.add_interface(Feature::Router, wanted);
            added.map(render::interface)
        })
        .await
    }

    async fn delete_router_interface(
        &self,
        request: Request<v1::DeleteRouterInterfaceRequest>,
    ) -> Answer<v1::DeleteRouterInterfaceResponse> {
        let (caller, request) = taken(request)?;
        let name = interface::name(&request.name).map_err(refused)?;
        self.operate(caller, move |control| {
            let existed = control.delete_interface(Feature::Router, &name)?;
            Ok(v1::DeleteRouterInterfaceResponse { existed })
        })
        .await
    }

    async fn get_router_status(
        &self,
        request: Request<v1::GetRouterStatusRequest>,
    ) -> Answer<v1::RouterStatus> {
        let (caller, _) = taken(request)?;
        let _turn = self.app.turns.take(&caller, Length::Short).await;
        Ok(Response::new(status(&self.control).await?))
    }

    type ListRoutesStream = Stream<v1::ListRoutesResponse>;

    async fn list_routes(
        &self,
        request: Request<v1::ListRoutesRequest>,
    ) -> Answer<Self::ListRoutesStream> {
        let (caller, request) = taken(request)?;
        let share = self.app.listing.take(&caller)?;
        let (app, control) = (self.app.clone(), self.control.clone());
        let routes = match Asked::of(request)? {
            Asked::All(selection) => events::stream(app, |sender| async move {
                let told = pages(control, selection, sender).await;
                drop(share);
                told
            }),
            Asked::To(ip) => {
                let _turn = self.app.turns.take(&caller, Length::Short).await;
                let routes = vec![route_to(&control, ip).await?];
                let answer = v1::ListRoutesResponse { routes };
                events::stream(
                    app,
                    |sender| async move { sender.send(Ok(answer)).await.ok() },
                )
            }
        };
        Ok(Response::new(routes.into()))
    }

    type ListNeighboursStream = Stream<v1::ListNeighboursResponse>;

    async fn list_neighbours(
        &self,
        request: Request<v1::ListNeighboursRequest>,
    ) -> Answer<Self::ListNeighboursStream> {
        let (caller, request) = taken(request)?;
        let turn = self.app.turns.take(&caller, Length::Short).await;
        let share = self.app.listing.take(&caller)?;
        let snapshot = self.control.mirror().await?.snapshot();
        let asked = AskedNeighbours::new(&request, snapshot)?;
        let judged = self.control.look(|thread| asked.judged(thread.router()));
        let mut all = judged.await?.with_times().await?.into_iter();
        let pieces = std::iter::from_fn(|| {
            let neighbours: Vec<_> = all.by_ref().take(PIECE).collect();
            (!neighbours.is_empty()).then_some(v1::ListNeighboursResponse { neighbours })
        });
        let held = self.app.replies.begin(Some(&caller), REPLY_TENTHS);
        let made = budget::collect(pieces, memory, held);
        drop(turn);
        let pieces = events::stream(self.app.clone(), |sender| async move {
            let told = events::tell(made, &sender).await;
            drop(share);
            told
        });
        Ok(Response::new(pieces.into()))
    }

    async fn list_interfaces(
        &self,
        request: Request<v1::ListInterfacesRequest>,
    ) -> Answer<v1::ListInterfacesResponse> {
        let (caller, request) = taken(request)?;
        let snapshot = self.control.mirror().await?.snapshot();
        let control = self.control.clone();
        // What is attached may be taken away for as long as an upgrade takes.
        answer(&self.app, &caller, move || {
            let attached = control.attached().lock();
            let attached = attached.unwrap_or_else(PoisonError::into_inner);
            let interfaces = router::messages::interfaces(&request.names, &snapshot, &attached)?;
            Ok(v1::ListInterfacesResponse { interfaces })
        })
        .await
    }

    type WatchRouterStream = Stream<v1::RouterEvent>;

    async fn watch_router(
        &self,
        request: Request<v1::WatchRouterRequest>,
    ) -> Answer<Self::WatchRouterStream> {
        let (caller, request) = taken(request)?;
        let share = self.app.watching.take(&caller)?;
        let events = watch::watch(self.app.clone(), &caller, share, request)?;
        Ok(Response::new(events.into()))
    }
}

/// About what a piece takes.
fn memory(piece: &v1::ListNeighboursResponse) -> usize {
    piece.neighbours.len() * size_of::<v1::Neighbour>() + budget::memory(piece)
}

async fn route_to(control: &Control, ip: IpAddr) -> Result<v1::Route, Refusal> {
    let found = control.look(move |thread| {
        let router = thread.router().ok_or_else(no_interface)?;
        router::messages::route_to(router, ip)
    });
    found.await?
}

fn no_interface() -> Refusal {
    Refusal::Unavailable("the router has no interface yet: butterfly router add INTERFACE".into())
}

/// Page after page, each looked at between two changes of the kernel's.
async fn pages(
    control: Arc<Control>,
    selection: Selection,
    sender: Sender<Result<v1::ListRoutesResponse, Status>>,
) -> Option<()> {
    let mut after = None;
    loop {
        let page = control.look(move |thread| {
            let router = thread.router().ok_or_else(no_interface)?;
            Ok::<_, Refusal>(router::messages::page(router, &selection, after))
        });
        match page.await.and_then(|page| page) {
            Err(refusal) => return sender.send(Err(refusal.into())).await.ok(),
            Ok((routes, next)) => {
                if !routes.is_empty() {
                    sender
                        .send(Ok(v1::ListRoutesResponse { routes }))
                        .await
                        .ok()?;
                }
                after = Some(next?);
            }
        }
    }
}

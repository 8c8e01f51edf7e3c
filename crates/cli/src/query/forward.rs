//! What a `butterfly forward` is asked: routes, neighbours, interfaces, counters. It looks between
//! two changes of the kernel's, as the daemon's router does.

use std::time::Instant;

use api::v1;
use api::v1::router_server::Router;
use router::Service;
use router::messages::{self, AskedNeighbours, PIECE, Refusal};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use xdp::Interfaces;

use super::{Alone, no_changes, no_events};

/// What is done with the router and its interfaces for somebody who asks.
pub type Look = Box<dyn FnOnce(&Service, &Interfaces) + Send>;
/// Where the router takes them from.
pub type Asked = mpsc::Receiver<Look>;

/// Who answers. Cheap to clone.
#[derive(Clone)]
pub struct Forward {
    looks: mpsc::Sender<Look>,
    began: Instant,
}

type Answer<T> = Result<Response<T>, Status>;
type Stream<T> = ReceiverStream<Result<T, Status>>;

impl Forward {
    /// And the end where the router hears what is asked.
    pub fn new() -> (Forward, Asked) {
        let (looks, asked) = mpsc::channel(1);
        let began = Instant::now();
        (Forward { looks, began }, asked)
    }

    async fn look<T: Send + 'static>(
        &self,
        at: impl FnOnce(&Service, &Interfaces) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let gone = || Status::unavailable("butterfly forward has ended");
        let (answer, answered) = oneshot::channel();
        let look: Look = Box::new(move |service, attached| {
            // Who asked may have gone.
            let _ = answer.send(at(service, attached));
        });
        self.looks.send(look).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

/// Its interfaces, and how the program runs on each.
fn interfaces(service: &Service) -> Vec<v1::RouterInterface> {
    let router = &service.router;
    let interface = |one: &router::interfaces::Interface| v1::RouterInterface {
        name: one.name.clone(),
        mode: messages::mode(router.mode_of(one.device)).into(),
        why: router
            .trouble_of(&one.name)
            .or_else(|| router.behind().map(str::to_owned))
            .unwrap_or_default(),
    };
    router.interfaces().map(interface).collect()
}

fn failed(error: router::Error) -> Status {
    Refusal::Unavailable(error.to_string()).into()
}

#[tonic::async_trait]
impl Router for Forward {
    async fn list_router_interfaces(
        &self,
        _: Request<v1::ListRouterInterfacesRequest>,
    ) -> Answer<v1::ListRouterInterfacesResponse> {
        let interfaces = self.look(|service, _| interfaces(service)).await?;
        Ok(Response::new(v1::ListRouterInterfacesResponse {
            interfaces,
        }))
    }

    async fn add_router_interface(
        &self,
        _: Request<v1::AddRouterInterfaceRequest>,
    ) -> Answer<v1::RouterInterface> {
        Err(no_changes(Alone::Forward))
    }

    async fn delete_router_interface(
        &self,
        _: Request<v1::DeleteRouterInterfaceRequest>,
    ) -> Answer<v1::DeleteRouterInterfaceResponse> {
        Err(no_changes(Alone::Forward))
    }

    async fn get_router_status(
        &self,
        _: Request<v1::GetRouterStatusRequest>,
    ) -> Answer<v1::RouterStatus> {
        let looked = self.look(|service, _| {
            let router = &service.router;
            (router.report(), router.acl_report(), interfaces(service))
        });
        let (report, acl, members) = looked.await?;
        let time_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let status = messages::status(&report.map_err(failed)?, acl.as_ref(), members, time_ns);
        Ok(Response::new(status))
    }

    type ListRoutesStream = Stream<v1::ListRoutesResponse>;

    async fn list_routes(
        &self,
        request: Request<v1::ListRoutesRequest>,
    ) -> Answer<Self::ListRoutesStream> {
        let (sender, receiver) = mpsc::channel(1);
        match messages::Asked::of(request.into_inner())? {
            messages::Asked::To(ip) => {
                let route = self.look(move |service, _| messages::route_to(&service.router, ip));
                let routes = vec![route.await??];
                // There is room for it.
                let _ = sender.try_send(Ok(v1::ListRoutesResponse { routes }));
            }
            messages::Asked::All(selection) => {
                let this = self.clone();
                tokio::spawn(async move {
                    let mut after = None;
                    loop {
                        let page = this.look(move |service, _| {
                            messages::page(&service.router, &selection, after)
                        });
                        let (piece, next) = match page.await {
                            Ok((routes, next)) => (Ok(v1::ListRoutesResponse { routes }), next),
                            Err(status) => (Err(status), None),
                        };
                        if sender.send(piece).await.is_err() || next.is_none() {
                            break;
                        }
                        after = next;
                    }
                });
            }
        }
        Ok(Response::new(receiver.into()))
    }

    type ListNeighboursStream = Stream<v1::ListNeighboursResponse>;

    async fn list_neighbours(
        &self,
        request: Request<v1::ListNeighboursRequest>,
    ) -> Answer<Self::ListNeighboursStream> {
        let request = request.into_inner();
        let judged = self.look(move |service, _| {
            let asked = AskedNeighbours::new(&request, service.snapshot())?;
            Ok::<_, Refusal>(asked.judged(Some(&service.router)))
        });
        let all = judged.await??.with_times().await?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            for piece in all.chunks(PIECE) {
                let neighbours = piece.to_vec();
                let piece = Ok(v1::ListNeighboursResponse { neighbours });
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(receiver.into()))
    }

    async fn list_interfaces(
        &self,
        request: Request<v1::ListInterfacesRequest>,
    ) -> Answer<v1::ListInterfacesResponse> {
        let names = request.into_inner().names;
        let looked = self.look(move |service, attached| {
            messages::interfaces(&names, &service.snapshot(), attached)
        });
        let interfaces = looked.await??;
        Ok(Response::new(v1::ListInterfacesResponse { interfaces }))
    }

    type WatchRouterStream = Stream<v1::RouterEvent>;

    async fn watch_router(
        &self,
        _: Request<v1::WatchRouterRequest>,
    ) -> Answer<Self::WatchRouterStream> {
        Err(no_events(Alone::Forward))
    }
}

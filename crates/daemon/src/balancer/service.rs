//! The methods of the `Balancer` service, one by one: each is an operation of the controller, or a
//! look at the data plane.

use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use api::v1::balancer_server::Balancer;
use control::model::{DeclaredService, Feature, ServiceKey};
use control::{Controller, Error};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::plane::{Counters, Stats};
use super::{convert, render, status, watch};
use crate::access::{Caller, Permitted, Refusal, taken};
use crate::app::App;
use crate::v1::interface;
use crate::v1::service::{answer, refused};

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    app: Arc<App>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    pub fn new(app: Arc<App>) -> Service {
        Service { app }
    }

    /// Runs an operation where it may wait for the kernel.
    async fn operate<T: Send + 'static>(
        &self,
        caller: &Caller,
        operation: impl FnOnce(&App) -> Result<T, Refusal> + Send + 'static,
    ) -> Answer<T> {
        let app = self.app.clone();
        answer(&self.app, caller, move || Ok(operation(&app)?)).await
    }
}

/// Changes what is declared, for who asks, and has the record told of it.
fn change<T>(
    app: &App,
    caller: &Caller,
    operation: impl FnOnce(&mut Controller) -> Result<T, Error>,
) -> Result<T, Refusal> {
    let mut control = app.operations.control_for(caller)?;
    let mut control = Permitted::new(&mut control, caller);
    Ok(operation(control.whole()?)?)
}

/// A service after an operation on it.
fn service_after(app: &App, key: &ServiceKey) -> Result<v1::ServiceStatus, Error> {
    let facts = status::Facts::of(&app.balancer)?;
    let control = app.control();
    Ok(status::service(&control, control.service(key)?, &facts))
}

fn server_after(app: &App, key: &ServiceKey, address: IpAddr) -> Result<v1::ServerStatus, Error> {
    let status = service_after(app, key)?;
    let text = address.to_string();
    let is = |status: &v1::ServerStatus| {
        status
            .server
            .as_ref()
            .is_some_and(|server| server.address == text)
    };
    status
        .servers
        .into_iter()
        .find(is)
        .ok_or(Error::NoServer(*key, address))
}

#[tonic::async_trait]
impl Balancer for Service {
    async fn list_services(
        &self,
        request: Request<v1::ListServicesRequest>,
    ) -> Answer<v1::ListServicesResponse> {
        let (caller, _) = taken(request)?;
        self.operate(&caller, |app| {
            let facts = status::Facts::of(&app.balancer)?;
            let control = app.control();
            let services = control.services().values();
            let services = services
                .map(|service| status::service(&control, service, &facts))
                .collect();
            Ok(v1::ListServicesResponse { services })
        })
        .await
    }

    async fn get_service(
        &self,
        request: Request<v1::GetServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let (caller, request) = taken(request)?;
        let key = key_of(request.key)?;
        self.operate(&caller, move |app| Ok(service_after(app, &key)?))
            .await
    }

    async fn put_service(
        &self,
        request: Request<v1::PutServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let (caller, request) = taken(request)?;
        let service = convert::required(request.service, "service");
        let service = service.and_then(convert::service).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            let key = service.key;
            change(app, &caller, |control| {
                control.put_service(service, request.create_only)
            })?;
            Ok(service_after(app, &key)?)
        })
        .await
    }

    async fn update_service(
        &self,
        request: Request<v1::UpdateServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let (caller, mut update) = taken(request)?;
        let key = key_of(update.key.take())?;
        self.operate(&caller.clone(), move |app| {
            change(app, &caller, |control| {
                let service = convert::updated(control.service(&key)?, update)?;
                control.put_service(service, false)
            })?;
            Ok(service_after(app, &key)?)
        })
        .await
    }

    async fn delete_service(
        &self,
        request: Request<v1::DeleteServiceRequest>,
    ) -> Answer<v1::DeleteServiceResponse> {
        let (caller, request) = taken(request)?;
        let key = key_of(request.key)?;
        self.operate(&caller.clone(), move |app| {
            let diff = change(app, &caller, |control| control.delete_service(&key))?;
            let existed = !diff.is_empty();
            Ok(v1::DeleteServiceResponse { existed })
        })
        .await
    }

    async fn put_server(&self, request: Request<v1::PutServerRequest>) -> Answer<v1::ServerStatus> {
        let (caller, request) = taken(request)?;
        let key = key_of(request.key)?;
        let server = convert::required(request.server, "server");
        let server = server.and_then(|server| convert::server(&key, &server));
        let server = server.map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            change(app, &caller, |control| {
                control.put_server(&key, server, request.create_only)
            })?;
            Ok(server_after(app, &key, server.0)?)
        })
        .await
    }

    async fn update_server(
        &self,
        request: Request<v1::UpdateServerRequest>,
    ) -> Answer<v1::ServerStatus> {
        let (caller, mut update) = taken(request)?;
        let key = key_of(update.key.take())?;
        let address = convert::server_address(&key, &update.address).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            change(app, &caller, |control| {
                let old = control.service(&key)?.servers.get(&address).copied();
                let old = old.ok_or(Error::NoServer(key, address))?;
                let server = convert::updated_server(&key, address, old, &update)?;
                control.put_server(&key, (address, server), false)
            })?;
            Ok(server_after(app, &key, address)?)
        })
        .await
    }

    async fn delete_server(
        &self,
        request: Request<v1::DeleteServerRequest>,
    ) -> Answer<v1::DeleteServerResponse> {
        let (caller, request) = taken(request)?;
        let key = key_of(request.key)?;
        let address = convert::server_address(&key, &request.address).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            let diff = change(app, &caller, |control| control.delete_server(&key, address))?;
            let existed = !diff.is_empty();
            Ok(v1::DeleteServerResponse { existed })
        })
        .await
    }

    async fn get_balancer_config(
        &self,
        request: Request<v1::GetBalancerConfigRequest>,
    ) -> Answer<v1::BalancerConfig> {
        let (caller, _) = taken(request)?;
        self.operate(&caller, |app| {
            let control = app.control();
            let interfaces = control.interfaces(Feature::Balancer);
            Ok(render::config(control.services(), interfaces))
        })
        .await
    }

    async fn apply_balancer(
        &self,
        request: Request<v1::ApplyBalancerRequest>,
    ) -> Answer<v1::ApplyBalancerResponse> {
        let (caller, request) = taken(request)?;
        let config = convert::required(request.config, "config");
        let (services, interfaces) = config.and_then(convert::config).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            let diff = change(app, &caller, |control| {
                control.apply_services(services, interfaces, request.dry_run)
            })?;
            let changes = diff.services.iter().map(render::change).collect();
            Ok(v1::ApplyBalancerResponse { changes })
        })
        .await
    }

    async fn list_balancer_interfaces(
        &self,
        request: Request<v1::ListBalancerInterfacesRequest>,
    ) -> Answer<v1::ListBalancerInterfacesResponse> {
        let (caller, _) = taken(request)?;
        self.operate(&caller, |app| {
            let interfaces = app.balancer.interfaces();
            let losing = app.balancer.losing();
            let interfaces = interfaces.into_iter();
            let interfaces = interfaces.map(|one| status::interface(one, &losing));
            let interfaces = interfaces.collect();
            Ok(v1::ListBalancerInterfacesResponse { interfaces })
        })
        .await
    }

    async fn add_balancer_interface(
        &self,
        request: Request<v1::AddBalancerInterfaceRequest>,
    ) -> Answer<v1::BalancerInterface> {
        let (caller, request) = taken(request)?;
        let wanted = interface::wanted(&request.name, request.mode).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            let added = change(app, &caller, |control| {
                control.add_interface(Feature::Balancer, wanted)
            })?;
            Ok(status::interface(added, &app.balancer.losing()))
        })
        .await
    }

    async fn delete_balancer_interface(
        &self,
        request: Request<v1::DeleteBalancerInterfaceRequest>,
    ) -> Answer<v1::DeleteBalancerInterfaceResponse> {
        let (caller, request) = taken(request)?;
        let name = interface::name(&request.name).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            let existed = change(app, &caller, |control| {
                control.delete_interface(Feature::Balancer, &name)
            })?;
            Ok(v1::DeleteBalancerInterfaceResponse { existed })
        })
        .await
    }

    async fn reattach_balancer_interface(
        &self,
        request: Request<v1::ReattachBalancerInterfaceRequest>,
    ) -> Answer<v1::BalancerInterface> {
        let (caller, request) = taken(request)?;
        let name = interface::name(&request.name).map_err(refused)?;
        self.operate(&caller.clone(), move |app| {
            let attached = change(app, &caller, |control| {
                // No journal refuses it: while another program takes over, the interface is that
                // one's.
                let are_taken = app.upgrade.takes_changes();
                are_taken.map_err(|why| status::unavailable(why.into()))?;
                caller.takes_effect();
                let attached = control.reattach_balancer(&name)?;
                caller.detail(format!("attached anew: {name}"));
                Ok(attached)
            })?;
            Ok(status::interface(attached, &app.balancer.losing()))
        })
        .await
    }

    async fn get_balancer_stats(
        &self,
        request: Request<v1::GetBalancerStatsRequest>,
    ) -> Answer<v1::BalancerStats> {
        let (caller, _) = taken(request)?;
        self.operate(&caller, |app| {
            let stats = app.balancer.stats().map_err(status::unavailable)?;
            let control = app.control();
            let services = control.services().values();
            Ok(v1::BalancerStats {
                time_ns: control.now().as_nanos() as u64,
                services: services
                    .map(|service| service_stats(service, &stats))
                    .collect(),
                drops: stats
                    .reasons
                    .iter()
                    .filter(|(_, packets)| *packets > 0)
                    .map(status::drop)
                    .collect(),
            })
        })
        .await
    }

    type WatchBalancerStream = ReceiverStream<Result<v1::BalancerEvent, Status>>;

    async fn watch_balancer(
        &self,
        request: Request<v1::WatchBalancerRequest>,
    ) -> Answer<Self::WatchBalancerStream> {
        let (caller, request) = taken(request)?;
        let share = self.app.watching.take(&caller)?;
        let events = watch::watch(self.app.clone(), caller, share, request);
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

/// The service that a request is about.
fn key_of(key: Option<v1::ServiceKey>) -> Result<ServiceKey, Status> {
    let key = convert::required(key, "key");
    key.and_then(|key| convert::key(&key)).map_err(refused)
}

fn service_stats(service: &DeclaredService, stats: &Stats) -> v1::ServiceStats {
    let mut total = Counters::default();
    let mut server = |address: &IpAddr| {
        let counters = stats.server(&(service.key, *address));
        total += counters;
        v1::ServerStats {
            address: address.to_string(),
            counters: Some(status::counters(counters)),
        }
    };
    let servers = service.servers.keys().map(&mut server).collect();
    v1::ServiceStats {
        key: Some(render::key(&service.key)),
        counters: Some(status::counters(total)),
        servers,
    }
}

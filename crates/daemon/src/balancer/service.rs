//! The methods of the `Balancer` service, one by one: each is an operation of the registry or of
//! the data plane.

use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use api::v1::balancer_server::Balancer;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::control::Control;
use super::error::Error;
use super::model::{Key, Service as Model};
use super::plane::{Counters, Stats};
use super::{convert, render, status, watch};
use crate::app::App;
use crate::v1::interface;

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    app: Arc<App>,
    control: Arc<Control>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    pub fn new(app: Arc<App>) -> Service {
        let control = app.balancer.clone();
        Service { app, control }
    }

    /// Runs an operation where it may wait for the kernel.
    async fn operate<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Control) -> Result<T, Error> + Send + 'static,
    ) -> Answer<T> {
        let control = self.control.clone();
        let done = tokio::task::spawn_blocking(move || {
            let result = operation(&control);
            control.wake();
            result
        });
        match done.await {
            Ok(result) => result.map(Response::new).map_err(Status::from),
            Err(_) => Err(Status::internal(
                "the request made the daemon panic; its log says where",
            )),
        }
    }
}

/// A service after an operation on it.
fn service_after(control: &Control, key: &Key) -> Result<v1::ServiceStatus, Error> {
    let facts = status::Facts::of(control)?;
    let (registry, now) = control.registry();
    Ok(status::service(
        &registry,
        registry.service(key)?,
        &facts,
        now,
    ))
}

fn server_after(control: &Control, key: &Key, address: IpAddr) -> Result<v1::ServerStatus, Error> {
    let status = service_after(control, key)?;
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
        _: Request<v1::ListServicesRequest>,
    ) -> Answer<v1::ListServicesResponse> {
        self.operate(|control| {
            let facts = status::Facts::of(control)?;
            let (registry, now) = control.registry();
            let services = registry.services().values();
            let services = services
                .map(|service| status::service(&registry, service, &facts, now))
                .collect();
            Ok(v1::ListServicesResponse { services })
        })
        .await
    }

    async fn get_service(
        &self,
        request: Request<v1::GetServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let key = convert::key(&convert::required(request.into_inner().key, "key")?)?;
        self.operate(move |control| service_after(control, &key))
            .await
    }

    async fn put_service(
        &self,
        request: Request<v1::PutServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let request = request.into_inner();
        let service = convert::service(convert::required(request.service, "service")?)?;
        self.operate(move |control| {
            let key = service.key;
            put(control, service, request.create_only)?;
            service_after(control, &key)
        })
        .await
    }

    async fn update_service(
        &self,
        request: Request<v1::UpdateServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let mut update = request.into_inner();
        let key = convert::key(&convert::required(update.key.take(), "key")?)?;
        self.operate(move |control| {
            {
                let (mut registry, now) = control.registry();
                let service = convert::updated(registry.service(&key)?, update)?;
                registry.put_service(now, service, false)?;
            }
            service_after(control, &key)
        })
        .await
    }

    async fn delete_service(
        &self,
        request: Request<v1::DeleteServiceRequest>,
    ) -> Answer<v1::DeleteServiceResponse> {
        let key = convert::key(&convert::required(request.into_inner().key, "key")?)?;
        self.operate(move |control| {
            let (mut registry, now) = control.registry();
            let existed = registry.delete_service(now, &key)?;
            Ok(v1::DeleteServiceResponse { existed })
        })
        .await
    }

    async fn put_server(&self, request: Request<v1::PutServerRequest>) -> Answer<v1::ServerStatus> {
        let request = request.into_inner();
        let key = convert::key(&convert::required(request.key, "key")?)?;
        let server = convert::server(&key, &convert::required(request.server, "server")?)?;
        self.operate(move |control| {
            {
                let (mut registry, now) = control.registry();
                registry.put_server(now, &key, server, request.create_only)?;
            }
            server_after(control, &key, server.0)
        })
        .await
    }

    async fn update_server(
        &self,
        request: Request<v1::UpdateServerRequest>,
    ) -> Answer<v1::ServerStatus> {
        let mut update = request.into_inner();
        let key = convert::key(&convert::required(update.key.take(), "key")?)?;
        let address = convert::server_address(&key, &update.address)?;
        self.operate(move |control| {
            {
                let (mut registry, now) = control.registry();
                let old = registry.service(&key)?.servers.get(&address).copied();
                let old = old.ok_or(Error::NoServer(key, address))?;
                let server = convert::updated_server(&key, address, old, &update)?;
                registry.put_server(now, &key, (address, server), false)?;
            }
            server_after(control, &key, address)
        })
        .await
    }

    async fn delete_server(
        &self,
        request: Request<v1::DeleteServerRequest>,
    ) -> Answer<v1::DeleteServerResponse> {
        let request = request.into_inner();
        let key = convert::key(&convert::required(request.key, "key")?)?;
        let address = convert::server_address(&key, &request.address)?;
        self.operate(move |control| {
            let (mut registry, now) = control.registry();
            let existed = registry.delete_server(now, &key, address)?;
            Ok(v1::DeleteServerResponse { existed })
        })
        .await
    }

    async fn get_balancer_config(
        &self,
        _: Request<v1::GetBalancerConfigRequest>,
    ) -> Answer<v1::BalancerConfig> {
        self.operate(|control| Ok(render::config(control.registry().0.services())))
            .await
    }

    async fn apply_balancer(
        &self,
        request: Request<v1::ApplyBalancerRequest>,
    ) -> Answer<v1::ApplyBalancerResponse> {
        let request = request.into_inner();
        let services = convert::config(convert::required(request.config, "config")?)?;
        self.operate(move |control| {
            let (mut registry, now) = control.registry();
            let changes = registry.apply(now, services, request.dry_run)?;
            let changes = changes.iter().map(|change| change.render()).collect();
            Ok(v1::ApplyBalancerResponse { changes })
        })
        .await
    }

    async fn list_balancer_interfaces(
        &self,
        _: Request<v1::ListBalancerInterfacesRequest>,
    ) -> Answer<v1::ListBalancerInterfacesResponse> {
        self.operate(|control| {
            let interfaces = control.plane().interfaces();
            let interfaces = interfaces.into_iter().map(status::interface).collect();
            Ok(v1::ListBalancerInterfacesResponse { interfaces })
        })
        .await
    }

    async fn add_balancer_interface(
        &self,
        request: Request<v1::AddBalancerInterfaceRequest>,
    ) -> Answer<v1::BalancerInterface> {
        let request = request.into_inner();
        let name = interface::name(&request.name).map_err(Error::Request)?;
        let mode = interface::mode(&name, request.mode).map_err(Error::Request)?;
        self.operate(move |control| {
            let added = control.plane().add_interface(&name, mode);
            added.map(status::interface).map_err(Error::Unavailable)
        })
        .await
    }

    async fn delete_balancer_interface(
        &self,
        request: Request<v1::DeleteBalancerInterfaceRequest>,
    ) -> Answer<v1::DeleteBalancerInterfaceResponse> {
        let name = interface::name(&request.into_inner().name).map_err(Error::Request)?;
        self.operate(move |control| {
            let existed = control
                .plane()
                .delete_interface(&name)
                .map_err(Error::Unavailable)?;
            Ok(v1::DeleteBalancerInterfaceResponse { existed })
        })
        .await
    }

    async fn get_balancer_stats(
        &self,
        _: Request<v1::GetBalancerStatsRequest>,
    ) -> Answer<v1::BalancerStats> {
        self.operate(|control| {
            let stats = control.plane().stats().map_err(Error::Unavailable)?;
            let (registry, now) = control.registry();
            Ok(v1::BalancerStats {
                time_ns: now.as_nanos() as u64,
                services: registry
                    .services()
                    .values()
                    .map(|service| service_stats(service, &stats))
                    .collect(),
                drops: stats
                    .drops
                    .iter()
                    .filter(|drop| drop.2 > 0)
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
        let events = watch::watch(self.app.clone(), self.control.clone(), request.into_inner());
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

fn put(control: &Control, service: Model, create_only: bool) -> Result<(), Error> {
    let (mut registry, now) = control.registry();
    registry.put_service(now, service, create_only)
}

fn service_stats(service: &Model, stats: &Stats) -> v1::ServiceStats {
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

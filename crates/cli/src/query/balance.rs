//! What a `butterfly balance` is asked: its services, what they received, and why packets were not
//! sent on.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use api::v1;
use api::v1::balancer_server::Balancer as Questions;
use balancer::{Balancer, Counters, Server, ServerCounters, Service, ServiceKey, State, Tunnel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Alone, no_changes, no_events};

/// Who answers. Cheap to clone.
#[derive(Clone)]
pub struct Balance {
    balancer: Arc<Mutex<Balancer>>,
    interfaces: Vec<v1::BalancerInterface>,
    began: Instant,
}

type Answer<T> = Result<Response<T>, Status>;

impl Balance {
    /// Of a balancer that works on these interfaces.
    pub fn new(balancer: Arc<Mutex<Balancer>>, interfaces: Vec<v1::BalancerInterface>) -> Balance {
        Balance {
            balancer,
            interfaces,
            began: Instant::now(),
        }
    }

    /// Looks at all services and their counters at one moment.
    fn look<T>(
        &self,
        each: impl Fn(&Service, &Counters) -> T,
    ) -> Result<(Vec<T>, Counters), Status> {
        let balancer = self.balancer.lock().unwrap_or_else(PoisonError::into_inner);
        let counters = balancer.counters();
        let counters = counters.map_err(|e| Status::unavailable(e.to_string()))?;
        let services = balancer.services().iter();
        let all = services.map(|service| each(service, &counters)).collect();
        Ok((all, counters))
    }
}

/// As API v1 writes it.
fn key(key: &ServiceKey) -> v1::ServiceKey {
    v1::ServiceKey {
        vip: key.vip().to_string(),
        protocol: key.protocol().number().into(),
        port: key.port().map_or(0, NonZeroU16::get).into(),
        all_ports: key.port().is_none(),
    }
}

fn counted(counters: ServerCounters) -> v1::Counters {
    v1::Counters {
        packets: counters.packets,
        bytes: counters.bytes,
        flows: counters.flows,
    }
}

fn counted_of(service: &Service, server: &Server, counters: &Counters) -> v1::Counters {
    let owner = (service.key(), server.address());
    counted(counters.servers.get(&owner).copied().unwrap_or_default())
}

/// Nobody checks its servers: each is what it was given as.
fn status(service: &Service, counters: &Counters) -> v1::ServiceStatus {
    let tunnel = service
        .servers()
        .next()
        .map_or(Tunnel::None, |one| one.tunnel);
    let (encapsulation, tunnel_port) = match tunnel {
        Tunnel::None => (v1::Encapsulation::L2, 0),
        Tunnel::Ipip => (v1::Encapsulation::Ipip, 0),
        Tunnel::Gre => (v1::Encapsulation::Gre, 0),
        Tunnel::Fou { port } => (v1::Encapsulation::Fou, port.get()),
        Tunnel::Gue { port } => (v1::Encapsulation::Gue, port.get()),
    };
    let server = |one: &Server| v1::Server {
        address: one.address().to_string(),
        weight: Some(one.weight.get().into()),
        state: match one.state {
            State::Up => v1::ServerState::Up,
            State::Draining => v1::ServerState::Draining,
            State::Down => v1::ServerState::Down,
        }
        .into(),
        check_port: 0,
    };
    let statuses = service.servers().map(|one| v1::ServerStatus {
        server: Some(server(one)),
        counters: Some(counted_of(service, one, counters)),
        ..Default::default()
    });
    v1::ServiceStatus {
        service: Some(v1::Service {
            key: Some(key(&service.key())),
            encapsulation: encapsulation.into(),
            tunnel_port: tunnel_port.into(),
            sticky: service.sticky,
            servers: service.servers().map(server).collect(),
            ..Default::default()
        }),
        in_service: true,
        servers: statuses.collect(),
        counters: Some(counted(counters.service(&service.key()))),
        ..Default::default()
    }
}

fn stats(service: &Service, counters: &Counters) -> v1::ServiceStats {
    let server = |one: &Server| v1::ServerStats {
        address: one.address().to_string(),
        counters: Some(counted_of(service, one, counters)),
    };
    v1::ServiceStats {
        key: Some(key(&service.key())),
        counters: Some(counted(counters.service(&service.key()))),
        servers: service.servers().map(server).collect(),
    }
}

#[tonic::async_trait]
impl Questions for Balance {
    async fn list_services(
        &self,
        _: Request<v1::ListServicesRequest>,
    ) -> Answer<v1::ListServicesResponse> {
        let (services, _) = self.look(status)?;
        Ok(Response::new(v1::ListServicesResponse { services }))
    }

    async fn get_service(
        &self,
        request: Request<v1::GetServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        let asked = request.into_inner().key.unwrap_or_default();
        let (services, _) = self.look(status)?;
        let is = |one: &v1::ServiceStatus| {
            one.service
                .as_ref()
                .is_some_and(|service| service.key.as_ref() == Some(&asked))
        };
        let found = services.into_iter().find(is);
        found.map(Response::new).ok_or_else(|| {
            let vip = &asked.vip;
            Status::not_found(format!("there is no such service of {vip}"))
        })
    }

    async fn put_service(&self, _: Request<v1::PutServiceRequest>) -> Answer<v1::ServiceStatus> {
        Err(no_changes(Alone::Balance))
    }

    async fn update_service(
        &self,
        _: Request<v1::UpdateServiceRequest>,
    ) -> Answer<v1::ServiceStatus> {
        Err(no_changes(Alone::Balance))
    }

    async fn delete_service(
        &self,
        _: Request<v1::DeleteServiceRequest>,
    ) -> Answer<v1::DeleteServiceResponse> {
        Err(no_changes(Alone::Balance))
    }

    async fn put_server(&self, _: Request<v1::PutServerRequest>) -> Answer<v1::ServerStatus> {
        Err(no_changes(Alone::Balance))
    }

    async fn update_server(&self, _: Request<v1::UpdateServerRequest>) -> Answer<v1::ServerStatus> {
        Err(no_changes(Alone::Balance))
    }

    async fn delete_server(
        &self,
        _: Request<v1::DeleteServerRequest>,
    ) -> Answer<v1::DeleteServerResponse> {
        Err(no_changes(Alone::Balance))
    }

    async fn get_balancer_config(
        &self,
        _: Request<v1::GetBalancerConfigRequest>,
    ) -> Answer<v1::BalancerConfig> {
        let (services, _) = self.look(|service, counters| status(service, counters).service)?;
        Ok(Response::new(v1::BalancerConfig {
            services: services.into_iter().flatten().collect(),
            interfaces: Some(v1::BalancerInterfaces {
                interfaces: self.interfaces.clone(),
            }),
        }))
    }

    async fn apply_balancer(
        &self,
        _: Request<v1::ApplyBalancerRequest>,
    ) -> Answer<v1::ApplyBalancerResponse> {
        Err(no_changes(Alone::Balance))
    }

    async fn list_balancer_interfaces(
        &self,
        _: Request<v1::ListBalancerInterfacesRequest>,
    ) -> Answer<v1::ListBalancerInterfacesResponse> {
        let interfaces = self.interfaces.clone();
        Ok(Response::new(v1::ListBalancerInterfacesResponse {
            interfaces,
        }))
    }

    async fn add_balancer_interface(
        &self,
        _: Request<v1::AddBalancerInterfaceRequest>,
    ) -> Answer<v1::BalancerInterface> {
        Err(no_changes(Alone::Balance))
    }

    async fn delete_balancer_interface(
        &self,
        _: Request<v1::DeleteBalancerInterfaceRequest>,
    ) -> Answer<v1::DeleteBalancerInterfaceResponse> {
        Err(no_changes(Alone::Balance))
    }

    async fn reattach_balancer_interface(
        &self,
        _: Request<v1::ReattachBalancerInterfaceRequest>,
    ) -> Answer<v1::BalancerInterface> {
        Err(no_changes(Alone::Balance))
    }

    async fn get_balancer_stats(
        &self,
        _: Request<v1::GetBalancerStatsRequest>,
    ) -> Answer<v1::BalancerStats> {
        let (services, counters) = self.look(stats)?;
        let happened = counters.reasons.iter().filter(|(_, packets)| **packets > 0);
        let drop = |(reason, packets): (&balancer::Reason, &u64)| v1::BalancerDrop {
            reason: reason.name().into(),
            description: reason.description().into(),
            packets: *packets,
        };
        Ok(Response::new(v1::BalancerStats {
            time_ns: u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            services,
            drops: happened.map(drop).collect(),
        }))
    }

    type WatchBalancerStream = ReceiverStream<Result<v1::BalancerEvent, Status>>;

    async fn watch_balancer(
        &self,
        _: Request<v1::WatchBalancerRequest>,
    ) -> Answer<Self::WatchBalancerStream> {
        Err(no_events(Alone::Balance))
    }
}

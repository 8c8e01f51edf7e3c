//! The load balancer's operations, which API v1 alone has.

use api::v1 as proto;
use tonic::{Code, Status, Streaming};

use super::grpc::V1;
use crate::error::Error;

impl V1 {
    pub async fn services(&mut self) -> Result<Vec<proto::ServiceStatus>, Error> {
        let request = proto::ListServicesRequest {};
        let answer = self.ask_balancer("ListServices", request, async |grpc, request| {
            grpc.list_services(request).await
        });
        Ok(answer.await?.services)
    }

    pub async fn service(&mut self, key: proto::ServiceKey) -> Result<proto::ServiceStatus, Error> {
        let request = proto::GetServiceRequest { key: Some(key) };
        self.ask_balancer("GetService", request, async |grpc, request| {
            grpc.get_service(request).await
        })
        .await
    }

    pub async fn put_service(&mut self, service: proto::Service) -> Result<(), Error> {
        let request = proto::PutServiceRequest {
            service: Some(service),
            create_only: false,
        };
        self.ask_balancer("PutService", request, async |grpc, request| {
            grpc.put_service(request).await
        })
        .await
        .map(drop)
    }

    pub async fn update_service(
        &mut self,
        request: proto::UpdateServiceRequest,
    ) -> Result<(), Error> {
        self.ask_balancer("UpdateService", request, async |grpc, request| {
            grpc.update_service(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_service(&mut self, key: proto::ServiceKey) -> Result<(), Error> {
        let request = proto::DeleteServiceRequest { key: Some(key) };
        self.ask_balancer("DeleteService", request, async |grpc, request| {
            grpc.delete_service(request).await
        })
        .await
        .map(drop)
    }

    pub async fn put_server(
        &mut self,
        key: proto::ServiceKey,
        server: proto::Server,
    ) -> Result<(), Error> {
        let request = proto::PutServerRequest {
            key: Some(key),
            server: Some(server),
            create_only: false,
        };
        self.ask_balancer("PutServer", request, async |grpc, request| {
            grpc.put_server(request).await
        })
        .await
        .map(drop)
    }

    pub async fn update_server(
        &mut self,
        request: proto::UpdateServerRequest,
    ) -> Result<(), Error> {
        self.ask_balancer("UpdateServer", request, async |grpc, request| {
            grpc.update_server(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_server(
        &mut self,
        key: proto::ServiceKey,
        address: String,
    ) -> Result<(), Error> {
        let request = proto::DeleteServerRequest {
            key: Some(key),
            address,
        };
        self.ask_balancer("DeleteServer", request, async |grpc, request| {
            grpc.delete_server(request).await
        })
        .await
        .map(drop)
    }

    pub async fn balancer_interfaces(&mut self) -> Result<Vec<proto::BalancerInterface>, Error> {
        let request = proto::ListBalancerInterfacesRequest {};
        let answer = self.ask_balancer("ListBalancerInterfaces", request, async |grpc, request| {
            grpc.list_balancer_interfaces(request).await
        });
        Ok(answer.await?.interfaces)
    }

    pub async fn add_balancer_interface(
        &mut self,
        request: proto::AddBalancerInterfaceRequest,
    ) -> Result<proto::BalancerInterface, Error> {
        self.ask_balancer("AddBalancerInterface", request, async |grpc, request| {
            grpc.add_balancer_interface(request).await
        })
        .await
    }

    pub async fn delete_balancer_interface(&mut self, name: String) -> Result<(), Error> {
        let request = proto::DeleteBalancerInterfaceRequest { name };
        self.ask_balancer("DeleteBalancerInterface", request, async |grpc, request| {
            grpc.delete_balancer_interface(request).await
        })
        .await
        .map(drop)
    }

    /// A daemon of a version before is told apart from a refusal.
    pub async fn reattach_balancer_interface(&mut self, name: String) -> Result<(), Error> {
        let request = proto::ReattachBalancerInterfaceRequest { name };
        let method = "ReattachBalancerInterface";
        self.ask_balancer(method, request, async |grpc, request| {
            let name = request.name.clone();
            let answer = grpc.reattach_balancer_interface(request).await;
            answer.map_err(|status| match status.code() {
                Code::Unimplemented => Status::unimplemented(unknown(&name)),
                _ => status,
            })
        })
        .await
        .map(drop)
    }

    pub async fn balancer_stats(&mut self) -> Result<proto::BalancerStats, Error> {
        let request = proto::GetBalancerStatsRequest {};
        self.ask_balancer("GetBalancerStats", request, async |grpc, request| {
            grpc.get_balancer_stats(request).await
        })
        .await
    }

    pub async fn watch_balancer(
        &mut self,
        snapshot: bool,
    ) -> Result<Streaming<proto::BalancerEvent>, Error> {
        let request = proto::WatchBalancerRequest { snapshot };
        self.call_balancer("WatchBalancer", request, async |grpc, request| {
            grpc.watch_balancer(request).await
        })
        .await
    }
}

/// What a daemon of a version before answers when an interface is to be attached anew.
fn unknown(interface: &str) -> String {
    format!(
        "this butterflyd is of a version that does not attach interfaces anew, and interface \
         '{interface}' is as it was: upgrade it (butterfly upgrade), or give the interface back \
         and add it again in its mode (butterfly service interface del, add)"
    )
}

//! The operations on who is where. API v0 has none of them.

use api::v1 as proto;
use tonic::Streaming;

use super::grpc::V1;
use crate::error::Error;

impl V1 {
    pub async fn endpoints(&mut self) -> Result<proto::ListEndpointsResponse, Error> {
        let request = proto::ListEndpointsRequest {};
        self.ask("ListEndpoints", request, async |grpc, request| {
            grpc.list_endpoints(request).await
        })
        .await
    }

    pub async fn put_endpoint(&mut self, endpoint: proto::Endpoint) -> Result<(), Error> {
        let request = proto::PutEndpointRequest {
            endpoint: Some(endpoint),
        };
        self.ask("PutEndpoint", request, async |grpc, request| {
            grpc.put_endpoint(request).await
        })
        .await
        .map(drop)
    }

    pub async fn update_endpoint(
        &mut self,
        request: proto::UpdateEndpointRequest,
    ) -> Result<(), Error> {
        self.ask("UpdateEndpoint", request, async |grpc, request| {
            grpc.update_endpoint(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_endpoint(
        &mut self,
        request: proto::DeleteEndpointRequest,
    ) -> Result<(), Error> {
        self.ask("DeleteEndpoint", request, async |grpc, request| {
            grpc.delete_endpoint(request).await
        })
        .await
        .map(drop)
    }

    pub async fn networks(&mut self) -> Result<Vec<proto::NetworkStatus>, Error> {
        let request = proto::ListNetworksRequest {};
        let stream = self
            .call("ListNetworks", request, async |grpc, request| {
                grpc.list_networks(request).await
            })
            .await?;
        self.all(stream).await
    }

    pub async fn network(&mut self, vni: u32) -> Result<proto::NetworkStatus, Error> {
        let request = proto::GetNetworkRequest { vni };
        self.ask("GetNetwork", request, async |grpc, request| {
            grpc.get_network(request).await
        })
        .await
    }

    pub async fn put_network(&mut self, network: proto::Network) -> Result<(), Error> {
        let request = proto::PutNetworkRequest {
            network: Some(network),
        };
        self.ask("PutNetwork", request, async |grpc, request| {
            grpc.put_network(request).await
        })
        .await
        .map(drop)
    }

    pub async fn add_uplink(&mut self, interface: String) -> Result<proto::Uplink, Error> {
        let request = proto::AddUplinkRequest { interface };
        self.ask("AddUplink", request, async |grpc, request| {
            grpc.add_uplink(request).await
        })
        .await
    }

    pub async fn delete_uplink(&mut self, interface: String) -> Result<(), Error> {
        let request = proto::DeleteUplinkRequest { interface };
        self.ask("DeleteUplink", request, async |grpc, request| {
            grpc.delete_uplink(request).await
        })
        .await
        .map(drop)
    }

    pub async fn uplinks(&mut self) -> Result<proto::ListUplinksResponse, Error> {
        let request = proto::ListUplinksRequest {};
        self.ask("ListUplinks", request, async |grpc, request| {
            grpc.list_uplinks(request).await
        })
        .await
    }

    pub async fn bindings(
        &mut self,
        request: proto::ListBindingsRequest,
    ) -> Result<Vec<proto::Binding>, Error> {
        let stream = self
            .call("ListBindings", request, async |grpc, request| {
                grpc.list_bindings(request).await
            })
            .await?;
        self.all(stream).await
    }

    pub async fn binding(&mut self, key: proto::BindingKey) -> Result<proto::Binding, Error> {
        self.ask("GetBinding", key, async |grpc, request| {
            grpc.get_binding(request).await
        })
        .await
    }

    pub async fn put_bindings(&mut self, bindings: Vec<proto::Binding>) -> Result<(), Error> {
        let request = proto::PutBindingsRequest { bindings };
        self.ask("PutBindings", request, async |grpc, request| {
            grpc.put_bindings(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_bindings(&mut self, bindings: Vec<proto::BindingKey>) -> Result<(), Error> {
        let request = proto::DeleteBindingsRequest { bindings };
        self.ask("DeleteBindings", request, async |grpc, request| {
            grpc.delete_bindings(request).await
        })
        .await
        .map(drop)
    }

    pub async fn set_bindings(
        &mut self,
        request: proto::SetBindingsRequest,
    ) -> Result<proto::BindingsResponse, Error> {
        self.ask("SetBindings", request, async |grpc, request| {
            grpc.set_bindings(request).await
        })
        .await
    }

    async fn all<A>(&self, mut stream: Streaming<A>) -> Result<Vec<A>, Error> {
        let mut all = Vec::new();
        while let Some(one) = self.next_in_time(&mut stream).await? {
            all.push(one);
        }
        Ok(all)
    }
}

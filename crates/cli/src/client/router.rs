//! The router's operations, which API v1 alone has.

use api::v1 as proto;
use tonic::Streaming;

use super::grpc::V1;
use crate::error::Error;

impl V1 {
    pub async fn router_interfaces(&mut self) -> Result<Vec<proto::RouterInterface>, Error> {
        let request = proto::ListRouterInterfacesRequest {};
        let answer = self.ask_router("ListRouterInterfaces", request, async |grpc, request| {
            grpc.list_router_interfaces(request).await
        });
        Ok(answer.await?.interfaces)
    }

    pub async fn add_router_interface(
        &mut self,
        name: String,
        mode: proto::XdpMode,
    ) -> Result<proto::RouterInterface, Error> {
        let mode = mode.into();
        let request = proto::AddRouterInterfaceRequest { name, mode };
        self.ask_router("AddRouterInterface", request, async |grpc, request| {
            grpc.add_router_interface(request).await
        })
        .await
    }

    pub async fn delete_router_interface(&mut self, name: String) -> Result<(), Error> {
        let request = proto::DeleteRouterInterfaceRequest { name };
        self.ask_router("DeleteRouterInterface", request, async |grpc, request| {
            grpc.delete_router_interface(request).await
        })
        .await
        .map(drop)
    }

    pub async fn router_status(&mut self) -> Result<proto::RouterStatus, Error> {
        let request = proto::GetRouterStatusRequest {};
        self.ask_router("GetRouterStatus", request, async |grpc, request| {
            grpc.get_router_status(request).await
        })
        .await
    }

    /// In pieces, as they come.
    pub async fn routes(
        &mut self,
        request: proto::ListRoutesRequest,
    ) -> Result<Streaming<proto::ListRoutesResponse>, Error> {
        self.call_router("ListRoutes", request, async |grpc, request| {
            grpc.list_routes(request).await
        })
        .await
    }

    pub async fn neighbours(
        &mut self,
        request: proto::ListNeighboursRequest,
    ) -> Result<Vec<proto::Neighbour>, Error> {
        let pieces = self.call_router("ListNeighbours", request, async |grpc, request| {
            grpc.list_neighbours(request).await
        });
        let mut pieces = pieces.await?;
        let mut neighbours = Vec::new();
        while let Some(piece) = self.next_in_time(&mut pieces).await? {
            neighbours.extend(piece.neighbours);
        }
        Ok(neighbours)
    }

    pub async fn interfaces(&mut self, names: Vec<String>) -> Result<Vec<proto::Interface>, Error> {
        let request = proto::ListInterfacesRequest { names };
        let answer = self.ask_router("ListInterfaces", request, async |grpc, request| {
            grpc.list_interfaces(request).await
        });
        Ok(answer.await?.interfaces)
    }

    pub async fn watch_router(
        &mut self,
        request: proto::WatchRouterRequest,
    ) -> Result<Streaming<proto::RouterEvent>, Error> {
        self.call_router("WatchRouter", request, async |grpc, request| {
            grpc.watch_router(request).await
        })
        .await
    }
}

//! The methods of the v1 API, one by one: each is an operation of the controller.

use std::sync::Arc;

use api::v1;
use api::v1::butterfly_server::Butterfly;
use control::model::{GroupId, NicId};
use control::{Author, Controller, Error, ErrorKind};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{convert, declare, history, observe, overlay, render, uplinks, watch, workers};
use crate::app::App;
use crate::connections;
use crate::logging::Level;

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

    /// Runs an operation where it may wait for the worker.
    async fn operate<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&App, &mut Controller) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let app = self.app.clone();
        answer(move || {
            let mut control = app.operations.control_by(Author::Client("v1".into()));
            control.count_request();
            operation(&app, &mut control)
        })
        .await
    }

    /// Runs an operation that needs the controller alone.
    async fn control<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Controller) -> Result<T, Error> + Send + 'static,
    ) -> Answer<T> {
        self.operate(|_, control| operation(control).map_err(refused))
            .await
    }
}

/// Runs what may wait, and answers with what comes of it.
pub async fn answer<T: Send + 'static>(
    operation: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Answer<T> {
    match tokio::task::spawn_blocking(operation).await {
        Ok(result) => result.map(Response::new),
        Err(_) => Err(Status::internal(
            "the request made the daemon panic; its log says where",
        )),
    }
}

/// The sentence as it is, under the code that the .proto states for it.
pub fn refused(error: Error) -> Status {
    let message = error.to_string();
    if let Error::DataPlane(_) = error {
        // The worker has ended: so does the daemon.
        return Status::unavailable(message);
    }
    match error.kind() {
        ErrorKind::Invalid => Status::invalid_argument(message),
        ErrorKind::NotFound => Status::not_found(message),
        ErrorKind::Exists => Status::already_exists(message),
        ErrorKind::Quota => Status::resource_exhausted(message),
        ErrorKind::Conflict | ErrorKind::Unavailable => Status::failed_precondition(message),
    }
}

/// A message field that the request cannot do without.
fn required<T>(field: Option<T>, name: &str) -> Result<T, Status> {
    field.ok_or_else(|| Status::invalid_argument(format!("the request has no {name}")))
}

/// A group after an operation on it; an empty one where there is none.
fn group_after(control: &Controller, id: &GroupId) -> v1::Group {
    match control.group(id) {
        Ok(group) => render::group(&group),
        Err(_) => render::group(&control::model::Group::new(id.clone())),
    }
}

#[tonic::async_trait]
impl Butterfly for Service {
    async fn list_nics(&self, _: Request<v1::ListNicsRequest>) -> Answer<v1::ListNicsResponse> {
        self.control(|control| {
            let nics = control
                .nics()
                .map(|status| render::nic_status(&status))
                .collect();
            Ok(v1::ListNicsResponse { nics })
        })
        .await
    }

    async fn get_nic(&self, request: Request<v1::GetNicRequest>) -> Answer<v1::NicStatus> {
        let id = request.into_inner().id;
        self.control(move |control| Ok(render::nic_status(&control.nic(&NicId::new(&id)?)?)))
            .await
    }

    async fn put_nic(&self, request: Request<v1::PutNicRequest>) -> Answer<v1::NicStatus> {
        let nic = required(request.into_inner().nic, "nic")?;
        self.control(move |control| {
            let nic = convert::nic(nic, control.settings())?;
            Ok(render::nic_status(&control.put_nic(nic)?))
        })
        .await
    }

    async fn update_nic(&self, request: Request<v1::UpdateNicRequest>) -> Answer<v1::NicStatus> {
        let update = request.into_inner();
        self.control(move |control| {
            let (id, update) = convert::nic_update(update)?;
            Ok(render::nic_status(&control.update_nic(&id, update)?))
        })
        .await
    }

    async fn delete_nic(
        &self,
        request: Request<v1::DeleteNicRequest>,
    ) -> Answer<v1::DeleteNicResponse> {
        let id = request.into_inner().id;
        self.control(move |control| {
            control.delete_nic(&NicId::new(&id)?)?;
            Ok(v1::DeleteNicResponse {})
        })
        .await
    }

    async fn get_nic_stats(
        &self,
        request: Request<v1::GetNicStatsRequest>,
    ) -> Answer<v1::NicStats> {
        let id = request.into_inner().id;
        self.control(move |control| observe::nic_stats(control, &NicId::new(&id)?))
            .await
    }

    async fn list_nic_stats(
        &self,
        _: Request<v1::ListNicStatsRequest>,
    ) -> Answer<v1::ListNicStatsResponse> {
        self.control(|control| observe::all_nic_stats(control))
            .await
    }

    async fn get_nic_queues(
        &self,
        request: Request<v1::GetNicQueuesRequest>,
    ) -> Answer<v1::NicQueues> {
        let id = request.into_inner().id;
        self.operate(move |app, control| {
            let nic = NicId::new(&id)
                .and_then(|id| control.nic(&id))
                .map_err(refused)?;
            workers::queues(app, &nic)
        })
        .await
    }

    async fn export_nic(
        &self,
        request: Request<v1::ExportNicRequest>,
    ) -> Answer<v1::ExportNicResponse> {
        let id = request.into_inner().id;
        self.control(move |control| {
            let state = connections::export(control, &NicId::new(&id)?)?;
            Ok(v1::ExportNicResponse { state })
        })
        .await
    }

    async fn import_nic(
        &self,
        request: Request<v1::ImportNicRequest>,
    ) -> Answer<v1::ImportNicResponse> {
        let request = request.into_inner();
        self.control(move |control| {
            let flows = connections::import(control, &NicId::new(&request.id)?, &request.state)?;
            Ok(v1::ImportNicResponse {
                flows: flows as u64,
            })
        })
        .await
    }

    async fn list_groups(
        &self,
        _: Request<v1::ListGroupsRequest>,
    ) -> Answer<v1::ListGroupsResponse> {
        self.control(|control| {
            let groups = control
                .groups()
                .map(|group| render::group(&group))
                .collect();
            Ok(v1::ListGroupsResponse { groups })
        })
        .await
    }

    async fn get_group(&self, request: Request<v1::GetGroupRequest>) -> Answer<v1::Group> {
        let id = request.into_inner().id;
        self.control(move |control| Ok(render::group(&*control.group(&GroupId::new(&id)?)?)))
            .await
    }

    async fn put_group(&self, request: Request<v1::PutGroupRequest>) -> Answer<v1::Group> {
        let group = required(request.into_inner().group, "group")?;
        self.control(move |control| {
            let group = convert::group(group)?;
            let id = group.id.clone();
            control.put_group(group)?;
            Ok(group_after(control, &id))
        })
        .await
    }

    async fn update_group(&self, request: Request<v1::UpdateGroupRequest>) -> Answer<v1::Group> {
        let update = request.into_inner();
        self.control(move |control| {
            let id = GroupId::new(&update.id)?;
            let removal = update
                .removal
                .map(|number| convert::removal(&id, number))
                .transpose()?;
            control.update_group(&id, removal, update.allow_midstream)?;
            Ok(group_after(control, &id))
        })
        .await
    }

    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Answer<v1::DeleteGroupResponse> {
        let id = request.into_inner().id;
        self.control(move |control| {
            control.delete_group(&GroupId::new(&id)?)?;
            Ok(v1::DeleteGroupResponse {})
        })
        .await
    }

    async fn add_rule(&self, request: Request<v1::RuleRequest>) -> Answer<v1::Group> {
        let request = request.into_inner();
        let rule = required(request.rule, "rule")?;
        self.control(move |control| {
            let id = GroupId::new(&request.group)?;
            control.add_rule(&id, convert::rule(&rule)?)?;
            Ok(group_after(control, &id))
        })
        .await
    }

    async fn delete_rule(&self, request: Request<v1::RuleRequest>) -> Answer<v1::Group> {
        let request = request.into_inner();
        let rule = required(request.rule, "rule")?;
        self.control(move |control| {
            let id = GroupId::new(&request.group)?;
            control.delete_rule(&id, &convert::rule(&rule)?)?;
            Ok(group_after(control, &id))
        })
        .await
    }

    async fn add_member(&self, request: Request<v1::MemberRequest>) -> Answer<v1::Group> {
        let request = request.into_inner();
        self.control(move |control| {
            let id = GroupId::new(&request.group)?;
            control.add_member(&id, convert::member(&request.group, &request.member)?)?;
            Ok(group_after(control, &id))
        })
        .await
    }

    async fn delete_member(&self, request: Request<v1::MemberRequest>) -> Answer<v1::Group> {
        let request = request.into_inner();
        self.control(move |control| {
            let id = GroupId::new(&request.group)?;
            control.delete_member(&id, convert::member(&request.group, &request.member)?)?;
            Ok(group_after(control, &id))
        })
        .await
    }

    async fn list_endpoints(
        &self,
        _: Request<v1::ListEndpointsRequest>,
    ) -> Answer<v1::ListEndpointsResponse> {
        self.control(|control| Ok(overlay::endpoints(control)))
            .await
    }

    async fn put_endpoint(
        &self,
        request: Request<v1::PutEndpointRequest>,
    ) -> Answer<v1::EndpointStatus> {
        let endpoint = required(request.into_inner().endpoint, "endpoint")?;
        self.control(move |control| overlay::put_endpoint(control, endpoint))
            .await
    }

    async fn update_endpoint(
        &self,
        request: Request<v1::UpdateEndpointRequest>,
    ) -> Answer<v1::EndpointStatus> {
        self.control(move |control| overlay::update_endpoint(control, request.into_inner()))
            .await
    }

    async fn delete_endpoint(
        &self,
        request: Request<v1::DeleteEndpointRequest>,
    ) -> Answer<v1::DeleteEndpointResponse> {
        self.control(move |control| overlay::delete_endpoint(control, request.get_ref()))
            .await
    }

    type ListNetworksStream = overlay::Items<v1::NetworkStatus>;

    async fn list_networks(
        &self,
        _: Request<v1::ListNetworksRequest>,
    ) -> Answer<Self::ListNetworksStream> {
        self.control(|control| Ok(overlay::networks(control))).await
    }

    async fn get_network(
        &self,
        request: Request<v1::GetNetworkRequest>,
    ) -> Answer<v1::NetworkStatus> {
        self.operate(move |app, control| overlay::network(app, control, request.get_ref().vni))
            .await
    }

    async fn put_network(
        &self,
        request: Request<v1::PutNetworkRequest>,
    ) -> Answer<v1::NetworkStatus> {
        let network = required(request.into_inner().network, "network")?;
        self.control(move |control| overlay::put_network(control, network))
            .await
    }

    async fn list_uplinks(
        &self,
        _: Request<v1::ListUplinksRequest>,
    ) -> Answer<v1::ListUplinksResponse> {
        self.operate(|app, _| Ok(uplinks::list(app))).await
    }

    type ListBindingsStream = overlay::Items<v1::Binding>;

    async fn list_bindings(
        &self,
        request: Request<v1::ListBindingsRequest>,
    ) -> Answer<Self::ListBindingsStream> {
        self.control(move |control| overlay::bindings(control, request.get_ref()))
            .await
    }

    async fn get_binding(&self, request: Request<v1::BindingKey>) -> Answer<v1::Binding> {
        self.control(move |control| overlay::binding(control, request.get_ref()))
            .await
    }

    async fn put_bindings(
        &self,
        request: Request<v1::PutBindingsRequest>,
    ) -> Answer<v1::BindingsResponse> {
        self.control(move |control| overlay::put_bindings(control, request.get_ref()))
            .await
    }

    async fn delete_bindings(
        &self,
        request: Request<v1::DeleteBindingsRequest>,
    ) -> Answer<v1::BindingsResponse> {
        self.control(move |control| overlay::delete_bindings(control, request.get_ref()))
            .await
    }

    async fn set_bindings(
        &self,
        request: Request<v1::SetBindingsRequest>,
    ) -> Answer<v1::BindingsResponse> {
        self.control(move |control| overlay::set_bindings(control, request.get_ref()))
            .await
    }

    async fn get_config(&self, _: Request<v1::GetConfigRequest>) -> Answer<v1::Config> {
        self.control(|control| Ok(declare::config(control))).await
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Answer<v1::ApplyResponse> {
        let request = request.into_inner();
        // An absent configuration would delete everything: that is said with an empty one.
        let config = required(request.config, "config")?;
        self.control(move |control| declare::apply(control, config, request.dry_run))
            .await
    }

    async fn list_revisions(
        &self,
        request: Request<v1::ListRevisionsRequest>,
    ) -> Answer<v1::ListRevisionsResponse> {
        self.operate(move |app, _| history::list(app, request.get_ref()))
            .await
    }

    async fn diff_revisions(
        &self,
        request: Request<v1::DiffRevisionsRequest>,
    ) -> Answer<v1::DiffRevisionsResponse> {
        self.operate(move |app, control| history::diff(app, control, request.get_ref()))
            .await
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Answer<v1::ApplyResponse> {
        self.operate(move |app, control| history::roll_back(app, control, request.get_ref()))
            .await
    }

    type WatchStream = ReceiverStream<Result<v1::Event, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        let events = watch::stream(self.app.clone(), request.into_inner());
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Answer<v1::Status> {
        let router = self.app.router.summary().await;
        self.operate(move |app, control| observe::status(app, control, router))
            .await
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Answer<v1::ListWorkersResponse> {
        self.operate(|app, control| workers::list(&app.workers, control))
            .await
    }

    async fn list_drops(
        &self,
        request: Request<v1::ListDropsRequest>,
    ) -> Answer<v1::ListDropsResponse> {
        let request = request.into_inner();
        self.control(move |control| observe::drops(control, &request))
            .await
    }

    async fn list_rule_counters(
        &self,
        request: Request<v1::ListRuleCountersRequest>,
    ) -> Answer<v1::ListRuleCountersResponse> {
        let group = request.into_inner().group;
        self.control(move |control| {
            Ok(v1::ListRuleCountersResponse {
                counters: observe::rule_counters(control, &group)?,
            })
        })
        .await
    }

    type ListFlowsStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::Flow, Status>>>;

    async fn list_flows(
        &self,
        request: Request<v1::ListFlowsRequest>,
    ) -> Answer<Self::ListFlowsStream> {
        let nic = request.into_inner().nic;
        self.control(move |control| {
            let flows: Vec<_> = observe::flows(control, &nic)?.into_iter().map(Ok).collect();
            Ok(tokio_stream::iter(flows))
        })
        .await
    }

    async fn set_log_level(
        &self,
        request: Request<v1::SetLogLevelRequest>,
    ) -> Answer<v1::SetLogLevelResponse> {
        let level: Level = request
            .into_inner()
            .level
            .parse()
            .map_err(Status::invalid_argument)?;
        self.app.operations.log.set(level);
        Ok(Response::new(v1::SetLogLevelResponse {}))
    }

    async fn shutdown(&self, _: Request<v1::ShutdownRequest>) -> Answer<v1::ShutdownResponse> {
        tracing::info!("asked to stop through the v1 API");
        self.app.stop();
        Ok(Response::new(v1::ShutdownResponse {}))
    }
}

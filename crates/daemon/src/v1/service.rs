//! The methods of the v1 API, one by one: each is an operation of the controller.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::v1;
use api::v1::butterfly_server::Butterfly;
use control::model::{GroupId, NicId, SocketAccess};
use control::{Error, ErrorKind};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::bounds::REPLY_TENTHS;
use super::budget::Held;
use super::turns::Length;
use super::{
    capture, convert, declare, flows, history, objects, observe, overlay, render, trace, uplinks,
    watch, workers,
};
use crate::access::{Caller, Permitted, Reach, Refusal, taken};
use crate::app::App;
use crate::connections::{self, Exported};
use crate::logging::Level;

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    app: Arc<App>,
}

/// How often is asked whether what a daemon before has left is taken up.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    pub fn new(app: Arc<App>) -> Service {
        Service { app }
    }

    /// Runs an operation where it may wait for the worker, for who asks for it.
    async fn operate<T: Send + 'static>(
        &self,
        caller: Caller,
        operation: impl FnOnce(&App, &mut Permitted) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        self.operate_as(Length::Short, caller, operation).await
    }

    /// As [`operate`](Self::operate), for what takes long.
    async fn operate_long<T: Send + 'static>(
        &self,
        caller: Caller,
        operation: impl FnOnce(&App, &mut Permitted) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        self.operate_as(Length::Long, caller, operation).await
    }

    /// As [`operate`](Self::operate), where sockets are given to users and groups: what these are
    /// is asked before others have to wait.
    async fn operate_giving<T: Send + 'static>(
        &self,
        caller: Caller,
        sockets: impl FnOnce(&App) -> Vec<SocketAccess> + Send + 'static,
        operation: impl FnOnce(&App, &mut Permitted) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let look_up = |app: &App, caller: &Caller| {
            // Who has a part of the host gives no socket to anybody.
            if *caller.reach() == Reach::Whole {
                app.operations.look_up(&sockets(app));
            }
            Ok(())
        };
        let operate = |app: &App, control: &mut Permitted, ()| operation(app, control);
        self.operate_with(Length::Short, caller, look_up, operate)
            .await
    }

    async fn operate_as<T: Send + 'static>(
        &self,
        length: Length,
        caller: Caller,
        operation: impl FnOnce(&App, &mut Permitted) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let operate = |app: &App, control: &mut Permitted, ()| operation(app, control);
        self.operate_with(length, caller, |_, _| Ok(()), operate)
            .await
    }

    /// Runs an operation with what is prepared for it before others have to wait.
    async fn operate_with<P, T: Send + 'static>(
        &self,
        length: Length,
        caller: Caller,
        prepare: impl FnOnce(&App, &Caller) -> Result<P, Status> + Send + 'static,
        operation: impl FnOnce(&App, &mut Permitted, P) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (app, asks) = (self.app.clone(), caller.clone());
        let operate = move || {
            let prepared = prepare(&app, &caller)?;
            let mut control = app.operations.control_for(&caller)?;
            control.count_request();
            let mut control = Permitted::new(&mut control, &caller);
            operation(&app, &mut control, prepared)
        };
        let done = self.app.turns.run(&asks, length, operate).await;
        done.map(Response::new)
    }

    /// Returns when the connections that a daemon before has left are taken up. What asks for
    /// connections waits for that anyway; here it has nobody else wait for the controller, and
    /// takes no thread.
    async fn connections_are_there(&self) {
        while self.app.workers.switch().is_taking_up() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Room for an answer to a caller, of which nothing is taken yet.
    fn reply(&self, caller: &Caller) -> Held {
        self.app.replies.begin(Some(caller), REPLY_TENTHS)
    }

    /// Runs an operation that needs the controller alone.
    async fn control<T: Send + 'static>(
        &self,
        caller: Caller,
        operation: impl FnOnce(&mut Permitted) -> Result<T, Refusal> + Send + 'static,
    ) -> Answer<T> {
        self.operate(caller, |_, control| {
            operation(control).map_err(Status::from)
        })
        .await
    }
}

/// An answer with what it is made of, which it holds until it is over.
fn made_of<T>(answer: Response<(T, Held)>) -> Response<T> {
    let (answer, held) = answer.into_inner();
    let mut answer = Response::new(answer);
    answer.extensions_mut().insert(Arc::new(held));
    answer
}

/// Runs what may wait when it is this caller's turn, and answers with what comes of it.
pub async fn answer<T: Send + 'static>(
    app: &App,
    caller: &Caller,
    operation: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Answer<T> {
    let asks = caller.clone();
    let operation = move || {
        asks.look_again()?;
        operation()
    };
    let done = app.turns.run(caller, Length::Short, operation).await;
    done.map(Response::new)
}

/// The sentence as it is, under the code that the .proto states for it.
pub fn refused(error: Error) -> Status {
    let message = error.to_string();
    if let Error::DataPlane(_) = error {
        // The worker has ended: so does the daemon.
        return Status::unavailable(message);
    }
    if let Error::NicDiffers(..) = error {
        return Status::already_exists(message);
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
pub(super) fn required<T>(field: Option<T>, name: &str) -> Result<T, Status> {
    field.ok_or_else(|| Status::invalid_argument(format!("the request has no {name}")))
}

#[tonic::async_trait]
impl Butterfly for Service {
    async fn list_nics(
        &self,
        request: Request<v1::ListNicsRequest>,
    ) -> Answer<v1::ListNicsResponse> {
        let (caller, _) = taken(request)?;
        self.control(caller, |control| {
            let nics = control
                .nics()
                .map(|status| render::nic_status(&status))
                .collect();
            let unmade = control.unmade_nics().map(render::nic).collect();
            Ok(v1::ListNicsResponse { nics, unmade })
        })
        .await
    }

    async fn get_nic(&self, request: Request<v1::GetNicRequest>) -> Answer<v1::NicStatus> {
        let (caller, request) = taken(request)?;
        let id = request.id;
        self.control(caller, move |control| {
            Ok(render::nic_status(&control.nic(&NicId::new(&id)?)?))
        })
        .await
    }

    async fn put_nic(&self, request: Request<v1::PutNicRequest>) -> Answer<v1::NicStatus> {
        let (caller, request) = taken(request)?;
        let (nic, create_only) = (required(request.nic, "nic")?, request.create_only);
        let given = convert::socket_names(&nic);
        let put = move |_: &App, control: &mut Permitted| {
            Ok(objects::put_nic(control, nic, create_only)?)
        };
        self.operate_giving(caller, |_| vec![given], put).await
    }

    async fn update_nic(&self, request: Request<v1::UpdateNicRequest>) -> Answer<v1::NicStatus> {
        let (caller, request) = taken(request)?;
        let asked = request.clone();
        let given = move |app: &App| {
            let to_be = convert::nic_update(asked).and_then(|(id, update)| {
                let now = app.control().nic(&id)?;
                Ok(now.nic.updated(update).socket)
            });
            to_be.into_iter().collect()
        };
        let make =
            move |_: &App, control: &mut Permitted| Ok(objects::update_nic(control, request)?);
        self.operate_giving(caller, given, make).await
    }

    async fn delete_nic(
        &self,
        request: Request<v1::DeleteNicRequest>,
    ) -> Answer<v1::DeleteNicResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            objects::delete_nic(control, &request)
        })
        .await
    }

    async fn get_nic_stats(
        &self,
        request: Request<v1::GetNicStatsRequest>,
    ) -> Answer<v1::NicStats> {
        let (caller, request) = taken(request)?;
        let id = request.id;
        self.operate_long(caller, move |_, control| {
            Ok(observe::nic_stats(
                control,
                &NicId::new(&id).map_err(refused)?,
            )?)
        })
        .await
    }

    async fn list_nic_stats(
        &self,
        request: Request<v1::ListNicStatsRequest>,
    ) -> Answer<v1::ListNicStatsResponse> {
        let (caller, _) = taken(request)?;
        self.control(caller, |control| observe::all_nic_stats(control))
            .await
    }

    async fn get_nic_queues(
        &self,
        request: Request<v1::GetNicQueuesRequest>,
    ) -> Answer<v1::NicQueues> {
        let (caller, request) = taken(request)?;
        let id = request.id;
        self.operate(caller, move |app, control| {
            let nic = control.nic(&NicId::new(&id).map_err(refused)?)?;
            workers::queues(app, &nic)
        })
        .await
    }

    async fn export_nic(
        &self,
        request: Request<v1::ExportNicRequest>,
    ) -> Answer<v1::ExportNicResponse> {
        let (caller, request) = taken(request)?;
        self.connections_are_there().await;
        let id = request.id;
        self.operate_long(caller, move |_, control| {
            let id = NicId::new(&id).map_err(refused)?;
            let state = connections::export(control, &id)?;
            Ok(v1::ExportNicResponse { state })
        })
        .await
    }

    async fn import_nic(
        &self,
        request: Request<v1::ImportNicRequest>,
    ) -> Answer<v1::ImportNicResponse> {
        let (caller, request) = taken(request)?;
        self.connections_are_there().await;
        let v1::ImportNicRequest { id, state } = request;
        let read = move |_: &App, caller: &Caller| {
            let id = NicId::new(&id).map_err(refused)?;
            caller.hold_more(connections::weigh(&id, &state).map_err(refused)?)?;
            let exported = connections::decode(&id, &state).map_err(refused)?;
            Ok((id, exported))
        };
        let import = |_: &App, control: &mut Permitted, (id, exported): (NicId, Exported)| {
            let flows = connections::import(control, &id, exported)?;
            Ok(v1::ImportNicResponse {
                flows: flows as u64,
            })
        };
        self.operate_with(Length::Long, caller, read, import).await
    }

    async fn list_groups(
        &self,
        request: Request<v1::ListGroupsRequest>,
    ) -> Answer<v1::ListGroupsResponse> {
        let (caller, _) = taken(request)?;
        self.control(caller, |control| {
            let groups = control
                .groups()
                .map(|group| render::group(&group))
                .collect();
            Ok(v1::ListGroupsResponse { groups })
        })
        .await
    }

    async fn get_group(&self, request: Request<v1::GetGroupRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        let id = request.id;
        self.control(caller, move |control| {
            Ok(render::group(&*control.group(&GroupId::new(&id)?)?))
        })
        .await
    }

    async fn put_group(&self, request: Request<v1::PutGroupRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        let group = required(request.group, "group")?;
        self.control(caller, move |control| objects::put_group(control, group))
            .await
    }

    async fn update_group(&self, request: Request<v1::UpdateGroupRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            objects::update_group(control, &request)
        })
        .await
    }

    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Answer<v1::DeleteGroupResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            objects::delete_group(control, &request)
        })
        .await
    }

    async fn add_rule(&self, request: Request<v1::RuleRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        self.operate(caller, move |_, control| {
            objects::add_rule(control, &request)
        })
        .await
    }

    async fn delete_rule(&self, request: Request<v1::RuleRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        self.operate(caller, move |_, control| {
            objects::delete_rule(control, &request)
        })
        .await
    }

    async fn add_member(&self, request: Request<v1::MemberRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            objects::add_member(control, &request)
        })
        .await
    }

    async fn delete_member(&self, request: Request<v1::MemberRequest>) -> Answer<v1::Group> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            objects::delete_member(control, &request)
        })
        .await
    }

    async fn list_endpoints(
        &self,
        request: Request<v1::ListEndpointsRequest>,
    ) -> Answer<v1::ListEndpointsResponse> {
        let (caller, _) = taken(request)?;
        self.control(caller, overlay::hosts).await
    }

    async fn put_endpoint(
        &self,
        request: Request<v1::PutEndpointRequest>,
    ) -> Answer<v1::EndpointStatus> {
        let (caller, request) = taken(request)?;
        let endpoint = required(request.endpoint, "endpoint")?;
        self.control(caller, move |control| overlay::put_host(control, endpoint))
            .await
    }

    async fn update_endpoint(
        &self,
        request: Request<v1::UpdateEndpointRequest>,
    ) -> Answer<v1::EndpointStatus> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            overlay::update_host(control, request)
        })
        .await
    }

    async fn delete_endpoint(
        &self,
        request: Request<v1::DeleteEndpointRequest>,
    ) -> Answer<v1::DeleteEndpointResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            overlay::delete_host(control, &request)
        })
        .await
    }

    type ListNetworksStream = overlay::Items<v1::NetworkStatus>;

    async fn list_networks(
        &self,
        request: Request<v1::ListNetworksRequest>,
    ) -> Answer<Self::ListNetworksStream> {
        let (caller, _) = taken(request)?;
        let held = self.reply(&caller);
        let networks = move |_: &App, control: &mut Permitted| overlay::networks(control, held);
        self.operate(caller, networks).await.map(made_of)
    }

    async fn get_network(
        &self,
        request: Request<v1::GetNetworkRequest>,
    ) -> Answer<v1::NetworkStatus> {
        let (caller, request) = taken(request)?;
        self.operate(caller, move |app, control| {
            overlay::network(app, control, request.vni)
        })
        .await
    }

    async fn put_network(
        &self,
        request: Request<v1::PutNetworkRequest>,
    ) -> Answer<v1::NetworkStatus> {
        let (caller, request) = taken(request)?;
        let network = required(request.network, "network")?;
        self.control(caller, move |control| {
            overlay::put_network(control, network)
        })
        .await
    }

    async fn list_uplinks(
        &self,
        request: Request<v1::ListUplinksRequest>,
    ) -> Answer<v1::ListUplinksResponse> {
        let (caller, _) = taken(request)?;
        self.operate(caller, |app, _| Ok(uplinks::list(app))).await
    }

    async fn add_uplink(&self, request: Request<v1::AddUplinkRequest>) -> Answer<v1::Uplink> {
        let (caller, request) = taken(request)?;
        self.operate(caller, move |app, control| {
            uplinks::add(app, control.whole()?, &request.interface)
        })
        .await
    }

    async fn delete_uplink(
        &self,
        request: Request<v1::DeleteUplinkRequest>,
    ) -> Answer<v1::DeleteUplinkResponse> {
        let (caller, request) = taken(request)?;
        self.operate(caller, move |app, control| {
            uplinks::delete(app, control.whole()?, &request.interface)
        })
        .await
    }

    type ListBindingsStream = overlay::Items<v1::Binding>;

    async fn list_bindings(
        &self,
        request: Request<v1::ListBindingsRequest>,
    ) -> Answer<Self::ListBindingsStream> {
        let (caller, request) = taken(request)?;
        let held = self.reply(&caller);
        let bindings =
            move |_: &App, control: &mut Permitted| overlay::bindings(control, &request, held);
        self.operate(caller, bindings).await.map(made_of)
    }

    async fn get_binding(&self, request: Request<v1::BindingKey>) -> Answer<v1::Binding> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| overlay::binding(control, &request))
            .await
    }

    async fn put_bindings(
        &self,
        request: Request<v1::PutBindingsRequest>,
    ) -> Answer<v1::BindingsResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            overlay::put_bindings(control, &request)
        })
        .await
    }

    async fn delete_bindings(
        &self,
        request: Request<v1::DeleteBindingsRequest>,
    ) -> Answer<v1::BindingsResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            overlay::delete_bindings(control, &request)
        })
        .await
    }

    async fn set_bindings(
        &self,
        request: Request<v1::SetBindingsRequest>,
    ) -> Answer<v1::BindingsResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| {
            overlay::set_bindings(control, &request)
        })
        .await
    }

    async fn get_config(&self, request: Request<v1::GetConfigRequest>) -> Answer<v1::Config> {
        let (caller, _) = taken(request)?;
        self.control(caller, |control| Ok(declare::config(control)))
            .await
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Answer<v1::ApplyResponse> {
        let (caller, request) = taken(request)?;
        // An absent configuration would delete everything: that is said with an empty one.
        let config = required(request.config, "config")?;
        let given = config.nics.iter().map(convert::socket_names).collect();
        let make = move |_: &App, control: &mut Permitted| {
            Ok(declare::apply(control, config, request.dry_run)?)
        };
        self.operate_giving(caller, |_| given, make).await
    }

    async fn list_revisions(
        &self,
        request: Request<v1::ListRevisionsRequest>,
    ) -> Answer<v1::ListRevisionsResponse> {
        let (caller, request) = taken(request)?;
        self.operate(caller, move |app, _| history::list(app, &request))
            .await
    }

    async fn diff_revisions(
        &self,
        request: Request<v1::DiffRevisionsRequest>,
    ) -> Answer<v1::DiffRevisionsResponse> {
        let (caller, request) = taken(request)?;
        self.operate_long(caller, move |app, control| {
            history::diff(app, control, &request)
        })
        .await
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Answer<v1::ApplyResponse> {
        let (caller, request) = taken(request)?;
        let revision = request.revision;
        let given = move |app: &App| history::given_at(app, revision);
        let make =
            move |app: &App, control: &mut Permitted| history::roll_back(app, control, &request);
        self.operate_giving(caller, given, make).await
    }

    type WatchStream = ReceiverStream<Result<v1::Event, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        let (caller, request) = taken(request)?;
        let events = watch::stream(self.app.clone(), caller, request)?;
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn get_status(&self, request: Request<v1::GetStatusRequest>) -> Answer<v1::Status> {
        let (caller, request) = taken(request)?;
        let router = match caller.reach() {
            Reach::Whole => {
                let _turn = self.app.turns.take(&caller, Length::Short).await;
                self.app.router.summary().await
            }
            _ => Default::default(),
        };
        self.operate(caller, move |app, control| match request.brief {
            true => Ok(observe::brief(app, control, router)),
            false => observe::status(app, control, router),
        })
        .await
    }

    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Answer<v1::ListWorkersResponse> {
        let (caller, _) = taken(request)?;
        self.operate(caller, |app, control| {
            workers::list(&app.workers, control.whole()?)
        })
        .await
    }

    async fn list_drops(
        &self,
        request: Request<v1::ListDropsRequest>,
    ) -> Answer<v1::ListDropsResponse> {
        let (caller, request) = taken(request)?;
        self.control(caller, move |control| observe::drops(control, &request))
            .await
    }

    async fn list_rule_counters(
        &self,
        request: Request<v1::ListRuleCountersRequest>,
    ) -> Answer<v1::ListRuleCountersResponse> {
        let (caller, request) = taken(request)?;
        let group = request.group;
        self.control(caller, move |control| {
            Ok(v1::ListRuleCountersResponse {
                counters: observe::rule_counters(control, &group)?,
            })
        })
        .await
    }

    type ListFlowsStream = tokio_stream::Iter<flows::Listed>;

    async fn list_flows(
        &self,
        request: Request<v1::ListFlowsRequest>,
    ) -> Answer<Self::ListFlowsStream> {
        let (caller, request) = taken(request)?;
        self.connections_are_there().await;
        let held = self.reply(&caller);
        let flows = move |_: &App, control: &mut Permitted| {
            let (flows, held) = flows::list(control, &request, held)?;
            Ok((tokio_stream::iter(flows), held))
        };
        self.operate_long(caller, flows).await.map(made_of)
    }

    async fn delete_flows(
        &self,
        request: Request<v1::DeleteFlowsRequest>,
    ) -> Answer<v1::DeleteFlowsResponse> {
        let (caller, request) = taken(request)?;
        self.connections_are_there().await;
        let held = self.reply(&caller);
        self.operate_long(caller, move |_, control| {
            let flows = flows::delete(control, &request, held)? as u64;
            tracing::info!(
                flows,
                "connections are forgotten since a client asked for it"
            );
            Ok(v1::DeleteFlowsResponse { flows })
        })
        .await
    }

    type WatchFlowsStream = ReceiverStream<Result<v1::FlowRecords, Status>>;

    async fn watch_flows(
        &self,
        request: Request<v1::WatchFlowsRequest>,
    ) -> Answer<Self::WatchFlowsStream> {
        let (caller, request) = taken(request)?;
        let (nic, watcher) = (request.nic, caller.clone());
        let records = self
            .operate(caller, move |app, control| {
                if !nic.is_empty() {
                    control.nic(&NicId::new(&nic).map_err(refused)?)?;
                }
                app.reload.flow_log().watch(&watcher, nic)
            })
            .await?
            .into_inner();
        let records = flows::records(self.app.clone(), records);
        Ok(Response::new(ReceiverStream::new(records)))
    }

    async fn get_trace(&self, request: Request<v1::GetTraceRequest>) -> Answer<v1::Trace> {
        let (caller, request) = taken(request)?;
        self.connections_are_there().await;
        self.operate_long(caller, move |app, control| {
            trace::get(app, control, request)
        })
        .await
    }

    type CaptureFramesStream = ReceiverStream<Result<v1::CapturePart, Status>>;

    async fn capture_frames(
        &self,
        request: Request<v1::CaptureFramesRequest>,
    ) -> Answer<Self::CaptureFramesStream> {
        let (caller, request) = taken(request)?;
        let begun = self
            .operate(caller, move |app, control| {
                capture::begin(app, control, &request)
            })
            .await?;
        let parts = capture::stream(self.app.clone(), begun.into_inner());
        Ok(Response::new(ReceiverStream::new(parts)))
    }

    type TraceFramesStream = ReceiverStream<Result<v1::PassedFrame, Status>>;

    async fn trace_frames(
        &self,
        request: Request<v1::TraceFramesRequest>,
    ) -> Answer<Self::TraceFramesStream> {
        let (caller, request) = taken(request)?;
        let begun = self
            .operate(caller.clone(), move |app, control| {
                trace::begin(app, control, &request)
            })
            .await?;
        // The audit log has it now, and not when it ends.
        let frames = trace::stream(self.app.clone(), caller.unrecorded(), begun.into_inner());
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn set_log_level(
        &self,
        request: Request<v1::SetLogLevelRequest>,
    ) -> Answer<v1::SetLogLevelResponse> {
        let (caller, request) = taken(request)?;
        let level: Level = request.level.parse().map_err(Status::invalid_argument)?;
        caller.look_again()?;
        self.app.operations.set_log_level(level, &caller);
        Ok(Response::new(v1::SetLogLevelResponse {}))
    }

    async fn reload(&self, request: Request<v1::ReloadRequest>) -> Answer<v1::ReloadResponse> {
        let (caller, _) = taken(request)?;
        let app = self.app.clone();
        // Its record is there until the files are read, also where the client does not wait.
        answer(&self.app, &caller.clone(), move || {
            caller.takes_effect();
            let read = app.reload.now().map_err(Status::failed_precondition)?;
            Ok(v1::ReloadResponse { read })
        })
        .await
    }

    async fn upgrade(&self, request: Request<v1::UpgradeRequest>) -> Answer<v1::UpgradeResponse> {
        let (caller, request) = taken(request)?;
        let app = self.app.clone();
        answer(&self.app, &caller.clone(), move || {
            let program = Some(request.program).filter(|program| !program.is_empty());
            let program = program.as_deref().map(Path::new);
            let upgraded = app.upgrade.run(&app, program, || caller.takes_effect());
            let upgraded = upgraded.map_err(Status::failed_precondition)?;
            Ok(v1::UpgradeResponse {
                version: upgraded.version,
                pid: upgraded.pid,
                pause_us: upgraded.pause.as_micros() as u64,
            })
        })
        .await
    }

    async fn shutdown(
        &self,
        request: Request<v1::ShutdownRequest>,
    ) -> Answer<v1::ShutdownResponse> {
        let (caller, _) = taken(request)?;
        caller.look_again()?;
        caller.takes_effect();
        tracing::info!("asked to stop through the v1 API");
        self.app.stop();
        Ok(Response::new(v1::ShutdownResponse {}))
    }
}

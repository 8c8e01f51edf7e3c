//! The operations over API v1.

use api::v1 as proto;
use tonic::Streaming;

use super::grpc::V1;
use crate::error::Error;

impl V1 {
    pub async fn nics(&mut self) -> Result<Vec<proto::NicStatus>, Error> {
        Ok(self.list_nics().await?.nics)
    }

    /// Those that are stored and could not be made.
    pub async fn unmade_nics(&mut self) -> Result<Vec<proto::Nic>, Error> {
        Ok(self.list_nics().await?.unmade)
    }

    async fn list_nics(&mut self) -> Result<proto::ListNicsResponse, Error> {
        let request = proto::ListNicsRequest {};
        self.ask("ListNics", request, async |grpc, request| {
            grpc.list_nics(request).await
        })
        .await
    }

    pub async fn nic(&mut self, id: &str) -> Result<proto::NicStatus, Error> {
        let request = proto::GetNicRequest { id: id.into() };
        self.ask("GetNic", request, async |grpc, request| {
            grpc.get_nic(request).await
        })
        .await
    }

    pub async fn put_nic(
        &mut self,
        nic: proto::Nic,
        replace: bool,
    ) -> Result<proto::NicStatus, Error> {
        let request = proto::PutNicRequest {
            nic: Some(nic),
            create_only: !replace,
        };
        self.ask("PutNic", request, async |grpc, request| {
            grpc.put_nic(request).await
        })
        .await
    }

    pub async fn update_nic(
        &mut self,
        request: proto::UpdateNicRequest,
    ) -> Result<proto::NicStatus, Error> {
        self.ask("UpdateNic", request, async |grpc, request| {
            grpc.update_nic(request).await
        })
        .await
    }

    pub async fn delete_nic(&mut self, id: &str) -> Result<(), Error> {
        let request = proto::DeleteNicRequest { id: id.into() };
        self.ask("DeleteNic", request, async |grpc, request| {
            grpc.delete_nic(request).await
        })
        .await
        .map(drop)
    }

    pub async fn nic_stats(&mut self, id: &str) -> Result<proto::NicStats, Error> {
        let request = proto::GetNicStatsRequest { id: id.into() };
        self.ask("GetNicStats", request, async |grpc, request| {
            grpc.get_nic_stats(request).await
        })
        .await
    }

    pub async fn nics_stats(&mut self) -> Result<proto::ListNicStatsResponse, Error> {
        let request = proto::ListNicStatsRequest {};
        self.ask("ListNicStats", request, async |grpc, request| {
            grpc.list_nic_stats(request).await
        })
        .await
    }

    pub async fn nic_queues(&mut self, id: &str) -> Result<proto::NicQueues, Error> {
        let request = proto::GetNicQueuesRequest { id: id.into() };
        self.ask("GetNicQueues", request, async |grpc, request| {
            grpc.get_nic_queues(request).await
        })
        .await
    }

    pub async fn workers(&mut self) -> Result<proto::ListWorkersResponse, Error> {
        let request = proto::ListWorkersRequest {};
        self.ask("ListWorkers", request, async |grpc, request| {
            grpc.list_workers(request).await
        })
        .await
    }

    pub async fn export_nic(&mut self, id: &str) -> Result<Vec<u8>, Error> {
        let request = proto::ExportNicRequest { id: id.into() };
        Ok(self
            .call("ExportNic", request, async |grpc, request| {
                grpc.export_nic(request).await
            })
            .await?
            .state)
    }

    pub async fn import_nic(&mut self, id: &str, state: Vec<u8>) -> Result<u64, Error> {
        let request = proto::ImportNicRequest {
            id: id.into(),
            state,
        };
        Ok(self
            .ask("ImportNic", request, async |grpc, request| {
                grpc.import_nic(request).await
            })
            .await?
            .flows)
    }

    pub async fn groups(&mut self) -> Result<Vec<proto::Group>, Error> {
        let request = proto::ListGroupsRequest {};
        Ok(self
            .ask("ListGroups", request, async |grpc, request| {
                grpc.list_groups(request).await
            })
            .await?
            .groups)
    }

    pub async fn group(&mut self, id: &str) -> Result<proto::Group, Error> {
        let request = proto::GetGroupRequest { id: id.into() };
        self.ask("GetGroup", request, async |grpc, request| {
            grpc.get_group(request).await
        })
        .await
    }

    pub async fn put_group(&mut self, group: proto::Group) -> Result<(), Error> {
        let request = proto::PutGroupRequest { group: Some(group) };
        self.ask("PutGroup", request, async |grpc, request| {
            grpc.put_group(request).await
        })
        .await
        .map(drop)
    }

    pub async fn update_group(&mut self, request: proto::UpdateGroupRequest) -> Result<(), Error> {
        self.ask("UpdateGroup", request, async |grpc, request| {
            grpc.update_group(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_group(&mut self, id: &str) -> Result<(), Error> {
        let request = proto::DeleteGroupRequest { id: id.into() };
        self.ask("DeleteGroup", request, async |grpc, request| {
            grpc.delete_group(request).await
        })
        .await
        .map(drop)
    }

    pub async fn add_rule(&mut self, group: &str, rule: proto::Rule) -> Result<(), Error> {
        let request = proto::RuleRequest {
            group: group.into(),
            rule: Some(rule),
            brief: true,
        };
        self.ask("AddRule", request, async |grpc, request| {
            grpc.add_rule(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_rule(&mut self, group: &str, rule: proto::Rule) -> Result<(), Error> {
        let request = proto::RuleRequest {
            group: group.into(),
            rule: Some(rule),
            brief: true,
        };
        self.ask("DeleteRule", request, async |grpc, request| {
            grpc.delete_rule(request).await
        })
        .await
        .map(drop)
    }

    pub async fn add_member(&mut self, group: &str, member: &str) -> Result<(), Error> {
        let request = proto::MemberRequest {
            group: group.into(),
            member: member.into(),
            brief: true,
        };
        self.ask("AddMember", request, async |grpc, request| {
            grpc.add_member(request).await
        })
        .await
        .map(drop)
    }

    pub async fn delete_member(&mut self, group: &str, member: &str) -> Result<(), Error> {
        let request = proto::MemberRequest {
            group: group.into(),
            member: member.into(),
            brief: true,
        };
        self.ask("DeleteMember", request, async |grpc, request| {
            grpc.delete_member(request).await
        })
        .await
        .map(drop)
    }

    pub async fn config(&mut self) -> Result<proto::Config, Error> {
        let request = proto::GetConfigRequest {};
        self.ask("GetConfig", request, async |grpc, request| {
            grpc.get_config(request).await
        })
        .await
    }

    pub async fn revisions(&mut self, limit: u32) -> Result<Vec<proto::Revision>, Error> {
        let request = proto::ListRevisionsRequest { limit };
        Ok(self
            .ask("ListRevisions", request, async |grpc, request| {
                grpc.list_revisions(request).await
            })
            .await?
            .revisions)
    }

    pub async fn diff_revisions(
        &mut self,
        from: u64,
        to: u64,
    ) -> Result<Vec<proto::Change>, Error> {
        let request = proto::DiffRevisionsRequest { from, to };
        Ok(self
            .ask("DiffRevisions", request, async |grpc, request| {
                grpc.diff_revisions(request).await
            })
            .await?
            .changes)
    }

    pub async fn roll_back(
        &mut self,
        revision: u64,
        dry_run: bool,
    ) -> Result<proto::ApplyResponse, Error> {
        let request = proto::RollbackRequest { revision, dry_run };
        self.ask("Rollback", request, async |grpc, request| {
            grpc.rollback(request).await
        })
        .await
    }

    pub async fn apply(
        &mut self,
        config: proto::Config,
        dry_run: bool,
    ) -> Result<proto::ApplyResponse, Error> {
        let request = proto::ApplyRequest {
            config: Some(config),
            dry_run,
        };
        self.ask("Apply", request, async |grpc, request| {
            grpc.apply(request).await
        })
        .await
    }

    pub async fn watch(&mut self, snapshot: bool) -> Result<Streaming<proto::Event>, Error> {
        let request = proto::WatchRequest { snapshot };
        self.call("Watch", request, async |grpc, request| {
            grpc.watch(request).await
        })
        .await
    }

    pub async fn status(&mut self) -> Result<proto::Status, Error> {
        self.some_status(false).await
    }

    /// `brief`: without what takes asking workers.
    pub async fn some_status(&mut self, brief: bool) -> Result<proto::Status, Error> {
        let request = proto::GetStatusRequest { brief };
        self.ask("GetStatus", request, async |grpc, request| {
            grpc.get_status(request).await
        })
        .await
    }

    pub async fn drops(&mut self, nic: &str, all: bool) -> Result<proto::ListDropsResponse, Error> {
        let request = proto::ListDropsRequest {
            nic: nic.into(),
            all,
        };
        self.ask("ListDrops", request, async |grpc, request| {
            grpc.list_drops(request).await
        })
        .await
    }

    pub async fn rule_counters(&mut self, group: &str) -> Result<Vec<proto::RuleCounter>, Error> {
        let request = proto::ListRuleCountersRequest {
            group: group.into(),
        };
        let answer = self.ask("ListRuleCounters", request, async |grpc, request| {
            grpc.list_rule_counters(request).await
        });
        Ok(answer.await?.counters)
    }

    pub async fn flows(
        &mut self,
        request: proto::ListFlowsRequest,
    ) -> Result<Streaming<proto::Flow>, Error> {
        self.call("ListFlows", request, async |grpc, request| {
            grpc.list_flows(request).await
        })
        .await
    }

    /// How many were forgotten.
    pub async fn delete_flows(&mut self, request: proto::DeleteFlowsRequest) -> Result<u64, Error> {
        let answer = self.ask("DeleteFlows", request, async |grpc, request| {
            grpc.delete_flows(request).await
        });
        Ok(answer.await?.flows)
    }

    pub async fn watch_flows(&mut self, nic: &str) -> Result<Streaming<proto::FlowRecords>, Error> {
        let request = proto::WatchFlowsRequest { nic: nic.into() };
        self.call("WatchFlows", request, async |grpc, request| {
            grpc.watch_flows(request).await
        })
        .await
    }

    pub async fn trace(&mut self, request: proto::GetTraceRequest) -> Result<proto::Trace, Error> {
        self.ask("GetTrace", request, async |grpc, request| {
            grpc.get_trace(request).await
        })
        .await
    }

    pub async fn trace_frames(
        &mut self,
        request: proto::TraceFramesRequest,
    ) -> Result<Streaming<proto::PassedFrame>, Error> {
        self.call("TraceFrames", request, async |grpc, request| {
            grpc.trace_frames(request).await
        })
        .await
    }

    pub async fn capture(
        &mut self,
        request: proto::CaptureFramesRequest,
    ) -> Result<Streaming<proto::CapturePart>, Error> {
        self.call("CaptureFrames", request, async |grpc, request| {
            grpc.capture_frames(request).await
        })
        .await
    }

    pub async fn set_log_level(&mut self, level: &str) -> Result<(), Error> {
        let request = proto::SetLogLevelRequest {
            level: level.into(),
        };
        self.ask("SetLogLevel", request, async |grpc, request| {
            grpc.set_log_level(request).await
        })
        .await
        .map(drop)
    }

    pub async fn reload(&mut self) -> Result<Vec<String>, Error> {
        let request = proto::ReloadRequest {};
        let answer = self.ask("Reload", request, async |grpc, request| {
            grpc.reload(request).await
        });
        Ok(answer.await?.read)
    }

    pub async fn upgrade(&mut self, program: String) -> Result<proto::UpgradeResponse, Error> {
        let request = proto::UpgradeRequest { program };
        self.ask("Upgrade", request, async |grpc, request| {
            grpc.upgrade(request).await
        })
        .await
    }

    pub async fn shutdown(&mut self) -> Result<(), Error> {
        let request = proto::ShutdownRequest {};
        self.ask("Shutdown", request, async |grpc, request| {
            grpc.shutdown(request).await
        })
        .await
        .map(drop)
    }
}

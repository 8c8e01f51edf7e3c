//! The connection to the daemon: the same operations over either API. Messages are API v1's; over
//! API v0 what it does not say stays at its default, and what it cannot do is an error that says
//! which API can.

mod balancer;
mod emulate;
mod envelope;
mod grpc;
mod overlay;
mod router;
mod v0;
mod v1;
mod zmq;

use api::v0::Messages;
use api::v1 as proto;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::options::Global;

pub use envelope::{message_error, refusal};
pub use grpc::V1;
pub use zmq::V0;

/// A connected client.
pub enum Client {
    /// ZeroMQ.
    V0(V0),
    /// gRPC: a client of each service.
    V1(Box<V1>),
}

impl Client {
    /// Connects; nobody listening is known at once.
    pub async fn connect(endpoint: Endpoint, options: &Global) -> Result<Client, Error> {
        match endpoint {
            Endpoint::ZeroMq(_) => Ok(Client::V0(V0::connect(endpoint, options).await?)),
            Endpoint::Unix(_) | Endpoint::Tls(_) => {
                Ok(Client::V1(Box::new(V1::connect(endpoint, options).await?)))
            }
        }
    }

    /// True over API v1.
    pub fn is_v1(&self) -> bool {
        matches!(self, Client::V1(_))
    }

    /// API v1, or the error that says what needs it.
    pub fn only_v1(&mut self, what: &str) -> Result<&mut V1, Error> {
        match self {
            Client::V1(v1) => Ok(v1),
            Client::V0(v0) => Err(v0.needs_v1(what)),
        }
    }

    /// The ids of all NICs, sorted.
    pub async fn nic_ids(&mut self) -> Result<Vec<String>, Error> {
        match self {
            Client::V0(v0) => v0.nic_ids().await,
            Client::V1(v1) => {
                let ids = v1
                    .nics()
                    .await?
                    .into_iter()
                    .map(|nic| nic.nic.unwrap_or_default().id);
                Ok(ids.collect())
            }
        }
    }

    /// All NICs, sorted by id.
    pub async fn nics(&mut self) -> Result<Vec<proto::NicStatus>, Error> {
        match self {
            Client::V0(v0) => v0.nics("").await,
            Client::V1(v1) => v1.nics().await,
        }
    }

    /// One NIC.
    pub async fn nic(&mut self, id: &str) -> Result<proto::NicStatus, Error> {
        match self {
            Client::V0(v0) => v0.nic(id).await,
            Client::V1(v1) => v1.nic(id).await,
        }
    }

    /// Creates a NIC, or replaces it if told to, as API v0 always does; what came of it, over API
    /// v0 its path alone.
    pub async fn put_nic(
        &mut self,
        nic: proto::Nic,
        replace: bool,
    ) -> Result<proto::NicStatus, Error> {
        match self {
            Client::V0(v0) => v0.put_nic(&nic).await,
            Client::V1(v1) => v1.put_nic(nic, replace).await,
        }
    }

    /// Replaces the given values of a NIC; what came of it, over API v0 nothing.
    pub async fn update_nic(
        &mut self,
        update: proto::UpdateNicRequest,
    ) -> Result<proto::NicStatus, Error> {
        match self {
            Client::V0(v0) => v0.update_nic(update).await.map(|()| Default::default()),
            Client::V1(v1) => v1.update_nic(update).await,
        }
    }

    /// Deletes a NIC.
    pub async fn delete_nic(&mut self, id: &str) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.delete_nic(id).await,
            Client::V1(v1) => v1.delete_nic(id).await,
        }
    }

    /// What a NIC received and sent; over API v0 bytes alone.
    pub async fn nic_stats(&mut self, id: &str) -> Result<proto::NicStats, Error> {
        match self {
            Client::V0(v0) => v0.nic_stats(id).await,
            Client::V1(v1) => v1.nic_stats(id).await,
        }
    }

    /// What these NICs, or all, received and sent, read at one moment and without their
    /// connections.
    pub async fn nics_stats(
        &mut self,
        ids: &[String],
    ) -> Result<proto::ListNicStatsResponse, Error> {
        match self {
            Client::V0(v0) => v0.nics_stats(ids).await,
            Client::V1(v1) => {
                let mut stats = v1.nics_stats().await?;
                let wanted = |nic: &proto::NicStats| ids.is_empty() || ids.contains(&nic.id);
                stats.nics.retain(wanted);
                let missing = ids
                    .iter()
                    .find(|id| stats.nics.iter().all(|nic| nic.id != **id));
                match missing {
                    Some(id) => Err(Error::Refused(format!("there is no NIC '{id}'"))),
                    None => Ok(stats),
                }
            }
        }
    }

    /// What a NIC's queue pairs are doing.
    pub async fn nic_queues(&mut self, id: &str) -> Result<proto::NicQueues, Error> {
        self.only_v1("nic show")?.nic_queues(id).await
    }

    /// What the workers are doing.
    pub async fn workers(&mut self) -> Result<proto::ListWorkersResponse, Error> {
        self.only_v1("worker")?.workers().await
    }

    /// A NIC's connections.
    pub async fn export_nic(&mut self, id: &str) -> Result<Vec<u8>, Error> {
        match self {
            Client::V0(v0) => v0.export_nic(id).await,
            Client::V1(v1) => v1.export_nic(id).await,
        }
    }

    /// Takes connections up; how many.
    pub async fn import_nic(&mut self, id: &str, state: Vec<u8>) -> Result<u64, Error> {
        self.only_v1("flows import")?.import_nic(id, state).await
    }

    /// The ids of all groups, sorted.
    pub async fn group_ids(&mut self) -> Result<Vec<String>, Error> {
        match self {
            Client::V0(v0) => v0.group_ids().await,
            Client::V1(v1) => Ok(v1
                .groups()
                .await?
                .into_iter()
                .map(|group| group.id)
                .collect()),
        }
    }

    /// All groups, sorted by id.
    pub async fn groups(&mut self) -> Result<Vec<proto::Group>, Error> {
        match self {
            Client::V0(v0) => v0.groups("").await,
            Client::V1(v1) => v1.groups().await,
        }
    }

    /// One group.
    pub async fn group(&mut self, id: &str) -> Result<proto::Group, Error> {
        match self {
            Client::V0(v0) => v0.group(id).await,
            Client::V1(v1) => v1.group(id).await,
        }
    }

    /// The rules of a group.
    pub async fn rules(&mut self, group: &str) -> Result<Vec<proto::Rule>, Error> {
        match self {
            Client::V0(v0) => v0.rules(group).await,
            Client::V1(v1) => Ok(v1.group(group).await?.rules),
        }
    }

    /// The addresses listed in a group.
    pub async fn members(&mut self, group: &str) -> Result<Vec<String>, Error> {
        match self {
            Client::V0(v0) => v0.members(group).await,
            Client::V1(v1) => Ok(v1.group(group).await?.members),
        }
    }

    /// Creates a group, or replaces it whole.
    pub async fn put_group(&mut self, group: proto::Group) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.put_group(&group).await,
            Client::V1(v1) => v1.put_group(group).await,
        }
    }

    /// Changes a group's settings, or makes the group; its rules and members stay.
    pub async fn update_group(&mut self, update: proto::UpdateGroupRequest) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.update_group(update).await,
            Client::V1(v1) => v1.update_group(update).await,
        }
    }

    /// Deletes a group.
    pub async fn delete_group(&mut self, id: &str) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.delete_group(id).await,
            Client::V1(v1) => v1.delete_group(id).await,
        }
    }

    /// Adds a rule to a group.
    pub async fn add_rule(&mut self, group: &str, rule: proto::Rule) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.add_rule(group, &rule).await,
            Client::V1(v1) => v1.add_rule(group, rule).await,
        }
    }

    /// Takes a rule away.
    pub async fn delete_rule(&mut self, group: &str, rule: proto::Rule) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.delete_rule(group, &rule).await,
            Client::V1(v1) => v1.delete_rule(group, rule).await,
        }
    }

    /// Adds a member to a group.
    pub async fn add_member(&mut self, group: &str, member: &str) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.add_member(group, member).await,
            Client::V1(v1) => v1.add_member(group, member).await,
        }
    }

    /// Takes a member away.
    pub async fn delete_member(&mut self, group: &str, member: &str) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.delete_member(group, member).await,
            Client::V1(v1) => v1.delete_member(group, member).await,
        }
    }

    /// All that is configured. Over API v0 two requests make it: a change between them may show in
    /// half.
    pub async fn config(&mut self) -> Result<proto::Config, Error> {
        match self {
            Client::V0(v0) => v0.config().await,
            Client::V1(v1) => v1.config().await,
        }
    }

    /// Makes the configuration this one; what differed, and what was broken.
    pub async fn apply(
        &mut self,
        config: proto::Config,
        dry_run: bool,
    ) -> Result<proto::ApplyResponse, Error> {
        self.only_v1("apply")?.apply(config, dry_run).await
    }

    /// Whether the daemon says that it works. Over v0, which has no such question, it works when it
    /// answers.
    pub async fn is_serving(&mut self) -> Result<bool, Error> {
        match self {
            Client::V0(v0) => v0.status().await.map(|_| true),
            Client::V1(v1) => v1.is_serving().await,
        }
    }

    /// The daemon's state.
    pub async fn status(&mut self) -> Result<proto::Status, Error> {
        match self {
            Client::V0(v0) => v0.status().await,
            Client::V1(v1) => v1.status().await,
        }
    }

    /// What keeps frames from passing though the daemon works. API v0 does not say.
    pub async fn warnings(&mut self) -> Result<Vec<String>, Error> {
        match self {
            Client::V0(_) => Ok(Vec::new()),
            Client::V1(v1) => Ok(v1.some_status(true).await?.warnings),
        }
    }

    /// Dropped frames, of one NIC or (`""`) of all.
    pub async fn drops(&mut self, nic: &str, all: bool) -> Result<proto::ListDropsResponse, Error> {
        self.only_v1("drops")?.drops(nic, all).await
    }

    /// What the rules of a group let pass.
    pub async fn rule_counters(&mut self, group: &str) -> Result<Vec<proto::RuleCounter>, Error> {
        self.only_v1("sg rule list --counters")?
            .rule_counters(group)
            .await
    }

    /// Changes how much the daemon logs.
    pub async fn set_log_level(&mut self, level: &str) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.set_log_level(level).await,
            Client::V1(v1) => v1.set_log_level(level).await,
        }
    }

    /// Has the daemon read its files again; a line for each.
    pub async fn reload(&mut self) -> Result<Vec<String>, Error> {
        self.only_v1("reload")?.reload().await
    }

    /// Has a program take the daemon's place.
    pub async fn upgrade(&mut self, program: String) -> Result<proto::UpgradeResponse, Error> {
        self.only_v1("upgrade")?.upgrade(program).await
    }

    /// Sends v0 requests and gives back v0 answers, one for each, refusals among them.
    pub async fn request(&mut self, requests: Messages) -> Result<Messages, Error> {
        match self {
            Client::V0(v0) => v0.exchange_all(requests).await,
            Client::V1(v1) => emulate::exchange(v1, requests).await,
        }
    }

    /// Stops the daemon.
    pub async fn shutdown(&mut self) -> Result<(), Error> {
        match self {
            Client::V0(v0) => v0.shutdown().await,
            Client::V1(v1) => v1.shutdown().await,
        }
    }
}

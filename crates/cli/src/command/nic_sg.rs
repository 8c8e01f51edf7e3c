//! `butterfly nic sg`: the groups a NIC is in. `add` and `del` name the groups they change alone,
//! so that over API v1 two calls for one NIC at the same moment add up.

use api::v1;
use clap::{Args, Subcommand};

use super::nic::say_missing_groups;
use crate::error::Error;
use crate::session::Session;

/// `nic sg …`.
#[derive(Subcommand, Debug)]
pub enum NicSgCommand {
    /// Put a NIC into groups, beside those it is in
    #[command(after_help = "Example:\n  butterfly nic sg add vnic_1 sg-web")]
    Add(NicGroups),
    /// Take a NIC out of groups; one it is not in is no mistake
    #[command(after_help = "Example:\n  butterfly nic sg del vnic_1 sg-web")]
    Del(NicGroups),
    /// Put a NIC into exactly these groups; none given: into none
    #[command(after_help = "Example:\n  butterfly nic sg set vnic_1 sg-web ssh")]
    Set(NicMaybeGroups),
    /// List the groups a NIC is in
    #[command(after_help = "Example:\n  butterfly nic sg list vnic_1")]
    List(NicAlone),
}

/// A NIC and groups.
#[derive(Args, Debug)]
pub struct NicGroups {
    /// Id of the NIC
    nic: String,
    /// Ids of groups, which need not exist yet, with blanks or commas between
    #[arg(required = true, value_name = "SG", value_delimiter = ',')]
    groups: Vec<String>,
}

/// A NIC and perhaps groups.
#[derive(Args, Debug)]
pub struct NicMaybeGroups {
    /// Id of the NIC
    nic: String,
    /// Ids of groups, which need not exist yet, with blanks or commas between
    #[arg(value_name = "SG", value_delimiter = ',')]
    groups: Vec<String>,
}

/// A NIC.
#[derive(Args, Debug)]
pub struct NicAlone {
    /// Id of the NIC
    nic: String,
}

impl NicSgCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, NicSgCommand::List(_))
    }

    /// Runs the chosen `nic sg` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            NicSgCommand::Add(args) => {
                let request = v1::UpdateNicRequest {
                    id: args.nic,
                    join_groups: args.groups,
                    ..Default::default()
                };
                update(request, session).await
            }
            NicSgCommand::Del(args) => {
                let request = v1::UpdateNicRequest {
                    id: args.nic,
                    leave_groups: args.groups,
                    ..Default::default()
                };
                update(request, session).await
            }
            NicSgCommand::Set(args) => set(args.nic, args.groups, session).await,
            NicSgCommand::List(args) => {
                let groups = groups_of(&args.nic, session).await?;
                session.out.names(&groups)
            }
        }
    }
}

async fn groups_of(nic: &str, session: &mut Session) -> Result<Vec<String>, Error> {
    let status = session.client().await?.nic(nic).await?;
    Ok(status.nic.unwrap_or_default().security_groups)
}

async fn set(nic: String, groups: Vec<String>, session: &mut Session) -> Result<(), Error> {
    let request = v1::UpdateNicRequest {
        id: nic,
        security_groups: Some(v1::GroupList { groups }),
        ..Default::default()
    };
    update(request, session).await
}

async fn update(request: v1::UpdateNicRequest, session: &mut Session) -> Result<(), Error> {
    let id = request.id.clone();
    let status = session.client().await?.update_nic(request).await?;
    say_missing_groups(&status);
    session.done("nic", id);
    Ok(())
}

//! `butterfly sg member`: addresses listed by hand in a group.

use clap::{Args, Subcommand};
use serde_json::json;

use super::nic_options::address;
use crate::error::Error;
use crate::session::Session;

/// `sg member …`.
#[derive(Subcommand, Debug)]
pub enum MemberCommand {
    /// Add addresses to a group; creates the group when it is missing
    #[command(after_help = "Example:\n  butterfly sg member add users 42.0.3.1 42.0.3.2")]
    Add(Members),
    /// Take addresses out of a group; one that is not in it is no mistake
    #[command(after_help = "Example:\n  butterfly sg member del users 42.0.3.1")]
    Del(Members),
    /// List the addresses of a group
    #[command(after_help = "Example:\n  butterfly sg member list users")]
    List(GroupAlone),
}

/// A group and addresses.
#[derive(Args, Debug)]
pub struct Members {
    /// Id of the group
    #[arg(value_name = "SG")]
    group: String,
    /// IPv4 or IPv6 addresses
    #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
    members: Vec<String>,
}

/// A group.
#[derive(Args, Debug)]
pub struct GroupAlone {
    /// Id of the group
    #[arg(value_name = "SG")]
    group: String,
}

impl MemberCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, MemberCommand::List(_))
    }

    /// Runs the chosen `sg member` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            MemberCommand::Add(args) => {
                for member in &args.members {
                    session
                        .client()
                        .await?
                        .add_member(&args.group, member)
                        .await?;
                    session.done_with(json!({ "group": args.group, "member": member }));
                }
                Ok(())
            }
            MemberCommand::Del(args) => {
                for member in &args.members {
                    session
                        .client()
                        .await?
                        .delete_member(&args.group, member)
                        .await?;
                    session.done_with(json!({ "group": args.group, "member": member }));
                }
                Ok(())
            }
            MemberCommand::List(args) => {
                let members = session.client().await?.members(&args.group).await?;
                session.out.names(&members)
            }
        }
    }
}

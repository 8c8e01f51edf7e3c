//! `butterfly router`: the interfaces whose forwarding the daemon has taken over. What it counts is
//! in [`super::router_status`], its events in [`super::router_watch`].

use api::v1;
use clap::{Args, Subcommand};

use super::router_status::StatusArgs;
use super::router_watch::WatchArgs;
use super::xdp_mode::{Mode, Names, mode_name, mode_words};
use crate::client::V1;
use crate::error::Error;
use crate::json;
use crate::output::{Output, Table};
use crate::query::Alone;
use crate::session::Session;

/// `router …`.
#[derive(Subcommand, Debug)]
pub enum RouterCommand {
    /// Take over the forwarding of interfaces of the daemon's host, which the kernel keeps, VLANs
    /// among them
    Add(AddArgs),
    /// Give interfaces back to the kernel; one that is not the router's is given back already
    #[command(after_help = "Example:\n  butterfly router del eth1 eth2.100")]
    Del(Names),
    /// List the interfaces that are routed between
    #[command(after_help = "Example:\n  butterfly router list")]
    List,
    /// Show what was forwarded, dropped and left to the kernel, in all or a second, and what is in
    /// the way
    #[command(visible_alias = "status")]
    Show(StatusArgs),
    /// Print changes of interfaces, routes and neighbours as they happen, until interrupted
    Watch(WatchArgs),
}

/// `router add`.
#[derive(Args, Debug)]
#[command(after_help = "\
Nothing else is configured: addresses, routes, rules, neighbours and MTUs are the kernel's, and
followed as they change. What the fast path does not do itself is left to the kernel, which also
takes over when the daemon ends.

Example:
  butterfly router add eth1 eth2.100")]
pub struct AddArgs {
    /// The interfaces' names; the first that is refused ends it
    #[arg(required = true, value_name = "INTERFACE")]
    names: Vec<String>,
    /// In the driver, in the kernel's stack, or at tc [default: tc where packets are the kernel's
    /// own buffers (veth, TAP, bridge, virtio), else in the driver if it can]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Mode>,
}

impl RouterCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(
            self,
            RouterCommand::List | RouterCommand::Show(_) | RouterCommand::Watch(_)
        )
    }

    /// Runs the chosen `router` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        session.prefer_alone(Alone::Forward).await?;
        match self {
            RouterCommand::Add(args) => args.run(session).await,
            RouterCommand::Del(args) => {
                for name in args.names {
                    let client = client(session).await?;
                    client.delete_router_interface(name.clone()).await?;
                    session.done("router_interface", name);
                }
                Ok(())
            }
            RouterCommand::List => {
                let interfaces = client(session).await?.router_interfaces().await?;
                list(&interfaces, &mut session.out)
            }
            RouterCommand::Show(args) => args.run(session).await,
            RouterCommand::Watch(args) => args.run(session).await,
        }
    }
}

/// The router is in API v1 alone.
pub async fn client(session: &mut Session) -> Result<&mut V1, Error> {
    session.client().await?.only_v1("router")
}

impl AddArgs {
    async fn run(self, session: &mut Session) -> Result<(), Error> {
        let mut added = Vec::new();
        let mut refused = None;
        for name in self.names {
            let client = client(session).await?;
            match client.add_router_interface(name, Mode::of(self.mode)).await {
                Ok(interface) => added.push(interface),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        // Those before it were taken all the same, which has to be said.
        let printed = if session.out.json {
            let values = added.iter().map(|one| json::full("RouterInterface", one));
            session.out.value(&values.collect())
        } else {
            added.iter().try_for_each(|interface| {
                let words = mode_words(interface.mode());
                let line = format!("taking over {}: {words}", interface.name);
                session.out.text(&line)
            })
        };
        refused.map_or(printed, Err)
    }
}

fn list(interfaces: &[v1::RouterInterface], out: &mut Output) -> Result<(), Error> {
    if out.json {
        let values = interfaces
            .iter()
            .map(|one| json::full("RouterInterface", one));
        return out.value(&values.collect());
    }
    let mut table = Table::new(&["INTERFACE", "MODE", "WHY"]);
    for interface in interfaces {
        let mode = mode_name(interface.mode()).to_owned();
        table.row([interface.name.clone(), mode, interface.why.clone()]);
    }
    out.table(&table)
}

//! `butterfly service interface`: where services are balanced.

use api::v1;
use clap::{Args, Subcommand};

use super::service::client;
use super::xdp_mode::{Mode, Names, mode_name};
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `service interface …`.
#[derive(Subcommand, Debug)]
pub enum InterfaceCommand {
    /// Balance on an interface of the daemon's host, which the kernel keeps; prints how the program
    /// is attached
    #[command(after_help = "Example:\n  butterfly service interface add ens192")]
    Add(AddArgs),
    /// Give interfaces back; one that is not balanced on is given back already
    #[command(after_help = "Example:\n  butterfly service interface del ens192")]
    Del(Names),
    /// Take the program off interfaces and put it on again, for NICs that lose it when their link
    /// is negotiated anew
    #[command(after_help = "Example:\n  butterfly service interface reattach ens192")]
    Reattach(Names),
    /// List the interfaces that are balanced on
    #[command(after_help = "Example:\n  butterfly service interface list")]
    List,
}

/// `service interface add`.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// The interface's name
    #[arg(value_name = "INTERFACE")]
    name: String,
    /// In the driver, in the kernel's stack, or at tc [default: tc where packets are the kernel's
    /// own buffers (veth, TAP, bridge, virtio), else in the driver if it can]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Mode>,
}

impl InterfaceCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, InterfaceCommand::List)
    }

    /// Runs the chosen `service interface` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            InterfaceCommand::Add(args) => {
                let request = v1::AddBalancerInterfaceRequest {
                    name: args.name,
                    mode: Mode::of(args.mode).into(),
                };
                let added = client(session)
                    .await?
                    .add_balancer_interface(request)
                    .await?;
                match session.out.json {
                    true => session.out.value(&json::full("BalancerInterface", &added)),
                    false => session.out.text(mode_name(added.mode())),
                }
            }
            InterfaceCommand::Del(args) => {
                for name in args.names {
                    client(session)
                        .await?
                        .delete_balancer_interface(name.clone())
                        .await?;
                    session.done("balancer_interface", name);
                }
                Ok(())
            }
            InterfaceCommand::Reattach(args) => {
                for name in args.names {
                    client(session)
                        .await?
                        .reattach_balancer_interface(name.clone())
                        .await?;
                    session.done("balancer_interface", name);
                }
                Ok(())
            }
            InterfaceCommand::List => {
                let interfaces = client(session).await?.balancer_interfaces().await?;
                if session.out.json {
                    let values = interfaces
                        .iter()
                        .map(|one| json::full("BalancerInterface", one));
                    return session.out.value(&values.collect());
                }
                let mut table = Table::new(&["INTERFACE", "MODE", "WHY"]);
                for interface in interfaces {
                    let mode = mode_name(interface.mode()).to_owned();
                    table.row([interface.name, mode, interface.detail]);
                }
                session.out.table(&table)
            }
        }
    }
}

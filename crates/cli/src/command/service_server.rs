//! `butterfly service server`: the servers of a service.

use api::v1;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::nic_options::address;
use super::service::client;
use super::service_show;
use super::service_words::{key_words, server, service_key};
use crate::error::Error;
use crate::session::Session;

/// `service server …`.
#[derive(Subcommand, Debug)]
pub enum ServerCommand {
    /// Add servers to a service; one that is there already takes these values
    #[command(after_help = "Example:\n  \
            butterfly service server add 192.168.101.1:80 10.1.2.12 10.1.2.13*2")]
    Add(AddArgs),
    /// Take servers out of a service, and end their flows; `drain` lets them live
    #[command(after_help = "Example:\n  butterfly service server del 192.168.101.1:80 10.1.2.12")]
    Del(Which),
    /// Change a server's values, leave the others
    #[command(after_help = "Example:\n  \
            butterfly service server set 192.168.101.1:80 10.1.2.12 --weight 3 --state up")]
    Set(SetArgs),
    /// List the servers of a service, with their health and what they received
    #[command(
        visible_alias = "show",
        after_help = "Example:\n  butterfly service server list 192.168.101.1:80"
    )]
    List(Of),
    /// Give servers no new flows; those that they have live on
    #[command(after_help = "Example:\n  butterfly service server drain 192.168.101.1:80 10.1.2.12")]
    Drain(Which),
}

/// `service server add`.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// The service
    #[arg(id = "service", value_name = "SERVICE", value_parser = service_key)]
    key: v1::ServiceKey,
    /// Servers: ADDRESS, or ADDRESS*WEIGHT
    #[arg(required = true, value_name = "SERVER", value_parser = server)]
    servers: Vec<v1::Server>,
    /// Where their health is asked for [default: the check's port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    check_port: Option<u16>,
    /// What is wanted of them
    #[arg(long, value_name = "STATE", default_value = "up", ignore_case = true)]
    state: State,
}

/// `service server set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// The service
    #[arg(id = "service", value_name = "SERVICE", value_parser = service_key)]
    key: v1::ServiceKey,
    /// The server's address
    #[arg(value_name = "SERVER", value_parser = address)]
    server: String,
    /// Its share of new flows, 1..65535
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u16).range(1..))]
    weight: Option<u16>,
    /// What is wanted of it
    #[arg(long, value_name = "STATE", ignore_case = true)]
    state: Option<State>,
    /// Where its health is asked for; 0: at the check's port
    #[arg(long, value_name = "PORT")]
    check_port: Option<u16>,
}

/// A service and servers of it.
#[derive(Args, Debug)]
pub struct Which {
    /// The service
    #[arg(id = "service", value_name = "SERVICE", value_parser = service_key)]
    key: v1::ServiceKey,
    /// The servers' addresses
    #[arg(required = true, value_name = "SERVER", value_parser = address)]
    servers: Vec<String>,
}

/// A service.
#[derive(Args, Debug)]
pub struct Of {
    /// The service
    #[arg(id = "service", value_name = "SERVICE", value_parser = service_key)]
    key: v1::ServiceKey,
}

/// What is wanted of a server.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// New flows and old ones
    Up,
    /// Old flows only
    Draining,
    /// None; its flows move to other servers, which do not know them
    Down,
}

impl State {
    fn message(self) -> v1::ServerState {
        match self {
            State::Up => v1::ServerState::Up,
            State::Draining => v1::ServerState::Draining,
            State::Down => v1::ServerState::Down,
        }
    }
}

impl ServerCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, ServerCommand::List(_))
    }

    /// Runs the chosen `service server` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            ServerCommand::Add(args) => {
                for server in args.servers {
                    let server = v1::Server {
                        state: args.state.message().into(),
                        check_port: args.check_port.unwrap_or_default().into(),
                        ..server
                    };
                    let address = server.address.clone();
                    client(session)
                        .await?
                        .put_server(args.key.clone(), server)
                        .await?;
                    session.done_with(done(&args.key, &address));
                }
                Ok(())
            }
            ServerCommand::Del(args) => {
                for address in args.servers {
                    client(session)
                        .await?
                        .delete_server(args.key.clone(), address.clone())
                        .await?;
                    session.done_with(done(&args.key, &address));
                }
                Ok(())
            }
            ServerCommand::Set(args) => {
                let changed = done(&args.key, &args.server);
                let update = v1::UpdateServerRequest {
                    key: Some(args.key),
                    address: args.server,
                    weight: args.weight.map(u32::from),
                    state: args.state.map(|state| state.message().into()),
                    check_port: args.check_port.map(u32::from),
                };
                client(session).await?.update_server(update).await?;
                session.done_with(changed);
                Ok(())
            }
            ServerCommand::Drain(args) => {
                for address in args.servers {
                    let changed = done(&args.key, &address);
                    let update = v1::UpdateServerRequest {
                        key: Some(args.key.clone()),
                        address,
                        state: Some(v1::ServerState::Draining.into()),
                        ..Default::default()
                    };
                    client(session).await?.update_server(update).await?;
                    session.done_with(changed);
                }
                Ok(())
            }
            ServerCommand::List(args) => {
                let status = client(session).await?.service(args.key).await?;
                service_show::print_servers(&status.servers, &mut session.out)
            }
        }
    }
}

fn done(key: &v1::ServiceKey, address: &str) -> Value {
    json!({ "service": key_words(key), "server": address })
}

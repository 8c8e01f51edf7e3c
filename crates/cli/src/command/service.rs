//! `butterfly service`: the load balancer's services. Their servers are in
//! [`super::service_server`], what is printed of them in [`super::service_show`].

use api::v1;
use clap::{Args, Subcommand};

use super::service_interface::InterfaceCommand;
use super::service_options::ServiceOptions;
use super::service_server::ServerCommand;
use super::service_show::ShowArgs;
use super::service_stats::StatsArgs;
use super::service_watch::WatchArgs;
use super::service_words::{key_words, server, service_key};
use crate::client::V1;
use crate::error::Error;
use crate::query::Alone;
use crate::session::Session;

/// `service …`.
#[derive(Subcommand, Debug)]
pub enum ServiceCommand {
    /// Create a service, or replace the one that is there; that keeps its servers unless some are
    /// given
    Add(AddArgs),
    /// Delete services and their flows; one that is not there is deleted already
    #[command(after_help = "Example:\n  butterfly service del 192.168.101.1:80")]
    Del(Keys),
    /// List the services
    #[command(after_help = "Example:\n  butterfly service list")]
    List,
    /// Show services, their servers and the servers' health
    Show(ShowArgs),
    /// Change a service's values, leave the others and its servers
    Set(SetArgs),
    /// Show what services and servers received, in all or a second, and what was not sent on
    Stats(StatsArgs),
    /// Print changes of services and of health as they happen, until interrupted
    Watch(WatchArgs),
    /// The servers of a service
    #[command(subcommand)]
    Server(ServerCommand),
    /// The interfaces on which services are balanced
    #[command(subcommand)]
    Interface(InterfaceCommand),
}

/// `service add`.
#[derive(Args, Debug)]
#[command(after_help = "\
A service is ADDRESS:PORT of TCP, or ADDRESS:PORT/udp, /sctp; PORT may be all. Each server has the
service's address too, and answers the clients itself (direct server return).

Examples:
  butterfly service add 192.168.101.1:80 --server 10.1.2.10 10.1.2.11 \
    --check http --check-path /healthz
  butterfly service add [2001:db8::1]:53/udp --encapsulation ipip \
    --server 10.1.2.10*3 10.1.2.11 --check dns
  butterfly service add 192.168.101.1:all --sticky")]
pub struct AddArgs {
    /// The service
    #[arg(id = "service", value_name = "SERVICE", value_parser = service_key)]
    key: v1::ServiceKey,
    /// Servers: ADDRESS, or ADDRESS*WEIGHT
    #[arg(long, value_name = "SERVER", num_args = 1.., value_parser = server)]
    server: Vec<v1::Server>,
    #[command(flatten)]
    options: ServiceOptions,
}

/// `service set`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  butterfly service set 192.168.101.1:80 --check-interval 500 --fall 2
  butterfly service set 192.168.101.1:80 --check none --min-healthy 0")]
pub struct SetArgs {
    /// The service
    #[arg(id = "service", value_name = "SERVICE", value_parser = service_key)]
    key: v1::ServiceKey,
    #[command(flatten)]
    options: ServiceOptions,
}

/// One service or more.
#[derive(Args, Debug)]
pub struct Keys {
    /// Services
    #[arg(required = true, value_name = "SERVICE", value_parser = service_key)]
    keys: Vec<v1::ServiceKey>,
}

impl ServiceCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        match self {
            ServiceCommand::Server(command) => command.only_prints(),
            ServiceCommand::Interface(command) => command.only_prints(),
            other => matches!(
                other,
                ServiceCommand::List
                    | ServiceCommand::Show(_)
                    | ServiceCommand::Stats(_)
                    | ServiceCommand::Watch(_)
            ),
        }
    }

    /// Runs the chosen `service` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        session.prefer_alone(Alone::Balance).await?;
        match self {
            ServiceCommand::Add(args) => {
                let key = key_words(&args.key);
                add(args, client(session).await?).await?;
                session.done("service", key);
                Ok(())
            }
            ServiceCommand::Del(args) => {
                for key in args.keys {
                    let words = key_words(&key);
                    client(session).await?.delete_service(key).await?;
                    session.done("service", words);
                }
                Ok(())
            }
            ServiceCommand::List => {
                let services = client(session).await?.services().await?;
                let key = |status: v1::ServiceStatus| status.service?.key;
                let names: Vec<String> = services
                    .into_iter()
                    .filter_map(key)
                    .map(|key| key_words(&key))
                    .collect();
                session.out.names(&names)
            }
            ServiceCommand::Show(args) => args.run(session).await,
            ServiceCommand::Set(args) => {
                let key = key_words(&args.key);
                set(args, client(session).await?).await?;
                session.done("service", key);
                Ok(())
            }
            ServiceCommand::Stats(args) => args.run(session).await,
            ServiceCommand::Watch(args) => args.run(session).await,
            ServiceCommand::Server(command) => command.run(session).await,
            ServiceCommand::Interface(command) => command.run(session).await,
        }
    }
}

/// The balancer is in API v1 alone.
pub async fn client(session: &mut Session) -> Result<&mut V1, Error> {
    session.client().await?.only_v1("service")
}

/// A service that is there keeps its servers unless told otherwise: a script that runs twice must
/// not end the flows of the servers that its own later lines add.
async fn add(args: AddArgs, client: &mut V1) -> Result<(), Error> {
    let mut servers = args.server;
    if servers.is_empty() {
        let is_it = |status: &v1::ServiceStatus| {
            let key = status
                .service
                .as_ref()
                .and_then(|service| service.key.as_ref());
            key.is_some_and(|key| key_words(key) == key_words(&args.key))
        };
        let old = client.services().await?.into_iter().find(is_it);
        servers = old
            .and_then(|status| status.service)
            .map_or(Vec::new(), |service| service.servers);
    }
    client
        .put_service(args.options.service(&args.key, servers)?)
        .await
}

/// A check is replaced whole by the API, value by value on the command line.
async fn set(args: SetArgs, client: &mut V1) -> Result<(), Error> {
    let old = match args.options.needs_old_check() {
        true => client
            .service(args.key.clone())
            .await?
            .service
            .and_then(|service| service.check),
        false => None,
    };
    client
        .update_service(args.options.update(&args.key, old)?)
        .await
}

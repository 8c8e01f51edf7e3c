//! The commands, one file per noun. Each reads its options, calls the client's operations and
//! prints the answer.

mod balance;
mod balance_services;
mod balance_table;
mod bench;
mod bench_forward;
mod binding;
mod capture;
mod check_options;
mod completion;
mod config;
mod config_history;
mod daemon;
mod doctor;
mod dump;
mod events;
mod flow_records;
mod flows;
mod flows_select;
mod forward;
mod host;
mod interface;
mod neigh;
mod network;
mod nic;
mod nic_details;
mod nic_how;
mod nic_limits;
mod nic_mirror;
mod nic_options;
mod nic_sg;
mod nic_show;
mod nic_state;
mod nic_stats;
mod prune;
mod query_options;
mod repeat;
mod request;
mod route;
mod router;
mod router_changes;
mod router_status;
mod router_watch;
mod service;
mod service_interface;
mod service_options;
mod service_server;
mod service_show;
mod service_stats;
mod service_watch;
mod service_words;
mod sg;
mod sg_member;
mod sg_rule;
mod stay_options;
mod support_bundle;
mod top;
mod trace;
mod trace_live;
mod trace_print;
mod uplink;
mod watch;
mod worker;
mod xdp_mode;

use clap::Subcommand;

use crate::error::Error;
use crate::session::Session;

/// What can be done.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Virtual NICs
    #[command(subcommand)]
    Nic(nic::NicCommand),
    /// The threads that move frames (API v1)
    #[command(subcommand)]
    Worker(worker::WorkerCommand),
    /// Security groups, their rules and members
    #[command(subcommand)]
    Sg(sg::SgCommand),
    /// Virtual networks, and how they reach other hosts (API v1)
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// The interfaces that join this host to others (API v1)
    #[command(subcommand)]
    Uplink(uplink::UplinkCommand),
    /// Other hosts (API v1)
    #[command(subcommand, alias = "endpoint")]
    Host(host::HostCommand),
    /// Which machine is behind which other host (API v1)
    #[command(subcommand)]
    Binding(binding::BindingCommand),
    /// Services that the load balancer spreads over servers (API v1)
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Balance services of one set of servers in the foreground, without a daemon
    Balance(balance::BalanceArgs),
    /// Interfaces between which the daemon forwards transit packets (API v1)
    #[command(subcommand)]
    Router(router::RouterCommand),
    /// The kernel's routes, and what the router makes of each (API v1)
    #[command(subcommand)]
    Route(route::RouteCommand),
    /// Show the kernel's neighbours: states, expiry, and whether the router sends to them (API v1)
    Neigh(neigh::NeighCommand),
    /// Show IPv4's neighbours as `arp` does (API v1)
    Arp(neigh::ArpArgs),
    /// Show the interfaces of the daemon's host, and what of Butterfly runs on each (API v1)
    Interface(interface::InterfaceCommand),
    /// Show the daemon's state: since when it runs, what it did, its networks as a DOT graph
    #[command(after_help = daemon::STATUS_EXAMPLE)]
    Status(daemon::StatusArgs),
    /// Say whether the daemon works: prints nothing and ends with 0 if it does
    #[command(after_help = daemon::HEALTH_EXAMPLE)]
    Health(daemon::HealthArgs),
    /// Have the daemon read again who may do what, its keys and certificates and the router's
    /// access list, as SIGHUP does (API v1)
    #[command(after_help = daemon::RELOAD_EXAMPLE)]
    Reload,
    /// Look for what makes this host slow or keeps it from working, and say what to do about it
    Doctor(doctor::DoctorArgs),
    /// Measure how many frames a core of this host switches or forwards, and say what limits it
    Bench(bench::BenchArgs),
    /// Write a file with what an issue needs: configuration, state, counters, logs; no secrets
    SupportBundle(support_bundle::BundleArgs),
    /// Have a new program take the daemon's place; no connection is lost (API v1)
    #[command(after_help = daemon::UPGRADE_EXAMPLE)]
    Upgrade(daemon::UpgradeArgs),
    /// Stop the daemon, as SIGTERM does
    #[command(after_help = daemon::SHUTDOWN_EXAMPLE)]
    Shutdown(daemon::ShutdownArgs),
    /// Write the whole configuration as a text-format `Messages` of API v0 requests, for `request`
    #[command(after_help = dump::EXAMPLE)]
    Dump,
    /// Send the requests of a text-format `Messages`, as `dump` writes them
    Request(request::RequestArgs),
    /// Make the configuration exactly the one of a file, in one step (API v1)
    Apply(config::ApplyArgs),
    /// Print the whole configuration as JSON, for `apply`
    #[command(after_help = config::CONFIG_EXAMPLE, args_conflicts_with_subcommands = true)]
    Config(config_history::ConfigArgs),
    /// Print changes and events as they happen, until interrupted (API v1)
    Watch(watch::WatchArgs),
    /// Show dropped frames by NIC, direction and reason (API v1)
    Drops(flows::DropsArgs),
    /// Tracked connections: list, watch and kill them, and take them to another host (API v1)
    Flows(flows::FlowsCommand),
    /// Would it pass? Says what becomes of a frame and what would let it pass; or --live what does
    /// happen (API v1)
    Trace(Box<trace::TraceArgs>),
    /// Capture frames of NICs and uplinks as pcapng, those that are dropped too (API v1)
    Capture(capture::CaptureArgs),
    /// Show what moves, live: NICs, connections, rules, drops, workers, services (API v1)
    Top(top::TopArgs),
    /// Forward between interfaces, in the foreground and without a daemon, until interrupted
    Forward(forward::ForwardArgs),
    /// Change how much the daemon logs, until it stops
    LogLevel(daemon::LogLevelArgs),
    /// Print a completion script for a shell
    Completion(completion::CompletionArgs),
    /// Write the pages of the manual to a folder
    #[command(hide = true)]
    Man(completion::ManArgs),
}

impl Command {
    /// All that it does is print: where nobody reads that, nothing is left undone without it. What
    /// is told by its exit code is more than that.
    pub fn only_prints(&self) -> bool {
        match self {
            Command::Nic(command) => command.only_prints(),
            Command::Sg(command) => command.only_prints(),
            Command::Network(command) => command.only_prints(),
            Command::Uplink(command) => command.only_prints(),
            Command::Host(command) => command.only_prints(),
            Command::Binding(command) => command.only_prints(),
            Command::Service(command) => command.only_prints(),
            Command::Router(command) => command.only_prints(),
            Command::Flows(command) => command.only_prints(),
            Command::Config(args) => args.only_prints(),
            other => matches!(
                other,
                Command::Worker(_)
                    | Command::Route(_)
                    | Command::Neigh(_)
                    | Command::Arp(_)
                    | Command::Interface(_)
                    | Command::Status(_)
                    | Command::Dump
                    | Command::Watch(_)
                    | Command::Drops(_)
                    | Command::Top(_)
                    | Command::Completion(_)
            ),
        }
    }

    /// Runs the chosen command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            Command::Nic(command) => command.run(session).await,
            Command::Worker(command) => command.run(session).await,
            Command::Sg(command) => command.run(session).await,
            Command::Network(command) => command.run(session).await,
            Command::Uplink(command) => command.run(session).await,
            Command::Host(command) => command.run(session).await,
            Command::Binding(command) => command.run(session).await,
            Command::Service(command) => command.run(session).await,
            Command::Balance(args) => args.run(session).await,
            Command::Router(command) => command.run(session).await,
            Command::Route(command) => command.run(session).await,
            Command::Neigh(args) => args.run(session).await,
            Command::Arp(args) => args.run(session).await,
            Command::Interface(args) => args.run(session).await,
            Command::Status(args) => args.run(session).await,
            Command::Health(args) => args.run(session).await,
            Command::Doctor(args) => args.run(session).await,
            Command::Bench(args) => args.run(session).await,
            Command::SupportBundle(args) => args.run(session).await,
            Command::Reload => daemon::reload(session).await,
            Command::Upgrade(args) => args.run(session).await,
            Command::Shutdown(args) => args.run(session).await,
            Command::Dump => dump::run(session).await,
            Command::Request(args) => args.run(session).await,
            Command::Apply(args) => args.run(session).await,
            Command::Config(args) => args.run(session).await,
            Command::Watch(args) => args.run(session).await,
            Command::Drops(args) => args.run(session).await,
            Command::Flows(args) => args.run(session).await,
            Command::Trace(args) => args.run(session).await,
            Command::Capture(args) => args.run(session).await,
            Command::Top(args) => args.run(session).await,
            Command::Forward(args) => args.run(session).await,
            Command::LogLevel(args) => args.run(session).await,
            Command::Completion(args) => args.run(session),
            Command::Man(args) => args.run(),
        }
    }
}

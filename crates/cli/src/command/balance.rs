//! `butterfly balance`: one service, balanced in the foreground without a daemon, with a live table.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use balancer::{
    Balancer, Counters, Follower, Options, Protocol, Server, ServerCounters, Service, ServiceKey, Tunnel,
    Weight,
};
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use super::repeat::{grown, megabits, rate};
use super::service_options::{Encapsulation, server};
use super::xdp_mode::Mode;
use crate::error::Error;
use crate::output::{Output, Table};
use crate::session::Session;

/// `balance`.
#[derive(Args, Debug)]
#[command(after_help = "\
Needs root, and no daemon. The servers are on the interface's network (or behind a tunnel) and have the VIP too, on lo,
not answering ARP for it: they answer the clients themselves. Clients reach the VIP by way of OWN_ADDRESS. Servers are not
checked; `butterfly service` of a daemon does. The interface is the kernel's again when this ends, however it ends.

Examples:
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11 10.1.2.12
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10*3 10.1.2.11 --proto udp --port 53 --encapsulation ipip")]
pub struct BalanceArgs {
    /// The interface that clients' packets come by
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// This host's own address on it
    #[arg(value_name = "OWN_ADDRESS")]
    own: IpAddr,
    /// The address that clients know
    #[arg(value_name = "VIP")]
    vip: IpAddr,
    /// Servers: ADDRESS, or ADDRESS*WEIGHT
    #[arg(required = true, value_name = "SERVER", value_parser = server)]
    servers: Vec<api::v1::Server>,
    /// The protocol
    #[arg(long, value_name = "PROTOCOL", default_value = "tcp", ignore_case = true)]
    proto: Proto,
    /// The port, or all
    #[arg(long, value_name = "PORT", default_value = "80", value_parser = port)]
    port: Port,
    /// How packets reach the servers
    #[arg(long, value_name = "HOW", default_value = "l2", ignore_case = true)]
    encapsulation: Encapsulation,
    /// fou, gue: the UDP port that the servers listen on [default: 5555, 6080]
    #[arg(long, value_name = "PORT")]
    tunnel_port: Option<NonZeroU16>,
    /// All flows of a client go to one server
    #[arg(long)]
    sticky: bool,
    /// Flows that are remembered, 80 bytes of the kernel's memory each
    #[arg(long, value_name = "N", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    max_flows: u32,
    /// In the driver, or in the kernel's stack [default: in the driver if it can]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Mode>,
    /// Seconds between two prints
    #[arg(long, value_name = "SECS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Proto {
    Tcp,
    Udp,
    Sctp,
}

/// A port; none: all.
#[derive(Debug, Clone, Copy)]
struct Port(Option<NonZeroU16>);

fn port(text: &str) -> Result<Port, String> {
    match text {
        "all" => Ok(Port(None)),
        number => number
            .parse()
            .map(|port| Port(Some(port)))
            .map_err(|_| "a port is a number within 1 and 65535, or all".into()),
    }
}

impl BalanceArgs {
    /// Does it, until SIGINT or SIGTERM.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let service = self.service()?;
        let key = service.key();
        let failed = |e: balancer::Error| Error::Refused(e.to_string());
        self.check_own_address()?;
        let options = Options {
            max_flows: self.max_flows,
            // The table shows every flow.
            remember_all: true,
            ..Options::default()
        };
        let catch = |kind| signal(kind).map_err(Error::Output);
        let (mut interrupt, mut terminate) =
            (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?);
        let follower = Follower::start().await.map_err(failed)?;
        let balancer = Mutex::new(Balancer::new(&options).map_err(failed)?);
        let services = [service].into_iter().collect();
        follower.learn(&balancer, &services).await.map_err(failed)?;
        lock(&balancer).apply(services).map_err(failed)?;
        let mode = self.mode.map(Mode::xdp);
        let mode = follower
            .attach(&mut lock(&balancer), &self.interface, mode)
            .map_err(failed)?;
        let begin = format!("balancing {key} on {} ({mode}); Ctrl-C ends it", self.interface);
        session.out.text(&begin)?;
        session.out.flush()?;
        let shown = self.show(&balancer, key, &mut session.out);
        tokio::select! {
            ended = follower.run(&balancer) => ended.map_err(failed),
            shown = shown => shown,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }

    fn service(&self) -> Result<Service, Error> {
        let usage = |e: balancer::Error| Error::Usage(e.to_string());
        let protocol = match self.proto {
            Proto::Tcp => Protocol::Tcp,
            Proto::Udp => Protocol::Udp,
            Proto::Sctp => Protocol::Sctp,
        };
        let key = ServiceKey::new(self.vip, protocol, self.port.0).map_err(usage)?;
        let mut service = Service::new(key).sticky(self.sticky);
        let tunnel = self.tunnel()?;
        for given in &self.servers {
            let address: IpAddr = given
                .address
                .parse()
                .expect("parsed as an address with the arguments");
            if tunnel == Tunnel::None && address.is_ipv4() != self.vip.is_ipv4() {
                let (vip, how) = (self.vip, "give an --encapsulation");
                return Err(Error::Usage(format!(
                    "server {address} is of another family than the VIP {vip}: {how}"
                )));
            }
            let weight = u16::try_from(given.weight()).unwrap_or(1).max(1);
            let one = Server::new(address)
                .and_then(|server| Ok(server.weight(Weight::new(weight)?).tunnel(tunnel)))
                .map_err(usage)?;
            if service.set(one).is_some() {
                return Err(Error::Usage(format!("server {address} is there twice")));
            }
        }
        Ok(service)
    }

    fn tunnel(&self) -> Result<Tunnel, Error> {
        const FOU: NonZeroU16 = NonZeroU16::new(5555).unwrap();
        const GUE: NonZeroU16 = NonZeroU16::new(6080).unwrap();
        let tunnel = match self.encapsulation {
            Encapsulation::L2 => Tunnel::None,
            Encapsulation::Ipip => Tunnel::Ipip,
            Encapsulation::Gre => Tunnel::Gre,
            Encapsulation::Fou => Tunnel::Fou {
                port: self.tunnel_port.unwrap_or(FOU),
            },
            Encapsulation::Gue => Tunnel::Gue {
                port: self.tunnel_port.unwrap_or(GUE),
            },
        };
        match (self.tunnel_port, tunnel) {
            (Some(_), Tunnel::None | Tunnel::Ipip | Tunnel::Gre) => Err(Error::Usage(
                "--tunnel-port goes with --encapsulation fou or gue".into(),
            )),
            _ => Ok(tunnel),
        }
    }

    /// The own address tells a mixed-up command line, where the VIP and it have changed places, from a right one.
    fn check_own_address(&self) -> Result<(), Error> {
        match std::net::UdpSocket::bind((self.own, 0)) {
            Ok(_) => Ok(()),
            Err(e) => Err(Error::Usage(format!(
                "{} is no address of this host: {e}",
                self.own
            ))),
        }
    }

    /// Prints for ever: over the last table on a terminal, else behind it.
    async fn show(&self, balancer: &Mutex<Balancer>, key: ServiceKey, out: &mut Output) -> Result<(), Error> {
        let terminal = std::io::stdout().is_terminal();
        let failed = |e: balancer::Error| Error::Refused(e.to_string());
        let mut before = (lock(balancer).counters().map_err(failed)?, Instant::now());
        let mut ticks = tokio::time::interval(Duration::from_secs(self.every));
        ticks.tick().await;
        let mut lines = 0;
        loop {
            ticks.tick().await;
            let (counters, live) = {
                let balancer = lock(balancer);
                let live = balancer.live_flows().map_err(failed)?;
                (balancer.counters().map_err(failed)?, live)
            };
            let now = (counters, Instant::now());
            let text = table(&before.0, &now.0, now.1 - before.1, &live, key);
            if terminal && lines > 0 {
                // Up to the table's first line, and clear what was there.
                out.text(&format!("\x1b[{lines}F\x1b[J{text}"))?;
            } else {
                out.text(&text)?;
            }
            lines = text.lines().count();
            out.flush()?;
            before = now;
        }
    }
}

fn table(
    before: &Counters,
    now: &Counters,
    time: Duration,
    live: &BTreeMap<(ServiceKey, IpAddr), u64>,
    key: ServiceKey,
) -> String {
    let mut table = Table::new(&[
        "SERVER",
        ">FLOWS",
        ">NEW/s",
        ">PACKETS/s",
        ">Mbit/s",
        ">PACKETS",
        ">BYTES",
    ]);
    let mut row = |name: String, flows: u64, old: ServerCounters, new: ServerCounters| {
        table.row([
            name,
            flows.to_string(),
            rate(grown(old.flows, new.flows), time),
            rate(grown(old.packets, new.packets), time),
            megabits(grown(old.bytes, new.bytes), time),
            new.packets.to_string(),
            new.bytes.to_string(),
        ]);
    };
    for ((service, address), new) in &now.servers {
        let owner = (*service, *address);
        let old = before.servers.get(&owner).copied().unwrap_or_default();
        let flows = live.get(&owner).copied().unwrap_or_default();
        row(address.to_string(), flows, old, *new);
    }
    row(
        "all".into(),
        live.values().sum(),
        before.service(&key),
        now.service(&key),
    );
    let mut text = table.render();
    for (reason, count) in &now.reasons {
        let more = grown(before.reason(*reason), *count);
        if more > 0 {
            text += &format!("{reason}: {}/s ({})\n", rate(more, time), reason.description());
        }
    }
    text
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

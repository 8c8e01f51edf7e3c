//! `butterfly balance`: services of one set of servers, balanced in the foreground without a
//! daemon, with a live table. What is asked for becomes services in [`super::balance_services`],
//! what is printed is [`super::balance_table`]'s.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::v1;
use api::v1::balancer_server::BalancerServer;
use balancer::{Balancer, Follower, Options, Services};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::Routes;

use super::balance_services::ServicesArgs;
use super::balance_table::{self, Sample};
use super::query_options::QueryOptions;
use super::xdp_mode::Mode;
use crate::error::Error;
use crate::output::Output;
use crate::query::{Alone, Balance};
use crate::session::Session;

/// `balance`.
#[derive(Args, Debug)]
#[command(after_help = "\
Needs root, and no daemon. The servers are on the interface's network (or behind a tunnel) and
have the VIPs too, on lo, not answering ARP for them: they answer the clients themselves. Clients
reach a VIP by way of OWN_ADDRESS. Servers are not checked; `butterfly service` of a daemon does.
The interfaces are the kernel's again when this ends, however it ends. VLANs are those that the
kernel has interfaces for. While it runs, and where no daemon does, `butterfly service list`,
`show` and `stats` say what it does. With --json a line a print, counters since the beginning.

Examples:
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11 10.1.2.12
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11 \
    --vip 192.168.101.2 -p 80,443 -i ens224
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10*3 10.1.2.11 \
    --proto udp --port 53 --encapsulation ipip")]
pub struct BalanceArgs {
    /// The interface that clients' packets come by
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// This host's own address on it, which packets that do not fit or have no hops left are
    /// answered from
    #[arg(value_name = "OWN_ADDRESS")]
    own: IpAddr,
    #[command(flatten)]
    services: ServicesArgs,
    /// Another interface that clients' packets come by; may be repeated
    #[arg(short = 'i', long = "interface", value_name = "INTERFACE")]
    other_interfaces: Vec<String>,
    /// Flows that are remembered, 80 bytes of the kernel's memory each
    #[arg(long, value_name = "N", default_value_t = 262_144,
        value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    max_flows: u32,
    /// In the driver, in the kernel's stack, or at tc [default: tc where packets are the kernel's
    /// own buffers (veth, TAP, bridge, virtio), else in the driver if it can]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Mode>,
    /// Seconds between two prints
    #[arg(long, value_name = "SECS", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// End after so many seconds [default: when interrupted]
    #[arg(short = 'r', long = "for", value_name = "SECS",
        value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    #[command(flatten)]
    query: QueryOptions,
}

impl BalanceArgs {
    /// Balances until SIGINT or SIGTERM, or until the time is over.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let services = self.services.services()?;
        let failed = |e: balancer::Error| Error::Refused(e.to_string());
        self.check_own_address()?;
        let catch = |kind| signal(kind).map_err(Error::Output);
        let (mut interrupt, mut terminate) = (
            catch(SignalKind::interrupt())?,
            catch(SignalKind::terminate())?,
        );
        let follower = Follower::start().await.map_err(failed)?;
        let balancer = Balancer::new(&self.options(&services)).map_err(failed)?;
        let balancer = Arc::new(Mutex::new(balancer));
        follower.learn(&balancer, &services).await.map_err(failed)?;
        lock(&balancer).apply(services).map_err(failed)?;
        let interfaces = self.begin(&follower, &balancer, &mut session.out)?;
        let answers = BalancerServer::new(Balance::new(balancer.clone(), interfaces));
        let _socket = self.query.answer(Alone::Balance, Routes::new(answers))?;
        self.warn(&follower, &balancer).await.map_err(failed)?;
        let shown = self.show(&balancer, &mut session.out);
        tokio::select! {
            ended = follower.run(&balancer) => ended.map_err(failed),
            shown = shown => shown,
            () = self.time_is_over() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }

    /// No more room than is needed: a service costs 128 KiB.
    fn options(&self, services: &Services) -> Options {
        let most = |count: usize| u16::try_from(count.max(1)).unwrap_or(u16::MAX - 1);
        let defaults = Options::default();
        let (source_v4, source_v6) = match self.own {
            IpAddr::V4(own) => (Some(own), None),
            IpAddr::V6(own) => (None, Some(own)),
        };
        Options {
            max_flows: self.max_flows,
            max_services: most(services.len()),
            max_servers: most(
                services
                    .iter()
                    .map(|service| service.servers().count())
                    .sum(),
            ),
            // The table shows every flow.
            remember_all: true,
            source_v4,
            source_v6,
            ..defaults
        }
    }

    /// Takes the interfaces, and says so. One that cannot be had gives the others back: the
    /// balancer goes with this command.
    fn begin(
        &self,
        follower: &Follower,
        balancer: &Mutex<Balancer>,
        out: &mut Output,
    ) -> Result<Vec<v1::BalancerInterface>, Error> {
        let mode = self.mode.map(Mode::xdp);
        let mut taken = Vec::new();
        let mut interfaces = Vec::new();
        for name in std::iter::once(&self.interface).chain(&self.other_interfaces) {
            let attached = follower.attach(&mut lock(balancer), name, mode);
            let mode = attached.map_err(|e| Error::Refused(format!("{name}: {e}")))?;
            let place = mode.place_on(follower.kind(name).as_deref());
            taken.push(format!("{name}: {place}"));
            interfaces.push(v1::BalancerInterface {
                name: name.clone(),
                mode: router::messages::mode(Some(mode)).into(),
            });
        }
        let keys: Vec<String> = lock(balancer)
            .services()
            .iter()
            .map(|service| service.key().to_string())
            .collect();
        if !out.json {
            let (keys, taken) = (keys.join(", "), taken.join(", "));
            out.text(&format!("balancing {keys} on {taken}; Ctrl-C ends it"))?;
        }
        out.flush()?;
        Ok(interfaces)
    }

    /// Says which interfaces lose what is sent from XDP: servers behind them look well to whoever
    /// asks them otherwise.
    async fn warn(
        &self,
        follower: &Follower,
        balancer: &Mutex<Balancer>,
    ) -> Result<(), balancer::Error> {
        let outs: BTreeSet<u32> = {
            let balancer = lock(balancer);
            let ways = balancer.hops().values().map(|way| way.ifindex);
            ways.chain(balancer.interfaces().map(|interface| interface.out))
                .collect()
        };
        let native = self.mode.map(Mode::xdp) == Some(xdp::Mode::Native);
        for name in follower
            .lose_frames(outs.into_iter().filter(|_| native))
            .await?
        {
            eprintln!(
                "butterfly: {name} loses what is sent from XDP: its driver takes no redirected \
                 frames (a veth does when its other end has GRO or a program); --mode tc sends \
                 everywhere"
            );
        }
        Ok(())
    }

    /// The own address tells a mixed-up command line, where the VIP and it have changed places,
    /// from a right one.
    fn check_own_address(&self) -> Result<(), Error> {
        match std::net::UdpSocket::bind((self.own, 0)) {
            Ok(_) => Ok(()),
            Err(e) => Err(Error::Usage(format!(
                "{} is no address of this host: {e}",
                self.own
            ))),
        }
    }

    async fn time_is_over(&self) {
        match self.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    }

    /// Prints for ever: over the last table on a terminal, else behind it.
    async fn show(&self, balancer: &Mutex<Balancer>, out: &mut Output) -> Result<(), Error> {
        let terminal = std::io::stdout().is_terminal();
        let sample = || {
            let balancer = lock(balancer);
            let sample = balancer.counters().and_then(|counters| {
                Ok(Sample {
                    counters,
                    live: balancer.live_flows()?,
                    at: Instant::now(),
                })
            });
            sample.map_err(|e| Error::Refused(e.to_string()))
        };
        let mut before = sample()?;
        if out.json {
            out.value_line(&balance_table::json(&before))?;
            out.flush()?;
        }
        let mut ticks = tokio::time::interval(Duration::from_secs(self.every));
        ticks.tick().await;
        let mut lines = 0;
        loop {
            ticks.tick().await;
            let now = sample()?;
            if out.json {
                out.value_line(&balance_table::json(&now))?;
            } else {
                let text = balance_table::text(&before, &now);
                if terminal && lines > 0 {
                    // Up to the table's first line, and clear what was there.
                    out.text(&format!("\x1b[{lines}F\x1b[J"))?;
                }
                out.text(&text)?;
                lines = text.lines().count();
            }
            out.flush()?;
            before = now;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

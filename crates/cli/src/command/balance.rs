//! `butterfly balance`: services of one set of servers, balanced in the foreground without a
//! daemon, with a live table. What is asked for becomes services in [`super::balance_services`],
//! what is printed is [`super::balance_table`]'s.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::PathBuf;
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
use super::stay_options::StayOptions;
use super::xdp_mode::Mode;
use crate::error::Error;
use crate::output::{Output, say};
use crate::query::{Alone, Balance};
use crate::session::Session;
use crate::stay::Stay;

/// What stays, besides points: the maps of flows and counters, and what their numbers mean.
const MAPS: &str = "maps";
const TABLES: &str = "tables";

/// Services and servers that there is more room for where the programs stay.
const SPARE_SERVICES: usize = 16;
const SPARE_SERVERS: usize = 256;
/// The most that a balancer has room for.
const ROOM_MAX: u16 = u16::MAX - 1;

/// `balance`.
#[derive(Args, Debug)]
#[command(after_help = "\
Needs root, and no daemon. The servers are on the interface's network (or behind a tunnel) and
have the VIPs too, on lo, not answering ARP for them: they answer the clients themselves. Clients
reach a VIP by way of OWN_ADDRESS. Servers are not checked; `butterfly service` of a daemon does.
The interfaces are the kernel's again when this ends, however it ends; with --stay it balances on
without this command, servers and next hops as they were, until the next one. VLANs are those that
the kernel has interfaces for. While it runs, and where no daemon does, `butterfly service list`,
`show` and `stats` say what it does. With --json a line a print, counters since the beginning.

Examples:
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11 10.1.2.12
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11 \
    --vip 192.168.101.2 -p 80,443 -i ens224
  butterfly balance ens192 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11 --stay
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
    /// Seed of all hashes, which a fleet shares: this file has 16 hexadecimal digits; without it
    /// strangers know the seed (docs/balancer.md)
    #[arg(long, value_name = "FILE")]
    seed: Option<PathBuf>,
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
    #[command(flatten)]
    stay: StayOptions,
}

impl BalanceArgs {
    /// Balances until SIGINT or SIGTERM, or until the time is over.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let services = self.services.services()?;
        let failed = |e: balancer::Error| Error::Refused(e.to_string());
        self.check_own_address()?;
        let fixed = self.fixed()?;
        let catch = |kind| signal(kind).map_err(Error::Output);
        let (mut interrupt, mut terminate) = (
            catch(SignalKind::interrupt())?,
            catch(SignalKind::terminate())?,
        );
        let mut stay = self.stay.begin(Alone::Balance)?;
        let follower = Follower::start().await.map_err(failed)?;
        let (balancer, left) = load(fixed, &services, stay.as_mut()).map_err(failed)?;
        let balancer = Arc::new(Mutex::new(balancer));
        follower.learn(&balancer, &services).await.map_err(failed)?;
        lock(&balancer).apply(services).map_err(failed)?;
        session.out.go_on_unheard("balancing");
        let interfaces = self.begin(&follower, &balancer, &mut session.out)?;
        if let Some(stay) = &mut stay {
            take_over(&mut lock(&balancer), left.as_deref(), stay)?;
        }
        let ended = tokio::select! {
            ended = self.go_on(&follower, &balancer, interfaces, &mut session.out) => ended,
            () = self.time_is_over() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        };
        let all: Vec<&str> = self.all_interfaces().collect();
        let all = all.join(", ");
        let said = session.out.last_words(&match stay {
            None => format!("the kernel's again: {all}"),
            Some(stay) => {
                // What is dropped lets go of interfaces.
                std::mem::forget(balancer);
                format!(
                    "balanced on without this command, as now: {all}. The next with --stay goes \
                     on; rm -r {} ends it",
                    stay.folder().display()
                )
            }
        });
        ended.and(said).and(session.out.heard())
    }

    /// Balances, answers who asks, and prints as long as it can, until something fails.
    async fn go_on(
        &self,
        follower: &Follower,
        balancer: &Arc<Mutex<Balancer>>,
        interfaces: Vec<v1::BalancerInterface>,
        out: &mut Output,
    ) -> Result<(), Error> {
        let failed = |e: balancer::Error| Error::Refused(e.to_string());
        let native = v1::XdpMode::Native;
        let native = interfaces.iter().any(|taken| taken.mode() == native);
        let answers = BalancerServer::new(Balance::new(balancer.clone(), interfaces));
        let _socket = self.query.answer(Alone::Balance, Routes::new(answers))?;
        let warned = self.warn(follower, balancer, native).await;
        warned.map_err(failed)?;
        let mut troubles = follower.troubles();
        let warning = async {
            while troubles.changed().await.is_ok() {
                for why in troubles.borrow_and_update().iter() {
                    say(&format!(
                        "butterfly: it is not balanced as the kernel's tables say: {why}\n"
                    ));
                }
            }
        };
        tokio::select! {
            ended = follower.run(balancer) => ended.map_err(failed),
            () = warning => Ok(()),
            shown = self.show(balancer, out) => shown,
        }
    }

    /// What does not depend on the services.
    fn fixed(&self) -> Result<Options, Error> {
        let (source_v4, source_v6) = match self.own {
            IpAddr::V4(own) => (Some(own), None),
            IpAddr::V6(own) => (None, Some(own)),
        };
        let options = Options {
            max_flows: self.max_flows,
            // The table shows every flow.
            remember_all: true,
            source_v4,
            source_v6,
            ..Options::default()
        };
        options
            .with_seed_of(self.seed.as_deref())
            .map_err(|why| Error::Refused(format!("--seed: {why}")))
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
        for name in self.all_interfaces() {
            let attached = follower.attach(&mut lock(balancer), name, mode);
            let refused =
                |e| Error::Refused(format!("{name}: {e}{}", self.stay.hint(Alone::Balance)));
            let mode = attached.map_err(refused)?;
            let words = mode.words_on(follower.kind(name).as_deref());
            taken.push(format!("{name}: {words}"));
            interfaces.push(v1::BalancerInterface {
                name: name.to_owned(),
                mode: router::messages::mode(Some(mode)).into(),
                detail: String::new(),
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

    fn all_interfaces(&self) -> impl Iterator<Item = &str> {
        let others = self.other_interfaces.iter();
        std::iter::once(&self.interface)
            .chain(others)
            .map(String::as_str)
    }

    /// Says which interfaces lose what is sent from XDP: servers behind them look well to whoever
    /// asks them otherwise.
    async fn warn(
        &self,
        follower: &Follower,
        balancer: &Mutex<Balancer>,
        native: bool,
    ) -> Result<(), balancer::Error> {
        let outs: BTreeSet<u32> = {
            let balancer = lock(balancer);
            let ways = balancer.hops().values().map(|way| way.ifindex);
            ways.chain(balancer.interfaces().map(|interface| interface.out))
                .collect()
        };
        let outs = outs.into_iter().filter(|_| native);
        for name in follower.lose_frames(outs).await?.values() {
            say(&format!(
                "butterfly: {name} loses what is sent from XDP: its driver takes no redirected \
                 frames (a veth does when its other end has GRO or a program); --mode tc sends \
                 everywhere\n"
            ));
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
                    out.over(lines)?;
                }
                out.text(&text)?;
                lines = text.lines().count();
            }
            out.flush()?;
            before = now;
        }
    }
}

/// A balancer, with the maps of a command before where one has left them, and the tables that
/// it is to take up then.
fn load(
    fixed: Options,
    services: &Services,
    stay: Option<&mut Stay>,
) -> Result<(Balancer, Option<Vec<u8>>), balancer::Error> {
    let Some(stay) = stay else {
        return Ok((Balancer::new(&options(&fixed, services, false))?, None));
    };
    let with_spare = options(&fixed, services, true);
    let tables = stay.take(TABLES).map(|item| item.note);
    let left = stay.take(MAPS).zip(tables).map(|(maps, tables)| {
        let with_room = options(&fixed, services, false).with_room_of(&maps);
        let balancer = Balancer::handed(&with_room, maps)?;
        match balancer.can_take_up(&tables) {
            true => Ok((balancer, Some(tables))),
            false => Err(balancer::Error::Handed {
                why: "its tables cannot be".into(),
            }),
        }
    });
    let (mut balancer, tables) = match left {
        None => (Balancer::new(&with_spare)?, None),
        Some(Ok(left)) => left,
        Some(Err(e)) => {
            say(&format!("butterfly: flows begin anew: {e}\n"));
            (Balancer::new(&with_spare)?, None)
        }
    };
    balancer.points_handed(stay.take_points());
    balancer.keep_points(stay.point_keeper());
    Ok((balancer, tables))
}

/// With no more room than is needed: a service costs 128 KiB. But what stays has some to spare, for
/// a next command with more of them: with more room it would begin with other maps.
fn options(fixed: &Options, services: &Services, spare: bool) -> Options {
    let most = |count: usize, more: usize| {
        let count = if spare { count + more } else { count.max(1) };
        u16::try_from(count).unwrap_or(ROOM_MAX).min(ROOM_MAX)
    };
    let servers = services.iter().map(|service| service.servers().count());
    Options {
        max_services: most(services.len(), SPARE_SERVICES),
        max_servers: most(servers.sum(), SPARE_SERVERS),
        ..fixed.clone()
    }
}

/// Goes on with what a command before has left, and has this one's stay.
fn take_over(balancer: &mut Balancer, left: Option<&[u8]>, stay: &mut Stay) -> Result<(), Error> {
    let failed = |e: balancer::Error| Error::Refused(e.to_string());
    balancer.can_stay().map_err(failed)?;
    let maps = balancer.hand_over().map_err(failed)?;
    if left.is_none() {
        // What is there is of other maps, and of the programs that run until now.
        balancer.take_over().map_err(failed)?;
        stay.release(TABLES);
    }
    stay.hold(MAPS, &maps)?;
    balancer.keep_tables(stay.byte_keeper(TABLES));
    if let Some(left) = left {
        balancer.take_up(left).map_err(failed)?;
        balancer.take_over().map_err(failed)?;
    }
    stay.settle();
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

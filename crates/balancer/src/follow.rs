//! Servers as the kernel reaches them: routes, next hops and neighbours, followed as they change.
//!
//! The program sends past the kernel, which therefore sees no traffic that would keep its
//! neighbours' entries fresh. So the follower asks the kernel to confirm what is stale, every
//! [`PERIOD`]: a server that moved to another MAC without a word is found again. What the kernel's
//! answers mean for one server is [`next_hop`]'s.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netlink::devices::Devices;
use netlink::{Kinds, Mirror, Query, Requests, Snapshot};
use tokio::sync::watch;

use crate::balancer::{Balancer, Interface};
use crate::error::Error;
use crate::hop::Hop;
use crate::next_hop::{self, interfaces_of};
use model::Services;

/// How often stale neighbours are asked for.
const PERIOD: Duration = Duration::from_secs(2);
/// After a change, others are waited for: a link that goes down takes routes and neighbours with
/// it.
const PAUSE: Duration = Duration::from_millis(20);
/// RT_SCOPE_UNIVERSE, of addresses that mean the same everywhere.
const UNIVERSE: u8 = 0;
/// How long [`Follower::learn`] waits for neighbours to answer; no other operation waits for them.
const PATIENCE: Duration = Duration::from_secs(1);

/// The kernel's tables of one network namespace, as a balancer needs them.
#[derive(Debug)]
pub struct Follower {
    mirror: Arc<Mirror>,
    requests: Requests,
    /// Told when next hops have been looked up anew.
    looked: watch::Sender<()>,
    /// What is not in force as the kernel has it.
    troubles: watch::Sender<Vec<String>>,
}

impl Follower {
    /// Follows the namespace of the calling thread. Within a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub async fn start() -> Result<Self, Error> {
        Self::new(Arc::new(Mirror::start().await?))
    }

    /// Starts with a mirror of that namespace that others share.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn new(mirror: Arc<Mirror>) -> Result<Self, Error> {
        Ok(Follower {
            mirror,
            requests: Requests::new()?,
            looked: watch::Sender::new(()),
            troubles: watch::Sender::default(),
        })
    }

    /// What the kernel says now: for whoever runs a balancer's program in
    /// [`AttachedInterface`](crate::AttachedInterface)s of his own.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.mirror.snapshot()
    }

    /// The kernel's tables as they change: for whoever attaches a balancer's program himself.
    pub fn watch(&self) -> netlink::Watch {
        self.mirror.watch()
    }

    /// Wakes when [`run`](Self::run) has looked the next hops up anew.
    pub fn looked(&self) -> watch::Receiver<()> {
        self.looked.subscribe()
    }

    /// Why what the kernel says is not in force, a sentence for each cause; none while it is. Wakes
    /// when [`run`](Self::run) finds others.
    pub fn troubles(&self) -> watch::Receiver<Vec<String>> {
        self.troubles.subscribe()
    }

    /// An address of this host that others can answer to, of IPv6 or IPv4: an interface's that is
    /// balanced on, if one has any.
    pub fn own_address(&self, balancer: &Balancer, v6: bool) -> Option<IpAddr> {
        let snapshot = self.mirror.snapshot();
        let is_balanced = |ifindex: u32| {
            balancer
                .interfaces()
                .any(|interface| interface.ifindex == ifindex)
        };
        let outside = |ifindex: u32| {
            snapshot
                .links
                .get(&ifindex)
                .is_some_and(|link| !link.loopback)
        };
        let all = snapshot.addresses.values().filter(|address| {
            address.scope == UNIVERSE && address.ip.is_ipv6() == v6 && outside(address.ifindex)
        });
        let best = all.min_by_key(|address| (!is_balanced(address.ifindex), address.ip));
        best.map(|address| address.ip)
    }

    /// Runs a balancer on an interface: a bond with its ports, a NIC with the VLANs on it. Without
    /// a mode, native where it can be had.
    ///
    /// # Errors
    /// As [`AttachedInterface::take`](crate::AttachedInterface::take).
    pub fn attach(
        &self,
        balancer: &mut Balancer,
        name: &str,
        mode: Option<xdp::Mode>,
    ) -> Result<xdp::Mode, Error> {
        balancer.take(&self.mirror.snapshot(), name, mode)
    }

    /// What the kernel calls an interface of this name (IFLA_INFO_KIND): `veth`, `bridge`; none for
    /// hardware.
    pub fn kind(&self, name: &str) -> Option<String> {
        let snapshot = self.mirror.snapshot();
        snapshot.link_named(name)?.kind.clone()
    }

    /// Those of these interfaces, with their names, whose drivers take no frames that are sent from
    /// XDP in the driver: such frames are lost. Kernels before 6.3 do not say.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub async fn lose_frames(
        &self,
        interfaces: impl IntoIterator<Item = u32>,
    ) -> Result<BTreeMap<u32, String>, Error> {
        let mut lost = BTreeMap::new();
        let mut interfaces = interfaces.into_iter().peekable();
        if interfaces.peek().is_none() {
            return Ok(lost);
        }
        let mut devices = Devices::new().await?;
        let snapshot = self.mirror.snapshot();
        for ifindex in interfaces {
            if devices.takes_redirects(ifindex).await? == Some(false)
                && let Some(link) = snapshot.links.get(&ifindex)
            {
                lost.insert(ifindex, link.name.to_string());
            }
        }
        Ok(lost)
    }

    /// The next hops to these addresses that are known now. Those whose next hop does not answer
    /// are asked for, and left out.
    pub async fn next_hops(&self, targets: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Hop> {
        let mut next_hops = BTreeMap::new();
        for target in targets {
            match self.requests.resolve(&Query::to(*target)).await {
                Ok(resolution) => {
                    if let Some(hop) = next_hop::next_hop(
                        &self.requests,
                        &self.mirror.snapshot(),
                        *target,
                        &resolution,
                    )
                    .await
                    {
                        next_hops.insert(*target, hop);
                    }
                }
                Err(error) => tracing::debug!("no way to server {target}: {error}"),
            }
        }
        next_hops
    }

    /// Puts services in force with the next hops that are known by now. A server whose next hop has
    /// yet to answer is asked for, and gets its share as soon as [`run`](Self::run) hears of it;
    /// nothing is waited for.
    ///
    /// # Errors
    /// As [`Balancer::apply`].
    pub async fn apply(&self, balancer: &Mutex<Balancer>, services: Services) -> Result<(), Error> {
        let next_hops = self.next_hops(&services.targets()).await;
        lock(balancer).apply_with(services, next_hops)
    }

    /// Tells a balancer the next hops to the servers it has and to those it is about to get: before
    /// [`Balancer::apply`] and [`run`](Self::run), for a program that wants new servers to have
    /// their share from the first packet on. Waits up to a second for those who do not answer.
    ///
    /// # Errors
    /// The balancer's maps cannot be written.
    pub async fn learn(
        &self,
        balancer: &Mutex<Balancer>,
        services: &Services,
    ) -> Result<(), Error> {
        let mut watch = self.mirror.watch();
        let mut targets = services.targets();
        targets.extend(lock(balancer).services().targets());
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let next_hops = self.next_hops(&targets).await;
            let complete = next_hops.len() == targets.len();
            lock(balancer).set_hops(next_hops)?;
            let late = tokio::time::timeout_at(deadline, watch.changed());
            if complete || !matches!(late.await, Ok(Ok(_))) {
                return Ok(());
            }
        }
    }

    /// Keeps a balancer's next hops and interfaces as the kernel has them, until dropped. What
    /// cannot be put in force is [said](Self::troubles), and tried again at the next look.
    ///
    /// # Errors
    /// The kernel can no longer be followed.
    pub async fn run(&self, balancer: &Mutex<Balancer>) -> Result<(), Error> {
        let mut watch = self.mirror.watch();
        loop {
            let targets = lock(balancer).services().targets();
            let next_hops = self.next_hops(&targets).await;
            {
                let mut balancer = lock(balancer);
                if balancer.services().targets() != targets {
                    // An operation was faster, and knows next hops to servers that were not asked
                    // for here.
                    continue;
                }
                self.tell([
                    self.update_interfaces(&mut balancer),
                    balancer.set_hops(next_hops),
                    balancer.settle(),
                ]);
            }
            self.looked.send_replace(());
            let wanted = Kinds::LINKS
                | Kinds::ADDRESSES
                | Kinds::ROUTES
                | Kinds::NEXTHOPS
                | Kinds::RULES
                | Kinds::NEIGHBOURS;
            let change = async {
                loop {
                    let (_, kinds) = watch.changed().await?;
                    if kinds.any(wanted) {
                        return Ok::<_, Error>(());
                    }
                }
            };
            match tokio::time::timeout(PERIOD, change).await {
                Ok(Ok(())) => tokio::time::sleep(PAUSE).await,
                Ok(Err(ended)) => {
                    self.troubles.send_replace(vec![ended.to_string()]);
                    return Err(ended);
                }
                Err(_elapsed) => {}
            }
        }
    }

    /// Says what has failed now and had not before.
    fn tell(&self, done: [Result<(), Error>; 3]) {
        let failed = done.into_iter().filter_map(Result::err);
        let now: Vec<String> = failed.map(|error| error.to_string()).collect();
        self.troubles.send_if_modified(|before| {
            if *before == now {
                return false;
            }
            for why in now.iter().filter(|why| !before.contains(why)) {
                tracing::warn!("the load balancer is not as the kernel's tables say: {why}");
            }
            if now.is_empty() {
                tracing::info!("the load balancer is as the kernel's tables say again");
            }
            *before = now;
            true
        });
    }

    fn update_interfaces(&self, balancer: &mut Balancer) -> Result<(), Error> {
        let snapshot = self.mirror.snapshot();
        let followed = balancer.follow(&snapshot);
        let known: Vec<Interface> = balancer.interfaces().copied().collect();
        let outs: BTreeSet<u32> = known.iter().map(|interface| interface.out).collect();
        let now: Vec<Interface> = outs
            .iter()
            .filter_map(|out| interfaces_of(&snapshot, *out))
            .flatten()
            .collect();
        // Ports that have left their bond; an interface itself is told by whoever attached it that
        // it is gone.
        let gone = known.iter().filter(|known| known.ifindex != known.out);
        let gone = gone.filter(|known| now.iter().all(|now| now.ifindex != known.ifindex));
        let gone: Vec<u32> = gone.map(|known| known.ifindex).collect();
        let told = balancer.update_interfaces(&gone, &now);
        followed.and(told)
    }
}

/// A balancer whose holder panicked is as its last operation left it: each either is in force or
/// has changed nothing.
fn lock(balancer: &Mutex<Balancer>) -> MutexGuard<'_, Balancer> {
    balancer.lock().unwrap_or_else(PoisonError::into_inner)
}

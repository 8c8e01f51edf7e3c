//! Servers as the kernel reaches them: routes, next hops and neighbours, followed as they change.
//!
//! The program sends past the kernel, which therefore sees no traffic that would keep its neighbours' entries fresh. So the follower
//! asks the kernel to confirm what is stale, every [`PERIOD`]: a server that moved to another MAC without a word is found again.
//! Of a multipath route the first next hop that answers is used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netlink::{Kinds, Link, Mirror, Query, Requests, Resolution, RouteKind, Snapshot};

use crate::balancer::{Balancer, Interface};
use crate::error::Error;
use crate::hop::Hop;
use crate::model::Services;

/// How often stale neighbours are asked for.
const PERIOD: Duration = Duration::from_secs(2);
/// After a change, others are waited for: a link that goes down takes routes and neighbours with it.
const PAUSE: Duration = Duration::from_millis(20);
/// How long [`Follower::learn`] waits for neighbours to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The kernel's tables of one network namespace, as a balancer needs them.
#[derive(Debug)]
pub struct Follower {
    mirror: Arc<Mirror>,
    requests: Requests,
}

impl Follower {
    /// Follows the namespace of the calling thread. Within a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub async fn start() -> Result<Self, Error> {
        Self::new(Arc::new(Mirror::start().await?))
    }

    /// The same by a mirror of that namespace that others share.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn new(mirror: Arc<Mirror>) -> Result<Self, Error> {
        let requests = Requests::new()?;
        Ok(Follower { mirror, requests })
    }

    /// What a balancer has to know of an interface: itself first, to be attached; then a bond's ports, which packets name
    /// when they come in, for [`Balancer::set_interface`].
    ///
    /// # Errors
    /// There is none of that name, or it is not Ethernet.
    pub fn interfaces(&self, name: &str) -> Result<Vec<Interface>, Error> {
        let snapshot = self.mirror.snapshot();
        let none = || Error::NoInterface {
            name: name.to_owned(),
        };
        let link = snapshot
            .link_named(name)
            .filter(|link| link.ethernet)
            .ok_or_else(none)?;
        interfaces_of(&snapshot, link.index).ok_or_else(none)
    }

    /// Attaches a balancer to an interface, a bond with its ports.
    ///
    /// # Errors
    /// As [`interfaces`](Self::interfaces) and [`Balancer::attach`].
    pub fn attach(
        &self,
        balancer: &mut Balancer,
        name: &str,
        mode: Option<xdp::Mode>,
    ) -> Result<xdp::Mode, Error> {
        let all = self.interfaces(name)?;
        let mode = balancer.attach(all[0], mode)?;
        for port in &all[1..] {
            balancer.set_interface(*port)?;
        }
        Ok(mode)
    }

    /// The ways to these addresses that are known now. Those whose next hop does not answer are asked for, and left out.
    pub async fn ways(&self, targets: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Hop> {
        let mut ways = BTreeMap::new();
        for target in targets {
            match self.requests.resolve(&Query::to(*target)).await {
                Ok(resolution) => {
                    if let Some(way) = self.way(*target, &resolution).await {
                        ways.insert(*target, way);
                    }
                }
                Err(error) => tracing::debug!("no way to server {target}: {error}"),
            }
        }
        ways
    }

    /// Tells a balancer the ways to the servers it has and to those it is about to get: before [`Balancer::apply`], so that new
    /// servers can be reached at once. Waits up to a second for those who do not answer.
    ///
    /// # Errors
    /// The balancer's maps cannot be written.
    pub async fn learn(&self, balancer: &Mutex<Balancer>, services: &Services) -> Result<(), Error> {
        let mut watch = self.mirror.watch();
        let mut targets = services.targets();
        targets.extend(lock(balancer).services().targets());
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let ways = self.ways(&targets).await;
            let complete = ways.len() == targets.len();
            lock(balancer).set_hops(ways)?;
            let late = tokio::time::timeout_at(deadline, watch.changed());
            if complete || !matches!(late.await, Ok(Ok(_))) {
                return Ok(());
            }
        }
    }

    /// Keeps a balancer's ways and interfaces as the kernel has them, until dropped.
    ///
    /// # Errors
    /// The kernel can no longer be followed, or the balancer's maps not be written.
    pub async fn run(&self, balancer: &Mutex<Balancer>) -> Result<(), Error> {
        let mut watch = self.mirror.watch();
        loop {
            let targets = lock(balancer).services().targets();
            let ways = self.ways(&targets).await;
            self.update(&mut lock(balancer), ways)?;
            lock(balancer).settle()?;
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
                Ok(changed) => {
                    changed?;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(_elapsed) => {}
            }
        }
    }

    fn update(&self, balancer: &mut Balancer, ways: BTreeMap<IpAddr, Hop>) -> Result<(), Error> {
        let snapshot = self.mirror.snapshot();
        let known: Vec<Interface> = balancer.interfaces().copied().collect();
        let outs: BTreeSet<u32> = known.iter().map(|interface| interface.out).collect();
        let now: Vec<Interface> = outs
            .iter()
            .filter_map(|out| interfaces_of(&snapshot, *out))
            .flatten()
            .collect();
        for interface in now.iter().filter(|interface| !known.contains(interface)) {
            balancer.set_interface(*interface)?;
        }
        balancer.set_hops(ways)
    }

    async fn way(&self, target: IpAddr, resolution: &Resolution) -> Option<Hop> {
        if resolution.kind != RouteKind::Unicast {
            return None;
        }
        let snapshot = self.mirror.snapshot();
        let mut found = None;
        for hop in resolution.hops.iter().filter(|hop| !hop.encapsulates) {
            let next = hop.gateway.unwrap_or(target);
            let neighbour = snapshot.neighbour(hop.ifindex, next);
            if !neighbour.is_some_and(|neighbour| neighbour.is_confirmed())
                && let Err(error) = self.requests.probe(hop.ifindex, next).await
            {
                tracing::debug!("cannot ask for neighbour {next}: {error}");
            }
            let mac = neighbour
                .filter(|neighbour| neighbour.is_valid())
                .and_then(|neighbour| neighbour.mac);
            let Some((mac, (link, vlans))) = mac.zip(carrier(&snapshot, hop.ifindex)) else {
                continue;
            };
            let mtu = resolution.mtu.unwrap_or(snapshot.links.get(&hop.ifindex)?.mtu);
            found = found.or(Some(Hop {
                ifindex: link.index,
                source_mac: snapshot.links.get(&hop.ifindex)?.mac?,
                mac,
                vlans,
                mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
                direct: hop.gateway.is_none(),
                source: resolution.source,
            }));
        }
        found
    }
}

/// The device below VLAN interfaces, and their tags from the outermost on. `None`: it is down, not Ethernet, or tagged
/// otherwise than the program does (802.1Q, twice at the most).
fn carrier(snapshot: &Snapshot, ifindex: u32) -> Option<(&Link, Vec<u16>)> {
    let mut link = snapshot.links.get(&ifindex)?;
    let mut vlans = Vec::new();
    while let Some(vlan) = link.vlan {
        if vlan.protocol != 0x8100 || vlans.len() == 2 || !link.up {
            return None;
        }
        vlans.insert(0, vlan.id);
        link = snapshot.links.get(&vlan.parent)?;
    }
    (link.up && link.ethernet).then_some((link, vlans))
}

/// An interface, and the ports of a bond. `None`: it is gone or has no MAC.
fn interfaces_of(snapshot: &Snapshot, ifindex: u32) -> Option<Vec<Interface>> {
    let link = snapshot.links.get(&ifindex)?;
    let own = Interface::new(ifindex, link.mac?);
    let mut all = vec![own];
    if link.kind.as_deref() == Some("bond") {
        let ports = snapshot
            .links
            .values()
            .filter(|port| port.master == Some(ifindex));
        all.extend(ports.map(|port| Interface {
            ifindex: port.index,
            ..own
        }));
    }
    Some(all)
}

/// A balancer whose holder panicked is as its last operation left it: each either is in force or has changed nothing.
fn lock(balancer: &Mutex<Balancer>) -> MutexGuard<'_, Balancer> {
    balancer.lock().unwrap_or_else(PoisonError::into_inner)
}

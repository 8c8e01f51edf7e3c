//! The ways to other hosts, kept by a task: whom the model wants reached, by which next hops the kernel reaches them, and
//! that the workers know ([`Switch::set_underlay`]).
//!
//! # Theory of operation
//!
//! The task wakes when the kernel's tables change, when an uplink does, when the model does, and now and then for
//! addresses that frames wanted to go to and that nobody has told of (learnt ones). It then looks at everything that it has to
//! reach: routes are asked of the kernel and kept until a route, a rule, an address or a link changes; neighbours are read
//! from the mirror, and the kernel is asked to look for those it does not know. What has come out differently from
//! before is published, many changes at once: no flow is decided again for it.
//!
//! Where the uplink is a TAP device, all hosts are sought on it, by the [`Station`] that we are there.
//!
//! Multicast groups are joined through the kernel ([`groups`]), and NICs without an MTU of their own are told what the
//! uplinks carry.

mod groups;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use control::{EventKind, Reach, limits};
use dataplane::Switch;
use dataplane::underlay::{Encapsulation, Hop, Underlay};
use netlink::{Kinds, Query, Requests, Resolution, Snapshot};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::block_in_place;
use uplink::{Fact, Station};
use wire::Mac;

use crate::app::App;
use crate::uplinks::Uplinks;
use groups::Groups;
pub use paths::inner_mtu;
use paths::{Asked, Way};

/// How often the workers are asked for addresses that they have no way to.
const LOOK: Duration = Duration::from_millis(50);
/// How often the kernel is asked to look for the same neighbour.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Changes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(5);

/// What the ways are found by, and what they have in common.
pub struct Settings {
    /// Our addresses (`-i`): the source of what is sent. None: what the kernel would take.
    pub addresses: Vec<IpAddr>,
    pub encapsulation: Encapsulation,
    /// NICs that say no MTU get what the uplinks carry: `-m` did not say another one.
    pub follow_mtu: bool,
}

/// The task's own.
pub struct Ways {
    settings: Settings,
    app: Weak<App>,
    switch: Arc<Switch>,
    kernel: netlink::Watch,
    facts: watch::Receiver<Arc<[Fact]>>,
    station: Arc<Station>,
    requests: Requests,
    reach: Reach,
    /// Learnt addresses that are to be reached, oldest first.
    learnt: VecDeque<IpAddr>,
    /// What the kernel said of each, while no route may have changed.
    routes: BTreeMap<IpAddr, Resolution>,
    probed: BTreeMap<(u32, IpAddr), Instant>,
    /// When all ways were found last.
    renewed: Instant,
    groups: Groups,
    published: Option<Known>,
}

/// What the workers were told.
#[derive(PartialEq, Eq)]
struct Known {
    /// Our own addresses.
    addresses: BTreeSet<IpAddr>,
    /// The next hops to each endpoint and group; none to those that cannot be reached now.
    paths: BTreeMap<IpAddr, Vec<Hop>>,
}

impl Ways {
    /// Nothing is known yet. To be made in the network namespace of the uplinks.
    pub fn new(
        settings: Settings,
        app: &Arc<App>,
        switch: Arc<Switch>,
        uplinks: &Uplinks,
    ) -> Result<Ways, String> {
        let requests = Requests::new().map_err(|e| format!("routes cannot be asked for: {e}"))?;
        Ok(Ways {
            settings,
            app: Arc::downgrade(app),
            switch,
            kernel: uplinks.kernel().watch(),
            facts: uplinks.watch(),
            station: uplinks.station(),
            requests,
            reach: Reach::default(),
            learnt: VecDeque::new(),
            routes: BTreeMap::new(),
            probed: BTreeMap::new(),
            renewed: Instant::now(),
            groups: Groups::default(),
            published: None,
        })
    }

    /// Follows until the daemon stops.
    pub async fn follow(mut self) {
        let Some(mut events) = self
            .app
            .upgrade()
            .map(|app| block_in_place(|| app.control().subscribe()))
        else {
            return;
        };
        loop {
            let Some(app) = self.app.upgrade() else { return };
            self.reach = block_in_place(|| app.control().reach());
            self.follow_mtu(&app);
            drop(app);
            // Until the model changes.
            loop {
                self.renew().await;
                let moved = tokio::select! {
                    event = events.recv() => match event {
                        Ok(event) if !concerns_reach(&event.kind) => continue,
                        Ok(_) | Err(RecvError::Lagged(_)) => true,
                        Err(RecvError::Closed) => return,
                    },
                    moved = self.something_moved() => match moved {
                        Some(reach) => reach,
                        None => return,
                    },
                };
                if moved {
                    break;
                }
            }
            tokio::time::sleep(TOGETHER).await;
            while events.try_recv().is_ok() {}
        }
    }

    /// Waits for the kernel, an uplink or a frame to ask for something. True: the model is to be asked again, too. `None`: the
    /// kernel is not followed any more.
    async fn something_moved(&mut self) -> Option<bool> {
        loop {
            tokio::select! {
                changed = self.kernel.changed() => match changed {
                    Ok((_, kinds)) => {
                        if kinds.any(Kinds::LINKS | Kinds::ADDRESSES | Kinds::ROUTES | Kinds::NEXTHOPS | Kinds::RULES) {
                            self.routes.clear();
                            return Some(false);
                        }
                        if kinds.any(Kinds::NEIGHBOURS) {
                            return Some(false);
                        }
                    }
                    Err(error) => {
                        tracing::error!("ways to other hosts do not follow the kernel any more: {error}");
                        return None;
                    }
                },
                changed = self.facts.changed() => {
                    self.routes.clear();
                    return changed.ok().map(|()| true);
                }
                () = tokio::time::sleep(LOOK) => {
                    if self.take_wanted() | self.on_tap_moved() {
                        return Some(false);
                    }
                }
            }
        }
    }

    /// Takes up what frames wanted to go to; true when any of it has to be looked at.
    fn take_wanted(&mut self) -> bool {
        let wanted = self.switch.take_wanted();
        for address in &wanted {
            let told = self.reach.endpoints.contains(address) || self.reach.groups.contains(address);
            if !told && !self.learnt.contains(address) {
                self.learnt.push_back(*address);
            }
        }
        while self.learnt.len() > limits::ENDPOINTS {
            self.learnt.pop_front();
        }
        !wanted.is_empty()
    }

    /// On a TAP device neighbours are ours to look after, and not the kernel's: true when there is something to do.
    fn on_tap_moved(&self) -> bool {
        self.station.report();
        let due = self.renewed.elapsed() >= PROBE_EVERY;
        self.station.take_moved() || (due && tap(&self.facts.borrow()).is_some())
    }

    /// Finds all ways anew, and publishes them where they differ from before.
    async fn renew(&mut self) {
        let (kernel, facts) = (self.kernel.snapshot(), self.facts.borrow().clone());
        self.renewed = Instant::now();
        let homes = paths::homes(&self.settings.addresses, &facts, &kernel);
        let mut addresses: BTreeSet<IpAddr> = homes.iter().map(|home| home.address).collect();
        let mut found = BTreeMap::new();
        let targets: BTreeSet<IpAddr> = self.reach.endpoints.iter().chain(&self.learnt).copied().collect();
        if let Some(tap) = tap(&facts) {
            for target in targets
                .into_iter()
                .filter(|target| !tap.addresses.contains(target))
            {
                let mac = self.station.find(target);
                let hop = mac.and_then(|mac| paths::over_tap(target, mac, tap));
                found.insert(target, hop.into_iter().collect());
            }
            for group in &self.reach.groups {
                let hop = paths::over_tap(*group, Mac::of_group(*group), tap);
                found.insert(*group, hop.into_iter().collect());
            }
            addresses.extend(&tap.addresses);
            self.station.join(&self.reach.groups);
        } else {
            for target in targets {
                let hops = self.hops(target, &kernel, &facts).await;
                found.insert(target, hops);
            }
            for group in &self.reach.groups {
                let hop = paths::to_group(*group, &homes, &facts, &kernel);
                found.insert(*group, hop.into_iter().collect());
            }
        }
        self.groups.join(&self.reach.groups, &homes);
        let now = Some(Known {
            addresses,
            paths: found,
        });
        if now != self.published {
            self.published = now;
            self.publish();
        }
    }

    async fn hops(&mut self, target: IpAddr, kernel: &Snapshot, facts: &[Fact]) -> Vec<Hop> {
        if !self.routes.contains_key(&target) {
            let source = self
                .settings
                .addresses
                .iter()
                .find(|ip| ip.is_ipv4() == target.is_ipv4());
            let query = Query {
                src: source.copied(),
                ..Query::to(target)
            };
            match self.requests.resolve(&query).await {
                Ok(resolution) => drop(self.routes.insert(target, resolution)),
                // Unreachable, now: what changes that is told.
                Err(error) => {
                    tracing::debug!("no route to host {target}: {error}");
                    return Vec::new();
                }
            }
        }
        let ways = match self.routes.get(&target) {
            Some(resolution) => paths::ways(target, resolution, &self.settings.addresses, facts, kernel),
            None => Vec::new(),
        };
        let mut hops = Vec::new();
        for way in ways {
            match way {
                Way::Known { hop, ask } => {
                    hops.push(hop);
                    if let Some(asked) = ask {
                        self.probe(asked).await;
                    }
                }
                Way::Ask(asked) => self.probe(asked).await,
            }
        }
        hops
    }

    /// Asks the kernel to look for a neighbour, not too often. Its answer is a change of the table.
    async fn probe(&mut self, Asked { ifindex, neighbour }: Asked) {
        let now = Instant::now();
        let lately = |asked: &Instant| now.duration_since(*asked) < PROBE_EVERY;
        if self.probed.get(&(ifindex, neighbour)).is_some_and(lately) {
            return;
        }
        self.probed.retain(|_, asked| lately(asked));
        self.probed.insert((ifindex, neighbour), now);
        if let Err(error) = self.requests.probe(ifindex, neighbour).await {
            tracing::debug!("neighbour {neighbour} cannot be asked for: {error}");
        }
    }

    fn publish(&self) {
        let Some(Known { addresses, paths }) = &self.published else {
            return;
        };
        let encapsulation = self.settings.encapsulation.clone();
        let hops = paths.iter().map(|(target, hops)| (*target, hops.clone()));
        match Underlay::new(encapsulation, addresses.iter().copied(), hops) {
            // A worker that is gone needs no ways: the daemon is stopping.
            Ok(underlay) => drop(block_in_place(|| self.switch.set_underlay(Arc::new(underlay)))),
            Err(error) => tracing::error!("ways to other hosts stay as they were: {error}"),
        }
    }

    /// Tells the NICs what all uplinks carry; while there is none, what was told last.
    fn follow_mtu(&self, app: &App) {
        let facts = self.facts.borrow().clone();
        let Some(mtu) =
            paths::inner_mtu(&self.settings.addresses, &facts).filter(|_| self.settings.follow_mtu)
        else {
            return;
        };
        if let Err(error) = block_in_place(|| app.control().set_default_mtu(mtu)) {
            tracing::warn!("NICs are not told of the MTU {mtu}: {error}");
        }
    }
}

/// The TAP device, if that is the uplink: then it is the only one.
fn tap(facts: &[Fact]) -> Option<&Fact> {
    facts.iter().find(|fact| fact.tap && fact.joined)
}

/// Whether whom we send to may be different now.
fn concerns_reach(event: &EventKind) -> bool {
    !matches!(
        event,
        EventKind::NicState(..)
            | EventKind::GroupAdded(_)
            | EventKind::GroupChanged(..)
            | EventKind::GroupRemoved(_)
    )
}

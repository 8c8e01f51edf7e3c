//! A task that follows the next hops to other hosts: which hosts the model has to reach, by which
//! next hops the kernel reaches them, and what of that the workers are told
//! ([`Switch::set_underlay`]).
//!
//! # Theory of operation
//!
//! The task wakes when the kernel's tables change, when an uplink does, when the model does, and
//! when a worker asks for addresses that frames wait for and that are not in the model (learnt
//! ones). It then looks at everything that it has to reach: routes are asked of the kernel and kept
//! until a route, a rule, an address or a link changes; neighbours are read from the mirror, and
//! the kernel is asked to look for those it does not know, and to confirm those that have become
//! stale, so that the next hops of all these hosts are known before a frame is for them.
//! What has come out differently from before is published, many changes at once: no flow is decided
//! again for it.
//!
//! A host whose neighbour the kernel is looking for is not published: frames for it wait with the
//! workers. One that no route leads to is, without a next hop: frames for it are dropped.
//!
//! Where the uplink is a TAP device, all hosts are sought on it, by the [`Station`] that we are
//! there.
//!
//! Multicast groups are joined through the kernel ([`groups`]), and NICs without an MTU of their
//! own are told what the uplinks carry.

mod groups;
mod paths;
mod sought;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use control::{EventKind, Part, Reach};
use dataplane::Switch;
use dataplane::underlay::{Encapsulation, HOPS_MAX, Hop, Underlay};
use netlink::{Kinds, Query, Requests, Snapshot};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};
use tokio::task::block_in_place;
use uplink::{Fact, Station};
use wire::Mac;

use crate::app::App;
use crate::uplinks::Uplinks;
use groups::Groups;
use paths::{Asked, NextHop};
pub use paths::{inner_mtu, vlan_of};
use sought::Sought;

/// How often the workers are asked for addresses that they have no way to, should none of them have
/// called.
const LOOK: Duration = Duration::from_millis(50);
/// How often the kernel is asked to look for the same neighbour.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How often it is asked while a frame waits for the neighbour and the kernel does not say that it
/// is looking.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// So long the workers let frames wait for an address.
const WAIT: Duration = Duration::from_secs(3);
/// Changes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(5);

/// What the next hops are found by, and what they have in common.
pub struct UnderlayOptions {
    /// Our addresses (`-i`): the source of what is sent. None: what the kernel would take.
    pub addresses: Vec<IpAddr>,
    pub encapsulation: Encapsulation,
    /// NICs that say no MTU get what the uplinks carry: `-m` did not say another one.
    pub follow_mtu: bool,
}

/// The task's own.
pub struct NextHopTask {
    settings: UnderlayOptions,
    switch: Arc<Switch>,
    kernel: netlink::Watch,
    facts: watch::Receiver<Arc<[Fact]>>,
    station: Arc<Station>,
    requests: Requests,
    reach: Reach,
    sought: Sought,
    /// Neighbours that the kernel was asked to look for lately.
    probed: BTreeMap<(u32, IpAddr), Instant>,
    /// A worker has noted an address that it has no way to.
    called: Arc<Notify>,
    /// When all next hops were found last.
    renewed: Instant,
    /// When what tells of itself to nobody was looked at last.
    looked: Instant,
    groups: Groups,
    /// Hosts with more next hops than the workers take.
    crowded: BTreeSet<IpAddr>,
    published: Option<Known>,
}

/// What the workers were told.
#[derive(PartialEq, Eq)]
struct Known {
    /// Our own addresses, each with the VLANs that it is reached in; 0: none.
    endpoints: BTreeSet<(IpAddr, u16)>,
    /// The next hops to each endpoint and group; none to those that cannot be reached now. Those
    /// that are looked for are left out.
    paths: BTreeMap<IpAddr, Vec<Hop>>,
}

impl NextHopTask {
    /// Nothing is known yet. To be made in the network namespace of the uplinks.
    pub fn new(
        settings: UnderlayOptions,
        switch: Arc<Switch>,
        uplinks: &Uplinks,
    ) -> Result<NextHopTask, String> {
        let requests = Requests::new().map_err(|e| format!("routes cannot be asked for: {e}"))?;
        let called = Arc::new(Notify::new());
        let call = called.clone();
        switch.on_wanted(move || call.notify_one());
        Ok(NextHopTask {
            settings,
            switch,
            kernel: uplinks.kernel().watch(),
            facts: uplinks.watch(),
            station: uplinks.station(),
            requests,
            reach: Reach::default(),
            sought: Sought::default(),
            probed: BTreeMap::new(),
            called,
            renewed: Instant::now(),
            looked: Instant::now(),
            groups: Groups::default(),
            crowded: BTreeSet::new(),
            published: None,
        })
    }

    /// Finds the next hops to what is to be reached before the first frame moves, and to those
    /// whom the daemon before had learnt: until then none is known, nor are our own addresses, and
    /// the frames that are under way in an upgrade would be dropped, or wait for more room than
    /// there is.
    pub async fn prepare(&mut self, reach: Reach, learnt: &[IpAddr]) {
        self.sought.ask(learnt, &reach, Instant::now());
        self.reach = reach;
        // On a TAP device it is for the daemon to ask, which this process may not be yet.
        self.renew_by(Station::known, |_, _| {}).await;
    }

    /// Follows until the daemon stops.
    pub async fn follow(mut self, app: Weak<App>) {
        let Some(mut events) = app
            .upgrade()
            .map(|app| block_in_place(|| app.control().subscribe()))
        else {
            return;
        };
        loop {
            {
                let Some(app) = app.upgrade() else {
                    return;
                };
                self.reach = block_in_place(|| app.control().reach());
                self.follow_mtu(&app);
            }
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

    /// Waits for the kernel, an uplink or a frame to ask for something. True: the model is to be
    /// asked again, too. `None`: the kernel is not followed any more.
    async fn something_moved(&mut self) -> Option<bool> {
        // A guest that sends to who does not answer is no reason to look all the time.
        let (called, earliest) = (self.called.clone(), self.renewed + TOGETHER);
        let is_called = async || {
            called.notified().await;
            tokio::time::sleep_until(earliest.into()).await;
        };
        loop {
            tokio::select! {
                changed = self.kernel.changed() => match changed {
                    Ok((_, kinds)) => {
                        let of_routes = Kinds::LINKS
                            | Kinds::ADDRESSES
                            | Kinds::ROUTES
                            | Kinds::NEXTHOPS
                            | Kinds::RULES;
                        if kinds.any(of_routes) {
                            self.sought.routes.clear();
                            return Some(false);
                        }
                        if kinds.any(Kinds::NEIGHBOURS) {
                            return Some(false);
                        }
                    }
                    Err(error) => {
                        tracing::error!("next hops to other hosts do not follow the kernel any \
                                         more: {error}");
                        return None;
                    }
                },
                changed = self.facts.changed() => {
                    self.sought.routes.clear();
                    return changed.ok().map(|()| true);
                }
                () = is_called() => {
                    if self.take_wanted() {
                        return Some(false);
                    }
                }
                () = tokio::time::sleep_until((self.looked + LOOK).into()) => {
                    self.looked = Instant::now();
                    if self.take_wanted() | self.on_tap_moved() | self.somebody_waits() {
                        return Some(false);
                    }
                }
            }
        }
    }

    /// Takes up what frames wanted to go to; true when any of it has to be looked at: not what was,
    /// a moment ago.
    fn take_wanted(&mut self) -> bool {
        let wanted = self.switch.take_wanted();
        if wanted.is_empty() {
            return false;
        }
        let is_news = self.sought.ask(&wanted, &self.reach, Instant::now());
        is_news || self.renewed.elapsed() >= ASK_AGAIN
    }

    /// Frames wait for an address that was looked for a while ago: it is to be asked for again.
    fn somebody_waits(&mut self) -> bool {
        let mut looked_for = self.sought.looked_for(Instant::now());
        let is_found = |address| {
            let published = self.published.as_ref();
            published.is_some_and(|known| known.paths.contains_key(address))
        };
        self.renewed.elapsed() >= ASK_AGAIN && !looked_for.all(is_found)
    }

    /// On a TAP device neighbours are ours to look after, and not the kernel's: true when there is
    /// something to do.
    fn on_tap_moved(&self) -> bool {
        self.station.report();
        let due = self.renewed.elapsed() >= PROBE_EVERY;
        self.station.take_moved() || (due && tap(&self.facts.borrow()).is_some())
    }

    /// Finds all next hops anew, and publishes them where they differ from before.
    async fn renew(&mut self) {
        self.renew_by(Station::find, Station::join).await;
    }

    /// As [`renew`](Self::renew), on a TAP device by neighbours that are had by `find` and groups
    /// that are heard by `join`.
    async fn renew_by(
        &mut self,
        find: fn(&Station, IpAddr) -> Option<Mac>,
        join: fn(&Station, &BTreeSet<IpAddr>),
    ) {
        // Whatever has ended the waiting: a worker's call may have gone with it.
        self.take_wanted();
        let (kernel, facts) = (self.kernel.snapshot(), self.facts.borrow().clone());
        self.renewed = Instant::now();
        let homes = paths::homes(&self.settings.addresses, &facts, &kernel);
        let mut endpoints = paths::endpoints(&homes, &facts, &kernel);
        let mut found = BTreeMap::new();
        let crowded_before = std::mem::take(&mut self.crowded);
        let targets = self.sought.targets(&self.reach);
        if let Some(tap) = tap(&facts) {
            for target in targets
                .into_iter()
                .filter(|target| !tap.addresses.contains(target))
            {
                if let Some(mac) = find(&self.station, target) {
                    let hop = paths::over_tap(target, mac, tap);
                    found.insert(target, hop.into_iter().collect());
                }
            }
            for group in &self.reach.groups {
                let hop = paths::over_tap(*group, Mac::of_group(*group), tap);
                found.insert(*group, hop.into_iter().collect());
            }
            endpoints.extend(tap.addresses.iter().map(|address| (*address, 0)));
            join(&self.station, &self.reach.groups);
        } else {
            for target in targets {
                if let Some(hops) = self.hops(target, &kernel, &facts).await {
                    found.insert(target, hops);
                }
            }
            for group in &self.reach.groups {
                let hop = paths::to_group(*group, &homes, &facts, &kernel);
                if hop.is_some() || is_joined(&facts) {
                    found.insert(*group, hop.into_iter().collect());
                }
            }
        }
        self.groups.join(&self.reach.groups, &homes);
        let mut newly_crowded = self.crowded.difference(&crowded_before);
        if let Some(host) = newly_crowded.next() {
            let others = newly_crowded.count();
            tracing::warn!(
                "host {host}, and {others} others, can be reached by more than {HOPS_MAX} next \
                 hops: those of the largest weight are used"
            );
        }
        let is_found = |host: &IpAddr| found.get(host).is_some_and(|hops| !hops.is_empty());
        self.sought.forget_missing(is_found, self.renewed);
        let now = Some(Known {
            endpoints,
            paths: found,
        });
        if now != self.published {
            self.published = now;
            self.publish();
        }
    }

    /// The next hops to a host, none when there is no route. `None`: it may be reached any moment.
    async fn hops(
        &mut self,
        target: IpAddr,
        kernel: &Snapshot,
        facts: &[Fact],
    ) -> Option<Vec<Hop>> {
        let unreachable = || is_joined(facts).then(Vec::new);
        if !self.sought.routes.contains_key(&target) {
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
                Ok(resolution) => drop(self.sought.routes.insert(target, resolution)),
                // Unreachable, now: what changes that is told.
                Err(error) => {
                    tracing::debug!("no route to host {target}: {error}");
                    return unreachable();
                }
            }
        }
        let next_hops = match self.sought.routes.get(&target) {
            Some(resolution) => {
                paths::next_hops(target, resolution, &self.settings.addresses, facts, kernel)
            }
            None => Vec::new(),
        };
        if next_hops.is_empty() {
            return unreachable();
        }
        let mut hops = Vec::new();
        for next_hop in next_hops {
            match next_hop {
                NextHop::Known { hop, ask } => {
                    hops.push(hop);
                    if let Some(asked) = ask {
                        self.probe(asked, PROBE_EVERY).await;
                    }
                }
                NextHop::Ask(asked) => {
                    // The kernel sends no message about an entry that is being looked for: it may
                    // be there, or deleted again.
                    let has_failed = kernel.neighbour(asked.ifindex, asked.neighbour).is_some();
                    let every = if has_failed { PROBE_EVERY } else { ASK_AGAIN };
                    self.probe(asked, every).await;
                }
            }
        }
        if paths::keep_heaviest(&mut hops) {
            self.crowded.insert(target);
        }
        (!hops.is_empty()).then_some(hops)
    }

    /// Asks the kernel to look for a neighbour, not too often. Its answer is a change of the table.
    async fn probe(&mut self, Asked { ifindex, neighbour }: Asked, every: Duration) {
        let now = Instant::now();
        let lately = |asked: &Instant, every| now.duration_since(*asked) < every;
        let last = self.probed.get(&(ifindex, neighbour));
        if last.is_some_and(|asked| lately(asked, every)) {
            return;
        }
        self.probed.retain(|_, asked| lately(asked, PROBE_EVERY));
        self.probed.insert((ifindex, neighbour), now);
        if let Err(error) = self.requests.probe(ifindex, neighbour).await {
            tracing::debug!("neighbour {neighbour} cannot be asked for: {error}");
        }
    }

    fn publish(&self) {
        let Some(Known { endpoints, paths }) = &self.published else {
            return;
        };
        let encapsulation = self.settings.encapsulation.clone();
        let hops = paths.iter().map(|(target, hops)| (*target, hops.clone()));
        match Underlay::new(encapsulation, endpoints.iter().copied(), hops) {
            // A worker that is gone needs no next hops: the daemon is stopping.
            Ok(underlay) => drop(block_in_place(|| {
                self.switch.set_underlay(Arc::new(underlay))
            })),
            Err(error) => tracing::error!("next hops to other hosts stay as they were: {error}"),
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

/// An uplink is there. While none is, there is no telling who can be reached.
fn is_joined(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| fact.joined)
}

/// The TAP device, if that is the uplink: then it is the only one.
fn tap(facts: &[Fact]) -> Option<&Fact> {
    facts.iter().find(|fact| fact.tap && fact.joined)
}

/// Whether the hosts that we send to may be different after this event.
fn concerns_reach(event: &EventKind) -> bool {
    let harmless = matches!(
        event,
        EventKind::NicState(..)
            | EventKind::GroupAdded(_)
            | EventKind::GroupChanged(_)
            | EventKind::GroupRemoved(_)
    );
    event.part() == Part::Switch && !harmless
}

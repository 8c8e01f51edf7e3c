//! What there is to see of routes and neighbours: the kernel's, and what the program's tables make
//! of each. Plain data for whoever prints it or sends it on.

use std::net::IpAddr;
use std::ops::Bound;

use ipnet::IpNet;
use netlink::{Hop, Neighbour, Route, RouteKey, RouteSet, Snapshot};
use wire::Mac;

use crate::fib::Prefix;
use crate::interfaces::View;
use crate::layout::Counter;
use crate::paths::Reach;
use crate::router::Router;
use crate::spec::Spec;

/// The kernel's table of this host's own addresses.
pub const LOCAL_TABLE: u32 = 255;
/// Routes that one page looks at: some milliseconds.
const PAGE: usize = 4096;

/// What becomes of packets whose longest match a route is. The texts are sentences without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Forwarded by the program, to the hops that are `fast`.
    Fast,
    /// Forwarded by the program to where the kernel's lookup says.
    Lookup(String),
    /// Handed to the kernel.
    Kernel(String),
    /// Dropped, as the kernel would.
    Drop,
    /// No packet takes it.
    Unused(String),
}

/// A route of the kernel's and what becomes of its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteView {
    /// What tells it from others.
    pub key: RouteKey,
    /// The route in the kernel's table.
    pub route: Route,
    /// Its next hops, those of a next-hop object too.
    pub hops: Vec<HopView>,
    /// What the tables make of it.
    pub treatment: Treatment,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopView {
    /// The next hop in the kernel's table.
    pub hop: Hop,
    /// The program forwards to it; without a gateway: to neighbours that are known.
    pub fast: bool,
    /// Where frames are sent.
    pub mac: Option<Mac>,
}

/// Which routes are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// This prefix and longer ones in it.
    pub within: Option<IpNet>,
    /// One table; without: all but `local`, unless `within` asks for less.
    pub table: Option<u32>,
}

impl Selection {
    fn takes(&self, key: &RouteKey) -> bool {
        let table = match self.table {
            Some(table) => key.table == table,
            None => key.table != LOCAL_TABLE || self.within.is_some(),
        };
        table && self.within.is_none_or(|within| within.contains(&key.dst))
    }
}

/// One page of the routes that were asked for.
#[derive(Debug)]
pub struct Page {
    /// In the order of their keys.
    pub routes: Vec<RouteView>,
    /// Go on behind this one; `None`: that was all.
    pub next: Option<RouteKey>,
}

impl Router {
    /// The routes behind `after`, as many as can be looked at in a moment.
    pub fn routes(&self, selection: &Selection, after: Option<RouteKey>) -> Page {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Page {
            routes: Vec::new(),
            next: None,
        };
        let some = self
            .snapshot
            .routes
            .range((from, Bound::Unbounded))
            .take(PAGE);
        for (looked, (key, set)) in some.enumerate() {
            page.next = (looked + 1 == PAGE).then_some(*key);
            if selection.takes(key) {
                page.routes.extend(self.views(key, set));
            }
        }
        page
    }

    /// The route that packets to an address take.
    pub fn route_to(&self, ip: IpAddr) -> Option<RouteView> {
        let at = usize::from(ip.is_ipv6());
        let (fib, plan) = (&self.fibs[at], &self.plans[at]);
        let host = Prefix::host(ip);
        for len in (0..=host.len).rev() {
            if fib.path(host.cut(len)).is_none() {
                continue;
            }
            // A neighbour has a path too, and its route is a shorter one.
            let net = IpNet::new(ip, len).ok()?.trunc();
            let found = plan
                .tables
                .iter()
                .find_map(|table| first(&self.snapshot, *table, net));
            if let Some((key, set)) = found {
                let view = self.view(key, set.routes.first()?);
                return Some(self.narrowed(view, ip));
            }
        }
        None
    }

    /// All routes of one key.
    pub fn views(&self, key: &RouteKey, set: &RouteSet) -> Vec<RouteView> {
        set.routes
            .iter()
            .map(|route| self.view(key, route))
            .collect()
    }

    /// A route, whether it is still there or not.
    pub fn view(&self, key: &RouteKey, route: &Route) -> RouteView {
        let at = usize::from(key.dst.addr().is_ipv6());
        let path = self.fibs[at].path(Prefix::from_net(key.dst));
        let treatment = self.treatment(at, key, path);
        let fast = treatment == Treatment::Fast;
        let macs: Vec<Option<Mac>> = path.map_or(Vec::new(), |path| {
            let hops = self.paths.hops(path);
            hops.map(|hop| hop.map(|hop| Mac(hop.destination)))
                .collect()
        });
        let hop = |(index, hop): (usize, Hop)| {
            let mac = macs.get(index).copied().flatten().filter(|_| fast);
            let known = mac.is_some() || hop.gateway.is_none();
            HopView {
                fast: fast && known && self.leaves_by(hop.ifindex),
                mac,
                hop,
            }
        };
        let hops = self.snapshot.hops(route);
        RouteView {
            key: *key,
            route: route.clone(),
            hops: hops.into_iter().enumerate().map(hop).collect(),
            treatment,
        }
    }

    /// Whether the program sends to a neighbour.
    pub fn forwards_to(&self, neighbour: &Neighbour) -> bool {
        !neighbour.ip.is_multicast() && self.hop_of(neighbour.ifindex, neighbour.ip).is_ok()
    }

    fn hop_of(&self, ifindex: u32, ip: IpAddr) -> Result<Mac, Counter> {
        let view = View {
            snapshot: &self.snapshot,
            interfaces: &self.interfaces,
            at_tc: self.at_tc,
        };
        view.hop(ifindex, ip, None).map(|hop| Mac(hop.destination))
    }

    /// A connected network's route as it is for one address in it.
    fn narrowed(&self, mut view: RouteView, ip: IpAddr) -> RouteView {
        if view.treatment == Treatment::Fast
            && let [hop] = view.hops.as_mut_slice()
            && hop.hop.gateway.is_none()
        {
            match self.hop_of(hop.hop.ifindex, ip) {
                Ok(mac) => hop.mac = Some(mac),
                Err(reason) => {
                    hop.fast = false;
                    view.treatment = Treatment::Kernel(reason.description().into());
                }
            }
        }
        view
    }

    fn treatment(&self, at: usize, key: &RouteKey, path: Option<u32>) -> Treatment {
        let mut hooks = self.firewall.hooks.iter();
        let judged_here = self.acl.judges()[at] && !self.acl.judges_all();
        if let Some(hook) = hooks.find(|hook| [hook.v4, hook.v6][at] && !judged_here) {
            return Treatment::Kernel(format!("{hook} sees forwarded packets"));
        }
        if let Some(why) = self.why_ask(at) {
            return Treatment::Lookup(why);
        }
        let tables = &self.plans[at].tables;
        let Some(position) = tables.iter().position(|table| *table == key.table) else {
            return Treatment::Unused(format!("no rule leads to table {}", key.table));
        };
        let prefix = Prefix::from_net(key.dst);
        let answers = |table: &&u32| {
            let found = self.fibs[at].match_in(**table, prefix, &self.snapshot);
            matches!(found, Some((_, Some(_))))
        };
        if let Some(table) = tables[..position].iter().find(answers) {
            return Treatment::Unused(format!("table {table} is looked up first and has a route"));
        }
        let first = first(&self.snapshot, key.table, key.dst).map(|(first, _)| *first);
        match first.filter(|first| first != key) {
            Some(RouteKey { tos, metric, .. }) if tos == key.tos => {
                return Treatment::Unused(format!("the one of metric {metric} goes first"));
            }
            _ => {}
        }
        match path.and_then(|path| Some((path, &self.paths.key(path)?.spec))) {
            Some((path, spec)) => self.by_spec(path, spec),
            None => Treatment::Unused("it is thrown to the next table".into()),
        }
    }

    fn by_spec(&self, path: u32, spec: &Spec) -> Treatment {
        let kernel = |reason: Counter| Treatment::Kernel(reason.description().into());
        match spec {
            Spec::Pass(reason) => kernel(*reason),
            Spec::Drop => Treatment::Drop,
            Spec::Ask => Treatment::Lookup(
                "it asks for more than the destination, or has more next hops than the table takes"
                    .into(),
            ),
            Spec::OnLink { ifindex, .. } if self.leaves_by(*ifindex) => Treatment::Fast,
            Spec::OnLink { .. } => kernel(Counter::Elsewhere),
            Spec::Via { .. } if self.paths.hops(path).any(|hop| hop.is_some()) => Treatment::Fast,
            Spec::Via { members, .. } => {
                let reason = members
                    .iter()
                    .find_map(|via| self.hop_of(via.ifindex, via.neighbour).err());
                kernel(reason.unwrap_or(Counter::Neighbour))
            }
        }
    }

    /// The router sends by this interface.
    fn leaves_by(&self, ifindex: u32) -> bool {
        self.interfaces
            .get(&ifindex)
            .is_some_and(|interface| interface.is_sent_by(&self.snapshot, self.at_tc))
    }
}

/// The route of exactly this prefix that goes first in a table.
fn first(snapshot: &Snapshot, table: u32, dst: IpNet) -> Option<(&RouteKey, &RouteSet)> {
    let key = |tos, metric| RouteKey {
        table,
        dst,
        tos,
        metric,
    };
    let mut range = snapshot.routes.range(key(0, 0)..=key(u8::MAX, u32::MAX));
    range.next().map(|(key, set)| (key, &**set))
}

//! The tables being kept: what a message changes in them, and what a finished dump replaces. No
//! socket, no clock. Owned by the mirror's task.

use crate::decode;
use crate::message::Message;
use crate::mirror::Kinds;
use crate::model::*;
use crate::resync::What;
use crate::uapi::*;
use imbl::OrdMap;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// How many unused route sets may lie around before they are swept.
const SWEEP_AT: usize = 4096;

/// A snapshot that can be changed, and what there is to doubt about it.
#[derive(Debug, Default)]
pub struct Tables {
    pub now: Snapshot,
    sets: RouteSets,
    /// They are filled by a dump, which lists everything once, in the kernel's order.
    listed: bool,
    /// What the kernel may have changed without saying so.
    pub doubt: BTreeSet<What>,
}

/// Equal sets of routes are one: a million routes have a few hundred.
#[derive(Clone, Debug, Default)]
struct RouteSets {
    sets: HashSet<Arc<RouteSet>>,
    sweep_at: usize,
}

impl RouteSets {
    /// The one that is equal to `set`.
    fn one(&mut self, set: &Arc<RouteSet>) -> Arc<RouteSet> {
        if let Some(known) = self.sets.get(set) {
            return known.clone();
        }
        if self.sets.len() >= self.sweep_at.max(SWEEP_AT) {
            self.sets.retain(|set| Arc::strong_count(set) > 1);
            self.sweep_at = self.sets.len() * 2;
        }
        self.sets.insert(set.clone());
        set.clone()
    }
}

impl Tables {
    /// Takes in one message of a group or a dump. Says what it changed.
    pub fn apply(&mut self, message: &Message) -> Kinds {
        self.change(message).unwrap_or(Kinds::NONE)
    }

    fn change(&mut self, message: &Message) -> Option<Kinds> {
        let now = &mut self.now;
        match message.kind {
            RTM_NEWLINK => {
                let link = decode::link(message)?;
                let state = |link: &Link| (link.up, link.carrier, link.master);
                let before = now.links.get(&link.index);
                if before.is_some_and(|before| state(before) != state(&link)) {
                    self.doubt_ways();
                }
                put(&mut self.now.links, link.index, Arc::new(link)).then_some(Kinds::LINKS)
            }
            RTM_DELLINK => {
                let link = decode::link(message)?;
                now.links.remove(&link.index)?;
                self.doubt_ways();
                Some(Kinds::LINKS)
            }
            RTM_NEWADDR => {
                let address = decode::address(message)?;
                let key = (address.ifindex, address.ip);
                put(&mut now.addresses, key, Arc::new(address)).then_some(Kinds::ADDRESSES)
            }
            RTM_DELADDR => {
                let address = decode::address(message)?;
                now.addresses.remove(&(address.ifindex, address.ip))?;
                self.doubt.insert(What::Routes(Family::of(address.ip)));
                Some(Kinds::ADDRESSES)
            }
            RTM_NEWROUTE => {
                let (key, route) = decode::route(message)?;
                self.add_route(key, route, message.flags)
            }
            RTM_DELROUTE => {
                let (key, route) = decode::route(message)?;
                self.remove_route(key, &route)
            }
            RTM_NEWNEXTHOP => {
                let object = decode::nexthop(message)?;
                put(&mut now.nexthops, object.id, Arc::new(object)).then_some(Kinds::NEXTHOPS)
            }
            RTM_DELNEXTHOP => {
                let object = decode::nexthop(message)?;
                now.nexthops.remove(&object.id)?;
                self.doubt_ways();
                Some(Kinds::NEXTHOPS)
            }
            RTM_NEWRULE => {
                let rule = decode::rule(message)?;
                if !self.listed && now.rules.contains(&rule) {
                    // It is told again, or is one more that looks alike: a dump knows how many.
                    self.doubt.insert(What::Rules(rule.family));
                    return None;
                }
                let rules = Arc::make_mut(&mut now.rules);
                let order = |rule: &Rule| (rule.family, rule.priority);
                let at = rules.partition_point(|other| order(other) <= order(&rule));
                rules.insert(at, rule);
                Some(Kinds::RULES)
            }
            RTM_DELRULE => {
                let rule = decode::rule(message)?;
                // Another may look alike, and a dump may have left this one out already: the next
                // dump tells what is left.
                self.doubt.insert(What::Rules(rule.family));
                let at = now.rules.iter().position(|other| *other == rule)?;
                Arc::make_mut(&mut now.rules).remove(at);
                Some(Kinds::RULES)
            }
            RTM_NEWNEIGH => {
                let neighbour = decode::neighbour(message)?;
                let key = (neighbour.ifindex, neighbour.ip);
                put(&mut now.neighbours, key, neighbour).then_some(Kinds::NEIGHBOURS)
            }
            RTM_DELNEIGH => {
                let neighbour = decode::neighbour(message)?;
                now.neighbours.remove(&(neighbour.ifindex, neighbour.ip))?;
                Some(Kinds::NEIGHBOURS)
            }
            RTM_NEWNETCONF => {
                let before = |key: &_| now.settings.get(key).copied().unwrap_or_default();
                let (key, settings) = decode::settings(message, before)?;
                put(&mut now.settings, key, settings).then_some(Kinds::SETTINGS)
            }
            RTM_DELNETCONF => {
                let (key, _) = decode::settings(message, |_| ForwardingSettings::default())?;
                now.settings.remove(&key)?;
                Some(Kinds::SETTINGS)
            }
            _ => None,
        }
    }

    /// Routes and next-hop objects go with their interface when it goes down or to a VRF, objects
    /// with its carrier too, and routes with their object. When it is up again, all that was to go
    /// has gone.
    fn doubt_ways(&mut self) {
        self.doubt.extend([
            What::NextHops,
            What::Routes(Family::V4),
            What::Routes(Family::V6),
        ]);
    }

    /// A new route among those of its key, where the kernel puts it.
    fn add_route(&mut self, key: RouteKey, route: Route, flags: u16) -> Option<Kinds> {
        let Some(before) = self.now.routes.get(&key) else {
            return self.set_routes(key, vec![route]);
        };
        if before.routes.contains(&route) {
            return None;
        }
        let mut routes = before.routes.clone();
        // IPv6 joins routes of one key that have gateways to one multipath route, and tells of all
        // of it.
        let joined = |other: &Route| {
            key.dst.addr().is_ipv6()
                && !other.hops.is_empty()
                && other.hops.iter().all(|hop| route.hops.contains(hop))
        };
        if let Some(at) = routes.iter().position(joined) {
            routes[at] = route;
        } else if flags & NLM_F_REPLACE != 0 {
            routes[0] = route;
        } else if self.listed || flags & NLM_F_APPEND != 0 || key.dst.addr().is_ipv6() {
            routes.push(route);
        } else {
            routes.insert(0, route);
        }
        self.set_routes(key, routes)
    }

    /// A route is gone: a whole one, or a hop of IPv6's multipath.
    fn remove_route(&mut self, key: RouteKey, route: &Route) -> Option<Kinds> {
        let before = self.now.routes.get(&key)?;
        let mut routes = before.routes.clone();
        if let Some(at) = routes.iter().position(|other| other == route) {
            routes.remove(at);
        } else if let Some(other) = routes.iter_mut().find(|other| has_hops(other, route)) {
            other.hops.retain(|hop| !same_hops(hop, route));
        } else {
            // Told of something else than we know: ask for all of it.
            self.doubt.insert(What::Routes(Family::of(key.dst.addr())));
            return None;
        }
        self.set_routes(key, routes)
    }

    fn set_routes(&mut self, key: RouteKey, routes: Vec<Route>) -> Option<Kinds> {
        if routes.is_empty() {
            self.now.routes.remove(&key);
        } else {
            let set = self.sets.one(&Arc::new(RouteSet { routes }));
            self.now.routes.insert(key, set);
        }
        Some(Kinds::ROUTES)
    }

    /// Empty tables for a dump, whose route sets are ours where they are equal.
    pub fn for_dump(&self) -> Tables {
        Tables {
            sets: self.sets.clone(),
            listed: true,
            ..Tables::default()
        }
    }

    /// Puts what a whole dump found in place of what was here. Entries that are equal stay as they
    /// are, so that snapshots from before and after have them in common.
    pub fn replace(&mut self, what: What, fresh: &Tables) -> Kinds {
        let (old, new) = (&mut self.now, &fresh.now);
        let changed = match what {
            What::Links => merge(&mut old.links, &new.links, |_| true, Clone::clone),
            What::Addresses(family) => {
                let within = |key: &(u32, IpAddr)| Family::of(key.1) == family;
                merge(&mut old.addresses, &new.addresses, within, Clone::clone)
            }
            What::NextHops => merge(&mut old.nexthops, &new.nexthops, |_| true, Clone::clone),
            What::Routes(family) => {
                let within = |key: &RouteKey| Family::of(key.dst.addr()) == family;
                // The groups told of equal ones while the dump was read.
                let one = |set: &_| self.sets.one(set);
                merge(&mut old.routes, &new.routes, within, one)
            }
            What::Rules(family) => {
                let others = old.rules.iter().filter(|rule| rule.family != family);
                let found = new.rules.iter().filter(|rule| rule.family == family);
                let mut rules: Vec<Rule> = others.chain(found).cloned().collect();
                // Stable: the dump's order holds among equals.
                rules.sort_by_key(|rule| (rule.family, rule.priority));
                let changed = rules != *old.rules;
                old.rules = Arc::new(rules);
                changed
            }
            What::Neighbours(family) => {
                let within = |key: &(u32, IpAddr)| Family::of(key.1) == family;
                merge(&mut old.neighbours, &new.neighbours, within, Clone::clone)
            }
            What::Settings(family) => {
                let within = |key: &(Family, i32)| key.0 == family;
                merge(&mut old.settings, &new.settings, within, Clone::clone)
            }
        };
        if changed { what.kinds() } else { Kinds::NONE }
    }
}

/// Whether `route`'s hops are some of `other`'s, which has more, and all else is equal.
fn has_hops(other: &Route, route: &Route) -> bool {
    let rest = Route {
        hops: Vec::new(),
        ..other.clone()
    } == Route {
        hops: Vec::new(),
        ..route.clone()
    };
    rest && !route.hops.is_empty()
        && other.hops.len() > route.hops.len()
        && route
            .hops
            .iter()
            .all(|hop| other.hops.iter().any(|o| same_next_hop(o, hop)))
}

fn same_hops(hop: &Hop, route: &Route) -> bool {
    route.hops.iter().any(|gone| same_next_hop(hop, gone))
}

/// A lone hop is told without its weight.
fn same_next_hop(a: &Hop, b: &Hop) -> bool {
    a.gateway == b.gateway && a.ifindex == b.ifindex
}

/// Whether that changed anything.
fn put<K: Ord + Clone, V: PartialEq + Clone>(map: &mut OrdMap<K, V>, key: K, value: V) -> bool {
    if map.get(&key) == Some(&value) {
        return false;
    }
    map.insert(key, value);
    true
}

/// Makes the part of `old` that is `within` equal to `new`, by what `copy` makes of new values;
/// whether that changed anything.
fn merge<K: Ord + Clone, V: PartialEq + Clone>(
    old: &mut OrdMap<K, V>,
    new: &OrdMap<K, V>,
    within: impl Fn(&K) -> bool,
    mut copy: impl FnMut(&V) -> V,
) -> bool {
    let gone: Vec<K> = old
        .keys()
        .filter(|key| within(key) && !new.contains_key::<K>(key))
        .cloned()
        .collect();
    for key in &gone {
        old.remove(key);
    }
    let mut changed = !gone.is_empty();
    for (key, value) in new.iter().filter(|(key, _)| within(key)) {
        if old.get(key) != Some(value) {
            old.insert(key.clone(), copy(value));
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Request, messages};

    fn apply(tables: &mut Tables, bytes: &[u8]) -> Kinds {
        let all: Vec<Kinds> = messages(bytes).map(|one| tables.apply(&one)).collect();
        assert_eq!(all.len(), 1);
        all[0]
    }

    /// Says that `to`/32 goes by `via`.
    fn told_route(to: &str, via: &str, flags: u16) -> Vec<u8> {
        route_message(RTM_NEWROUTE, flags, to, via).finish()
    }

    fn route_message(message: u16, flags: u16, to: &str, via: &str) -> Request {
        let (family, main) = (Family::V4.code(), RT_TABLE_MAIN);
        let (protocol, scope, kind) = (RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST);
        let fixed = [family, 32, 0, 0, main, protocol, scope, kind, 0, 0, 0, 0];
        Request::new(message, flags, 1, &fixed)
            .with_ip(RTA_DST, to.parse().expect("an address"))
            .with_ip(RTA_GATEWAY, via.parse().expect("an address"))
    }

    fn add_route(tables: &mut Tables, to: &str) {
        let told = told_route(to, "192.0.2.1", 0);
        assert_eq!(apply(tables, &told), Kinds::ROUTES);
    }

    /// Takes in that interface 7 has these IFF_* flags now, and says what is in doubt after that.
    fn doubt_after(tables: &mut Tables, kind: u16, flags: u32) -> BTreeSet<What> {
        let mut fixed = [0; 16];
        fixed[4..8].copy_from_slice(&7u32.to_ne_bytes());
        fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
        apply(tables, &Request::new(kind, 0, 1, &fixed).finish());
        std::mem::take(&mut tables.doubt)
    }

    #[test]
    fn routes_and_objects_are_doubted_with_the_state_of_an_interface() {
        const CARRIER: u32 = IFF_UP | IFF_LOWER_UP;
        let ways = BTreeSet::from([
            What::NextHops,
            What::Routes(Family::V4),
            What::Routes(Family::V6),
        ]);
        let mut tables = Tables::default();
        let mut told = |kind, flags| doubt_after(&mut tables, kind, flags);
        assert_eq!(told(RTM_NEWLINK, CARRIER), BTreeSet::new(), "it is new");
        assert_eq!(told(RTM_NEWLINK, IFF_UP), ways, "the carrier is lost");
        assert_eq!(told(RTM_NEWLINK, CARRIER), ways, "the carrier is back");
        assert_eq!(told(RTM_NEWLINK, CARRIER | IFF_NOARP), BTreeSet::new());
        assert_eq!(told(RTM_NEWLINK, 0), ways, "down");
        assert_eq!(told(RTM_NEWLINK, CARRIER), ways, "up");
        assert_eq!(told(RTM_DELLINK, CARRIER), ways, "gone");
    }

    #[test]
    fn routes_of_one_key_are_in_the_order_that_the_kernel_uses_them() {
        let gateways = |tables: &Tables| -> Vec<String> {
            let routes = tables.now.routes.values().flat_map(|set| &set.routes);
            let gateway = |route: &Route| route.hops[0].gateway.map(|ip| ip.to_string());
            routes.filter_map(gateway).collect()
        };
        let told = |via, flags| told_route("10.0.0.1", via, flags);
        let mut tables = Tables::default();
        let mut dump = tables.for_dump();
        for via in ["192.0.2.1", "192.0.2.2"] {
            apply(&mut dump, &told(via, 0));
        }
        tables.replace(What::Routes(Family::V4), &dump);
        assert_eq!(gateways(&tables), ["192.0.2.1", "192.0.2.2"], "as listed");
        apply(&mut tables, &told("192.0.2.3", NLM_F_CREATE));
        apply(&mut tables, &told("192.0.2.4", NLM_F_APPEND));
        let all = ["192.0.2.3", "192.0.2.1", "192.0.2.2", "192.0.2.4"];
        assert_eq!(gateways(&tables), all, "as told");
    }

    #[test]
    fn routes_that_differ_in_what_is_not_told_are_two() {
        const MPLS: u16 = 1;
        const RTAX_WINDOW: u8 = 3;
        let told = |message, label: u8, window: u8| {
            let metric = [8, 0, RTAX_WINDOW, 0, window, 0, 0, 0];
            route_message(message, NLM_F_APPEND, "10.0.0.1", "192.0.2.1")
                .with(RTA_METRICS, &metric)
                .with(RTA_ENCAP_TYPE, &MPLS.to_ne_bytes())
                .with(RTA_ENCAP, &[8, 0, 1, 0, 0, 1, label, 0])
                .finish()
        };
        let mut tables = Tables::default();
        let left = |tables: &Tables| {
            let sets = tables.now.routes.values();
            sets.map(|set| set.routes.len()).sum::<usize>()
        };
        let all = [(1, 1), (2, 1), (2, 2)];
        for (label, window) in all {
            let new = told(RTM_NEWROUTE, label, window);
            assert_eq!(apply(&mut tables, &new), Kinds::ROUTES);
            assert_eq!(apply(&mut tables, &new), Kinds::NONE, "told twice");
        }
        for (gone, (label, window)) in all.into_iter().enumerate() {
            assert_eq!(left(&tables), all.len() - gone);
            apply(&mut tables, &told(RTM_DELROUTE, label, window));
        }
        assert_eq!((left(&tables), &tables.doubt), (0, &BTreeSet::new()));
    }

    /// Says that rule 100 is there for packets to that port, or is gone.
    fn told_rule(message: u16, port: u16) -> Vec<u8> {
        const FRA_DPORT_RANGE: u16 = 24;
        let (to_table, table) = (1, 100);
        let fixed = [
            Family::V4.code(),
            0,
            0,
            0,
            table,
            0,
            0,
            to_table,
            0,
            0,
            0,
            0,
        ];
        let ports = [port.to_ne_bytes(), port.to_ne_bytes()].concat();
        Request::new(message, 0, 1, &fixed)
            .with(FRA_PRIORITY, &100u32.to_ne_bytes())
            .with(FRA_DPORT_RANGE, &ports)
            .finish()
    }

    #[test]
    fn rules_that_look_alike_are_counted_by_a_dump() {
        let doubt = BTreeSet::from([What::Rules(Family::V4)]);
        for [first, second] in [[80, 443], [80, 80]] {
            let dump = |tables: &mut Tables, ports: &[u16]| {
                let mut dump = tables.for_dump();
                for port in ports {
                    apply(&mut dump, &told_rule(RTM_NEWRULE, *port));
                }
                tables.replace(What::Rules(Family::V4), &dump);
                tables.now.rules.len()
            };
            let mut tables = Tables::default();
            apply(&mut tables, &told_rule(RTM_NEWRULE, first));
            assert_eq!(tables.doubt, BTreeSet::new());
            apply(&mut tables, &told_rule(RTM_NEWRULE, second));
            assert_eq!(std::mem::take(&mut tables.doubt), doubt, "one or two");
            assert_eq!(dump(&mut tables, &[first, second]), 2);
            apply(&mut tables, &told_rule(RTM_DELRULE, first));
            assert_eq!(tables.now.rules.len(), 1);
            tables.doubt.clear();
            // The dump has seen the deletion that is told while it is read.
            assert_eq!(dump(&mut tables, &[second]), 1);
            apply(&mut tables, &told_rule(RTM_DELRULE, first));
            assert_eq!(tables.doubt, doubt, "the other one may be left");
        }
    }

    #[test]
    fn routes_of_a_dump_and_of_the_groups_meanwhile_are_stored_once() {
        let mut tables = Tables::default();
        let mut dump = tables.for_dump();
        add_route(&mut dump, "10.0.0.1");
        add_route(&mut dump, "10.0.0.2");
        add_route(&mut tables, "10.0.0.2");
        let routes = What::Routes(Family::V4);
        assert_eq!(tables.replace(routes, &dump), Kinds::ROUTES);
        add_route(&mut tables, "10.0.0.3");
        let sets: Vec<_> = tables.now.routes.values().collect();
        assert_eq!(sets.len(), 3);
        assert!(sets.iter().all(|set| Arc::ptr_eq(set, sets[0])));
    }
}

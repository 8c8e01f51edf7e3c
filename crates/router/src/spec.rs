//! What a route asks for, in the router's terms: the bridge from the kernel's tables to paths. No
//! state.

use std::net::IpAddr;

use netlink::{Family, Hop, Route, RouteKind, RouteSet, Snapshot};

use crate::layout::{Counter, PATH_MEMBERS};

/// What to do with packets of a prefix. Equal ones share a path, however many routes ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// The kernel's, for this reason.
    Pass(Counter),
    /// Dropped without a word.
    Drop,
    /// The kernel's lookup decides.
    Ask,
    /// To the destination itself, a neighbour on this interface; each one that is known has a path
    /// of its own.
    OnLink {
        /// The interface.
        ifindex: u32,
        /// The route's MTU, if it has one.
        mtu: Option<u32>,
    },
    /// To one of these gateways.
    Via {
        /// In the kernel's order.
        members: Vec<Via>,
        /// The route's MTU, if it has one.
        mtu: Option<u32>,
    },
}

/// One next hop with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Via {
    /// The interface.
    pub ifindex: u32,
    /// The neighbour.
    pub neighbour: IpAddr,
    /// Its share, from 1.
    pub weight: u32,
}

impl Spec {
    /// What the routes of one destination and table ask for: the one of the lowest metric among
    /// `sets`, which are in the order of type of service and metric. `None` is "throw": go on with
    /// the next table.
    pub fn of(sets: &[(u8, &RouteSet)], family: Family, snapshot: &Snapshot) -> Option<Spec> {
        // A type of service or a source selects among routes of one prefix, whatever their metrics:
        // more than a destination says.
        let selects = |(tos, set): &(u8, &RouteSet)| {
            *tos != 0 || set.routes.iter().any(|route| route.src.is_some())
        };
        if sets.iter().any(selects) {
            return Some(Spec::Ask);
        }
        let Some((_, set)) = sets.first() else {
            return Some(Spec::Pass(Counter::NoRoute));
        };
        // Several of IPv6 under one key: the kernel chooses by its neighbours' states.
        if family == Family::V6 && set.routes.len() > 1 {
            return Some(Spec::Ask);
        }
        let route = &set.routes[0];
        match route.kind {
            RouteKind::Unicast => Some(Self::unicast(route, snapshot)),
            RouteKind::Local | RouteKind::Anycast => Some(Spec::Pass(Counter::Local)),
            RouteKind::Broadcast | RouteKind::Multicast => Some(Spec::Pass(Counter::Destination)),
            RouteKind::Blackhole => Some(Self::blackhole(route, snapshot)),
            RouteKind::Unreachable | RouteKind::Prohibit => Some(Spec::Pass(Counter::Refused)),
            RouteKind::Throw => None,
            RouteKind::Other(_) => Some(Spec::Pass(Counter::Beyond)),
        }
    }

    /// A route is told to be a blackhole if its object is one at that moment, and nothing is told
    /// of the route when the object becomes another: which of both it was, the kernel knows.
    fn blackhole(route: &Route, snapshot: &Snapshot) -> Spec {
        match route.nexthop_id.map(|id| snapshot.nexthops.get(&id)) {
            Some(object) if object.is_none_or(|object| !object.blackhole) => Spec::Ask,
            _ => Spec::Drop,
        }
    }

    fn unicast(route: &Route, snapshot: &Snapshot) -> Spec {
        let object = route.nexthop_id.and_then(|id| snapshot.nexthops.get(&id));
        if object.is_some_and(|object| object.blackhole) {
            return Spec::Drop;
        }
        let hops = snapshot.hops(route);
        let gateways: Option<Vec<Via>> = hops.iter().map(via).collect();
        match (hops.as_slice(), gateways) {
            ([], _) => Spec::Pass(Counter::Beyond),
            (hops, _) if hops.iter().any(|hop| hop.encapsulates) => Spec::Pass(Counter::Beyond),
            // Its flows stay where they are by a table of the kernel's.
            _ if object.is_some_and(|object| object.resilient) => Spec::Ask,
            ([only], None) => Spec::OnLink {
                ifindex: only.ifindex,
                mtu: route.mtu,
            },
            (hops, Some(members)) if hops.len() <= PATH_MEMBERS => Spec::Via {
                members,
                mtu: route.mtu,
            },
            _ => Spec::Ask,
        }
    }

    /// A route to somewhere else: a source that loose reverse path filtering takes.
    pub fn is_unicast(&self) -> bool {
        matches!(self, Spec::OnLink { .. } | Spec::Via { .. })
    }

    /// The only interface that packets leave by.
    pub fn only_interface(&self) -> Option<u32> {
        match self {
            Spec::OnLink { ifindex, .. } => Some(*ifindex),
            Spec::Via { members, .. } => {
                let first = members.first()?.ifindex;
                members
                    .iter()
                    .all(|via| via.ifindex == first)
                    .then_some(first)
            }
            _ => None,
        }
    }
}

fn via(hop: &Hop) -> Option<Via> {
    Some(Via {
        ifindex: hop.ifindex,
        neighbour: hop.gateway?,
        weight: hop.weight,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use netlink::NextHop;

    use super::*;

    /// By a gateway, or by an object.
    fn route(gateway: &str, nexthop_id: Option<u32>) -> Route {
        let hop = Hop {
            gateway: gateway.parse().ok(),
            ifindex: 3,
            weight: 1,
            onlink: false,
            encapsulates: false,
        };
        Route {
            kind: RouteKind::Unicast,
            protocol: 4,
            scope: 0,
            src: None,
            preferred_source: None,
            mtu: None,
            rest: Vec::new(),
            hops: if nexthop_id.is_none() {
                vec![hop]
            } else {
                Vec::new()
            },
            nexthop_id,
        }
    }

    fn set(routes: &[Route]) -> RouteSet {
        RouteSet {
            routes: routes.to_vec(),
        }
    }

    #[test]
    fn a_source_is_looked_for_behind_every_metric() {
        let snapshot = Snapshot::default();
        let of = |sets: &[&RouteSet]| {
            let sets: Vec<(u8, &RouteSet)> = sets.iter().map(|set| (0, *set)).collect();
            Spec::of(&sets, Family::V6, &snapshot)
        };
        let (near, far) = (set(&[route("fe80::1", None)]), route("fe80::2", None));
        let for_some = Route {
            src: "2001:db8:1::/64".parse().ok(),
            ..far.clone()
        };
        let first = of(&[&near]);
        assert!(matches!(first, Some(Spec::Via { .. })), "{first:?}");
        assert_eq!(
            of(&[&near, &set(std::slice::from_ref(&far))]),
            first,
            "the lowest metric"
        );
        assert_eq!(
            of(&[&near, &set(std::slice::from_ref(&for_some))]),
            Some(Spec::Ask)
        );
        assert_eq!(of(&[&near, &set(&[far, for_some])]), Some(Spec::Ask));
    }

    #[test]
    fn several_routes_of_ipv6_under_one_key_are_the_kernel_s_whoever_has_their_hops() {
        let snapshot = Snapshot::default();
        for first in [route("fe80::1", None), route("", Some(7))] {
            let two = set(&[first, route("fe80::2", None)]);
            let of = |family| Spec::of(&[(0, &two)], family, &snapshot);
            assert_eq!(of(Family::V6), Some(Spec::Ask));
            assert_ne!(of(Family::V4), Some(Spec::Ask), "the first one counts");
        }
    }

    /// With `nexthop_compat_mode` 0 the kernel tells nothing of a route whose object becomes
    /// another.
    #[test]
    fn a_route_is_a_blackhole_for_as_long_as_its_object_is() {
        let mut snapshot = Snapshot::default();
        let told = Route {
            kind: RouteKind::Blackhole,
            ..route("", Some(7))
        };
        let of = |route: &Route, snapshot: &Snapshot| {
            Spec::of(
                &[(0, &set(std::slice::from_ref(route)))],
                Family::V4,
                snapshot,
            )
        };
        let object = |blackhole: bool| {
            let hop = route("10.2.0.2", None).hops.pop();
            Arc::new(NextHop {
                id: 7,
                hop: hop.filter(|_| !blackhole),
                group: Vec::new(),
                resilient: false,
                blackhole,
            })
        };
        let unicast = route("", Some(7));
        snapshot.nexthops.insert(7, object(true));
        assert_eq!(of(&told, &snapshot), Some(Spec::Drop));
        assert_eq!(
            of(&unicast, &snapshot),
            Some(Spec::Drop),
            "it has become one"
        );
        snapshot.nexthops.insert(7, object(false));
        assert_eq!(of(&told, &snapshot), Some(Spec::Ask), "it is none any more");
        assert!(matches!(of(&unicast, &snapshot), Some(Spec::Via { .. })));
        snapshot.nexthops.clear();
        assert_eq!(of(&told, &snapshot), Some(Spec::Ask), "its object is gone");
        let own = Route {
            nexthop_id: None,
            ..told
        };
        assert_eq!(
            of(&own, &snapshot),
            Some(Spec::Drop),
            "a blackhole of its own"
        );
    }
}

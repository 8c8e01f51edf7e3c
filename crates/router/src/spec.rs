//! What a route asks for, in the router's terms: the bridge from the kernel's tables to paths. No
//! state.

use std::net::IpAddr;

use netlink::{Hop, Route, RouteKind, RouteSet, Snapshot};

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
    pub fn of(sets: &[(u8, &RouteSet)], snapshot: &Snapshot) -> Option<Spec> {
        // A type of service selects among routes of one prefix: more than a destination says.
        if sets.iter().any(|(tos, _)| *tos != 0) {
            return Some(Spec::Ask);
        }
        let Some((_, set)) = sets.first() else {
            return Some(Spec::Pass(Counter::NoRoute));
        };
        let route = &set.routes[0];
        // Several of IPv6 under one key, or one for some sources only.
        let six = route.src.is_some() || set.routes.len() > 1 && route.hops.iter().any(is_six);
        if six {
            return Some(Spec::Ask);
        }
        match route.kind {
            RouteKind::Unicast => Some(Self::unicast(route, snapshot)),
            RouteKind::Local | RouteKind::Anycast => Some(Spec::Pass(Counter::Local)),
            RouteKind::Broadcast | RouteKind::Multicast => Some(Spec::Pass(Counter::Destination)),
            RouteKind::Blackhole => Some(Spec::Drop),
            RouteKind::Unreachable | RouteKind::Prohibit => Some(Spec::Pass(Counter::Refused)),
            RouteKind::Throw => None,
            RouteKind::Other(_) => Some(Spec::Pass(Counter::Beyond)),
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

fn is_six(hop: &Hop) -> bool {
    hop.gateway.is_some_and(|gateway| gateway.is_ipv6()) || hop.gateway.is_none()
}

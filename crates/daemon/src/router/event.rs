//! What happened to the router, for whoever watches, and in the log.

use netlink::{Neighbour, Snapshot};
use router::difference::Difference;
use router::view::RouteView;

use crate::events;
use crate::tracked_interfaces::Member;

pub type Event = events::Event<EventKind>;
pub type Events = events::Events<EventKind>;

#[derive(Clone, Debug)]
pub enum EventKind {
    /// An interface was given to the router, attached, or is not any more.
    Interface(Member),
    Deleted(String),
    /// Something is left to the kernel from now on, and not any more.
    NoteAdded(String),
    NoteRemoved(String),
    Route {
        route: Box<RouteView>,
        deleted: bool,
    },
    Neighbour {
        neighbour: Neighbour,
        interface: String,
        fast: bool,
        deleted: bool,
    },
    /// Too many at once to be told one by one.
    Many {
        routes: usize,
        neighbours: usize,
    },
}

impl events::Kind for EventKind {
    fn log(&self) {
        match self {
            EventKind::Interface(member) => match member.mode {
                Some(mode) if member.why.is_empty() => {
                    tracing::info!("routing on {}, {}", member.name, mode.words());
                }
                Some(_) => tracing::warn!("{}: {}", member.name, member.why),
                None => tracing::warn!("not routing on {}: {}", member.name, member.why),
            },
            EventKind::Deleted(name) => tracing::info!("{name} is given back by the router"),
            EventKind::NoteAdded(note) => tracing::info!("router: {note}"),
            EventKind::NoteRemoved(note) => tracing::info!("router: no longer: {note}"),
            // Traffic of a kind: a routing daemon makes thousands.
            EventKind::Route { .. } | EventKind::Neighbour { .. } | EventKind::Many { .. } => {}
        }
    }
}

/// A difference of the kernel's tables as events: one each, or one for all if there are too many.
pub fn of(difference: Difference, snapshot: &Snapshot) -> Vec<EventKind> {
    let Difference {
        routes,
        neighbours,
        route_count,
        neighbour_count,
    } = difference;
    if route_count > routes.len() || neighbour_count > neighbours.len() {
        return vec![EventKind::Many {
            routes: route_count,
            neighbours: neighbour_count,
        }];
    }
    let routes = routes.into_iter().flat_map(|changed| {
        let kind = move |route| EventKind::Route {
            route: Box::new(route),
            deleted: changed.deleted,
        };
        changed.routes.into_iter().map(kind)
    });
    let neighbours = neighbours.into_iter().map(|changed| EventKind::Neighbour {
        interface: router::messages::interface_name(changed.neighbour.ifindex, snapshot),
        neighbour: changed.neighbour,
        fast: changed.fast,
        deleted: changed.deleted,
    });
    routes.chain(neighbours).collect()
}

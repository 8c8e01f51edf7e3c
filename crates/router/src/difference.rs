//! What the kernel's tables have now that they had not before, with what the program's tables make
//! of it: for whoever tells others of changes.

use imbl::ordmap::DiffItem;
use netlink::{Neighbour, Snapshot};

use crate::router::Router;
use crate::view::RouteView;

/// Changed routes and neighbours. Of more than were asked for only the numbers are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// By key: a key's routes change together.
    pub routes: Vec<ChangedRoutes>,
    /// Behind interfaces of the router's.
    pub neighbours: Vec<ChangedNeighbour>,
    /// Keys of routes that changed.
    pub route_count: usize,
    /// Neighbours that changed.
    pub neighbour_count: usize,
}

/// All routes of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedRoutes {
    /// The routes as they are, or as they were before they were deleted.
    pub routes: Vec<RouteView>,
    /// The key has no route any more.
    pub deleted: bool,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedNeighbour {
    /// The neighbour as it is, or as it was before it was deleted.
    pub neighbour: Neighbour,
    /// The program sends to it.
    pub fast: bool,
    /// The kernel knows it no more.
    pub deleted: bool,
}

impl Router {
    /// What differs between an older snapshot and the one that the tables are in step with; at most
    /// `most` of each kind one by one.
    pub fn difference(&self, before: &Snapshot, most: usize) -> Difference {
        let mut difference = Difference::default();
        for item in before.routes.diff(&self.snapshot.routes) {
            difference.route_count += 1;
            if difference.routes.len() == most {
                continue;
            }
            let (key, set, deleted) = match item {
                DiffItem::Add(key, set) => (key, set, false),
                DiffItem::Update {
                    new: (key, set), ..
                } => (key, set, false),
                DiffItem::Remove(key, set) => (key, set, true),
            };
            let routes = self.views(key, set);
            difference.routes.push(ChangedRoutes { routes, deleted });
        }
        for item in before.neighbours.diff(&self.snapshot.neighbours) {
            let (neighbour, deleted) = match item {
                DiffItem::Add(_, neighbour) => (*neighbour, false),
                DiffItem::Update {
                    new: (_, neighbour),
                    ..
                } => (*neighbour, false),
                DiffItem::Remove(_, neighbour) => (*neighbour, true),
            };
            if !self.interfaces.contains_key(&neighbour.ifindex) {
                continue;
            }
            difference.neighbour_count += 1;
            if difference.neighbours.len() < most {
                difference.neighbours.push(ChangedNeighbour {
                    neighbour,
                    fast: !deleted && self.forwards_to(&neighbour),
                    deleted,
                });
            }
        }
        difference
    }
}

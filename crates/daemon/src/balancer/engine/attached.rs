//! The interfaces that are balanced on: which are wanted and which are there (`kept.rs`), and what is done to one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use balancer::{Balancer, Place};
use tokio::runtime::Handle;
use xdp::{Feature, Interfaces, Program};

use super::{Running, lock};
use crate::balancer::plane::{Interface, Mode};
use crate::balancer::probe::Door;
use crate::kept::{Hands, Kept, Member};

/// Which are wanted, and where the programs run.
pub(super) struct Attached {
    /// All features', whose programs are chained.
    programs: Arc<Mutex<Interfaces>>,
    kept: Kept,
    /// By name, of those that are attached.
    places: BTreeMap<String, Place>,
}

impl Attached {
    /// None.
    pub(super) fn new(programs: Arc<Mutex<Interfaces>>) -> Self {
        Attached {
            programs,
            kept: Kept::default(),
            places: BTreeMap::new(),
        }
    }

    /// All that are wanted, by name.
    pub(super) fn list(&self) -> Vec<Interface> {
        let mut all: Vec<Interface> = self.kept.members().iter().map(interface).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Health checks are made from now on: their program runs wherever the balancer's does.
    pub(super) fn open(&self, door: &Door) -> Result<(), String> {
        for place in self.places.values() {
            let added = place.add(&mut lock(&self.programs), Feature::Probe, &door.program);
            added.map_err(|e| format!("the program of health checks: {e}"))?;
        }
        Ok(())
    }

    /// Takes an interface that is there, and again whenever it comes back; or attaches it in another mode, and where that is refused
    /// leaves it in the one it has.
    pub(super) fn want(
        &mut self,
        name: &str,
        mode: Option<Mode>,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<Interface, String> {
        let (kept, mut hands) = self.hands(running, door);
        let (member, new) = Handle::current().block_on(kept.want(name, mode, &mut hands))?;
        if let Some(mode) = member.mode.filter(|_| new) {
            tracing::info!("balancing on {name}, {mode:?}");
        }
        Ok(interface(&member))
    }

    /// Leaves an interface to the kernel; whether it was wanted.
    pub(super) fn give_back(&mut self, name: &str, running: &Running) -> bool {
        let (kept, mut hands) = self.hands(running, None);
        let wanted = kept.give_back(name, &mut hands);
        if wanted {
            tracing::info!("{name} is given back");
        }
        wanted
    }

    /// Interfaces have come, gone or changed: those that are wanted are taken, those that are another now are let go, and bonds
    /// have the ports that they have.
    pub(super) fn follow(&mut self, running: &Running, door: Option<&Door>) {
        let (kept, mut hands) = self.hands(running, door);
        for Member { name, mode, why, .. } in Handle::current().block_on(kept.follow(&mut hands)) {
            match mode {
                Some(mode) if why.is_empty() => tracing::info!("balancing on {name} again, {mode:?}"),
                _ => tracing::error!("{name} cannot be balanced on as it is now: {why}"),
            }
        }
    }

    fn hands<'a>(
        &'a mut self,
        running: &'a Running,
        door: Option<&'a Door>,
    ) -> (&'a mut Kept, Balancing<'a>) {
        let hands = Balancing {
            programs: &self.programs,
            places: &mut self.places,
            running,
            door,
        };
        (&mut self.kept, hands)
    }
}

fn interface(member: &Member) -> Interface {
    Interface {
        name: member.name.clone(),
        mode: member.mode,
    }
}

/// What is needed to balance on an interface. The balancer is locked before the programs, everywhere.
struct Balancing<'a> {
    programs: &'a Mutex<Interfaces>,
    places: &'a mut BTreeMap<String, Place>,
    running: &'a Running,
    door: Option<&'a Door>,
}

impl Hands for Balancing<'_> {
    fn find(&self, name: &str) -> Option<u32> {
        let snapshot = self.running.follower.snapshot();
        snapshot.link_named(name).map(|link| link.index)
    }

    /// Runs the programs on it, and makes it and its ports known.
    async fn take(&mut self, name: &str, mode: Option<Mode>) -> Result<Mode, String> {
        let said = |e: &dyn std::fmt::Display| format!("interface {name}: {e}");
        let snapshot = self.running.follower.snapshot();
        let mut balancer = lock(&self.running.balancer);
        let taken = {
            let members = members(&balancer, self.door);
            Place::take(&snapshot, name, &mut lock(self.programs), &members, mode)
        };
        let place = taken.map_err(|e| said(&e))?;
        let told = balancer.tell(&[], place.interfaces());
        drop(balancer);
        let mode = place.mode();
        self.places.insert(name.to_owned(), place);
        if let Err(e) = told {
            self.leave(name);
            return Err(said(&e));
        }
        Ok(mode)
    }

    /// A bond has other ports, perhaps.
    fn keep(&mut self, name: &str) -> Result<(), String> {
        let Some(place) = self.places.get_mut(name) else {
            return Ok(());
        };
        let snapshot = self.running.follower.snapshot();
        let before: Vec<u32> = place.interfaces().iter().map(|known| known.ifindex).collect();
        let mut balancer = lock(&self.running.balancer);
        let followed = {
            let members = members(&balancer, self.door);
            place.follow(&snapshot, &mut lock(self.programs), &members)
        };
        let now = place.interfaces();
        let is_gone = |ifindex: &u32| now.iter().all(|known| known.ifindex != *ifindex);
        let gone: Vec<u32> = before.into_iter().filter(is_gone).collect();
        balancer.tell(&gone, now).map_err(|e| e.to_string())?;
        followed.map_err(|e| e.to_string())
    }

    fn leave(&mut self, name: &str) {
        let Some(place) = self.places.remove(name) else {
            return;
        };
        let mut balancer = lock(&self.running.balancer);
        if let Err(e) = balancer.forget(&place) {
            tracing::error!("interface {name}: {e}");
        }
        // Of a feature that does not run there nothing is ended.
        place.leave(&mut lock(self.programs), &[Feature::Balancer, Feature::Probe]);
    }
}

/// The programs that run wherever is balanced.
fn members<'a>(balancer: &'a Balancer, door: Option<&'a Door>) -> Vec<(Feature, &'a Program)> {
    let mut members = vec![(Feature::Balancer, balancer.program())];
    members.extend(door.map(|door| (Feature::Probe, &door.program)));
    members
}

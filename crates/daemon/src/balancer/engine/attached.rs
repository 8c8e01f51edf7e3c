//! The interfaces that are balanced on: which are wanted and which are there (`tracked.rs`), and
//! what is done to one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use balancer::{AttachedInterface, Balancer};
use control::InterfaceStatus;
use control::model::Feature as Owner;
use tokio::runtime::Handle;
use xdp::{Feature, Interfaces, Mode, Program};

use super::{Running, lock};
use crate::balancer::probe::Door;
use crate::states::InterfaceStates;
use crate::tracked_interfaces::{Driver, Member, TrackedInterfaces};

/// Which are wanted, and where the programs run.
pub(super) struct Attached {
    /// All features', whose programs are chained.
    programs: Arc<Mutex<Interfaces>>,
    tracked: TrackedInterfaces,
    /// Where changes are told.
    states: InterfaceStates,
    /// By name, of those that are attached.
    interfaces: BTreeMap<String, AttachedInterface>,
}

impl Attached {
    /// No interface is attached.
    pub(super) fn new(programs: Arc<Mutex<Interfaces>>, states: InterfaceStates) -> Self {
        Attached {
            programs,
            states,
            tracked: TrackedInterfaces::default(),
            interfaces: BTreeMap::new(),
        }
    }

    /// All that are wanted, by name.
    pub(super) fn list(&self) -> Vec<InterfaceStatus> {
        let members = self.tracked.members().iter();
        let mut all: Vec<InterfaceStatus> = members.map(Member::status).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// What packets leave by of those whose program runs in the driver.
    pub(super) fn native(&self) -> BTreeSet<u32> {
        let all = self.interfaces.values();
        let native = all.filter(|attached| attached.mode() == Mode::Native);
        native
            .flat_map(|attached| attached.interfaces().iter().map(|one| one.out))
            .collect()
    }

    /// Health checks are made from now on: their program runs wherever the balancer's does, or
    /// nowhere where one interface refuses it.
    pub(super) fn open(&self, door: &Door) -> Result<(), String> {
        let mut programs = lock(&self.programs);
        for (at, attached) in self.interfaces.values().enumerate() {
            if let Err(e) = attached.add(&mut programs, Feature::Probe, &door.program) {
                for done in self.interfaces.values().take(at) {
                    done.remove(&mut programs, Feature::Probe);
                }
                return Err(format!("the program of health checks: {e}"));
            }
        }
        Ok(())
    }

    /// The program of health checks runs nowhere any more.
    pub(super) fn close(&self) {
        let mut programs = lock(&self.programs);
        for attached in self.interfaces.values() {
            attached.remove(&mut programs, Feature::Probe);
        }
    }

    /// Takes an interface that is there, and again whenever it comes back; or attaches it in
    /// another mode, and where that is refused leaves it in the one it has.
    pub(super) fn want(
        &mut self,
        name: &str,
        mode: Option<Mode>,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<InterfaceStatus, String> {
        let (tracked, mut driver) = self.driver(running, door);
        let (member, new) = Handle::current().block_on(tracked.want(name, mode, &mut driver))?;
        if let Some(mode) = member.mode.filter(|_| new) {
            tracing::info!("balancing on {name}, {mode:?}");
        }
        Ok(member.status())
    }

    /// How one is.
    pub(super) fn status(&self, name: &str) -> Option<InterfaceStatus> {
        self.tracked.status(name)
    }

    /// Undoes what was done to one since it was said to be so.
    pub(super) fn restore(
        &mut self,
        name: &str,
        before: Option<InterfaceStatus>,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<(), String> {
        let (tracked, mut driver) = self.driver(running, door);
        Handle::current().block_on(tracked.restore(name, before, &mut driver))
    }

    /// Takes one that is wanted anew, in the mode that was asked for. The error is a sentence: it
    /// is wanted still, unless it was not before.
    pub(super) fn reattach(
        &mut self,
        name: &str,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<InterfaceStatus, String> {
        let (tracked, mut driver) = self.driver(running, door);
        let member = Handle::current().block_on(tracked.reattach(name, &mut driver));
        let member = member.ok_or_else(|| not_balanced(name))?;
        match member.mode {
            Some(mode) => {
                tracing::info!("balancing on {name} anew, {mode:?}");
                Ok(member.status())
            }
            None => {
                let why = member.why;
                tracing::error!("{name} was left and cannot be balanced on as it is now: {why}");
                Err(format!(
                    "{why}; it stays among those that are balanced on, and is taken when it can be"
                ))
            }
        }
    }

    /// Leaves an interface to the kernel; whether it was wanted.
    pub(super) fn give_back(&mut self, name: &str, running: &Running) -> bool {
        let (tracked, mut driver) = self.driver(running, None);
        let wanted = tracked.give_back(name, &mut driver);
        if wanted {
            tracing::info!("{name} is given back");
        }
        wanted
    }

    /// Interfaces have come, gone or changed: those that are wanted are taken, those that are
    /// another now are let go, and bonds have the ports that they have.
    pub(super) fn follow(&mut self, running: &Running, door: Option<&Door>) {
        let (tracked, mut driver) = self.driver(running, door);
        let changed = Handle::current().block_on(tracked.follow(&mut driver));
        for member in changed {
            self.states
                .leave((Owner::Balancer, member.name.clone()), member.status());
            let Member {
                name, mode, why, ..
            } = member;
            match mode {
                Some(mode) if why.is_empty() => {
                    tracing::info!("balancing on {name} again, {mode:?}")
                }
                _ => tracing::error!("{name} cannot be balanced on as it is now: {why}"),
            }
        }
    }

    /// From now on interfaces that come are another process's to take.
    pub(super) fn stand_still(&mut self) {
        self.tracked.stand_still();
    }

    /// Whether another process takes those that come.
    pub(super) fn is_still(&self) -> bool {
        self.tracked.is_still()
    }

    /// They are this process's: those that came or went meanwhile are followed.
    pub(super) fn go_on(&mut self, running: &Running, door: Option<&Door>) {
        self.tracked.go_on();
        self.follow(running, door);
    }

    fn driver<'a>(
        &'a mut self,
        running: &'a Running,
        door: Option<&'a Door>,
    ) -> (&'a mut TrackedInterfaces, Balancing<'a>) {
        let driver = Balancing {
            programs: &self.programs,
            interfaces: &mut self.interfaces,
            running,
            door,
        };
        (&mut self.tracked, driver)
    }
}

/// Why one that nobody asked for is not taken anew.
pub(super) fn not_balanced(name: &str) -> String {
    format!("nothing is balanced on interface '{name}'")
}

/// What is needed to balance on an interface. The balancer is locked before the programs,
/// everywhere.
struct Balancing<'a> {
    programs: &'a Mutex<Interfaces>,
    interfaces: &'a mut BTreeMap<String, AttachedInterface>,
    running: &'a Running,
    door: Option<&'a Door>,
}

impl Driver for Balancing<'_> {
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
            AttachedInterface::take(&snapshot, name, &mut lock(self.programs), &members, mode)
        };
        let attached = taken.map_err(|e| said(&e))?;
        let told = balancer.update_interfaces(&[], attached.interfaces());
        drop(balancer);
        let mode = attached.mode();
        self.interfaces.insert(name.to_owned(), attached);
        if let Err(e) = told {
            self.leave(name);
            return Err(said(&e));
        }
        Ok(mode)
    }

    /// A bond has other ports, perhaps.
    fn keep(&mut self, name: &str) -> Result<(), String> {
        let Some(attached) = self.interfaces.get_mut(name) else {
            return Ok(());
        };
        let snapshot = self.running.follower.snapshot();
        let before: Vec<u32> = attached
            .interfaces()
            .iter()
            .map(|known| known.ifindex)
            .collect();
        let mut balancer = lock(&self.running.balancer);
        let followed = {
            let members = members(&balancer, self.door);
            attached.follow(&snapshot, &mut lock(self.programs), &members)
        };
        let now = attached.interfaces();
        let is_gone = |ifindex: &u32| now.iter().all(|known| known.ifindex != *ifindex);
        let gone: Vec<u32> = before.into_iter().filter(is_gone).collect();
        balancer
            .update_interfaces(&gone, now)
            .map_err(|e| e.to_string())?;
        followed.map_err(|e| e.to_string())
    }

    fn leave(&mut self, name: &str) {
        let Some(attached) = self.interfaces.remove(name) else {
            return;
        };
        let mut balancer = lock(&self.running.balancer);
        if let Err(e) = balancer.forget(&attached) {
            tracing::error!("interface {name}: {e}");
        }
        // Where the feature does not run there, nothing ends.
        attached.leave(
            &mut lock(self.programs),
            &[Feature::Balancer, Feature::Probe],
        );
    }
}

/// The programs that run wherever is balanced.
fn members<'a>(balancer: &'a Balancer, door: Option<&'a Door>) -> Vec<(Feature, &'a Program)> {
    let mut members = vec![(Feature::Balancer, balancer.program())];
    members.extend(door.map(|door| (Feature::Probe, &door.program)));
    members
}

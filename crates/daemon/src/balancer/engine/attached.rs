//! The interfaces that are balanced on: by name, since an interface that is removed and made again is another one to the kernel
//! and the same one to whoever asked for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use xdp::{Feature, Interfaces};

use super::{Running, lock};
use crate::balancer::plane::{Interface, Mode};
use crate::balancer::probe::Door;

/// Which are wanted, and where the programs run.
pub(super) struct Attached {
    /// All features', whose programs are chained.
    programs: Arc<Mutex<Interfaces>>,
    by_name: BTreeMap<String, Wanted>,
}

/// An interface that was asked for.
struct Wanted {
    /// How it is to be attached; `None`: native where the driver can.
    mode: Option<Mode>,
    /// `None`: it is not there at the moment.
    there: Option<There>,
    /// Why it could not be taken when it was there last; said once.
    refused: Option<String>,
}

/// One that the programs run on.
struct There {
    /// Itself, and a bond's ports behind it.
    ports: Vec<u32>,
    mode: Mode,
}

impl Attached {
    /// None.
    pub(super) fn new(programs: Arc<Mutex<Interfaces>>) -> Self {
        Attached {
            programs,
            by_name: BTreeMap::new(),
        }
    }

    /// All that are wanted.
    pub(super) fn list(&self) -> Vec<Interface> {
        let interface = |(name, wanted): (&String, &Wanted)| Interface {
            name: name.clone(),
            mode: wanted.there.as_ref().map(|there| there.mode),
        };
        self.by_name.iter().map(interface).collect()
    }

    /// Health checks are made from now on: their program runs wherever the balancer's does.
    pub(super) fn open(&self, door: &Door) -> Result<(), String> {
        for there in self.by_name.values().filter_map(|wanted| wanted.there.as_ref()) {
            let mut programs = lock(&self.programs);
            let added = programs.add(there.ports[0], Feature::Probe, &door.program, None);
            added.map_err(|e| format!("the program of health checks: {e}"))?;
        }
        Ok(())
    }

    /// Takes an interface that is there, and again whenever it comes back; or attaches it in another mode.
    pub(super) fn want(
        &mut self,
        name: &str,
        mode: Option<Mode>,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<Interface, String> {
        let found = running.follower.interfaces(name);
        let found = found.map_err(|e| format!("interface {name}: {e}"))?;
        let is_it =
            |there: &There| there.ports[0] == found[0].ifindex && mode.is_none_or(|mode| mode == there.mode);
        let known = self.by_name.get(name).and_then(|wanted| wanted.there.as_ref());
        let mode_now = match known.filter(|there| is_it(there)) {
            Some(there) => there.mode,
            None => {
                self.give_back(name, running)?;
                let there = self
                    .take(&found, mode, running, door)
                    .map_err(|why| format!("interface {name}: {why}"))?;
                tracing::info!("balancing on {name}, {:?}", there.mode);
                let now = there.mode;
                let wanted = Wanted {
                    mode,
                    there: Some(there),
                    refused: None,
                };
                self.by_name.insert(name.to_owned(), wanted);
                now
            }
        };
        Ok(Interface {
            name: name.to_owned(),
            mode: Some(mode_now),
        })
    }

    /// Leaves an interface to the kernel; whether it was wanted.
    pub(super) fn give_back(&mut self, name: &str, running: &Running) -> Result<bool, String> {
        let Some(wanted) = self.by_name.remove(name) else {
            return Ok(false);
        };
        if let Some(there) = wanted.there {
            self.leave(&there, running)
                .map_err(|e| format!("interface {name}: {e}"))?;
        }
        tracing::info!("{name} is given back");
        Ok(true)
    }

    /// Interfaces have come or gone: those that are wanted are taken, those that are another now are let go.
    pub(super) fn follow(&mut self, running: &Running, door: Option<&Door>) {
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        for name in names {
            let found = running.follower.interfaces(&name).ok();
            let Some(mut wanted) = self.by_name.remove(&name) else {
                continue;
            };
            self.follow_one(&name, &mut wanted, found.as_deref(), running, door);
            self.by_name.insert(name, wanted);
        }
    }

    fn follow_one(
        &self,
        name: &str,
        wanted: &mut Wanted,
        found: Option<&[balancer::Interface]>,
        running: &Running,
        door: Option<&Door>,
    ) {
        let index = found.map(|found| found[0].ifindex);
        if let Some(gone) = wanted.there.take_if(|there| Some(there.ports[0]) != index) {
            tracing::info!("{name}, which is balanced on, is gone");
            if let Err(e) = self.leave(&gone, running) {
                tracing::error!("interface {name}: {e}");
            }
        }
        let (None, Some(found)) = (&wanted.there, found) else {
            return;
        };
        match self.take(found, wanted.mode, running, door) {
            Ok(there) => {
                tracing::info!("{name} is there again, balancing on it, {:?}", there.mode);
                *wanted = Wanted {
                    mode: wanted.mode,
                    there: Some(there),
                    refused: None,
                };
            }
            Err(why) if wanted.refused.as_ref() != Some(&why) => {
                tracing::error!("{name} is there again and cannot be balanced on: {why}");
                wanted.refused = Some(why);
            }
            Err(_) => (),
        }
    }

    /// Runs the programs on an interface; a bond's ports are made known. All of it or nothing.
    fn take(
        &self,
        found: &[balancer::Interface],
        mode: Option<Mode>,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<There, String> {
        let said = |e: &dyn std::fmt::Display| e.to_string();
        let mut balancer = lock(&running.balancer);
        let first = found.first().ok_or("there is no such interface")?.ifindex;
        let mut programs = lock(&self.programs);
        let added = programs.add(first, Feature::Balancer, balancer.program(), mode);
        let there = There {
            ports: found.iter().map(|interface| interface.ifindex).collect(),
            mode: added.map_err(|e| said(&e))?.0,
        };
        let probed = match door {
            Some(door) => programs.add(first, Feature::Probe, &door.program, None).map(drop),
            None => Ok(()),
        };
        let mut known = found.iter().map(|interface| balancer.set_interface(*interface));
        let done = probed
            .map_err(|e| said(&e))
            .and_then(|()| known.try_for_each(|known| known.map_err(|e| said(&e))));
        drop((programs, balancer));
        if let Err(why) = done {
            self.leave(&there, running)?;
            return Err(why);
        }
        Ok(there)
    }

    fn leave(&self, there: &There, running: &Running) -> Result<(), String> {
        let mut balancer = lock(&running.balancer);
        let mut programs = lock(&self.programs);
        programs.remove(there.ports[0], Feature::Probe);
        programs.remove(there.ports[0], Feature::Balancer);
        let mut forgotten = there.ports.iter().map(|port| balancer.forget_interface(*port));
        forgotten.try_for_each(|forgotten| forgotten.map_err(|e| e.to_string()))
    }
}

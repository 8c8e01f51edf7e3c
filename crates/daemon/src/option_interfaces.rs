//! The interfaces that options name: those that services are balanced on, those that transit
//! packets are forwarded between, and those that join this host to others. They are declared as
//! those of requests are, and stored nowhere: each daemon takes those that its own options name.
//!
//! A daemon that takes another's place declares those that programs of that one run on while it
//! prepares, as it does all that is handed over: their programs run on until its own are put in
//! their place, and go with that one where nobody has asked for them by then. The others it takes
//! when it is the daemon. By then it cannot be refused any more, and one that it cannot have is
//! wanted all the same, like one that has gone.

use std::sync::{Arc, Mutex, PoisonError};

use control::model::{Feature, Interface};
use control::{Controller, InterfaceStatus};
use netlink::Snapshot;
use xdp::Interfaces;

use crate::app::App;
use crate::features;
use crate::options::Settings;

/// A feature, and the name of an interface that it is to work on.
pub type Named = (Feature, String);

/// In the order they are taken.
pub struct OptionInterfaces(Vec<Named>);

impl OptionInterfaces {
    /// Those of the settings.
    pub fn of(settings: &Settings) -> OptionInterfaces {
        let of = |feature, names: &[String]| -> Vec<Named> {
            let names = names.iter();
            names.map(|name| (feature, name.clone())).collect()
        };
        let mut all = of(Feature::Balancer, &settings.balance_interfaces);
        all.extend(of(Feature::Router, &settings.router_interfaces));
        if !settings.alone {
            all.extend(of(Feature::Uplink, &settings.uplinks));
        }
        OptionInterfaces(all)
    }

    /// Takes them. One that is not there is taken when it comes; one that is there and cannot be
    /// had is no reason to go on without it. The error is a sentence.
    pub fn take(&self, app: &App) -> Result<(), String> {
        let take = |named| declare(&mut app.control(), named).map(drop);
        self.0.iter().try_for_each(take)
    }

    /// Takes them in a process that is the daemon already: one that cannot be had is wanted, said,
    /// and keeps no other one from being taken.
    pub fn take_all_that_can_be(&self, app: &App) {
        for named in &self.0 {
            let declared = declare(&mut app.control(), named);
            let (feature, _) = *named;
            match declared {
                Err(why) => tracing::error!("{why}"),
                // Uplinks have no mode, and say themselves how they are.
                Ok(_) if feature == Feature::Uplink => {}
                Ok(InterfaceStatus {
                    mode: None, why, ..
                }) if why != features::NOT_THERE => tracing::error!("{}: {why}", option(feature)),
                Ok(_) => {}
            }
        }
    }

    /// Declares those that programs of the daemon before run on still, as `kernel` says where these
    /// lie: which of them nothing had declared before. The error is a sentence.
    pub fn declare_handed(
        &self,
        controller: &mut Controller,
        programs: &Mutex<Interfaces>,
        kernel: impl FnOnce() -> Result<Arc<Snapshot>, String>,
    ) -> Result<Vec<Named>, String> {
        // Uplinks are joined already, by what was handed over of them.
        let mut own = self.0.iter().filter(|(of, _)| *of != Feature::Uplink);
        if own.clone().next().is_none() {
            return Ok(Vec::new());
        }
        let kernel = kernel()?;
        let is_handed = |(_, name): &&Named| {
            let programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
            places(&kernel, name).any(|ifindex| programs.waits_at(ifindex))
        };
        let mut new = Vec::new();
        own.try_for_each(|named| -> Result<(), String> {
            if !is_handed(&named) {
                return Ok(());
            }
            let (feature, name) = named;
            let mut known = controller.interfaces(*feature).iter();
            let is_known = known.any(|one| one.name == *name);
            declare(controller, named)?;
            if !is_known {
                new.push(named.clone());
            }
            Ok(())
        })?;
        Ok(new)
    }
}

/// Where programs of an interface may run: on itself, on what its VLANs lie on, on a bond's ports.
fn places<'a>(kernel: &'a Snapshot, name: &str) -> impl Iterator<Item = u32> + 'a {
    let link = kernel.link_named(name).into_iter();
    link.flat_map(move |link| {
        let device = kernel.device_of(link);
        let ports = kernel.ports_of(device).map(|port| port.index);
        [link.index, device].into_iter().chain(ports)
    })
}

fn declare(
    controller: &mut Controller,
    (feature, name): &Named,
) -> Result<InterfaceStatus, String> {
    let interface = Interface::new(name, None);
    let taken = interface.and_then(|one| controller.add_interface(*feature, one));
    taken.map_err(|why| format!("{}: {why}", option(*feature)))
}

/// What names interfaces of a feature.
fn option(feature: Feature) -> &'static str {
    match feature {
        Feature::Balancer => "--balance-interface",
        Feature::Router => "--router",
        Feature::Uplink => "--uplink",
    }
}

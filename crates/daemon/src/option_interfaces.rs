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
    /// lie: which of them nothing had declared before. One that cannot be had where that daemon ran
    /// another feature alone is [taken](Self::take_all_that_can_be) later, if it can be. The error
    /// is a sentence.
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
        let lock = || programs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_handed = |(_, name): &&Named| {
            let programs = lock();
            places(&kernel, name).any(|ifindex| programs.waits_at(ifindex))
        };
        // Of a version that does not say what ran where each may have been lost.
        let is_loss = |(feature, name): &Named| {
            let (programs, feature) = (lock(), program_of(*feature));
            let mut waiting = places(&kernel, name).filter(|at| programs.waits_at(*at));
            waiting.any(|at| programs.was_handed(at, feature).unwrap_or(true))
        };
        let mut new = Vec::new();
        own.try_for_each(|named| -> Result<(), String> {
            if !is_handed(&named) {
                return Ok(());
            }
            let (feature, name) = named;
            let mut known = controller.interfaces(*feature).iter();
            let is_known = known.any(|one| one.name == *name);
            // One that is refused may be out of what was handed over by then.
            let is_loss = is_loss(named);
            match declare(controller, named) {
                Err(why) if is_loss => return Err(why),
                Err(why) => {
                    tracing::warn!("{why}: it is tried again");
                    return Ok(());
                }
                Ok(_) => {}
            }
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

/// The program that does a feature's work.
fn program_of(feature: Feature) -> xdp::Feature {
    match feature {
        Feature::Balancer => xdp::Feature::Balancer,
        Feature::Router => xdp::Feature::Router,
        Feature::Uplink => xdp::Feature::Uplink,
    }
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use control::model::{AccessList, Mode};
    use control::{Features, HostSettings};
    use health::{Check, CheckError};
    use sys::handed::{Handed, Items};

    use super::*;
    use crate::nowhere::Nowhere;

    /// Features of a host that have no interface.
    struct Refusing;

    impl Features for Refusing {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn admit(&self, _: &Check) -> Result<(), CheckError> {
            Ok(())
        }
        fn balance(&mut self, _: &::balancer::Services) -> Result<(), String> {
            Ok(())
        }
        fn judge(&mut self, _: Option<&AccessList>) -> Result<(), String> {
            Ok(())
        }
        fn take(
            &mut self,
            _: Feature,
            _: &str,
            _: Option<Mode>,
        ) -> Result<InterfaceStatus, String> {
            Err("the driver refuses".into())
        }
        fn interface(&self, _: Feature, _: &str) -> Result<Option<InterfaceStatus>, String> {
            Ok(None)
        }
        fn give_back(&mut self, _: Feature, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn restore(
            &mut self,
            _: Feature,
            _: &str,
            _: Option<InterfaceStatus>,
        ) -> Result<(), String> {
            Ok(())
        }
    }

    fn kernel() -> Arc<Snapshot> {
        let mut kernel = Snapshot::default();
        let link = netlink::Link {
            index: 2,
            name: "eth0".to_owned(),
            mac: None,
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            no_arp: false,
            ethernet: true,
            kind: None,
            vlan: None,
            master: None,
            held_back: false,
            rx_queues: 1,
            tx_queues: 1,
            xdp_program: None,
        };
        kernel.links.insert(2, Arc::new(link));
        Arc::new(kernel)
    }

    /// What a daemon hands over that ran these on eth0, if it says what.
    fn handed(features: Option<&[xdp::Feature]>) -> Mutex<Interfaces> {
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let point = Handed {
            note: format!("{}\n", xdp::Mode::Native).into_bytes(),
            fds: vec![null],
        };
        let mut items = Items::from([("xdp 2".to_owned(), point)]);
        if let Some(features) = features {
            let names: Vec<String> = features.iter().map(ToString::to_string).collect();
            let names = Handed {
                note: names.join("\n").into_bytes(),
                fds: Vec::new(),
            };
            items.insert("features 2".to_owned(), names);
        }
        Mutex::new(Interfaces::handed(items))
    }

    #[test]
    fn an_upgrade_is_refused_for_what_would_be_lost_alone() {
        let options = OptionInterfaces(vec![(Feature::Router, "eth0".to_owned())]);
        let declared = |programs: &Mutex<Interfaces>| {
            let (settings, nowhere) = (HostSettings::default(), Arc::new(Nowhere));
            let controller = Controller::new(settings, Box::new(Nowhere), nowhere);
            let mut controller = controller.with_features(Box::new(Refusing));
            options.declare_handed(&mut controller, programs, || Ok(kernel()))
        };
        let router = [xdp::Feature::Balancer, xdp::Feature::Router];
        for lost in [Some(&router[..]), None] {
            let programs = handed(lost);
            assert!(programs.lock().unwrap().waits_at(2));
            let refused = declared(&programs).unwrap_err();
            assert!(refused.starts_with("--router: "), "{refused}");
        }
        // The option is new: that daemon balanced there.
        let balancer = handed(Some(&router[..1]));
        assert_eq!(declared(&balancer), Ok(Vec::new()));
    }
}

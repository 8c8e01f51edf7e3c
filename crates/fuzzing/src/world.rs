//! What a controller is given instead of sockets and workers: a world that insists on the contract
//! of both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use control::model::{AccessList, Feature, Mode, Nic};
use control::{
    AttachError, Attachments, Controller, DataPlane, DataPlaneError, Features, HostSettings,
    InterfaceStatus, OpenRequest,
};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::{PortSlot, PortUid, RuleSlot, Snapshot};
use health::{Check, CheckError};
use io::trace::Trace;

#[derive(Default)]
struct Inner {
    /// Path by slot.
    open: BTreeMap<u32, String>,
    in_force: Option<Arc<Snapshot>>,
}

#[derive(Clone, Default)]
struct World(Arc<Mutex<Inner>>);

/// A controller with nothing declared.
pub fn controller() -> Controller {
    let world = World::default();
    Controller::new(
        HostSettings::default(),
        Box::new(world.clone()),
        Arc::new(world),
    )
    .with_features(Box::new(Programs::default()))
}

/// A load balancer and a router that take all there is, once.
#[derive(Default)]
struct Programs(BTreeMap<(Feature, String), Option<Mode>>);

impl Features for Programs {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn admit(&self, _: &Check) -> Result<(), CheckError> {
        Ok(())
    }

    fn balance(&mut self, services: &model::Services) -> Result<(), String> {
        for service in services.iter() {
            let vip = service.key().vip();
            assert!(service.servers().all(|server| server.address() != vip));
        }
        Ok(())
    }

    fn judge(&mut self, acl: Option<&AccessList>) -> Result<(), String> {
        for rule in acl.iter().flat_map(|list| &list.rules) {
            assert_eq!(rule.to_string().parse().as_ref(), Ok(rule));
        }
        Ok(())
    }

    fn take(
        &mut self,
        feature: Feature,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<InterfaceStatus, String> {
        self.0.insert((feature, name.to_owned()), mode);
        self.interface(feature, name)?.ok_or_else(String::new)
    }

    fn interface(&self, feature: Feature, name: &str) -> Result<Option<InterfaceStatus>, String> {
        let found = self.0.get(&(feature, name.to_owned()));
        Ok(found.map(|asked| InterfaceStatus {
            name: name.to_owned(),
            mode: asked.or(Some(Mode::Native)),
            why: String::new(),
            asked: *asked,
        }))
    }

    fn give_back(&mut self, feature: Feature, name: &str) -> Result<(), String> {
        let was = self.0.remove(&(feature, name.to_owned()));
        was.expect("given back what was taken");
        Ok(())
    }

    fn restore(
        &mut self,
        feature: Feature,
        name: &str,
        before: Option<InterfaceStatus>,
    ) -> Result<(), String> {
        self.0.remove(&(feature, name.to_owned()));
        if let Some(before) = before {
            self.0.insert((feature, name.to_owned()), before.asked);
        }
        Ok(())
    }
}

/// What is declared, declared again, is nothing new: what the model lets in, it also gives out.
pub fn check(control: &mut Controller) {
    let config = control.config();
    let diff = control
        .apply(config, true)
        .expect("a configuration that is in force");
    assert!(diff.is_empty(), "{diff:?}");
    let _ = control.graph_dot();
}

impl World {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic before this one")
    }
}

impl Attachments for World {
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let mut world = self.lock();
        let taken = world
            .open
            .values()
            .any(|path| path == request.path && !path.is_empty());
        assert!(!taken, "{} is open already", request.path);
        let before = world.open.insert(request.slot.0, request.path.to_owned());
        assert_eq!(before, None, "slot {:?} is in use", request.slot);
        Ok(())
    }

    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]) {
        let mut world = self.lock();
        for (_, slot) in gone {
            world.open.remove(&slot.0).expect("closed what is not open");
            let in_force = world
                .in_force
                .as_ref()
                .and_then(|s| s.ports.get(slot.0 as usize)?.clone());
            assert!(
                in_force.is_none(),
                "{slot:?} closed while a snapshot in force has it"
            );
        }
    }

    fn trace(&mut self, _: &Nic, path: &str) -> Result<Option<Trace>, AttachError> {
        assert!(!path.is_empty());
        Ok(None)
    }
}

impl DataPlane for World {
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        let mut world = self.lock();
        if let Some(before) = &world.in_force {
            assert!(before.epoch < snapshot.epoch);
        }
        for (index, port) in snapshot.ports.iter().enumerate() {
            let Some(port) = port else { continue };
            assert_eq!(port.slot.0 as usize, index);
            assert!(
                world.open.contains_key(&port.slot.0),
                "{:?} is not open",
                port.slot
            );
            let network = snapshot
                .networks
                .get(port.network.0 as usize)
                .cloned()
                .flatten();
            let network = network.expect("the network of a port");
            assert_eq!(network.vni, port.vni);
            assert_eq!(network.ports.contains(&port.slot), !port.is_sniffer);
        }
        world.in_force = Some(snapshot);
        Ok(())
    }

    fn port_counters(&self, _: PortSlot) -> PortCounters {
        PortCounters::default()
    }

    fn rule_counters(&self, _: RuleSlot) -> RuleCounters {
        RuleCounters::default()
    }

    fn flows(&self, _: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError> {
        Ok(Vec::new())
    }

    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError> {
        Ok(flows.len())
    }

    fn remove_flows(&self, _: &[FlowInfo]) -> Result<usize, DataPlaneError> {
        Ok(0)
    }
}

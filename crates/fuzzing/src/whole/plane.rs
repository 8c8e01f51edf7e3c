//! The data plane, and what the controller attaches to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use control::model::Nic;
use control::{AttachError, Attachments, DataPlane, DataPlaneError, NicState, OpenRequest};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::{PortSlot, PortUid, RuleSlot, Simulation, Snapshot};
use io::memory_port::MemoryPeer;
use io::trace::Trace;
use testkit::ring_driver::{Guest, GuestOptions, Shape};

use crate::witness::PLAIN;

/// A guest's end.
pub enum Side {
    Memory(MemoryPeer),
    Ring(Box<Guest>),
}

/// The data plane and what is attached to it.
pub struct World {
    pub sim: Simulation,
    /// By slot.
    pub sides: BTreeMap<u32, Side>,
    pub broken: Broken,
}

pub type Broken = Arc<Mutex<Vec<(PortSlot, String)>>>;

#[derive(Clone)]
pub struct Shared(pub Arc<Mutex<World>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.0)
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic before this one")
}

impl World {
    /// Even NICs have a ring, odd ones do without.
    fn attach(&mut self, slot: PortSlot, nic: &Nic) {
        let side = match nic.mac.0[5] % 2 {
            0 => {
                let guest = Guest::new(GuestOptions {
                    features: PLAIN,
                    queue_size: 32,
                    memory_len: 256 << 10,
                    receive_shape: Shape::cut(&[2048]),
                    receive_chains: 32,
                    ..GuestOptions::default()
                });
                self.sim.attach_port(slot, guest.port().into());
                Side::Ring(Box::new(guest))
            }
            _ => Side::Memory(self.sim.attach(slot)),
        };
        self.sides.insert(slot.0, side);
    }
}

impl Attachments for Shared {
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let mut world = self.lock();
        assert!(!world.sides.contains_key(&request.slot.0), "a slot in use");
        world.attach(request.slot, request.nic);
        Ok(())
    }

    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]) {
        let mut world = self.lock();
        for (_, slot) in gone {
            assert!(world.sim.detach(*slot), "closed what is not open");
            world.sides.remove(&slot.0);
        }
    }

    fn heal(&mut self, requests: &[OpenRequest<'_>]) -> Vec<Option<NicState>> {
        let mut world = self.lock();
        let heal = requests.iter().map(|request| {
            world.attach(request.slot, request.nic);
            Some(NicState::Up)
        });
        heal.collect()
    }

    fn trace(&mut self, _: &Nic, _: &str) -> Result<Option<Trace>, AttachError> {
        Ok(None)
    }
}

impl DataPlane for Shared {
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        self.lock().sim.publish(Snapshot::clone(&snapshot));
        Ok(())
    }

    fn port_counters(&self, slot: PortSlot) -> PortCounters {
        self.lock().sim.port(slot)
    }

    fn rule_counters(&self, slot: RuleSlot) -> RuleCounters {
        self.lock().sim.rule(slot)
    }

    fn flows(&self, port: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError> {
        Ok(self
            .lock()
            .sim
            .ask(move |switch| switch.flows(port).unwrap_or_default()))
    }

    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError> {
        Ok(self.lock().sim.import_flows(flows))
    }

    fn remove_flows(&self, flows: &[FlowInfo]) -> Result<usize, DataPlaneError> {
        Ok(self.lock().sim.remove_flows(flows))
    }
}

//! A world in memory: attachments that remember what is open and insist on their contract, and a
//! data plane that keeps every snapshot. Either refuses when told to.

use crate::attach::{
    AttachError, Attachments, DataPlane, DataPlaneError, Declared, Ending, HostSettings,
    OpenRequest,
};
use crate::event::NicState;
use crate::model::{Config, Direction, Group, GroupId, Nic, NicId, Peer, Ports, Rule, RuleMatch};
use crate::{Controller, Error};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::snapshot::{PortConfig, PortSlot, PortUid, RuleSlot, Snapshot};
use io::trace::Trace;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
pub struct World {
    /// Path by slot.
    pub open: BTreeMap<u32, String>,
    /// What was done, in order.
    pub log: Vec<String>,
    /// How the NICs were declared that were opened, changed or tried again, in order.
    pub declared: Vec<Declared>,
    /// Paths that cannot be opened.
    pub refused: BTreeSet<String>,
    pub refuse_publish: bool,
    /// What becomes of a broken NIC that is tried again, by its id.
    pub heals: HashMap<String, NicState>,
    /// Something goes on of what was closed: set when somebody has waited for it.
    pub ending: Option<Arc<AtomicBool>>,
    pub snapshots: Vec<Arc<Snapshot>>,
    pub ports: HashMap<u32, PortCounters>,
    pub rules: HashMap<u32, RuleCounters>,
}

#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// The log since it was last asked for.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.world().log)
    }

    fn close_one(&mut self, nic: &Nic, slot: PortSlot) {
        let mut world = self.world();
        world.log.push(format!("close {}", nic.id));
        world.open.remove(&slot.0).expect("closed what is not open");
        let in_force = world
            .snapshots
            .last()
            .and_then(|s| s.ports.get(slot.0 as usize).cloned().flatten());
        assert!(
            in_force.is_none(),
            "slot {slot:?} closed while a snapshot in force has it"
        );
    }
}

impl Attachments for Shared {
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let mut world = self.world();
        world.declared.push(request.declared);
        if world.refused.contains(request.path) {
            return Err(AttachError(format!("{}: permission denied", request.path)));
        }
        let taken = world
            .open
            .values()
            .any(|path| path == request.path && !path.is_empty());
        assert!(!taken, "{} is open already", request.path);
        world
            .log
            .push(format!("open {} {}", request.nic.id, request.path));
        let before = world.open.insert(request.slot.0, request.path.to_owned());
        assert_eq!(before, None, "slot {:?} is in use", request.slot);
        Ok(())
    }

    fn give_socket(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let mut world = self.world();
        let said: Vec<String> = request.nic.socket.said().map(|(_, value)| value).collect();
        world.log.push(format!("give {} {said:?}", request.nic.id));
        match said.iter().any(|value| world.refused.contains(value)) {
            true => Err(AttachError(format!("{}: not permitted", said.join(" ")))),
            false => Ok(()),
        }
    }

    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]) {
        gone.iter()
            .for_each(|(nic, slot)| self.close_one(nic, *slot));
    }

    fn ending(&mut self) -> Option<Ending> {
        let ending = self.world().ending.take()?;
        Some(Ending::new(move || ending.store(true, Ordering::Relaxed)))
    }

    fn heal(&mut self, requests: &[OpenRequest<'_>]) -> Vec<Option<NicState>> {
        let mut world = self.world();
        let heal = requests.iter().map(|request| {
            world.declared.push(request.declared);
            world.log.push(format!("heal {}", request.nic.id));
            world.heals.get(request.nic.id.as_str()).cloned()
        });
        heal.collect()
    }

    fn reconfigure(&mut self, request: &OpenRequest<'_>) {
        let mut world = self.world();
        world.declared.push(request.declared);
        world.log.push(format!(
            "reconfigure {} {}{}",
            request.nic.mac,
            request.mtu,
            if request.nic.link_down {
                " link down"
            } else {
                ""
            }
        ));
    }

    fn trace(&mut self, nic: &Nic, path: &str) -> Result<Option<Trace>, AttachError> {
        let mut world = self.world();
        if world.refused.contains(path) {
            return Err(AttachError(format!("{path}: permission denied")));
        }
        world.log.push(format!("trace {} {path}", nic.id));
        Ok(None)
    }
}

impl DataPlane for Shared {
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        let mut world = self.world();
        if world.refuse_publish {
            return Err(DataPlaneError("the worker is gone".to_owned()));
        }
        if let Some(before) = world.snapshots.last() {
            assert!(before.epoch < snapshot.epoch);
        }
        for port in snapshot.ports.iter().flatten() {
            assert!(
                world.open.contains_key(&port.slot.0),
                "{:?} is published and not open",
                port.slot
            );
        }
        world.snapshots.push(snapshot);
        Ok(())
    }

    fn port_counters(&self, slot: PortSlot) -> PortCounters {
        self.world().ports.get(&slot.0).cloned().unwrap_or_default()
    }

    fn rule_counters(&self, slot: RuleSlot) -> RuleCounters {
        self.world().rules.get(&slot.0).copied().unwrap_or_default()
    }

    fn flows(&self, _port: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError> {
        Ok(Vec::new())
    }

    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError> {
        Ok(flows.len())
    }

    fn remove_flows(&self, _: &[FlowInfo]) -> Result<usize, DataPlaneError> {
        Ok(0)
    }
}

pub fn controller() -> (Controller, Shared) {
    let shared = Shared::default();
    let settings = HostSettings {
        pid: 42,
        started_unix_secs: 7,
        overlay: true,
        ..HostSettings::default()
    };
    (
        Controller::new(settings, Box::new(shared.clone()), Arc::new(shared.clone())),
        shared,
    )
}

pub fn nic_id(id: &str) -> NicId {
    NicId::new(id).unwrap()
}

pub fn group_id(id: &str) -> GroupId {
    GroupId::new(id).unwrap()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A NIC of VNI 42 with the last octet of its MAC and of its one address, 42.0.0.`last`, in
/// `groups`.
pub fn nic(id: &str, last: u8, groups: &[&str]) -> Nic {
    Nic {
        ips: vec![IpAddr::from([42, 0, 0, last])],
        security_groups: groups.iter().map(|id| group_id(id)).collect(),
        ..Nic::new(
            nic_id(id),
            wire::Mac([0x52, 0x54, 0, 0x12, 0x34, last]),
            wire::Vni::new(42).unwrap(),
        )
    }
}

pub fn group(id: &str, members: &[&str], rules: &[Rule]) -> Group {
    Group {
        members: members.iter().map(|text| ip(text)).collect(),
        rules: rules.iter().cloned().collect(),
        ..Group::new(group_id(id))
    }
}

pub fn tcp(port: u16, peer: Peer) -> Rule {
    let ports = RuleMatch::Ports(Ports {
        start: port,
        end: port,
    });
    Rule::new(Direction::Ingress, Some(6), ports, peer).unwrap()
}

pub fn config(nics: Vec<Nic>, groups: Vec<Group>) -> Config {
    Config {
        nics: nics.into_iter().map(|nic| (nic.id.clone(), nic)).collect(),
        groups: groups
            .into_iter()
            .map(|group| (group.id.clone(), group))
            .collect(),
        ..Config::empty()
    }
}

/// The compiled NIC, in the snapshot in force.
pub fn port(controller: &Controller, shared: &Shared, id: &str) -> Arc<PortConfig> {
    let slot = controller.nic(&nic_id(id)).unwrap().slot;
    let world = shared.world();
    world.snapshots.last().unwrap().ports[slot.0 as usize]
        .clone()
        .unwrap()
}

/// The compiled group, in the snapshot in force; `None`: nothing refers to the name, or there is no
/// such group.
pub fn compiled(
    controller: &Controller,
    shared: &Shared,
    id: &str,
) -> Option<Arc<dataplane::snapshot::Group>> {
    let idx = controller.state().groups.get(&group_id(id))?.idx;
    shared
        .world()
        .snapshots
        .last()
        .unwrap()
        .groups
        .get(idx.0 as usize)
        .cloned()
        .flatten()
}

/// What a group stands for, sorted.
pub fn members(controller: &Controller, shared: &Shared, id: &str) -> Vec<String> {
    let mut all: Vec<IpAddr> = compiled(controller, shared, id)
        .iter()
        .flat_map(|group| group.members.iter())
        .copied()
        .collect();
    all.sort();
    all.iter().map(IpAddr::to_string).collect()
}

/// Runs an operation that is to be refused, and insists that nothing whatever has changed.
pub fn refused<T: std::fmt::Debug>(
    controller: &mut Controller,
    shared: &Shared,
    operation: impl FnOnce(&mut Controller) -> Result<T, Error>,
) -> String {
    let before = (
        controller.config(),
        controller.status(),
        super::incremental::canonical(controller),
    );
    let open = shared.world().open.clone();
    let published = shared.world().snapshots.len();
    let error = operation(controller).expect_err("was to be refused");
    assert!(
        before.0 == controller.config(),
        "{error}: the configuration has changed"
    );
    assert_eq!(before.1, controller.status(), "{error}");
    assert_eq!(
        before.2,
        super::incremental::canonical(controller),
        "{error}"
    );
    assert_eq!(
        open,
        shared.world().open,
        "{error}: something is open that was not, or closed"
    );
    assert_eq!(
        published,
        shared.world().snapshots.len(),
        "{error}: something was published"
    );
    error.to_string()
}

//! The largest overlay, alone in its process so that what it takes can be read off: a million MACs of 350,000 VNIs on
//! 10,667 hosts, one address each. It comes in one step, is asked for, one more is refused, and it goes in one step.

use butterfly_control::model::{Binding, Config, Nic};
use butterfly_control::{
    AttachError, Attachments, Controller, DataPlane, DataPlaneError, OpenRequest, Settings, limits,
};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::snapshot::{PortSlot, PortUid, RuleSlot, Snapshot};
use io::trace::Trace;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wire::{Mac, Vni};

/// What docs/limits.md states, in MiB, for all of it.
const STATED_MIB: usize = 400;

#[test]
fn a_million_bindings_take_what_the_documentation_says() {
    let stated = format!("{STATED_MIB} MiB");
    assert!(
        include_str!("../../../docs/limits.md").contains(&stated),
        "{stated}"
    );
    let snapshots = Arc::new(Nowhere::default());
    let mut controller = Controller::new(
        Settings::default(),
        Box::new(Nowhere::default()),
        snapshots.clone(),
    );

    let before = resident_mib();
    controller.put_bindings(million().collect()).unwrap();
    let taken = resident_mib() - before;
    println!("a million bindings take {taken} MiB");
    // Memory that the operation itself needed and has not been given back by the allocator is counted, too.
    assert!(taken <= STATED_MIB, "{taken} MiB");
    let status = controller.status();
    assert_eq!(
        (status.bindings, status.vnis, status.endpoints),
        (limits::BINDINGS, limits::VNIS, limits::ENDPOINTS)
    );

    let vni = Vni::new(7).unwrap();
    assert_eq!(controller.network(vni).bindings, 3);
    let known = controller.endpoints().next().unwrap().endpoint.address;
    let one_more = Binding::new(vni, Mac([2, 1, 0, 0, 0, 0]), known);
    let error = controller.put_bindings(vec![one_more]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the daemon would have 1000001 bindings, the limit is 1000000"
    );

    controller.apply(Config::default(), false).unwrap();
    assert_eq!(controller.config(), Config::default());
    // Nobody here is in any of these networks: what is compiled is who may send at all.
    assert!(snapshots.0.load(Ordering::Relaxed) <= 2);
}

/// MAC n is in VNI n % 350,000, at host n % 10,667.
fn million() -> impl Iterator<Item = Binding> {
    (0..limits::BINDINGS).map(|n| {
        let [a, b, c, d] = (n as u32).to_be_bytes();
        let vni = Vni::new((n % limits::VNIS) as u32).unwrap();
        let host = IpAddr::from((0x0a00_0001 + (n % limits::ENDPOINTS) as u32).to_be_bytes());
        Binding {
            ips: [IpAddr::from([42, b, c, d])].into(),
            ..Binding::new(vni, Mac([2, 0, a, b, c, d]), host)
        }
    })
}

/// What this process has in memory (proc(5), `VmRSS`).
fn resident_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

/// A world in which there is nothing but a count of snapshots.
#[derive(Default)]
struct Nowhere(AtomicUsize);

impl Attachments for Nowhere {
    fn open(&mut self, _: &OpenRequest<'_>) -> Result<(), AttachError> {
        Ok(())
    }
    fn close(&mut self, _: &Nic, _: PortSlot) {}
    fn trace(&mut self, _: &Nic, _: &str) -> Result<Option<Trace>, AttachError> {
        Ok(None)
    }
}

impl DataPlane for Nowhere {
    fn publish(&self, _: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        self.0.fetch_add(1, Ordering::Relaxed);
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
}

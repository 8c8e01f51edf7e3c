//! A world with nothing in it, for tests of how much the model itself takes.

use butterfly_control::model::Nic;
use butterfly_control::{AttachError, Attachments, DataPlane, DataPlaneError, OpenRequest};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::snapshot::{PortSlot, PortUid, RuleSlot, Snapshot};
use io::trace::Trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What this process has in memory (proc(5), `VmRSS`), bytes.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// A world in which there is nothing but a count of snapshots.
#[derive(Default)]
pub struct Nowhere(pub AtomicUsize);

impl Attachments for Nowhere {
    fn open(&mut self, _: &OpenRequest<'_>) -> Result<(), AttachError> {
        Ok(())
    }
    fn close(&mut self, _: &[(Arc<Nic>, PortSlot)]) {}
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
    fn remove_flows(&self, _: &[FlowInfo]) -> Result<usize, DataPlaneError> {
        Ok(0)
    }
}

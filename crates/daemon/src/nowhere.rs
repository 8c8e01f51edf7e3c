//! For tests of what is between an API and the store: a world in which there is nothing, and a disk
//! in memory that may fail.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use control::model::Nic;
use control::{AttachError, Attachments, DataPlane, DataPlaneError, OpenRequest};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::{PortSlot, PortUid, RuleSlot, Snapshot, Trace};
use store::{Keep, StorageBackend, Store};

/// A world in which there is nothing.
pub struct Nowhere;

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

/// A disk in memory, which takes what is written also while it syncs nothing.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Syncs that will fail.
    pub failing: Arc<AtomicU32>,
}

impl Disk {
    pub fn store(&self) -> Store {
        let disk = self.clone();
        Store::on("the disk", Keep::default(), move || disk.clone()).unwrap()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (bytes, offset) = (self.bytes.lock().unwrap(), offset as usize);
        let part = bytes.get(offset..offset + out.len());
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let fewer = |left: u32| left.checked_sub(1);
        let (set, read) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.failing.fetch_update(set, read, fewer) {
            Ok(_) => Err(io::Error::other("the disk is ill")),
            Err(_) => Ok(()),
        }
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut bytes, offset) = (self.bytes.lock().unwrap(), offset as usize);
        let part = bytes.get_mut(offset..offset + data.len());
        let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
        part.copy_from_slice(data);
        Ok(())
    }
}

//! On which CPUs the balancer's program worked: clients are pinned, since a veth's packets are
//! handled where they are sent.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use testkit::{Result, cpus};

/// Runs the calling thread, and what it starts, on one CPU at a time; on all of them again when
/// dropped.
pub struct Pinned {
    all: Vec<usize>,
}

impl Pinned {
    /// On the first.
    pub fn new() -> Self {
        let pinned = Self {
            all: cpus::allowed(),
        };
        pinned.to(0);
        pinned
    }

    /// On the `n`th, round and round; gives its number.
    pub fn to(&self, n: usize) -> usize {
        let cpu = self.all[n % self.all.len()];
        cpus::stay_on(&[cpu]);
        cpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        cpus::stay_on(&self.all);
    }
}

/// Packets that each CPU has sent to servers, by the daemon's own map.
pub fn packets_by_cpu(daemon: u32) -> Result<BTreeMap<usize, u64>> {
    let map = map_of(daemon, "server_counters")?;
    let mut packets = BTreeMap::new();
    for key in map.keys() {
        let values = map
            .lookup_percpu(&key, MapFlags::ANY)
            .map_err(|e| format!("server_counters: {e}"))?;
        for (cpu, value) in values.unwrap_or_default().iter().enumerate() {
            let word = value
                .first_chunk()
                .ok_or("server_counters has short values")?;
            *packets.entry(cpu).or_default() += u64::from_ne_bytes(*word);
        }
    }
    Ok(packets)
}

/// A process's per-CPU map of that name, by the ids that its descriptors say.
fn map_of(pid: u32, name: &str) -> Result<MapHandle> {
    let dir = format!("/proc/{pid}/fdinfo");
    let entries = std::fs::read_dir(&dir).map_err(|e| format!("{dir}: {e}"))?;
    for entry in entries.flatten() {
        // One that was closed meanwhile says nothing.
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"));
        let Some(id) = id.and_then(|id| id.trim().parse().ok()) else {
            continue;
        };
        let map = MapHandle::from_map_id(id).map_err(|e| format!("map {id}: {e}"))?;
        let per_cpu = matches!(map.map_type(), MapType::PercpuArray);
        if map.name() == name && per_cpu {
            return Ok(map);
        }
    }
    Err(format!("process {pid} has no map {name}"))
}

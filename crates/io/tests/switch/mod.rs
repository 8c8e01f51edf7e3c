//! The rest of the switch, as far as a vhost-user server needs it: ports are kept, and frames
//! flooded, by hand.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use butterfly_io::frame::Batch;
use butterfly_io::port::{Port, PortError};
use butterfly_io::vhost::{NicOptions, PortKey, PortSink, PortState};
use wire::Mac;

pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
pub struct Switch {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Inner {
    /// By NIC and queue pair.
    pub ports: BTreeMap<(PortKey, u16), Port>,
    /// All states that were told, in order.
    pub states: Vec<(PortKey, PortState)>,
    pub announced: Vec<PortKey>,
    /// All ports that were handed over, in order.
    pub attached: Vec<(PortKey, u16)>,
}

impl PortSink for Switch {
    fn attach(&self, key: PortKey, pair: u16, port: Port) {
        let mut inner = self.lock();
        inner.attached.push((key, pair));
        assert!(
            inner.ports.insert((key, pair), port).is_none(),
            "two ports for pair {pair} of {key:?}"
        );
        self.changed.notify_all();
    }

    fn detach(&self, key: PortKey, pair: u16) -> Option<Port> {
        self.lock().ports.remove(&(key, pair))
    }

    fn state(&self, key: PortKey, state: PortState) {
        self.lock().states.push((key, state));
        self.changed.notify_all();
    }

    fn announce(&self, key: PortKey) {
        self.lock().announced.push(key);
    }
}

impl Switch {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that failed with the lock in hand has said what there is to say.
        self.inner
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Every port's frames, but for those with a fault, go to every other port, once. Gives what
    /// ports said when they broke.
    pub fn turn(&self) -> Vec<(PortKey, PortError)> {
        let mut broken = Vec::new();
        let mut batch = Batch::new();
        let mut inner = self.lock();
        let keys: Vec<(PortKey, u16)> = inner.ports.keys().copied().collect();
        for from in &keys {
            let source = inner.ports.get_mut(from).unwrap();
            if let Err(error) = source.receive(&mut batch) {
                broken.push((from.0, error));
            }
            for (to, target) in inner.ports.iter_mut().filter(|(to, _)| to.0 != from.0) {
                for (index, frame) in batch.frames().iter().enumerate() {
                    if frame.fault().is_none() {
                        let _ = target.transmit(&batch, index);
                    }
                }
                if let Err(error) = target.flush() {
                    broken.push((to.0, error));
                }
            }
            inner.ports.get_mut(from).unwrap().complete(&mut batch);
        }
        broken
    }

    /// The state told last.
    pub fn state_of(&self, key: PortKey) -> Option<PortState> {
        self.lock()
            .states
            .iter()
            .rev()
            .find(|(of, _)| *of == key)
            .map(|(_, state)| state.clone())
    }

    pub fn states_of(&self, key: PortKey) -> Vec<PortState> {
        self.lock()
            .states
            .iter()
            .filter(|(of, _)| *of == key)
            .map(|(_, state)| state.clone())
            .collect()
    }

    /// Waits until the state told last is this one.
    pub fn wait_for(&self, key: PortKey, wanted: &PortState) {
        let deadline = Instant::now() + PATIENCE;
        let mut inner = self.lock();
        while inner
            .states
            .iter()
            .rev()
            .find(|(of, _)| *of == key)
            .map(|(_, state)| state)
            != Some(wanted)
        {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "{key:?} does not become {wanted:?}: {:?}",
                inner.states
            );
            inner = self.changed.wait_timeout(inner, left).unwrap().0;
        }
    }
}

pub fn nic(name: &str) -> NicOptions {
    NicOptions {
        name: name.to_owned(),
        network: None,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: Some(1500),
        offloads: true,
        link_up: true,
        pairs: 1,
        missing_pages: Default::default(),
        page_helper: None,
    }
}

/// A program in `dir` that is to wait for pages, and never says a word.
pub fn silent_helper(dir: &Path) -> &'static Path {
    let program = dir.join("silent");
    std::fs::write(&program, "#!/bin/sh\nexec /bin/cat\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
    Box::leak(program.into_boxed_path())
}

/// Descriptors that this process has open.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

//! Ports that are made while the daemon starts wait here, and reach the workers when those know
//! where the connections of the daemon before are: a frame that was judged sooner would find none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dataplane::{QueueId, Switch, WorkerGone};
use io::port::Port;

type Ports = BTreeMap<QueueId, Port>;

/// The way of ports to the workers.
pub struct StartGate {
    switch: Arc<Switch>,
    /// `None`: the start is over, and nothing waits.
    waiting: Mutex<Option<Ports>>,
}

impl StartGate {
    /// Closed: see [`open`](StartGate::open).
    pub fn new(switch: Arc<Switch>) -> StartGate {
        StartGate {
            switch,
            waiting: Mutex::new(Some(Ports::new())),
        }
    }

    /// The workers.
    pub fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    /// Gives the workers what waits, and from now on everything at once.
    pub fn open(&self) -> Result<(), WorkerGone> {
        let mut waiting = self.lock();
        let ports = waiting.take().unwrap_or_default();
        // At once, whichever workers have them: what the first one sends is for the last one, too.
        self.switch.pause()?;
        self.switch.attach_all(ports.into_iter().collect())?;
        self.switch.resume()
    }

    /// Has queues of uplinks that wait here go on where another process has left them; what it says
    /// of them, by their names ([`XskPort::left`](io::xsk::XskPort::left)).
    ///
    /// # Errors
    /// A sentence: one is not here, or it was left as it cannot be.
    pub fn take_up(&self, mut left: BTreeMap<String, Vec<u8>>) -> Result<(), String> {
        let mut waiting = self.lock();
        for port in waiting.iter_mut().flat_map(Ports::values_mut) {
            if let Some(port) = port.as_xsk().filter(|port| port.is_idle()) {
                let left = left.remove(port.name());
                port.take_up(left.as_deref())?;
            }
        }
        match left.into_keys().next() {
            Some(name) => Err(format!("{name} is not gone on with")),
            None => Ok(()),
        }
    }

    /// [`Switch::attach`], once the gate is open.
    pub fn attach(&self, queue: QueueId, port: Port) -> Result<(), WorkerGone> {
        let mut waiting = self.lock();
        match &mut *waiting {
            Some(ports) => {
                ports.insert(queue, port);
                Ok(())
            }
            None => {
                drop(waiting);
                self.switch.attach(queue, port).map(drop)
            }
        }
    }

    /// [`Switch::detach`], also of what waits.
    pub fn detach(&self, queue: QueueId) -> Result<Option<Port>, WorkerGone> {
        let mut waiting = self.lock();
        match &mut *waiting {
            Some(ports) => Ok(ports.remove(&queue)),
            None => {
                drop(waiting);
                self.switch.detach(queue)
            }
        }
    }

    /// [`Switch::detach_all`], also of what waits.
    pub fn detach_all(&self, queues: &[QueueId]) -> Result<Vec<(QueueId, Port)>, WorkerGone> {
        let mut waiting = self.lock();
        match &mut *waiting {
            Some(ports) => {
                let take = |&queue: &QueueId| Some((queue, ports.remove(&queue)?));
                Ok(queues.iter().filter_map(take).collect())
            }
            None => {
                drop(waiting);
                self.switch.detach_all(queues)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ports>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use dataplane::{Now, PortSlot, Worker, WorkerConfig};
    use io::memory_port::{MemoryPeer, MemoryPort};

    use super::*;

    /// A worker that turns when it is told to, beside whoever asks it for something.
    struct Beside {
        worker: Worker,
        millis: u64,
    }

    impl Beside {
        /// Frames that it receives in a turn.
        fn turn(&mut self) -> usize {
            self.millis += 1;
            let now = Now {
                mono_ns: self.millis * 1_000_000,
                unix_ns: 0,
            };
            self.worker.turn(now).frames
        }

        /// What is answered, and how many frames it receives until then.
        fn until<T: Send>(&mut self, asked: impl FnOnce() -> T + Send) -> (T, usize) {
            std::thread::scope(|scope| {
                let asked = scope.spawn(asked);
                let mut frames = 0;
                while !asked.is_finished() {
                    frames += self.turn();
                    std::thread::yield_now();
                }
                (asked.join().unwrap(), frames)
            })
        }
    }

    /// An uplink that has a frame already: what a NIC sends waits until it is published as well.
    fn sender() -> (Port, MemoryPeer) {
        let (port, peer) = MemoryPort::pair();
        assert!(peer.send(vec![0; 60], Default::default()));
        (port.into(), peer)
    }

    #[test]
    fn ports_are_not_polled_before_it_is_open() {
        let config = |_| WorkerConfig {
            max_flows: 16,
            max_fragments: 16,
            max_learned_macs: 16,
            seed: 3,
            on_broken: Box::new(|_, _| {}),
        };
        let (switch, mut workers) = Switch::new(1, config).unwrap();
        let mut worker = Beside {
            worker: workers.remove(0),
            millis: 0,
        };
        let gate = StartGate::new(Arc::new(switch));
        let mut peers = Vec::new();
        for slot in 1..=3 {
            let (port, peer) = sender();
            let queue = PortSlot::uplink(slot).into();
            assert_eq!(worker.until(|| gate.attach(queue, port)), (Ok(()), 0));
            peers.push(peer);
        }
        let (gone, frames) = worker.until(|| gate.detach(PortSlot::uplink(1).into()));
        assert_eq!((gone.unwrap().is_some(), frames), (true, 0));
        assert!((0..100).all(|_| worker.turn() == 0));

        let (opened, amid) = worker.until(|| gate.open());
        assert_eq!(opened, Ok(()));
        let behind: usize = (0..100).map(|_| worker.turn()).sum();
        assert_eq!(amid + behind, 2, "the others' frames");
        let (port, _peer) = sender();
        let (attached, amid) = worker.until(|| gate.attach(PortSlot::uplink(1).into(), port));
        assert_eq!(attached, Ok(()));
        let behind: usize = (0..100).map(|_| worker.turn()).sum();
        assert_eq!(amid + behind, 1, "nothing waits any more");
    }
}

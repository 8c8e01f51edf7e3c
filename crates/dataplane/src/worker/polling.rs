//! Which queues are polled, and how a worker sleeps: the one file of this crate that waits.
//!
//! Only *active* ports are polled. A port that has been quiet for [`PARK_AFTER_NS`] is *parked*:
//! armed, so that its peer wakes us, and left alone until the poller reports it. So a thousand
//! quiet guests cost a busy one nothing but the look at the poller every [`LOOK_EVERY_NS`], and
//! going to sleep costs what was active before.
//!
//! The *sockets* of uplinks are in the poller only while the worker sleeps, and for
//! [`PARK_AFTER_NS`] after: each buffer that the kernel frees behind a frame that was sent would
//! run through it. An awake worker looks at their rings itself: 958 to 1,014 thousand frames of 64
//! bytes a second to the wire where it was 893 to 896 (docs/journal/2026-11-23-overlay.md).

use std::os::fd::AsFd;
use std::time::Duration;

use io::port::Port;
use sys::poll::{Doorbell, Poller};

use super::Worker;
use crate::ports::Attached;
use crate::queue::QueueId;
use crate::time::Now;

/// The poller's token of the doorbell; ports have their slot.
const BELL: u64 = u64::MAX;

/// How long a port is polled after its last frame, and how often parked ports are looked at
/// meanwhile.
const PARK_AFTER_NS: u64 = 1_000_000;
const LOOK_EVERY_NS: u64 = 50_000;

/// What a worker polls, and what it waits with.
pub(super) struct Polling {
    /// The ports that are polled; all others are parked.
    pub active: Vec<QueueId>,
    pub parked: usize,
    /// The ports that are looked at in memory when they are parked: see
    /// [`Port::look`](io::port::Port::look).
    sockets: Vec<QueueId>,
    /// Ports that were parked without being served: see [`Worker::is_served`].
    unserved: Vec<QueueId>,
    looked_at_ns: u64,
    woke_at_ns: u64,
    pub(super) poller: Poller,
    /// The poller has reported the doorbell: it is to be answered, whether or not it says that it
    /// was rung.
    pub called: bool,
}

impl Polling {
    /// Fails when the process is out of descriptors.
    pub fn new(bell: &Doorbell) -> std::io::Result<Polling> {
        let poller = Poller::new()?;
        poller.add(bell.as_fd(), BELL)?;
        Ok(Polling {
            active: Vec::new(),
            parked: 0,
            sockets: Vec::new(),
            unserved: Vec::new(),
            looked_at_ns: 0,
            woke_at_ns: 0,
            poller,
            called: false,
        })
    }

    /// The worker has slept: the poller has just spoken.
    pub fn note_awake(&mut self, now: Now) {
        self.looked_at_ns = now.mono_ns;
        self.woke_at_ns = now.mono_ns;
    }

    /// It is time to look at what is parked.
    #[inline]
    pub fn is_due(&self, now: Now) -> bool {
        let watches = self.parked > 0 || !self.sockets.is_empty();
        watches && now.mono_ns.wrapping_sub(self.looked_at_ns) >= LOOK_EVERY_NS
    }

    /// A port has come, and is polled. True when its peer can wake the worker.
    pub fn enrol(&mut self, queue: QueueId, port: &mut Port) -> bool {
        self.active.push(queue);
        if port.look().is_some() {
            self.sockets.push(queue);
            return true;
        }
        match port.add_to(&self.poller, queue.token()) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::warn!(slot = queue.slot.0, %error, "a port cannot wake its worker, which \
                                                             will poll it");
                false
            }
            None => false,
        }
    }

    /// A port goes.
    pub fn strike(&mut self, queue: QueueId, attached: &mut Attached) {
        self.unserved.retain(|other| *other != queue);
        self.sockets.retain(|other| *other != queue);
        if attached.parked {
            self.parked -= 1;
        } else {
            self.active.retain(|other| *other != queue);
        }
        if let Some(fd) = attached.port.kick_fd() {
            // Fails only for a descriptor that epoll does not know: it is out already.
            let _ = self.poller.remove(fd);
        }
        attached.port.disarm();
    }
}

impl Worker {
    /// Sleeps until a port, a command or the next timer needs the worker, `longest` at most.
    /// Returns at once when there is work already.
    pub fn sleep(&mut self, now: Now, longest: Duration) {
        let timer = self
            .next_timer(now)
            .map(|at| Duration::from_nanos(at - now.mono_ns));
        let longest = timer.map_or(longest, |timer| timer.min(longest));
        let mut work = self.wake.bell.is_rung() || self.has_work();
        let mut index = 0;
        while let Some(&queue) = self.polling.active.get(index) {
            if !self.park(index) {
                // It has frames, or nothing to wake us with.
                let is_served = self.is_served(queue.slot);
                if let Some(attached) = self.ports.find(queue) {
                    if attached.hold.until_ns == 0 {
                        work |= is_served && attached.has_work();
                    } else {
                        attached.stop_watching(&self.polling.poller);
                    }
                }
                index += 1;
            }
        }
        if !work && self.wait_for_sockets(now) {
            self.wake.sleeps.begin();
            if self.inbox.is_empty() {
                self.path.tables.flows.sleep();
                self.wait(longest, now);
                self.path.tables.flows.wake();
                self.load.sleeps += 1;
                self.slept_at = Some(now.mono_ns);
                self.busy_since = None;
            }
            self.wake.sleeps.end();
        }
        for queue in &self.polling.active {
            if let Some(attached) = self.ports.find(*queue) {
                attached.port.disarm();
            }
        }
    }

    /// Puts the sockets into the poller. False when one has work, or cannot be waited for: do not
    /// sleep.
    fn wait_for_sockets(&mut self, now: Now) -> bool {
        for index in 0..self.polling.sockets.len() {
            let queue = self.polling.sockets[index];
            let Some(attached) = self.ports.find(queue) else {
                continue;
            };
            if attached.has_come() {
                self.poll_again(queue, now);
                return false;
            }
            if attached.in_poller || attached.broken {
                continue;
            }
            // What came since the look is reported at once.
            match attached.port.add_to(&self.polling.poller, queue.token()) {
                Some(Ok(())) => attached.in_poller = true,
                Some(Err(error)) => {
                    tracing::warn!(%error, "the worker cannot sleep");
                    return false;
                }
                None => {}
            }
        }
        true
    }

    /// An awake worker's look at what is parked.
    pub(super) fn look(&mut self, now: Now) {
        self.polling.looked_at_ns = now.mono_ns;
        // Not at once: a worker that is woken for a moment saves two system calls a socket, and the
        // first frame does not wait for them.
        let is_up_for_long = now.mono_ns.saturating_sub(self.polling.woke_at_ns) >= PARK_AFTER_NS;
        let mut seen = 0;
        for index in 0..self.polling.sockets.len() {
            let queue = self.polling.sockets[index];
            let Some(attached) = self.ports.find(queue) else {
                continue;
            };
            if is_up_for_long
                && std::mem::take(&mut attached.in_poller)
                && let Some(fd) = attached.port.kick_fd()
            {
                // Fails only for a descriptor that epoll does not know.
                let _ = self.polling.poller.remove(fd);
            }
            if attached.has_come() {
                self.poll_again(queue, now);
            } else {
                seen += usize::from(attached.parked);
            }
        }
        // All other ports are in the poller.
        if self.polling.parked > seen {
            self.wait(Duration::ZERO, now);
        }
    }

    /// Waits for the poller's descriptors, and polls the ports again that it reports.
    pub(super) fn wait(&mut self, longest: Duration, now: Now) {
        self.polling.looked_at_ns = now.mono_ns;
        match self.polling.poller.wait(Some(longest)) {
            Ok(tokens) => {
                for token in tokens {
                    if token == BELL {
                        self.polling.called = true;
                        continue;
                    }
                    let queue = QueueId::from_token(token);
                    let Some(attached) = self.ports.find(queue) else {
                        continue;
                    };
                    attached.port.kicked();
                    if attached.unpark(now) {
                        self.polling.parked -= 1;
                        self.polling.active.push(queue);
                    }
                }
            }
            // Nothing to wait with: poll, rather than lose frames.
            Err(error) => tracing::warn!(%error, "the worker cannot sleep"),
        }
    }

    /// A snapshot is in force: the NICs of some ports may have come, and what they sent before is
    /// waiting.
    pub(super) fn unpark_served(&mut self, now: Now) {
        // Limits may have changed.
        for index in 0..self.polling.active.len() {
            let queue = self.polling.active[index];
            if let Some(attached) = self.ports.find(queue) {
                attached.hold.until_ns = 0;
                attached.watch_again(&self.polling.poller, queue);
            }
        }
        for queue in std::mem::take(&mut self.polling.unserved) {
            if self.is_served(queue.slot) {
                self.poll_again(queue, now);
            } else {
                self.polling.unserved.push(queue);
            }
        }
    }

    fn poll_again(&mut self, queue: QueueId, now: Now) {
        let attached = self.ports.find(queue);
        if attached.is_some_and(|attached| attached.unpark(now)) {
            self.polling.parked -= 1;
            self.polling.active.push(queue);
        }
    }

    /// Nothing came from this port for a while.
    pub(super) fn is_quiet(&mut self, queue: QueueId, now: Now) -> bool {
        let attached = self.ports.find(queue);
        attached
            .is_some_and(|attached| now.mono_ns.saturating_sub(attached.heard_ns) >= PARK_AFTER_NS)
    }

    /// Arms an active port and stops polling it. False when it has frames already, or batches that
    /// are out, or nothing to wake us with. Frames of a port that is not served are no work: they
    /// wait for its NIC, and not we for them.
    pub(super) fn park(&mut self, index: usize) -> bool {
        let queue = self.polling.active[index];
        let is_served = self.is_served(queue.slot);
        let Some(attached) = self.ports.find(queue) else {
            return false;
        };
        if attached.hold.until_ns != 0 || !attached.wakes || !attached.out.is_empty() {
            return false;
        }
        if attached.has_work() && is_served {
            return false;
        }
        if !is_served && !self.polling.unserved.contains(&queue) {
            self.polling.unserved.push(queue);
        }
        attached.parked = true;
        self.polling.parked += 1;
        self.polling.active.swap_remove(index);
        true
    }

    /// When a table or a port has something to do next, in monotonic nanoseconds; `None`: nothing
    /// is waiting.
    pub fn next_timer(&self, now: Now) -> Option<u64> {
        let table = self.path.next_timer_ms(now);
        let table = table.map(|millis| now.mono_ns + u64::from(millis) * 1_000_000);
        let ticks = self.polling.active.iter().filter_map(|queue| {
            let attached = self.ports.peek(*queue)?;
            attached.hold.next_ns().or(attached.port.next_tick())
        });
        let queued = self.path.tables.shaper.next_ns();
        ticks
            .chain(table)
            .chain(queued)
            .min()
            .map(|at| at.max(now.mono_ns))
    }
}

impl Attached {
    /// It broke its protocol, or its device is gone: nothing that its peer does wakes the worker,
    /// which would have nothing to do for it.
    pub(super) fn breaks(&mut self, poller: &Poller) {
        self.broken = true;
        if let Some(fd) = self.port.kick_fd() {
            // Fails only for a descriptor that epoll does not know.
            let _ = poller.remove(fd);
        }
    }

    /// Takes a port that is held back out of the poller if that would report it meanwhile.
    fn stop_watching(&mut self, poller: &Poller) {
        if !self.hold.unwatched
            && self.port.is_reported_while_readable()
            && let Some(fd) = self.port.kick_fd()
        {
            // Fails only for a descriptor that epoll does not know.
            let _ = poller.remove(fd);
            self.hold.unwatched = true;
        }
    }

    /// And puts it back.
    pub(super) fn watch_again(&mut self, poller: &Poller, queue: QueueId) {
        if std::mem::take(&mut self.hold.unwatched)
            && let Some(Err(error)) = self.port.add_to(poller, queue.token())
        {
            tracing::warn!(slot = queue.slot.0, %error, "a port cannot wake its worker, which will \
                                                         poll it");
            self.wakes = false;
        }
    }

    /// A parked socket has work.
    fn has_come(&mut self) -> bool {
        self.parked && self.port.look() == Some(true)
    }

    /// The port is polled again; false if it was already.
    fn unpark(&mut self, now: Now) -> bool {
        let was_parked = std::mem::take(&mut self.parked);
        if was_parked {
            self.port.disarm();
            self.heard_ns = now.mono_ns;
        }
        was_parked
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use io::port::Port;
    use io::uplink::UplinkPort;
    use io::xsk::{XskPeer, XskPort};

    use super::*;
    use crate::handle::QueueArrival;
    use crate::snapshot::PortSlot;
    use crate::{Switch, WorkerConfig};

    fn one() -> (Switch, Worker) {
        let config = |_| WorkerConfig {
            max_flows: 16,
            max_fragments: 16,
            max_learned_macs: 16,
            seed: 1,
            on_broken: Box::new(|_, _| ()),
        };
        let (switch, mut workers) = Switch::new(1, config).unwrap();
        (switch, workers.remove(0))
    }

    /// Who rings does so in two steps and may be held up between them: the second may come when the
    /// bell was answered long ago. A worker that left it at that would be woken by it for ever.
    #[test]
    fn a_bell_that_is_heard_after_it_was_answered_wakes_once() {
        let (_switch, mut worker) = one();
        let mut late = File::from(worker.wake.bell.as_fd().try_clone_to_owned().unwrap());
        late.write_all(&1u64.to_ne_bytes()).unwrap();
        assert!(!worker.wake.bell.is_rung());

        worker.sleep(Now::default(), Duration::ZERO);
        worker.turn(Now::default());
        let still = worker
            .polling
            .poller
            .wait(Some(Duration::ZERO))
            .unwrap()
            .count();
        assert_eq!(still, 0, "it would wake the worker again");
    }

    fn at(micros: u64) -> Now {
        Now {
            mono_ns: micros * 1000,
            unix_ns: 0,
        }
    }

    /// A worker with one socket, parked, that has been awake for two milliseconds.
    fn with_socket() -> (Switch, Worker, XskPeer) {
        let (switch, mut worker) = one();
        let (port, peer) = XskPort::in_memory(64, 1500).unwrap();
        let arrival = QueueArrival {
            queue: PortSlot::uplink(0).into(),
            port: Box::new(Port::from(UplinkPort::from(port))),
            load: Default::default(),
        };
        worker.arrive(arrival, at(0));
        worker.turn(at(2000));
        assert!(worker.polling.active.is_empty(), "it is parked");
        (switch, worker, peer)
    }

    fn reported(worker: &mut Worker) -> usize {
        worker
            .polling
            .poller
            .wait(Some(Duration::ZERO))
            .unwrap()
            .count()
    }

    #[test]
    fn an_awake_worker_looks_at_its_sockets_without_the_poller() {
        let (_switch, mut worker, mut peer) = with_socket();
        assert!(peer.inject(&[0; 60], 0));
        assert_eq!(reported(&mut worker), 0, "it is not in the poller");
        assert_eq!(
            worker.turn(at(2049)).frames,
            0,
            "a look every 50 microseconds"
        );
        assert_eq!(worker.turn(at(2050)).frames, 1);
    }

    #[test]
    fn what_comes_on_the_way_to_sleep_keeps_the_worker_awake() {
        let (_switch, mut worker, mut peer) = with_socket();
        assert!(peer.inject(&[0; 60], 0));
        worker.sleep(at(2001), Duration::from_secs(100));
        assert_eq!((worker.load.sleeps, worker.turn(at(2002)).frames), (0, 1));
    }

    #[test]
    fn a_frame_wakes_a_worker_that_then_takes_the_socket_out_of_the_poller() {
        let (_switch, mut worker, mut peer) = with_socket();
        std::thread::scope(|scope| {
            // While it sleeps, or before.
            scope.spawn(|| assert!(peer.inject(&[0; 60], 0)));
            worker.sleep(at(2001), Duration::from_secs(100));
        });
        assert_eq!(worker.turn(at(3000)).frames, 1);
        // Asleep and awake again for a moment: it stays where it is.
        worker.sleep(at(3050), Duration::ZERO);
        worker.turn(at(4000));
        worker.turn(at(4999));
        assert!(peer.inject(&[0; 60], 0));
        assert_eq!(reported(&mut worker), 1);
        // For long: it is out.
        assert_eq!(worker.turn(at(5049)).frames, 1);
        assert!(peer.inject(&[0; 60], 0));
        assert_eq!(reported(&mut worker), 0);
    }

    #[test]
    fn a_socket_that_leaves_is_forgotten() {
        let (_switch, mut worker, mut peer) = with_socket();
        worker.sleep(at(2001), Duration::ZERO);
        let (_port, _) = worker.take_out(PortSlot::uplink(0).into(), true).unwrap();
        assert_eq!(
            (worker.polling.parked, worker.polling.sockets.len()),
            (0, 0)
        );
        assert!(peer.inject(&[0; 60], 0));
        assert_eq!(reported(&mut worker), 0);
    }
}

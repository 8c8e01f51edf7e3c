//! Which queues are polled, and how a worker sleeps.

use std::time::Duration;

use super::{BELL, Now, PARK_AFTER_NS, Worker};
use crate::ports::Attached;
use crate::queue::QueueId;

impl Worker {
    /// Sleeps until a port, a command or the next timer needs the worker, `longest` at most. Returns at once
    /// when there is work already.
    pub fn sleep(&mut self, now: Now, longest: Duration) {
        let timer = self
            .next_timer(now)
            .map(|at| Duration::from_nanos(at - now.mono_ns));
        let longest = timer.map_or(longest, |timer| timer.min(longest));
        let mut work = self.wake.bell.is_rung() || self.has_work();
        let mut index = 0;
        while let Some(&queue) = self.active.get(index) {
            if !self.park(index) {
                // It has frames, or nothing to wake us with.
                let is_served = self.is_served(queue.slot);
                work |= is_served && self.ports.find(queue).is_some_and(Attached::has_work);
                index += 1;
            }
        }
        if !work {
            self.wake.nap.begin();
            if self.inbox.is_empty() {
                self.path.tables.flows.sleep();
                self.wait(longest, now);
                self.path.tables.flows.wake();
                self.load.sleeps += 1;
                self.slept_at = Some(now.mono_ns);
                self.busy_since = None;
            }
            self.wake.nap.end();
        }
        for queue in &self.active {
            if let Some(attached) = self.ports.find(*queue) {
                attached.port.disarm();
            }
        }
    }

    /// Waits for the poller's descriptors, and polls the ports again that it reports.
    pub(super) fn wait(&mut self, longest: Duration, now: Now) {
        self.looked_at_ns = now.mono_ns;
        match self.poller.wait(Some(longest)) {
            Ok(tokens) => {
                for token in tokens {
                    if token == BELL {
                        self.called = true;
                        continue;
                    }
                    let queue = QueueId::from_token(token);
                    let Some(attached) = self.ports.find(queue) else {
                        continue;
                    };
                    attached.port.drain_kick();
                    if attached.unpark(now) {
                        self.parked -= 1;
                        self.active.push(queue);
                    }
                }
            }
            // Nothing to wait with: poll, rather than lose frames.
            Err(error) => tracing::warn!(%error, "the worker cannot sleep"),
        }
    }

    /// A snapshot is in force: the NICs of some ports may have come, and what they sent before is waiting.
    pub(super) fn unpark_served(&mut self, now: Now) {
        for queue in std::mem::take(&mut self.unserved) {
            if !self.is_served(queue.slot) {
                self.unserved.push(queue);
            } else if self
                .ports
                .find(queue)
                .is_some_and(|attached| attached.unpark(now))
            {
                self.parked -= 1;
                self.active.push(queue);
            }
        }
    }

    /// Nothing came from this port for a while.
    pub(super) fn is_quiet(&mut self, queue: QueueId, now: Now) -> bool {
        let attached = self.ports.find(queue);
        attached.is_some_and(|attached| now.mono_ns.saturating_sub(attached.heard_ns) >= PARK_AFTER_NS)
    }

    /// Arms an active port and stops polling it. False when it has frames already, or batches that are out, or nothing
    /// to wake us with. Frames of a port that is not served are no work: they wait for its NIC, and not we for them.
    pub(super) fn park(&mut self, index: usize) -> bool {
        let queue = self.active[index];
        let is_served = self.is_served(queue.slot);
        let Some(attached) = self.ports.find(queue) else {
            return false;
        };
        if !attached.wakes || !attached.out.is_empty() || attached.has_work() && is_served {
            return false;
        }
        if !is_served && !self.unserved.contains(&queue) {
            self.unserved.push(queue);
        }
        attached.parked = true;
        self.parked += 1;
        self.active.swap_remove(index);
        true
    }

    /// When a table or a port has something to do next, in monotonic nanoseconds; `None`: nothing is waiting.
    pub fn next_timer(&self, now: Now) -> Option<u64> {
        let table = self.path.next_timer_ms(now);
        let table = table.map(|millis| now.mono_ns + u64::from(millis) * 1_000_000);
        let ticks = self
            .active
            .iter()
            .filter_map(|queue| self.ports.peek(*queue)?.port.next_tick());
        ticks.chain(table).min().map(|at| at.max(now.mono_ns))
    }
}

impl Attached {
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

    use super::*;
    use crate::{Switch, WorkerConfig};

    /// Who rings does so in two steps and may be held up between them: the second may come when the bell was answered long
    /// ago. A worker that left it at that would be woken by it for ever.
    #[test]
    fn a_bell_that_is_heard_after_it_was_answered_wakes_once() {
        let config = |_| WorkerConfig {
            max_flows: 16,
            max_fragments: 16,
            max_learned_macs: 16,
            seed: 1,
            on_broken: Box::new(|_, _| ()),
        };
        let (_switch, mut workers) = Switch::new(1, config).unwrap();
        let worker = &mut workers[0];
        let mut late = File::from(worker.wake.bell.as_fd().try_clone_to_owned().unwrap());
        late.write_all(&1u64.to_ne_bytes()).unwrap();
        assert!(!worker.wake.bell.is_rung());

        worker.sleep(Now::default(), Duration::ZERO);
        worker.turn(Now::default());
        let still = worker.poller.wait(Some(Duration::ZERO)).unwrap().count();
        assert_eq!(still, 0, "it would wake the worker again");
    }
}

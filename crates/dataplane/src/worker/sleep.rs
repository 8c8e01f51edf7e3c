//! Which queues are polled, and how a worker sleeps.

use std::sync::atomic::{Ordering, fence};
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
                work |= self.ports.find(queue).is_some_and(Attached::has_work);
                index += 1;
            }
        }
        if !work {
            // That we sleep first, then the look at the rings: see `handoff.rs`.
            self.wake.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.inbox.is_empty() {
                self.path.tables.flows.sleep();
                self.wait(longest, now);
                self.path.tables.flows.wake();
                self.load.sleeps += 1;
                self.slept_at = Some(now.mono_ns);
                self.busy_since = None;
            }
            self.wake.asleep.store(false, Ordering::Relaxed);
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
                for token in tokens.filter(|token| *token != BELL) {
                    let queue = QueueId::from_token(token);
                    let Some(attached) = self.ports.find(queue) else {
                        continue;
                    };
                    attached.port.drain_kick();
                    if std::mem::take(&mut attached.parked) {
                        attached.port.disarm();
                        attached.heard_ns = now.mono_ns;
                        self.parked -= 1;
                        self.active.push(queue);
                    }
                }
            }
            // Nothing to wait with: poll, rather than lose frames.
            Err(error) => tracing::warn!(%error, "the worker cannot sleep"),
        }
    }

    /// Nothing came from this port for a while.
    pub(super) fn is_quiet(&mut self, queue: QueueId, now: Now) -> bool {
        let attached = self.ports.find(queue);
        attached.is_some_and(|attached| now.mono_ns.saturating_sub(attached.heard_ns) >= PARK_AFTER_NS)
    }

    /// Arms an active port and stops polling it. False when it has frames already, or batches that are out, or nothing
    /// to wake us with.
    pub(super) fn park(&mut self, index: usize) -> bool {
        let Some(attached) = self.ports.find(self.active[index]) else {
            return false;
        };
        if !attached.wakes || !attached.out.is_empty() || attached.has_work() {
            return false;
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

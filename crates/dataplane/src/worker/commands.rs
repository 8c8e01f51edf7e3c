//! What other threads ask of a worker, carried out between two batches.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Sender, TryRecvError};

use io::port::Port;
use wire::Vni;

use super::Worker;
use crate::dump::{self, Dump};
use crate::handle::{Command, QueueArrival};
use crate::learned::{HandedOverMac, News};
use crate::load::{QueueLoad, WorkerLoad};
use crate::queue::QueueId;
use crate::report;
use crate::time::Now;
use crate::trial;

/// How long a queue that is to go waits for its batches, nanoseconds. They come back within
/// microseconds; a worker that keeps one so long has stopped, and what it might still read stays
/// mapped.
const LEAVE_MAX_NS: u64 = 1_000_000_000;

/// A queue that waits for its batches to come back before it goes.
pub(super) struct Leaving {
    queue: QueueId,
    until_ns: u64,
    then: Then,
}

/// Where a queue goes.
enum Then {
    Back(Sender<Option<Box<Port>>>),
    /// Back, and another one takes its place.
    Replaced(QueueArrival, Sender<Option<Box<Port>>>),
    /// To another worker.
    Over(usize, Sender<bool>),
}

impl Worker {
    /// The part of a turn that answers other threads and other workers, and receives nothing.
    pub(crate) fn answer(&mut self, now: Now) {
        self.commands_only(now);
        // Nobody waits for frames but who is taken away.
        if !self.inbox.is_empty() {
            self.take_all(now);
        }
    }

    /// Somebody has asked for something.
    pub(crate) fn is_called(&self) -> bool {
        self.wake.bell.is_rung()
    }

    /// The part of a turn that answers other threads.
    pub(super) fn commands_only(&mut self, now: Now) -> usize {
        let mut commands = 0;
        if self.polling.called || self.wake.bell.is_rung() {
            self.polling.called = false;
            self.wake.bell.clear();
            commands = self.carry_out(now);
        }
        if self.publishing.is_some() {
            self.finish_publishing(now);
        }
        if !self.leaving.is_empty() {
            self.finish_leaving(now);
        }
        if self.ports.outbox.has_lent() {
            self.ports.outbox.collect();
        }
        let (flows, epoch) = (&self.path.tables.flows, self.path.view.epoch_mark());
        self.dumps.retain_mut(|dump| {
            let done = dump.step(flows, epoch, now);
            if done {
                dump.finish(flows);
            }
            !done
        });
        commands
    }

    /// Sends some of what was judged under the view before, and answers when nothing is left.
    fn finish_publishing(&mut self, now: Now) {
        if self.path.tables.shaper.has_old() {
            self.path.send_old(&mut self.ports, now);
            self.show_written();
        }
        if !self.path.tables.shaper.has_old()
            && let Some((answer, before)) = self.publishing.take()
        {
            // Who asked may have gone away.
            let _ = answer.send(before);
        }
    }

    /// Makes all copies that were put off.
    fn finish_floods(&mut self, now: Now) {
        self.path.tables.floods.hurry = false;
        if self.path.go_on_with_floods(&mut self.ports, now) {
            self.show_written();
        }
    }

    pub(super) fn carry_out(&mut self, now: Now) -> usize {
        let mut count = 0;
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return count,
                Err(TryRecvError::Disconnected) => {
                    // Nobody can ask for anything any more, not even to stop.
                    self.stopped = true;
                    return count;
                }
            };
            count += 1;
            if command.ends_floods() {
                self.finish_floods(now);
            }
            // Who asked may have gone away: an answer that nobody takes is no error.
            match command {
                Command::Publish(view, difference, generation, answer) => {
                    self.load.epoch = view.epoch().0;
                    let before = self.path.take_up(view, &difference, generation, now);
                    self.publishing = Some((answer, before));
                    self.finish_publishing(now);
                    self.unpark_served(now);
                }
                Command::Underlay(underlay, generation, answer) => {
                    let before = self.path.take_up_underlay(underlay, generation);
                    self.path.send_waiting(&mut self.ports, now);
                    self.flush();
                    self.ports.outbox.wake();
                    let _ = answer.send(before);
                }
                Command::Kernel(part, answer) => {
                    self.path.tables.flows.kernel = Some(part);
                    let _ = answer.send(());
                }
                Command::Entered(entered, answer) => {
                    let _ = answer.send(self.path.tables.flows.take_entered(&entered));
                }
                Command::Settle(answer) => {
                    let _ = answer.send(self.take_all(now).sent_on);
                }
                Command::Pause(paused, answer) => {
                    self.paused = paused;
                    let _ = answer.send(());
                }
                Command::Attach(arrival, answer) => {
                    if !arrival.queue.is_possible() {
                        let _ = answer.send(Some(arrival.port));
                    } else {
                        self.leave(arrival.queue, Then::Replaced(arrival, answer), now);
                    }
                }
                Command::Detach(queue, answer) => self.leave(queue, Then::Back(answer), now),
                Command::Move(queue, to, answer) => self.leave(queue, Then::Over(to, answer), now),
                Command::Flows(of, page, answer) => self.dumps.push(Dump {
                    of,
                    page,
                    found: Vec::new(),
                    answer,
                }),
                Command::Import(infos, answer) => {
                    let (view, flows) = (&self.path.view, &mut self.path.tables.flows);
                    let _ = answer.send(dump::import(view, flows, &infos, now));
                }
                Command::LeftFlows(left, answer) => {
                    self.path.tables.left = left;
                    let _ = answer.send(());
                }
                Command::TakeUp(some, answer) => {
                    let (view, tables) = (&self.path.view, &mut self.path.tables);
                    if let Some(left) = &tables.left {
                        left.take_up_some(view, &mut tables.flows, &some, now);
                    }
                    let _ = answer.send(());
                }
                Command::LeaveFlows(answer) => {
                    self.path.leave_flows();
                    let _ = answer.send(());
                }
                Command::Remove(infos, answer) => {
                    let _ = answer.send(dump::remove(&mut self.path.tables.flows, &infos));
                }
                Command::LogFlows(log, answer) => {
                    let flows = &mut self.path.tables.flows;
                    flows.log = log;
                    flows.log_turn(now);
                    let _ = answer.send(());
                }
                Command::Sample(sampler, answer) => {
                    self.path.sampler = sampler;
                    let _ = answer.send(());
                }
                Command::Announce(slot, answer) => {
                    self.path.announce(slot, &mut self.ports, now);
                    self.flush();
                    let _ = answer.send(());
                }
                Command::Load(answer) => {
                    let _ = answer.send(self.load(now));
                }
                Command::Ports(of, answer) => {
                    let _ = answer.send(report::ports(&self.ports, of, now.mono_ns));
                }
                Command::Learn(heard, notes, answer) => {
                    let _ = answer.send(self.learn(&heard, notes));
                }
                Command::Learned(vni, answer) => {
                    let is_here = self.path.view.networks().any(|(_, is)| is == vni);
                    let learned = &self.path.tables.learned;
                    let heard = is_here.then(|| learned.of(vni, now.secs()));
                    let _ = answer.send(heard.unwrap_or_default());
                }
                Command::Trial(mut trial, answer) => {
                    let report = trial::run(&mut trial, &self.path, &self.ports, now);
                    let _ = answer.send((report, trial));
                }
                Command::Stop => self.stopped = true,
            }
        }
    }

    fn learn(&mut self, heard: &[HandedOverMac], notes: bool) -> usize {
        let (view, learned) = (&self.path.view, &mut self.path.tables.learned);
        let networks: HashSet<Vni> = view.networks().map(|(_, vni)| vni).collect();
        let taken = heard.iter().filter(|one| {
            let news = News {
                vni: one.vni,
                mac: one.mac,
                location: one.location,
            };
            networks.contains(&one.vni) && learned.take_up(&news, one.heard_secs, notes)
        });
        taken.count()
    }

    /// Lets a queue go as soon as its batches are back: mostly at once.
    fn leave(&mut self, queue: QueueId, then: Then, now: Now) {
        if let Some(attached) = self.ports.find(queue) {
            attached.leaving = true;
        }
        self.leaving.push(Leaving {
            queue,
            until_ns: now.mono_ns.saturating_add(LEAVE_MAX_NS),
            then,
        });
        self.finish_leaving(now);
    }

    /// Looks at the queues that are to go.
    fn finish_leaving(&mut self, now: Now) {
        let mut index = 0;
        while let Some(leaving) = self.leaving.get(index) {
            let (queue, until_ns) = (leaving.queue, leaving.until_ns);
            let back = match self.ports.sending(queue) {
                Some(mut sending) => sending.reclaim(now),
                None => true,
            };
            let late = !back && now.mono_ns >= until_ns;
            if late {
                tracing::warn!(
                    slot = queue.slot.0,
                    pair = queue.pair,
                    "another worker keeps frames of a port that is taken away"
                );
            }
            if back || late {
                let leaving = self.leaving.swap_remove(index);
                self.go(queue, leaving.then, now);
            } else {
                self.ports.outbox.drop_ended();
                index += 1;
            }
        }
    }

    fn go(&mut self, queue: QueueId, then: Then, now: Now) {
        // An answer that nobody takes is no error.
        match then {
            Then::Back(answer) => {
                let port = self.detach(queue);
                let _ = answer.send(port);
            }
            Then::Replaced(arrival, answer) => {
                let before = self.detach(queue);
                self.arrive(arrival, now);
                let _ = answer.send(before);
            }
            // Its next frames would overtake those that are still to be judged here.
            Then::Over(_, answer) if self.path.tables.late.has(queue) => {
                if let Some(attached) = self.ports.find(queue) {
                    attached.leaving = false;
                }
                let _ = answer.send(false);
            }
            Then::Over(to, answer) => {
                // The frames behind those of which copies are to be made come to another worker.
                self.finish_floods(now);
                let moved = self.move_to(queue, to, now);
                let _ = answer.send(moved);
            }
        }
    }

    /// Hands a queue to another worker. It stays on the map as ours until it is there; what comes
    /// for it until then is sent after it.
    fn move_to(&mut self, queue: QueueId, to: usize, now: Now) -> bool {
        let Some((port, load)) = self.take_out(queue, false) else {
            return false;
        };
        let arrival = QueueArrival { queue, port, load };
        let Some(handle) = self.handles.get(to) else {
            self.arrive(arrival, now);
            return false;
        };
        let (answer, _) = std::sync::mpsc::channel();
        match handle.commands.send(Command::Attach(arrival, answer)) {
            Ok(()) => {
                handle.bell.ring();
                self.ports.note_gone(queue, to);
                true
            }
            // That worker has ended: nothing was moved.
            Err(refused) => {
                if let Command::Attach(arrival, _) = refused.0 {
                    self.arrive(arrival, now);
                }
                false
            }
        }
    }

    pub(super) fn arrive(&mut self, arrival: QueueArrival, now: Now) {
        let QueueArrival {
            queue,
            mut port,
            load,
        } = arrival;
        let wakes = self.polling.enrol(queue, &mut port);
        self.ports.attach(queue, port, load, wakes, now.mono_ns);
    }

    fn detach(&mut self, queue: QueueId) -> Option<Box<Port>> {
        self.take_out(queue, true).map(|(port, _)| port)
    }

    pub(super) fn take_out(
        &mut self,
        queue: QueueId,
        off_the_map: bool,
    ) -> Option<(Box<Port>, Arc<QueueLoad>)> {
        let mut attached = match off_the_map {
            true => self.ports.detach(queue)?,
            false => self.ports.take(queue)?,
        };
        self.polling.strike(queue, &mut attached);
        Some((attached.port, attached.load))
    }

    fn load(&self, now: Now) -> WorkerLoad {
        let tables = &self.path.tables;
        WorkerLoad {
            at_ns: now.mono_ns,
            queues: (self.polling.active.len() + self.polling.parked) as u64,
            handed_over: self.ports.handed_over,
            flows: tables.flows.len().into(),
            flows_evicted: tables.flows.evicted(),
            steps: self.path.watch.steps(),
            datagrams: tables.fragments.len() as u64,
            held_fragments: tables.fragments.held() as u64,
            waiting_frames: tables.waiting.len() as u64,
            waited_frames: tables.waiting.waited,
            learned_macs: tables.learned.len() as u64,
            ..self.load
        }
    }
}

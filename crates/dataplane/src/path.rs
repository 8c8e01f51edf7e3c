//! The path of a frame, from its sender to its targets: read `round` below from top to bottom, and
//! `judge` at the end. What comes from the wire (`run_arriving`) is taken out of its outer headers
//! first, and then goes the same way.

mod late_frames;

use std::collections::VecDeque;
use std::sync::Arc;

use io::frame::{BATCH, Batch, Bits};
use io::trace::capture::Effort;
use wire::build;
use wire::offload::Offload;

use crate::config::WorkerConfig;
use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::floods::Floods;
use crate::flow::Flows;
use crate::fragments::{Fragments, Held};
use crate::ids::{NetworkIdx, PortSlot, PortUid};
use crate::late::{Late, LateFrame};
use crate::learned::LearnedMacs;
use crate::limits::Meter;
use crate::overlay::TunnelSource;
use crate::ports::Ports;
use crate::queue::QueueId;
use crate::replies::Replies;
use crate::round::Wait;
use crate::round::{Case, Fate, Item, Job, NO_CASE, Round, Tables, Verdict};
use crate::sampling::{self, Sampler};
use crate::searches::Searches;
use crate::shaper::{Shaper, Taken};
use crate::stages::fast_path::FastPath;
use crate::stages::{
    always, deliver, destination, encapsulate, fragments, known, late, log, merge, neighbours,
    outer, parse, put_off, remember, rules, spoof, wait,
};
use crate::time::Now;
use crate::trial::live::{Live, Outcome, Passed};
use crate::trial::{self, Stage};
use crate::underlay::Underlay;
use crate::view::{Difference, View};
use crate::waiting::{Judged, Released, Waiting};
use crate::wanted::Wanted;
use crate::watch::{Step, Stopwatch, Watch};
use crate::wide_searches::WideSearches;
use crate::work::{self, Cost};

/// How often tables are looked after, milliseconds.
const HOUSEKEEPING_MS: u32 = 100;

/// The whole flow table is swept once in this many housekeepings, this many entries in one turn:
/// what a frame may have to wait for it.
const SWEEPS: u32 = 64;
const SWEEP_STEP: u32 = 256;

/// Flows of NICs that are gone that are taken out in one turn: some 20 microseconds.
const GONE_STEP: u32 = 64;

/// NICs that frames wait for whose queues are looked at in one turn.
const QUEUES_STEP: usize = 64;

/// Room for so many jobs is kept; floods of large networks need more, and give it back.
const JOBS_KEPT: usize = 16 * 1024;

/// Who has sent a batch.
#[derive(Clone, Copy)]
enum Sender<'a> {
    /// The NIC of this queue.
    Nic(QueueId),
    /// Machines of one network on other hosts, by this queue of an uplink; where each frame has
    /// come from.
    Remote(QueueId, NetworkIdx, &'a [TunnelSource; BATCH]),
}

/// Where frames have come from of which all is found out.
const NOBODY: [TunnelSource; BATCH] = [outer::NOWHERE; BATCH];

/// Whether some frame has several jobs. Those of a frame that took the fast path have no case, and
/// are one each.
#[inline]
fn is_for_many(cases: &[Case], jobs: &[Job]) -> bool {
    let mut pairs = jobs.windows(2);
    !cases.is_empty() && pairs.any(|pair| pair[0].frame == pair[1].frame)
}

/// Whether copies may have to wait for the next turns: what goes to many, or behind such frames of
/// its sender. Where all frames took the fast path there is no case, and none to go behind: nothing
/// is received of a queue of whose frames some wait.
#[inline]
fn has_to_wait(round: &Round) -> bool {
    let floods = &round.tables.floods;
    floods.hurry
        && !round.cases.is_empty()
        && (is_for_many(round.cases, round.jobs) || floods.has_of(round.origin()))
}

/// Everything that judging frames needs, but for the ports.
pub(crate) struct Path {
    pub view: Arc<View>,
    pub tables: Tables,
    pub counters: Arc<Counters>,
    pub watch: Watch,
    pub underlay: Arc<Underlay>,
    wanted: Arc<Wanted>,
    fast_path: FastPath,
    items: Vec<Item>,
    jobs: Vec<Job>,
    cases: Vec<Case>,
    /// Jobs of frames from the wire that took the fast path, while those of others are judged.
    passed: Vec<Job>,
    waits: Vec<Wait>,
    replies: Replies,
    /// Fragments whose first one has come, and a batch to send them in.
    released: Vec<Held>,
    spare: Batch,
    kept_house_ms: u32,
    /// Entries of the flow table that are due to be looked at.
    sweep_due: u32,
    /// Slots whose NIC is gone and may have begun flows.
    gone: VecDeque<PortSlot>,
    /// See [`Path::leave_flows`].
    flows_are_left: bool,
    /// What judging a NIC's batch has cost.
    judged: u64,
    /// What copies of its frames for many have cost.
    copied: u64,
    /// Who takes one frame of many, if anybody does.
    pub sampler: Option<Box<Sampler>>,
}

impl Path {
    pub(crate) fn new(
        config: &WorkerConfig,
        counters: Arc<Counters>,
        flows: Flows,
        wanted: Arc<Wanted>,
    ) -> Self {
        Path {
            view: Arc::default(),
            tables: Tables {
                flows,
                left: None,
                fragments: Fragments::new(config.max_fragments, config.seed),
                learned: LearnedMacs::new(config.max_learned_macs, config.seed),
                waiting: Waiting::default(),
                shaper: Shaper::default(),
                floods: Floods::default(),
                wide_searches: WideSearches::default(),
                late: Late::default(),
                searches: Searches::default(),
                delivered: 0,
                watched: Effort::default(),
            },
            counters,
            watch: Watch::default(),
            underlay: Arc::default(),
            wanted,
            fast_path: FastPath::new(),
            items: Vec::new(),
            jobs: Vec::new(),
            cases: Vec::new(),
            waits: Vec::new(),
            passed: Vec::new(),
            replies: Replies::default(),
            released: Vec::new(),
            spare: Batch::new(),
            kept_house_ms: 0,
            sweep_due: 0,
            gone: VecDeque::new(),
            flows_are_left: false,
            judged: 0,
            copied: 0,
            sampler: None,
        }
    }

    /// Puts a view in force and gives the one before. Flows that a NIC had begun which is gone
    /// go at once, or in the next turns where they are many; all others are decided again with
    /// their next packet. What the kernel has forwarded until now, by the `generation` before, is
    /// counted before.
    pub(crate) fn take_up(
        &mut self,
        view: Arc<View>,
        difference: &Difference,
        generation: u32,
        now: Now,
    ) -> Arc<View> {
        self.begin_generation(generation);
        self.fast_path.forget();
        self.tables.searches.forget_answers();
        let before = std::mem::replace(&mut self.view, view);
        self.tables.shaper.note_change();
        if !self.flows_are_left {
            self.gone.extend(&difference.gone);
        }
        self.replies.resets.note_moved(&difference.moved, now);
        self.remove_gone();
        before
    }

    /// Flows are the next process's as they are now, with what the kernel has forwarded of them:
    /// none goes with its NIC any more.
    pub(crate) fn leave_flows(&mut self) {
        self.tables.flows.fold_all();
        self.flows_are_left = true;
        self.gone.clear();
    }

    /// Takes out some of the flows that NICs had begun which are gone.
    #[cold]
    fn remove_gone(&mut self) {
        let mut left = GONE_STEP;
        while let Some(&slot) = self.gone.front() {
            if left == 0 {
                return;
            }
            left -= 1;
            let there = self.view.port(slot).map(|config| config.uid);
            if !self.tables.flows.remove_owned(slot, there) {
                self.gone.pop_front();
            }
        }
    }

    /// The kernel forwards what is permitted under this one from now on, and no more what was
    /// before, which is counted.
    fn begin_generation(&mut self, generation: u32) {
        self.tables.flows.fold_all();
        if let Some(kernel) = &mut self.tables.flows.kernel {
            kernel.set_generation(generation);
        }
    }

    /// Puts the next hops of the underlay in force, and gives those before.
    pub(crate) fn take_up_underlay(
        &mut self,
        underlay: Arc<Underlay>,
        generation: u32,
    ) -> Arc<Underlay> {
        self.begin_generation(generation);
        self.fast_path.forget();
        std::mem::replace(&mut self.underlay, underlay)
    }

    /// Sends what has waited for a next hop that the underlay in force has.
    pub(crate) fn send_waiting(&mut self, ports: &mut Ports, now: Now) {
        if !self.tables.waiting.is_empty() {
            let released = self.tables.waiting.answered(&self.underlay);
            self.send_released(&released, ports, now);
        }
    }

    /// Gives up what has waited for too long.
    #[inline]
    pub(crate) fn give_up_waiting(&mut self, ports: &mut Ports, now: Now) {
        if !self.tables.waiting.is_empty() {
            self.look_after_waiting(ports, now);
        }
    }

    #[cold]
    fn look_after_waiting(&mut self, ports: &mut Ports, now: Now) {
        let waiting = &mut self.tables.waiting;
        if waiting.has_untold() {
            waiting.ask(|host| self.wanted.note(host));
        }
        let late = waiting.overdue(now.millis());
        self.send_released(&late, ports, now);
    }

    /// Sends frames that have waited, in their order, or ends them.
    fn send_released(&mut self, mut released: &[Released], ports: &mut Ports, now: Now) {
        while let Some(first) = released.first() {
            let alike = |frame: &&Released| {
                let (one, other) = (&frame.judged, &first.judged);
                let late = frame.towards.is_empty() == first.towards.is_empty();
                let by = |judged: &Judged| (judged.from, judged.uid, judged.epoch, judged.ours);
                late && by(one) == by(other)
            };
            let count = released.iter().take(BATCH).take_while(alike).count();
            let (frames, rest) = released.split_at(count);
            self.send_alike(&first.judged, frames, ports, now);
            released = rest;
        }
    }

    /// Sends or ends frames that have waited, of one queue and judged under one epoch.
    fn send_alike(&mut self, judged: &Judged, frames: &[Released], ports: &mut Ports, now: Now) {
        self.clear();
        (self.tables.searches.looked, self.tables.flows.looked) = (0, 0);
        let mut batch = std::mem::take(&mut self.spare);
        batch.clear();
        wait::fill(&mut batch, frames);
        let is_late = frames[0].towards.is_empty();
        // A NIC that is gone has no counters any more, and one without a link is not announced.
        if let Some((_, _, mut round)) = self.open(Sender::Nic(judged.from), &batch, now)
            && round.nic.uid == judged.uid
            && !(judged.ours && round.nic.link_down)
        {
            let all = io::frame::first_bits(batch.len());
            if is_late || judged.ours || judged.epoch == round.view.epoch_mark() {
                parse::run(&mut round, all);
                wait::jobs(&mut round, frames);
            } else {
                decide(&mut round, all, Some(frames), &mut nobody);
                wait::forget_delivered(&mut round, frames);
            }
            wait::send(&mut round, frames);
            round.jobs.sort_unstable_by_key(|job| job.frame);
            deliver::run(&mut round, ports);
            if !round.replies.batch.is_empty() {
                deliver::replies(&mut round, ports);
            }
        }
        self.spare = batch;
        let looked = self.tables.searches.looked + self.tables.flows.looked;
        let searched = work::cost_of_search(frames.len(), looked);
        if searched > 0
            && let Some((debt, _)) = ports.owing(judged.from)
        {
            debt.charge_more(searched);
        }
        self.charge_watched(judged.from, ports);
    }

    /// Charges what was done for who watches NICs to who has sent the frames by this queue.
    #[inline]
    fn charge_watched(&mut self, queue: QueueId, ports: &mut Ports) {
        let cost = self.take_watched(ports);
        if cost > 0
            && let Some((debt, _)) = ports.owing(queue)
        {
            debt.charge_more(cost);
        }
    }

    /// What was done for who watches NICs has cost so much. In a batch its sender pays for it,
    /// whoever watches: nobody else sends fewer of these frames.
    #[inline]
    pub(crate) fn take_watched(&mut self, ports: &Ports) -> u64 {
        let watched = std::mem::take(&mut self.tables.watched);
        ports.pace.rates().cost_of_watching(watched)
    }

    /// Sends what has waited for tokens of its receivers. True: something was written.
    #[inline]
    pub(crate) fn send_queued(&mut self, ports: &mut Ports, now: Now) -> bool {
        !self.tables.shaper.is_empty() && self.look_after_queues(ports, now)
    }

    #[cold]
    fn look_after_queues(&mut self, ports: &mut Ports, now: Now) -> bool {
        let (mut sent, mut watched) = (false, 0);
        for _ in 0..QUEUES_STEP {
            if watched > work::LONGEST {
                break;
            }
            let Some((target, uid)) = self.tables.shaper.next_due(now) else {
                break;
            };
            sent |= self.send_from_queue((target, uid), ports, now, |shaper, meter, batch| {
                match meter {
                    Some(meter) => shaper.take(meter, batch, now),
                    // The limit is gone: all that waits is of before that.
                    None => shaper.take_old(target, None, batch, now),
                }
            });
            // Who has sent these is not known any more, and their receiver is not to pay.
            watched += self.take_watched(ports);
        }
        sent
    }

    /// Makes copies of frames for many targets that were put off: of each sender those that are its
    /// part of a turn. True: something was written.
    #[inline]
    pub(crate) fn go_on_with_floods(&mut self, ports: &mut Ports, now: Now) -> bool {
        !self.tables.floods.is_empty() && self.make_copies(ports, now)
    }

    #[cold]
    fn make_copies(&mut self, ports: &mut Ports, now: Now) -> bool {
        let hurry = self.tables.floods.hurry;
        // What is left of one sender is of one batch, and one behind the other.
        let (mut of, mut spent) = (None, 0);
        for mut flood in self.tables.floods.take() {
            let payer = flood.from.queue.payer();
            if of.replace(payer) != Some(payer) {
                spent = 0;
            }
            if self.tables.floods.has(flood.from.queue) {
                self.tables.floods.put_back(flood); // behind what is left of an earlier one
                continue;
            }
            self.clear();
            self.jobs
                .extend(flood.part(&mut spent, hurry, ports).map(|copy| Job {
                    frame: copy.frame,
                    verdict: Verdict::Pass,
                    target: copy.target,
                    steer: copy.steer,
                    case: NO_CASE,
                }));
            let watch = match ports.outbox.is_alone() {
                true => Stopwatch::OFF,
                false => Stopwatch::start(),
            };
            let queue = flood.from.queue;
            let sender = match flood.from.network {
                None => Sender::Nic(queue),
                Some(network) => Sender::Remote(queue, network, &NOBODY),
            };
            if let Some((_, _, mut round)) = self.open(sender, &flood.batch, now) {
                deliver::run(&mut round, ports);
            }
            let packets = work::cost_of_packets(flood.batch.take_cut());
            let rates = ports.pace.rates();
            if let Some(sender) = ports.sending(queue) {
                sender.attached.load.add(watch.cycles());
                // As copies they were charged with the batch that they were of.
                let len = |job: &Job| flood.batch.frames()[usize::from(job.frame)].len();
                let bytes = self.jobs.iter().map(len).sum();
                let copies = rates.cost_of_copies(self.jobs.len(), bytes);
                sender.debt.charge_more(packets.saturating_sub(copies));
            }
            self.charge_watched(queue, ports);
            self.tables.floods.put_back(flood);
        }
        self.give_back_room();
        true
    }

    /// Sends some of what has waited under the configuration that was in force before.
    #[cold]
    pub(crate) fn send_old(&mut self, ports: &mut Ports, now: Now) {
        if let Some((target, uid)) = self.tables.shaper.next_old() {
            self.send_from_queue((target, uid), ports, now, |shaper, meter, batch| {
                shaper.take_old(target, meter, batch, now)
            });
            self.take_watched(ports);
        }
    }

    fn send_from_queue(
        &mut self,
        (target, uid): (PortSlot, PortUid),
        ports: &mut Ports,
        now: Now,
        take: impl FnOnce(&mut Shaper, Option<&Meter>, &mut Batch) -> Taken,
    ) -> bool {
        let Some(nic) = self.view.port_with_uid(target, uid) else {
            self.tables.shaper.forget(target);
            return false;
        };
        let meter = nic.meters.as_deref().map(|meters| &meters.ingress);
        let mut batch = std::mem::take(&mut self.spare);
        batch.clear();
        let taken = take(&mut self.tables.shaper, meter, &mut batch);
        self.clear();
        let sent = !batch.is_empty();
        // The target stands for the sender, which nothing is asked about any more.
        if let Some((_, _, mut round)) = self.open(Sender::Nic(target.into()), &batch, now) {
            deliver::queued(&mut round, ports, &taken);
        }
        self.spare = batch;
        sent
    }

    /// Judges and delivers what the NIC in `source` has sent. Gives what that [cost](Cost).
    pub(crate) fn run(
        &mut self,
        source: PortSlot,
        pair: u16,
        batch: &Batch,
        ports: &mut Ports,
        now: Now,
    ) -> Cost {
        let bytes: usize = batch.frames().iter().map(|frame| frame.len()).sum();
        self.counters
            .received(source, batch.len() as u64, bytes as u64);
        let from = QueueId { slot: source, pair };
        (self.judged, self.copied) = (0, 0);
        (self.tables.searches.looked, self.tables.flows.looked) = (0, 0);
        self.tables.delivered = 0;
        self.round(from, batch, ports, now, true);
        if self.sampler.is_some() {
            self.sample(source, batch, true);
        }
        self.give_back_room();
        while let Some(spare) = self.take_released(|_, _| {}) {
            self.round(from, &spare, ports, now, false);
            self.spare = spare;
        }
        let looked = self.tables.searches.looked + self.tables.flows.looked;
        let searched = work::cost_of_search(batch.len(), looked);
        let carried = ports.pace.rates().cost(batch.len(), bytes, 0) + self.copied;
        let watched = self.take_watched(ports);
        Cost {
            carried: carried + searched + watched + std::mem::take(&mut self.tables.floods.cost),
            judged: self.judged,
        }
    }

    /// Takes what an uplink's queue has received out of its outer headers, judges and delivers it.
    /// Gives what that [cost](Cost).
    pub(crate) fn run_arriving(
        &mut self,
        from: QueueId,
        batch: &mut Batch,
        ports: &mut Ports,
        now: Now,
    ) -> Cost {
        let frames = batch.len();
        let bytes: usize = batch.frames().iter().map(|frame| frame.len()).sum();
        self.counters
            .received(from.slot, batch.len() as u64, bytes as u64);
        if self.sampler.is_some() {
            self.sample(from.slot, batch, false);
        }
        self.tables.delivered = 0;
        self.tables.searches.looked = 0;
        let mut sources = NOBODY;
        let counters = &self.counters;
        let raw = self.view.uplink_taps().arrived(from.slot, batch);
        let mut reasons = [None; BATCH];
        let dropped = |index: usize, reason| {
            counters.dropped_from(from.slot, reason);
            reasons[index % BATCH] = Some(reason);
        };
        let (view, underlay) = (&self.view, &self.underlay);
        let mut left = outer::run(batch, view, underlay, &mut sources, dropped);
        if !raw.is_empty() {
            let taps = self.view.uplink_taps();
            taps.received(from.slot, &raw, &reasons, now);
        }
        if left == 0 {
            return Cost {
                carried: ports.pace.rates().cost(frames, 0, 0),
                judged: 0,
            };
        }
        self.clear();
        self.forget_moved();
        let network_of = |frames: Bits| sources[frames.trailing_zeros() as usize % BATCH].network;
        let all = Sender::Remote(from, network_of(left), &sources);
        let sampled = self.sampler.as_ref().map_or(0, |sampler| sampler.rate());
        if let Some((fast_path, _, mut round)) = self.open(all, batch, now) {
            left = fast_path.run_arriving(&mut round, left);
            if round.tables.flows.kernel.is_some() && sampled == 0 {
                fast_path.offer_arriving(&round); // the kernel may forward what follows
            }
            if !round.replies.batch.is_empty() {
                deliver::replies(&mut round, ports);
            }
        }
        self.watch.mark(Step::FastPath);
        std::mem::swap(&mut self.jobs, &mut self.passed);
        let mut targets = 0;
        // The frames of each network keep their order; those of different ones have none.
        while left != 0 {
            let network = network_of(left);
            let frames = (0..batch.len()).filter(|frame| sources[*frame].network == network);
            let mine = left & frames.fold(0, |bits, frame| bits | 1 << frame);
            left &= !mine;
            self.clear();
            self.jobs.extend(
                self.passed
                    .extract_if(.., |job| sources[usize::from(job.frame)].network == network),
            );
            self.judge_arriving(
                Sender::Remote(from, network, &sources),
                batch,
                mine,
                ports,
                now,
            );
            targets += self.jobs.len();
            self.give_back_room();
            let mut sources = NOBODY;
            while let Some(mut spare) = self.take_released(|index, from| sources[index] = from) {
                let bits = io::frame::first_bits(spare.len());
                self.clear();
                self.judge_arriving(
                    Sender::Remote(from, network, &sources),
                    &mut spare,
                    bits,
                    ports,
                    now,
                );
                self.spare = spare;
            }
        }
        self.clear();
        std::mem::swap(&mut self.jobs, &mut self.passed);
        targets += self.jobs.len();
        self.deliver_arriving(all, batch, ports, now);
        self.watch.mark(Step::Deliver);
        let rates = ports.pace.rates();
        let carried = match targets > frames {
            // They are as long as the frames are on average.
            true => rates.cost_of_copies(targets, bytes * targets / frames.max(1)),
            false => rates.cost(frames, bytes, 0),
        };
        let watched = self.take_watched(ports);
        Cost {
            carried: carried + watched + std::mem::take(&mut self.tables.floods.cost),
            // It would be for those to pay whose frames these are, on other hosts. What was looked
            // for in rules their network owes, and not the uplink.
            judged: 0,
        }
    }

    /// Judges those frames of one network whose bits are set, and delivers what passes.
    fn judge_arriving(
        &mut self,
        from: Sender,
        batch: &mut Batch,
        frames: Bits,
        ports: &mut Ports,
        now: Now,
    ) {
        if let Some((_, _, mut round)) = self.open(from, batch, now) {
            judge(&mut round, frames, &mut nobody);
            round.jobs.sort_unstable_by_key(|job| job.frame);
            if !round.replies.batch.is_empty() {
                deliver::replies(&mut round, ports);
            }
        }
        self.deliver_arriving(from, batch, ports, now);
        self.note_released();
    }

    /// Delivers, what belongs together as one.
    fn deliver_arriving(&mut self, from: Sender, batch: &mut Batch, ports: &mut Ports, now: Now) {
        merge::run(batch, &mut self.jobs, |job| ports.accepts(job.target));
        if let Some((_, _, mut round)) = self.open(from, batch, now) {
            if has_to_wait(&round) {
                put_off::run(&mut round, ports);
            }
            deliver::run(&mut round, ports);
        }
    }

    /// Room for a large flood is not kept.
    fn give_back_room(&mut self) {
        if self.jobs.len() > JOBS_KEPT {
            self.jobs = Vec::new();
            self.cases = Vec::new();
        }
    }

    /// A batch of fragments whose first one has come. `note` is told where in it those are that
    /// came from the wire, and from where.
    fn take_released(&mut self, mut note: impl FnMut(usize, TunnelSource)) -> Option<Batch> {
        if self.released.is_empty() {
            return None;
        }
        let mut spare = std::mem::take(&mut self.spare);
        spare.clear();
        while spare.room() > 0
            && let Some(held) = self.released.pop()
        {
            // Cannot be refused: there is room, and it was a frame before.
            let index = spare.push_bytes(&held.bytes, held.offload);
            if let (Some(index), Some(from)) = (index, held.from) {
                note(index % BATCH, from);
            }
        }
        Some(spare)
    }

    /// Takes out the fragments whose first one was in the round.
    fn note_released(&mut self) {
        for item in &self.items {
            if let Some(key) = &item.first_of {
                while let Some(held) = self.tables.fragments.release(key) {
                    self.released.push(held);
                }
            }
        }
    }

    /// Announces to all NICs of a NIC's network where the NIC is, for those behind which switches
    /// learn: a RARP request by its own MAC, as other hypervisors' switches send it for a guest
    /// that has just moved. No rules are asked, since the guest has not sent it, and nothing is
    /// counted as lost for those who cannot have it. Every worker does so for the NICs whose queues
    /// it has, and who has the NIC's own tells the network's other hosts.
    pub(crate) fn announce(&mut self, slot: PortSlot, ports: &mut Ports, now: Now) {
        self.clear();
        let nic = self.view.port(slot);
        let Some(nic) = nic.filter(|nic| !nic.link_down && !nic.is_sniffer) else {
            return;
        };
        let mut batch = std::mem::take(&mut self.spare);
        batch.clear();
        batch.push_bytes(&build::rarp_announcement(nic.mac), Offload::default());
        let from = Sender::Nic(slot.into());
        if let Some((_, _, mut round)) = self.open(from, &batch, now)
            && let Some(network) = round.view.network(round.nic.network)
        {
            destination::to_all(&mut round, network, |target| ports.has_queue_of(target));
            // Other hosts are told by one worker alone.
            if ports.has_queue_of(slot) {
                parse::run(&mut round, 1);
                destination::to_other_hosts(&mut round);
                encapsulate::run(&mut round);
            }
            let waited = round.tables.waiting.waited;
            deliver::run(&mut round, ports);
            round.tables.waiting.is_ours_since(waited);
        }
        self.spare = batch;
        self.charge_watched(slot.into(), ports);
    }

    /// Forgets the round before.
    fn clear(&mut self) {
        self.items.clear();
        self.jobs.clear();
        self.cases.clear();
        self.waits.clear();
        self.replies.clear();
    }

    /// What a round works on, and the fast path beside it. `None`: the sender is not there.
    fn open<'a>(
        &'a mut self,
        from: Sender<'a>,
        batch: &'a Batch,
        now: Now,
    ) -> Option<(&'a mut FastPath, &'a mut Watch, Round<'a>)> {
        let (nic, from, sources) = match from {
            Sender::Nic(queue) => (self.view.port(queue.slot)?, queue, None),
            Sender::Remote(queue, network, sources) => {
                (self.view.remote(network)?, queue, Some(sources))
            }
        };
        let round = Round {
            nic,
            from,
            sources,
            view: &self.view,
            underlay: &self.underlay,
            wanted: &self.wanted,
            counters: &self.counters,
            tables: &mut self.tables,
            batch,
            items: &mut self.items,
            jobs: &mut self.jobs,
            cases: &mut self.cases,
            waits: &mut self.waits,
            replies: &mut self.replies,
            now,
            is_trial: false,
        };
        Some((&mut self.fast_path, &mut self.watch, round))
    }

    fn round(&mut self, from: QueueId, batch: &Batch, ports: &mut Ports, now: Now, fresh: bool) {
        self.clear();
        self.forget_moved();
        let sampling = self.sampler.as_ref().map(|sampler| sampler.rate());
        let Some((fast_path, watch, mut round)) = self.open(Sender::Nic(from), batch, now) else {
            return;
        };
        let round = &mut round;
        if fresh && !round.nic.sniffers.is_empty() && !round.nic.is_sniffer {
            deliver::to_sniffers(round, ports);
        }

        let left = fast_path.run(round); //          1  of a known or a new flow: to delivery
        let sampled = sampling.map(|rate| round.nic.sample_rate.unwrap_or(rate));
        if round.tables.flows.kernel.is_some() && sampled.unwrap_or_default() == 0 {
            fast_path.offer(round); // the kernel may forward what follows
        }
        let costly = fast_path.costly(left);
        watch.mark(Step::FastPath);
        if left != 0 {
            if round.nic.trace.is_some()
                && let Some(live) = round.view.live(round.nic)
            {
                self.judged += costly.cost();
                self.round_live(&live, from, batch, ports, now);
                return;
            }
            judge(round, left, &mut nobody); // 2 to 12  below
            round.jobs.sort_unstable_by_key(|job| job.frame);
            if round.tables.searches.denied {
                late::hold(round); //           in turns, what is dear to judge
            }
        }
        watch.mark(Step::Judge);
        if has_to_wait(round) {
            put_off::run(round, ports); //      in turns, what is for many
        }
        deliver::run(round, ports); //         13  deliver, copy, record, count
        if !round.replies.batch.is_empty() {
            deliver::replies(round, ports);
        }
        watch.mark(Step::Deliver);
        self.judged += costly.cost();
        self.charge_copies(batch, ports);
        self.note_released();
    }

    /// Charges the copies that frames of a round have become, each of several.
    #[inline]
    fn charge_copies(&mut self, batch: &Batch, ports: &Ports) {
        if !is_for_many(&self.cases, &self.jobs) {
            return;
        }
        let rates = ports.pace.rates();
        let of_one_frame = self.jobs.chunk_by(|one, other| one.frame == other.frame);
        for copies in of_one_frame.filter(|jobs| jobs.len() > 1) {
            let len = batch.frames()[usize::from(copies[0].frame)].len();
            self.copied += rates.cost_of_copies(copies.len(), copies.len() * len);
        }
    }

    /// A batch whose sender somebody traces live: each frame by itself, so that a trial finds the
    /// tables as the frame does.
    #[cold]
    fn round_live(
        &mut self,
        live: &Live,
        from: QueueId,
        batch: &Batch,
        ports: &mut Ports,
        now: Now,
    ) {
        for index in 0..batch.len() {
            let mut watched = Effort::default();
            let tried = live.trial(batch, index, &mut watched).map(|mut trial| {
                (trial.worker, trial.from) = (ports.worker(), from.slot);
                (trial::run(&mut trial, self, ports, now), trial)
            });
            self.tables.watched += watched;
            self.clear();
            let counters = self.counters.clone();
            let begun = Stopwatch::start();
            let Some((_, _, mut round)) = self.open(Sender::Nic(from), batch, now) else {
                return;
            };
            judge(&mut round, 1 << index, &mut nobody);
            if round.tables.searches.denied {
                late::hold(&mut round);
            }
            let target = round.jobs.first().filter(|_| round.jobs.len() == 1);
            let target = target.map(|job| {
                let hop = job.target.as_hop().and_then(|hop| round.underlay.hop(hop));
                hop.map_or(job.target, |hop| hop.uplink)
            });
            let before = target.map(|target| counters.port(target).drops_to);
            if has_to_wait(&round) {
                put_off::run(&mut round, ports);
            }
            deliver::run(&mut round, ports);
            if !round.replies.batch.is_empty() {
                deliver::replies(&mut round, ports);
            }
            let cycles = begun.cycles();
            self.charge_copies(batch, ports);
            self.note_released();
            let Some((report, trial)) = tried else {
                continue;
            };
            let refused = target.zip(before).and_then(|(target, before)| {
                let after = counters.port(target).drops_to;
                let more = |reason: &&DropReason| {
                    let reason = **reason as usize;
                    after[reason] > before[reason]
                };
                DropReason::ALL.iter().find(more).copied()
            });
            let fate = match self.items.first().map(|item| item.fate) {
                Some(Fate::Delivered) => Outcome::Delivered,
                Some(Fate::Held) => Outcome::Held,
                Some(Fate::Dropped(reason)) => Outcome::Dropped(Some(reason)),
                Some(Fate::Going) | None => Outcome::Dropped(refused),
            };
            live.put(Passed {
                unix_ns: now.unix_ns,
                report,
                fate,
                cycles,
                _trial: trial,
            });
        }
    }

    /// Takes one frame of many of a batch: of one that was `judged` with where it has gone.
    #[cold]
    fn sample(&mut self, input: PortSlot, batch: &Batch, judged: bool) {
        let Some(mut sampler) = self.sampler.take() else {
            return;
        };
        let own = self.view.port(input).and_then(|port| port.sample_rate);
        sampler.run(input, own, batch.frames(), |index| match judged {
            true => sampling::output(index, &self.items, &self.jobs, &self.underlay),
            false => sampling::Output::Unknown,
        });
        self.sampler = Some(sampler);
    }

    /// What the fast path knows of machines that have moved is void.
    #[inline]
    fn forget_moved(&mut self) {
        if self.tables.learned.take_moved() {
            self.fast_path.forget_learnt();
        }
    }

    /// Looks after the tables, a little at a time.
    pub(crate) fn keep_house(&mut self, now: Now) {
        let now_ms = now.millis();
        while let Some(held) = self.tables.fragments.overdue(now_ms) {
            self.counters
                .dropped_from(held.source, DropReason::FragmentWithoutFirst);
        }
        let passed_ms = now_ms.wrapping_sub(self.kept_house_ms);
        if passed_ms >= HOUSEKEEPING_MS {
            self.kept_house_ms = now_ms;
            self.tables.wide_searches.renew();
            self.tables.searches.keep_house();
            self.tables.fragments.forget_old(now_ms);
            let macs = self.tables.learned.len() / 8 + 8;
            self.tables.learned.age(macs, now.secs());
            let high = self.tables.flows.high();
            let due =
                (u64::from(high) * u64::from(passed_ms / HOUSEKEEPING_MS)).div_ceil(SWEEPS.into());
            self.sweep_due = (u64::from(self.sweep_due) + due).min(high.into()) as u32;
            self.tables.flows.fold_some(true);
        } else if self.tables.flows.has_to_fold() {
            self.tables.flows.fold_some(false);
        }
        if self.sweep_due > 0 {
            self.sweep(now_ms);
        }
        if !self.gone.is_empty() {
            self.remove_gone();
        }
        if let Some(log) = &mut self.tables.flows.log {
            log.keep_house(now);
        }
    }

    /// More housekeeping is due at once.
    pub(crate) fn has_work(&self) -> bool {
        let log = self.tables.flows.log.as_ref();
        let sweeps = self.sweep_due > 0 || self.tables.flows.has_to_fold();
        sweeps
            || !self.tables.floods.is_empty()
            || !self.tables.late.is_empty()
            || !self.gone.is_empty()
            || log.is_some_and(|log| log.has_work())
    }

    fn sweep(&mut self, now_ms: u32) {
        let step = self.sweep_due.min(SWEEP_STEP);
        self.sweep_due -= step;
        let view = &self.view;
        self.tables.flows.sweep(step, now_ms, |entry| {
            let (key, (owner, peer)) = (entry.key(), entry.slots());
            let is_gone = |slot, side| view.port_with_uid(slot, key.uid(side)).is_none();
            entry.epoch.get() != view.epoch_mark()
                && (is_gone(owner, entry.initiator()) || is_gone(peer, 1 - entry.initiator()))
        });
    }

    /// In how many milliseconds housekeeping has something to do, when nothing else happens.
    pub(crate) fn next_timer_ms(&self, now: Now) -> Option<u32> {
        let tables = &self.tables;
        let busy = tables.flows.len() > 0 || tables.fragments.len() > 0 || tables.learned.len() > 0;
        let sweep = busy.then_some(5 * HOUSEKEEPING_MS);
        let held = tables.fragments.next_overdue_ms(now.millis());
        let waiting = tables.waiting.next_overdue_ms(now.millis());
        // Somebody is to be told at once whom they wait for.
        let untold = tables.waiting.has_untold().then_some(1);
        let log = tables.flows.log.as_ref();
        let denied = log.and_then(|log| log.next_ms(now));
        [sweep, held, waiting, untold, denied]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Is told what was done, after each step: see [`trial`](crate::trial). Where nobody is, it costs
/// nothing.
pub(crate) trait Observer: FnMut(Stage, &mut Round) {}
impl<F: FnMut(Stage, &mut Round)> Observer for F {}

#[inline(always)]
fn nobody(_: Stage, _: &mut Round) {}

/// The whole path of those frames whose bits are set, as far as delivery.
#[inline]
pub(crate) fn judge(round: &mut Round, frames: Bits, after: &mut impl Observer) {
    decide(round, frames, None, after);
    encapsulate::run(round); //         12  to other hosts: by which next hop, and does it fit?
    after(Stage::Encapsulate, round);
}

/// Its part that says what may go where, of new frames or of those that have `waited`.
#[inline]
fn decide(round: &mut Round, frames: Bits, waited: Option<&[Released]>, after: &mut impl Observer) {
    parse::run(round, frames); //        2  what is it? all lengths are checked here
    after(Stage::Parse, round);
    spoof::run(round); //                3  does it come from whom it says?
    after(Stage::Spoof, round);
    match waited {
        None => fragments::run(round), // 4  a later fragment is judged like its first one
        Some(waited) => wait::lend(round, waited),
    }
    after(Stage::Fragments, round);
    always::run(round); //               5  passed or refused whatever the rules say
    after(Stage::Always, round);
    neighbours::run(round); //           6  who asks for another host's machine is answered here
    after(Stage::Neighbours, round);
    destination::run(round); //          7  where to
    after(Stage::Destination, round);
    ask(round, after);
}

/// A frame that was put off, as far as it was not judged.
fn decide_late(round: &mut Round, frame: &LateFrame) {
    let is_new = frame.epoch != round.view.epoch_mark();
    parse::run(round, 1);
    if is_new {
        spoof::run(round);
    }
    late::lend(round, frame);
    if is_new {
        always::run(round);
        neighbours::run(round);
        destination::run(round);
        late::forget_judged(round, frame);
    } else {
        late::jobs(round, frame);
    }
    late::note_delivered(round, frame);
    ask(round, &mut nobody);
}

/// Its steps that ask whether what has targets may go there.
#[inline]
fn ask(round: &mut Round, after: &mut impl Observer) {
    let asker = round.asker();
    round.tables.searches.begin_round(asker);
    round.tables.searches.remembers = is_for_many(round.cases, round.jobs);
    known::run(round); //                8  a known flow under this epoch? the same again
    after(Stage::Known, round);
    rules::egress(round); //             9  may it leave its sender?
    after(Stage::Egress, round);
    rules::ingress(round); //           10  may it enter its target?
    after(Stage::Ingress, round);
    remember::run(round); //            11  remember both directions
    after(Stage::Remember, round);
    if round.tables.searches.denied && round.is_from_wire() {
        late::refuse(round);
    }
    if round.tables.flows.log.is_some() {
        log::denied(round);
    }
}

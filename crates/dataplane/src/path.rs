//! The path of a frame, from its sender to its targets: read `round` below from top to bottom.

use std::sync::Arc;

use io::frame::Batch;
use wire::build;
use wire::offload::Offload;

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::flow::Flows;
use crate::fragments::{Fragments, Held};
use crate::learned::LearnedMacs;
use crate::ports::Ports;
use crate::round::{Case, Item, Job, Round, Tables};
use crate::snapshot::{PortSlot, Snapshot};
use crate::stages::lane::Lane;
use crate::stages::{always, deliver, destination, fragments, known, parse, remember, rules, spoof};
use crate::underlay::Underlay;
use crate::view::View;
use crate::wanted::Wanted;
use crate::watch::{Step, Watch};
use crate::worker::{Now, WorkerConfig};

/// How often tables are looked after, milliseconds.
const HOUSEKEEPING_MS: u32 = 100;

/// The whole flow table is swept once in this many housekeepings, this many entries in one turn: what a frame
/// may have to wait for it.
const SWEEPS: u32 = 64;
const SWEEP_STEP: u32 = 256;

/// Room for so many jobs is kept; floods of large networks need more, and give it back.
const JOBS_KEPT: usize = 16 * 1024;

/// Wide searches for the flow of an ICMP error, between two housekeepings.
const WIDE_SEARCHES: u32 = 64;

/// Everything that judging frames needs, but for the ports.
pub(crate) struct Path {
    pub view: View,
    pub tables: Tables,
    pub counters: Arc<Counters>,
    pub watch: Watch,
    underlay: Arc<Underlay>,
    wanted: Arc<Wanted>,
    lane: Lane,
    items: Vec<Item>,
    jobs: Vec<Job>,
    cases: Vec<Case>,
    /// Fragments whose first one has come, and a batch to send them in.
    released: Vec<Held>,
    spare: Batch,
    kept_house_ms: u32,
    /// Entries of the flow table that are due to be looked at.
    sweep_due: u32,
}

impl Path {
    pub(crate) fn new(
        config: &WorkerConfig,
        counters: Arc<Counters>,
        flows: Flows,
        wanted: Arc<Wanted>,
    ) -> Self {
        Path {
            view: View::new(),
            tables: Tables {
                flows,
                fragments: Fragments::new(config.max_fragments, config.seed),
                learned: LearnedMacs::new(config.max_learned_macs, config.seed),
                wide_searches: WIDE_SEARCHES,
            },
            counters,
            watch: Watch::default(),
            underlay: Arc::default(),
            wanted,
            lane: Lane::new(),
            items: Vec::new(),
            jobs: Vec::new(),
            cases: Vec::new(),
            released: Vec::new(),
            spare: Batch::new(),
            kept_house_ms: 0,
            sweep_due: 0,
        }
    }

    /// Puts a snapshot in force and gives the one before. Flows that a NIC had begun which is gone now go at
    /// once; all others are decided again with their next packet.
    pub(crate) fn take_up(&mut self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        self.lane.forget();
        let flows = &mut self.tables.flows;
        self.view.take_up(snapshot, |slot| flows.remove_owned(slot))
    }

    /// Puts the ways through the physical network in force, and gives those before.
    pub(crate) fn take_up_underlay(&mut self, underlay: Arc<Underlay>) -> Arc<Underlay> {
        self.lane.forget();
        std::mem::replace(&mut self.underlay, underlay)
    }

    /// Judges and delivers what the NIC in `source` has sent. Gives how many targets that made.
    pub(crate) fn run(
        &mut self,
        source: PortSlot,
        pair: u16,
        batch: &Batch,
        ports: &mut Ports,
        now: Now,
    ) -> usize {
        let bytes: usize = batch.frames().iter().map(|frame| frame.len()).sum();
        self.counters.received(source, batch.len() as u64, bytes as u64);
        self.round((source, pair), batch, ports, now, true);
        let targets = self.jobs.len();
        if targets > JOBS_KEPT {
            self.jobs = Vec::new();
            self.cases = Vec::new();
        }
        while !self.released.is_empty() {
            let mut spare = std::mem::take(&mut self.spare);
            spare.clear();
            while spare.room() > 0
                && let Some(held) = self.released.pop()
            {
                // Cannot be refused: there is room, and it was a frame before.
                spare.push_bytes(&held.bytes, held.offload);
            }
            self.round((source, pair), &spare, ports, now, false);
            self.spare = spare;
        }
        targets
    }

    /// Tells all NICs of a NIC's network where it is, for those behind which switches learn: a RARP request by its own
    /// MAC, as other hypervisors' switches send it for a guest that has just moved. No rules are asked, since the guest
    /// has not sent it, and nothing is counted as lost for those who cannot have it. Every worker does so for the NICs
    /// whose queues it has.
    pub(crate) fn announce(&mut self, slot: PortSlot, ports: &mut Ports, now: Now) {
        self.clear();
        let Some(nic) = self.view.port(slot) else { return };
        let Some(network) = self.view.network(nic.network) else {
            return;
        };
        if nic.link_down || nic.is_sniffer {
            return;
        }
        let mut batch = std::mem::take(&mut self.spare);
        batch.clear();
        batch.push_bytes(&build::rarp_announcement(nic.mac), Offload::default());
        let mut round = Round {
            nic,
            pair: 0,
            view: &self.view,
            counters: &self.counters,
            tables: &mut self.tables,
            batch: &batch,
            items: &mut self.items,
            jobs: &mut self.jobs,
            cases: &mut self.cases,
            now,
        };
        destination::to_all(&mut round, network, |target| ports.has_queue_of(target));
        deliver::run(&mut round, ports);
        self.spare = batch;
    }

    /// Forgets the round before.
    fn clear(&mut self) {
        self.items.clear();
        self.jobs.clear();
        self.cases.clear();
    }

    fn round(
        &mut self,
        (source, pair): (PortSlot, u16),
        batch: &Batch,
        ports: &mut Ports,
        now: Now,
        fresh: bool,
    ) {
        self.clear();
        let Some(nic) = self.view.port(source) else {
            return;
        };
        let mut round = Round {
            nic,
            pair,
            view: &self.view,
            counters: &self.counters,
            tables: &mut self.tables,
            batch,
            items: &mut self.items,
            jobs: &mut self.jobs,
            cases: &mut self.cases,
            now,
        };
        let round = &mut round;
        if fresh && !nic.sniffers.is_empty() && !nic.is_sniffer {
            deliver::to_sniffers(round, ports);
        }

        let left = self.lane.run(round); //     1  of a flow that is known in all: straight to delivery
        self.watch.mark(Step::Lane);
        if left != 0 {
            parse::run(round, left); //         2  what is it? all lengths are checked here
            spoof::run(round); //               3  does it come from whom it says?
            fragments::run(round); //           4  a later fragment is judged like its first one
            always::run(round); //              5  passed or refused whatever the rules say
            destination::run(round); //         6  where to
            known::run(round); //               7  a known flow under this epoch? the same again
            rules::egress(round); //            8  may it leave its sender?
            rules::ingress(round); //           9  may it enter its target?
            remember::run(round); //           10  remember both directions
            round.jobs.sort_unstable_by_key(|job| job.frame);
        }
        self.watch.mark(Step::Judge);
        deliver::run(round, ports); //         11  deliver, copy, record, count
        self.watch.mark(Step::Deliver);

        for item in round.items.iter() {
            if let Some(key) = &item.first_of {
                while let Some(held) = round.tables.fragments.release(key) {
                    self.released.push(held);
                }
            }
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
            self.tables.wide_searches = WIDE_SEARCHES;
            self.tables.fragments.forget_old(now_ms);
            let macs = self.tables.learned.len() / 8 + 8;
            self.tables.learned.age(macs, now.secs());
            let high = self.tables.flows.high();
            let due = (u64::from(high) * u64::from(passed_ms / HOUSEKEEPING_MS)).div_ceil(SWEEPS.into());
            self.sweep_due = (u64::from(self.sweep_due) + due).min(high.into()) as u32;
        }
        if self.sweep_due > 0 {
            self.sweep(now_ms);
        }
    }

    /// More housekeeping is due at once.
    pub(crate) fn has_work(&self) -> bool {
        self.sweep_due > 0
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
        match (sweep, held) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }
}

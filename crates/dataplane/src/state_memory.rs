//! What was counted and learnt, in memory that outlives the process: what a daemon leaves to the
//! next one beside its [flows](crate::flow::FlowMemory).
//!
//! # How it works
//!
//! The counters of all workers lie in a file in memory ([`SharedMemory`]), and each worker notes
//! there which MACs it has heard, and where: workers write where they would write anyway, so that
//! counting costs the path nothing more, and what is there at any instant is what is known. A
//! keeper holds a descriptor of it.
//!
//! Counters are by slot, which the next process gives anew. So whose a slot is, and what it had
//! counted when it got it, is in the memory as well ([`note_port`](StateMemory::note_port)): a
//! [key](Key) that says the same in every process and every version. Drop reasons are in it by
//! their names.
//!
//! The next process reads the memory ([`LeftState`](crate::LeftState)) and does not map it. What
//! was counted it takes into its baselines, in a new memory; the keeper lets the old one go when
//! that is done.
//!
//! # What may be in it
//!
//! A process is killed between two instructions, and all that it wrote before is there: a record
//! that is being written is nobody's. Apart from that it is read as if an enemy had written it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sys::huge::{PAGE, Zeroed};
use sys::shared_memory::SharedMemory;

use crate::counters::{
    ALL_PORTS, ALL_RULES, Counters, MAX_PORTS, MAX_RULES, MAX_SLOTS, PortCounters, RULE_CELLS,
    RuleCounters,
};
use crate::drop_reason::{DropReason, REASONS};
use crate::flow::memory::before_what_follows;
use crate::ids::{PortSlot, PortUid, RuleSlot};
use crate::learned::{MAC_WORDS, MacRecords};

/// What the memory begins with: "bflystat".
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"bflystat");
/// The layout of all that is in it. Another number for whatever is changed: the daemon before may
/// be of another version. New drop reasons are no such change.
pub(crate) const LAYOUT: u64 = 1;

/// Words at the beginning: magic, layout, workers, MACs of each, drop reasons.
pub(crate) const HEAD: usize = 5;
/// Where the names of drop reasons are, and how many bytes each has.
pub(crate) const NAMES: u64 = 4096;
pub(crate) const NAME: usize = 64;
pub(crate) const REASONS_MAX: u64 = 256;
/// Where the drops are that processes before have counted, of all NICs that ever were.
pub(crate) const CARRIED: u64 = NAMES + REASONS_MAX * NAME as u64;
/// Words of a port's note before its baseline: uid, key. Of a rule's: key.
pub(crate) const PORT_HEAD: usize = 3;
pub(crate) const RULE_HEAD: usize = 2;
pub(crate) const RULE_WORDS: usize = RULE_HEAD + RULE_CELLS;

const _: () = assert!(REASONS <= REASONS_MAX as usize);
const _: () = assert!(CARRIED + 16 * REASONS_MAX <= PAGE as u64);

/// Where what is, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub workers: u64,
    pub macs: u64,
    /// Cells of a port.
    pub cells: usize,
}

impl Layout {
    pub(crate) fn of(workers: u64, macs: u64, reasons: u64) -> Layout {
        let cells = crate::counters::DROPS_FROM + 2 * reasons as usize;
        Layout {
            workers,
            macs,
            cells,
        }
    }

    fn pages(words: usize) -> u64 {
        (words * 8).next_multiple_of(PAGE) as u64
    }

    /// Words of a port's note.
    pub(crate) fn port_words(&self) -> usize {
        PORT_HEAD + self.cells
    }

    pub(crate) fn port_notes(&self) -> u64 {
        PAGE as u64
    }

    pub(crate) fn rule_notes(&self) -> u64 {
        self.port_notes() + Layout::pages(MAX_PORTS * self.port_words())
    }

    /// The counters of ports of a worker.
    pub(crate) fn ports(&self, worker: u64) -> u64 {
        let first = self.rule_notes() + Layout::pages(MAX_RULES * RULE_WORDS);
        let each = Layout::pages(MAX_SLOTS * self.cells)
            + Layout::pages(ALL_RULES)
            + Layout::pages(self.macs as usize * MAC_WORDS);
        first + worker * each
    }

    pub(crate) fn rules(&self, worker: u64) -> u64 {
        self.ports(worker) + Layout::pages(MAX_SLOTS * self.cells)
    }

    pub(crate) fn macs(&self, worker: u64) -> u64 {
        self.rules(worker) + Layout::pages(ALL_RULES)
    }

    fn len(&self) -> u64 {
        self.ports(self.workers)
    }
}

/// Who counts: the same in every process and every version. Not 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(u128);

impl Key {
    /// Of a kind, by its names: FNV-1a of 128 bits over them, each behind its length. Who makes two
    /// names that have one key has the counts of one told as the other's.
    pub fn of(names: &[&str]) -> Key {
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u128::from(*byte))
                    .wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
            }
        };
        for name in names {
            add(&(name.len() as u64).to_le_bytes());
            add(name.as_bytes());
        }
        Key(hash.max(1))
    }

    fn words(self) -> [u64; 2] {
        [self.0 as u64, (self.0 >> 64) as u64]
    }

    pub(crate) fn of_words(low: u64, high: u64) -> Option<Key> {
        let key = u128::from(high) << 64 | u128::from(low);
        (key != 0).then_some(Key(key))
    }
}

/// What one process counts and learns.
pub struct StateMemory {
    memory: SharedMemory,
    layout: Layout,
    carried: Zeroed<AtomicU64>,
    ports: Zeroed<AtomicU64>,
    rules: Zeroed<AtomicU64>,
    /// What is noted is what the next process is to find.
    is_left: AtomicBool,
}

impl StateMemory {
    /// For so many workers, and so many MACs of each. Takes memory as it comes into use.
    pub fn new(workers: usize, macs: u32) -> io::Result<StateMemory> {
        let layout = Layout::of(workers as u64, u64::from(macs), REASONS as u64);
        let memory = SharedMemory::new("butterfly-state", layout.len())?;
        let first: Zeroed<AtomicU64> = Zeroed::shared(&memory, 0, PAGE / 8)?;
        let head = [MAGIC, LAYOUT, layout.workers, layout.macs, REASONS as u64];
        for (word, value) in first.iter().zip(head) {
            word.store(value, Ordering::Relaxed);
        }
        let names = first[NAMES as usize / 8..].chunks_exact(NAME / 8);
        for (words, reason) in names.zip(DropReason::ALL) {
            for (word, part) in words.iter().zip(reason.name().as_bytes().chunks(8)) {
                let mut whole = [0; 8];
                whole[..part.len()].copy_from_slice(part);
                word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
            }
        }
        Ok(StateMemory {
            carried: first,
            ports: Zeroed::shared(
                &memory,
                layout.port_notes(),
                MAX_PORTS * layout.port_words(),
            )?,
            rules: Zeroed::shared(&memory, layout.rule_notes(), MAX_RULES * RULE_WORDS)?,
            is_left: AtomicBool::new(false),
            layout,
            memory,
        })
    }

    /// What is to be held for the next process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The counters of a worker.
    pub(crate) fn counters(&self, worker: usize) -> io::Result<Counters> {
        let worker = worker as u64;
        let ports = Zeroed::shared(&self.memory, self.layout.ports(worker), ALL_PORTS)?;
        let rules = Zeroed::shared(&self.memory, self.layout.rules(worker), ALL_RULES)?;
        Ok(Counters::over(ports, rules))
    }

    /// Where a worker notes which MACs it has heard.
    pub(crate) fn mac_records(&self, worker: usize) -> io::Result<MacRecords> {
        let words = self.layout.macs as usize * MAC_WORDS;
        let at = self.layout.macs(worker as u64);
        Ok(MacRecords::new(Zeroed::shared(&self.memory, at, words)?))
    }

    /// Whose a port's slot is from now on, and what it had counted before; `None`: nobody's.
    pub fn note_port(&self, slot: PortSlot, whose: Option<(PortUid, Key, &PortCounters)>) {
        let words = self.layout.port_words();
        let start = slot.0 as usize * words;
        let Some([uid, low, high, baseline @ ..]) = self.ports.get(start..start + words) else {
            return;
        };
        if self.is_left.load(Ordering::Acquire)
            || whose.is_none() && uid.load(Ordering::Relaxed) == 0
        {
            return;
        }
        uid.store(0, Ordering::Relaxed);
        before_what_follows();
        let Some((is, key, counted)) = whose else {
            return;
        };
        let cells = key.words().into_iter().chain(counted.cells());
        for (word, value) in [low, high].into_iter().chain(baseline).zip(cells) {
            word.store(value, Ordering::Relaxed);
        }
        before_what_follows();
        uid.store(is.0.into(), Ordering::Relaxed);
    }

    /// Whose a rule's slot is from now on, and what it had counted before; `None`: nobody's.
    pub fn note_rule(&self, slot: RuleSlot, whose: Option<(Key, RuleCounters)>) {
        let start = slot.0 as usize * RULE_WORDS;
        let Some([low, high, baseline @ ..]) = self.rules.get(start..start + RULE_WORDS) else {
            return;
        };
        if self.is_left.load(Ordering::Acquire) {
            return;
        }
        // Half a key is nobody's.
        high.store(0, Ordering::Relaxed);
        low.store(0, Ordering::Relaxed);
        before_what_follows();
        let Some((key, counted)) = whose else { return };
        for (word, value) in baseline.iter().zip(counted.cells()) {
            word.store(value, Ordering::Relaxed);
        }
        before_what_follows();
        for (word, value) in [low, high].into_iter().zip(key.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The drops of all NICs that processes before have counted: frames from them, and to them.
    pub fn carry_drops(&self, drops: &[[u64; REASONS]; 2]) {
        let cells = &self.carried[CARRIED as usize / 8..];
        for (cell, drops) in cells.iter().zip(drops.iter().flatten()) {
            cell.store(*drops, Ordering::Relaxed);
        }
    }

    /// What [`carry_drops`](Self::carry_drops) was told last.
    pub(crate) fn carried_drops(&self) -> [[u64; REASONS]; 2] {
        let cells = &self.carried[CARRIED as usize / 8..];
        let at = |index: usize| cells[index].load(Ordering::Relaxed);
        [0, REASONS].map(|from| std::array::from_fn(|reason| at(from + reason)))
    }

    /// What is noted now is what the next process finds: nothing that goes with this one is taken
    /// out any more.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }
}

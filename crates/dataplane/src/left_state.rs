//! What a process has counted and learnt, read by the next one: see
//! [`StateMemory`](crate::StateMemory), which says what may be in it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use sys::shared_memory;
use wire::{Mac, Vni};

use crate::counters::{COUNT_MAX, DROPS_FROM, MAX_RULES, PortCounters, RULE_CELLS, RuleCounters};
use crate::drop_reason::{DropReason, REASONS};
use crate::ids::{MAX_PORTS, PortUid};
use crate::learned::{AGING_SECS, MAC_WORDS, MacRecord};
use crate::queue::MAX_WORKERS;
use crate::state_memory::{
    CARRIED, HEAD, Key, LAYOUT, Layout, MAGIC, NAME, NAMES, PORT_HEAD, REASONS_MAX, RULE_WORDS,
};
use crate::time::Now;

/// MACs of one worker at the most.
const MACS_MAX: u64 = 1 << 22;
/// Bytes that are read at once, about.
const AT_ONCE: usize = 1 << 18;

/// What a process that has ended has left.
pub struct LeftState<'a> {
    memory: BorrowedFd<'a>,
    layout: Layout,
    /// What each of its drop reasons is to this version.
    reasons: Vec<Option<DropReason>>,
}

/// What was counted.
#[derive(Debug)]
pub struct LeftCounts {
    /// By NIC.
    pub ports: HashMap<Key, PortCounters>,
    /// By rule.
    pub rules: HashMap<Key, RuleCounters>,
    /// Drops of all NICs that ever were, frames from them and to them, by `DropReason as usize`.
    pub drops: [[u64; REASONS]; 2],
    /// Records that could not be true, and are left out.
    pub untrue: u64,
}

/// A MAC that was learnt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftMac {
    /// The network in which it was heard.
    pub vni: Vni,
    /// The address.
    pub mac: Mac,
    /// Where.
    pub location: LeftLocation,
    /// When, by the clock of the data plane.
    pub heard_secs: u32,
}

/// Where a MAC was heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftLocation {
    /// Behind a NIC of this host.
    Nic(Key),
    /// At another host.
    Host(IpAddr),
}

impl<'a> LeftState<'a> {
    /// Looks at memory that was left. An error: it is none of ours, or of another layout.
    pub fn open(memory: BorrowedFd<'a>) -> io::Result<LeftState<'a>> {
        let mut head = [0; HEAD];
        each_record(memory, 0, 1, HEAD, |_, words| head.copy_from_slice(words))?;
        let [magic, layout, workers, macs, reasons] = head;
        if magic != MAGIC {
            return Err(io::Error::other("it holds no counters"));
        }
        let known = layout == LAYOUT
            && (1..=MAX_WORKERS as u64).contains(&workers)
            && macs <= MACS_MAX
            && (1..=REASONS_MAX).contains(&reasons);
        if !known {
            let why = format!("its layout is number {layout}, known is {LAYOUT}");
            return Err(io::Error::other(why));
        }
        let mut known = vec![None; reasons as usize];
        each_record(memory, NAMES, known.len(), NAME / 8, |index, words| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME);
            let all = DropReason::ALL.iter();
            known[index] = all
                .copied()
                .find(|one| one.name().as_bytes() == &bytes[..len]);
        })?;
        Ok(LeftState {
            memory,
            layout: Layout::of(workers, macs, reasons),
            reasons: known,
        })
    }

    /// Whose each slot was.
    fn owners(&self) -> io::Result<HashMap<usize, (PortUid, Key)>> {
        let mut owners = HashMap::new();
        self.each_port_note(|slot, uid, key, _| {
            owners.insert(slot, (uid, key));
        })?;
        Ok(owners)
    }

    fn each_port_note(&self, mut each: impl FnMut(usize, PortUid, Key, &[u64])) -> io::Result<()> {
        let (at, words) = (self.layout.port_notes(), self.layout.port_words());
        each_record(self.memory, at, MAX_PORTS, words, |slot, words| {
            let (head, baseline) = words.split_at(PORT_HEAD);
            let uid = u32::try_from(head[0]).ok().filter(|uid| *uid != 0);
            if let (Some(uid), Some(key)) = (uid, Key::of_words(head[1], head[2])) {
                each(slot, PortUid(uid), key, baseline);
            }
        })
    }

    /// All MACs that are not too old by `now`, of the same clock, and how many could not be true.
    pub fn macs(&self, now: Now) -> io::Result<(Vec<LeftMac>, u64)> {
        let owners = self.owners()?;
        let (mut found, mut untrue) = (Vec::new(), 0);
        for worker in 0..self.layout.workers {
            let (at, count) = (self.layout.macs(worker), self.layout.macs as usize);
            each_record(self.memory, at, count, MAC_WORDS, |_, words| {
                let Some(record) = MacRecord::of_words(words) else {
                    untrue += u64::from(words.iter().any(|word| *word != 0));
                    return;
                };
                let location = match record.location {
                    crate::Location::Host(host) => LeftLocation::Host(host),
                    // A NIC that was taken away is gone from the records at once.
                    crate::Location::Nic(slot, uid) => match owners.get(&(slot.0 as usize)) {
                        Some((is, key)) if *is == uid => LeftLocation::Nic(*key),
                        _ => return,
                    },
                };
                if now.secs().wrapping_sub(record.heard_secs) < AGING_SECS {
                    found.push(LeftMac {
                        vni: record.vni,
                        mac: record.mac,
                        location,
                        heard_secs: record.heard_secs,
                    });
                }
            })?;
        }
        // Of two places the one in which it was heard last.
        found.sort_by_key(|one| now.secs().wrapping_sub(one.heard_secs));
        let mut known = HashSet::new();
        found.retain(|one| known.insert((one.vni.id(), one.mac)));
        // The oldest first, as they would have come.
        found.reverse();
        Ok((found, untrue))
    }

    /// All that was counted.
    pub fn counts(&self) -> io::Result<LeftCounts> {
        let reasons = self.reasons.len();
        let cells = self.layout.cells;
        // What all workers have counted.
        let mut ports: HashMap<usize, Vec<u64>> = HashMap::new();
        let mut rules: HashMap<usize, [u64; RULE_CELLS]> = HashMap::new();
        for worker in 0..self.layout.workers {
            let at = self.layout.ports(worker);
            each_record(self.memory, at, MAX_PORTS, cells, |slot, words| {
                if words.iter().any(|word| *word != 0) {
                    let sums = ports.entry(slot).or_insert_with(|| vec![0; cells]);
                    add(sums, words);
                }
            })?;
            let at = self.layout.rules(worker);
            each_record(self.memory, at, MAX_RULES, RULE_CELLS, |slot, words| {
                if words.iter().any(|word| *word != 0) {
                    add(rules.entry(slot).or_default(), words);
                }
            })?;
        }
        let mut left = LeftCounts {
            ports: HashMap::new(),
            rules: HashMap::new(),
            drops: [[0; REASONS]; 2],
            untrue: 0,
        };
        let mut drops = vec![0; 2 * reasons];
        each_record(self.memory, CARRIED, 1, 2 * reasons, |_, words| {
            drops.copy_from_slice(words);
        })?;
        for cells in ports.values() {
            add(&mut drops, &cells[DROPS_FROM..]);
        }
        left.drops = [0, reasons].map(|from| self.by_reason(&drops[from..][..reasons]));
        if left.drops.iter().flatten().any(|count| *count > COUNT_MAX) {
            (left.drops, left.untrue) = ([[0; REASONS]; 2], 1);
        }
        let (mut twice, nothing) = (HashSet::new(), vec![0; cells]);
        self.each_port_note(|slot, _, key, baseline| {
            let counted = ports.get(&slot).unwrap_or(&nothing).iter().zip(baseline);
            let counted: Vec<u64> = counted.map(|(now, then)| now.wrapping_sub(*then)).collect();
            let port = self.port(&counted);
            let is_true = counted.iter().all(|count| *count <= COUNT_MAX)
                && port.kernel_frames <= port.rx_frames
                && left.ports.insert(key, port).is_none();
            if !is_true {
                left.untrue += 1;
                twice.insert(key);
            }
        })?;
        left.ports.retain(|key, _| !twice.contains(key));
        twice.clear();
        let at = self.layout.rule_notes();
        each_record(self.memory, at, MAX_RULES, RULE_WORDS, |slot, words| {
            let &[low, high, ref baseline @ ..] = words else {
                return;
            };
            let Some(key) = Key::of_words(low, high) else {
                return;
            };
            let now = rules.get(&slot).copied().unwrap_or_default();
            let counted = std::array::from_fn(|cell| now[cell].wrapping_sub(baseline[cell]));
            let is_true = counted.iter().all(|count| *count <= COUNT_MAX)
                && left.rules.insert(key, RuleCounters::of(counted)).is_none();
            if !is_true {
                left.untrue += 1;
                twice.insert(key);
            }
        })?;
        left.rules.retain(|key, _| !twice.contains(key));
        Ok(left)
    }

    /// Counts by the reasons of that version, as counts by those of this one.
    fn by_reason(&self, counts: &[u64]) -> [u64; REASONS] {
        let mut by = [0; REASONS];
        for (count, reason) in counts.iter().zip(&self.reasons) {
            if let Some(reason) = reason {
                by[*reason as usize] = *count;
            }
        }
        by
    }

    fn port(&self, cells: &[u64]) -> PortCounters {
        let (from, to) = cells[DROPS_FROM..].split_at(self.reasons.len());
        let drops = [self.by_reason(from), self.by_reason(to)];
        PortCounters::of(|cell| match cell.checked_sub(DROPS_FROM) {
            None => cells[cell],
            Some(reason) => drops[reason / REASONS][reason % REASONS],
        })
    }
}

fn add(sums: &mut [u64], words: &[u64]) {
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = sum.wrapping_add(*word);
    }
}

/// Reads records of so many words, but for those that nobody has written.
fn each_record(
    memory: BorrowedFd<'_>,
    at: u64,
    count: usize,
    words: usize,
    mut each: impl FnMut(usize, &[u64]),
) -> io::Result<()> {
    let record = 8 * words;
    let end = at + (count * record) as u64;
    let part = (AT_ONCE / record).max(1) * record;
    let mut room = vec![0; words];
    shared_memory::read(memory, (at, end), part, |begin, bytes| {
        let first = (begin - at) as usize / record;
        for (index, bytes) in bytes.chunks_exact(record).enumerate() {
            for (word, bytes) in room.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            each(first + index, &room);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::ids::{PortSlot, RuleSlot};
    use crate::learned::Location;
    use crate::state_memory::StateMemory;

    const NOW: Now = Now {
        mono_ns: 5_000_000_000_000,
        unix_ns: 0,
    };

    fn left(memory: &StateMemory) -> LeftState<'_> {
        LeftState::open(memory.descriptor()).unwrap()
    }

    /// As an enemy would.
    fn write(memory: &StateMemory, at: u64, words: &[u64]) {
        let file = File::from(memory.descriptor().try_clone_to_owned().unwrap());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, at).unwrap();
    }

    fn uid(number: u32) -> PortUid {
        PortUid(number)
    }

    #[test]
    fn what_all_workers_have_counted_is_read_since_each_got_its_slot() {
        let memory = StateMemory::new(2, 8).unwrap();
        let [one, other] = [0, 1].map(|worker| memory.counters(worker).unwrap());
        let (a, b) = (Key::of(&["nic", "a"]), Key::of(&["nic", "b"]));
        one.received(PortSlot(4), 3, 300);
        // What the slot had counted for another one, and what was carried from a process before.
        let carried = PortCounters {
            rx_frames: 1000,
            rx_bytes: 100_000,
            ..PortCounters::default()
        };
        let baseline = one.port(PortSlot(4)).less(&carried);
        memory.note_port(PortSlot(4), Some((uid(9), a, &baseline)));
        memory.note_port(PortSlot(5), Some((uid(10), b, &PortCounters::default())));
        one.received(PortSlot(4), 1, 60);
        other.received(PortSlot(4), 2, 120);
        other.dropped_from(PortSlot(4), DropReason::Malformed);
        one.dropped_to(PortSlot(4), *DropReason::ALL.last().unwrap());
        one.rule_passed(RuleSlot(7), 5, 500);
        other.rule_admitted(RuleSlot(7));
        let rule = Key::of(&["rule", "g", "ingress all from anybody"]);
        memory.note_rule(RuleSlot(7), Some((rule, RuleCounters::of([1, 100, 0]))));
        memory.note_rule(RuleSlot(8), Some((a, RuleCounters::default())));
        memory.note_rule(RuleSlot(8), None);
        memory.carry_drops(&[[2; REASONS], [3; REASONS]]);
        let counts = left(&memory).counts().unwrap();
        let mut expected = PortCounters {
            rx_frames: 1003,
            rx_bytes: 100_180,
            ..PortCounters::default()
        };
        expected.drops_from[DropReason::Malformed as usize] = 1;
        expected.drops_to[REASONS - 1] = 1;
        assert_eq!(counts.ports[&a], expected);
        assert_eq!(counts.ports[&b], PortCounters::default());
        let is = RuleCounters::of([4, 400, 1]);
        assert_eq!(counts.rules, [(rule, is)].into());
        let [from, to] = counts.drops;
        let malformed = DropReason::Malformed as usize;
        assert_eq!((from[malformed], from[0], to[0]), (3, 2, 3));
        assert_eq!((to[REASONS - 1], counts.untrue), (4, 0));
        // What goes with the process stays for the next one.
        memory.leave();
        memory.note_port(PortSlot(4), None);
        memory.note_rule(RuleSlot(7), None);
        let again = left(&memory).counts().unwrap();
        assert_eq!((again.ports, again.rules), (counts.ports, counts.rules));
    }

    #[test]
    fn learnt_macs_are_those_of_nics_that_are_there_and_were_heard_last() {
        let memory = StateMemory::new(2, 8).unwrap();
        let vni = Vni::new(42).unwrap();
        let a = Key::of(&["nic", "a"]);
        memory.note_port(PortSlot(1), Some((uid(5), a, &PortCounters::default())));
        let [mut one, mut other] = [0, 1].map(|worker| {
            let mut learned = crate::learned::LearnedMacs::new(8, 1);
            learned.note_in(memory.mac_records(worker).unwrap());
            learned
        });
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        let host = Location::Host("192.0.2.7".parse().unwrap());
        let now = NOW.secs();
        one.learn(vni, mac(1), Location::Nic(PortSlot(1), uid(5)), now - 9);
        one.learn(vni, mac(2), host, now - 8);
        // Another one had the slot; one that is long ago; and one that was heard elsewhere since.
        one.learn(vni, mac(3), Location::Nic(PortSlot(1), uid(4)), now - 7);
        other.learn(vni, mac(4), host, now - AGING_SECS);
        other.learn(vni, mac(1), host, now - 3);
        let (macs, untrue) = left(&memory).macs(NOW).unwrap();
        let is = |last, location, ago| LeftMac {
            vni,
            mac: mac(last),
            location,
            heard_secs: now - ago,
        };
        let there = LeftLocation::Host("192.0.2.7".parse().unwrap());
        assert_eq!((macs, untrue), (vec![is(2, there, 8), is(1, there, 3)], 0));
        // One that no worker writes.
        write(
            &memory,
            memory_layout().macs(1) + 8 * 4 * 7,
            &[9 << 48, 1, 2, 3],
        );
        assert_eq!(left(&memory).macs(NOW).unwrap().1, 1);
    }

    fn memory_layout() -> Layout {
        Layout::of(2, 8, REASONS as u64)
    }

    #[test]
    fn reasons_are_known_by_their_names() {
        let memory = StateMemory::new(1, 8).unwrap();
        let counters = memory.counters(0).unwrap();
        let key = Key::of(&["nic", "a"]);
        memory.note_port(PortSlot(0), Some((uid(1), key, &PortCounters::default())));
        counters.dropped_from(PortSlot(0), DropReason::ALL[0]);
        counters.dropped_from(PortSlot(0), DropReason::ALL[1]);
        // That version calls the first one what this one calls the third, and one as nobody does.
        let name = |name: &str| {
            let mut bytes = [0; NAME];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_ne_bytes(*word))
                .collect::<Vec<_>>()
        };
        write(&memory, NAMES, &name(DropReason::ALL[2].name()));
        write(&memory, NAMES + NAME as u64, &name("of_another_world"));
        write(&memory, NAMES + 2 * NAME as u64, &name("as_well"));
        let drops = left(&memory).counts().unwrap().ports[&key].drops_from;
        assert_eq!((drops[0], drops[1], drops[2]), (0, 0, 1));
    }

    #[test]
    fn what_cannot_be_is_left_out_and_counted() {
        let memory = StateMemory::new(1, 8).unwrap();
        let counters = memory.counters(0).unwrap();
        let key = |name| Key::of(&["nic", name]);
        let nothing = PortCounters::default();
        for (slot, name) in [
            (0, "good"),
            (1, "huge"),
            (2, "twice"),
            (3, "twice"),
            (4, "kernel"),
        ] {
            memory.note_port(PortSlot(slot), Some((uid(slot + 1), key(name), &nothing)));
        }
        counters.received(PortSlot(1), 1 << 63, 1);
        counters.kernel_forwarded(PortSlot(4), 1);
        let counts = left(&memory).counts().unwrap();
        assert_eq!(counts.ports, [(key("good"), nothing)].into());
        assert_eq!(counts.untrue, 3);
        // No such memory, and other layouts.
        for (word, value) in [
            (1, LAYOUT + 1),
            (2, 0),
            (2, 1 << 40),
            (3, 1 << 50),
            (4, 0),
            (4, 300),
        ] {
            let memory = StateMemory::new(1, 8).unwrap();
            write(&memory, 8 * word, &[value]);
            assert!(
                LeftState::open(memory.descriptor()).is_err(),
                "{word} {value}"
            );
        }
        let other = sys::shared_memory::SharedMemory::new("test", 1 << 21).unwrap();
        let refused = LeftState::open(std::os::fd::AsFd::as_fd(&other))
            .err()
            .unwrap();
        assert_eq!(refused.to_string(), "it holds no counters");
        // More workers than it has room for.
        write(&memory, 16, &[2]);
        assert!(left(&memory).counts().is_err() && left(&memory).macs(NOW).is_err());
    }
}

//! Where the device of a packed ring was, as the ring itself shows it.
//!
//! Whoever is killed leaves its guest's rings as they are, and the next process has to go on at the
//! right place. A split ring has the device's index in it. A packed one has none, and a VMM cannot
//! say it either when its device goes without a word: QEMU says where the ring was when it last
//! started the device. (INFLIGHT_SHMFD, by which a device leaves such things with its VMM, is no
//! help: QEMU uses it for block devices alone, and cloud-hypervisor, which has it for network
//! devices too, has no packed rings. A split ring that is used in order needs it not.)
//!
//! But flags show who has written a slot last and in which lap, and chains are given back here in
//! the order in which they came. So from any slot that was given back one gets to the device's
//! place by going from chain to chain, as long as each was given back in its lap. What is missing
//! for this is how many slots were given back with a descriptor, since it has been written over the
//! chain's first. That is left in [`Note`]s, in addresses of descriptors that are given back, where
//! nobody looks (virtio 1.2, section 2.8.5): [`Note::First`] in the first of several slots,
//! [`Note::Last`] in the last, for when the driver has written over the first.
//!
//! # Killed while giving back
//!
//! [`PackedQueue::publish`](crate::vhost::virtqueue::packed::PackedQueue::publish) writes the used
//! descriptors of a batch from the second on, and then the first, each behind its notes. Until the
//! first is there no driver looks at any of them. The second one says in its note how far back the
//! first is. So whatever was written of a batch is found, and the next process completes it: the
//! chains that were touched are given back with nothing in them, the rest is taken again.
//!
//! # What a VMM takes meanwhile
//!
//! While it has no device QEMU takes frames off a transmit ring itself and drops them
//! (`virtio_net_drop_tx_queue_data`), and begins where it believes the ring to be. That may be in
//! the midst of what is on offer: the slots before it are not given back, and the driver waits for
//! them for good. They are found as an end of given back slots behind which chains on offer lead to
//! others that were given back, and are given back too, with nothing in them.
//!
//! All is read from a copy. A guest that lies leads to a wrong place in its own ring, and nowhere
//! else.

use crate::vhost::virtqueue::chain::{NEXT, RawDescriptor};
use crate::vhost::virtqueue::index::Position;

/// No address in a guest's memory begins so: they have 52 bits.
const FIRST: u64 = 0xb077_e7f1 << 32;
const LAST: u64 = 0xb077_e7f2 << 32;

/// What is left in the address of a descriptor that is given back, for the next process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vhost) enum Note {
    /// The descriptor begins what is given back.
    First {
        /// How many slots there are.
        slots: u16,
        /// How many slots before it the first of its batch is; 0: it is that itself, or nothing is
        /// said.
        back: u16,
    },
    /// The last of several slots.
    Last,
}

impl Note {
    /// What stands in the place of the address.
    pub fn bits(self) -> u64 {
        match self {
            Note::First { slots, back } => FIRST | u64::from(back) << 16 | u64::from(slots),
            Note::Last => LAST,
        }
    }

    fn from_bits(bits: u64) -> Option<Note> {
        match bits & !0xffff_ffff {
            FIRST => Some(Note::First {
                slots: bits as u16,
                back: (bits >> 16) as u16,
            }),
            LAST => Some(Note::Last),
            _ => None,
        }
    }
}

/// Where a ring goes on.
#[derive(PartialEq, Eq, Debug)]
pub(in crate::vhost) struct ResumePoint {
    /// The next slot to take, and to give back.
    pub next: Position,
    /// What was being given back before that place, first to last. All of it is to be given back,
    /// the first at the end.
    pub unfinished: Vec<GivenBack>,
}

/// Slots that one used descriptor gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vhost) struct GivenBack {
    /// Where they begin.
    pub at: Position,
    /// How many there are.
    pub slots: u16,
    /// What the driver knows the last chain by.
    pub id: u16,
}

/// Finds the place in a copy of a whole ring, of 1 to 32768 slots. `None` when no device of ours
/// has left the ring so.
pub(in crate::vhost) fn find(slots: &[RawDescriptor]) -> Option<ResumePoint> {
    let ring = Slots(slots);
    let (next, unfinished) = match (ring.begun(), ring.passed_over(), ring.all_used().next()) {
        (Some(first), _, _) => ring.unfinished(first),
        (None, Some(found), _) => found,
        (None, None, Some(used)) => ring.unfinished(ring.end_of_used(used)?),
        (None, None, None) => ring.unfinished(ring.end_of_stale()?),
    };
    // What is ahead is the driver's offer, or left from the lap before.
    let ahead_is_used = (0..ring.size()).any(|ahead| ring.is_used(next.after(ahead, ring.size())));
    (!ahead_is_used).then_some(ResumePoint { next, unfinished })
}

struct Slots<'a>(&'a [RawDescriptor]);

impl Slots<'_> {
    fn size(&self) -> u16 {
        self.0.len() as u16
    }

    fn flags(&self, at: Position) -> u16 {
        self.0[usize::from(at.slot)].packed().flags
    }

    fn note(&self, at: Position) -> Option<Note> {
        Note::from_bits(self.0[usize::from(at.slot)].packed().addr)
    }

    /// It was given back in its lap.
    fn is_used(&self, at: Position) -> bool {
        at.is_used(self.flags(at))
    }

    /// It was offered in its lap, and not given back.
    fn is_offered(&self, at: Position) -> bool {
        at.is_available(self.flags(at))
    }

    /// All slots that were given back, in whatever lap. Those of a new ring look as if they were
    /// given back in the lap before the first.
    fn all_used(&self) -> impl Iterator<Item = Position> {
        (0..self.size()).flat_map(|slot| {
            let laps = [false, true].map(|wrap| Position { slot, wrap });
            laps.into_iter().find(|&at| self.is_used(at))
        })
    }

    /// The first slot of a batch of which the second descriptor was written and not the first: it
    /// is on offer still, in the very lap in which the second was given back.
    fn begun(&self) -> Option<Position> {
        self.all_used().find_map(|second| match self.note(second) {
            Some(Note::First { back, .. }) if (1..self.size()).contains(&back) => {
                let first = second.before(back, self.size());
                self.is_offered(first).then_some(first)
            }
            _ => None,
        })
    }

    /// How many slots were given back with a used descriptor. Without a note the address is one
    /// that the driver has left there: it was a chain of one slot.
    fn span(&self, at: Position) -> u16 {
        match self.note(at) {
            Some(Note::First { slots, .. }) => slots.clamp(1, self.size()),
            _ => 1,
        }
    }

    /// Goes from one used descriptor to the next, until there is none. That is after a lap at the
    /// most: the slot that one began with was given back in the lap before.
    fn end_of_used(&self, from: Position) -> Option<Position> {
        self.end_of_unseen(from, &mut self.none_seen())
    }

    /// The same of slots that nobody has [seen](Seen): who did has found no end.
    fn end_of_unseen(&self, from: Position, seen: &mut Seen) -> Option<Position> {
        let (mut at, mut left) = (from, self.size());
        while self.is_used(at) {
            let span = self.span(at);
            left = left.checked_sub(span).filter(|_| seen.is_first(at))?;
            at = at.after(span, self.size());
        }
        Some(at)
    }

    /// Slots on offer that somebody has passed over, who has given back what comes behind them:
    /// what is to be given back in their stead, and the place behind all of it.
    fn passed_over(&self) -> Option<(Position, Vec<GivenBack>)> {
        let (mut offered, mut used) = (self.none_seen(), self.none_seen());
        let ends = self.ends_of_used().into_iter();
        ends.chain(self.oldest_of_full()).find_map(|end| {
            let (behind, found) = self.passed_over_from(end, &mut offered)?;
            let next = self.end_of_unseen(behind, &mut used)?;
            Some((next, found))
        })
    }

    /// The slots on offer from an end on, if others were given back behind them, and where. From a
    /// slot that was seen before it goes on as it did then, to nothing.
    fn passed_over_from(
        &self,
        end: Position,
        seen: &mut Seen,
    ) -> Option<(Position, Vec<GivenBack>)> {
        let (mut at, mut left, mut found) = (end, self.size(), Vec::new());
        while self.is_offered(at) {
            let slots = self.chain(at, seen)?;
            left = left.checked_sub(slots)?;
            found.push(self.given_back(at, slots));
            at = at.after(slots, self.size());
        }
        (!found.is_empty() && self.is_used(at)).then_some((at, found))
    }

    /// Where runs of given back slots end. There is one such place, unless slots were passed over.
    fn ends_of_used(&self) -> Vec<Position> {
        let (mut seen, mut ended) = (self.none_seen(), self.none_seen());
        let mut ends = Vec::new();
        for mut at in self.all_used() {
            while self.is_used(at) && seen.is_first(at) {
                at = at.after(self.span(at), self.size());
            }
            // From any other nothing leads on.
            if self.is_offered(at) && ended.is_first(at) {
                ends.push(at);
            }
        }
        ends
    }

    /// The oldest slot on offer of a full ring of which others, behind it, were given back; no run
    /// of given back slots ends there. What is left of a chain that the driver has written over
    /// looks the same, but ends with a note.
    fn oldest_of_full(&self) -> Option<Position> {
        let size = self.size();
        let mut driver = self.end_of_used(self.all_used().next()?)?;
        for _ in 0..size {
            if self.is_offered(driver) {
                driver = driver.after(1, size);
            }
        }
        let oldest = driver.before(size, size);
        let mut slots = (0..size).map(|ahead| oldest.after(ahead, size));
        let behind = slots.find(|&at| !self.is_offered(at))?;
        let is_left = self.note(behind.before(1, size)) == Some(Note::Last);
        (behind != oldest && self.is_used(behind) && !is_left).then_some(oldest)
    }

    /// The place of a ring in which nothing is used: all of it is the driver's offer, of this lap
    /// and of the one before, but perhaps for what is left of chains given back whose first slot
    /// the driver has written over.
    fn end_of_stale(&self) -> Option<Position> {
        let is = |slot, wrap| self.is_offered(Position { slot, wrap });
        let now = is(0, true);
        let slot = (1..self.size()).find(|&slot| !is(slot, now)).unwrap_or(0);
        // The driver's place, a lap earlier.
        let oldest = Position {
            slot,
            wrap: is(slot, true),
        };
        let places = (0..self.size()).map(|ahead| oldest.after(ahead, self.size()));
        if places.clone().any(|at| !self.is_offered(at)) {
            return None;
        }
        let mut noted = places.filter_map(|at| Some((at, self.note(at)?)));
        match noted.next() {
            Some((last, Note::Last)) => Some(last.after(1, self.size())),
            _ => Some(oldest),
        }
    }

    /// What was being given back at `first`, and the place behind it.
    fn unfinished(&self, first: Position) -> (Position, Vec<GivenBack>) {
        let size = self.size();
        if !self.is_offered(first) {
            return (first, Vec::new());
        }
        let touched = |at| self.is_offered(at) && matches!(self.note(at), Some(Note::First { .. }));
        let mut slots = match touched(first) {
            true => self.span(first),
            // None but its own slots are seen, and these once.
            false => self.chain(first, &mut self.none_seen()).unwrap_or(size),
        };
        let (mut at, mut left, mut found) = (first, size, Vec::new());
        while slots <= left {
            found.push(self.given_back(at, slots));
            at = at.after(slots, size);
            left -= slots;
            // The second says that it is one; whatever looks like it without that is not ours.
            let is_second =
                matches!(self.note(at), Some(Note::First { back, .. }) if back == slots);
            let goes_on = self.is_used(at) || touched(at);
            if left == 0 || !goes_on || found.len() == 1 && !is_second {
                break;
            }
            slots = self.span(at);
        }
        match found.len() > 1 || touched(first) {
            true => (at, found),
            false => (first, Vec::new()),
        }
    }

    /// So many slots, by the id that they have.
    fn given_back(&self, at: Position, slots: u16) -> GivenBack {
        // A chain's own descriptors have its id in the last, the used one has it in the first.
        let with_id = if self.is_used(at) { 1 } else { slots };
        let with_id = at.after(with_id - 1, self.size());
        let id = self.0[usize::from(with_id.slot)].packed().tail;
        GivenBack { at, slots, id }
    }

    /// How many slots a chain on offer takes. `None`: it goes over one that was seen before.
    fn chain(&self, first: Position, seen: &mut Seen) -> Option<u16> {
        let mut slots = 0;
        loop {
            let at = first.after(slots, self.size());
            if !seen.is_first(at) {
                return None;
            }
            slots += 1;
            if self.flags(at) & NEXT == 0 || slots == self.size() {
                return Some(slots);
            }
        }
    }

    fn none_seen(&self) -> Seen {
        Seen(vec![[false; 2]; self.0.len()])
    }
}

/// Places of both laps that were looked at, so that no ring, whatever is in it, has one looked at
/// again and again.
struct Seen(Vec<[bool; 2]>);

impl Seen {
    /// True the first time.
    fn is_first(&mut self, at: Position) -> bool {
        let seen = &mut self.0[usize::from(at.slot)][usize::from(at.wrap)];
        !std::mem::replace(seen, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost::virtqueue::index::{AVAIL, USED};

    const SIZE: usize = 4;

    fn slot(addr: u64, id: u16, flags: u16) -> RawDescriptor {
        RawDescriptor([addr, u64::from(id) << 32 | u64::from(flags) << 48])
    }

    /// Offered and given back, in the laps whose counter is 1 (as the first) and 0.
    const OFFERED_1: u16 = AVAIL;
    const OFFERED_0: u16 = USED;
    const USED_1: u16 = AVAIL | USED;
    const USED_0: u16 = 0;

    fn at(slot: u16, wrap: bool) -> ResumePoint {
        ResumePoint {
            next: Position { slot, wrap },
            unfinished: vec![],
        }
    }

    #[test]
    fn a_new_ring_is_at_its_beginning() {
        let zeroes = [slot(0, 0, 0); SIZE];
        assert_eq!(find(&zeroes), Some(at(0, true)));
        let offered = |count: usize| -> Vec<_> {
            let flags = |number| if number < count { OFFERED_1 } else { 0 };
            (0..SIZE)
                .map(|number| slot(0x1000, 7, flags(number)))
                .collect()
        };
        for count in 0..=SIZE {
            assert_eq!(
                find(&offered(count)),
                Some(at(0, true)),
                "{count} are offered"
            );
        }
    }

    #[test]
    fn the_place_is_behind_what_was_given_back_last() {
        let ring = |flags: [u16; SIZE]| flags.map(|flags| slot(0x1000, 7, flags));
        for (flags, place) in [
            ([USED_1, USED_1, OFFERED_1, 0], at(2, true)),
            ([USED_1, USED_1, USED_1, USED_1], at(0, false)),
            ([OFFERED_0, USED_1, USED_1, OFFERED_1], at(3, true)),
            // All are offered, of two laps: nothing says more than where the one ends.
            ([OFFERED_0, OFFERED_0, OFFERED_1, OFFERED_1], at(2, true)),
            ([OFFERED_1, OFFERED_1, OFFERED_1, OFFERED_0], at(3, false)),
            ([USED_0, OFFERED_0, USED_1, USED_1], at(1, false)),
        ] {
            assert_eq!(find(&ring(flags)), Some(place), "{flags:x?}");
        }
        // No device gives back one behind what is not on offer.
        assert_eq!(find(&ring([USED_1, OFFERED_0, USED_1, OFFERED_0])), None);
    }

    #[test]
    fn notes_tell_how_many_slots_were_given_back() {
        let three = Note::First { slots: 3, back: 0 };
        let mut ring = [
            slot(three.bits(), 7, USED_1),
            slot(0x1000, 0, OFFERED_1 | NEXT),
            slot(Note::Last.bits(), 7, OFFERED_1),
            slot(0x1000, 8, OFFERED_1),
        ];
        assert_eq!(find(&ring), Some(at(3, true)));
        // The driver has written over the first of them.
        ring[0] = slot(0x1000, 9, OFFERED_0);
        assert_eq!(find(&ring), Some(at(3, true)));
    }

    /// What QEMU does with a transmit ring while it has no device.
    #[test]
    fn what_was_passed_over_is_given_back() {
        let ring = |flags: [u16; 6]| {
            let number = std::cell::Cell::new(0);
            flags.map(|flags| slot(0x1000, number.replace(number.get() + 1), flags))
        };
        let one = |slot, wrap| GivenBack {
            at: Position { slot, wrap },
            slots: 1,
            id: slot,
        };
        // The device was at slot 4; somebody began at slot 0 of the next lap.
        for (flags, next, passed_over) in [
            (
                [USED_1, USED_0, USED_0, USED_0, OFFERED_0, OFFERED_0],
                1,
                vec![one(4, false), one(5, false)],
            ),
            // The driver offers more, and the ring is full.
            (
                [USED_1, USED_1, OFFERED_1, OFFERED_1, OFFERED_0, OFFERED_0],
                2,
                vec![one(4, false), one(5, false)],
            ),
            (
                [USED_1, USED_1, USED_1, USED_1, USED_1, OFFERED_0],
                5,
                vec![one(5, false)],
            ),
            // In the midst of a lap.
            (
                [USED_1, OFFERED_1, OFFERED_1, USED_1, OFFERED_1, USED_0],
                4,
                vec![one(1, true), one(2, true)],
            ),
        ] {
            let ResumePoint {
                next: place,
                unfinished,
            } = find(&ring(flags)).unwrap();
            let wrap = true;
            assert_eq!(place, Position { slot: next, wrap }, "{flags:x?}");
            assert_eq!(unfinished, passed_over, "{flags:x?}");
        }
        // A chain of two slots is given back as one.
        let mut chain = ring([USED_1, USED_0, USED_0, USED_0, OFFERED_0 | NEXT, OFFERED_0]);
        chain[4].0[1] |= u64::from(NEXT) << 48;
        let found = find(&chain).unwrap();
        let both = GivenBack {
            slots: 2,
            id: 5,
            ..one(4, false)
        };
        assert_eq!(found.unfinished, [both]);
        // What is left of a chain that was given back is not.
        let mut ring = ring([USED_1, USED_1, USED_1, USED_1, OFFERED_0, OFFERED_0]);
        ring[5].0[0] = Note::Last.bits();
        assert_eq!(find(&ring), Some(at(4, true)));
    }

    #[test]
    fn a_batch_that_was_begun_is_found() {
        let second = Note::First { slots: 1, back: 1 };
        let ring = [
            slot(0x1000, 7, OFFERED_1),
            slot(second.bits(), 8, USED_1),
            slot(0x1000, 9, USED_1),
            slot(0x1000, 5, OFFERED_1),
        ];
        let ResumePoint { next, unfinished } = find(&ring).unwrap();
        assert_eq!(next, at(3, true).next);
        let one = |slot, id| GivenBack {
            at: Position { slot, wrap: true },
            slots: 1,
            id,
        };
        assert_eq!(unfinished, [one(0, 7), one(1, 8), one(2, 9)]);
    }

    /// Rings that no driver makes: ends of given back slots that lead into one another, on which
    /// each of 32,768 slots would be looked at thousands of times. A VMM may ask for a look at such
    /// a ring with each message.
    #[test]
    fn no_ring_takes_long_to_look_at() {
        const HALF: u16 = 1 << 14;
        const QUARTER: u16 = 1 << 13;
        let used = |slots, flags| slot(Note::First { slots, back: 0 }.bits(), 7, flags);
        let offered = |flags| slot(0x1000, 7, flags);
        let ring = |of: &dyn Fn(u16) -> RawDescriptor| (0..2 * HALF).map(of).collect::<Vec<_>>();
        let rings = [
            // Each slot of the first half ends at one of the second.
            ring(&|at| match at < HALF {
                true => used(HALF, USED_1),
                false => offered(OFFERED_1),
            }),
            // The last of them at the first, and the second half is one chain.
            ring(&|at| match at < HALF {
                true => used(2 * (HALF - at) - 1, USED_1),
                false => offered(OFFERED_1 | NEXT),
            }),
            // Thousands of slots on offer, with a given back one behind each, that lead to one long
            // run of such which has no end.
            ring(&|at| match at / QUARTER {
                0 if at < QUARTER - 1 => used(1, USED_1),
                0 => used(2 * HALF, USED_1),
                1 => used(at, USED_0),
                _ if at % 2 == 0 => offered(OFFERED_0),
                _ => used(2 * HALF - at, USED_0),
            }),
        ];
        let begin = std::time::Instant::now();
        for ring in &rings {
            std::hint::black_box(find(ring));
        }
        let took = begin.elapsed();
        assert!(took.as_millis() < 1000, "{took:?}");
    }
}

//! Arithmetic of ring indices: what has passed, what is available, where a lap ends. Pure, and
//! tried against a model that counts without ever wrapping.

/// True when `event` is among the entries `old..new` of a split ring: the guest asked to be told
/// about one of them.
#[inline]
pub(in crate::vhost) fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

const WRAP: u16 = 1 << 15;
/// Flags of a descriptor of a packed ring, beside those of any descriptor (virtio 1.2, section
/// 2.8.1).
pub(in crate::vhost) const AVAIL: u16 = 1 << 7;
pub(in crate::vhost) const USED: u16 = 1 << 15;

/// A place in a packed ring: a slot, and the counter that changes with every lap (virtio 1.2,
/// section 2.8.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vhost) struct Position {
    pub slot: u16,
    pub wrap: bool,
}

impl Position {
    /// Where both sides of a new ring are.
    pub const START: Position = Position {
        slot: 0,
        wrap: true,
    };

    /// From the form that messages and event structures have: the counter in bit 15.
    pub fn from_bits(bits: u16) -> Self {
        Position {
            slot: bits & !WRAP,
            wrap: bits & WRAP != 0,
        }
    }

    /// That form.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.slot | if self.wrap { WRAP } else { 0 }
    }

    /// The place `slots` further on in a ring of `size`; at most a lap.
    #[inline(always)]
    pub fn after(self, slots: u16, size: u16) -> Self {
        debug_assert!(self.slot < size && slots <= size);
        // Both are at most 32768.
        let slot = u32::from(self.slot) + u32::from(slots);
        match slot.checked_sub(u32::from(size)) {
            Some(slot) => Position {
                slot: slot as u16,
                wrap: !self.wrap,
            },
            None => Position {
                slot: slot as u16,
                wrap: self.wrap,
            },
        }
    }

    /// The place `slots` before in a ring of `size`; at most a lap.
    pub fn before(self, slots: u16, size: u16) -> Self {
        let lap_before = Position {
            slot: self.slot,
            wrap: !self.wrap,
        };
        lap_before.after(size - slots, size)
    }

    /// How many slots `later` is ahead, if it is not more than a lap; negative for a place that was
    /// passed in this lap.
    #[inline]
    fn ahead(self, later: Position, size: u16) -> i32 {
        let lap = if self.wrap == later.wrap {
            0
        } else {
            i32::from(size)
        };
        i32::from(later.slot) + lap - i32::from(self.slot)
    }

    /// True when a descriptor here with these flags is the driver's offer of this lap.
    #[inline(always)]
    pub fn is_available(self, flags: u16) -> bool {
        flags & (AVAIL | USED) == if self.wrap { AVAIL } else { USED }
    }

    /// True when a descriptor here with these flags was given back in this lap.
    #[inline]
    pub fn is_used(self, flags: u16) -> bool {
        flags & (AVAIL | USED) == self.used_flags()
    }

    /// The flags with which a descriptor here is given back.
    #[inline(always)]
    pub fn used_flags(self) -> u16 {
        if self.wrap { AVAIL | USED } else { 0 }
    }
}

/// True when the place `event` is among those from `old` up to `new`, of a ring of `size`: as
/// [`passed`]. What the guest wrote as `event` may be anything.
#[inline]
pub(in crate::vhost) fn passed_packed(
    event: Position,
    new: Position,
    old: Position,
    size: u16,
) -> bool {
    (0..old.ahead(new, size)).contains(&old.ahead(event, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The model: places are counted from the ring's beginning on, and never wrap.
    fn place(count: u32, size: u16) -> Position {
        let lap = count / u32::from(size);
        Position {
            slot: (count % u32::from(size)) as u16,
            wrap: lap.is_multiple_of(2),
        }
    }

    proptest! {
        #[test]
        fn a_split_event_has_passed_as_the_model_says(
            old in 0u32..200_000, moved in 0u32..=32768, event in -300i64..40_000,
        ) {
            let event = i64::from(old) + event;
            let model = (i64::from(old)..i64::from(old + moved)).contains(&event);
            prop_assert_eq!(passed(event as u16, (old + moved) as u16, old as u16), model);
        }

        #[test]
        fn a_packed_event_has_passed_as_the_model_says(
            size in 1u16..=32768, from in 0u32..200_000, moved: u16, event: u16,
        ) {
            // The ring has gone on by a lap at most, and the guest asks for a place of the lap from
            // `old` on.
            let moved = u32::from(moved) % (u32::from(size) + 1);
            let event = from + u32::from(event) % u32::from(size);
            let at = |count| place(count, size);
            prop_assert_eq!(passed_packed(at(event), at(from + moved), at(from), size),
                event < from + moved);
        }

        #[test]
        fn an_event_anywhere_passes_only_where_the_ring_has_been(
            size in 1u16..=600, from in 0u32..5_000, moved: u16, event: u16,
        ) {
            let moved = u32::from(moved) % (u32::from(size) + 1);
            let said = Position::from_bits(event);
            prop_assert_eq!(said.bits(), event);
            let at = |count| place(count, size);
            let passed = passed_packed(said, at(from + moved), at(from), size);
            // Outside the ring anything goes, but overflow.
            prop_assert!(said.slot >= size
                || passed == (from..from + moved).any(|count| at(count) == said));
        }

        #[test]
        fn a_position_goes_on_as_the_model_does(
            size in 1u16..=32768, from in 0u32..200_000, slots: u16,
        ) {
            let slots = (u32::from(slots) % (u32::from(size) + 1)) as u16;
            let later = place(from, size).after(slots, size);
            prop_assert_eq!(later, place(from + u32::from(slots), size));
            prop_assert_eq!(place(from, size).ahead(later, size), i32::from(slots));
            prop_assert_eq!(later.before(slots, size), place(from, size));
        }

        #[test]
        fn a_slot_is_available_once_a_lap(size in 1u16..=512, from in 0u32..5_000) {
            // What the driver writes when it offers a slot, and what the device writes when it
            // gives it back.
            let at = place(from, size);
            let offered = if at.wrap { AVAIL } else { USED };
            let next_lap = place(from + u32::from(size), size);
            prop_assert!(at.is_available(offered) && !next_lap.is_available(offered));
            prop_assert!(!at.is_available(at.used_flags())
                && !next_lap.is_available(at.used_flags()));
            prop_assert!(at.is_used(at.used_flags()) && !next_lap.is_used(at.used_flags())
                && !at.is_used(offered));
            // A ring of zeroes offers nothing.
            prop_assert!(!at.is_available(0));
        }
    }
}

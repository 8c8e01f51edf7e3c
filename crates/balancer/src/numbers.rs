//! Numbers for services and servers that stay theirs: the flow table speaks of servers by number.
//!
//! A number that became free is given out again as late as possible. A flow whose word still has
//! the number of a server that left goes to the newcomer of the same service, if there is one: its
//! own server is gone either way.

use std::collections::{BTreeMap, BTreeSet};

/// Who has which number: 1 to `room` - 1; 0 is nobody's.
#[derive(Debug, Clone)]
pub(crate) struct Numbers<K> {
    room: u16,
    next: u16,
    taken: BTreeMap<K, u16>,
    used: BTreeSet<u16>,
}

impl<K: Ord + Copy> Numbers<K> {
    pub(crate) fn new(room: u16) -> Self {
        Numbers {
            room,
            next: 1,
            taken: BTreeMap::new(),
            used: BTreeSet::new(),
        }
    }

    /// Numbers as they were given out elsewhere, by [`iter`](Self::iter) and [`next`](Self::next).
    /// `None`: that cannot be.
    pub(crate) fn left(
        room: u16,
        next: u16,
        taken: impl IntoIterator<Item = (K, u16)>,
    ) -> Option<Self> {
        let mut numbers = Numbers {
            next,
            ..Numbers::new(room)
        };
        let in_room = |number: u16| (1..room).contains(&number);
        for (key, number) in taken {
            let new = numbers.used.insert(number) && numbers.taken.insert(key, number).is_none();
            if !new || !in_room(number) {
                return None;
            }
        }
        in_room(next).then_some(numbers)
    }

    /// The number that is looked at first for who comes next.
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Takes numbers from those who are not in `present`, gives numbers to those who have none.
    /// False, and nothing has changed: there are more than numbers.
    pub(crate) fn assign(&mut self, present: &BTreeSet<K>) -> bool {
        if present.len() >= usize::from(self.room) {
            return false;
        }
        let used = &mut self.used;
        self.taken
            .retain(|key, number| present.contains(key) || !used.remove(number));
        for key in present {
            if !self.taken.contains_key(key) {
                let number = self.free();
                self.used.insert(number);
                self.taken.insert(*key, number);
            }
        }
        true
    }

    /// The number of one that was in the last `assign`.
    pub(crate) fn of(&self, key: &K) -> Option<u16> {
        self.taken.get(key).copied()
    }

    /// All, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, u16)> {
        self.taken.iter().map(|(key, number)| (key, *number))
    }

    fn free(&mut self) -> u16 {
        loop {
            let number = self.next;
            self.next = if number + 1 >= self.room {
                1
            } else {
                number + 1
            };
            if !self.used.contains(&number) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_come_back_late() {
        let mut numbers = Numbers::new(4);
        assert!(numbers.assign(&BTreeSet::from([10, 20])));
        assert_eq!((numbers.of(&10), numbers.of(&20)), (Some(1), Some(2)));
        assert!(numbers.assign(&BTreeSet::from([20])));
        assert!(numbers.assign(&BTreeSet::from([20, 30])));
        assert_eq!(
            (numbers.of(&10), numbers.of(&20), numbers.of(&30)),
            (None, Some(2), Some(3))
        );
        assert!(numbers.assign(&BTreeSet::from([5, 20, 30])));
        assert_eq!(numbers.of(&5), Some(1), "the only one that is free");
        assert!(
            !numbers.assign(&BTreeSet::from([5, 6, 20, 30])),
            "room for three"
        );
        assert_eq!(numbers.of(&5), Some(1), "nothing has changed");
    }
}

//! Which of what the keeper holds of VMMs' sessions is the newest: a word for each session, in
//! memory that the keeper holds, too.
//!
//! What a keeper has noted of a session is out of date when the VMM says something more. The daemon
//! tells it so, and does not wait for one that stands still: a daemon that is killed then leaves a
//! session behind that it was once. So each note has a number, and in the memory is which number is
//! valid of a session; that takes no keeper to change. The next daemon goes on with no other one.
//!
//! The memory is one for all daemons in a row, since it has to be true at each instant of their
//! following each other. It is read as what an enemy may have written: all that it can do is to
//! have sessions dropped, or gone on with that were dropped, which could be without it as well.
//!
//! # What is in it
//!
//! 64-bit words: a magic number, the last number that was given, then two for each place. A session
//! that is noted anew while nothing was heard of its VMM is valid by both numbers until the keeper
//! has answered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use dataplane::counters::MAX_PORTS;
use sys::shared_memory::{self, SharedMemory};

/// What the memory begins with, and each note that has a number: "bflyword".
const MAGIC: u64 = u64::from_be_bytes(*b"bflyword");
const WORD: u64 = 8;
const LAST: u64 = WORD;
const PLACES: u64 = 2 * WORD;
const PLACE: u64 = 2 * WORD;
const END: u64 = place_at(MAX_PORTS as u64);
/// Bytes of a note before the session's record.
const PREFIX: usize = 3 * WORD as usize;

/// Where a session's word is, and which number is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    place: u64,
    number: u64,
}

impl Mark {
    /// A session's record, and this before it.
    pub fn noted(self, record: &[u8]) -> Vec<u8> {
        let words = [MAGIC, self.place, self.number];
        let mut note: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        note.extend(record);
        note
    }

    /// What is before the record in a note, and the record; none of an older version.
    pub fn of_note(note: &[u8]) -> (Option<Mark>, &[u8]) {
        let words = note.as_chunks::<{ WORD as usize }>().0;
        let Some([magic, place, number]) = words.first_chunk::<3>() else {
            return (None, note);
        };
        let [magic, place, number] = [magic, place, number].map(|word| u64::from_le_bytes(*word));
        match magic == MAGIC {
            true => (Some(Mark { place, number }), &note[PREFIX..]),
            false => (None, note),
        }
    }
}

/// The memory, and whose its places are.
pub struct SessionWords {
    file: File,
    /// By NIC.
    places: BTreeMap<String, u64>,
    free: BTreeSet<u64>,
    /// The last number that was given here: none is given twice, whatever the memory says.
    given: u64,
}

impl SessionWords {
    /// New ones, of no session.
    pub fn new() -> io::Result<SessionWords> {
        let memory = SharedMemory::new("butterfly-sessions", END)?;
        let file = File::from(memory.as_fd().try_clone_to_owned()?);
        file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        Ok(SessionWords {
            file,
            places: BTreeMap::new(),
            free: (0..MAX_PORTS as u64).collect(),
            given: 0,
        })
    }

    /// Those that a daemon before has left. An error: they are none.
    pub fn left(memory: OwnedFd) -> io::Result<SessionWords> {
        let mut taken = BTreeSet::new();
        let part = PLACE as usize * 1024;
        // What is left out was never written: places that are free.
        shared_memory::read(memory.as_fd(), (PLACES, END), part, |at, bytes| {
            let places = ((at - PLACES) / PLACE..).zip(bytes.chunks_exact(PLACE as usize));
            let places = places.filter(|(_, words)| words.iter().any(|byte| *byte != 0));
            taken.extend(places.map(|(place, _)| place));
        })?;
        let free = (0..MAX_PORTS as u64).filter(|place| !taken.contains(place));
        let words = SessionWords {
            file: File::from(memory),
            places: BTreeMap::new(),
            free: free.collect(),
            given: 0,
        };
        match words.read(0)? {
            [MAGIC] => Ok(words),
            _ => Err(io::Error::other("it has no words of sessions")),
        }
    }

    /// What is to be held for the next process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether what was noted of a session is what it was last. Its place is this NIC's then.
    pub fn is_valid(&mut self, nic: &str, mark: Mark) -> io::Result<bool> {
        if mark.place >= MAX_PORTS as u64 || mark.number == 0 {
            return Ok(false);
        }
        let valid = self.valid(mark.place)?.contains(&mark.number);
        let mut others = self.places.iter().filter(|(other, _)| *other != nic);
        let is_taken = others.any(|(_, place)| *place == mark.place);
        if valid && !is_taken {
            self.places.insert(nic.to_owned(), mark.place);
            self.free.remove(&mark.place);
        }
        Ok(valid && !is_taken)
    }

    /// Only sessions with these marks are left: places of all others are free.
    pub fn keep(&mut self, left: &[Mark]) -> io::Result<()> {
        let left: BTreeSet<u64> = left.iter().map(|mark| mark.place).collect();
        for place in 0..MAX_PORTS as u64 {
            if !left.contains(&place) && self.free.insert(place) {
                self.write(place_at(place), &[0; 2])?;
            }
        }
        Ok(())
    }

    /// For what is about to be noted of a session, which is not valid before it is
    /// [offered](Self::offer).
    pub fn mark(&mut self, nic: &str) -> io::Result<Mark> {
        let place = match self.places.get(nic) {
            Some(place) => *place,
            None => self
                .free
                .pop_first()
                .ok_or_else(|| io::Error::other("there is no place for one more session"))?,
        };
        let [last] = self.read(LAST)?;
        let number = last.max(self.given).wrapping_add(1).max(1);
        self.given = number;
        self.write(LAST, &[number])?;
        self.places.insert(nic.to_owned(), place);
        Ok(Mark { place, number })
    }

    /// What is noted with this mark is valid, and what was noted before still is.
    pub fn offer(&self, mark: Mark) -> io::Result<()> {
        self.write(place_at(mark.place) + WORD, &[mark.number])
    }

    /// Nothing else is valid any more of its session.
    pub fn settle(&self, mark: Mark) -> io::Result<()> {
        self.write(place_at(mark.place), &[mark.number; 2])
    }

    /// Nothing that was noted of a session is valid.
    pub fn invalidate(&self, nic: &str) -> io::Result<()> {
        match self.places.get(nic) {
            Some(place) => self.write(place_at(*place), &[0; 2]),
            None => Ok(()),
        }
    }

    /// There is no such session any more.
    pub fn forget(&mut self, nic: &str) -> io::Result<()> {
        self.invalidate(nic)?;
        self.free.extend(self.places.remove(nic));
        Ok(())
    }

    fn valid(&self, place: u64) -> io::Result<[u64; 2]> {
        self.read(place_at(place))
    }

    fn read<const COUNT: usize>(&self, at: u64) -> io::Result<[u64; COUNT]> {
        let mut bytes = vec![0; COUNT * WORD as usize];
        shared_memory::read_at(self.file.as_fd(), &mut bytes, at)?;
        let words = bytes.as_chunks::<{ WORD as usize }>().0;
        Ok(std::array::from_fn(|index| {
            u64::from_ne_bytes(words[index])
        }))
    }

    fn write(&self, at: u64, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.file.write_all_at(&bytes, at)
    }
}

const fn place_at(place: u64) -> u64 {
    PLACES + PLACE * place
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn again(words: &SessionWords) -> SessionWords {
        SessionWords::left(words.descriptor().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn what_was_noted_last_is_valid_and_nothing_else() {
        let mut words = SessionWords::new().unwrap();
        let one = words.mark("a").unwrap();
        let valid = |words: &SessionWords, mark| again(words).is_valid("a", mark).unwrap();
        assert!(!valid(&words, one), "it is not noted yet");
        words.offer(one).unwrap();
        words.settle(one).unwrap();
        assert!(valid(&words, one));
        // Noted anew while nothing was heard: until that is known, either will do.
        let next = words.mark("a").unwrap();
        assert_eq!((next.place, next == one), (one.place, false));
        words.offer(next).unwrap();
        assert!(valid(&words, one) && valid(&words, next));
        words.settle(next).unwrap();
        assert!(!valid(&words, one) && valid(&words, next));
        // The VMM says something.
        words.invalidate("a").unwrap();
        assert!(!valid(&words, one) && !valid(&words, next));
        let last = words.mark("a").unwrap();
        words.settle(last).unwrap();
        words.forget("a").unwrap();
        assert!(!valid(&words, last));
    }

    /// Of places that nobody ever wrote to there is nothing to be read.
    #[test]
    fn the_next_process_has_as_many_places() {
        let mut words = SessionWords::new().unwrap();
        let one = words.mark("one").unwrap();
        words.settle(one).unwrap();
        let mut next = again(&words);
        assert_eq!(next.free.len(), MAX_PORTS - 1);
        // None is written to that is free already.
        let before = next.file.metadata().unwrap().blocks();
        next.keep(&[one]).unwrap();
        assert_eq!(next.file.metadata().unwrap().blocks(), before);
    }

    #[test]
    fn numbers_and_places_are_nobody_elses_in_the_next_process() {
        let mut words = SessionWords::new().unwrap();
        let marks = ["a", "b", "c"].map(|nic| words.mark(nic).unwrap());
        marks.iter().for_each(|mark| words.settle(*mark).unwrap());
        let mut next = again(&words);
        // Also when it is put back, and taken up once more.
        (0..2).for_each(|_| assert!(next.is_valid("a", marks[0]).unwrap()));
        assert!(!next.is_valid("d", marks[0]).unwrap(), "it is a's");
        let new = next.mark("e").unwrap();
        assert!(marks.iter().all(|mark| mark.place != new.place));
        assert!(marks.iter().all(|mark| mark.number != new.number));
        // c was let go, and nobody has said so.
        next.keep(&marks[..2]).unwrap();
        assert!(!next.is_valid("c", marks[2]).unwrap());
        assert!(next.is_valid("b", marks[1]).unwrap());
        assert_eq!(next.mark("f").unwrap().place, marks[2].place);
    }

    #[test]
    fn what_cannot_be_is_not_valid() {
        let mut words = SessionWords::new().unwrap();
        for place in [0, MAX_PORTS as u64, u64::MAX] {
            let mark = Mark { place, number: 0 };
            assert!(!words.is_valid("a", mark).unwrap());
        }
        let number = 7;
        let beyond = Mark {
            place: u64::MAX / PLACE,
            number,
        };
        assert!(!words.is_valid("a", beyond).unwrap());
        let none = sys::handed::file_of(&[0; 1 << 20]).unwrap();
        assert!(SessionWords::left(none).is_err());
        let short = sys::handed::file_of(&MAGIC.to_ne_bytes()).unwrap();
        assert!(SessionWords::left(short).is_err());
    }

    #[test]
    fn a_note_of_an_older_version_has_no_mark() {
        let mark = Mark {
            place: 3,
            number: 9,
        };
        let record = 1u64.to_le_bytes().repeat(9);
        assert_eq!(Mark::of_note(&record), (None, &record[..]));
        assert_eq!(
            Mark::of_note(&mark.noted(&record)),
            (Some(mark), &record[..])
        );
        assert_eq!(Mark::of_note(b"short"), (None, &b"short"[..]));
        // Of all versions, since the daemon before may be of another one.
        let bytes = b"drowylfb\x03\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0record";
        assert_eq!(mark.noted(b"record"), bytes);
    }
}

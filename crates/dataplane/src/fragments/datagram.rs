//! One datagram on its way: which of its bytes were seen, and what its first fragment said.

use std::net::IpAddr;

use wire::parse::{L4, Quoted};

use crate::drop_reason::DropReason;

/// Separate pieces of one datagram at most.
const PIECES: usize = 8;

/// One fragment's place in its datagram, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub start: u32,
    pub end: u32,
    pub more: bool,
}

/// What of layer 4 the later fragments borrow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Lent {
    pub protocol: u8,
    pub l4: L4,
    /// What an ICMP error is about.
    pub quoted: Option<Quoted>,
}

/// When a datagram began, and which one it was: a key can begin many times in a millisecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begun {
    pub at_ms: u32,
    pub number: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Datagram {
    pub begun: Begun,
    /// The host that has sent its first fragment, of what comes from the wire.
    pub host: Option<IpAddr>,
    /// What the first fragment said: a datagram is remembered from then on.
    pub first: Lent,
    /// Why the rest of it is dropped.
    pub fate: Option<DropReason>,
    /// What was seen, sorted, touching pieces joined.
    pieces: [(u32, u32); PIECES],
    count: u8,
    /// Where the datagram ends, once the last fragment was seen.
    total: Option<u32>,
}

impl Datagram {
    /// Begins with the first fragment.
    pub(super) fn new(begun: Begun, host: Option<IpAddr>, first: Lent, piece: Piece) -> Self {
        let mut datagram = Datagram {
            begun,
            host,
            first,
            fate: None,
            pieces: [(0, 0); PIECES],
            count: 0,
            total: None,
        };
        // The first piece of an empty list always fits.
        let _ = datagram.add(piece);
        datagram
    }

    /// Adds a piece; fails when it overlaps another one or lies behind the end, or makes too many.
    pub(super) fn add(&mut self, piece: Piece) -> Result<(), DropReason> {
        let count = usize::from(self.count);
        let highest = self.pieces[..count].last().map_or(0, |&(_, end)| end);
        if self
            .total
            .is_some_and(|total| piece.end > total || !piece.more)
        {
            return Err(DropReason::FragmentOverlap);
        }
        if !piece.more {
            if highest > piece.end {
                return Err(DropReason::FragmentOverlap);
            }
            self.total = Some(piece.end);
        }
        let at = self.pieces[..count].partition_point(|&(start, _)| start < piece.start);
        let overlaps_before = at > 0 && self.pieces[at - 1].1 > piece.start;
        let overlaps_after = at < count && self.pieces[at].0 < piece.end;
        if overlaps_before || overlaps_after {
            return Err(DropReason::FragmentOverlap);
        }
        let joins_before = at > 0 && self.pieces[at - 1].1 == piece.start;
        let joins_after = at < count && self.pieces[at].0 == piece.end;
        match (joins_before, joins_after) {
            (true, true) => {
                self.pieces[at - 1].1 = self.pieces[at].1;
                self.pieces.copy_within(at + 1..count, at);
                self.count -= 1;
            }
            (true, false) => self.pieces[at - 1].1 = piece.end,
            (false, true) => self.pieces[at].0 = piece.start,
            (false, false) if count == PIECES => return Err(DropReason::FragmentTableFull),
            (false, false) => {
                self.pieces.copy_within(at..count, at + 1);
                self.pieces[at] = (piece.start, piece.end);
                self.count += 1;
            }
        }
        Ok(())
    }

    /// All of it was seen.
    pub(super) fn is_whole(&self) -> bool {
        self.count == 1 && self.total == Some(self.pieces[0].1) && self.pieces[0].0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn datagram() -> Datagram {
        Datagram {
            begun: Begun {
                at_ms: 0,
                number: 0,
            },
            host: None,
            first: Lent {
                protocol: 17,
                l4: L4::Other,
                quoted: None,
            },
            fate: None,
            pieces: [(0, 0); PIECES],
            count: 0,
            total: None,
        }
    }

    proptest! {
        /// Against a list of bytes that were seen.
        #[test]
        fn pieces_overlap_when_their_bytes_do(
            pieces in proptest::collection::vec((0u32..24, 1u32..6), 1..12),
        ) {
            let mut datagram = datagram();
            let mut seen = [false; 40];
            for (start, len) in pieces {
                let end = start + len;
                let overlap = (start..end).any(|byte| seen[byte as usize]);
                match datagram.add(Piece { start, end, more: true }) {
                    Ok(()) => prop_assert!(!overlap),
                    Err(DropReason::FragmentOverlap) => { prop_assert!(overlap); continue; }
                    Err(_) => { prop_assert_eq!(usize::from(datagram.count), PIECES); continue; }
                }
                (start..end).for_each(|byte| seen[byte as usize] = true);
            }
            let runs = (0..39).filter(|&i| seen[i] && (i == 0 || !seen[i - 1])).count();
            prop_assert_eq!(usize::from(datagram.count), runs);
        }
    }

    #[test]
    fn there_is_one_end_and_nothing_behind_it() {
        let piece = |start, end, more| Piece { start, end, more };
        let mut datagram = datagram();
        datagram.add(piece(16, 20, false)).unwrap();
        assert_eq!(
            datagram.add(piece(24, 32, true)),
            Err(DropReason::FragmentOverlap)
        );
        assert_eq!(
            datagram.add(piece(8, 12, false)),
            Err(DropReason::FragmentOverlap)
        );
        let mut other = self::datagram();
        other.add(piece(16, 24, true)).unwrap();
        assert_eq!(
            other.add(piece(8, 12, false)),
            Err(DropReason::FragmentOverlap)
        );
    }
}

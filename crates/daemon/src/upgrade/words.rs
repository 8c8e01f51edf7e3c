//! What the two daemons say to each other: datagrams of one word each, by a name, with a note and
//! descriptors or none ([`keeper::Parts`]).
//!
//! | word | by | what |
//! |---|---|---|
//! | `Offer` | old | the number of the hand-over, in decimal |
//! | `Hello` | new | its settings can be used, and it asks for items; the note says `early` where sessions are to be among them |
//! | `Item` | old | something by its name |
//! | `All` | old | that was all, for now |
//! | `Ready` | new | all is prepared |
//! | `Store` | old | the store is closed |
//! | `Opened` | new | it has it; the note says `flows=memory` or `flows=file` |
//! | `Ports` | old | no frame moves: what is left are the items before, and in the memory of flows so many places |
//! | `Taken` | new | it has taken up all of it |
//! | `Go` | old | the commit |
//! | `Moving` | new | frames move |
//! | `Serving` | new | and clients are served |
//! | `No` | new | it cannot; the note says why |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use keeper::{Parts, receive_parts, send_parts};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// The hand-over that this version speaks: another number for whatever is changed in it that the
/// other side could not do without. What only one side knows is asked for, or left aside.
pub const NUMBER: u32 = 5;
/// The one before, which it speaks too: the same, without health checks of a process that may make
/// no network namespace itself.
pub const WITHOUT_CHECKS: u32 = 4;
/// The one before that: without what announces addresses either.
pub const WITHOUT_ANNOUNCING: u32 = 3;
/// The one before that: without the load balancer either.
pub const WITHOUT_BALANCER: u32 = 2;
/// The one before that: without interfaces that programs run on and without uplinks either.
pub const WITHOUT_LINKS: u32 = 1;

/// Bytes of a sentence at the most.
const SENTENCE_MAX: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Word {
    Offer = 1,
    Hello = 2,
    Item = 3,
    All = 4,
    Ready = 5,
    Store = 6,
    Opened = 7,
    Ports = 8,
    Taken = 9,
    Go = 10,
    Moving = 11,
    Serving = 12,
    No = 13,
}

/// How long the other end may leave no room.
const SENDS_WITHIN: Duration = Duration::from_secs(2);

/// One end of the socket between them.
pub struct Line(OwnedFd);

/// Why nothing was received.
pub enum Silence {
    /// The other end is gone.
    Gone,
    /// It said nothing in time.
    Late,
    /// It said no, or what nobody asked for: a sentence.
    Said(String),
}

impl Line {
    pub fn new(socket: OwnedFd) -> Line {
        // Who cannot be told so waits longer, and no less is said.
        let _ = set_socket_timeout(&socket, Timeout::Send, Some(SENDS_WITHIN));
        Line(socket)
    }

    /// Says something; a word that finds no room in time is an error.
    pub fn say(
        &self,
        word: Word,
        name: &str,
        note: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> std::io::Result<()> {
        send_parts(&self.0, word as u8, name, note, fds)
    }

    /// Says why not.
    pub fn refuse(&self, why: &str) {
        let end = why.floor_char_boundary(SENTENCE_MAX);
        // Who does not hear it sees that the process ends.
        let _ = self.say(Word::No, "", &why.as_bytes()[..end], &[]);
    }

    /// Waits for one of two words, so long.
    pub fn receive(&self, wanted: &[Word], patience: Duration) -> Result<Parts, Silence> {
        let failed = |e: std::io::Error| Silence::Said(e.to_string());
        set_socket_timeout(&self.0, Timeout::Recv, Some(patience)).map_err(|e| failed(e.into()))?;
        let received = receive_parts(&self.0).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => Silence::Late,
            std::io::ErrorKind::ConnectionReset => Silence::Gone,
            _ => failed(e),
        })?;
        let received = received.ok_or(Silence::Gone)?;
        if received.verb == Word::No as u8 {
            let why = String::from_utf8_lossy(&received.note).into_owned();
            return Err(Silence::Said(why));
        }
        match wanted.iter().any(|word| *word as u8 == received.verb) {
            true => Ok(received),
            false => Err(Silence::Said(format!(
                "it said what was not asked for (word {})",
                received.verb
            ))),
        }
    }

    /// Waits for one word.
    pub fn receive_one(&self, wanted: Word, patience: Duration) -> Result<Parts, Silence> {
        self.receive(&[wanted], patience)
    }
}

/// What paths of the settings are handed over as, each by its option: the two daemons have to mean
/// the same by them. Versions before do not say them.
pub const PATH: &str = "path";

/// What the points of interfaces that programs run at are handed over as, and held.
pub const POINT: &str = "point";

/// What is handed over that says which of what is held of VMMs' sessions is valid. Versions before
/// do not ask for it.
pub const MARKS: &str = "session-marks";

/// What items are given as that the keeper has.
pub const HELD: &str = "held";

/// What is said with `Hello` by who takes VMMs' sessions while the other one serves them still, and
/// what these are given as.
pub const EARLY: &str = "early";
/// Which they are, as [`MARKS`] says it of those that are given last.
pub const EARLY_MARKS: &str = "early-session-marks";
/// Names of those that are the same when the other one stands still, and are not given again.
pub const AS_BEFORE: &str = "sessions-as-before";

/// Descriptors as they are said.
pub fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// Byte strings one behind the other, each behind its length (64 bits, little-endian).
pub fn pack<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    for part in parts {
        packed.extend((part.len() as u64).to_le_bytes());
        packed.extend(part);
    }
    packed
}

/// What [`pack`] was given; `None`: it was given nothing such.
pub fn unpack(mut packed: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !packed.is_empty() {
        let (len, rest) = packed.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (part, rest) = rest.split_at_checked(len)?;
        parts.push(part);
        packed = rest;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use sys::handed::{bytes_of, file_of};

    use super::*;

    fn pair() -> (Line, Line) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC;
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Line::new(one), Line::new(other))
    }

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn a_word_is_received_and_silence_has_a_reason() {
        let (one, other) = pair();
        let file = file_of(b"bytes").unwrap();
        one.say(Word::Item, "a name", b"a note", &[file.as_fd()])
            .unwrap();
        let received = other.receive(&[Word::All, Word::Item], SOON);
        let received = received.ok().unwrap();
        assert_eq!(
            (received.name.as_str(), &*received.note),
            ("a name", &b"a note"[..])
        );
        let fd = received.fds.into_iter().next().unwrap();
        assert_eq!(bytes_of(fd, 4).unwrap(), b"byte");
        assert!(matches!(
            other.receive_one(Word::All, SOON),
            Err(Silence::Late)
        ));
        one.say(Word::Go, "", b"", &[]).unwrap();
        assert!(matches!(
            other.receive_one(Word::All, SOON),
            Err(Silence::Said(why)) if why.contains("word 10")
        ));
        one.refuse(&"why ".repeat(10_000));
        assert!(matches!(
            other.receive_one(Word::All, SOON),
            Err(Silence::Said(why)) if why.len() == SENTENCE_MAX
        ));
        drop(one);
        assert!(matches!(
            other.receive_one(Word::All, SOON),
            Err(Silence::Gone)
        ));
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let parts = [&b""[..], b"one", &[7; 300]];
        let packed = pack(parts.into_iter());
        assert_eq!(unpack(&packed).unwrap(), parts);
        assert!(unpack(&packed[..packed.len() - 1]).is_none());
        assert!(unpack(&[1, 2, 3]).is_none());
        assert!(unpack(&u64::MAX.to_le_bytes()).is_none());
    }
}

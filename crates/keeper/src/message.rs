//! Messages between daemon and keeper: one datagram each (SOCK_SEQPACKET), of a byte that says what
//! it is, the length of a name, the name and a note; with descriptors or none. Daemons speak so to
//! each other, too ([`Parts`]), with words of their own.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use sys::fd_message;

use crate::{FDS_MAX, NAME_MAX, NOTE_MAX};

const MESSAGE_MAX: usize = 2 + NAME_MAX + NOTE_MAX;

/// What is said. The numbers are those on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Verb {
    /// To the keeper: hold these descriptors, instead of those that had the name.
    Hold = 1,
    /// To the keeper: close what has this name.
    Release = 2,
    /// To the keeper: say what is held.
    List = 3,
    /// From it: done; behind a list, its end.
    Done = 4,
    /// From it: what is held, with descriptors of it.
    Item = 5,
    /// From it: no; the note says why.
    Refused = 6,
}

/// What came, whatever the first byte means.
#[derive(Debug)]
pub struct Parts {
    /// What it is.
    pub verb: u8,
    /// Of what; may be empty.
    pub name: String,
    /// Bytes, 16 KiB at the most.
    pub note: Vec<u8>,
    /// Descriptors, 253 at the most.
    pub fds: Vec<OwnedFd>,
}

/// What came.
pub struct Message {
    pub verb: Verb,
    pub name: String,
    pub note: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Sends one.
pub fn send(
    socket: &OwnedFd,
    verb: Verb,
    name: &str,
    note: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_parts(socket, verb as u8, name, note, fds)
}

/// Sends [`Parts`]. Waits for room, as long as the socket's time-out says.
///
/// # Errors
/// The other end is gone, or a part is longer than it may be.
pub fn send_parts(
    socket: &OwnedFd,
    verb: u8,
    name: &str,
    note: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if fds.len() > FDS_MAX || note.len() > NOTE_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let len = u8::try_from(name.len());
    let len = len.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let head = [verb, len];
    let parts = [
        IoSlice::new(&head),
        IoSlice::new(name.as_bytes()),
        IoSlice::new(note),
    ];
    fd_message::send(socket, &parts, fds, SendFlags::empty())?;
    Ok(())
}

/// The next one; `None`: the other end is gone. One that is not well-formed is an error, after
/// which the next can be had.
pub fn receive(socket: &OwnedFd) -> io::Result<Option<Message>> {
    let Some(parts) = receive_parts(socket)? else {
        return Ok(None);
    };
    let all = [
        Verb::Hold,
        Verb::Release,
        Verb::List,
        Verb::Done,
        Verb::Item,
        Verb::Refused,
    ];
    let verb = all.into_iter().find(|known| *known as u8 == parts.verb);
    Ok(Some(Message {
        verb: verb.ok_or_else(|| malformed("a message is none of ours"))?,
        name: parts.name,
        note: parts.note,
        fds: parts.fds,
    }))
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The next [`Parts`]; `None`: the other end is gone. Waits as long as the socket's time-out says.
///
/// # Errors
/// Nothing came in time, or it is not well-formed; then the next can be had.
pub fn receive_parts(socket: &OwnedFd) -> io::Result<Option<Parts>> {
    let mut bytes = vec![0; MESSAGE_MAX + 1];
    let received = fd_message::receive(socket, &mut bytes, FDS_MAX, RecvFlags::empty())?;
    // There is no message of no bytes.
    if received.len == 0 {
        return Ok(None);
    }
    if received.fds_lost {
        return Err(malformed("the limit of open files is reached"));
    }
    let message = bytes.get(..received.len).unwrap_or_default();
    let [verb, len, rest @ ..] = message else {
        return Err(malformed("a message is too short"));
    };
    let Some((name, note)) = rest.split_at_checked(usize::from(*len)) else {
        return Err(malformed("a message is none of ours"));
    };
    if note.len() > NOTE_MAX {
        return Err(malformed("a message is too long"));
    }
    let name = std::str::from_utf8(name).map_err(|_| malformed("a name is not UTF-8"))?;
    Ok(Some(Parts {
        verb: *verb,
        name: name.to_owned(),
        note: note.to_owned(),
        fds: received.fds,
    }))
}

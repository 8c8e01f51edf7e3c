//! Target `keeper`: messages to the keeper, with descriptors and without.
//!
//! Promises: each message has its answer, whatever it is; what is held is what a model of it says,
//! with the descriptors that came with it; and what a client does wrong loses nothing that is held.
//!
//! Input: messages, each a byte (how many descriptors come along, 0 to 3) and a piece.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use sys::fd_message;

use crate::input::Input;

/// Messages of one client.
const MESSAGES_MAX: usize = 16;
/// Words of the wire (crates/keeper/src/message.rs).
const HOLD: u8 = 1;
const RELEASE: u8 = 2;
const LIST: u8 = 3;
const DONE: u8 = 4;
const ITEM: u8 = 5;
const REFUSED: u8 = 6;

/// By name: the note, and which files.
type Held = BTreeMap<Vec<u8>, (Vec<u8>, Vec<u64>)>;

/// Speaks to a keeper.
pub fn keeper(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.expect("a pair of sockets");
    let files: Vec<OwnedFd> = (0..3)
        .map(|_| memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"))
        .collect();
    let inodes: Vec<u64> = files.iter().map(|file| inode(file.as_fd())).collect();
    let mut held = Held::new();
    let serving = std::thread::spawn(move || keeper::serve_one(&theirs));
    for _ in 0..MESSAGES_MAX {
        if input.is_empty() {
            break;
        }
        let count = usize::from(input.u8()) % (files.len() + 1);
        let message = input.piece();
        // That is how the other end is gone.
        if message.is_empty() {
            continue;
        }
        let along: Vec<BorrowedFd<'_>> = files[..count].iter().map(AsFd::as_fd).collect();
        fd_message::send(&ours, &[IoSlice::new(message)], &along, SendFlags::empty())
            .expect("a keeper that listens");
        let listed = expect(message, &inodes[..count], &mut held);
        if let Some(listed) = &listed {
            for (name, (note, files)) in listed {
                let item = Answer::next(&ours);
                assert_eq!((item.verb, &item.name, &item.note), (ITEM, name, note));
                assert_eq!(&item.files, files, "descriptors of another");
            }
        }
        let answer = Answer::next(&ours);
        let expected = if listed.is_some() { DONE } else { REFUSED };
        assert_eq!(answer.verb, expected, "to {message:?}");
        assert!(answer.files.is_empty() && answer.name.is_empty());
        assert_eq!(answer.note.is_empty(), answer.verb == DONE, "why is said");
    }
    drop(ours);
    let ended = serving.join().expect("a keeper that does not panic");
    ended.expect("it ends with its client");
}

/// What is listed before the answer; `None`: it is refused.
fn expect(message: &[u8], files: &[u64], held: &mut Held) -> Option<Held> {
    let (&verb, rest) = message.split_first()?;
    let (&len, rest) = rest.split_first()?;
    let (name, note) = rest.split_at_checked(len.into())?;
    std::str::from_utf8(name)
        .ok()
        .filter(|_| note.len() <= keeper::NOTE_MAX)?;
    match verb {
        HOLD if !files.is_empty() && !name.is_empty() => {
            held.insert(name.to_vec(), (note.to_vec(), files.to_vec()));
            Some(Held::new())
        }
        RELEASE => {
            held.remove(name);
            Some(Held::new())
        }
        LIST => Some(held.clone()),
        _ => None,
    }
}

fn inode(file: BorrowedFd<'_>) -> u64 {
    fstat(file).expect("an open file").st_ino
}

struct Answer {
    verb: u8,
    name: Vec<u8>,
    note: Vec<u8>,
    files: Vec<u64>,
}

impl Answer {
    fn next(socket: &OwnedFd) -> Answer {
        let mut bytes = vec![0; 1 << 17];
        let received = fd_message::receive(socket, &mut bytes, 8, RecvFlags::empty());
        let received = received.expect("an answer");
        let [verb, len, rest @ ..] = &bytes[..received.len] else {
            panic!("an answer of {} bytes", received.len);
        };
        let (name, note) = rest.split_at(usize::from(*len));
        Answer {
            verb: *verb,
            name: name.to_vec(),
            note: note.to_vec(),
            files: received
                .fds
                .iter()
                .map(|file| inode(file.as_fd()))
                .collect(),
        }
    }
}

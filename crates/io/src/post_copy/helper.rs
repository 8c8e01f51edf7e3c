//! The process that waits for pages (see [`super`]): what the daemon starts, and what that does.
//!
//! Each message between the two is three words of 64 bits over a socket of packets. What the daemon
//! is told by this process it does not rely on: who has its memory watched may write it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process_group};
use sys::confine::{self, Limits, UNLIMITED};
use sys::fd_message;
use sys::userfault::Userfault;

use crate::fault_guard;
use crate::post_copy::calls;
use crate::shared_file::{self, Mapping};

/// What the program is started with, as its only argument, to be this process.
pub const ARGUMENT: &str = "--as-page-helper";

/// Pages that are waited for at once.
const THREADS: usize = 4;

/// What is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// From the helper, once, with its userfaultfd(2).
    Ready,
    /// To the helper, with a file: map so many bytes from an offset on. Regions are counted from 0.
    Map { size: u64, offset: u64 },
    /// Its answer: where the first byte is.
    Mapped { addr: u64 },
    /// Its answer: the file cannot be mapped, and it has said why on its standard error.
    NotMapped,
    /// To the helper: wait for a page of a region.
    Fetch { region: u64, page: u64 },
    /// The page is there.
    Came { region: u64, page: u64 },
}

type Words = [u64; 3];

impl Said {
    fn words(self) -> Words {
        match self {
            Said::Ready => [0, 0, 0],
            Said::Map { size, offset } => [1, size, offset],
            Said::Mapped { addr } => [2, addr, 0],
            Said::NotMapped => [3, 0, 0],
            Said::Fetch { region, page } => [4, region, page],
            Said::Came { region, page } => [5, region, page],
        }
    }

    fn from_words(words: Words) -> Option<Said> {
        Some(match words {
            [0, 0, 0] => Said::Ready,
            [1, size, offset] => Said::Map { size, offset },
            [2, addr, 0] => Said::Mapped { addr },
            [3, 0, 0] => Said::NotMapped,
            [4, region, page] => Said::Fetch { region, page },
            [5, region, page] => Said::Came { region, page },
            _ => return None,
        })
    }
}

/// Sends without waiting where `flags` say so.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    said: Said,
    file: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> Result<(), Errno> {
    let bytes: Vec<u8> = said.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
    let files = file.as_slice();
    fd_message::send(socket, &[IoSlice::new(&bytes)], files, flags).map(drop)
}

/// Waits for what is said, and the descriptor that comes with it. `None`: the other side has gone,
/// or says what nobody says.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Option<(Said, Option<OwnedFd>)> {
    let mut bytes = [0; size_of::<Words>()];
    let received = fd_message::receive(socket, &mut bytes, 1, RecvFlags::empty()).ok()?;
    if received.len != bytes.len() {
        return None;
    }
    let word = |at: usize| {
        let word = bytes[8 * at..][..8].try_into();
        u64::from_ne_bytes(word.expect("eight bytes"))
    };
    let said = Said::from_words([word(0), word(1), word(2)])?;
    Some((said, received.fds.into_iter().next()))
}

/// A helper that runs. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    /// Until it is dropped.
    child: Option<Child>,
    socket: Arc<OwnedFd>,
}

impl Helper {
    /// Starts `program` as one, confined.
    pub fn start(program: &Path) -> io::Result<Helper> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut command = Command::new(program);
        command
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null());
        // It gives up what it has before it gets a guest's memory: see `give_up`.
        confine::limit(
            &mut command,
            Limits {
                // Of the guest's memory it maps all.
                memory: UNLIMITED,
                // Stacks and heap, and room for a few thousand pages that are waited for.
                data: 64 << 20,
                // A page takes some 20 us.
                cpu_secs: 600,
                file: UNLIMITED,
                files: 256,
                processes: UNLIMITED,
            },
        );
        Ok(Helper {
            child: Some(command.spawn()?),
            socket: Arc::new(ours),
        })
    }

    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Whoever else may have the other end by now.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        // Threads of it that wait for a page wait no longer. It leads a group of its own.
        let Some(mut child) = self.child.take() else {
            return;
        };
        let group = Pid::from_child(&child);
        let _ = kill_process_group(group, Signal::KILL);
        // It may be in a system call for as long as somebody likes.
        if child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let wait = move || drop(child.wait());
            let _ = std::thread::Builder::new().spawn(wait);
        }
    }
}

/// What the process does: maps what it is told to and touches pages, at its standard input, until
/// that is closed. An error is a sentence.
pub fn serve() -> Result<(), String> {
    let socket = io::stdin();
    let socket = socket.as_fd();
    let answer = |said, file: Option<BorrowedFd<'_>>| {
        let sent = send(socket, said, file, SendFlags::empty());
        sent.map_err(|e| format!("the daemon cannot be answered: {e}"))
    };
    // A VMM can have it take memory.
    confine::go_first().map_err(|e| format!("/proc/self/oom_score_adj: {e}"))?;
    confine::give_up().map_err(|e| format!("what it may cannot be given up: {e}"))?;
    let userfault = Userfault::waiting().map_err(|e| format!("userfaultfd: {e}"))?;
    let userfault = Arc::new(userfault);
    let (asks, queue) = mpsc::channel();
    let queue = Arc::new(Mutex::new(queue));
    let running = Arc::new(Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let (queue, running) = (Arc::clone(&queue), Arc::clone(&running));
        let touch = move || {
            running.wait();
            touch_pages(&queue);
        };
        let thread = std::thread::Builder::new().spawn(touch);
        thread.map_err(|e| format!("a thread cannot be started: {e}"))?;
    }
    running.wait();
    fault_guard::install();
    shared_file::mappings_max();
    calls::allow_only_the_helpers().map_err(|e| e.to_string())?;
    answer(Said::Ready, Some(userfault.as_fd()))?;
    let mut regions = Vec::new();
    while let Some((said, file)) = receive(socket) {
        match (said, file) {
            (Said::Map { size, offset }, Some(file)) => {
                match Mapping::watched(file, offset, size, Some(Arc::clone(&userfault))) {
                    Ok(mapping) => {
                        let addr = mapping.host().expose_provenance() as u64;
                        regions.push(Arc::new(Region(mapping)));
                        answer(Said::Mapped { addr }, None)?;
                    }
                    Err(error) => {
                        eprintln!("a region of the guest's memory {error}");
                        answer(Said::NotMapped, None)?;
                    }
                }
            }
            (Said::Fetch { region, page }, None) => {
                let Some(known) = regions.get(region as usize) else {
                    return Err(format!("region {region} is not one of {}", regions.len()));
                };
                // Threads run for as long as the process does.
                let _ = asks.send((Arc::clone(known), region, page));
            }
            _ => return Err(format!("the daemon says {said:?} here")),
        }
    }
    Ok(())
}

/// A region that is mapped for as long as the process runs.
struct Region(Mapping);

// SAFETY: the pointer leads into a mapping that belongs to no thread, and is read through alone.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A page that is to be waited for: of a region, whose number comes with it.
type Ask = (Arc<Region>, u64, u64);

fn touch_pages(queue: &Mutex<Receiver<Ask>>) {
    loop {
        let ask = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((Region(mapping), region, page)) = ask.as_ref().map(|(at, r, p)| (&**at, *r, *p))
        else {
            return;
        };
        if let Some(at) = mapping.page(page) {
            // SAFETY: in the mapping, which is guarded against a file that is cut short. What is
            // read means nothing.
            unsafe { at.read_volatile() };
        }
        let said = Said::Came { region, page };
        if send(io::stdin().as_fd(), said, None, SendFlags::empty()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let all = [
            Said::Ready,
            Said::Map { size: 1, offset: 2 },
            Said::Mapped { addr: 3 },
            Said::NotMapped,
            Said::Fetch { region: 4, page: 5 },
            Said::Came {
                region: 6,
                page: u64::MAX,
            },
        ];
        let (here, there) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        for said in all {
            for file in [None, Some(here.as_fd())] {
                send(here.as_fd(), said, file, SendFlags::empty()).unwrap();
                let (heard, fd) = receive(there.as_fd()).unwrap();
                assert_eq!((heard, fd.is_some()), (said, file.is_some()));
            }
        }
        rustix::io::write(&here, &[0; 23]).unwrap();
        assert!(receive(there.as_fd()).is_none(), "too short");
        rustix::io::write(&here, &[9; 24]).unwrap();
        assert!(receive(there.as_fd()).is_none(), "nobody says that");
        drop(here);
        assert!(receive(there.as_fd()).is_none(), "gone");
    }
}

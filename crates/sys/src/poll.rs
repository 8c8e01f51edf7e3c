//! Sleeping until something happens: epoll, and a bell that other threads ring.
//!
//! A worker that has found nothing to do for a while arms its ports, and waits here for a kick of a
//! guest, a TAP device that became readable, its own [`Doorbell`] or a timer. The vhost-user
//! server's thread waits the same way for its sockets. All but kicks is level-triggered: a
//! descriptor that is still readable is reported again by the next wait, so nothing is lost when a
//! caller leaves work undone. Kicks are edges: see [`Poller::add_edges`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Descriptors reported by one wait at most; the others come with the next.
const EVENTS: usize = 64;

/// A set of descriptors to wait on, each with a token that the caller chose.
///
/// A descriptor that is closed leaves the set by itself only when no duplicate of it is open
/// elsewhere (the eventfds of a guest are open in its VMM as well): call [`Poller::remove`] before
/// it is closed.
pub struct Poller {
    epoll: OwnedFd,
    /// What the last wait found.
    ready: Vec<u64>,
}

/// What a descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Readable, closed by the peer or broken.
    Read,
    /// Writable, closed by the peer or broken.
    Write,
    /// Nothing but closed or broken, which epoll always reports.
    Neither,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Read => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Interest::Write => epoll::EventFlags::OUT,
            Interest::Neither => epoll::EventFlags::empty(),
        }
    }
}

impl Poller {
    /// An empty set. Fails when the process or the machine is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller {
            epoll,
            ready: Vec::with_capacity(EVENTS),
        })
    }

    /// Adds a descriptor that is to be reported as `token` when it is readable.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add_for(fd, token, Interest::Read.flags())
    }

    /// Adds an eventfd whose counter nobody reads: it is reported once for all that was written to
    /// it since the last wait, and when it is added with something in it. So to answer it takes no
    /// system call, and whoever waits has to look for work itself before it waits again. A guest's
    /// first frame passes after 58 to 62 us where it was 61 to 68 with the read of the counter
    /// (docs/journal/2026-11-23-cycles.md).
    pub fn add_edges(&self, eventfd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add_for(
            eventfd,
            token,
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )
    }

    fn add_for(&self, fd: BorrowedFd<'_>, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Changes what a descriptor of the set is waited for.
    pub fn set_interest(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            interest.flags(),
        )?)
    }

    /// Takes a descriptor out of the set. One that is not in it is no error.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match epoll::delete(&self.epoll, fd) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until a descriptor is ready or `timeout` has passed (`None`: for ever; zero: only
    /// looks), and returns the tokens of what is ready. Empty after a timeout or a signal. The
    /// timeout's resolution is one millisecond, rounded up.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = u64> + '_> {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs())
                .unwrap_or(i64::MAX)
                .min(i64::from(i32::MAX) / 1000),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); EVENTS];
        self.ready.clear();
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => self
                .ready
                .extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.ready.iter().copied())
    }
}

/// Wakes a thread that waits on a [`Poller`]. Cloned for everybody who may ring it.
///
/// Ringing a bell that nobody has answered yet costs one atomic operation and no system call. What
/// a ringer wrote before [`ring`](Doorbell::ring) is visible to the owner after
/// [`clear`](Doorbell::clear).
#[derive(Clone)]
pub struct Doorbell {
    bell: Arc<Bell>,
}

struct Bell {
    eventfd: OwnedFd,
    /// Rung, and not yet cleared.
    rung: AtomicBool,
}

impl Doorbell {
    /// A silent bell. Fails when the process or the machine is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell {
            bell: Arc::new(Bell {
                eventfd,
                rung: AtomicBool::new(false),
            }),
        })
    }

    /// Makes the bell's descriptor readable. To be called after the work that it announces is in
    /// its queue.
    pub fn ring(&self) {
        // AcqRel on both swaps: whoever finds `rung` set leaves the waking to the ringer before it,
        // and the owner's swap in `clear` reads this one, so the owner sees the work when it looks
        // next.
        if !self.bell.rung.swap(true, Ordering::AcqRel) {
            // A nonblocking eventfd refuses only when its counter is at the maximum: then it is
            // readable.
            let _ = rustix::io::write(&self.bell.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// True when the bell was rung since it was last cleared: one load, for a worker that polls.
    pub fn is_rung(&self) -> bool {
        self.bell.rung.load(Ordering::Relaxed)
    }

    /// Silences the bell; true if it was rung. The owner calls it when
    /// [`is_rung`](Doorbell::is_rung) says so and whenever a [`Poller`] reported the bell, in both
    /// cases *before* it looks into its queues, so that what comes in after the look rings again.
    pub fn clear(&self) -> bool {
        // The descriptor is read even when `rung` is false: a ringer that was between its swap and
        // its write during the clear before this one has made the descriptor readable since, for
        // nothing.
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.bell.eventfd, &mut count);
        self.bell.rung.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.eventfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn ready(poller: &mut Poller) -> Vec<u64> {
        poller.wait(Some(Duration::ZERO)).unwrap().collect()
    }

    #[test]
    fn a_bell_is_reported_until_it_is_cleared() {
        let mut poller = Poller::new().unwrap();
        let bell = Doorbell::new().unwrap();
        poller.add(bell.as_fd(), 7).unwrap();
        assert_eq!(ready(&mut poller), []);

        bell.ring();
        bell.clone().ring();
        assert_eq!(ready(&mut poller), [7]);
        assert_eq!(
            ready(&mut poller),
            [7],
            "level-triggered: reported until cleared"
        );
        assert!(bell.clear());
        assert_eq!(ready(&mut poller), []);
        assert!(!bell.clear());

        bell.ring();
        assert_eq!(ready(&mut poller), [7], "a cleared bell rings again");
        poller.remove(bell.as_fd()).unwrap();
        poller.remove(bell.as_fd()).unwrap();
        assert_eq!(ready(&mut poller), []);
    }

    /// What is not reported any more is forgotten, and what comes after a report is not.
    #[test]
    fn an_edge_is_reported_once_and_each_anew() {
        let mut poller = Poller::new().unwrap();
        let raise = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        poller.add_edges(fd.as_fd(), 7).unwrap();
        assert_eq!(ready(&mut poller), []);
        for _ in 0..3 {
            raise(&fd);
            raise(&fd);
            assert_eq!(ready(&mut poller), [7]);
            assert_eq!(ready(&mut poller), [], "its counter is never read");
        }
        // Another worker takes it over.
        poller.remove(fd.as_fd()).unwrap();
        poller.add_edges(fd.as_fd(), 8).unwrap();
        assert_eq!(
            ready(&mut poller),
            [8],
            "what was raised before it was added counts"
        );
        assert_eq!(ready(&mut poller), []);
    }

    #[test]
    fn interest_decides_what_is_reported() {
        let mut poller = Poller::new().unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        poller.add(near.as_fd(), 1).unwrap();
        assert_eq!(ready(&mut poller), []);
        poller
            .set_interest(near.as_fd(), 1, Interest::Write)
            .unwrap();
        assert_eq!(ready(&mut poller), [1]);
        poller
            .set_interest(near.as_fd(), 1, Interest::Neither)
            .unwrap();
        assert_eq!(ready(&mut poller), []);
        drop(far);
        assert_eq!(
            ready(&mut poller),
            [1],
            "a peer that went away is always reported"
        );
    }

    #[test]
    fn no_ring_is_lost_between_two_threads() {
        const RINGS: u64 = 20_000;
        let bell = Doorbell::new().unwrap();
        let work = Arc::new(AtomicU64::new(0));
        let ringer = std::thread::spawn({
            let (bell, work) = (bell.clone(), work.clone());
            move || {
                for _ in 0..RINGS {
                    work.fetch_add(1, Ordering::Relaxed);
                    bell.ring();
                }
            }
        });
        let mut poller = Poller::new().unwrap();
        poller.add(bell.as_fd(), 0).unwrap();
        let mut done = 0;
        while done < RINGS {
            let woken = poller.wait(Some(Duration::from_secs(10))).unwrap().count();
            assert_eq!(
                woken,
                1,
                "asleep with {} of {RINGS} done, {} announced",
                done,
                work.load(Ordering::SeqCst)
            );
            bell.clear();
            done = work.load(Ordering::Relaxed);
        }
        ringer.join().unwrap();
    }
}

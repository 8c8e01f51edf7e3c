//! The two eventfds of a ring: the guest kicks us, we call the guest. Neither can make the worker
//! wait for the VMM. That raising one wakes all who wait for it is the kernel's work in our time: a
//! VMM that has put an eventfd into a great many epoll instances makes a notification slow.
//!
//! They come from the VMM, which keeps descriptors of the same open files: whatever flags are set
//! on them here, it can take O_NONBLOCK away again at any time, fill the counter that is to be
//! raised and empty the one that a kick has raised. So neither `read` nor `write` is used:
//! - A kick's counter is never read: the poller reports that it was raised
//!   ([`Poller::add_edges`](sys::poll::Poller::add_edges)).
//! - A call's is raised by the kernel as what happens when an asynchronous operation ends
//!   (IOCB_FLAG_RESFD): a read of no bytes from the eventfd itself, which fails at once and so has
//!   ended when it is submitted. The kernel adds to a counter without waiting for room; one that is
//!   full stays full, which is a notification that is still to be read. It costs 350 ns more than
//!   `write`.
//!
//! Where the system has no asynchronous I/O left to give (`/proc/sys/fs/aio-max-nr`), notifications
//! fall back to `write` of a descriptor that was made not to block; a word in the log says so once.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

/// A descriptor that a VMM has given for one of a ring's notifications. It is looked at when it
/// comes, and not each time that the ring is run.
#[derive(Debug)]
pub struct NotifyFd {
    fd: OwnedFd,
    is_eventfd: bool,
}

impl NotifyFd {
    /// It can be notified with.
    pub(in crate::vhost) fn is_eventfd(&self) -> bool {
        self.is_eventfd
    }

    pub(in crate::vhost) fn try_clone(&self) -> std::io::Result<NotifyFd> {
        Ok(NotifyFd {
            fd: self.fd.try_clone()?,
            is_eventfd: self.is_eventfd,
        })
    }
}

impl From<OwnedFd> for NotifyFd {
    fn from(fd: OwnedFd) -> NotifyFd {
        let is_eventfd = is_eventfd(&fd);
        NotifyFd { fd, is_eventfd }
    }
}

impl AsFd for NotifyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// True for what can be notified with. One that blocks is made not to, for the sake of the
/// fallback.
pub(in crate::vhost) fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    let is_eventfd = link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventfd]");
    let flags = rustix::fs::fcntl_getfl(fd).map(|flags| flags | OFlags::NONBLOCK);
    is_eventfd
        && flags
            .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags))
            .is_ok()
}

/// Raises an eventfd's counter by one. Does not wait, whatever its flags are by now.
#[cold]
pub(in crate::vhost) fn raise(fd: BorrowedFd<'_>) {
    thread_local! {
        /// A worker's own: submitting takes no lock that another worker takes.
        static RAISER: RefCell<Option<Raiser>> = RefCell::new(Raiser::new());
    }
    let raised =
        RAISER.with_borrow_mut(|raiser| raiser.as_mut().is_some_and(|raiser| raiser.raise(fd)));
    if !raised {
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

/// Operations between two looks at what has ended.
const ROUND: usize = 64;

/// An operation as `io_submit` takes it (`struct iocb` of linux/aio_abi.h, little-endian).
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

const PREAD: u16 = 0;
const FLAG_RESFD: u32 = 1;

/// What has ended, as `io_getevents` gives it (`struct io_event`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Ended {
    data: u64,
    operation: u64,
    result: i64,
    result2: i64,
}

/// A context for asynchronous operations.
struct Raiser {
    context: libc::c_ulong,
    submitted: usize,
}

impl Raiser {
    fn new() -> Option<Raiser> {
        let mut context: libc::c_ulong = 0;
        let room: libc::c_uint = 2 * ROUND as libc::c_uint;
        // SAFETY: io_setup writes a context's number to `context`, which is zero as it asks.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, room, &raw mut context) };
        if made != 0 {
            let error = std::io::Error::last_os_error();
            tracing::warn!(
                %error,
                "no asynchronous I/O (fs.aio-max-nr?): a VMM that makes its call descriptors block \
                 can make a worker wait"
            );
            return None;
        }
        Some(Raiser {
            context,
            submitted: 0,
        })
    }

    /// True when the kernel has taken it, and with that done it.
    fn raise(&mut self, eventfd: BorrowedFd<'_>) -> bool {
        let mut operation = Operation {
            opcode: PREAD,
            file: eventfd.as_raw_fd() as u32,
            flags: FLAG_RESFD,
            eventfd: eventfd.as_raw_fd() as u32,
            ..Operation::default()
        };
        let mut list = [&raw mut operation];
        // SAFETY: the context is ours; `list` holds one pointer to an operation that lives through
        // the call, which reads no bytes into no buffer. The descriptor is open.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context,
                1 as libc::c_long,
                list.as_mut_ptr(),
            )
        };
        self.submitted += 1;
        if self.submitted == ROUND {
            self.submitted = 0;
            self.forget();
        }
        taken == 1
    }

    /// Takes what has ended out of the context, so that there is room for more.
    fn forget(&mut self) {
        let mut ended = [Ended {
            data: 0,
            operation: 0,
            result: 0,
            result2: 0,
        }; 2 * ROUND];
        // SAFETY: the context is ours, `ended` has room for as many as are asked for, at least none
        // are waited for.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0 as libc::c_long,
                ended.len() as libc::c_long,
                ended.as_mut_ptr(),
                std::ptr::null_mut::<libc::timespec>(),
            );
        }
    }
}

impl Drop for Raiser {
    fn drop(&mut self) {
        // SAFETY: the context is ours and nothing is under way in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn read(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).expect("a counter above zero");
        u64::from_ne_bytes(count)
    }

    #[test]
    fn a_counter_goes_up_by_one_each_time() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        for _ in 0..5 * ROUND {
            raise(fd.as_fd());
        }
        assert_eq!(read(&fd), 5 * ROUND as u64);
    }

    /// A `write` would wait here for ever.
    #[test]
    fn a_blocking_descriptor_that_is_full_is_not_waited_for() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 * ROUND {
            raise(fd.as_fd());
        }
        // Full stays full: still readable.
        assert!(read(&fd) >= u64::MAX - 1);
        raise(fd.as_fd());
        assert_eq!(read(&fd), 1);
    }

    #[test]
    fn only_an_eventfd_will_do() {
        assert!(is_eventfd(&eventfd(0, EventfdFlags::empty()).unwrap()));
        assert!(!is_eventfd(
            &std::fs::File::open("/dev/null").unwrap().into()
        ));
    }
}

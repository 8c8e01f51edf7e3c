//! Pages that are missing in a mapping of a file in memory: userfaultfd(2).
//!
//! The kernel makes such a page for who touches it first. In a mapping that is registered here it
//! does not; the touch is refused, or waits until somebody has put the page into the file.
//! Descriptors are made so that they need no privilege: no page is ever waited for within a system
//! call.
//!
//! Whoever has such a descriptor may register any memory of the process that has made it, and put
//! pages there. A process that gives one away has to have nothing else to lose.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{Advice, UserfaultfdFlags};

/// Bytes of the smallest page.
pub const PAGE: usize = 4096;

/// The ioctl(2) of [`Userfault::register`].
pub const UFFDIO_REGISTER: u64 = 0xc020_aa00;

const UFFD_FEATURE_MISSING_HUGETLBFS: u64 = 1 << 4;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;

/// Stands for mappings whose missing pages are not made, until it and all copies of it are closed.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl Userfault {
    /// Where a page is missing, an instruction gets SIGBUS and a system call EFAULT.
    pub fn refusing() -> io::Result<Userfault> {
        Userfault::new(UFFD_FEATURE_SIGBUS)
    }

    /// Where a page is missing, an instruction waits until who reads the descriptor wakes it; a
    /// system call gets EFAULT.
    pub fn waiting() -> io::Result<Userfault> {
        Userfault::new(0)
    }

    /// Whether this kernel, and what confines this process, allow to [wait](Userfault::waiting).
    pub fn can_wait() -> bool {
        static CAN: LazyLock<bool> = LazyLock::new(|| Userfault::waiting().is_ok());
        *CAN
    }

    fn new(features: u64) -> io::Result<Userfault> {
        /// `struct uffdio_api` (linux/userfaultfd.h): what is asked for, then what there is.
        type Api = [u64; 3];
        const UFFD_API: u64 = 0xaa;
        const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
        const UFFD_USER_MODE_ONLY: u32 = 1;

        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let flags = UserfaultfdFlags::from_bits_retain(flags.bits() | UFFD_USER_MODE_ONLY);
        // SAFETY: a new descriptor does nothing by itself.
        let userfault = Userfault(unsafe { rustix::mm::userfaultfd(flags) }?);
        let features = features | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MISSING_HUGETLBFS;
        let mut api: Api = [UFFD_API, features, 0];
        ask(userfault.as_fd(), UFFDIO_API, &mut api)?;
        Ok(userfault)
    }

    /// Has no page made that is missing in this mapping.
    ///
    /// # Safety
    /// The range is one whole mapping of the caller's, who expects what becomes of a touch there.
    pub unsafe fn register(&self, addr: *mut u8, len: usize) -> io::Result<()> {
        const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
        let start = addr.expose_provenance() as u64;
        // `struct uffdio_register`.
        let mut register = [start, len as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
        ask(self.as_fd(), UFFDIO_REGISTER as libc::Ioctl, &mut register)
    }
}

/// Does one of the calls of `linux/userfaultfd.h`, whose argument is a struct of these words.
fn ask(fd: BorrowedFd<'_>, number: libc::Ioctl, argument: &mut [u64]) -> io::Result<()> {
    // SAFETY: all callers pass arrays that are as long as the structs that the kernel reads and
    // writes for them.
    match unsafe { libc::ioctl(fd.as_raw_fd(), number, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The other side of a [waiting](Userfault::waiting) descriptor, for those who play a VMM: who
/// waits for which page.
#[derive(Debug)]
pub struct Watcher(OwnedFd);

impl Watcher {
    /// What somebody else has made, in the process whose memory it stands for.
    pub fn new(fd: OwnedFd) -> Watcher {
        Watcher(fd)
    }

    /// The address at which somebody has begun to wait, in that process; `None`: nobody has within
    /// `patience`.
    pub fn next(&self, patience: Duration) -> io::Result<Option<u64>> {
        /// `struct uffd_msg`, as words.
        type Message = [u64; 4];
        const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
        let wait = Timespec::try_from(patience).map_err(|_| io::ErrorKind::InvalidInput)?;
        if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&wait))? == 0 {
            return Ok(None);
        }
        let mut message: Message = [0; 4];
        match rustix::io::read(&self.0, bytemuck::bytes_of_mut(&mut message)) {
            Ok(read) if read == size_of::<Message>() => {}
            // Who waited has gone.
            Ok(_) | Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let is_fault = message[0].to_ne_bytes()[0] == UFFD_EVENT_PAGEFAULT;
        Ok(is_fault.then_some(message[2]))
    }

    /// Wakes who waits in the page of that address: it looks again.
    pub fn wake(&self, addr: u64) -> io::Result<()> {
        const UFFDIO_WAKE: libc::Ioctl = 0x8010_aa02_u32 as libc::Ioctl;
        // `struct uffdio_range`.
        let mut range = [addr & !(PAGE as u64 - 1), PAGE as u64];
        ask(self.0.as_fd(), UFFDIO_WAKE, &mut range)
    }
}

/// True when this page of a mapping is there; it is mapped then. To be asked where a missing one is
/// not made (madvise(2), MADV_POPULATE_READ): anywhere else it is there after the question.
///
/// # Safety
/// `page` is in a mapping of the caller's, and a multiple of [`PAGE`].
pub unsafe fn is_there(page: *mut u8) -> bool {
    // SAFETY: as the caller promises; nothing but the page tables changes.
    unsafe { rustix::mm::madvise(page.cast(), PAGE, Advice::LinuxPopulateRead) }.is_ok()
}

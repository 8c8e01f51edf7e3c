//! A process that shares this one's memory and ends a moment after it.
//!
//! Who waits for the end of a process waits until the kernel has taken its memory apart: page by
//! page, and behind two grace periods of RCU where there are contexts of asynchronous I/O
//! (`exit_aio` in Linux's fs/aio.c). That was 45 of the 90 ms for which a killed daemon with 64
//! guests was not there. Memory that is shared with a second process (CLONE_VM, clone(2)) is taken
//! apart when that one ends, and nobody waits for it.
//!
//! The second process has no descriptors and runs nothing of the program: it waits for the signal
//! that its parent's end is to it (PR_SET_PDEATHSIG, prctl(2)).

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_int, c_long, c_void};

/// How long it is there after its parent: threads of a process that is killed end one by one, and
/// the memory is to be shared until the last of them has.
static LONGER: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Bytes of its stack.
const STACK: usize = 64 << 10;

/// The signal that its parent's end is.
const ENDED: c_int = libc::SIGTERM;

/// Starts it, as `memory` in ps(1). To be called once, on the thread that ends last: the main one.
pub fn start() -> io::Result<()> {
    // It is used for as long as the process is there.
    let stack = Vec::leak(vec![0u128; STACK / size_of::<u128>()]);
    let parent = rustix::process::getpid().as_raw_nonzero().get();
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset sets all of `all`, and pthread_sigmask all of `before`. The child runs
    // `hold` on a stack of its own, which ends there and is never freed.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let child = libc::clone(
            hold,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM,
            parent as usize as *mut c_void,
        );
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if child < 0 { Err(error) } else { Ok(()) }
    }
}

/// What the child does. It has the thread-local memory of the thread that has started it, and with
/// that its `errno`: while that thread runs nothing here fails, but a wait that somebody has
/// stopped (SIGSTOP) and let go on.
extern "C" fn hold(parent: *mut c_void) -> c_int {
    let signals: u64 = 1 << (ENDED - 1);
    // SAFETY: system calls with valid arguments, which touch no memory but `signals`, `LONGER` and
    // the name.
    unsafe {
        // A kernel before 5.9 would leave it our sockets.
        let closed = libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        if closed == 0 {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, c"memory".as_ptr());
            libc::syscall(
                libc::SYS_prctl,
                libc::PR_SET_PDEATHSIG,
                ENDED as libc::c_ulong,
            );
            // It may have ended before that.
            if libc::syscall(libc::SYS_getppid) == parent as c_long {
                let none = ptr::null::<c_void>();
                while libc::syscall(
                    libc::SYS_rt_sigtimedwait,
                    &raw const signals,
                    none,
                    none,
                    size_of::<u64>(),
                ) != c_long::from(ENDED)
                {}
            }
            libc::syscall(
                libc::SYS_nanosleep,
                &raw const LONGER,
                ptr::null::<c_void>(),
            );
        }
        libc::syscall(libc::SYS_exit_group, 0);
    }
    0
}

//! A process that reads what strangers send, and writes: on descriptors that it has or is given,
//! and that is all. It opens no file, makes and connects no socket, runs no program, starts no
//! thread, looks into and ends no other process, and makes no code. Any other call fails (`EPERM`,
//! seccomp(2)): what a library tries for speed alone it goes on without.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{DumpableBehavior, getpid, set_dumpable_behavior};
use seccompiler::{
    BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// From now on no thread of this process makes another call, and no process of the same user looks
/// into it. Threads have to run already: nobody can start one any more.
///
/// # Errors
/// The kernel has no filters of system calls, or whoever confines this process forbids them.
pub fn allow_only_reading() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let filter = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&filter).map_err(io::Error::other)
}

fn filter() -> Result<seccompiler::BpfProgram, BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(allowed()?, refuse, SeccompAction::Allow, arch)?.try_into()
}

/// By number of a call, what of it is allowed: all, where there is no rule.
fn allowed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let rule = |argument, op, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?;
        SeccompRule::new(vec![condition])
    };
    let not_code = || rule(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    // Not those by which the kernel would send signals (F_SETOWN, fcntl(2)).
    let of_descriptors = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];
    let of_descriptors = of_descriptors.map(|call| rule(1, SeccompCmpOp::Eq, call as u64));
    let own = getpid().as_raw_nonzero().get() as u64;
    let limited = [
        (libc::SYS_mmap, vec![not_code()?]),
        (libc::SYS_mprotect, vec![not_code()?]),
        // Who is given a socket says that it is not to be waited for.
        (
            libc::SYS_ioctl,
            vec![rule(1, SeccompCmpOp::Eq, libc::FIONBIO)?],
        ),
        (
            libc::SYS_fcntl,
            of_descriptors.into_iter().collect::<Result<_, _>>()?,
        ),
        // No descriptor is passed on, and a socket for datagrams speaks to its one server.
        (
            libc::SYS_sendto,
            vec![SeccompRule::new(vec![SeccompCondition::new(
                4,
                SeccompCmpArgLen::Qword,
                SeccompCmpOp::Eq,
                0,
            )?])?],
        ),
        // abort(3).
        (libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Eq, own)?]),
    ];
    let whole = [
        // Sockets that are there, and files that came over them.
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_shutdown,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_pread64,
        // What the runtime waits in.
        libc::SYS_epoll_ctl,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_restart_syscall,
        // Time, keys, and the heap.
        libc::SYS_clock_gettime,
        libc::SYS_gettimeofday,
        libc::SYS_getrandom,
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        // A thread, or the process, ends, or says who it is before that.
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let whole = whole.into_iter().map(|call| (call, Vec::new()));
    Ok(limited.into_iter().chain(whole).collect())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::process::Command;

    use super::*;

    /// What somebody who runs code in a reader would try, with what the call is given.
    const TRIED: [(&str, i64, [u64; 5]); 24] = [
        ("end the daemon", libc::SYS_kill, [1, 0, 0, 0, 0]),
        ("end a thread of it", libc::SYS_tgkill, [1, 1, 0, 0, 0]),
        ("open a file", libc::SYS_openat, [u64::MAX, 0, 0, 0, 0]),
        ("make a socket", libc::SYS_socket, [1, 1, 0, 0, 0]),
        ("connect", libc::SYS_connect, [0, 0, 0, 0, 0]),
        ("listen", libc::SYS_listen, [0, 1, 0, 0, 0]),
        ("run a program", libc::SYS_execve, [0, 0, 0, 0, 0]),
        ("fork", libc::SYS_clone, [17, 0, 0, 0, 0]),
        ("start a thread", libc::SYS_clone3, [0, 0, 0, 0, 0]),
        (
            "read another's memory",
            libc::SYS_process_vm_readv,
            [1, 0, 0, 0, 0],
        ),
        ("trace another", libc::SYS_ptrace, [16, 1, 0, 0, 0]),
        (
            "take another's descriptor",
            libc::SYS_pidfd_getfd,
            [0, 0, 0, 0, 0],
        ),
        ("be looked into", libc::SYS_prctl, [4, 1, 0, 0, 0]),
        ("raise a limit", libc::SYS_prlimit64, [0, 2, 0, 0, 0]),
        ("map code", libc::SYS_mmap, [0, 4096, 5, 0x22, 0]),
        ("make code of data", libc::SYS_mprotect, [0, 0, 7, 0, 0]),
        ("another ioctl", libc::SYS_ioctl, [0, 0x5412, 0, 0, 0]),
        (
            "have signals sent",
            libc::SYS_fcntl,
            [0, libc::F_SETOWN as u64, 1, 0, 0],
        ),
        ("enter a namespace", libc::SYS_setns, [0, 0, 0, 0, 0]),
        ("pass a descriptor on", libc::SYS_sendmsg, [0, 0, 0, 0, 0]),
        ("speak to others", libc::SYS_sendto, [0, 0, 0, 0, 1]),
        (
            "write elsewhere in a file",
            libc::SYS_lseek,
            [2, 0, 0, 0, 0],
        ),
        (
            "change others' descriptors",
            libc::SYS_fcntl,
            [2, libc::F_SETFL as u64, 0, 0, 0],
        ),
        ("load a program", libc::SYS_bpf, [5, 0, 0, 0, 0]),
    ];

    #[test]
    fn who_runs_code_in_a_reader_reads_and_writes_and_no_more() {
        const TRY: &str = "BUTTERFLY_TEST_READING";
        let name = "reading_only::tests::who_runs_code_in_a_reader_reads_and_writes_and_no_more";
        if std::env::var_os(TRY).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", name, "--nocapture"]).env(TRY, "1");
            let output = child.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && said.contains("all were refused"),
                "{output:?}"
            );
            return;
        }
        allow_only_reading().unwrap();
        for (what, call, [a, b, c, d, e]) in TRIED {
            // SAFETY: the call is not made, or has arguments that it refuses.
            let done = unsafe { libc::syscall(call, a, b, c, d, e, 0) };
            let error = io::Error::last_os_error().raw_os_error();
            assert_eq!((done, error), (-1, Some(libc::EPERM)), "{what}");
        }
        assert_eq!(
            rustix::io::write(std::io::stderr(), b"all were refused\n"),
            Ok(17)
        );
        // SAFETY: nothing of this process is to be done any more.
        unsafe { libc::_exit(0) };
    }
}

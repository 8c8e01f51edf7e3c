//! What the helper (see [`super::helper`]) may call of the kernel, once it serves.
//!
//! The VMM can put what it likes into pages that the helper's own memory does not have yet: stacks
//! that grow, a heap that does. That may be enough to have the helper run what the VMM likes, as
//! the daemon's own user where the daemon is not root. So all that it can do is listed here: answer
//! the daemon, map what comes from there, and touch it. Any other call ends it (seccomp(2)); the
//! daemon then goes on without it.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use seccompiler::{
    BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use sys::userfault::UFFDIO_REGISTER;

/// Standard input, which is the way to the daemon, and standard error.
const SOCKET: u64 = 0;
const STDERR: u64 = 2;

/// Why calls cannot be forbidden.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallsError {
    /// A processor that the filter's compiler does not know.
    #[error("no filter of system calls can be made: {0}")]
    Filter(#[from] BackendError),
    /// A kernel without them, or who confines this process forbids it.
    #[error("system calls cannot be filtered (seccomp): {0}")]
    Apply(#[from] seccompiler::Error),
    /// Not seen so far.
    #[error("others cannot be kept from this process's memory (PR_SET_DUMPABLE): {0}")]
    Dumpable(io::Error),
}

/// From now on no thread of this process makes another call, and no process of the same user looks
/// into it. Threads have to run already: nobody can start one any more.
pub(super) fn allow_only_the_helpers() -> Result<(), CallsError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| CallsError::Dumpable(e.into()))?;
    let arch = std::env::consts::ARCH.try_into()?;
    let end = SeccompAction::KillProcess;
    let filter = SeccompFilter::new(allowed()?, end, SeccompAction::Allow, arch)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

/// By number of a call, what of it is allowed: all, where there is no rule.
fn allowed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let only = |argument, op, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?;
        Ok::<_, BackendError>(vec![SeccompRule::new(vec![condition])?])
    };
    let not_code = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    let limited = [
        // What the daemon says, and is told.
        (libc::SYS_recvmsg, only(0, SeccompCmpOp::Eq, SOCKET)?),
        (libc::SYS_sendmsg, only(0, SeccompCmpOp::Eq, SOCKET)?),
        // Why the helper ends.
        (libc::SYS_write, only(0, SeccompCmpOp::Eq, STDERR)?),
        // Regions, and the heap.
        (libc::SYS_mmap, only(2, not_code.clone(), 0)?),
        (libc::SYS_mprotect, only(2, not_code, 0)?),
        (libc::SYS_ioctl, only(1, SeccompCmpOp::Eq, UFFDIO_REGISTER)?),
        // The standard library's look at what it closes, in debug builds.
        (
            libc::SYS_fcntl,
            only(1, SeccompCmpOp::Eq, libc::F_GETFD as u64)?,
        ),
    ];
    let whole = [
        // Of a region's file.
        libc::SYS_fstat,
        libc::SYS_fstatfs,
        libc::SYS_close,
        libc::SYS_madvise,
        libc::SYS_munmap,
        // The heap, and what threads wait in.
        libc::SYS_brk,
        libc::SYS_mremap,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_restart_syscall,
        // A page that the VMM has taken away again: the handler of SIGBUS.
        libc::SYS_rt_sigreturn,
        // Threads, and the process, end.
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let whole = whole.into_iter().map(|call| (call, Vec::new()));
    Ok(limited.into_iter().chain(whole).collect())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// What somebody who runs code in the helper would try, with what the call is given.
    const TRIED: [(&str, i64, [u64; 4]); 18] = [
        ("end the daemon", libc::SYS_kill, [1, 0, 0, 0]),
        ("open a file", libc::SYS_openat, [u64::MAX, 0, 0, 0]),
        ("make a socket", libc::SYS_socket, [1, 1, 0, 0]),
        ("connect", libc::SYS_connect, [3, 0, 0, 0]),
        ("run a program", libc::SYS_execve, [0, 0, 0, 0]),
        ("fork", libc::SYS_clone, [17, 0, 0, 0]),
        ("start a thread", libc::SYS_clone3, [0, 0, 0, 0]),
        (
            "write another's memory",
            libc::SYS_process_vm_writev,
            [1, 0, 0, 0],
        ),
        ("trace another", libc::SYS_ptrace, [16, 1, 0, 0]),
        (
            "take another's descriptor",
            libc::SYS_pidfd_getfd,
            [0, 0, 0, 0],
        ),
        ("watch memory", libc::SYS_userfaultfd, [1, 0, 0, 0]),
        ("look into it again", libc::SYS_prctl, [4, 1, 0, 0]),
        ("raise a limit", libc::SYS_prlimit64, [0, 2, 0, 0]),
        ("map code", libc::SYS_mmap, [0, 4096, 5, 0x22]),
        ("make code of data", libc::SYS_mprotect, [0, 0, 7, 0]),
        ("another ioctl", libc::SYS_ioctl, [0, 0x5412, 0, 0]),
        ("send by another socket", libc::SYS_sendmsg, [3, 0, 0, 0]),
        ("write to a file", libc::SYS_write, [1, 0, 0, 0]),
    ];

    #[test]
    fn who_runs_code_in_the_helper_ends_it_and_no_more() {
        const TRY: &str = "BUTTERFLY_TEST_CALL";
        if let Some(number) = std::env::var_os(TRY) {
            let number: usize = number.to_str().unwrap().parse().unwrap();
            allow_only_the_helpers().unwrap();
            if let Some((_, call, [a, b, c, d])) = TRIED.get(number) {
                // SAFETY: the call is not made, or has arguments that it refuses.
                unsafe { libc::syscall(*call, *a, *b, *c, *d, 0, 0) };
            }
            // SAFETY: nothing of this process is to be done any more.
            unsafe { libc::_exit(0) };
        }
        let name = "post_copy::calls::tests::who_runs_code_in_the_helper_ends_it_and_no_more";
        let ended = |number: usize| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", name]).env(TRY, number.to_string());
            child.output().unwrap().status
        };
        for (number, (what, ..)) in TRIED.iter().enumerate() {
            let ended = ended(number);
            assert_eq!(ended.signal(), Some(libc::SIGSYS), "{what}: {ended}");
        }
        assert!(ended(TRIED.len()).success(), "who tries nothing");
    }
}

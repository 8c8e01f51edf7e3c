//! A program that others have named runs with as little as can be: as nobody where we are root,
//! without capabilities, without the means to get any (`no_new_privs`, prctl(2)), and within limits
//! of its own (setrlimit(2)).
//!
//! It is here because what a child does between fork and exec is unsafe: only calls that take no
//! lock and no memory.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The user and group that own nothing: the kernel's own (`/proc/sys/kernel/overflowuid`).
pub const NOBODY: u32 = 65_534;

/// Of what is not limited.
pub const UNLIMITED: u64 = libc::RLIM_INFINITY;

/// What a confined program may have. All of it is for one process, but for `processes`. What is
/// [`UNLIMITED`] stays as it is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Address space, bytes.
    pub memory: u64,
    /// Memory of its own, bytes: what it shares with others does not count.
    pub data: u64,
    /// Seconds of a CPU.
    pub cpu_secs: u64,
    /// Bytes of a file that it writes.
    pub file: u64,
    /// Open files.
    pub files: u64,
    /// Processes and threads of its user, all programs together.
    pub processes: u64,
}

/// Has `command` run confined, in a process group of its own. Where we are not root it runs as our
/// own user.
pub fn confine(command: &mut Command, limits: Limits) {
    if rustix::process::geteuid().is_root() {
        // The standard library takes the other groups away too.
        command.gid(NOBODY).uid(NOBODY);
    }
    command.process_group(0);
    let limits = [
        (libc::RLIMIT_AS, limits.memory),
        (libc::RLIMIT_DATA, limits.data),
        (libc::RLIMIT_CPU, limits.cpu_secs),
        (libc::RLIMIT_FSIZE, limits.file),
        (libc::RLIMIT_NOFILE, limits.files),
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_CORE, 0),
    ];
    // SAFETY: the closure runs in the child between fork and exec; it makes system calls with valid
    // arguments and allocates nothing. It comes after the change of user, so that it needs no
    // privilege and leaves none.
    unsafe {
        command.pre_exec(move || {
            // What whoever started this process has left open is not the program's. A kernel before
            // 5.11 leaves it.
            libc::syscall(
                libc::SYS_close_range,
                3 as libc::c_uint,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            for (resource, limit) in limits {
                if limit == UNLIMITED {
                    continue;
                }
                let limit = libc::rlimit {
                    rlim_cur: limit,
                    rlim_max: limit,
                };
                check(libc::setrlimit(resource, &limit))?;
            }
            // What is ambient would outlive exec (capabilities(7)); the rest does not for who is
            // not root.
            check(libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
                0 as libc::c_ulong,
                0 as libc::c_ulong,
                0 as libc::c_ulong,
            ))?;
            check(libc::prctl(
                libc::PR_SET_NO_NEW_PRIVS,
                1 as libc::c_ulong,
                0 as libc::c_ulong,
                0 as libc::c_ulong,
                0 as libc::c_ulong,
            ))
        });
    }
}

/// Whoever is out of memory is to end this process before any other.
///
/// # Errors
/// Those of writing to a file of proc(5).
pub fn go_first() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "1000")
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_confined_program_is_nobody_and_stays_so() {
        let script = "id -u; id -G; ulimit -v; ulimit -d; ulimit -t; ulimit -n; ulimit -c; \
                      grep -E '^(NoNewPrivs|CapEff|CapPrm|CapAmb)' /proc/self/status | tr -d '\\t'";
        let mut command = Command::new("/bin/bash");
        command.args(["-c", script]);
        confine(
            &mut command,
            Limits {
                memory: 512 << 20,
                data: 256 << 20,
                cpu_secs: 7,
                file: 1 << 20,
                files: 64,
                processes: 4096,
            },
        );
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let own = rustix::process::geteuid().as_raw();
        let user = if own == 0 { NOBODY } else { own };
        let lines: Vec<&str> = said.lines().collect();
        let expected = [
            "524288",
            "262144",
            "7",
            "64",
            "0",
            "CapPrm:0000000000000000",
            "CapEff:0000000000000000",
            "CapAmb:0000000000000000",
            "NoNewPrivs:1",
        ];
        assert_eq!(lines[0], user.to_string(), "{output:?}");
        if own == 0 {
            assert_eq!(lines[1], NOBODY.to_string(), "no other group");
        }
        assert_eq!(lines[2..], expected);
    }
}

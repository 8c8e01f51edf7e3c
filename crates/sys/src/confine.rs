//! A program that others have named runs with as little as can be: as nobody where we are root,
//! without capabilities, without the means to get any (`no_new_privs`, prctl(2)), and within limits
//! of its own (setrlimit(2)).
//!
//! Programs of ours that are to end as nobody, too, and are told secrets, give up what they have by
//! themselves ([`give_up`]): what was nobody's from its first instruction on, any other process of
//! nobody's could take over before it has said that it may not.
//!
//! It is here because what a child does between fork and exec is unsafe: only calls that take no
//! lock and no memory.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    DumpableBehavior, Gid, Uid, geteuid, getppid, parent_process_death_signal,
    set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

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

/// The user that a [confined](confine) program is: our own where we are not root.
pub fn user() -> u32 {
    match geteuid() {
        own if own.is_root() => NOBODY,
        own => own.as_raw(),
    }
}

/// Has `command` run confined, in a process group of its own. Where we are not root it runs as our
/// own user.
pub fn confine(command: &mut Command, limits: Limits) {
    if geteuid().is_root() {
        // The standard library takes the other groups away too.
        command.gid(NOBODY).uid(user());
    }
    before_exec(command, limits, true);
}

/// Has `command`, a program of ours, run within limits and in a process group of its own, as our
/// user and with our capabilities, until it [gives them up](give_up).
pub fn limit(command: &mut Command, limits: Limits) {
    before_exec(command, limits, false);
}

/// From now on this process is as one that was started [confined](confine), and no process of the
/// user that it is then looks into it, or has done so before. To be called while it has one thread
/// and knows nothing yet.
///
/// # Errors
/// Where we are root: there is no other user here, or whoever has started this process ended in the
/// midst.
pub fn give_up() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    if geteuid().is_root() {
        become_nobody()?;
    }
    let none = CapabilitySet::empty();
    // What is ambient goes with what is inheritable.
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?)
}

/// Capabilities stay: who has none does not look into who has some. With another user this process
/// may be looked into again (`fs.suid_dumpable`), and is not ended with its parent any more, until
/// both are said anew.
fn become_nobody() -> io::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let (parent, at_its_end) = (getppid(), parent_process_death_signal()?);
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    set_keep_capabilities(false)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(at_its_end)?;
    match getppid() == parent {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

fn before_exec(command: &mut Command, limits: Limits, is_confined: bool) {
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
            if is_confined {
                check(libc::prctl(
                    libc::PR_CAP_AMBIENT,
                    libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
                    0 as libc::c_ulong,
                    0 as libc::c_ulong,
                    0 as libc::c_ulong,
                ))?;
            }
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

    /// It is still who has started it until it has given that up, and then nobody, whom nobody else
    /// looks into.
    #[test]
    fn who_gives_up_what_it_has_is_looked_into_by_nobody() {
        const TRY: &str = "BUTTERFLY_TEST_GIVES_UP";
        let name = "confine::tests::who_gives_up_what_it_has_is_looked_into_by_nobody";
        let own = geteuid().as_raw();
        let Ok(parent) = std::env::var(TRY) else {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", name, "--nocapture"]);
            child.env(TRY, own.to_string());
            limit(
                &mut child,
                Limits {
                    memory: UNLIMITED,
                    data: 2 << 30,
                    cpu_secs: UNLIMITED,
                    file: UNLIMITED,
                    files: UNLIMITED,
                    processes: UNLIMITED,
                },
            );
            let output = child.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let done = said.contains("all is given up");
            assert!(output.status.success() && done, "{output:?}");
            return;
        };
        assert_eq!(own.to_string(), parent);
        let at_its_end = Some(rustix::process::Signal::KILL);
        set_parent_process_death_signal(at_its_end).unwrap();
        give_up().unwrap();
        assert_eq!(parent_process_death_signal().unwrap(), at_its_end);
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let user = if own == 0 { NOBODY } else { own };
        let ids = format!("{user}\t{user}\t{user}\t{user}");
        let none = "0000000000000000".to_owned();
        for (field, value) in [
            ("Uid", &ids),
            ("CapPrm", &none),
            ("CapEff", &none),
            ("CapInh", &none),
            ("CapAmb", &none),
            ("NoNewPrivs", &"1".to_owned()),
        ] {
            let line = format!("\n{field}:\t{value}\n");
            assert!(status.contains(&line), "no {line:?} in {status}");
        }
        // Of the same user, and without capabilities as well. It is this thread that has given up.
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let environment = format!("/proc/{}/task/{thread}/environ", std::process::id());
        let looked = Command::new("cat").arg(environment).output().unwrap();
        assert!(!looked.status.success() && looked.stdout.is_empty());
        eprintln!("all is given up");
    }

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
        let own = geteuid().as_raw();
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

//! Programs that end with this process, however it ends.
//!
//! A child is told of the end of the thread that has started it (PR_SET_PDEATHSIG, prctl(2)), and
//! threads of a pool come and go. So one thread starts them all, which is there for as long as the
//! process is.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{LazyLock, mpsc};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// The way to the thread that starts programs. Without one, which is where the system has no room
/// for a thread, they are not started.
static STARTER: LazyLock<Option<mpsc::Sender<Work>>> = LazyLock::new(|| {
    let (sender, works) = mpsc::channel::<Work>();
    let run = move || works.into_iter().for_each(|work| work());
    let thread = thread::Builder::new().name("programs".into()).spawn(run);
    thread.ok().map(|_| sender)
});

/// Starts a program that is killed when this process ends. What it starts itself is not.
///
/// `command` may be another kind of command around the standard library's, which `as_std` gives;
/// `spawn` starts it, on the thread that stays. Blocks until it is started.
///
/// # Errors
/// Those of `spawn`, and that there is no such thread.
pub fn start<C: Send + 'static, T: Send + 'static>(
    mut command: C,
    as_std: impl FnOnce(&mut C) -> &mut Command,
    spawn: impl FnOnce(C) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    end_with_us(as_std(&mut command));
    let none = || io::Error::other("no thread to start programs from");
    let (sender, started) = mpsc::sync_channel(1);
    let work = Box::new(move || {
        // Who has asked waits for it.
        let _ = sender.send(spawn(command));
    });
    let starter = STARTER.as_ref().ok_or_else(none)?;
    starter.send(work).map_err(|_| none())?;
    started.recv().map_err(|_| none())?
}

fn end_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    // SAFETY: the closure runs in the child between fork and exec; it makes two system calls with
    // valid arguments and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            let signal = libc::SIGKILL as libc::c_ulong;
            let no = 0 as libc::c_ulong;
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal, no, no, no) != 0 {
                return Err(io::Error::last_os_error());
            }
            // We may have ended before that.
            match rustix::process::getppid() {
                Some(parent) if parent == us => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const TEST: &str = "child::tests::a_program_outlives_its_thread_and_not_its_process";
    const PART: &str = "BUTTERFLY_TEST_PART";

    /// Starts a program on a thread that ends, and says its process id.
    fn first_process() {
        let started = thread::spawn(|| {
            let mut sleep = Command::new("sleep");
            sleep.arg("60");
            start(sleep, |sleep| sleep, |mut sleep| sleep.spawn()).unwrap()
        });
        let mut child = started.join().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "ended with its thread");
        println!("child={}", child.id());
        // SAFETY: no handler, no memory: the process ends here, by nothing of its own.
        unsafe { libc::raise(libc::SIGKILL) };
    }

    #[test]
    fn a_program_outlives_its_thread_and_not_its_process() {
        if std::env::var_os(PART).is_some() {
            return first_process();
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(PART, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let pid = said.lines().find_map(|line| line.split_once("child="));
        let pid = pid.unwrap_or_else(|| panic!("{output:?}")).1;
        let until = Instant::now() + Duration::from_secs(10);
        let is_there = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            // One that nobody has waited for yet has ended.
            status.is_ok_and(|status| status.contains("(sleep)") && !status.contains(" Z "))
        };
        while is_there() {
            assert!(Instant::now() < until, "{pid} goes on");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let none = Command::new("/nowhere/program");
        let started = start(none, |none| none, |mut none| none.spawn());
        assert_eq!(started.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

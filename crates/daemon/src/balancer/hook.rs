//! Announcing addresses: a program of the operator's is run when an address comes into service or
//! goes out of it. What it does, a route that a routing daemon redistributes, a call to a router,
//! is its own affair; packaging/balance-hook is one for FRR and BIRD.
//!
//! What is announced stands in a file of the folder of sockets, so that a daemon that starts after
//! a crash withdraws what nobody balances any more. A daemon that gives way to the next one hands
//! it that file, with its lock. Where the program fails nobody knows whether the address is
//! announced: the file has it on, with a mark, and the program is run again, by whatever daemon is
//! there then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use control::{Event, EventKind};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use tokio::sync::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

use crate::app::App;

/// One that takes longer is ended, and the next one run.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that has failed once is not run again for its address; each time that it fails
/// again twice as long, up to a maximum: one that fails where there is nothing to do does so for
/// ever.
const AGAIN: Duration = Duration::from_secs(10);
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// The file of what is announced.
const ANNOUNCED: &str = "balance-announced";
/// More than any host announces.
const FILE_MAX: u64 = 1 << 20;
/// Before an address, on a line of its own: the program is to be run for it again. Versions that
/// do not know it read the address' other line alone.
const MARK: &str = "again ";

/// What the program is run for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Announce,
    Withdraw,
}

/// What has failed for an address.
#[derive(Clone, Copy)]
struct Failed {
    what: What,
    /// When it is tried again.
    again: Instant,
    /// How long that is from when it failed.
    pause: Duration,
}

impl Failed {
    /// It fails now, as it did before if it did.
    fn now(what: What, before: Option<Failed>) -> Failed {
        let before = before.filter(|before| before.what == what);
        let pause = before.map_or(AGAIN, |before| AGAIN_MAX.min(2 * before.pause));
        Failed {
            what,
            again: Instant::now() + pause,
            pause,
        }
    }
}

/// What is announced, as a file that outlives this process. Of daemons that share a folder the
/// first one has it.
pub struct Announced {
    file: Option<Kept>,
    addresses: BTreeSet<IpAddr>,
    /// Of these it is not known whether they are announced: the program is about to be run, or has
    /// failed.
    unsure: BTreeMap<IpAddr, Option<Failed>>,
}

impl Announced {
    /// Takes the file of this folder, and what a crash has left in it.
    pub fn take(folder: &Path) -> Announced {
        let path = folder.join(ANNOUNCED);
        let file = match Kept::take(&path) {
            Ok(file) => file,
            Err(e) => {
                tracing::warn!(
                    "what is announced cannot be kept in {}, after a crash it stays announced: {e}",
                    path.display()
                );
                return Announced {
                    file: None,
                    addresses: BTreeSet::new(),
                    unsure: BTreeMap::new(),
                };
            }
        };
        let (addresses, unsure) = read(&file.file).unwrap_or_else(|e| {
            tracing::warn!("{} cannot be read: {e}", path.display());
            Default::default()
        });
        if !addresses.is_empty() || !unsure.is_empty() {
            tracing::info!(
                "{} addresses are announced still by a daemon that did not end well",
                addresses.len() + unsure.len()
            );
        }
        Announced {
            file: Some(file),
            addresses,
            unsure,
        }
    }

    /// Goes on with the file of the daemon before, which announces and withdraws nothing any more,
    /// and had it in this folder.
    pub fn handed(file: OwnedFd, folder: &Path) -> io::Result<Announced> {
        let mut file = File::from(file);
        file.rewind()?;
        let (addresses, unsure) = read(&file)?;
        let path = folder.join(ANNOUNCED);
        Ok(Announced {
            file: Some(Kept { file, path }),
            addresses,
            unsure,
        })
    }

    /// Its file, for the next daemon; with it goes the lock.
    ///
    /// # Errors
    /// It has none.
    pub fn file(&self) -> io::Result<OwnedFd> {
        let none = || io::Error::other("it is in no file");
        let kept = self.file.as_ref().ok_or_else(none)?;
        Ok(kept.file.try_clone()?.into())
    }

    /// Announces and withdraws what is to be, so that these are announced, and one of those again
    /// that failed a while ago: nobody waits for more than one of them. The file has an address
    /// before it is announced, and until it is withdrawn. Gives when to come again, for those that
    /// have failed.
    async fn settle(&mut self, program: &Path, wanted: &BTreeSet<IpAddr>) -> Option<Instant> {
        let (failed, new): (Vec<_>, Vec<_>) = self
            .missing(wanted)
            .into_iter()
            .partition(|(what, vip)| self.failed(*what, vip).is_some());
        if !new.is_empty() {
            for (_, vip) in &new {
                self.addresses.remove(vip);
                self.unsure.insert(*vip, None);
            }
            self.keep();
        }
        for (what, vip) in new {
            self.run(program, what, vip).await;
        }
        let now = Instant::now();
        let due = failed
            .into_iter()
            .filter_map(|(what, vip)| Some((self.failed(what, &vip)?, what, vip)))
            .filter(|(again, ..)| *again <= now)
            .min_by_key(|(again, ..)| *again);
        if let Some((_, what, vip)) = due {
            self.run(program, what, vip).await;
        }
        let failed = self.unsure.values().flatten();
        failed.map(|failed| failed.again).min()
    }

    /// What is missing until these are announced, and nothing else: withdrawals first.
    fn missing(&self, wanted: &BTreeSet<IpAddr>) -> Vec<(What, IpAddr)> {
        let known = self.known();
        let withdraw = known.difference(wanted).map(|vip| (What::Withdraw, *vip));
        let announce = wanted.difference(&self.addresses);
        let announce = announce.map(|vip| (What::Announce, *vip));
        withdraw.chain(announce).collect()
    }

    /// All that are announced, or may be.
    fn known(&self) -> BTreeSet<IpAddr> {
        let unsure = self.unsure.keys().copied();
        unsure.chain(self.addresses.iter().copied()).collect()
    }

    /// When it is tried again; `None`: the last one that was tried for this address was another.
    fn failed(&self, what: What, vip: &IpAddr) -> Option<Instant> {
        let failed = self.unsure.get(vip).copied().flatten();
        failed
            .filter(|failed| failed.what == what)
            .map(|failed| failed.again)
    }

    async fn run(&mut self, program: &Path, what: What, vip: IpAddr) {
        if run(program, what, vip).await {
            self.unsure.remove(&vip);
            if what == What::Announce {
                self.addresses.insert(vip);
            }
        } else {
            let before = self.unsure.get(&vip).copied().flatten();
            self.unsure.insert(vip, Some(Failed::now(what, before)));
        }
        self.keep();
    }

    fn keep(&mut self) {
        let addresses = self.known().into_iter().map(|vip| format!("{vip}\n"));
        let unsure = self.unsure.keys().map(|vip| format!("{MARK}{vip}\n"));
        let text: String = addresses.chain(unsure).collect();
        let Some(file) = &mut self.file else { return };
        if let Err(e) = file.write(&text) {
            tracing::error!("what is announced cannot be kept in a file: {e}");
        }
    }
}

/// The file, and the lock on it.
struct Kept {
    file: File,
    path: PathBuf,
}

impl Kept {
    fn take(path: &Path) -> io::Result<Kept> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Who has it may put another one in its place before it is locked here: that one is locked.
        for _ in 0..2 {
            let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let (ours, there) = (file.metadata()?, std::fs::symlink_metadata(path)?);
            if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
                let path = path.to_owned();
                return Ok(Kept { file, path });
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    /// Puts another one in its place, whole and locked: a kill leaves the one or the other.
    fn write(&mut self, text: &str) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)?);
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&new, &self.path));
        match written {
            Ok(()) => self.file = file,
            // It takes the room of what is written next.
            Err(_) => drop(std::fs::remove_file(&new)),
        }
        written
    }
}

/// What is announced. Who has the lock alone changes it, or hands it to the next daemon.
pub type Shared = Arc<Mutex<Announced>>;

/// Who announces addresses by a program.
#[derive(Clone)]
pub struct Hook {
    program: PathBuf,
    announced: Shared,
}

impl Hook {
    pub fn new(program: &Path, announced: Announced) -> Hook {
        Hook {
            program: program.to_owned(),
            announced: Arc::new(Mutex::new(announced)),
        }
    }

    /// For an upgrade.
    pub fn announced(&self) -> Shared {
        self.announced.clone()
    }

    /// Keeps what is announced the same as what is in service, for ever.
    pub async fn announce(self, app: Arc<App>) {
        let (mut events, mut wanted) = {
            let control = app.control();
            (control.subscribe(), control.announced_addresses())
        };
        loop {
            // Another daemon that takes this one's place has it, for a moment or for good.
            let mut announced = self.announced.lock().await;
            let again = announced.settle(&self.program, &wanted).await;
            drop(announced);
            // Whatever happened, and however much of it was missed: what counts is how it is now.
            let changes = changes(&mut events);
            let goes_on = match again {
                Some(again) => timeout_at(again, changes).await.unwrap_or(true),
                None => changes.await,
            };
            if !goes_on {
                return;
            }
            wanted = tokio::task::block_in_place(|| app.control().announced_addresses());
        }
    }

    /// Withdraws all that is announced: nobody will balance it any more. What announces has ended.
    pub async fn withdraw(&self, app: &App) {
        let known = tokio::task::block_in_place(|| app.control().announced_addresses());
        let mut announced = self.announced.lock().await;
        // Also those of which that failed a moment ago: there is no other time.
        let all = announced.known().into_iter().chain(known);
        announced.unsure = all.map(|vip| (vip, None)).collect();
        announced.settle(&self.program, &BTreeSet::new()).await;
    }
}

/// Returns when addresses may be others. False: they never will.
async fn changes(events: &mut Receiver<Event>) -> bool {
    loop {
        match events.recv().await {
            Ok(event) if !matches!(event.kind, EventKind::Address { .. }) => (),
            Err(RecvError::Closed) => return false,
            _ => return true,
        }
    }
}

/// What is announced, and what is not known to be.
type Addresses = (BTreeSet<IpAddr>, BTreeMap<IpAddr, Option<Failed>>);

fn read(file: &File) -> io::Result<Addresses> {
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text)?;
    let marked = text.lines().filter_map(|line| line.strip_prefix(MARK));
    let unsure: BTreeMap<IpAddr, _> = marked
        .filter_map(|line| Some((line.parse().ok()?, None)))
        .collect();
    let addresses = text.lines().filter_map(|line| line.parse().ok());
    let addresses = addresses.filter(|vip| !unsure.contains_key(vip)).collect();
    Ok((addresses, unsure))
}

/// Whether it has worked; what went wrong is in the log.
async fn run(program: &Path, what: What, vip: IpAddr) -> bool {
    let what = match what {
        What::Announce => "announce",
        What::Withdraw => "withdraw",
    };
    let shown = program.display();
    let mut command = tokio::process::Command::new(program);
    command
        .arg(what)
        .arg(vip.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = async { health::start_program(command)?.wait_with_output().await };
    let ended = tokio::time::timeout(PATIENCE, output).await;
    let why = match ended {
        Ok(Ok(output)) if output.status.success() => {
            tracing::debug!("{shown} {what} {vip}");
            return true;
        }
        Ok(Ok(output)) => format!(
            "ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Ok(Err(e)) => format!("cannot be run: {e}"),
        Err(_) => format!("took longer than {PATIENCE:?} and was ended"),
    };
    tracing::error!("{shown} {what} {vip} {why}: it is to be run again");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hook that notes what it is run for, and fails while there is a file that says so.
    struct Program {
        dir: tempfile::TempDir,
        path: PathBuf,
    }

    impl Program {
        fn new() -> Program {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("hook");
            let shown = dir.path().display();
            let script =
                format!("#!/bin/sh\necho \"$@\" >> {shown}/log\n! test -e {shown}/fails-$2\n");
            let text = dir.path().join("text");
            std::fs::write(&text, script).unwrap();
            // Written by a process that has ended by then: another test that forks while this one
            // writes would have the file open for a moment, and it could not be run.
            let install = std::process::Command::new("install")
                .args(["-m", "755"])
                .args([&text, &path])
                .status();
            assert!(install.unwrap().success());
            Program { dir, path }
        }

        fn fails(&self, vip: IpAddr, fails: bool) {
            let path = self.dir.path().join(format!("fails-{vip}"));
            if fails {
                std::fs::write(path, "").unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }

        /// What it was run for since it was asked last.
        fn said(&self) -> String {
            let log = self.dir.path().join("log");
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let _ = std::fs::remove_file(&log);
            said
        }
    }

    impl Announced {
        /// The pause of those that have failed is over.
        fn wait(&mut self) {
            let failed = self.unsure.values_mut().flatten();
            failed.for_each(|failed| failed.again = Instant::now());
        }
    }

    fn two() -> [IpAddr; 2] {
        ["192.0.2.1".parse().unwrap(), "2001:db8::2".parse().unwrap()]
    }

    #[tokio::test]
    async fn what_fails_is_tried_again_and_keeps_nobody_waiting() {
        let (program, [one, two]) = (Program::new(), two());
        let (path, folder) = (program.path.as_path(), program.dir.path());
        let mut announced = Announced::take(folder);
        program.fails(one, true);
        let wanted = [one].into();
        assert!(announced.settle(path, &wanted).await.is_some());
        assert_eq!(program.said(), "announce 192.0.2.1\n");
        // Not at once, and another one is not held up.
        let both = [one, two].into();
        assert!(announced.settle(path, &both).await.is_some());
        assert_eq!(program.said(), "announce 2001:db8::2\n");
        announced.wait();
        assert!(announced.settle(path, &both).await.is_some());
        assert_eq!(program.said(), "announce 192.0.2.1\n");
        program.fails(one, false);
        announced.wait();
        assert!(announced.settle(path, &both).await.is_none());
        assert_eq!(program.said(), "announce 192.0.2.1\n");
        assert!(announced.settle(path, &both).await.is_none());
        assert_eq!(program.said(), "", "both are announced");

        // A withdrawal likewise; one that is wanted again meanwhile is announced at once.
        program.fails(one, true);
        let none = BTreeSet::new();
        assert!(announced.settle(path, &none).await.is_some());
        assert_eq!(program.said(), "withdraw 192.0.2.1\nwithdraw 2001:db8::2\n");
        announced.wait();
        assert!(announced.settle(path, &none).await.is_some());
        assert_eq!(program.said(), "withdraw 192.0.2.1\n");
        program.fails(one, false);
        assert!(announced.settle(path, &wanted).await.is_none());
        assert_eq!(program.said(), "announce 192.0.2.1\n");
    }

    /// What fails for ever is run less and less often, for something else anew.
    #[test]
    fn the_pause_grows_up_to_a_maximum() {
        let mut failed = Failed::now(What::Announce, None);
        let mut pauses = vec![failed.pause.as_secs()];
        for _ in 0..7 {
            failed = Failed::now(What::Announce, Some(failed));
            pauses.push(failed.pause.as_secs());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300]);
        let other = Failed::now(What::Withdraw, Some(failed));
        assert_eq!(other.pause, AGAIN);
    }

    /// Two that fail: one of them is run at a time, each in its turn.
    #[tokio::test]
    async fn those_that_fail_take_turns() {
        let (program, [one, two]) = (Program::new(), two());
        let path = program.path.as_path();
        let mut announced = Announced::take(program.dir.path());
        [one, two].iter().for_each(|vip| program.fails(*vip, true));
        let both = [one, two].into();
        announced.settle(path, &both).await;
        announced.wait();
        program.said();
        announced.settle(path, &both).await;
        announced.settle(path, &both).await;
        assert_eq!(program.said().lines().count(), 2);
        announced.settle(path, &both).await;
        assert_eq!(program.said(), "", "both have failed a moment ago");
    }

    /// A daemon that ends leaves what has failed to the next one, by the file.
    #[tokio::test]
    async fn what_has_failed_is_tried_again_by_the_next_daemon() {
        let (program, [one, two]) = (Program::new(), two());
        let (path, folder) = (program.path.as_path(), program.dir.path());
        let mut announced = Announced::take(folder);
        [one, two].iter().for_each(|vip| program.fails(*vip, true));
        announced.settle(path, &[one].into()).await;
        drop(announced);
        program.said();
        program.fails(one, false);
        // An announcement: it is not taken for one that has worked.
        let mut announced = Announced::take(folder);
        announced.settle(path, &[one].into()).await;
        assert_eq!(program.said(), "announce 192.0.2.1\n");
        program.fails(two, false);
        announced.settle(path, &[one, two].into()).await;
        program.said();
        // A withdrawal, by one that starts and by one that was handed the file.
        program.fails(one, true);
        announced.settle(path, &[two].into()).await;
        drop(announced);
        program.said();
        let mut announced = Announced::take(folder);
        announced.settle(path, &[two].into()).await;
        assert_eq!(program.said(), "withdraw 192.0.2.1\n");
        let mut next = Announced::handed(announced.file().unwrap(), folder).unwrap();
        drop(announced);
        program.fails(one, false);
        assert!(next.settle(path, &[two].into()).await.is_none());
        assert_eq!(program.said(), "withdraw 192.0.2.1\n");
        // Others have it not, whichever file it is by now.
        assert!(Announced::take(folder).file.is_none());
        let left = std::fs::read_to_string(folder.join(ANNOUNCED)).unwrap();
        assert_eq!(left, "2001:db8::2\n");
    }

    /// A crash is a process that ends without a word: its file stays, its lock does not.
    #[tokio::test]
    async fn what_a_crash_left_announced_is_withdrawn_at_the_next_start() {
        let (hook, [one, two]) = (Program::new(), two());
        let (program, folder) = (hook.path.as_path(), hook.dir.path());
        let mut announced = Announced::take(folder);
        announced.settle(program, &[one, two].into()).await;
        assert_eq!(hook.said(), "announce 192.0.2.1\nannounce 2001:db8::2\n");
        // Another daemon of the folder leaves it alone.
        assert!(Announced::take(folder).known().is_empty());
        drop(announced);
        hook.said();

        // The next start has one of them again, after a while: what is not in service goes.
        let mut announced = Announced::take(folder);
        announced.settle(program, &BTreeSet::new()).await;
        assert_eq!(hook.said(), "withdraw 192.0.2.1\nwithdraw 2001:db8::2\n");
        announced.settle(program, &[two].into()).await;

        // One that is handed the file has its lock, too, when the one before is gone.
        hook.said();
        let mut next = Announced::handed(announced.file().unwrap(), folder).unwrap();
        drop(announced);
        assert!(Announced::take(folder).file.is_none());
        next.settle(program, &[two, one].into()).await;
        next.settle(program, &BTreeSet::new()).await;
        let all = "announce 192.0.2.1\nwithdraw 192.0.2.1\nwithdraw 2001:db8::2\n";
        assert_eq!(hook.said(), all);
        drop(next);
        assert!(Announced::take(folder).known().is_empty());
    }
}

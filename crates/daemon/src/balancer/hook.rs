//! Announcing addresses: a program of the operator's is run when an address comes into service or
//! goes out of it. What it does, a route that a routing daemon redistributes, a call to a router,
//! is its own affair; packaging/balance-hook is one for FRR and BIRD.
//!
//! What is announced stands in a [file](kept), so that a daemon that starts after a crash, or a
//! stop that could not withdraw all, withdraws what nobody balances any more. What it finds may be
//! long gone: for the rest of it the program is run again. A daemon that gives way to the next one
//! hands it that file, with its lock: then it holds. Where the program fails nobody knows
//! whether the address is announced: the file has it on, with a mark, and the program is run again,
//! by whatever daemon is there then.

mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use control::{Event, EventKind};
use tokio::sync::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::app::App;
use kept::{Content, Kept};

pub use kept::Folders;

/// One that takes longer is ended, and the next one run.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that has failed once is not run again for its address; each time that it fails
/// again twice as long, up to a maximum: one that fails where there is nothing to do does so for
/// ever.
const AGAIN: Duration = Duration::from_secs(10);
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// How long the withdrawals of a daemon that stops may take, all together, and how many programs
/// withdraw at one time then. What is not withdrawn is the next daemon's, by the file.
pub const STOP_WITHIN: Duration = Duration::from_secs(20);
const AT_ONCE: usize = 16;

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
#[derive(Default)]
pub struct Announced {
    file: Option<Kept>,
    addresses: BTreeSet<IpAddr>,
    /// Of these it is not known whether they are announced: the program is about to be run, or has
    /// failed.
    unsure: BTreeMap<IpAddr, Option<Failed>>,
}

impl Announced {
    /// Takes the file of these folders, and what a crash or a stop has left in it.
    pub fn take(folders: &Folders) -> Announced {
        let file = match Kept::take(folders) {
            Ok(file) => file,
            Err(e) => {
                tracing::warn!(
                    "what is announced cannot be kept in {}, after a crash it stays announced: {e}",
                    folders.file().display()
                );
                return Announced::default();
            }
        };
        let before = Kept::of_before(folders);
        let mut known = file.read_or_nothing().known();
        if let Some(before) = &before {
            known.extend(before.read_or_nothing().known());
        }
        if !known.is_empty() {
            tracing::info!(
                "{} addresses may be announced still by a daemon that did not end well",
                known.len()
            );
        }
        // Since it was written the host may have been started anew, or this is another network
        // namespace, or another version has withdrawn what it has announced. The program is run
        // again for all of it.
        let content = Content {
            unsure: known,
            ..Content::default()
        };
        let mut announced = Announced::of(file, content);
        if let Some(before) = before
            && announced.keep()
        {
            before.remove();
        }
        announced
    }

    /// Goes on with the file of the daemon before, which announces and withdraws nothing any more.
    pub fn handed(file: OwnedFd, folders: &Folders) -> io::Result<Announced> {
        let file = Kept::handed(file, folders)?;
        let content = file.read()?;
        Ok(Announced::of(file, content))
    }

    fn of(file: Kept, content: Content) -> Announced {
        Announced {
            file: Some(file),
            addresses: content.announced,
            unsure: content.unsure.into_iter().map(|vip| (vip, None)).collect(),
        }
    }

    /// Its file, for the next daemon; with it goes the lock.
    ///
    /// # Errors
    /// It has none.
    pub fn file(&self) -> io::Result<OwnedFd> {
        let none = || io::Error::other("it is in no file");
        self.file.as_ref().ok_or_else(none)?.descriptor()
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

    /// Withdraws these and all others that are known, side by side. What is not withdrawn in that
    /// time, or fails, the file has on.
    async fn withdraw_all(&mut self, program: &Path, these: BTreeSet<IpAddr>, within: Duration) {
        // Also those of which that failed a moment ago: there is no other time.
        let all: BTreeSet<IpAddr> = these.into_iter().chain(self.known()).collect();
        self.addresses.clear();
        self.unsure = all.iter().map(|vip| (*vip, None)).collect();
        self.keep();
        let mut waiting = all.into_iter();
        let withdrawals = async {
            let mut running = JoinSet::new();
            loop {
                let free = AT_ONCE - running.len();
                for vip in waiting.by_ref().take(free) {
                    let program = program.to_owned();
                    running.spawn(async move { (vip, run(&program, What::Withdraw, vip).await) });
                }
                let mut ended = running.join_next().await;
                if ended.is_none() {
                    break;
                }
                // All that have ended by now: the disk is waited for once.
                let before = self.unsure.len();
                while let Some(one) = ended {
                    if let Ok((vip, true)) = one {
                        self.unsure.remove(&vip);
                    }
                    ended = running.try_join_next();
                }
                if self.unsure.len() != before {
                    self.keep();
                }
            }
        };
        // Those that run still are ended.
        let _ = timeout(within, withdrawals).await;
        if !self.unsure.is_empty() {
            tracing::error!(
                "{} addresses may be announced still: the next daemon withdraws those that are not \
                 in service then",
                self.unsure.len()
            );
        }
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

    /// Whether it stands in the file now.
    fn keep(&mut self) -> bool {
        let content = Content {
            announced: self.addresses.clone(),
            unsure: self.unsure.keys().copied().collect(),
        };
        let Some(file) = &mut self.file else {
            return false;
        };
        let written = tokio::task::block_in_place(|| file.write(&content));
        if let Err(e) = &written {
            tracing::error!("what is announced cannot be kept in a file: {e}");
        }
        written.is_ok()
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

    /// Withdraws all that is announced, as far as that can be done in [`STOP_WITHIN`]: nobody will
    /// balance it any more. What announces has ended.
    pub async fn withdraw(&self, app: &App) {
        let known = tokio::task::block_in_place(|| app.control().announced_addresses());
        let mut announced = self.announced.lock().await;
        let program = &self.program;
        announced.withdraw_all(program, known, STOP_WITHIN).await;
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
            let script = format!("echo \"$@\" >> {shown}/log\n! test -e {shown}/fails-$2\n");
            let program = Program { dir, path };
            program.write(&script);
            program
        }

        /// Two beside it, empty.
        fn folders(&self) -> Folders {
            let [kept, before] = ["kept", "before"].map(|name| self.dir.path().join(name));
            for folder in [&kept, &before] {
                std::fs::create_dir(folder).unwrap();
            }
            Folders { kept, before }
        }

        /// Has it be this script.
        fn write(&self, script: &str) {
            let text = self.dir.path().join("text");
            std::fs::write(&text, format!("#!/bin/sh\n{script}")).unwrap();
            // Written by a process that has ended by then: another test that forks while this one
            // writes would have the file open for a moment, and it could not be run.
            let install = std::process::Command::new("install")
                .args(["-m", "755"])
                .args([&text, &self.path])
                .status();
            assert!(install.unwrap().success());
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

    /// Takes the file as the next daemon does: a program that another test is about to run has its
    /// lock for a moment.
    fn take(folders: &Folders) -> Announced {
        for _ in 0..1000 {
            let announced = Announced::take(folders);
            if announced.file.is_some() {
                return announced;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} stays locked", folders.file().display());
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

    #[tokio::test(flavor = "multi_thread")]
    async fn what_fails_is_tried_again_and_keeps_nobody_waiting() {
        let (program, [one, two]) = (Program::new(), two());
        let (path, folder) = (program.path.as_path(), program.dir.path());
        let mut announced = take(&Folders::one(folder));
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
    #[tokio::test(flavor = "multi_thread")]
    async fn those_that_fail_take_turns() {
        let (program, [one, two]) = (Program::new(), two());
        let path = program.path.as_path();
        let mut announced = take(&Folders::one(program.dir.path()));
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
    #[tokio::test(flavor = "multi_thread")]
    async fn what_has_failed_is_tried_again_by_the_next_daemon() {
        let (program, [one, two]) = (Program::new(), two());
        let (path, folder) = (program.path.as_path(), program.dir.path());
        let mut announced = take(&Folders::one(folder));
        [one, two].iter().for_each(|vip| program.fails(*vip, true));
        announced.settle(path, &[one].into()).await;
        drop(announced);
        program.said();
        program.fails(one, false);
        // An announcement: it is not taken for one that has worked.
        let mut announced = take(&Folders::one(folder));
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
        let mut announced = take(&Folders::one(folder));
        announced.settle(path, &[two].into()).await;
        assert_eq!(program.said(), "withdraw 192.0.2.1\nannounce 2001:db8::2\n");
        let mut next = Announced::handed(announced.file().unwrap(), &Folders::one(folder)).unwrap();
        drop(announced);
        program.fails(one, false);
        assert!(next.settle(path, &[two].into()).await.is_none());
        assert_eq!(program.said(), "withdraw 192.0.2.1\n");
        // Others have it not, whichever file it is by now.
        assert!(Announced::take(&Folders::one(folder)).file.is_none());
        let left = std::fs::read_to_string(folder.join(kept::NAME)).unwrap();
        assert_eq!(left, "2001:db8::2\n");
    }

    /// A crash is a process that ends without a word: its file stays, its lock does not.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_crash_left_announced_is_withdrawn_at_the_next_start() {
        let (hook, [one, two]) = (Program::new(), two());
        let (program, folder) = (hook.path.as_path(), hook.dir.path());
        let mut announced = take(&Folders::one(folder));
        announced.settle(program, &[one, two].into()).await;
        assert_eq!(hook.said(), "announce 192.0.2.1\nannounce 2001:db8::2\n");
        // Another daemon of the folder leaves it alone.
        let other = Announced::take(&Folders::one(folder));
        assert!(other.file.is_none() && other.known().is_empty());
        drop(announced);
        hook.said();

        // The next start has one of them again, after a while: what is not in service goes.
        let mut announced = take(&Folders::one(folder));
        announced.settle(program, &BTreeSet::new()).await;
        assert_eq!(hook.said(), "withdraw 192.0.2.1\nwithdraw 2001:db8::2\n");
        announced.settle(program, &[two].into()).await;

        // One that is handed the file has its lock, too, when the one before is gone.
        hook.said();
        let mut next = Announced::handed(announced.file().unwrap(), &Folders::one(folder)).unwrap();
        drop(announced);
        assert!(Announced::take(&Folders::one(folder)).file.is_none());
        next.settle(program, &[two, one].into()).await;
        next.settle(program, &BTreeSet::new()).await;
        let all = "announce 192.0.2.1\nwithdraw 192.0.2.1\nwithdraw 2001:db8::2\n";
        assert_eq!(hook.said(), all);
        drop(next);
        assert!(take(&Folders::one(folder)).known().is_empty());
    }

    /// Three of which each waits for the others: they are withdrawn at one time.
    #[tokio::test(flavor = "multi_thread")]
    async fn withdrawals_of_a_stop_wait_for_no_other() {
        let hook = Program::new();
        let log = hook.dir.path().join("log");
        hook.write(&format!(
            "echo \"$@\" >> {0}\n\
             until [ \"$(grep -c withdraw {0})\" -ge 3 ]; do sleep 0.01; done\n",
            log.display()
        ));
        let [one, two] = two();
        let folders = Folders::one(hook.dir.path());
        let mut announced = take(&folders);
        announced.addresses = [one, two].into();
        let third = ["192.0.2.3".parse().unwrap()].into();
        announced.withdraw_all(&hook.path, third, STOP_WITHIN).await;
        assert_eq!(announced.known(), BTreeSet::new());
        assert_eq!(hook.said().lines().count(), 3);
        drop(announced);
        assert!(take(&folders).known().is_empty());
    }

    /// It hangs for one address, fails for another, and is waited for no longer than is said.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_stop_cannot_withdraw_is_the_next_daemon_s() {
        let (hook, [one, two]) = (Program::new(), two());
        let three: IpAddr = "192.0.2.3".parse().unwrap();
        let gone = hook.dir.path().join("gone");
        hook.write(&format!(
            "[ $2 = {one} ] && exec sleep 600\n[ $2 = {two} ] && exit 1\n: > {}\n",
            gone.display()
        ));
        let folders = Folders::one(hook.dir.path());
        let mut announced = take(&folders);
        let all: BTreeSet<IpAddr> = [one, two, three].into();
        // As long as what hangs hangs.
        let mut within = Duration::from_millis(500);
        while !gone.exists() {
            announced
                .withdraw_all(&hook.path, all.clone(), within)
                .await;
            within *= 2;
        }
        assert!(announced.known().is_superset(&[one, two].into()));
        drop(announced);
        hook.write("echo \"$@\" >> \"$(dirname \"$0\")/log\"\n");
        let mut next = take(&folders);
        assert!(next.settle(&hook.path, &[three].into()).await.is_none());
        let said = hook.said();
        for vip in [one, two] {
            assert!(said.contains(&format!("withdraw {vip}\n")), "{said}");
        }
        assert_eq!(next.known(), [three].into());
    }

    /// A stop of the service takes the folder of sockets away: what is left announced stands beside
    /// the store.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_announced_outlives_the_folder_of_sockets() {
        let (hook, [one, _]) = (Program::new(), two());
        let folders = hook.folders();
        hook.fails(one, true);
        let mut announced = take(&folders);
        announced.settle(&hook.path, &[one].into()).await;
        let none = BTreeSet::new();
        announced.withdraw_all(&hook.path, none, STOP_WITHIN).await;
        drop(announced);
        std::fs::remove_dir_all(&folders.before).unwrap();
        hook.fails(one, false);
        hook.said();
        let mut next = take(&folders);
        next.settle(&hook.path, &BTreeSet::new()).await;
        assert_eq!(hook.said(), format!("withdraw {one}\n"));
    }

    /// The file is there still when the host comes back, in a container's next network namespace,
    /// and behind another version that has the file elsewhere; the routes are not.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_daemon_that_is_gone_had_announced_is_announced_again() {
        let (hook, [one, two]) = (Program::new(), two());
        let folders = Folders::one(hook.dir.path());
        let mut announced = take(&folders);
        announced.settle(&hook.path, &[one, two].into()).await;
        drop(announced);
        hook.said();
        let mut announced = take(&folders);
        announced.settle(&hook.path, &[one].into()).await;
        let said = format!("withdraw {two}\nannounce {one}\n");
        assert_eq!(hook.said(), said);
        announced.settle(&hook.path, &[one].into()).await;
        assert_eq!(hook.said(), "", "once");
        drop(announced);
        // A version of before said of which boot it is.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        std::fs::write(folders.file(), format!("{one}\nboot {boot}")).unwrap();
        let mut announced = take(&folders);
        announced.settle(&hook.path, &[one].into()).await;
        assert_eq!(hook.said(), format!("announce {one}\n"));
    }

    /// Of daemons that share the folder of state each has one for its store.
    #[test]
    fn the_folder_of_the_store_is_one_daemon_s() {
        let [store, state, sockets] = ["/store", "/state", "/sockets"].map(Path::new);
        let kept = |store, state| Folders::of(store, state, sockets).kept;
        assert_eq!(kept(Some(store), Some(state)), store);
        assert_eq!(kept(None, Some(state)), state);
        assert_eq!(kept(None, None), sockets);
    }

    /// A live upgrade from a version that had it in the folder of sockets, beside a daemon that has
    /// one where it is to be now.
    #[tokio::test(flavor = "multi_thread")]
    async fn another_daemon_s_file_is_not_overwritten_by_one_that_is_handed_over() {
        let (hook, [one, two]) = (Program::new(), two());
        let folders = hook.folders();
        let [theirs, ours] = [&folders.kept, &folders.before].map(|folder| Folders::one(folder));
        let mut other = take(&theirs);
        other.settle(&hook.path, &[two].into()).await;
        let mut left = take(&ours);
        left.settle(&hook.path, &[one].into()).await;
        hook.said();
        let mut next = Announced::handed(left.file().unwrap(), &folders).unwrap();
        drop(left);
        for wanted in [BTreeSet::new(), [one].into()] {
            next.settle(&hook.path, &wanted).await;
        }
        assert_eq!(hook.said(), format!("withdraw {one}\nannounce {one}\n"));
        let text = |folders: &Folders| std::fs::read_to_string(folders.file()).unwrap();
        assert_eq!(text(&theirs), format!("{two}\n"));
        assert_eq!(text(&ours), format!("{one}\n"));
        // The other one's lock is its own still, and this one's goes along.
        assert!(Announced::take(&theirs).file.is_none());
        assert!(Announced::take(&ours).file.is_none());

        // One that was elsewhere altogether is written nowhere rather than over another's.
        let away = hook.dir.path().join("away");
        std::fs::create_dir(&away).unwrap();
        let mut left = take(&Folders::one(&away));
        left.settle(&hook.path, &[one].into()).await;
        let mut next = Announced::handed(left.file().unwrap(), &folders).unwrap();
        next.settle(&hook.path, &BTreeSet::new()).await;
        assert_eq!(text(&theirs), format!("{two}\n"));
        drop(other);
        next.settle(&hook.path, &[one].into()).await;
        assert_eq!(text(&theirs), format!("{one}\n"));
    }

    /// By a start, and by a live upgrade, from a version that had it in the folder of sockets.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_version_of_before_has_left_is_taken_along() {
        let (hook, [one, two]) = (Program::new(), two());
        let folders = hook.folders();
        let old_file = folders.before.join(kept::NAME);
        let old = || take(&Folders::one(&folders.before));
        let mut left = old();
        left.settle(&hook.path, &[one].into()).await;
        // It runs still: it is its own.
        assert!(take(&folders).known().is_empty());
        drop(left);
        hook.said();
        // A program that another test is about to run has that one's lock for a moment, too.
        let mut next = take(&folders);
        for _ in 0..1000 {
            if !old_file.exists() {
                break;
            }
            drop(next);
            std::thread::sleep(Duration::from_millis(1));
            next = take(&folders);
        }
        assert!(!old_file.exists());
        next.settle(&hook.path, &[two].into()).await;
        let said = format!("withdraw {one}\nannounce {two}\n");
        assert_eq!(hook.said(), said);
        drop(next);

        // The one that is handed over is left where it is until there is something to be written:
        // the other daemon may go on.
        let mut left = old();
        left.settle(&hook.path, &[one].into()).await;
        hook.said();
        let mut next = Announced::handed(left.file().unwrap(), &folders).unwrap();
        assert!(old_file.exists());
        drop(left);
        assert_eq!(next.known(), [one].into());
        next.settle(&hook.path, &BTreeSet::new()).await;
        assert_eq!(hook.said(), format!("withdraw {one}\n"));
        assert!(!old_file.exists());
        drop(next);
        assert!(take(&folders).known().is_empty());
    }
}

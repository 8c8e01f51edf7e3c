//! Announcing addresses: a program of the operator's is run when an address comes into service or
//! goes out of it. What it does, a route that a routing daemon redistributes, a call to a router,
//! is its own affair; packaging/balance-hook is one for FRR and BIRD.
//!
//! What is announced stands in a file of the folder of sockets, so that a daemon that starts after
//! a crash withdraws what nobody balances any more. A daemon that gives way to the next one hands
//! it that file, with its lock.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use control::EventKind;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tokio::sync::Mutex;
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;

/// One that takes longer is ended, and the next one run.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file of what is announced.
const ANNOUNCED: &str = "balance-announced";
/// More than any host announces.
const FILE_MAX: u64 = 1 << 20;

/// What is announced, as a file that outlives this process. Of daemons that share a folder the
/// first one has it.
pub struct Announced {
    file: Option<File>,
    addresses: BTreeSet<IpAddr>,
}

impl Announced {
    /// Takes the file of this folder, and what a crash has left in it.
    pub fn take(folder: &Path) -> Announced {
        let path = folder.join(ANNOUNCED);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        let locked = opened.and_then(|file| {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        });
        let file = match locked {
            Ok(file) => file,
            Err(e) => {
                tracing::warn!(
                    "what is announced cannot be kept in {}, after a crash it stays announced: {e}",
                    path.display()
                );
                return Announced {
                    file: None,
                    addresses: BTreeSet::new(),
                };
            }
        };
        let addresses = read(&file).unwrap_or_else(|e| {
            tracing::warn!("{} cannot be read: {e}", path.display());
            BTreeSet::new()
        });
        if !addresses.is_empty() {
            tracing::info!(
                "{} addresses are announced still by a daemon that did not end well",
                addresses.len()
            );
        }
        Announced {
            file: Some(file),
            addresses,
        }
    }

    /// Goes on with the file of the daemon before, which announces and withdraws nothing any more.
    pub fn handed(file: OwnedFd) -> std::io::Result<Announced> {
        let mut file = File::from(file);
        file.rewind()?;
        let addresses = read(&file)?;
        Ok(Announced {
            file: Some(file),
            addresses,
        })
    }

    /// Its file, for the next daemon; with it goes the lock.
    ///
    /// # Errors
    /// It has none.
    pub fn file(&self) -> std::io::Result<OwnedFd> {
        let none = || std::io::Error::other("it is in no file");
        Ok(self.file.as_ref().ok_or_else(none)?.try_clone()?.into())
    }

    /// Announces and withdraws until these are announced. The file has an address before it is
    /// announced, and until it is withdrawn.
    async fn settle(&mut self, program: &Path, wanted: BTreeSet<IpAddr>) {
        if wanted == self.addresses {
            return;
        }
        self.keep(self.addresses.union(&wanted).copied().collect());
        for vip in self.addresses.difference(&wanted) {
            run(program, "withdraw", *vip).await;
        }
        for vip in wanted.difference(&self.addresses) {
            run(program, "announce", *vip).await;
        }
        self.keep(wanted.clone());
        self.addresses = wanted;
    }

    fn keep(&mut self, addresses: BTreeSet<IpAddr>) {
        let Some(file) = &mut self.file else { return };
        let text: String = addresses.iter().map(|vip| format!("{vip}\n")).collect();
        let written = file
            .rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| file.write_all(text.as_bytes()));
        if let Err(e) = written {
            tracing::error!("what is announced cannot be kept in a file: {e}");
        }
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
            announced.settle(&self.program, wanted).await;
            drop(announced);
            // Whatever happened, and however much of it was missed: what counts is how it is now.
            loop {
                match events.recv().await {
                    Ok(event) if !matches!(event.kind, EventKind::Address { .. }) => (),
                    Err(RecvError::Closed) => return,
                    _ => break,
                }
            }
            wanted = tokio::task::block_in_place(|| app.control().announced_addresses());
        }
    }

    /// Withdraws all that is announced: nobody will balance it any more. What announces has ended.
    pub async fn withdraw(&self, app: &App) {
        let known = tokio::task::block_in_place(|| app.control().announced_addresses());
        let mut announced = self.announced.lock().await;
        announced.addresses.extend(known);
        announced.settle(&self.program, BTreeSet::new()).await;
    }
}

fn read(file: &File) -> std::io::Result<BTreeSet<IpAddr>> {
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

async fn run(program: &Path, what: &str, vip: IpAddr) {
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
    match ended {
        Ok(Ok(output)) if output.status.success() => tracing::debug!("{shown} {what} {vip}"),
        Ok(Ok(output)) => tracing::error!(
            "{shown} {what} {vip} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Ok(Err(e)) => tracing::error!("{shown} {what} {vip} cannot be run: {e}"),
        Err(_) => {
            tracing::error!("{shown} {what} {vip} took longer than {PATIENCE:?} and was ended")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A crash is a process that ends without a word: its file stays, its lock does not.
    #[tokio::test]
    async fn what_a_crash_left_announced_is_withdrawn_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let (program, log) = (dir.path().join("hook"), dir.path().join("log"));
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", log.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let (one, two): (IpAddr, IpAddr) =
            ("192.0.2.1".parse().unwrap(), "2001:db8::2".parse().unwrap());

        let mut announced = Announced::take(dir.path());
        announced.settle(&program, [one, two].into()).await;
        assert_eq!(said(), "announce 192.0.2.1\nannounce 2001:db8::2\n");
        // Another daemon of the folder leaves it alone.
        assert!(Announced::take(dir.path()).addresses.is_empty());
        drop(announced);
        std::fs::remove_file(&log).unwrap();

        // The next start has one of them again, after a while: what is not in service goes.
        let mut announced = Announced::take(dir.path());
        announced.settle(&program, BTreeSet::new()).await;
        assert_eq!(said(), "withdraw 192.0.2.1\nwithdraw 2001:db8::2\n");
        announced.settle(&program, [two].into()).await;

        // One that is handed the file has its lock, too, when the one before is gone.
        std::fs::remove_file(&log).unwrap();
        let mut next = Announced::handed(announced.file().unwrap()).unwrap();
        drop(announced);
        assert!(Announced::take(dir.path()).file.is_none());
        next.settle(&program, [two, one].into()).await;
        next.settle(&program, BTreeSet::new()).await;
        let all = "announce 192.0.2.1\nwithdraw 192.0.2.1\nwithdraw 2001:db8::2\n";
        assert_eq!(said(), all);
        drop(next);
        assert!(Announced::take(dir.path()).addresses.is_empty());
    }
}

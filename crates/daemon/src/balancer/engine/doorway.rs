//! The door of health checks, from the first check on, and what keeps them from being made: the
//! door's interface is in the host's namespace, where others may set it down or remove it. Down it
//! is set up again, gone it is made anew. Meanwhile no check is made, and none that has failed
//! counts: it is not the server's failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use netlink::Kinds;

use super::{Running, lock};
use crate::balancer::probe::{Door, Trouble};

/// Between two tries to mend it, and from one to the next check: somebody who sets it down again
/// and again is answered once in so long.
const AGAIN: Duration = Duration::from_secs(1);

/// See the top of this file. Locked before interfaces, and those before the balancer.
#[derive(Default)]
pub(super) struct Doorway {
    door: Mutex<Option<Arc<Door>>>,
    /// Why no check can be made; a sentence.
    trouble: Mutex<Option<String>>,
    /// How often there was such a reason.
    breaks: AtomicU64,
}

impl Doorway {
    /// The door, made if need be. The error is a sentence.
    pub(super) fn open(&self, running: &Running) -> Result<Arc<Door>, String> {
        if let Some(why) = self.trouble() {
            return Err(why);
        }
        let mut door = self.door();
        if let Some(door) = &*door {
            return Ok(door.clone());
        }
        let made = Arc::new(Door::open(&running.balancer)?);
        lock(&running.interfaces).open(&made)?;
        Ok(door.insert(made).clone())
    }

    /// The door, if there is one by now, for whoever takes an interface.
    pub(super) fn door(&self) -> MutexGuard<'_, Option<Arc<Door>>> {
        lock(&self.door)
    }

    /// Why no check can be made, if so; a sentence.
    pub(super) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// How often there was trouble.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// What was in the way of a check that began when there were so many [`breaks`](Self::breaks).
    /// It asks the kernel, of which nobody may have heard yet.
    pub(super) fn hindrance(&self, breaks: u64) -> Option<String> {
        if let Some(why) = self.trouble() {
            return Some(why);
        }
        let door = self.door().clone()?;
        match door.trouble() {
            Some(trouble) => Some(door.said(trouble)),
            None if self.breaks() == breaks => None,
            None => Some(format!(
                "the interface {} of health checks was down or missing meanwhile",
                door.name()
            )),
        }
    }

    /// Looks whether checks can be made, and has them be made again. Whether something was wrong.
    fn look_after(&self, running: &Running) -> bool {
        let Some(door) = self.door().clone() else {
            return false;
        };
        let snapshot = running.follower.snapshot();
        // Where the mirror is behind, the kernel itself is asked.
        let is_up = snapshot
            .links
            .get(&door.ifindex())
            .is_some_and(|link| link.up);
        let Some(trouble) = (!is_up).then(|| door.trouble()).flatten() else {
            self.note(None);
            return false;
        };
        let said = door.said(trouble);
        if self.trouble().is_none() {
            self.note(Some(said.clone()));
        }
        let mended = match trouble {
            // Another process takes this one's place, and has a door of its own.
            _ if lock(&running.interfaces).is_still() => Ok(()),
            Trouble::Down => door.set_up(),
            Trouble::Gone => self.make_anew(running),
        };
        if let Err(why) = mended {
            self.note(Some(format!("{said}, and is not made again: {why}")));
        }
        true
    }

    fn make_anew(&self, running: &Running) -> Result<(), String> {
        // It may take as long as the namespace helper does: nobody waits for that.
        let made = Arc::new(Door::open(&running.balancer)?);
        let mut door = self.door();
        let interfaces = lock(&running.interfaces);
        if interfaces.is_still() {
            return Err("another process takes this one's place".to_owned());
        }
        // The old one's program leads nowhere.
        interfaces.close();
        interfaces.open(&made)?;
        *door = Some(made);
        Ok(())
    }

    /// Remembers what is wrong now, and says what is new about that.
    fn note(&self, now: Option<String>) {
        let mut trouble = lock(&self.trouble);
        match (&*trouble, &now) {
            (before, now) if before == now => return,
            (_, None) => tracing::info!("health checks are made again"),
            (before, Some(why)) => {
                if before.is_none() {
                    self.breaks.fetch_add(1, Ordering::Relaxed);
                }
                tracing::warn!("no health check can be made: {why}");
            }
        }
        *trouble = now;
    }
}

/// Looks after the door whenever links change, for ever.
pub(super) async fn look_after(running: Arc<Running>, doorway: Arc<Doorway>) {
    let mut watch = running.follower.watch();
    loop {
        while tokio::task::block_in_place(|| doorway.look_after(&running)) {
            tokio::time::sleep(AGAIN).await;
        }
        loop {
            match watch.changed().await {
                Ok((_, kinds)) if kinds.any(Kinds::LINKS) => break,
                Ok(_) => (),
                // The follower says so.
                Err(_) => return,
            }
        }
    }
}

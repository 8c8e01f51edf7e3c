//! What announces services' addresses, from one daemon to the next: BIRD runs on, and what a hook
//! has announced stays announced.

use bgp::{Pipes, Speaker};
use sys::handed::{Handed, Items};
use tokio::sync::OwnedMutexGuard;

use super::bgp as speaker;
use super::hook::{self, Announced, Folders};

/// What they are handed over as.
const BIRD: &str = "bird";
const ANNOUNCED: &str = "announced";

/// All that announces.
#[derive(Default)]
pub struct Announcing {
    pub speaker: Option<speaker::Shared>,
    pub hook: Option<hook::Shared>,
}

/// As long as this is there nothing is announced or withdrawn by this process.
pub struct Still {
    speaker: Option<OwnedMutexGuard<Option<Speaker>>>,
    hook: Option<OwnedMutexGuard<Announced>>,
}

impl Announcing {
    /// The settings have something announce.
    pub fn is_any(&self) -> bool {
        self.speaker.is_some() || self.hook.is_some()
    }

    /// Waits until what is being announced is. Not for a runtime's thread.
    pub fn stand_still(&self) -> Still {
        Still {
            speaker: self.speaker.clone().map(|one| one.blocking_lock_owned()),
            hook: self.hook.clone().map(|one| one.blocking_lock_owned()),
        }
    }
}

impl Still {
    /// What the next daemon goes on with. The error is a sentence.
    pub fn hand_over(&self) -> Result<Items, String> {
        let mut items = Items::new();
        let mut add = |name: &str, fds| {
            let note = Vec::new();
            items.insert(name.to_owned(), Handed { note, fds });
        };
        // One that has ended is started anew by whoever is the daemon then.
        let speaker = self.speaker.as_ref().and_then(|speaker| speaker.as_ref());
        if let Some(Pipes { lifeline, output }) = speaker.and_then(|one| one.pipes().ok()) {
            add(BIRD, vec![lifeline, output]);
        }
        if let Some(announced) = &self.hook {
            let file = announced.file().map_err(|e| {
                format!("what --balance-hook has announced cannot be handed over: {e}")
            })?;
            add(ANNOUNCED, vec![file]);
        }
        Ok(items)
    }
}

/// What the daemon before has handed over.
#[derive(Default)]
pub struct Left {
    pub pipes: Option<Pipes>,
    pub announced: Option<Announced>,
}

impl Left {
    /// By the settings of this process, which have to announce in the same ways, and have these
    /// folders. The error is a sentence.
    pub fn of(
        mut items: Items,
        folders: &Folders,
        has_bgp: bool,
        has_hook: bool,
    ) -> Result<Left, String> {
        let gone = |what: &str, option: &str| {
            format!(
                "{what}, and the settings have no {option} any more: restart the daemon instead"
            )
        };
        let pipes = match items.remove(BIRD).map(Handed::take::<2>) {
            None => None,
            Some(Some([lifeline, output])) => Some(Pipes { lifeline, output }),
            Some(None) => return Err("BIRD was not handed over as it should be".to_owned()),
        };
        if pipes.is_some() && !has_bgp {
            return Err(gone("addresses are announced by BGP", "--balance-bgp"));
        }
        let announced = items
            .remove(ANNOUNCED)
            .and_then(|one| one.fds.into_iter().next());
        if announced.is_some() && !has_hook {
            return Err(gone(
                "addresses are announced by a program",
                "--balance-hook",
            ));
        }
        let announced = announced.map(|file| Announced::handed(file, folders));
        let announced = announced.transpose();
        let announced = announced.map_err(|e| format!("what is announced cannot be read: {e}"))?;
        Ok(Left { pipes, announced })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn items(name: &str, count: usize) -> Items {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let fds = std::iter::repeat_with(null).take(count).collect();
        let note = Vec::new();
        [(name.to_owned(), Handed { note, fds })].into()
    }

    #[test]
    fn what_the_settings_have_no_more_is_refused() {
        let folders = Folders::one("/run".as_ref());
        let of = |items, bgp, hook| Left::of(items, &folders, bgp, hook);
        let refused = |items, bgp, hook| of(items, bgp, hook).err().unwrap();
        assert_eq!(
            refused(items(BIRD, 2), false, true),
            "addresses are announced by BGP, and the settings have no --balance-bgp any more: \
             restart the daemon instead"
        );
        assert!(refused(items(ANNOUNCED, 1), true, false).contains("no --balance-hook any more"));
        assert!(refused(items(BIRD, 1), true, true).contains("as it should be"));
        assert!(of(items(BIRD, 2), true, false).unwrap().pipes.is_some());
        let none = of(Items::new(), true, true).unwrap();
        assert!(none.pipes.is_none() && none.announced.is_none());
    }
}

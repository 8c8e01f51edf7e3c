//! Who may do what. Both APIs ask here, and nowhere else.
//!
//! [`policy`] knows roles and what each gives; [`file`](mod@file) reads them from the file of
//! `--access`; [`peer`] is who asks, as the kernel or a certificate tells it, and [`directory`]
//! which groups that is in; [`needs`] says of every request of both APIs which role it takes. The
//! layer [`admit`] compares the two before a request of v1 reaches its method, v0's handler does so
//! for its own. Who may see and change a part of the networks alone gets the controller as
//! [`permitted::Permitted`], which has no other way to it. What a request was let in by is looked
//! at again when it is carried out (`standing`). What was changed, and what was refused, is told to
//! [`crate::audit`].

pub mod admit;
mod change_rate;
mod directory;
mod file;
pub mod needs;
pub mod peer;
pub mod permitted;
mod policy;
mod standing;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use nix::unistd::{Gid, Group};

pub use admit::{Admitted, Caller, Gate, STALE, taken};
pub use directory::Directory;
pub use file::{Names as Named, parse as policy_of};
pub use peer::{Peer, User, Who};
pub use permitted::{Permitted, Refusal};
use policy::Policy;
#[cfg(test)]
pub use policy::part;
pub use policy::{Reach, Reaches, Rights};

/// Who may do what, as it is now. Cheap to clone.
#[derive(Clone)]
pub struct Access(Arc<Shared>);

struct Shared {
    group: Option<Gid>,
    file: Option<PathBuf>,
    /// `None`: there is no file.
    policy: RwLock<Option<Arc<Policy>>>,
    /// How often that was read again.
    generation: AtomicU64,
    directory: Directory,
}

impl Access {
    /// Looks the group of `--api-group` up and reads the file of `--access`. The error is a
    /// sentence.
    pub fn new(group: Option<&str>, file: Option<PathBuf>) -> Result<Access, String> {
        let group = match group {
            None => None,
            Some(name) => match Group::from_name(name) {
                Ok(Some(group)) => Some(group.gid),
                Ok(None) => return Err(format!("--api-group {name}: there is no such group")),
                Err(e) => return Err(format!("--api-group {name}: {e}")),
            },
        };
        let policy = file.as_deref().map(file::read).transpose()?.map(Arc::new);
        if let (Some(policy), Some(gid), Some(file)) = (&policy, group, &file)
            && !policy.names_group(gid.as_raw())
        {
            tracing::warn!(
                "the group of --api-group has no grant in {}: its members may do nothing but what \
                 is granted to them otherwise",
                file.display()
            );
        }
        Ok(Access(Arc::new(Shared {
            group,
            file,
            policy: RwLock::new(policy),
            generation: AtomicU64::new(0),
            directory: Directory::of_host(),
        })))
    }

    /// One group, and another directory than the host's.
    #[cfg(test)]
    pub fn of_group(gid: u32, directory: Directory) -> Access {
        Access(Arc::new(Shared {
            group: Some(Gid::from_raw(gid)),
            file: None,
            policy: RwLock::new(None),
            generation: AtomicU64::new(0),
            directory,
        }))
    }

    /// Reads the file again: what it says counts from the next request on, of connections that are
    /// there, too. A sentence that says what was read; the error is one, too, and what was in force
    /// stays.
    pub fn reload(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.0.file else {
            return Ok(None);
        };
        let policy = file::read(path)?;
        let grants = policy.grants();
        *self
            .0
            .policy
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(policy));
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(Some(format!("{}: {grants} grants", path.display())))
    }

    /// Another number after every [`reload`](Self::reload).
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Whether it matters which groups a user is in that the kernel does not tell of.
    pub fn asks_for_groups(&self, user: &User) -> bool {
        let of_groups = match &*self.0.policy.read().unwrap_or_else(PoisonError::into_inner) {
            Some(policy) => policy.names_groups(),
            None => self.0.group.is_some(),
        };
        of_groups && self.rights(&Who::Local(user.clone())) != Rights::all()
    }

    /// A user with the groups that the system's database has it in. These are as they were when the
    /// user connected: what it comes into later counts for its next connection. Why they are not
    /// known is a sentence; the user is in its process's group alone then.
    pub async fn with_groups(&self, mut user: User) -> (User, Option<String>) {
        match self.0.directory.groups(user.uid).await {
            Ok(groups) => {
                user.groups.extend(groups);
                (user, None)
            }
            Err(why) => (user, Some(why)),
        }
    }

    /// What somebody may do now.
    pub fn rights(&self, who: &Who) -> Rights {
        let policy = self.0.policy.read();
        let policy = policy.unwrap_or_else(PoisonError::into_inner).clone();
        match (policy, who) {
            // Who could replace the file, or the daemon, is kept from nothing by it.
            (_, Who::Local(user)) if user.is_ours() => Rights::all(),
            (Some(policy), who) => policy.rights(who),
            (None, Who::Local(user)) => match self.0.group {
                Some(group) if user.is_in(group.as_raw()) => Rights::all(),
                _ => Rights::default(),
            },
            (None, Who::Certificate { .. } | Who::V0Tcp) => Rights::all(),
            // To change anything takes a grant that says so.
            (None, Who::PageToken) => Rights::view(),
            (None, Who::Unknown) => Rights::default(),
        }
    }

    /// Who a unix socket is given to, and its mode.
    pub fn socket(&self) -> (Option<Gid>, u32) {
        let policy = self.0.policy.read();
        let policy = policy.unwrap_or_else(PoisonError::into_inner);
        match (&*policy, self.0.group) {
            // Several groups and users cannot be said by a file's mode. Whoever connects is asked
            // for by the kernel's word, and turned away without a grant.
            (Some(policy), group) if policy.names_local_users() => (group, 0o666),
            (_, Some(group)) => (Some(group), 0o660),
            (_, None) => (None, 0o600),
        }
    }
}

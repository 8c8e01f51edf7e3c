//! By what a request was let in, to be looked at again before it is carried out: its body may take
//! a minute to arrive, and then it waits for its turn, and for the controller. What was taken away
//! meanwhile is.

use super::peer::Peer;
use super::permitted::Refusal;
use super::policy::{Reach, Role};
use super::{Access, Rights};
use crate::v1::tls::Authority;

/// What was in force when somebody was let in, and for what.
pub(super) struct Standing {
    /// `None`: everybody may do everything.
    pub access: Option<Access>,
    pub peer: Peer,
    pub role: Role,
    /// Read before the rights were: a reload between the two is noticed.
    pub generation: u64,
    /// Over mutual TLS.
    pub authority: Option<Authority>,
}

impl Standing {
    /// Whether the role is for the same still, its limits among that.
    pub fn look_again(&self, reach: &Reach) -> Result<(), Refusal> {
        if self.authority.as_ref().is_some_and(Authority::is_stale) {
            return Err(Refusal::Stale);
        }
        let Some(access) = &self.access else {
            return Ok(());
        };
        if access.generation() == self.generation {
            return Ok(());
        }
        let rights: Rights = access.rights(&self.peer.who);
        match rights.reach(self.role) == *reach {
            true => Ok(()),
            false => Err(Refusal::Denied(format!(
                "what {} may do was changed since it asked for this: ask again",
                self.peer.shown()
            ))),
        }
    }
}

//! VMMs' sessions in an upgrade, at the side of the new daemon. They are made ready while the old
//! one serves them, and run when it stands still: then only those are taken up as a whole of which
//! a VMM has said something meanwhile.

use std::collections::BTreeMap;

use control::Controller;
use control::model::NicKind;
use io::vhost::{LeftError, PortKey, Server};

use super::new::Predecessor;
use super::words;
use crate::held::{Held, Mark};

/// Sessions that were given early, by their NICs: they are ready, but for those whose guests are
/// here before their memory. With their marks, which daemons of before do not give.
pub struct EarlySessions(BTreeMap<String, Option<Mark>>);

impl EarlySessions {
    /// Makes those ready that the daemon before has given while it goes on.
    ///
    /// # Errors
    /// A sentence: one of them cannot be gone on with.
    pub fn prepare(
        old: &Predecessor,
        held: &Held,
        vhost: &Server,
        controller: &Controller,
    ) -> Result<EarlySessions, String> {
        let marks = old.bytes(words::EARLY_MARKS)?.unwrap_or_default();
        held.leave_sessions(old.take_all(words::EARLY), &marks);
        let (mut early, mut left) = (BTreeMap::new(), Vec::new());
        for (nic, key) in vhost_nics(controller) {
            let session = held.session_so_far(&nic);
            let session = session.map_err(|e| format!("the session of NIC '{nic}': {e}"))?;
            if let Some((session, mark)) = session {
                left.push((key, session));
                early.insert(nic, mark);
            }
        }
        let prepared = vhost.prepare(left);
        prepared.map_err(|failed| sentence(failed, controller))?;
        Ok(EarlySessions(early))
    }

    /// Goes on with all that the daemon before has, which stands still; with how many.
    ///
    /// # Errors
    /// A sentence: one of them cannot be gone on with.
    pub fn take_up(
        self,
        old: &Predecessor,
        held: &Held,
        vhost: &Server,
        controller: &Controller,
    ) -> Result<usize, String> {
        held.have_words();
        let as_before = old.bytes(words::AS_BEFORE)?;
        if as_before.is_none() && !self.0.is_empty() {
            return Err("it is not said which sessions of VMMs are as they were".to_owned());
        }
        let as_before = Held::unpack_as_before(&as_before.unwrap_or_default());
        let is_ready = |nic: &str| self.0.contains_key(nic) && as_before.contains(nic);
        for nic in self.0.keys().filter(|nic| !is_ready(nic)) {
            held.forget_session(nic);
        }
        let marks = old.bytes(words::MARKS)?.unwrap_or_default();
        held.leave_sessions(old.take_all(words::HELD), &marks);
        let (mut ready, mut others) = (Vec::new(), Vec::new());
        for (nic, key) in vhost_nics(controller) {
            match self.0.get(&nic).filter(|_| is_ready(&nic)) {
                Some(mark) => ready.extend(held.is_latest(&nic, *mark).then_some(key)),
                None if as_before.contains(&nic) => {
                    return Err(format!("the session of NIC '{nic}' has not come"));
                }
                None => others.extend(held.session(&nic).map(|session| (key, session))),
            }
        }
        let count = ready.len() + others.len();
        let taken = vhost.take_up(ready, others);
        taken.map_err(|failed| sentence(failed, controller))?;
        Ok(count)
    }
}

fn vhost_nics(controller: &Controller) -> impl Iterator<Item = (String, PortKey)> {
    let nics = controller.nics();
    let nics = nics.filter(|status| status.nic.kind == NicKind::VhostUser);
    nics.map(|status| (status.nic.id.to_string(), PortKey(status.slot.0)))
}

fn sentence((key, why): (PortKey, LeftError), controller: &Controller) -> String {
    let failed = vhost_nics(controller).find(|(_, other)| *other == key);
    let nic = failed.map(|(nic, _)| nic).unwrap_or_default();
    format!("the session of NIC '{nic}': {why}")
}

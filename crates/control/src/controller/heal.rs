//! What is broken is tried again: by whoever declares once more what is declared.

use super::{Controller, request};
use crate::attach::Declared;
use crate::diff::{Diff, NicDiff};
use crate::error::Error;
use crate::event::NicState;
use crate::model::{NicId, NicKind};
use crate::state::NicEntry;

/// A NIC that was broken and was tried again, or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Healed {
    /// Which.
    pub nic: NicId,
    /// What was wrong with it: a sentence.
    pub was: String,
    /// How it is now.
    pub state: NicState,
}

impl Controller {
    /// Tries again all NICs that are broken; they come sorted. To be called when `applied` has been
    /// made, or with `dry_run` when it would be: then this only says which.
    pub fn heal(&mut self, declared: Declared, applied: &Diff, dry_run: bool) -> Vec<Healed> {
        let goes = |id: &NicId| {
            let change = applied.nics.iter().find(|change| change.id == *id);
            change.is_some_and(|change| change.diff == NicDiff::Removed)
        };
        let all = self.state.nics.values();
        let broken = all.filter(|entry| is_broken(&entry.state));
        let broken = broken.filter(|entry| !goes(&entry.nic.id)).cloned();
        let mut broken: Vec<NicEntry> = broken.collect();
        broken.sort_by(|a, b| a.nic.id.cmp(&b.nic.id));
        if !dry_run {
            self.try_again(&broken, declared);
        }
        let healed = |before: NicEntry| {
            let now = self.state.nics.get(&before.nic.id);
            Healed {
                was: match before.state {
                    NicState::Broken(why) => why,
                    _ => String::new(),
                },
                state: now.map_or(NicState::Down, |now| now.state.clone()),
                nic: before.nic.id.clone(),
            }
        };
        broken.into_iter().map(healed).collect()
    }

    /// Has the state of a NIC be what it is now, and tries again to make what is broken.
    pub(super) fn heal_one(&mut self, id: &NicId, declared: Declared) -> Result<(), Error> {
        let entry = self.entry(id)?.clone();
        // What has become of a container's interface can be looked at, and of a VMM's.
        if is_broken(&entry.state) || matches!(entry.nic.kind, NicKind::Veth(_) | NicKind::VmTap(_))
        {
            self.try_again(&[entry], declared);
        }
        Ok(())
    }

    fn try_again(&mut self, entries: &[NicEntry], declared: Declared) {
        if entries.is_empty() {
            return;
        }
        self.changed.get_or_insert_default();
        let requests = entries.iter();
        let requests = requests.map(|entry| request(&self.settings, entry, declared));
        let states = self.attachments.heal(&requests.collect::<Vec<_>>());
        for (entry, state) in entries.iter().zip(states) {
            if let Some(state) = state {
                self.port_state(entry.slot, state);
            }
        }
    }
}

fn is_broken(state: &NicState) -> bool {
    matches!(state, NicState::Broken(_))
}

//! What of that which is stored and was not made is no longer so.

use super::Staged;
use crate::diff::Diff;
use crate::model::Config;
use crate::state::State;
use std::sync::Arc;

impl State {
    /// What was declared anew is made now, and what is stored no more is not to be made.
    pub(super) fn stage_unmade(&mut self, staged: &Staged) {
        if *self.unmade == Config::default() {
            return;
        }
        let unmade = Arc::make_mut(&mut self.unmade);
        for diff in [&staged.diff, &staged.forgotten] {
            leave_out(unmade, diff);
        }
    }
}

fn leave_out(unmade: &mut Config, diff: &Diff) {
    for change in &diff.nics {
        unmade.nics.remove(&change.id);
    }
    for change in &diff.groups {
        unmade.groups.remove(&change.id);
    }
    for change in &diff.hosts {
        unmade.hosts.remove(&change.address);
    }
    for change in &diff.networks {
        unmade.networks.remove(&change.vni());
    }
    for change in &diff.bindings {
        unmade.bindings.remove(&change.key);
    }
    for change in &diff.services {
        if let Some(services) = &mut unmade.services {
            services.remove(&change.key);
        }
    }
    for change in &diff.interfaces {
        if let Some(interfaces) = unmade.interfaces.get_mut(&change.feature) {
            interfaces.retain(|one| one.name != change.name);
        }
    }
    if diff.router_acl.is_some() {
        unmade.router_acl = None;
    }
}

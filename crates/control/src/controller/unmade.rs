//! What is stored and could not be made when the daemon started: it is tried again at the next
//! start, and goes by a deletion or a configuration without it, as what is there does.

use super::Controller;
use crate::model::{Config, NetworkOptions};
use crate::stage::{Change, OverlayChanges};
use std::sync::Arc;

impl Controller {
    /// Says what is stored and was not made. Its services, interfaces and access list count as none
    /// where nothing is said of them.
    pub fn set_unmade(&mut self, unmade: Config) {
        self.state.unmade = Arc::new(unmade);
    }

    /// What is stored and was not made, without what was made or taken out of the store since.
    pub fn unmade(&self) -> &Config {
        &self.state.unmade
    }

    /// Has what is picked of it be stored no more.
    pub(super) fn forget(&self, pick: impl FnOnce(&Config, &mut Config)) -> Change {
        let mut gone = Config::default();
        pick(&self.state.unmade, &mut gone);
        Change::Forget(Box::new(gone))
    }

    /// Has what this removes be stored no more.
    pub(super) fn forget_overlay(&self, changes: &OverlayChanges) -> Change {
        self.forget(|unmade, gone| {
            let hosts = unmade.hosts.iter();
            let hosts = hosts.filter(|(ip, _)| matches!(changes.hosts.get(ip), Some(None)));
            gone.hosts = hosts.map(|(ip, host)| (*ip, host.clone())).collect();
            let networks = unmade.networks.iter();
            let networks = networks.filter(|(vni, _)| {
                let options = changes.networks.get(vni);
                options.is_some_and(NetworkOptions::is_default)
            });
            gone.networks = networks.map(|(vni, one)| (*vni, one.clone())).collect();
            let bindings = unmade.bindings.iter();
            let bindings =
                bindings.filter(|(key, _)| matches!(changes.bindings.get(key), Some(None)));
            gone.bindings = bindings.map(|(key, one)| (*key, one.clone())).collect();
        })
    }

    /// Has all of it be stored no more that a configuration has not, which is to be in force.
    pub(super) fn forget_beside(&self, config: &Config) -> Change {
        self.forget(|unmade, gone| {
            *gone = unmade.clone();
            gone.nics.retain(|id, _| !config.nics.contains_key(id));
            gone.groups.retain(|id, _| !config.groups.contains_key(id));
            gone.hosts.retain(|ip, _| !config.hosts.contains_key(ip));
            gone.networks
                .retain(|vni, _| !config.networks.contains_key(vni));
            gone.bindings
                .retain(|key, _| !config.bindings.contains_key(key));
            // Parts of which nothing is said stay as they are.
            match (&mut gone.services, &config.services) {
                (Some(gone), Some(said)) => gone.retain(|key, _| !said.contains_key(key)),
                (gone, _) => *gone = None,
            }
            gone.interfaces
                .retain(|feature, _| config.interfaces.contains_key(feature));
            for (feature, gone) in &mut gone.interfaces {
                let said = config.interfaces.get(feature).into_iter().flatten();
                let said: Vec<&str> = said.map(|one| one.name.as_str()).collect();
                gone.retain(|one| !said.contains(&one.name.as_str()));
            }
            if !matches!(config.router_acl, Some(None)) {
                gone.router_acl = None;
            }
        })
    }
}

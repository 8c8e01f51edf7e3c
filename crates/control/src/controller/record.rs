//! An operation as its journal is told of it: each object of the model that differs, before and
//! after.

use crate::diff::Diff;
use crate::journal::{Author, BeforeAfter, Change, ObjectChange};
use crate::model::{Nic, NicId};
use crate::state::State;
use std::sync::Arc;

/// All that differs between the state and the next one.
pub(super) fn change(
    author: Author,
    of_part: bool,
    state: &State,
    next: &State,
    diff: &Diff,
) -> Change {
    let nic = |state: &State, id: &NicId| -> Option<Arc<Nic>> {
        state.nics.get(id).map(|entry| entry.nic.clone())
    };
    let Diff {
        nics,
        groups,
        hosts,
        networks,
        bindings,
        services,
        interfaces,
        router_acl,
    } = diff;
    let groups = groups.iter().map(|change| {
        let group = |state: &State| state.group(&change.id).cloned();
        ObjectChange::Group(
            change.id.clone(),
            BeforeAfter::new(group(state), group(next)),
        )
    });
    let nics = nics.iter().map(|change| {
        let id = &change.id;
        ObjectChange::Nic(id.clone(), BeforeAfter::new(nic(state, id), nic(next, id)))
    });
    let hosts = hosts.iter().map(|change| {
        let both = BeforeAfter::new(change.from.clone(), change.to.clone());
        ObjectChange::Host(change.address, both)
    });
    let networks = networks.iter().map(|change| {
        let both = BeforeAfter::new(Some(change.from.clone()), Some(change.to.clone()));
        ObjectChange::Network(change.vni(), both)
    });
    let bindings = bindings.iter().map(|change| {
        let both = BeforeAfter::new(change.from.clone(), change.to.clone());
        ObjectChange::Binding(change.key, both)
    });
    let services = services.iter().map(|change| {
        let both = BeforeAfter::new(change.from.clone(), change.to.clone());
        ObjectChange::Service(change.key, both)
    });
    let interfaces = interfaces.iter().map(|change| {
        let both = BeforeAfter::new(change.from.clone(), change.to.clone());
        ObjectChange::Interface(change.feature, change.name.clone(), both)
    });
    let router_acl = router_acl.iter().map(|change| {
        let both = BeforeAfter::new(change.from.clone(), change.to.clone());
        ObjectChange::RouterAcl(both)
    });
    let objects = groups
        .chain(nics)
        .chain(hosts)
        .chain(networks)
        .chain(bindings)
        .chain(services)
        .chain(interfaces)
        .chain(router_acl);
    Change {
        author,
        of_part,
        objects: objects.collect(),
        unmade: state.unmade.clone(),
    }
}

//! What differs between two configurations, without a controller that has either.

use super::{
    AclChange, BindingChange, Diff, GroupChange, HostChange, NetworkChange, NicChange, NicDiff,
    group_diff, interfaces, nic_fields, services,
};
use crate::model::{Config, Feature, NetworkOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Diff {
    /// What has to be done to one to make it the other. Parts that one of them does not speak of
    /// count as empty.
    pub fn between(from: &Config, to: &Config) -> Diff {
        let nics = keys(&from.nics, &to.nics).into_iter().filter_map(|id| {
            let diff = match (from.nics.get(id), to.nics.get(id)) {
                (_, None) => NicDiff::Removed,
                (None, Some(to)) => NicDiff::Added(Arc::new(to.clone())),
                (Some(from), Some(to)) => NicDiff::Changed(nic_fields(from, to)),
            };
            let id = id.clone();
            (diff != NicDiff::Changed(Vec::new())).then_some(NicChange { id, diff })
        });
        let groups = keys(&from.groups, &to.groups).into_iter();
        let groups = groups.filter_map(|id| {
            let diff = group_diff(from.groups.get(id), to.groups.get(id))?;
            let id = id.clone();
            Some(GroupChange { id, diff })
        });
        let hosts = keys(&from.hosts, &to.hosts).into_iter();
        let hosts = hosts.map(|address| HostChange {
            address: *address,
            from: from.hosts.get(address).cloned().map(Arc::new),
            to: to.hosts.get(address).cloned().map(Arc::new),
        });
        let networks = keys(&from.networks, &to.networks).into_iter().map(|vni| {
            let said = |config: &Config| config.networks.get(vni).cloned();
            let nothing = || NetworkOptions::new(*vni);
            NetworkChange {
                from: said(from).unwrap_or_else(nothing),
                to: said(to).unwrap_or_else(nothing),
            }
        });
        let bindings = keys(&from.bindings, &to.bindings).into_iter();
        let bindings = bindings.map(|key| BindingChange {
            key: *key,
            from: from.bindings.get(key).cloned(),
            to: to.bindings.get(key).cloned(),
        });
        let none = Default::default();
        let of = |config: &Config, feature| config.interfaces.get(&feature).cloned();
        Diff {
            nics: nics.collect(),
            groups: groups.collect(),
            hosts: hosts.filter(|it| it.from != it.to).collect(),
            networks: networks.filter(|it| it.from != it.to).collect(),
            bindings: bindings.filter(|it| it.from != it.to).collect(),
            services: services(
                from.services.as_ref().unwrap_or(&none),
                to.services.as_ref().unwrap_or(&none),
            ),
            interfaces: Feature::ALL
                .into_iter()
                .flat_map(|feature| {
                    let lists = [from, to].map(|config| of(config, feature).unwrap_or_default());
                    interfaces(feature, &lists[0], &lists[1])
                })
                .collect(),
            router_acl: AclChange::between(
                from.router_acl.as_ref().unwrap_or(&None),
                to.router_acl.as_ref().unwrap_or(&None),
            ),
        }
    }
}

fn keys<'a, K: Ord, V>(from: &'a BTreeMap<K, V>, to: &'a BTreeMap<K, V>) -> BTreeSet<&'a K> {
    from.keys().chain(to.keys()).collect()
}

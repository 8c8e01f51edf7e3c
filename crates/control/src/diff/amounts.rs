//! How much there is, and how much of it an operation takes away: for who asks before a slip does.

use super::{Diff, GroupDiff, NicDiff};
use crate::model::{Feature, NetworkOptions};

/// How many there are, or go, of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amounts {
    /// NICs.
    pub nics: usize,
    /// Groups.
    pub groups: usize,
    /// Rules of all groups; that go: of those that stay, by how many each has less.
    pub rules: usize,
    /// Members of groups, as rules.
    pub members: usize,
    /// Other hosts.
    pub hosts: usize,
    /// VNIs of which anything is said.
    pub networks: usize,
    /// Bindings.
    pub bindings: usize,
    /// Services.
    pub services: usize,
    /// Servers of services, as rules.
    pub servers: usize,
    /// Interfaces that services are balanced on.
    pub balancer_interfaces: usize,
    /// Interfaces of the router's.
    pub router_interfaces: usize,
    /// Uplinks that are named.
    pub uplinks: usize,
    /// Access lists of the router's: one at the most.
    pub router_acls: usize,
    /// Its rules; that go: by how many there are less.
    pub router_acl_rules: usize,
}

impl Diff {
    /// What goes.
    pub fn deleted(&self) -> Amounts {
        let stay = || {
            let groups = self.groups.iter().map(|group| &group.diff);
            groups.filter(|group| !group.added && !group.removed)
        };
        let fewer_rules =
            |group: &GroupDiff| less(group.rules_removed.len(), group.rules_added.len());
        let fewer_members =
            |group: &GroupDiff| less(group.members_removed.len(), group.members_added.len());
        let servers = self.services.iter().filter_map(|change| {
            let (from, to) = (change.from.as_ref()?, change.to.as_ref()?);
            Some(less(from.servers.len(), to.servers.len()))
        });
        let said = |options: &NetworkOptions| *options != NetworkOptions::new(options.vni);
        let interfaces = |feature: Feature| {
            let its = self.interfaces.iter();
            its.filter(|change| change.feature == feature && change.to.is_none())
                .count()
        };
        let acl = self.router_acl.as_ref();
        Amounts {
            nics: count(&self.nics, |nic| nic.diff == NicDiff::Removed),
            groups: count(&self.groups, |group| group.diff.removed),
            rules: stay().map(fewer_rules).sum(),
            members: stay().map(fewer_members).sum(),
            hosts: count(&self.hosts, |host| host.to.is_none()),
            networks: count(&self.networks, |network| {
                said(&network.from) && !said(&network.to)
            }),
            bindings: count(&self.bindings, |binding| binding.to.is_none()),
            services: count(&self.services, |service| service.to.is_none()),
            servers: servers.sum(),
            balancer_interfaces: interfaces(Feature::Balancer),
            router_interfaces: interfaces(Feature::Router),
            uplinks: interfaces(Feature::Uplink),
            router_acls: acl.filter(|acl| acl.to.is_none()).iter().count(),
            router_acl_rules: acl.map_or(0, |acl| {
                let [from, to] = [&acl.from, &acl.to]
                    .map(|list| list.as_ref().map_or(0, |list| list.rules.len()));
                less(from, to)
            }),
        }
    }
}

fn count<T>(changes: &[T], goes: impl Fn(&T) -> bool) -> usize {
    changes.iter().filter(|change| goes(change)).count()
}

/// By how much it is less.
fn less(from: usize, to: usize) -> usize {
    from.saturating_sub(to)
}

//! A security group and the whole declared configuration.

use super::{
    AccessList, Binding, BindingKey, DeclaredServices, Feature, GroupId, Host, Interfaces,
    NetworkOptions, Nic, NicId, Rule,
};
use crate::error::{Error, quota};
use crate::limits;
use dataplane::snapshot::UnknownTcp;
use imbl::Vector;
use indexmap::IndexSet;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use wire::Vni;

/// What happens to running flows when the rule that allowed them goes away (security-groups.md 9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Removal {
    /// They stop at once, unless another rule allows them: as the original and Neutron.
    #[default]
    Cut,
    /// They live until they close or time out: as EC2.
    Drain,
}

/// A security group: rules that allow, and members that rules of other groups stand for.
#[derive(Clone, Eq, Debug)]
pub struct Group {
    /// Its id.
    pub id: GroupId,
    /// Addresses listed by hand. Those of the group's NICs count besides; a group stands for its
    /// members in every VNI alike.
    pub members: IndexSet<IpAddr>,
    /// No two the same. Their order, and that of members, means nothing to packets and is given
    /// back as written: a configuration that differs in it alone is a change.
    pub rules: Vector<Rule>,
    /// What happens to flows when their rule goes away. Default: cut.
    pub removal: Removal,
    /// A TCP flow may start without a SYN. Default: no.
    pub allow_midstream: bool,
    /// TCP amid an unknown flow is dropped in silence and not answered by a reset. Default: no.
    pub silent_midstream: bool,
}

/// The order of members and rules counts.
impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        let Group {
            id,
            members,
            rules,
            removal,
            allow_midstream,
            silent_midstream,
        } = self;
        *id == other.id
            && members.iter().eq(&other.members)
            && *rules == other.rules
            && *removal == other.removal
            && *allow_midstream == other.allow_midstream
            && *silent_midstream == other.silent_midstream
    }
}

impl Group {
    /// An empty group: allows nothing and stands for nobody.
    pub fn new(id: GroupId) -> Group {
        Group {
            id,
            members: IndexSet::new(),
            rules: Vector::new(),
            removal: Removal::Cut,
            allow_midstream: false,
            silent_midstream: false,
        }
    }

    /// What becomes of TCP that it lets pass and that is amid an unknown flow.
    pub(crate) fn unknown_tcp(&self) -> UnknownTcp {
        match (self.allow_midstream, self.silent_midstream) {
            (true, _) => UnknownTcp::Adopt,
            (false, true) => UnknownTcp::Drop,
            (false, false) => UnknownTcp::Reset,
        }
    }

    /// Drops repeated rules; fails above the maxima of rules and members.
    pub(crate) fn normalised(mut self) -> Result<Group, Error> {
        let mut seen = HashSet::with_capacity(self.rules.len());
        let kept: Vec<bool> = self.rules.iter().map(|rule| seen.insert(rule)).collect();
        if kept.contains(&false) {
            let mut kept = kept.into_iter();
            self.rules.retain(|_| kept.next().unwrap_or(true));
        }
        self.check_sizes()?;
        Ok(self)
    }

    /// Fails above the maxima of rules and members.
    pub(crate) fn check_sizes(&self) -> Result<(), Error> {
        check_sizes(&self.id, self.members.len(), self.rules.len())
    }
}

/// Fails where a group would have more members or rules than it may, which costs less to ask before
/// each is looked at.
pub fn check_sizes(group: &GroupId, members: usize, rules: usize) -> Result<(), Error> {
    let owner = || format!("group '{group}'");
    quota(owner(), "members", members, limits::MEMBERS_PER_GROUP)?;
    quota(owner(), "rules", rules, limits::RULES_PER_GROUP)
}

/// Everything that is declared: what [`apply`](crate::Controller::apply) takes and
/// [`config`](crate::Controller::config) gives back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// NICs by id.
    pub nics: BTreeMap<NicId, Nic>,
    /// Groups by id.
    pub groups: BTreeMap<GroupId, Group>,
    /// Other hosts by address.
    pub hosts: BTreeMap<IpAddr, Host>,
    /// What is said of VNIs.
    pub networks: BTreeMap<Vni, NetworkOptions>,
    /// What is behind other hosts, by VNI and MAC.
    pub bindings: BTreeMap<BindingKey, Binding>,
    /// The load balancer's services by key; `None`: they stay as they are.
    pub services: Option<DeclaredServices>,
    /// The interfaces that features work on; of a feature that is not named they stay.
    pub interfaces: Interfaces,
    /// What the router judges packets by, `Some(None)`: by nothing declared here; `None`: it stays
    /// as it is.
    pub router_acl: Option<Option<Arc<AccessList>>>,
}

impl Config {
    /// All parts, with nothing in them. The default leaves services, interfaces and the access
    /// list as they are.
    pub fn empty() -> Config {
        Config {
            services: Some(DeclaredServices::new()),
            interfaces: Feature::ALL.map(|feature| (feature, vec![])).into(),
            router_acl: Some(None),
            ..Config::default()
        }
    }
}

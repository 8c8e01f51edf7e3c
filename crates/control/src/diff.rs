//! What an operation changes, structured and as text that a person reads:
//!
//! ```text
//! + nic vnic_2: mac 52:54:00:12:34:02, vni 42, ip 42.0.0.2, groups web
//! ~ nic vnic_1: ip 42.0.0.1 -> 42.0.0.3
//! ~ group web:
//!     + rule ingress tcp 80 from anybody
//!     - member 42.0.0.9
//! - group old
//! ```

mod acl;
mod amounts;
mod between;
mod overlay;
mod services;

pub use acl::AclChange;
pub use amounts::Amounts;
pub use overlay::{BindingChange, HostChange, NetworkChange};
pub use services::{InterfaceChange, ServiceChange};
pub(crate) use services::{interfaces, services};

use crate::model::{Group, GroupId, Nic, NicId, NicKind, Rule, Veth, VhostMode, limits};
use imbl::Vector;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::sync::Arc;

/// What an operation changes; empty when everything is so already.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// By NIC, sorted by id.
    pub nics: Vec<NicChange>,
    /// By group, sorted by id.
    pub groups: Vec<GroupChange>,
    /// By host, sorted by address.
    pub hosts: Vec<HostChange>,
    /// By VNI, sorted.
    pub networks: Vec<NetworkChange>,
    /// By binding, sorted by VNI and MAC.
    pub bindings: Vec<BindingChange>,
    /// By service, sorted by key.
    pub services: Vec<ServiceChange>,
    /// By feature; those that go, then the others in their order.
    pub interfaces: Vec<InterfaceChange>,
    /// Of the router.
    pub router_acl: Option<AclChange>,
}

/// What changes about one NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicChange {
    /// Which one.
    pub id: NicId,
    /// How.
    pub diff: NicDiff,
}

/// How a NIC changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NicDiff {
    /// It was not there.
    Added(Arc<Nic>),
    /// It goes.
    Removed,
    /// Other values; at least one.
    Changed(Vec<FieldChange>),
}

/// One value that changes, as text. Lists are joined by commas, and an id with one is in quotes;
/// nothing is the empty text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldChange {
    /// The field's name in the v1 API.
    pub field: Cow<'static, str>,
    /// Before.
    pub from: String,
    /// After.
    pub to: String,
}

/// What changes about one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupChange {
    /// Which one.
    pub id: GroupId,
    /// How.
    pub diff: GroupDiff,
}

/// How a group changes. When it is added or removed, its rules and members are listed as such too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupDiff {
    /// It was not there.
    pub added: bool,
    /// It goes.
    pub removed: bool,
    /// Rules that come, in the order given.
    pub rules_added: Vec<Rule>,
    /// Rules that go.
    pub rules_removed: Vec<Rule>,
    /// Members that come.
    pub members_added: Vec<IpAddr>,
    /// Members that go.
    pub members_removed: Vec<IpAddr>,
    /// Rules or members come to stand in another order than that of those that stay and, behind
    /// them, those that come. Packets do not notice.
    pub reordered: bool,
    /// Other values.
    pub fields: Vec<FieldChange>,
}

impl Diff {
    /// True when there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let Diff {
            nics,
            groups,
            hosts,
            networks,
            bindings,
            services,
            interfaces,
            router_acl,
        } = self;
        nics.is_empty()
            && groups.is_empty()
            && hosts.is_empty()
            && networks.is_empty()
            && bindings.is_empty()
            && services.is_empty()
            && interfaces.is_empty()
            && router_acl.is_none()
    }

    /// With the changes of another one, of other things.
    pub(crate) fn and(mut self, other: Diff) -> Diff {
        self.nics.extend(other.nics);
        self.nics.sort_by(|a, b| a.id.cmp(&b.id));
        self.groups.extend(other.groups);
        self.groups.sort_by(|a, b| a.id.cmp(&b.id));
        self.hosts.extend(other.hosts);
        self.hosts.sort_by_key(|change| change.address);
        self.networks.extend(other.networks);
        self.networks.sort_by_key(NetworkChange::vni);
        self.bindings.extend(other.bindings);
        self.bindings.sort_by_key(|change| change.key);
        self.services.extend(other.services);
        self.services.sort_by_key(|change| change.key);
        self.interfaces.extend(other.interfaces);
        self.router_acl = self.router_acl.or(other.router_acl);
        self
    }
}

/// The values in which two NICs of one id differ: at least one, unless they are equal.
pub(crate) fn nic_fields(from: &Nic, to: &Nic) -> Vec<FieldChange> {
    if from == to {
        return Vec::new();
    }
    let before = described(from);
    let after = described(to);
    let changed = before
        .into_iter()
        .zip(after)
        .filter(|((_, from), (_, to))| from != to);
    let mut changed: Vec<FieldChange> = changed
        .map(|((field, from), (_, to))| FieldChange {
            field: field.into(),
            from,
            to,
        })
        .collect();
    // Values that read alike differ all the same.
    if changed.is_empty() {
        changed.push(FieldChange {
            field: "nic".into(),
            from: format!("{from:?}"),
            to: format!("{to:?}"),
        });
    }
    changed
}

/// Every field of a NIC as text, in a fixed order.
fn described(nic: &Nic) -> Vec<(&'static str, String)> {
    // Taken apart so that a field that is added and not listed here does not compile.
    let Nic {
        id: _,
        mac: _,
        mac_case: _,
        vni,
        ips,
        security_groups,
        anti_spoof,
        allowed_address_pairs,
        sniff_target,
        sniff_vni,
        bypass_filtering,
        kind,
        vhost_mode,
        socket,
        path,
        packet_trace,
        packet_trace_path,
        mirror,
        sflow_rate,
        timeouts,
        allow_dhcp_server,
        allow_router_advertisements,
        learn_macs,
        mtu,
        link_down,
        limit_out,
        limit_in,
        lenient,
        shared,
    } = nic;
    let kind = match kind {
        NicKind::VhostUser if *vhost_mode == VhostMode::Client => "vhost-user client".to_owned(),
        NicKind::VhostUser => "vhost-user".to_owned(),
        NicKind::Tap => "tap".to_owned(),
        NicKind::Bench(bench) => format!("bench {bench:?}"),
        NicKind::Veth(_) => "veth".to_owned(),
        NicKind::VmTap(tap) => format!("vm-tap of {tap}"),
    };
    let of_veth = |field: fn(&Veth) -> String| match &nic.kind {
        NicKind::Veth(veth) => field(veth),
        _ => String::new(),
    };
    let pairs = allowed_address_pairs.iter().map(|pair| match pair.mac {
        Some(mac) => format!("{} {mac}", pair.net),
        None => pair.net.to_string(),
    });
    vec![
        ("mac", nic.mac_text()),
        ("vni", vni.to_string()),
        ("ip", joined(ips)),
        ("security_groups", group_ids(security_groups)),
        ("anti_spoof", anti_spoof.to_string()),
        ("allowed_address_pairs", joined(pairs)),
        ("sniff_target", optional(sniff_target)),
        ("sniff_vni", optional(sniff_vni)),
        ("bypass_filtering", bypass_filtering.to_string()),
        ("kind", kind),
        ("path", optional(path)),
        ("socket_owner", optional(&socket.owner)),
        ("socket_group", optional(&socket.group)),
        ("socket_mode", optional(&socket.mode_text())),
        ("packet_trace", packet_trace.to_string()),
        ("packet_trace_path", optional(packet_trace_path)),
        ("mirror", optional(mirror)),
        ("sflow_rate", optional(sflow_rate)),
        (
            "tcp_established_secs",
            timeouts.tcp_established_secs.to_string(),
        ),
        ("udp_secs", timeouts.udp_secs.to_string()),
        ("udp_stream_secs", timeouts.udp_stream_secs.to_string()),
        ("allow_dhcp_server", allow_dhcp_server.to_string()),
        (
            "allow_router_advertisements",
            allow_router_advertisements.to_string(),
        ),
        ("learn_macs", learn_macs.to_string()),
        ("mtu", optional(mtu)),
        ("lenient", lenient.to_string()),
        ("shared", shared.to_string()),
        ("netns", of_veth(|veth| veth.netns.clone())),
        ("ifname", of_veth(|veth| veth.ifname.clone())),
        ("subnets", of_veth(|veth| joined(&veth.subnets))),
        ("gateways", of_veth(|veth| joined(&veth.gateways))),
        ("routes", of_veth(|veth| joined(&veth.routes))),
        ("limit_out", limits::text(limit_out)),
        ("limit_in", limits::text(limit_in)),
        ("link", if *link_down { "down" } else { "up" }.to_owned()),
    ]
}

fn joined<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    values
        .into_iter()
        .map(|value| value.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// Ids as a text that no other ids have: those in which a comma would end them are in quotes.
fn group_ids(ids: &[GroupId]) -> String {
    joined(ids.iter().map(|id| match id.as_str() {
        text if text.contains([',', '"']) => format!("{text:?}"),
        text => text.to_owned(),
    }))
}

fn optional<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map(T::to_string).unwrap_or_default()
}

/// How a group differs, `None` when it does not. Either side may be missing, not both.
pub(crate) fn group_diff(from: Option<&Group>, to: Option<&Group>) -> Option<GroupDiff> {
    let id = to.or(from)?.id.clone();
    let (added, removed) = (from.is_none(), to.is_none());
    let empty = Group::new(id);
    let (from, to) = (from.unwrap_or(&empty), to.unwrap_or(&empty));
    let (rules_removed, rules_added) = rules(&from.rules, &to.rules);
    let mut fields = Vec::new();
    let mut field = |field: &'static str, from: String, to: String| {
        if from != to {
            fields.push(FieldChange {
                field: field.into(),
                from,
                to,
            });
        }
    };
    field(
        "removal",
        format!("{:?}", from.removal),
        format!("{:?}", to.removal),
    );
    field(
        "allow_midstream",
        from.allow_midstream.to_string(),
        to.allow_midstream.to_string(),
    );
    field(
        "silent_midstream",
        from.silent_midstream.to_string(),
        to.silent_midstream.to_string(),
    );
    let members_added: Vec<IpAddr> = to.members.difference(&from.members).copied().collect();
    let members_removed = from.members.difference(&to.members).copied().collect();
    let staying = from.members.iter().filter(|ip| to.members.contains(*ip));
    let members_in_order = staying.chain(&members_added).eq(&to.members);
    let gone: HashSet<&Rule> = rules_removed.iter().collect();
    let staying = from
        .rules
        .iter()
        .filter(|rule| gone.is_empty() || !gone.contains(rule));
    let rules_in_order = staying.chain(&rules_added).eq(&to.rules);
    let diff = GroupDiff {
        added,
        removed,
        rules_added,
        rules_removed,
        members_added,
        members_removed,
        reordered: !(rules_in_order && members_in_order),
        fields,
    };
    let same = GroupDiff::default();
    if diff == same { None } else { Some(diff) }
}

/// Rules that go and rules that come. What both lists begin and end with is skipped, so that one
/// rule more or less among ten thousand costs a comparison and no hashing.
fn rules(from: &Vector<Rule>, to: &Vector<Rule>) -> (Vec<Rule>, Vec<Rule>) {
    let (from, to): (Vec<&Rule>, Vec<&Rule>) = (from.iter().collect(), to.iter().collect());
    let head = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let (from, to) = (&from[head..], &to[head..]);
    let tail = from
        .iter()
        .rev()
        .zip(to.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (from, to) = (&from[..from.len() - tail], &to[..to.len() - tail]);
    let missing = |these: &[&Rule], there: &[&Rule]| {
        let there: HashSet<&Rule> = there.iter().copied().collect();
        let missing = these.iter().filter(|rule| !there.contains(**rule));
        missing.map(|rule| (*rule).clone()).collect()
    };
    (missing(from, to), missing(to, from))
}

impl Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for NicChange { id, diff } in &self.nics {
            match diff {
                NicDiff::Added(nic) => {
                    write!(f, "+ nic {id}: mac {}, vni {}", nic.mac_text(), nic.vni)?;
                    if !nic.ips.is_empty() {
                        write!(f, ", ip {}", joined(&nic.ips))?;
                    }
                    if !nic.security_groups.is_empty() {
                        write!(f, ", groups {}", group_ids(&nic.security_groups))?;
                    }
                    writeln!(f)?;
                }
                NicDiff::Removed => writeln!(f, "- nic {id}")?,
                NicDiff::Changed(fields) => {
                    for FieldChange { field, from, to } in fields {
                        writeln!(f, "~ nic {id}: {field} {} -> {}", shown(from), shown(to))?;
                    }
                }
            }
        }
        for GroupChange { id, diff } in &self.groups {
            if diff.removed {
                writeln!(f, "- group {id}")?;
                continue;
            }
            writeln!(f, "{} group {id}:", if diff.added { '+' } else { '~' })?;
            diff.rules_added
                .iter()
                .try_for_each(|rule| writeln!(f, "    + rule {rule}"))?;
            diff.rules_removed
                .iter()
                .try_for_each(|rule| writeln!(f, "    - rule {rule}"))?;
            diff.members_added
                .iter()
                .try_for_each(|ip| writeln!(f, "    + member {ip}"))?;
            diff.members_removed
                .iter()
                .try_for_each(|ip| writeln!(f, "    - member {ip}"))?;
            if diff.reordered {
                writeln!(f, "    ~ order of rules or members")?;
            }
            for FieldChange { field, from, to } in &diff.fields {
                writeln!(f, "    ~ {field} {} -> {}", shown(from), shown(to))?;
            }
        }
        self.hosts.iter().try_for_each(|change| change.fmt(f))?;
        self.networks.iter().try_for_each(|change| change.fmt(f))?;
        self.bindings.iter().try_for_each(|change| change.fmt(f))?;
        self.services.iter().try_for_each(|change| change.fmt(f))?;
        self.interfaces
            .iter()
            .try_for_each(|change| change.fmt(f))?;
        self.router_acl.iter().try_for_each(|change| change.fmt(f))
    }
}

fn shown(text: &str) -> &str {
    if text.is_empty() { "(none)" } else { text }
}

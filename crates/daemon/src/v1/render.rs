//! The model to v1 messages.

mod overlay;

pub use overlay::{
    binding, binding_key, bindings_response, host_status, learned, network, network_status,
};

use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use control::model::{
    AccessList, BenchKind, Config, Direction, Feature, Group, GroupId, Interface, Limit, Limits,
    Mirror, MirrorKind, Nic, NicId, NicKind, Peer, Removal, Rule, RuleMatch, Veth, VhostMode,
};
use control::{Amounts, Diff, FieldChange, GroupDiff, Healed, NicDiff, NicState, NicStatus};

use crate::{balancer, router};

/// A NIC as declared.
pub fn nic(nic: &Nic) -> v1::Nic {
    let (kind, bench) = match &nic.kind {
        NicKind::VhostUser => (v1::NicKind::VhostUser, None),
        NicKind::Tap => (v1::NicKind::Tap, None),
        NicKind::Bench(bench) => (v1::NicKind::Bench, Some(self::bench(bench))),
        NicKind::Veth(_) => (v1::NicKind::Veth, None),
        NicKind::VmTap(_) => (v1::NicKind::VmTap, None),
    };
    let vm_tap = match &nic.kind {
        NicKind::VmTap(tap) => Some(v1::VmTap {
            uid: tap.uid,
            gid: tap.gid,
            multi_queue: tap.multi_queue,
        }),
        _ => None,
    };
    let veth = match &nic.kind {
        NicKind::Veth(veth) => Some(self::veth(veth)),
        _ => None,
    };
    v1::Nic {
        id: nic.id.to_string(),
        mac: nic.mac_text(),
        vni: nic.vni.id(),
        addresses: nic.ips.iter().map(IpAddr::to_string).collect(),
        security_groups: nic.security_groups.iter().map(GroupId::to_string).collect(),
        anti_spoof: Some(nic.anti_spoof),
        allowed_address_pairs: nic
            .allowed_address_pairs
            .iter()
            .map(|pair| v1::AddressPair {
                net: pair.net.to_string(),
                mac: pair.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            })
            .collect(),
        sniff_target: nic
            .sniff_target
            .as_ref()
            .map(NicId::to_string)
            .unwrap_or_default(),
        sniff_vni: nic.sniff_vni.map(wire::Vni::id),
        bypass_filtering: nic.bypass_filtering,
        kind: kind.into(),
        bench,
        path: nic.path.clone().unwrap_or_default(),
        packet_trace: Some(nic.packet_trace),
        packet_trace_path: nic.packet_trace_path.clone().unwrap_or_default(),
        timeouts: Some(v1::Timeouts {
            tcp_established_secs: nic.timeouts.tcp_established_secs,
            udp_secs: nic.timeouts.udp_secs,
            udp_stream_secs: nic.timeouts.udp_stream_secs,
        }),
        allow_dhcp_server: nic.allow_dhcp_server,
        allow_router_advertisements: nic.allow_router_advertisements,
        learn_macs: nic.learn_macs,
        link_down: nic.link_down,
        lenient: nic.lenient,
        shared: nic.shared,
        veth,
        vm_tap,
        limit_out: limits(&nic.limit_out),
        limit_in: limits(&nic.limit_in),
        mirror: nic.mirror.as_ref().map(mirror),
        sflow_rate: nic.sflow_rate,
        socket_owner: nic.socket.owner.clone().unwrap_or_default(),
        socket_group: nic.socket.group.clone().unwrap_or_default(),
        socket_mode: nic.socket.mode_text().unwrap_or_default(),
        mtu: nic.mtu.unwrap_or_default().into(),
        vhost_mode: match nic.vhost_mode {
            VhostMode::Server => v1::VhostMode::Unspecified,
            VhostMode::Client => v1::VhostMode::Client,
        }
        .into(),
    }
}

fn mirror(mirror: &Mirror) -> v1::Mirror {
    let (kind, port, id) = match mirror.kind {
        MirrorKind::Vxlan { port, vni } => (
            v1::mirror::Kind::Vxlan,
            u32::from(port),
            vni.map_or(0, wire::Vni::id),
        ),
        MirrorKind::Erspan { session } => (v1::mirror::Kind::Erspan, 0, session.into()),
    };
    v1::Mirror {
        kind: kind.into(),
        address: mirror.address.to_string(),
        port,
        id,
        direction: match mirror.direction {
            None => v1::Direction::Unspecified,
            Some(Direction::Ingress) => v1::Direction::Ingress,
            Some(Direction::Egress) => v1::Direction::Egress,
        }
        .into(),
        snap_len: mirror.snap_len.unwrap_or_default(),
    }
}

fn veth(veth: &Veth) -> v1::Veth {
    let route = |route: &control::model::VethRoute| v1::VethRoute {
        to: route.to.to_string(),
        via: route.via.map(|via| via.to_string()).unwrap_or_default(),
    };
    v1::Veth {
        netns: veth.netns.clone(),
        ifname: veth.ifname.clone(),
        subnets: veth.subnets.iter().map(ToString::to_string).collect(),
        gateways: veth.gateways.iter().map(IpAddr::to_string).collect(),
        routes: veth.routes.iter().map(route).collect(),
    }
}

/// `None` where there is none.
fn limits(limits: &Limits) -> Option<v1::Limits> {
    let one = |limit: Option<Limit>| {
        limit.map(|limit| v1::Limit {
            rate: limit.rate,
            burst: limit.burst,
        })
    };
    (!limits.is_empty()).then(|| v1::Limits {
        bits: one(limits.bits),
        packets: one(limits.packets),
        connections: one(limits.connections),
        floods: one(limits.floods),
    })
}

fn bench(bench: &BenchKind) -> v1::Bench {
    match bench {
        BenchKind::Send { ip, mac } => v1::Bench {
            role: v1::bench::Role::IcmpSender.into(),
            target_ip: ip.to_string(),
            target_mac: mac.to_string(),
        },
        BenchKind::Receive => v1::Bench {
            role: v1::bench::Role::IcmpReceiver.into(),
            ..Default::default()
        },
    }
}

/// A NIC and what it is attached to.
pub fn nic_status(status: &NicStatus) -> v1::NicStatus {
    let (state, detail) = port_state(&status.state);
    v1::NicStatus {
        nic: Some(nic(&status.nic)),
        path: status.path.clone(),
        state: state.into(),
        detail,
        packet_trace_path: status.trace_path.clone(),
        mtu: status.mtu.into(),
        missing_security_groups: status
            .missing_groups
            .iter()
            .map(GroupId::to_string)
            .collect(),
        sniff_target_elsewhere: status.target_elsewhere,
    }
}

/// Where a port stands, and the sentence that goes with it.
pub fn port_state(state: &NicState) -> (v1::PortState, String) {
    match state {
        NicState::Down => (v1::PortState::Down, String::new()),
        NicState::Up => (v1::PortState::Up, String::new()),
        NicState::Broken(why) => (v1::PortState::Broken, why.clone()),
    }
}

/// A NIC that was tried again.
pub fn healed(healed: &Healed) -> v1::Healed {
    let (state, detail) = port_state(&healed.state);
    v1::Healed {
        nic: healed.nic.to_string(),
        was: healed.was.clone(),
        state: state.into(),
        detail,
    }
}

/// A group, whole.
pub fn group(group: &Group) -> v1::Group {
    v1::Group {
        id: group.id.to_string(),
        members: group.members.iter().map(IpAddr::to_string).collect(),
        rules: group.rules.iter().map(rule).collect(),
        removal: match group.removal {
            Removal::Cut => v1::Removal::Cut,
            Removal::Drain => v1::Removal::Drain,
        }
        .into(),
        allow_midstream: group.allow_midstream,
        silent_midstream: group.silent_midstream,
    }
}

/// A rule in its normal form.
pub fn rule(rule: &Rule) -> v1::Rule {
    v1::Rule {
        direction: match rule.direction() {
            Direction::Ingress => v1::Direction::Ingress,
            Direction::Egress => v1::Direction::Egress,
        }
        .into(),
        protocol: rule.protocol().map(u32::from),
        r#match: match rule.matching() {
            RuleMatch::Any => None,
            RuleMatch::Ports(ports) => Some(v1::rule::Match::Ports(v1::PortRange {
                start: ports.start.into(),
                end: ports.end.into(),
            })),
            RuleMatch::Icmp(icmp) => Some(v1::rule::Match::Icmp(v1::IcmpMatch {
                r#type: icmp.kind.map(u32::from),
                code: icmp.code.map(u32::from),
            })),
        },
        peer: match rule.peer() {
            Peer::Any => None,
            Peer::Net(net) => Some(v1::rule::Peer::Cidr(net.to_string())),
            Peer::Group(group) => Some(v1::rule::Peer::Group(group.to_string())),
        },
    }
}

/// The configuration, sorted.
pub fn config(config: &Config) -> v1::Config {
    v1::Config {
        nics: config.nics.values().map(nic).collect(),
        groups: config.groups.values().map(group).collect(),
        endpoints: config.hosts.values().map(overlay::host).collect(),
        networks: config.networks.values().map(network).collect(),
        bindings: config.bindings.values().map(binding).collect(),
        balancer: config.services.as_ref().map(|services| {
            let interfaces = config.interfaces.get(&Feature::Balancer);
            balancer::render::config(services, interfaces.map_or(&[][..], Vec::as_slice))
        }),
        router: router(
            config.interfaces.get(&Feature::Router),
            config.router_acl.as_ref(),
        ),
        uplinks: config.interfaces.get(&Feature::Uplink).map(|interfaces| {
            let names = interfaces.iter().map(|one| one.name.clone());
            v1::UplinkConfig {
                interfaces: names.collect(),
            }
        }),
    }
}

/// The router's part, if anything is said of it.
fn router(
    interfaces: Option<&Vec<Interface>>,
    acl: Option<&Option<Arc<AccessList>>>,
) -> Option<v1::RouterConfig> {
    let said = interfaces.is_some() || acl.is_some();
    let interfaces = interfaces.into_iter().flatten();
    let acl = acl.into_iter().flatten().next();
    said.then(|| v1::RouterConfig {
        interfaces: interfaces.map(router::render::declared).collect(),
        acl: acl.map(|list| router::render::acl(list)),
    })
}

/// How many there are, or go, of each kind.
pub fn amounts(amounts: &Amounts) -> v1::Amounts {
    v1::Amounts {
        nics: amounts.nics as u64,
        groups: amounts.groups as u64,
        rules: amounts.rules as u64,
        members: amounts.members as u64,
        endpoints: amounts.hosts as u64,
        networks: amounts.networks as u64,
        bindings: amounts.bindings as u64,
        services: amounts.services as u64,
        servers: amounts.servers as u64,
        balancer_interfaces: amounts.balancer_interfaces as u64,
        router_interfaces: amounts.router_interfaces as u64,
        uplinks: amounts.uplinks as u64,
        router_acls: amounts.router_acls as u64,
        router_acl_rules: amounts.router_acl_rules as u64,
    }
}

/// What an Apply changes: groups, NICs, hosts, networks, bindings, services, interfaces, the access
/// list.
pub fn changes(diff: &Diff) -> Vec<v1::Change> {
    use v1::change::{Action, Subject};
    let groups = diff.groups.iter().map(|change| v1::Change {
        action: match &change.diff {
            GroupDiff { added: true, .. } => Action::Create,
            GroupDiff { removed: true, .. } => Action::Delete,
            _ => Action::Update,
        }
        .into(),
        subject: Some(Subject::Group(change.id.to_string())),
        details: group_details(&change.diff),
    });
    let nics = diff.nics.iter().map(|change| {
        let (action, details) = match &change.diff {
            NicDiff::Added(_) => (Action::Create, vec![]),
            NicDiff::Removed => (Action::Delete, vec![]),
            NicDiff::Changed(fields) => (Action::Update, fields.iter().map(field).collect()),
        };
        v1::Change {
            action: action.into(),
            subject: Some(Subject::Nic(change.id.to_string())),
            details,
        }
    });
    let services = diff.services.iter().map(|change| {
        let subject = Subject::Service(balancer::render::key(&change.key));
        let exists = (change.from.is_some(), change.to.is_some());
        changed(exists, subject, &change.fields())
    });
    let interfaces = diff.interfaces.iter().map(|change| {
        let name = change.name.clone();
        let subject = match change.feature {
            Feature::Balancer => Subject::BalancerInterface(name),
            Feature::Router => Subject::RouterInterface(name),
            Feature::Uplink => Subject::Uplink(name),
        };
        let exists = (change.from.is_some(), change.to.is_some());
        changed(exists, subject, &change.fields())
    });
    let router_acl = diff.router_acl.iter().map(|change| v1::Change {
        action: action(change.from.is_some(), change.to.is_some()).into(),
        subject: Some(Subject::RouterAcl(true)),
        details: change.lines(),
    });
    groups
        .chain(nics)
        .chain(overlay::changes(diff))
        .chain(services)
        .chain(interfaces)
        .chain(router_acl)
        .collect()
}

/// What is done to what was there, and is.
fn action(was: bool, is: bool) -> v1::change::Action {
    match (was, is) {
        (false, _) => v1::change::Action::Create,
        (_, false) => v1::change::Action::Delete,
        _ => v1::change::Action::Update,
    }
}

fn changed(
    (was, is): (bool, bool),
    subject: v1::change::Subject,
    fields: &[FieldChange],
) -> v1::Change {
    v1::Change {
        action: action(was, is).into(),
        subject: Some(subject),
        details: fields.iter().map(field).collect(),
    }
}

fn group_details(diff: &GroupDiff) -> Vec<String> {
    let gone = |what: &dyn std::fmt::Display| format!("- {what}");
    let come = |what: &dyn std::fmt::Display| format!("+ {what}");
    let mut lines: Vec<String> = diff.fields.iter().map(field).collect();
    lines.extend(
        diff.rules_removed
            .iter()
            .map(|rule| gone(&format_args!("rule {rule}"))),
    );
    lines.extend(
        diff.members_removed
            .iter()
            .map(|member| gone(&format_args!("member {member}"))),
    );
    lines.extend(
        diff.rules_added
            .iter()
            .map(|rule| come(&format_args!("rule {rule}"))),
    );
    lines.extend(
        diff.members_added
            .iter()
            .map(|member| come(&format_args!("member {member}"))),
    );
    lines.extend(
        diff.reordered
            .then(|| "~ order of rules or members".to_owned()),
    );
    lines
}

pub fn field(change: &FieldChange) -> String {
    let shown = |text: &str| {
        if text.is_empty() {
            "(none)".to_owned()
        } else {
            text.to_owned()
        }
    };
    format!(
        "{}: {} -> {}",
        change.field,
        shown(&change.from),
        shown(&change.to)
    )
}

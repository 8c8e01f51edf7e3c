//! Whatever the operations and their order, what is compiled step by step is what the configuration
//! compiles to from nothing. Compared by names, as slots and indices may differ; rule sets by what
//! they answer to probes.

use super::world::*;
use crate::Controller;
use crate::model::{
    self, Binding, Config, Group, Host, Membership, NetworkOptions, Nic, NicKind, NicUpdate, Peer,
    Removal, Rule, RuleMatch,
};
use dataplane::overlay::{Flood, HostIdx};
use dataplane::ruleset::{Asked, Direction};
use dataplane::snapshot::{GroupIdx, Network, PortSlot};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The compiled snapshot as text, by names; insists that its parts agree with each other.
pub fn canonical(controller: &Controller) -> Vec<String> {
    let state = controller.state();
    let snapshot = &state.snapshot;
    let nics: HashMap<PortSlot, &str> = state
        .nics
        .values()
        .map(|n| (n.slot, n.nic.id.as_str()))
        .collect();
    let groups: HashMap<GroupIdx, &str> = state
        .groups
        .iter()
        .map(|(id, g)| (g.idx, id.as_str()))
        .collect();
    assert_eq!(nics.len(), state.nics.len(), "two NICs have a slot");
    assert_eq!(groups.len(), state.groups.len(), "two names have an index");
    assert_eq!(snapshot.ports.iter().flatten().count(), nics.len());
    assert_eq!(
        snapshot.networks.iter().flatten().count(),
        state.networks.len()
    );
    assert_eq!(snapshot.groups.iter().flatten().count(), state.group_count);
    let named = |slots: &[PortSlot]| {
        let mut names: Vec<&str> = slots.iter().map(|slot| nics[slot]).collect();
        names.sort();
        names.join(" ")
    };

    let mut lines = Vec::new();
    for entry in state.nics.values() {
        assert_eq!(state.by_slot.get(&entry.slot.0), Some(&entry.nic.id));
        let port = snapshot.ports[entry.slot.0 as usize]
            .as_ref()
            .expect("a NIC is not in the snapshot");
        let network = snapshot.networks[port.network.0 as usize]
            .as_ref()
            .expect("its network is not");
        assert_eq!(
            (port.slot, port.uid, network.vni),
            (entry.slot, entry.uid, port.vni)
        );
        let its_groups: Vec<&str> = port.groups.iter().map(|idx| groups[idx]).collect();
        lines.push(format!(
            "nic {} {:?} {} {:?} {:?} groups {its_groups:?} sniffers {} flags {:?} {:?} {} {} {}",
            entry.nic.id,
            port.vni,
            port.mac,
            port.addresses,
            port.pairs,
            named(&port.sniffers),
            [
                port.anti_spoof,
                port.bypass,
                port.is_sniffer,
                port.learn_macs
            ],
            port.timeouts,
            port.flow_share,
            port.mtu,
            port.trace.is_some(),
        ));
    }
    for network in snapshot.networks.iter().flatten() {
        let mut macs: Vec<_> = network
            .macs
            .iter()
            .map(|(mac, slot)| format!("{mac}={}", nics[slot]))
            .collect();
        macs.sort();
        let (ports, learners) = (named(&network.ports), named(&network.learners));
        lines.push(format!(
            "{:?} macs {macs:?} ports {ports} learners {learners}",
            network.vni
        ));
        lines.push(overlay_line(network, &snapshot.hosts));
    }
    let all: Vec<_> = snapshot.groups.iter().cloned().collect();
    for (id, entry) in &state.groups {
        let compiled = all.get(entry.idx.0 as usize).cloned().flatten();
        assert_eq!(compiled.is_some(), entry.group.is_some(), "group {id}");
        let Some(compiled) = compiled else {
            lines.push(format!("group {id} does not exist"));
            continue;
        };
        let mut members: Vec<_> = compiled.members.iter().collect();
        members.sort();
        let allowed: String = probes()
            .map(|asked| match compiled.rules.decide(&asked, &all[..]) {
                None => '0',
                Some(slot) => {
                    assert!(
                        entry.counters.values().any(|counter| counter.slot == slot),
                        "not its own rule"
                    );
                    '1'
                }
            })
            .collect();
        let flags = [compiled.drain, compiled.rules.has_egress()];
        let unknown = compiled.unknown_tcp;
        lines.push(format!(
            "group {id} {members:?} {flags:?} {unknown:?} {allowed}"
        ));
    }
    lines.sort();
    lines
}

/// The part of a network that is on other hosts, by addresses.
fn overlay_line(network: &Network, hosts: &imbl::Vector<Option<IpAddr>>) -> String {
    let overlay = network
        .overlay
        .as_ref()
        .expect("a network without its overlay");
    let known: HashSet<IpAddr> = hosts.iter().flatten().copied().collect();
    assert_eq!(
        known.len(),
        hosts.iter().flatten().count(),
        "two hosts are one"
    );
    let host = |idx: &HostIdx| hosts[idx.0 as usize].expect("a host is not in the snapshot");
    let bindings: BTreeMap<_, _> = overlay
        .bindings
        .iter()
        .map(|(mac, idx)| (mac, host(idx)))
        .collect();
    let neighbours: BTreeMap<_, _> = overlay.neighbours.iter().collect();
    let flood = match &overlay.flood {
        Flood::Hosts(list) => {
            let hosts: BTreeSet<IpAddr> = list.iter().map(host).collect();
            assert_eq!(hosts.len(), list.len(), "a host is flooded to twice");
            format!("{hosts:?}")
        }
        other => format!("{other:?}"),
    };
    let flags = [overlay.learn, overlay.any_host];
    assert!(overlay.members.is_sorted());
    let members: BTreeSet<IpAddr> = overlay.members.iter().map(host).collect();
    let trusted = [&overlay.dhcp_servers, &overlay.routers];
    format!(
        "{:?} bindings {bindings:?} neighbours {neighbours:?} flood {flood} {flags:?} of \
         {members:?} {trusted:?}",
        network.vni
    )
}

fn probes() -> impl Iterator<Item = Asked> {
    let peers = ["42.0.0.1", "42.0.0.2", "42.0.0.5", "10.0.0.1", "fd00::1"].map(ip);
    let selectors = [
        (6, Some(22)),
        (6, Some(85)),
        (17, Some(22)),
        (1, Some(8 << 8)),
        (47, None),
    ];
    let directions = [Direction::Ingress, Direction::Egress];
    directions.into_iter().flat_map(move |direction| {
        peers.into_iter().flat_map(move |peer| {
            selectors.map(|(protocol, selector)| Asked {
                direction,
                protocol,
                selector,
                peer,
            })
        })
    })
}

#[derive(Clone, Debug)]
enum Operation {
    PutNic(Box<Nic>),
    Address(u8, u8),
    Groups(u8, Vec<u8>),
    DeleteNic(u8),
    PutGroup(Group),
    DeleteGroup(u8),
    AddRule(u8, Rule),
    DeleteRule(u8, Rule),
    AddMember(u8, u8),
    DeleteMember(u8, u8),
    Apply(Vec<Nic>, Vec<Group>, Vec<Binding>),
    PutHost(Host),
    DeleteHost(u8, bool),
    PutNetwork(NetworkOptions),
    PutBindings(Vec<Binding>),
    DeleteBinding(u8, u8),
    /// The next operation that would publish fails.
    Failing(Box<Operation>),
}

fn name(n: u8) -> String {
    format!("g{n}")
}

fn a_rule() -> impl Strategy<Value = Rule> {
    let matching = prop_oneof![
        Just((None, RuleMatch::Any)),
        Just((Some(1), RuleMatch::Any)),
        Just((
            Some(6),
            RuleMatch::Ports(model::Ports { start: 22, end: 22 })
        )),
        Just((
            Some(6),
            RuleMatch::Ports(model::Ports { start: 80, end: 90 })
        )),
    ];
    let peer = prop_oneof![
        Just(Peer::Any),
        Just(Peer::Net("42.0.0.0/30".parse().unwrap())),
        (0..5u8).prop_map(|n| Peer::Group(group_id(&name(n)))),
    ];
    (any::<bool>(), matching, peer).prop_map(|(ingress, (protocol, matching), peer)| {
        let direction = if ingress {
            model::Direction::Ingress
        } else {
            model::Direction::Egress
        };
        Rule::new(direction, protocol, matching, peer).unwrap()
    })
}

fn a_nic() -> impl Strategy<Value = Nic> {
    let groups = prop::collection::vec(0..5u8, 0..3);
    let target = prop_oneof![3 => Just(None), 1 => (0..6u8).prop_map(Some)];
    (
        0..6u8,
        0..7u8,
        1..3u32,
        prop::collection::vec(0..6u8, 0..3),
        groups,
        target,
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(id, mac, vni, ips, groups, target, [learn_macs, anti_spoof, tap, packet_trace])| {
                Nic {
                    vni: wire::Vni::new(vni).unwrap(),
                    mac: wire::Mac([2, 0, 0, 0, 0, mac]),
                    ips: ips
                        .into_iter()
                        .map(|last| ip(&format!("42.0.0.{}", last + 1)))
                        .collect(),
                    security_groups: groups.into_iter().map(|n| group_id(&name(n))).collect(),
                    sniff_target: target.map(|n| nic_id(&format!("n{n}"))),
                    kind: if tap {
                        NicKind::Tap
                    } else {
                        NicKind::VhostUser
                    },
                    learn_macs,
                    anti_spoof,
                    packet_trace,
                    ..nic(&format!("n{id}"), 0, &[])
                }
            },
        )
}

fn a_group() -> impl Strategy<Value = Group> {
    let members = prop::collection::btree_set(0..6u8, 0..3);
    (
        0..5u8,
        members,
        prop::collection::vec(a_rule(), 0..4),
        any::<[bool; 3]>(),
    )
        .prop_map(|(id, members, rules, [drain, allow, silent])| Group {
            members: members
                .into_iter()
                .map(|last| ip(&format!("42.0.0.{}", last + 1)))
                .collect(),
            rules: rules.into(),
            removal: if drain { Removal::Drain } else { Removal::Cut },
            allow_midstream: allow,
            silent_midstream: silent,
            ..Group::new(group_id(&name(id)))
        })
}

fn vni(id: u8) -> wire::Vni {
    wire::Vni::new(id.into()).unwrap()
}

fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n + 2])
}

fn a_binding() -> impl Strategy<Value = Binding> {
    let ips = prop::collection::vec(0..4u8, 0..3);
    (1..4u8, 0..7u8, ips, 0..3u8).prop_map(|(id, mac, ips, at)| Binding {
        ips: ips
            .into_iter()
            .map(|last| IpAddr::from([42, 0, 0, last + 1]))
            .collect(),
        ..Binding::new(vni(id), wire::Mac([2, 0, 0, 0, 1, mac]), host(at))
    })
}

fn a_host() -> impl Strategy<Value = Host> {
    let listed =
        prop::collection::btree_set((1..4u8).prop_map(vni), 0..3).prop_map(Membership::Listed);
    let vnis = prop_oneof![3 => listed, 1 => Just(Membership::Every)];
    (0..3u8, vnis).prop_map(|(n, vnis)| Host {
        vnis,
        ..Host::new(host(n))
    })
}

fn an_option() -> impl Strategy<Value = NetworkOptions> {
    let flood = prop_oneof![
        Just(None),
        Just(Some(model::Flood::HeadEnd)),
        Just(Some(model::Flood::Multicast(Some(ip("239.1.1.1"))))),
        Just(Some(model::Flood::Off)),
    ];
    let trusted = prop_oneof![
        Just(vec![]),
        Just(vec![host(1)]),
        Just(vec![host(2), host(0)])
    ];
    (
        1..4u8,
        any::<Option<bool>>(),
        flood,
        any::<Option<bool>>(),
        trusted,
    )
        .prop_map(
            |(id, learning, flood, from_anybody, trusted)| NetworkOptions {
                learning,
                flood,
                from_anybody,
                dhcp_servers: trusted.into(),
                ..NetworkOptions::new(vni(id))
            },
        )
}

fn an_operation() -> impl Strategy<Value = Operation> {
    let simple = prop_oneof![
        4 => a_nic().prop_map(Box::new).prop_map(Operation::PutNic),
        1 => (0..6u8, 1..7u8).prop_map(|(id, last)| Operation::Address(id, last)),
        1 => (0..6u8, prop::collection::vec(0..5u8, 0..3))
            .prop_map(|(id, groups)| Operation::Groups(id, groups)),
        2 => (0..6u8).prop_map(Operation::DeleteNic),
        2 => a_group().prop_map(Operation::PutGroup),
        2 => (0..5u8).prop_map(Operation::DeleteGroup),
        2 => (0..5u8, a_rule()).prop_map(|(id, rule)| Operation::AddRule(id, rule)),
        2 => (0..5u8, a_rule()).prop_map(|(id, rule)| Operation::DeleteRule(id, rule)),
        1 => (0..5u8, 1..7u8).prop_map(|(id, last)| Operation::AddMember(id, last)),
        1 => (0..5u8, 1..7u8).prop_map(|(id, last)| Operation::DeleteMember(id, last)),
        1 => (
            prop::collection::vec(a_nic(), 0..5),
            prop::collection::vec(a_group(), 0..5),
            prop::collection::vec(a_binding(), 0..3),
        )
            .prop_map(|(nics, groups, bindings)| Operation::Apply(nics, groups, bindings)),
        2 => a_host().prop_map(Operation::PutHost),
        2 => (0..3u8, any::<bool>()).prop_map(|(host, with)| Operation::DeleteHost(host, with)),
        1 => an_option().prop_map(Operation::PutNetwork),
        4 => prop::collection::vec(a_binding(), 1..3).prop_map(Operation::PutBindings),
        2 => (1..3u8, 0..7u8).prop_map(|(vni, mac)| Operation::DeleteBinding(vni, mac)),
    ];
    (simple, 0..8u8).prop_map(|(operation, fails)| match fails {
        0 => Operation::Failing(Box::new(operation)),
        _ => operation,
    })
}

/// True when it was done.
fn run(controller: &mut Controller, shared: &Shared, operation: Operation) -> bool {
    let group = |n: u8| group_id(&name(n));
    let address = |last: u8| ip(&format!("42.0.0.{last}"));
    let id = |n: u8| nic_id(&format!("n{n}"));
    let done = match operation {
        Operation::PutNic(nic) => controller.put_nic(*nic).map(drop),
        Operation::Address(n, last) => {
            let update = NicUpdate {
                ips: Some(vec![address(last)]),
                ..NicUpdate::default()
            };
            controller.update_nic(&id(n), update).map(drop)
        }
        Operation::Groups(n, groups) => {
            let groups = groups.into_iter().map(group).collect();
            let update = NicUpdate {
                security_groups: Some(groups),
                ..NicUpdate::default()
            };
            controller.update_nic(&id(n), update).map(drop)
        }
        Operation::DeleteNic(n) => controller.delete_nic(&id(n)).map(drop),
        Operation::PutGroup(group) => controller.put_group(group).map(drop),
        Operation::DeleteGroup(n) => controller.delete_group(&group(n)).map(drop),
        Operation::AddRule(n, rule) => controller.add_rule(&group(n), rule).map(drop),
        Operation::DeleteRule(n, rule) => controller.delete_rule(&group(n), &rule).map(drop),
        Operation::AddMember(n, last) => controller.add_member(&group(n), address(last)).map(drop),
        Operation::DeleteMember(n, last) => {
            controller.delete_member(&group(n), address(last)).map(drop)
        }
        Operation::Apply(nics, groups, bindings) => {
            let bindings = bindings.into_iter().map(|binding| (binding.key(), binding));
            let config = Config {
                bindings: bindings.collect(),
                ..config(nics, groups)
            };
            controller.apply(config, false).map(drop)
        }
        Operation::PutHost(host) => controller.put_host(host).map(drop),
        Operation::DeleteHost(n, with) => controller.delete_host(host(n), with).map(drop),
        Operation::PutNetwork(options) => controller.put_network(options).map(drop),
        Operation::PutBindings(bindings) => controller.put_bindings(bindings).map(drop),
        Operation::DeleteBinding(id, mac) => {
            let key = (vni(id), wire::Mac([2, 0, 0, 0, 1, mac]));
            controller.delete_bindings(&[key]).map(drop)
        }
        Operation::Failing(operation) => {
            shared.world().refuse_publish = true;
            let done = run(controller, shared, *operation);
            shared.world().refuse_publish = false;
            return done;
        }
    };
    done.is_ok()
}

fn from_nothing(config: Config) -> Vec<String> {
    let (mut controller, _shared) = controller();
    controller.apply(config, false).unwrap();
    canonical(&controller)
}

proptest! {
    #![proptest_config(
        ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn step_by_step_is_from_nothing(operations in prop::collection::vec(an_operation(), 1..30)) {
        let (mut controller, shared) = controller();
        for operation in operations {
            let before = (controller.config(), controller.status(), canonical(&controller),
                shared.world().open.clone());
            let shown = format!("{operation:?}");
            if !run(&mut controller, &shared, operation) {
                let after = (controller.config(), controller.status(), canonical(&controller),
                    shared.world().open.clone());
                prop_assert!(before == after, "a refused operation changed something: {shown}");
            }
            prop_assert_eq!(canonical(&controller), from_nothing(controller.config()),
                "after {}", shown);
            let published = shared.world().snapshots.last().map(Arc::clone);
            if let Some(published) = published {
                prop_assert!(published.epoch == controller.state().snapshot.epoch);
            }
            let slots: Vec<u32> = shared.world().open.keys().copied().collect();
            let mut wanted: Vec<u32> =
                controller.state().nics.values().map(|nic| nic.slot.0).collect();
            wanted.sort();
            prop_assert_eq!(slots, wanted);
        }
        let config = controller.config();
        let epoch = controller.status().epoch;
        prop_assert!(controller.apply(config, false).unwrap().is_empty());
        prop_assert_eq!(controller.status().epoch, epoch);
    }
}

//! What some parts of the networks have: the same as is found among all that the host has.

use super::world::*;
use crate::model::{Binding, Group, Host, IdPattern, Membership, NetworkOptions, Nic, Part};
use crate::{Controller, Status};
use dataplane::snapshot::PortUid;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use wire::{Mac, Vni};

fn vni(id: u32) -> Vni {
    Vni::new(id).unwrap()
}

fn part(networks: &[RangeInclusive<u32>], groups: &[IdPattern]) -> Part {
    Part {
        networks: networks.to_vec(),
        groups: groups.to_vec(),
        ..Part::default()
    }
}

/// Networks with NICs, bindings, options and hosts, or some of them, and groups.
fn host() -> Controller {
    let (mut controller, _shared) = controller();
    for (last, id) in (1..).zip([1, 5, 5, 7, 42, 43, 43, 44, 60]) {
        let nic = Nic {
            vni: vni(id),
            ..nic(&format!("n{last}"), last, &[])
        };
        controller.put_nic(nic).unwrap();
    }
    for (last, vnis) in [(1, vec![5, 43, 50]), (2, vec![])] {
        let vnis = vnis.into_iter().map(vni).collect();
        let host = Host {
            vnis: Membership::Listed(vnis),
            ..Host::new(ip(&format!("192.0.2.{last}")))
        };
        controller.put_host(host).unwrap();
    }
    let binding = |id: u32, last: u8| Binding {
        vni: vni(id),
        mac: Mac([2, 0, 0, 1, 0, last]),
        ips: Vec::new().into(),
        host: ip(&format!("192.0.2.{}", 1 + last % 2)),
    };
    let bindings = [1, 5, 5, 42, 43, 43, 43, 61, 62].into_iter().zip(1..);
    let bindings = bindings.map(|(id, last)| binding(id, last)).collect();
    controller.put_bindings(bindings).unwrap();
    for id in [5, 43, 63] {
        let options = NetworkOptions {
            learning: Some(true),
            ..NetworkOptions::new(vni(id))
        };
        controller.put_network(options).unwrap();
    }
    for (id, rules) in [("a", 0), ("blue-db", 2), ("blue-web", 1), ("red", 3)] {
        let rules: Vec<_> = (1..=rules)
            .map(|port| tcp(port, crate::model::Peer::Any))
            .collect();
        controller.put_group(group(id, &[], &rules)).unwrap();
    }
    controller
}

#[test]
fn what_parts_have_is_what_is_found_of_them_among_all() {
    let controller = host();
    let (id, prefix) = (
        |id: &str| IdPattern::Id(id.into()),
        |begin: &str| IdPattern::Prefix(begin.into()),
    );
    for parts in [
        vec![],
        vec![part(&[5..=5, 42..=43], &[id("red"), prefix("blue-")])],
        vec![
            part(
                &[43..=61, 40..=43],
                &[prefix("blue-w"), id("a"), id("none")],
            ),
            part(&[1..=1, 50..=70, 43..=43], &[prefix("blue"), id("blue-db")]),
        ],
        vec![part(&[0..=u32::MAX], &[prefix("")])],
    ] {
        let has = |vni: Vni| parts.iter().any(|part| part.has_network(vni));
        let nics: Vec<_> = controller.nics().filter(|one| has(one.nic.vni)).collect();
        let own: Vec<_> = controller.nics_of(&parts).collect();
        assert_eq!(own, nics);
        let ids: Vec<_> = nics.iter().map(|one| one.nic.id.clone()).collect();
        assert_eq!(controller.nic_ids_of(&parts), ids);
        let by_uid = nics.iter().map(|one| (one.uid, one.nic.id.clone()));
        assert_eq!(controller.nics_by_uid_of(&parts), by_uid.collect());
        let networks: Vec<_> = controller
            .networks()
            .filter(|one| has(one.options.vni))
            .collect();
        let own: Vec<_> = controller.networks_of(&parts).collect();
        assert_eq!(own, networks);
        let said: Vec<_> = controller
            .networks_said()
            .filter(|one| has(one.vni))
            .collect();
        let own: Vec<_> = controller.networks_said_of(&parts).collect();
        assert_eq!(own, said);
        for at in [None, Some(ip("192.0.2.1"))] {
            let bindings: Vec<_> = controller
                .bindings(None, at)
                .filter(|one| has(one.vni))
                .collect();
            let own: Vec<_> = controller.bindings_of(&parts, at).collect();
            assert_eq!(own, bindings);
        }
        let groups: Vec<_> = controller
            .groups()
            .filter(|group| parts.iter().any(|part| part.has_group(&group.id)))
            .collect();
        let own: Vec<_> = controller.groups_of(&parts).collect();
        assert_eq!(own, groups);
        let expected = Status {
            requests: 0,
            nics: nics.len(),
            networks: networks.iter().filter(|one| one.nics > 0).count(),
            groups: groups.len(),
            rules: groups
                .iter()
                .map(|group: &std::sync::Arc<Group>| group.rules.len())
                .sum(),
            vnis: networks.len(),
            hosts: 0,
            bindings: networks.iter().map(|one| one.bindings).sum(),
            ..controller.status()
        };
        assert_eq!(controller.status_of(&parts), expected);
        let config = controller.config_of(&parts);
        assert_eq!(config.nics.len(), nics.len());
        assert_eq!(config.groups.len(), groups.len());
        assert_eq!(config.networks.len(), said.len());
        assert!(config.hosts.is_empty() && config.services.is_none());
    }
}

#[test]
fn bindings_of_a_network_are_counted_by_its_hosts() {
    let controller = host();
    for (id, bindings) in [(1, 1), (5, 2), (7, 0), (42, 1), (43, 3), (50, 0)] {
        let status = controller.network(vni(id));
        let listed = controller.bindings(Some(vni(id)), None).count();
        assert_eq!((status.bindings, listed), (bindings, bindings), "{id}");
    }
}

#[test]
fn names_are_looked_up_of_those_who_are_asked_for() {
    let controller = host();
    let uid = |id: &str| controller.nic(&nic_id(id)).unwrap().uid;
    let asked: BTreeSet<PortUid> = [uid("n2"), uid("n7"), PortUid(u32::MAX)].into();
    let named = controller.nics_with(&asked);
    let named: Vec<_> = named.map(|(uid, nic)| (uid, nic.id.to_string())).collect();
    assert_eq!(named, [(uid("n2"), "n2".into()), (uid("n7"), "n7".into())]);
}

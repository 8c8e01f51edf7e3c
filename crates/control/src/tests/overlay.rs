//! Sessions about who is where: hosts, bindings, what is said of VNIs, alone and as a whole
//! set.

use super::world::*;
use crate::event::EventKind;
use crate::model::{
    Binding, Config, Flood, Host, HostUpdate, Membership, Mirror, MirrorKind, NetworkOptions, Nic,
};
use crate::{Amounts, NetworkMode, limits};
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::{Mac, Vni};

fn vni(id: u32) -> Vni {
    Vni::new(id).unwrap()
}

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0x12, 0x34, last])
}

/// MAC `last` of the VNI with the address 42.0.0.`last`, behind `host`.
fn binding(id: u32, last: u8, host: &str) -> Binding {
    Binding {
        ips: [IpAddr::from([42, 0, 0, last])].into(),
        ..Binding::new(vni(id), mac(last), ip(host))
    }
}

fn host(address: &str, vnis: &[u32]) -> Host {
    Host {
        vnis: Membership::Listed(vnis.iter().map(|id| vni(*id)).collect()),
        ..Host::new(ip(address))
    }
}

/// A configuration of the overlay alone.
fn overlay(hosts: Vec<Host>, networks: Vec<NetworkOptions>, bindings: Vec<Binding>) -> Config {
    Config {
        hosts: hosts.into_iter().map(|e| (e.address, e)).collect(),
        networks: networks.into_iter().map(|n| (n.vni, n)).collect(),
        bindings: bindings.into_iter().map(|b| (b.key(), b)).collect(),
        ..Config::empty()
    }
}

/// Who chooses another multicast group for a VNI, and says no more, hears nobody: that is told when
/// it begins, and for as long as nothing says that it is to be so.
#[test]
fn networks_that_hear_nobody_are_told() {
    let (mut controller, _) = controller();
    let told = |controller: &mut crate::Controller| {
        let changed = controller.take_changed();
        changed.is_some_and(|changed| changed.deafens_networks)
    };
    let another_group = NetworkOptions {
        flood: Some(Flood::Multicast(Some(ip("239.1.1.1")))),
        ..NetworkOptions::new(vni(42))
    };
    let from = |from_anybody: bool, id: u32| NetworkOptions {
        from_anybody: Some(from_anybody),
        ..NetworkOptions::new(vni(id))
    };
    // Of a network that nobody here is in nothing is told.
    controller.put_network(another_group.clone()).unwrap();
    assert!(!told(&mut controller));
    assert_eq!(controller.deaf_networks(), []);
    controller.put_nic(nic("a", 1, &[])).unwrap();
    assert!(told(&mut controller));
    assert_eq!(controller.deaf_networks(), [vni(42)]);
    // One more of them is no news.
    let other = Nic {
        vni: vni(41),
        ..nic("b", 2, &[])
    };
    controller.put_nic(other).unwrap();
    assert!(!told(&mut controller));
    assert_eq!(controller.deaf_networks(), [vni(41), vni(42)]);
    // What is said is wanted, whatever it is.
    let anybody = NetworkOptions {
        from_anybody: Some(true),
        ..another_group.clone()
    };
    controller.put_network(anybody).unwrap();
    controller.put_network(from(false, 41)).unwrap();
    assert!(!told(&mut controller));
    assert_eq!(controller.deaf_networks(), []);
    let stays_here = NetworkOptions {
        flood: Some(Flood::Off),
        ..NetworkOptions::new(vni(42))
    };
    controller.put_network(stays_here).unwrap();
    assert!(!told(&mut controller));
    controller.put_network(another_group.clone()).unwrap();
    assert!(told(&mut controller));
    // Once a host is declared, who is out there is said; until it is not any more.
    controller.put_host(host("10.0.0.2", &[43])).unwrap();
    assert!(!told(&mut controller));
    assert_eq!(controller.deaf_networks(), []);
    controller.delete_host(ip("10.0.0.2"), false).unwrap();
    assert!(told(&mut controller));
    assert_eq!(controller.deaf_networks(), [vni(42)]);
    // While nothing is declared all are heard, and with the first option the others no more.
    controller
        .put_network(NetworkOptions::new(vni(42)))
        .unwrap();
    controller
        .put_network(NetworkOptions::new(vni(41)))
        .unwrap();
    assert_eq!(controller.deaf_networks(), []);
    assert!(!told(&mut controller));
    controller.put_network(from(true, 41)).unwrap();
    assert!(told(&mut controller));
    assert_eq!(controller.deaf_networks(), [vni(42)]);
}

#[test]
fn a_vni_works_by_who_is_known_of_it() {
    let (mut controller, _) = controller();
    let mode = |controller: &crate::Controller| controller.network(vni(42)).mode;
    let as_the_original = NetworkMode {
        learning: true,
        flood: Flood::Multicast(None),
        from_anybody: true,
        any_dhcp_server: true,
        any_router: true,
    };
    let by_hosts = NetworkMode {
        learning: true,
        flood: Flood::HeadEnd,
        from_anybody: false,
        any_dhcp_server: false,
        any_router: false,
    };
    let by_bindings = NetworkMode {
        learning: false,
        ..by_hosts
    };
    assert_eq!(mode(&controller), as_the_original);
    // Once anything is declared, even if of another VNI alone, nobody is heard, unless that is
    // asked for; until nothing is declared again, which is told.
    let unsaid = NetworkOptions::new(vni(43));
    let of_another = [
        NetworkOptions {
            learning: Some(false),
            ..unsaid.clone()
        },
        NetworkOptions {
            dhcp_servers: [ip("10.0.0.9")].into(),
            ..unsaid.clone()
        },
        NetworkOptions {
            from_anybody: Some(true),
            ..unsaid.clone()
        },
    ];
    for said in of_another {
        assert!(controller.turns_all_networks(&said));
        controller.put_network(said.clone()).unwrap();
        assert_eq!(mode(&controller), by_hosts, "{said:?}");
        assert!(!controller.turns_all_networks(&said));
        assert!(controller.turns_all_networks(&unsaid));
        assert!(!controller.take_changed().unwrap().opens_networks);
        controller.put_network(unsaid.clone()).unwrap();
        assert_eq!(mode(&controller), as_the_original);
        assert!(controller.take_changed().unwrap().opens_networks);
    }
    // So it is once any host is known.
    controller.put_host(host("10.0.0.2", &[43])).unwrap();
    assert_eq!(mode(&controller), by_hosts);
    let open = NetworkOptions {
        from_anybody: Some(true),
        dhcp_servers: [ip("10.0.0.9"), ip("10.0.0.8"), ip("10.0.0.9")].into(),
        ..NetworkOptions::new(vni(42))
    };
    controller.put_network(open).unwrap();
    assert_eq!(
        mode(&controller),
        NetworkMode {
            any_dhcp_server: false,
            any_router: false,
            ..as_the_original
        }
    );
    let said = controller.network(vni(42)).options;
    assert_eq!(*said.dhcp_servers, [ip("10.0.0.8"), ip("10.0.0.9")]);
    controller
        .put_network(NetworkOptions::new(vni(42)))
        .unwrap();
    let join = HostUpdate {
        join: vec![vni(42)],
        ..HostUpdate::default()
    };
    controller.update_host(ip("10.0.0.2"), join).unwrap();
    assert_eq!(mode(&controller), by_hosts);
    controller
        .put_bindings(vec![binding(42, 7, "10.0.0.3")])
        .unwrap();
    assert_eq!(mode(&controller), by_bindings);
    assert_eq!(
        controller.network_hosts(vni(42)),
        [ip("10.0.0.2"), ip("10.0.0.3")].into()
    );
    // What is said wins.
    let options = NetworkOptions {
        learning: Some(true),
        flood: Some(Flood::Off),
        ..NetworkOptions::new(vni(42))
    };
    controller.put_network(options).unwrap();
    assert_eq!(
        mode(&controller),
        NetworkMode {
            flood: Flood::Off,
            ..by_hosts
        }
    );
    controller
        .put_network(NetworkOptions::new(vni(42)))
        .unwrap();
    controller.delete_bindings(&[(vni(42), mac(7))]).unwrap();
    assert_eq!(mode(&controller), by_hosts);
    controller.put_host(host("10.0.0.2", &[])).unwrap();
    assert_eq!(mode(&controller), by_hosts);
    controller.delete_host(ip("10.0.0.2"), false).unwrap();
    assert!(!controller.take_changed().unwrap().opens_networks);
    controller.delete_host(ip("10.0.0.3"), false).unwrap();
    assert_eq!(mode(&controller), as_the_original);
    assert!(controller.take_changed().unwrap().opens_networks);
    // A host of every VNI is one of each.
    let every = Host {
        vnis: Membership::Every,
        ..host("10.0.0.2", &[])
    };
    controller.put_host(every).unwrap();
    assert_eq!(mode(&controller), by_hosts);
}

/// The first host that is declared has all networks hear nobody else: it is not one that was to be
/// taken out of a network.
#[test]
fn a_host_that_is_not_known_is_not_made_to_leave_networks() {
    let (mut controller, shared) = controller();
    let leave = || HostUpdate {
        leave: vec![vni(42)],
        ..HostUpdate::default()
    };
    let published = shared.world().snapshots.len();
    let diff = controller.update_host(ip("10.0.0.2"), leave()).unwrap();
    assert!(diff.is_empty(), "{diff}");
    assert_eq!(controller.hosts().count(), 0);
    assert!(controller.network(vni(42)).mode.from_anybody);
    assert_eq!(shared.world().snapshots.len(), published);
    // A host of a binding that was deleted does not come back.
    controller
        .put_bindings(vec![binding(42, 7, "10.0.0.2")])
        .unwrap();
    controller.delete_host(ip("10.0.0.2"), true).unwrap();
    let diff = controller.update_host(ip("10.0.0.2"), leave()).unwrap();
    assert!(diff.is_empty(), "{diff}");
    assert_eq!(controller.config(), Config::empty());
    // Who is also to join one, has a name, or is given nothing at all, is made.
    let updates = [
        HostUpdate {
            join: vec![vni(43)],
            ..leave()
        },
        HostUpdate {
            name: Some("rack".to_owned()),
            ..leave()
        },
        HostUpdate::default(),
    ];
    for update in updates {
        let diff = controller.update_host(ip("10.0.0.2"), update).unwrap();
        assert!(diff.to_string().starts_with("+ host 10.0.0.2"), "{diff}");
        controller.delete_host(ip("10.0.0.2"), false).unwrap();
    }
    // One that is known leaves, and stays known.
    controller.put_host(host("10.0.0.2", &[42, 43])).unwrap();
    let diff = controller.update_host(ip("10.0.0.2"), leave()).unwrap();
    assert_eq!(diff.to_string(), "~ host 10.0.0.2: vnis 42,43 -> 43\n");
}

#[test]
fn a_host_is_made_by_its_first_binding_and_outlives_them() {
    let (mut controller, shared) = controller();
    let diff = controller
        .put_bindings(vec![binding(42, 7, "10.0.0.2")])
        .unwrap();
    assert_eq!(
        diff.to_string(),
        "+ host 10.0.0.2\n+ binding 42 52:54:00:12:34:07: host 10.0.0.2, ip 42.0.0.7\n"
    );
    assert_eq!(controller.host(ip("10.0.0.2")).unwrap().bindings, 1);
    assert!(
        controller
            .put_bindings(vec![binding(42, 7, "10.0.0.2")])
            .unwrap()
            .is_empty()
    );
    let moved = controller
        .put_bindings(vec![binding(42, 7, "fd00::2")])
        .unwrap();
    assert_eq!(
        moved.to_string(),
        "+ host fd00::2\n~ binding 42 52:54:00:12:34:07: host 10.0.0.2 -> fd00::2\n"
    );
    let error = refused(&mut controller, &shared, |c| {
        c.delete_host(ip("fd00::2"), false)
    });
    assert_eq!(
        error,
        "host 'fd00::2' has 1 bindings: delete them with it, or first"
    );
    controller.delete_host(ip("10.0.0.2"), false).unwrap();
    let gone = controller.delete_host(ip("fd00::2"), true).unwrap();
    assert_eq!(
        gone.to_string(),
        "- host fd00::2\n- binding 42 52:54:00:12:34:07\n"
    );
    assert!(
        controller
            .delete_host(ip("fd00::2"), true)
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        (controller.status().vnis, controller.config()),
        (0, Config::empty())
    );
}

#[test]
fn a_whole_set_comes_in_one_step_and_reads_back() {
    let (mut controller, shared) = controller();
    let before = overlay(
        vec![host("10.0.0.2", &[42, 43]), host("10.0.0.9", &[])],
        vec![NetworkOptions {
            learning: Some(true),
            ..NetworkOptions::new(vni(7))
        }],
        vec![
            binding(42, 1, "10.0.0.2"),
            binding(42, 2, "10.0.0.9"),
            binding(43, 1, "10.0.0.2"),
        ],
    );
    controller.apply(before.clone(), false).unwrap();
    assert_eq!(controller.config(), before);
    assert!(controller.apply(before, false).unwrap().is_empty());
    let after = overlay(
        vec![Host {
            name: "rack 2".to_owned(),
            vnis: Membership::Every,
            ..Host::new(ip("10.0.0.2"))
        }],
        vec![NetworkOptions {
            flood: Some(Flood::Multicast(Some(ip("239.1.1.1")))),
            ..NetworkOptions::new(vni(42))
        }],
        vec![
            binding(42, 1, "10.0.0.3"),
            binding(43, 1, "10.0.0.2"),
            binding(44, 1, "10.0.0.2"),
        ],
    );
    let shown = controller.apply(after.clone(), true).unwrap();
    assert_eq!(
        shown.to_string(),
        "~ host 10.0.0.2: name (none) -> rack 2\n\
         ~ host 10.0.0.2: vnis 42,43 -> every\n\
         + host 10.0.0.3\n\
         - host 10.0.0.9\n\
         ~ network 7: learning on -> auto\n\
         ~ network 42: flood auto -> multicast 239.1.1.1\n\
         ~ binding 42 52:54:00:12:34:01: host 10.0.0.2 -> 10.0.0.3\n\
         - binding 42 52:54:00:12:34:02\n\
         + binding 44 52:54:00:12:34:01: host 10.0.0.2, ip 42.0.0.1\n"
    );
    // One mistake in it, and nothing of it happens.
    let mut wrong = after.clone();
    wrong
        .bindings
        .insert((vni(45), mac(1)), binding(45, 1, "127.0.0.1"));
    let error = refused(&mut controller, &shared, |c| c.apply(wrong, false));
    assert_eq!(
        error,
        "binding of 52:54:00:12:34:01 in VNI 45: address '127.0.0.1' is this host itself"
    );
    assert_eq!(controller.apply(after, false).unwrap(), shown);
    assert!(
        controller
            .apply(controller.config(), false)
            .unwrap()
            .is_empty()
    );
    let gone = Amounts {
        hosts: 1,
        networks: 1,
        bindings: 1,
        ..Amounts::default()
    };
    assert_eq!(shown.deleted(), gone);
    let all = controller.amounts();
    assert_eq!((all.hosts, all.networks, all.bindings), (2, 1, 3));
    let emptied = controller.apply(Config::empty(), false).unwrap();
    assert_eq!(emptied.deleted(), all);
    assert_eq!(controller.config(), Config::empty());
}

/// What is stored and was not made goes by what deletes it, each by its own.
#[test]
fn what_was_not_made_goes_by_its_deletion() {
    let (mut controller, _) = controller();
    let addresses = ["10.0.0.2", "10.0.0.3"].map(ip);
    let said = NetworkOptions {
        learning: Some(false),
        ..NetworkOptions::new(vni(42))
    };
    let bindings = [
        binding(42, 1, "10.0.0.2"),
        binding(42, 2, "10.0.0.3"),
        binding(43, 1, "10.0.0.3"),
        binding(43, 2, "10.0.0.3"),
    ];
    let keys: Vec<_> = bindings.iter().map(Binding::key).collect();
    controller.set_unmade(Config {
        hosts: addresses.map(|one| (one, Host::new(one))).into(),
        networks: [(vni(42), said)].into(),
        bindings: bindings.map(|one| (one.key(), one)).into(),
        ..Config::default()
    });
    controller
        .put_network(NetworkOptions::new(vni(42)))
        .unwrap();
    assert!(controller.unmade().networks.is_empty());
    controller.delete_host(addresses[0], true).unwrap();
    assert!(controller.unmade().hosts.keys().eq(&addresses[1..]));
    assert!(controller.unmade().bindings.keys().eq(&keys[1..]));
    let diff = controller.delete_bindings(&keys[3..]).unwrap();
    assert_eq!(diff.to_string(), "- binding 43 52:54:00:12:34:02\n");
    assert!(controller.unmade().bindings.keys().eq(&keys[1..3]));
    let none = BTreeMap::new();
    controller
        .set_bindings(Some(vni(43)), none.clone(), false)
        .unwrap();
    assert!(controller.unmade().bindings.keys().eq(&keys[1..2]));
    controller.set_bindings(None, none, false).unwrap();
    controller.delete_host(addresses[1], false).unwrap();
    assert_eq!(*controller.unmade(), Config::default());
}

#[test]
fn the_bindings_of_one_vni_are_replaced_alone() {
    let (mut controller, shared) = controller();
    let all = vec![
        binding(42, 1, "10.0.0.2"),
        binding(42, 2, "10.0.0.2"),
        binding(43, 1, "10.0.0.2"),
    ];
    controller.put_bindings(all).unwrap();
    let set = |bindings: Vec<Binding>| bindings.into_iter().map(|b| (b.key(), b)).collect();
    let diff = controller
        .set_bindings(Some(vni(42)), set(vec![binding(42, 2, "10.0.0.3")]), false)
        .unwrap();
    assert_eq!(
        diff.to_string(),
        "+ host 10.0.0.3\n\
         - binding 42 52:54:00:12:34:01\n\
         ~ binding 42 52:54:00:12:34:02: host 10.0.0.2 -> 10.0.0.3\n"
    );
    let error = refused(&mut controller, &shared, |c| {
        c.set_bindings(Some(vni(42)), set(vec![binding(43, 2, "10.0.0.3")]), false)
    });
    assert_eq!(
        error,
        "binding of 52:54:00:12:34:02: VNI '43' is not 42, whose bindings are to be replaced"
    );
    let shown = controller.set_bindings(None, set(vec![]), true).unwrap();
    assert_eq!((shown.bindings.len(), controller.status().bindings), (2, 2));
    controller.set_bindings(None, set(vec![]), false).unwrap();
    assert_eq!(controller.bindings(None, None).count(), 0);
}

#[test]
fn only_whom_a_nic_here_can_speak_to_is_to_be_reached() {
    let (mut controller, _) = controller();
    controller
        .put_bindings(vec![binding(42, 7, "10.0.0.2"), binding(43, 7, "10.0.0.3")])
        .unwrap();
    let every = Host {
        vnis: Membership::Every,
        ..Host::new(ip("10.0.0.9"))
    };
    controller.put_host(every).unwrap();
    assert_eq!(controller.reach(), crate::Reach::default());
    controller.put_nic(nic("a", 1, &[])).unwrap();
    let hosts = |list: &[&str]| list.iter().map(|text| ip(text)).collect();
    let reach = crate::Reach {
        hosts: hosts(&["10.0.0.2", "10.0.0.9"]),
        ..crate::Reach::default()
    };
    assert_eq!(controller.reach(), reach);
    controller.delete_host(ip("10.0.0.9"), false).unwrap();
    controller.delete_host(ip("10.0.0.2"), true).unwrap();
    assert_eq!(
        controller.reach(),
        crate::Reach::default(),
        "others are known"
    );
    controller.delete_host(ip("10.0.0.3"), true).unwrap();
    let reach = crate::Reach {
        groups: hosts(&["230.0.0.42"]),
        ..crate::Reach::default()
    };
    assert_eq!(controller.reach(), reach);
}

#[test]
fn nics_are_told_of_what_the_underlay_carries() {
    let (mut controller, shared) = controller();
    let own = crate::model::Nic {
        mtu: Some(9000),
        ..nic("own", 2, &[])
    };
    controller
        .apply(config(vec![nic("a", 1, &[]), own], vec![]), false)
        .unwrap();
    shared.log();
    controller.set_default_mtu(1450).unwrap();
    controller.set_default_mtu(1450).unwrap();
    assert_eq!(shared.log(), ["reconfigure 52:54:00:12:34:01 1450"]);
    assert_eq!(
        (
            port(&controller, &shared, "a").mtu,
            port(&controller, &shared, "own").mtu
        ),
        (1450, 9000)
    );
    controller.put_nic(nic("b", 3, &[])).unwrap();
    assert_eq!(controller.nic(&nic_id("b")).unwrap().mtu, 1450);
}

#[test]
fn everybody_who_watches_is_told() {
    let (mut controller, _) = controller();
    let mut events = controller.subscribe();
    controller
        .put_bindings(vec![binding(42, 1, "10.0.0.2")])
        .unwrap();
    controller
        .put_network(NetworkOptions {
            learning: Some(true),
            ..NetworkOptions::new(vni(42))
        })
        .unwrap();
    controller.delete_host(ip("10.0.0.2"), true).unwrap();
    let many = (0..2_000_u32).map(|n| {
        Binding::new(
            vni(1),
            Mac([2, 0, 0, 0, (n >> 8) as u8, n as u8]),
            ip("10.0.0.2"),
        )
    });
    controller.put_bindings(many.collect()).unwrap();
    let told: Vec<EventKind> = std::iter::from_fn(|| events.try_recv().ok())
        .map(|event| event.kind)
        .collect();
    let key = (vni(42), mac(1));
    assert_eq!(
        told,
        [
            EventKind::HostChanged(ip("10.0.0.2")),
            EventKind::BindingChanged(key),
            EventKind::NetworkChanged(vni(42)),
            EventKind::HostRemoved(ip("10.0.0.2")),
            EventKind::BindingRemoved(key),
            EventKind::HostChanged(ip("10.0.0.2")),
            EventKind::BindingsChanged(2_000),
        ]
    );
}

#[test]
fn the_maxima_are_refused_one_beyond() {
    let (mut controller, shared) = controller();
    let address = |n: usize| IpAddr::from((0x2001_0db8_u128 << 96 | n as u128).to_be_bytes());
    let vnis = |from: usize, count: usize| (from..from + count).map(|id| vni(id as u32)).collect();
    let hosts: Vec<Host> = (0..limits::HOSTS).map(|n| Host::new(address(n))).collect();
    controller
        .apply(overlay(hosts, vec![], vec![]), false)
        .unwrap();
    let error = refused(&mut controller, &shared, |c| {
        c.put_bindings(vec![binding(42, 1, "10.0.0.2")])
    });
    assert_eq!(
        error,
        "the daemon would have 10668 hosts, the limit is 10667"
    );
    let member = |n: usize, vnis| Host {
        vnis: Membership::Listed(vnis),
        ..Host::new(address(n))
    };
    controller
        .put_host(member(0, vnis(0, limits::VNIS)))
        .unwrap();
    let error = refused(&mut controller, &shared, |c| {
        c.put_host(member(1, vnis(limits::VNIS, 1)))
    });
    assert_eq!(
        error,
        "the daemon would have 350001 VNIs, the limit is 350000"
    );
    let other = crate::model::Nic {
        vni: vni(limits::VNIS as u32),
        ..nic("a", 1, &[])
    };
    let error = refused(&mut controller, &shared, |c| c.put_nic(other));
    assert_eq!(
        error,
        "the daemon would have 350001 VNIs, the limit is 350000"
    );
    controller
        .put_host(member(1, vnis(0, limits::VNIS)))
        .unwrap();
    let error = refused(&mut controller, &shared, |c| {
        c.put_host(member(2, vnis(0, 300_001)))
    });
    assert_eq!(
        error,
        "the daemon would have 1000001 VNIs of hosts, the limit is 1000000"
    );
    let mut full = binding(1, 1, "2001:db8::");
    full.ips = (0..=limits::IPS_PER_NIC).map(address).collect();
    let error = refused(&mut controller, &shared, |c| c.put_bindings(vec![full]));
    assert_eq!(
        error,
        "binding of 52:54:00:12:34:01 in VNI 1 would have 257 IPs, the limit is 256"
    );
}

#[test]
fn no_mirror_is_frames_of_a_network_to_another_host() {
    let (mut controller, _) = controller();
    let mirror = |kind| {
        Some(Mirror {
            kind,
            address: ip("10.0.0.2"),
            direction: None,
            snap_len: None,
        })
    };
    let vxlan = MirrorKind::Vxlan {
        port: 5000,
        vni: None,
    };
    let mirrored = |kind| Nic {
        mirror: mirror(kind),
        ..nic("m", 9, &[])
    };
    let why = "NIC 'm': its mirror is VXLAN to 10.0.0.2, which is another host: that would take \
               the copies for frames of a network; mirror to a machine that is none, or by ERSPAN";
    controller.put_nic(mirrored(vxlan)).unwrap();
    let refused = controller.put_host(host("10.0.0.2", &[43])).unwrap_err();
    assert_eq!(refused.to_string(), why);
    let erspan = MirrorKind::Erspan { session: 1 };
    controller.put_nic(mirrored(erspan)).unwrap();
    controller.put_host(host("10.0.0.2", &[43])).unwrap();
    let refused = controller.put_nic(mirrored(vxlan)).unwrap_err();
    assert_eq!(refused.to_string(), why);
    controller.delete_host(ip("10.0.0.2"), false).unwrap();
    controller.put_nic(mirrored(vxlan)).unwrap();
    controller.delete_nic(&nic_id("m")).unwrap();
    controller.put_host(host("10.0.0.2", &[43])).unwrap();
}

//! NICs: created, replaced, removed, watched by sniffers, counted.

use super::world::*;
use crate::model::{Nic, NicKind, NicUpdate, Part, SocketAccess, VhostMode};
use crate::{Controller, Declared, Diff, NicState, diff};
use dataplane::counters::PortCounters;
use dataplane::drop_reason::DropReason;

#[test]
fn the_same_nic_again_touches_nothing() {
    let (mut controller, shared) = controller();
    let first = controller.put_nic(nic("a", 1, &["web"])).unwrap();
    assert_eq!(first.path, "/run/butterfly/qemu-vhost-a");
    assert_eq!(first.trace_path, "/tmp/butterfly-42-a.pcap");
    assert_eq!(shared.log(), ["open a /run/butterfly/qemu-vhost-a"]);

    let mut twice = nic("a", 1, &["web", "web"]);
    twice.ips.push(ip("42.0.0.1"));
    twice.path = Some(first.path.clone());
    twice.packet_trace_path = Some(first.trace_path.clone());
    assert_eq!(controller.put_nic(twice).unwrap(), first);
    assert!(shared.log().is_empty());
    assert_eq!(
        (shared.world().snapshots.len(), controller.status().epoch),
        (1, 1)
    );
}

/// A comma is a letter of an id: who says `web,ssh` for two groups has named one, and is to come
/// out of it.
#[test]
fn groups_are_told_apart_by_their_ids() {
    let (mut controller, shared) = controller();
    let groups = |controller: &crate::Controller| {
        let config = controller.config();
        config.nics[&nic_id("a")].security_groups.clone()
    };
    let to = |ids: &[&str]| NicUpdate {
        security_groups: Some(ids.iter().map(|id| group_id(id)).collect()),
        ..NicUpdate::default()
    };
    controller.put_nic(nic("a", 1, &["web,ssh"])).unwrap();
    for ids in [&["web", "ssh"][..], &["web,ssh"]] {
        let published = shared.world().snapshots.len();
        controller.update_nic(&nic_id("a"), to(ids)).unwrap();
        let wanted: Vec<_> = ids.iter().map(|id| group_id(id)).collect();
        assert_eq!(groups(&controller), wanted);
        assert_eq!(shared.world().snapshots.len(), published + 1, "{ids:?}");
    }
    let error = refused(&mut controller, &shared, |c| {
        c.create_nic(nic("a", 1, &["web", "ssh"]))
    });
    assert!(
        error.contains(r#"security_groups is '"web,ssh"', not 'web,ssh'"#),
        "{error}"
    );
    // A document, and what a journal keeps, are compared as that.
    let document = config(vec![nic("a", 1, &["web", "ssh"])], vec![]);
    let shown = Diff::between(&controller.config(), &document);
    assert_eq!(
        shown.to_string(),
        "~ nic a: security_groups \"web,ssh\" -> web,ssh\n"
    );
    assert_eq!(controller.apply(document.clone(), false).unwrap(), shown);
    assert!(controller.config() == document);
}

/// No two ids of groups are written as others are.
#[test]
fn a_change_of_groups_is_never_one_of_nothing() {
    let lists: [&[&str]; 7] = [
        &["a", "b"],
        &["a,b"],
        &["\"a", "b\""],
        &["\"a,b\""],
        &["\\\"a", "b"],
        &["b", "a"],
        &[],
    ];
    for from in lists {
        for to in lists {
            let fields = diff::nic_fields(&nic("a", 1, from), &nic("a", 1, to));
            assert_eq!(fields.is_empty(), from == to, "{from:?} {to:?}");
            let of_groups = fields.iter().all(|field| field.field == "security_groups");
            assert!(of_groups, "{fields:?}");
        }
    }
    // Nor is one of anything else.
    let other = Nic {
        packet_trace_path: Some(String::new()),
        ..nic("a", 1, &[])
    };
    assert_eq!(diff::nic_fields(&nic("a", 1, &[]), &other).len(), 1);
}

/// What a NIC names, as a process by its number, is meant as it is by now only where somebody
/// declares the NIC who could name another.
#[test]
fn how_a_nic_is_declared_is_told() {
    use Declared::{Alone, Before, InDocument};
    let (mut controller, shared) = controller();
    let told = || std::mem::take(&mut shared.world().declared);
    let link = |down| NicUpdate {
        link_down: Some(down),
        ..NicUpdate::default()
    };
    let a = || nic("a", 1, &[]);
    let slot = controller.put_nic(a()).unwrap().slot;
    assert_eq!(told(), [Alone], "it is opened");
    controller.port_state(slot, NicState::Broken("it went".into()));
    controller.put_nic(a()).unwrap();
    assert_eq!(told(), [Alone], "it is tried again");
    controller.update_nic(&nic_id("a"), link(true)).unwrap();
    assert_eq!(told(), [Before, Before], "it is changed and tried again");

    controller.set_parts(vec![Part {
        networks: vec![42..=42],
        ..Part::default()
    }]);
    controller.put_nic(a()).unwrap();
    assert_eq!(told(), [Before, Before], "its author has no host");
    controller.put_nic(a()).unwrap();
    assert_eq!(told(), [Before], "who says the same");
    controller.set_parts(Vec::new());

    let with = |more: Nic| config(vec![a(), more], vec![]);
    let diff = controller.roll_back(with(nic("b", 2, &[])), false).unwrap();
    controller.heal(Before, &diff, false);
    assert_eq!(told(), [Before, Before], "it goes back");
    let diff = controller.apply(with(nic("c", 3, &[])), false).unwrap();
    controller.heal(InDocument, &diff, false);
    assert_eq!(told(), [InDocument, InDocument]);
    let stored = config(vec![nic("d", 4, &[])], vec![]);
    controller.add(stored).unwrap();
    assert_eq!(told(), [Before], "it is read from a store");
}

#[test]
fn another_vhost_mode_is_another_attachment() {
    let (mut controller, shared) = controller();
    controller.put_nic(nic("a", 1, &[])).unwrap();
    shared.log();
    let client = Nic {
        vhost_mode: VhostMode::Client,
        ..nic("a", 1, &[])
    };
    // Opened before the old one is closed: not at the same path.
    let refused = controller.put_nic(client.clone()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("'/run/butterfly/qemu-vhost-a' is already that of NIC 'a'"),
        "{refused}"
    );
    let path = Some("/run/vm/a".to_owned());
    controller.put_nic(Nic { path, ..client }).unwrap();
    assert_eq!(shared.log(), ["open a /run/vm/a", "close a"]);
}

#[test]
fn a_socket_is_given_to_others_and_back_when_a_later_step_fails() {
    let (mut controller, shared) = controller();
    let first = controller.put_nic(nic("a", 1, &[])).unwrap();
    shared.log();
    let group = |name: &str| NicUpdate {
        socket_group: Some(Some(name.to_owned())),
        ..NicUpdate::default()
    };
    let given = controller.update_nic(&nic_id("a"), group("kvm")).unwrap();
    assert_eq!(given.slot, first.slot);
    assert_eq!(shared.log(), [r#"give a ["kvm"]"#]);
    // Asked for again it is given to nobody.
    controller.update_nic(&nic_id("a"), group("kvm")).unwrap();
    assert!(shared.log().is_empty());

    shared.world().refused.insert("nobody".to_owned());
    let refused = controller.update_nic(&nic_id("a"), group("nobody"));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "NIC 'a': nobody: not permitted"
    );
    // What was refused has changed nothing.
    assert_eq!(shared.log(), [r#"give a ["nobody"]"#]);
    shared.world().refuse_publish = true;
    controller
        .update_nic(&nic_id("a"), group("other"))
        .unwrap_err();
    assert_eq!(shared.log(), [r#"give a ["other"]"#, r#"give a ["kvm"]"#]);
    let kvm = SocketAccess {
        group: Some("kvm".to_owned()),
        ..SocketAccess::default()
    };
    assert_eq!(controller.nic(&nic_id("a")).unwrap().nic.socket, kvm);
}

#[test]
fn a_replaced_nic_keeps_its_connection_and_a_new_address_its_flows() {
    let (mut controller, shared) = controller();
    let first = controller.put_nic(nic("a", 1, &[])).unwrap();
    controller.port_state(first.slot, NicState::Up);
    shared.log();

    let other_ip = NicUpdate {
        ips: Some(vec![ip("42.0.0.9")]),
        ..NicUpdate::default()
    };
    let second = controller.update_nic(&nic_id("a"), other_ip).unwrap();
    assert_eq!(
        (second.slot, second.uid, second.state.clone()),
        (first.slot, first.uid, NicState::Up)
    );
    assert_eq!(port(&controller, &shared, "a").addresses, [ip("42.0.0.9")]);
    assert!(shared.log().is_empty());

    let third = controller
        .put_nic(Nic {
            mac: wire::Mac([2, 0, 0, 0, 0, 7]),
            ..(*second.nic).clone()
        })
        .unwrap();
    assert_eq!(
        (third.slot, third.state.clone()),
        (first.slot, NicState::Up)
    );
    assert_ne!(
        third.uid, first.uid,
        "flows of the old MAC are not those of the new one"
    );
    assert_eq!(shared.log(), ["reconfigure 02:00:00:00:00:07 1500"]);

    let fourth = controller
        .put_nic(Nic {
            kind: NicKind::Tap,
            ..(*third.nic).clone()
        })
        .unwrap();
    assert_ne!((fourth.slot, fourth.uid), (third.slot, third.uid));
    assert_eq!(fourth.state, NicState::Down);
    assert_eq!(shared.log(), ["open a a", "close a"]);
    assert_eq!(shared.world().open.len(), 1);
}

#[test]
fn a_bench_is_told_its_new_addresses() {
    let (mut controller, shared) = controller();
    let kind = NicKind::Bench(crate::model::BenchKind::Receive);
    controller
        .put_nic(Nic {
            kind,
            ..nic("a", 1, &[])
        })
        .unwrap();
    let other_ip = NicUpdate {
        ips: Some(vec![ip("42.0.0.9")]),
        ..NicUpdate::default()
    };
    controller.update_nic(&nic_id("a"), other_ip).unwrap();
    assert_eq!(
        shared.log(),
        ["open a ", "reconfigure 52:54:00:12:34:01 1500"]
    );
}

#[test]
fn a_link_goes_down_and_up_and_its_guest_is_told_each_time() {
    let (mut controller, shared) = controller();
    controller.put_nic(nic("a", 1, &["42.0.0.1"])).unwrap();
    let link = |down| NicUpdate {
        link_down: Some(down),
        ..NicUpdate::default()
    };
    shared.log();
    for (down, told) in [
        (true, Some("reconfigure 52:54:00:12:34:01 1500 link down")),
        (true, None),
        (false, Some("reconfigure 52:54:00:12:34:01 1500")),
    ] {
        let status = controller.update_nic(&nic_id("a"), link(down)).unwrap();
        assert_eq!(status.nic.link_down, down);
        assert_eq!(port(&controller, &shared, "a").link_down, down);
        assert_eq!(shared.log(), told.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_deleted_nic_leaves_nothing_and_is_deleted_once() {
    let (mut controller, shared) = controller();
    let status = controller.put_nic(nic("a", 1, &["web"])).unwrap();
    assert_eq!(controller.delete_nic(&nic_id("a")).unwrap().nics.len(), 1);
    assert!(controller.delete_nic(&nic_id("a")).unwrap().is_empty());
    let world = shared.world();
    let snapshot = world.snapshots.last().unwrap();
    assert_eq!(world.snapshots.len(), 2);
    assert!(
        snapshot.ports.iter().all(Option::is_none) && snapshot.networks.iter().all(Option::is_none)
    );
    assert!(world.open.is_empty());
    drop(world);
    assert!(
        controller.state().groups.is_empty(),
        "nothing names the group any more"
    );
    assert_ne!(
        controller.put_nic(nic("a", 1, &[])).unwrap().uid,
        status.uid
    );
}

#[test]
fn sniffers_get_copies_whenever_their_target_is_there() {
    let (mut controller, shared) = controller();
    let sniffer = Nic {
        sniff_target: Some(nic_id("a")),
        ..nic("tap", 1, &[])
    };
    let sniffer = controller.put_nic(sniffer).unwrap();
    controller.put_nic(nic("a", 1, &[])).unwrap();
    assert_eq!(port(&controller, &shared, "a").sniffers, [sniffer.slot]);
    assert!(port(&controller, &shared, "tap").is_sniffer);
    let network = port(&controller, &shared, "a").network;
    let network = shared.world().snapshots.last().unwrap().networks[network.0 as usize]
        .clone()
        .unwrap();
    assert!(!network.ports.contains(&sniffer.slot) && network.macs.len() == 1);

    controller.delete_nic(&nic_id("a")).unwrap();
    controller.put_nic(nic("a", 1, &[])).unwrap();
    assert_eq!(port(&controller, &shared, "a").sniffers, [sniffer.slot]);
    controller.delete_nic(&nic_id("tap")).unwrap();
    assert!(port(&controller, &shared, "a").sniffers.is_empty());
    assert_eq!(controller.last_work().ports, 1);
}

/// The id of a NIC that is gone is anybody's, in any network.
#[test]
fn a_sniffer_of_a_network_hears_nobody_of_another_one() {
    let (mut controller, shared) = controller();
    let (own, other) = (nic("a", 1, &[]).vni, wire::Vni::new(43).unwrap());
    let sniffer = |sniff_vni| Nic {
        sniff_target: Some(nic_id("a")),
        sniff_vni,
        ..nic("tap", 1, &[])
    };
    let elsewhere = Nic {
        vni: other,
        ..nic("a", 1, &[])
    };
    let is_elsewhere =
        |controller: &Controller| controller.nic(&nic_id("tap")).unwrap().target_elsewhere;
    // How many hear it.
    let heard = |controller: &Controller| {
        let sniffers = port(controller, &shared, "a").sniffers.len();
        (sniffers, is_elsewhere(controller))
    };

    controller.put_nic(nic("a", 1, &[])).unwrap();
    controller.put_nic(sniffer(Some(own))).unwrap();
    assert_eq!(heard(&controller), (1, false));
    // Its target moves, or goes and another one comes.
    controller.put_nic(elsewhere.clone()).unwrap();
    assert_eq!(heard(&controller), (0, true));
    controller.delete_nic(&nic_id("a")).unwrap();
    assert!(!is_elsewhere(&controller));
    controller.put_nic(elsewhere).unwrap();
    assert_eq!(heard(&controller), (0, true));
    // Said so, it hears it; and so does one that a version of before has stored.
    for sniff_vni in [Some(other), None] {
        controller.put_nic(sniffer(sniff_vni)).unwrap();
        assert_eq!(heard(&controller), (1, false));
    }
    let none = Nic {
        sniff_vni: Some(own),
        ..nic("b", 2, &[])
    };
    let refused = controller.put_nic(none).unwrap_err();
    assert!(refused.to_string().contains("sniff VNI"), "{refused}");
}

#[test]
fn a_trace_is_opened_once_and_again_for_another_file() {
    let (mut controller, shared) = controller();
    controller
        .put_nic(Nic {
            packet_trace: true,
            ..nic("a", 1, &[])
        })
        .unwrap();
    let other_ip = NicUpdate {
        ips: Some(vec![]),
        ..NicUpdate::default()
    };
    controller.update_nic(&nic_id("a"), other_ip).unwrap();
    let other_file = NicUpdate {
        packet_trace_path: Some("/tmp/a.pcap".to_owned()),
        ..NicUpdate::default()
    };
    controller.update_nic(&nic_id("a"), other_file).unwrap();
    assert_eq!(
        shared.log()[1..],
        ["trace a /tmp/butterfly-42-a.pcap", "trace a /tmp/a.pcap"]
    );
}

#[test]
fn a_nic_counts_from_its_own_beginning() {
    let (mut controller, shared) = controller();
    let slot = controller.put_nic(nic("a", 1, &[])).unwrap().slot;
    let mut counted = PortCounters {
        rx_frames: 3,
        rx_bytes: 300,
        tx_frames: 1,
        tx_bytes: 60,
        ..Default::default()
    };
    counted.drops_from[DropReason::MacSpoofed as usize] = 2;
    shared.world().ports.insert(slot.0, counted.clone());
    let stats = controller.nic_stats(&nic_id("a")).unwrap();
    assert_eq!(
        (
            stats.bytes_in,
            stats.frames_in,
            stats.bytes_out,
            stats.frames_out
        ),
        (60, 1, 300, 3)
    );
    assert_eq!(
        (stats.drops_out, stats.drops_in),
        (vec![(DropReason::MacSpoofed, 2)], vec![])
    );

    controller.delete_nic(&nic_id("a")).unwrap();
    let again = controller.put_nic(nic("b", 1, &[])).unwrap();
    assert_eq!(again.slot, slot, "the slot is used again");
    counted.tx_bytes += 1000;
    shared.world().ports.insert(slot.0, counted);
    let stats = controller.nic_stats(&nic_id("b")).unwrap();
    assert_eq!(
        (stats.bytes_in, stats.bytes_out, stats.drops_out),
        (1000, 0, vec![])
    );
}

/// A guest moves from one host to another and back, and what one has said is heard twice, and late.
#[test]
fn counts_of_another_host_are_gone_on_from_and_never_counted_twice() {
    let hosts = [controller(), controller()];
    let [(mut one, on_one), (mut other, on_other)] = hosts;
    let id = nic_id("a");
    let slot = one.put_nic(nic("a", 1, &[])).unwrap().slot.0;
    assert_eq!(other.put_nic(nic("a", 1, &[])).unwrap().slot.0, slot);
    let counts = |frames: u64, kernel: u64, drops: u64| {
        let mut counted = PortCounters {
            rx_frames: frames,
            rx_bytes: 100 * frames,
            kernel_frames: kernel,
            ..Default::default()
        };
        counted.drops_to[DropReason::MacSpoofed as usize] = drops;
        counted
    };
    let said = |controller: &crate::Controller| {
        let stats = controller.nic_stats(&id).unwrap();
        let drops: u64 = stats.drops_in.iter().map(|(_, frames)| frames).sum();
        let kernel = stats.kernel_out;
        assert_eq!(stats.bytes_out, 100 * stats.frames_out);
        (stats.frames_out, kernel, drops)
    };
    on_one.world().ports.insert(slot, counts(100, 7, 1));
    // What came for it where it waits.
    on_other.world().ports.insert(slot, counts(0, 0, 3));
    for _ in 0..2 {
        other.count_on(&id, &counts(100, 7, 1)).unwrap();
        assert_eq!(said(&other), (100, 7, 3), "of each the larger one");
    }
    on_other.world().ports.insert(slot, counts(50, 2, 4));
    other.count_on(&id, &counts(100, 7, 1)).unwrap();
    assert_eq!(said(&other), (150, 9, 4), "a late one is no new one");
    // Back again: what it says has what was counted here in it.
    for _ in 0..2 {
        one.count_on(&id, &counts(150, 9, 4)).unwrap();
        assert_eq!(said(&one), (150, 9, 4));
    }
    on_one.world().ports.insert(slot, counts(101, 7, 1));
    assert_eq!(said(&one), (151, 9, 4));
    let nobody = one.count_on(&nic_id("b"), &counts(1, 0, 0));
    assert!(matches!(nobody, Err(crate::Error::NoNic(_))), "{nobody:?}");
}

#[test]
fn lenient_nics_may_share_a_mac_and_have_addresses_that_are_no_host_s() {
    let (mut controller, shared) = controller();
    let lenient = |id: &str, last| Nic {
        lenient: true,
        mac: wire::Mac([0x52, 0x54, 0, 0x12, 0x34, 1]),
        ..nic(id, last, &["web"])
    };
    let network = |controller: &crate::Controller, shared: &Shared| {
        let at = port(controller, shared, "a").network.0 as usize;
        let networks = shared.world().snapshots.last().unwrap().networks.clone();
        networks[at].clone().unwrap()
    };
    let slot = |controller: &crate::Controller, id: &str| controller.nic(&nic_id(id)).unwrap().slot;
    controller.put_nic(lenient("b", 2)).unwrap();
    controller.put_nic(lenient("a", 1)).unwrap();
    let mac = lenient("a", 1).mac;
    let both = [slot(&controller, "a"), slot(&controller, "b")];
    assert_eq!(network(&controller, &shared).holders(&mac), Some(&both[..]));
    assert_eq!(network(&controller, &shared).only_holder(&mac), None);
    // One that is not lenient neither takes it nor lets it be taken.
    let strict = Nic {
        lenient: false,
        ..lenient("c", 3)
    };
    let refused = controller.put_nic(strict.clone()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "NIC 'c': MAC 52:54:00:12:34:01 is already that of NIC 'a' in VNI 42"
    );
    controller.delete_nic(&nic_id("b")).unwrap();
    assert_eq!(
        network(&controller, &shared).only_holder(&mac),
        Some(both[0])
    );

    let texts = [
        "0.0.0.0",
        "::",
        "255.255.255.255",
        "224.0.0.1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "42.0.0.1",
    ];
    let odd = Nic {
        ips: texts.map(ip).to_vec(),
        ..lenient("a", 1)
    };
    let status = controller.put_nic(odd.clone()).unwrap();
    assert_eq!(status.nic.ips, odd.ips, "given back");
    assert_eq!(
        port(&controller, &shared, "a").addresses,
        [ip("42.0.0.1")],
        "and not used"
    );
    let strict = Nic {
        lenient: false,
        ..odd
    };
    assert!(
        controller
            .put_nic(strict)
            .unwrap_err()
            .to_string()
            .contains("IP '0.0.0.0' is not")
    );
}

#[test]
fn an_address_is_one_nic_s_unless_all_share_it() {
    let (mut controller, _shared) = controller();
    let at = |id: &str, last: u8, shared| Nic {
        ips: vec![ip("42.0.0.9")],
        shared,
        ..nic(id, last, &[])
    };
    controller.put_nic(at("a", 1, false)).unwrap();
    let refused = "NIC 'b': address 42.0.0.9 is already that of NIC 'a' in VNI 42; two have one \
                   only if both say that it is shared";
    for shared in [false, true] {
        let error = controller.put_nic(at("b", 2, shared)).unwrap_err();
        assert_eq!(error.to_string(), refused);
    }
    controller.put_nic(at("a", 1, true)).unwrap();
    assert!(controller.put_nic(at("b", 2, false)).is_err());
    controller.put_nic(at("b", 2, true)).unwrap();
    // Neither of the two takes its word back while the other is there.
    assert!(controller.put_nic(at("a", 1, false)).is_err());
    controller.delete_nic(&nic_id("a")).unwrap();
    controller.put_nic(at("b", 2, false)).unwrap();
    // In another network it is another one; who hears a copy sends nothing from it.
    let elsewhere = Nic {
        vni: wire::Vni::new(43).unwrap(),
        ..at("c", 3, false)
    };
    controller.put_nic(elsewhere).unwrap();
    let sniffer = Nic {
        sniff_target: Some(nic_id("b")),
        ..at("d", 4, false)
    };
    controller.put_nic(sniffer).unwrap();
    // As the original, lenient ones share what they like.
    let lenient = |id, last| Nic {
        lenient: true,
        vni: wire::Vni::new(44).unwrap(),
        ..at(id, last, false)
    };
    controller.put_nic(lenient("e", 5)).unwrap();
    controller.put_nic(lenient("f", 6)).unwrap();
}

//! Every refusal, its sentence, and that it changes nothing.

use super::world::*;
use crate::Controller;
use crate::model::{AddressPair, Nic, NicKind, NicUpdate, Peer, Timeouts, VhostMode};

type Operation = fn(&mut Controller) -> Result<(), crate::Error>;

fn put(controller: &mut Controller, change: impl FnOnce(&mut Nic)) -> Result<(), crate::Error> {
    let mut changed = nic("a", 1, &["web"]);
    change(&mut changed);
    controller.put_nic(changed).map(drop)
}

#[test]
fn a_refusal_names_the_thing_and_the_value_and_changes_nothing() {
    let refusals: &[(Operation, &str)] = &[
        (
            |c| put(c, |nic| nic.mac = wire::Mac([1, 0, 0, 0, 0, 1])),
            "NIC 'a': MAC '01:00:00:00:00:01' is a group address, a NIC cannot send from it",
        ),
        (
            |c| put(c, |nic| nic.mac = wire::Mac([0; 6])),
            "NIC 'a': MAC '00:00:00:00:00:00' is nobody's address, no driver takes it",
        ),
        (
            |c| put(c, |nic| nic.ips = vec![ip("255.255.255.255")]),
            "NIC 'a': IP '255.255.255.255' is not the address of one host",
        ),
        (
            |c| put(c, |nic| nic.mac = wire::Mac([0x52, 0x54, 0, 0x12, 0x34, 2])),
            "NIC 'a': MAC 52:54:00:12:34:02 is already that of NIC 'b' in VNI 42",
        ),
        (
            |c| put(c, |nic| nic.ips.push(ip("0.0.0.0"))),
            "NIC 'a': IP '0.0.0.0' is not the address of one host",
        ),
        (
            |c| put(c, |nic| nic.ips.push(ip("ff02::1"))),
            "NIC 'a': IP 'ff02::1' is not the address of one host",
        ),
        (
            |c| put(c, |nic| nic.sniff_target = Some(nic_id("a"))),
            "NIC 'a' cannot be its own sniff target",
        ),
        (
            |c| put(c, |nic| nic.mtu = Some(67)),
            "NIC 'a': MTU '67' is below the smallest, 68",
        ),
        (
            |c| put(c, |nic| nic.path = Some("here".to_owned())),
            "NIC 'a': path 'here' is not an absolute path",
        ),
        (
            |c| {
                put(c, |nic| {
                    nic.path = Some("/run/butterfly/qemu-vhost-b".to_owned())
                })
            },
            "NIC 'a': path '/run/butterfly/qemu-vhost-b' is already that of NIC 'b'",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.kind, nic.path) = (NicKind::Tap, Some("tap%d".to_owned()))
                })
            },
            "NIC 'a': path 'tap%d' is not the name of a network interface",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.kind, nic.vhost_mode) = (NicKind::Tap, VhostMode::Client)
                })
            },
            "NIC 'a': vhost mode 'client' goes with a vhost-user NIC alone",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.kind, nic.socket.group) = (NicKind::Tap, Some("kvm".to_owned()))
                })
            },
            "NIC 'a': socket group 'kvm' goes with a vhost-user NIC alone",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.vhost_mode, nic.socket.mode) = (VhostMode::Client, Some(0o60))
                })
            },
            "NIC 'a': socket mode '060' is for a socket that the daemon makes: this one is its \
             VMM's (vhost mode client), which says itself whose it is",
        ),
        (
            |c| put(c, |nic| nic.socket.owner = Some("a b".to_owned())),
            "NIC 'a': socket owner 'a b' cannot be a name or a number",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.packet_trace, nic.packet_trace_path) =
                        (true, Some("/root/a.pcap".to_owned()))
                })
            },
            "NIC 'a': packet trace path '/root/a.pcap' is not a file beneath /tmp, the folder of \
             traces (trace-dir in the settings, --trace-dir)",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.packet_trace, nic.packet_trace_path) = (true, Some("../a.pcap".to_owned()))
                })
            },
            "NIC 'a': packet trace path '/tmp/../a.pcap' is not a file beneath /tmp, the folder of \
             traces (trace-dir in the settings, --trace-dir)",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.packet_trace, nic.packet_trace_path) =
                        (true, Some("/tmp/butterfly-42-b.pcap".to_owned()))
                })
            },
            "NIC 'a': path '/tmp/butterfly-42-b.pcap' is already that of NIC 'b'",
        ),
        (
            |c| {
                put(c, |nic| {
                    (nic.packet_trace, nic.packet_trace_path) =
                        (true, Some("/tmp/forbidden".to_owned()))
                })
            },
            "NIC 'a': /tmp/forbidden: permission denied",
        ),
        (
            |c| put(c, |nic| nic.path = Some("/tmp/forbidden".to_owned())),
            "NIC 'a': /tmp/forbidden: permission denied",
        ),
        (
            |c| {
                put(c, |nic| {
                    nic.timeouts = Timeouts {
                        tcp_established_secs: 59,
                        ..nic.timeouts
                    }
                })
            },
            "NIC 'a': TCP timeout '59' is not within 60 and 432000 seconds",
        ),
        (
            |c| {
                put(c, |nic| {
                    nic.timeouts = Timeouts {
                        udp_secs: 61,
                        ..nic.timeouts
                    }
                })
            },
            "NIC 'a': UDP timeout '61' is not within 30 and 60 seconds",
        ),
        (
            |c| {
                put(c, |nic| {
                    nic.timeouts = Timeouts {
                        udp_stream_secs: 181,
                        ..nic.timeouts
                    }
                })
            },
            "NIC 'a': UDP stream timeout '181' is not within 60 and 180 seconds",
        ),
        (
            |c| {
                c.update_nic(&nic_id("nobody"), NicUpdate::default())
                    .map(drop)
            },
            "there is no NIC 'nobody'",
        ),
        (
            |c| c.nic(&nic_id("nobody")).map(drop),
            "there is no NIC 'nobody'",
        ),
        (
            |c| c.nic_stats(&nic_id("nobody")).map(drop),
            "there is no NIC 'nobody'",
        ),
        (
            |c| c.export_flows(Some(&nic_id("nobody"))).map(drop),
            "there is no NIC 'nobody'",
        ),
        (
            |c| c.group(&group_id("nobody")).map(drop),
            "there is no security group 'nobody'",
        ),
        (
            |c| c.group_stats(&group_id("nobody")).map(drop),
            "there is no security group 'nobody'",
        ),
        (
            |c| {
                let nics = [(nic_id("x"), nic("y", 3, &[]))].into();
                c.apply(
                    crate::model::Config {
                        nics,
                        ..Default::default()
                    },
                    false,
                )
                .map(drop)
            },
            "NIC 'y': key 'x' is not its id",
        ),
    ];
    let (mut controller, shared) = controller();
    controller.put_nic(nic("a", 1, &["web"])).unwrap();
    controller
        .put_nic(Nic {
            packet_trace: true,
            ..nic("b", 2, &["web"])
        })
        .unwrap();
    controller
        .put_group(group("web", &["42.0.0.9"], &[tcp(80, Peer::Any)]))
        .unwrap();
    shared.world().refused.insert("/tmp/forbidden".to_owned());
    for (operation, sentence) in refusals {
        assert_eq!(refused(&mut controller, &shared, operation), *sentence);
    }
}

#[test]
fn one_mac_and_address_may_be_twice_where_they_do_not_meet() {
    let (mut controller, _shared) = controller();
    controller.put_nic(nic("a", 1, &[])).unwrap();
    controller
        .put_nic(Nic {
            vni: wire::Vni::new(51).unwrap(),
            ..nic("b", 1, &[])
        })
        .unwrap();
    controller
        .put_nic(Nic {
            sniff_target: Some(nic_id("a")),
            ..nic("c", 1, &[])
        })
        .unwrap();
    assert_eq!(controller.nic_ids().len(), 3);
}

#[test]
fn address_pairs_lose_host_bits_and_repetitions() {
    let (mut controller, _shared) = controller();
    let pair = |net: &str| AddressPair {
        net: net.parse().unwrap(),
        mac: None,
    };
    let put = Nic {
        allowed_address_pairs: vec![pair("10.0.0.1/8"), pair("10.0.0.0/8")],
        ..nic("a", 1, &[])
    };
    let status = controller.put_nic(put).unwrap();
    assert_eq!(status.nic.allowed_address_pairs, [pair("10.0.0.0/8")]);
}

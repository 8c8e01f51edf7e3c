//! NextHopTask by what the kernel says: straight, by gateways, in a VLAN, with and without
//! neighbours.

use std::sync::{Arc, Mutex};

use dataplane::overlay::{HostIdx, Overlay};
use dataplane::{
    Network, NetworkIdx, PortConfig, PortSlot, PortUid, Simulation, Snapshot as Config,
};
use netlink::{Hop as KernelHop, Link, Mirror, Neighbour, Resolution, RouteKind, Snapshot, Vlan};
use wire::{Mac, Vni, build};

use super::paths::{Asked, endpoints, homes, keep_heaviest, next_hops, to_group};
use super::*;
use crate::start_gate::StartGate;

const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const REACHABLE: u16 = 2;
const STALE: u16 = 4;

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(index: u32, vlan: Option<Vlan>) -> Arc<Link> {
    Arc::new(Link {
        index,
        name: format!("eth{index}"),
        mac: Some(mac(index as u8)),
        mtu: 1500,
        up: true,
        carrier: true,
        loopback: false,
        no_arp: false,
        ethernet: true,
        kind: None,
        vlan,
        master: None,
        held_back: false,
        rx_queues: 1,
        tx_queues: 1,
        xdp_program: None,
    })
}

/// eth1 is an uplink, eth7 its VLAN 100, eth9 none; 192.0.2.2 and .3 are known on eth1, .2 on eth7
/// too.
fn kernel() -> Snapshot {
    let mut kernel = Snapshot::default();
    let vlan = Vlan {
        parent: 1,
        id: 100,
        protocol: 0x8100,
        maps_priorities: false,
    };
    for link in [link(1, None), link(7, Some(vlan)), link(9, None)] {
        kernel.links.insert(link.index, link);
    }
    for (ifindex, last, state) in [(1, 2, REACHABLE), (1, 3, STALE), (7, 2, REACHABLE)] {
        let ip = IpAddr::from([192, 0, 2, last]);
        let neighbour = Neighbour {
            ifindex,
            ip,
            mac: Some(mac(0x10 + last)),
            state,
            router: false,
        };
        kernel.neighbours.insert((ifindex, ip), neighbour);
    }
    kernel
}

/// The same, where our address is on this interface; 5 is a loopback.
fn kernel_with_ours_on(ifindex: u32) -> Snapshot {
    let mut kernel = kernel();
    let loopback = Link {
        loopback: true,
        ..(*link(5, None)).clone()
    };
    kernel.links.insert(5, Arc::new(loopback));
    let address = netlink::Address {
        ifindex,
        ip: OURS,
        prefix_len: 24,
        peer: None,
        broadcast: None,
        scope: 0,
        flags: 0,
        label: String::new(),
    };
    kernel.addresses.insert((ifindex, OURS), Arc::new(address));
    kernel
}

fn fact() -> Fact {
    Fact {
        number: 0,
        interface: "eth1".to_owned(),
        ifindex: 1,
        joined: true,
        mode: "AF_XDP".to_owned(),
        why: String::new(),
        queues: 1,
        mtu: 1500,
        up: true,
        tap: false,
        of_kernel: true,
        mac: Some(mac(1)),
        addresses: vec![OURS],
    }
}

fn route(hops: &[(u32, Option<&str>, u32)]) -> Resolution {
    let hop = |(ifindex, gateway, weight): &(u32, Option<&str>, u32)| KernelHop {
        gateway: gateway.map(ip),
        ifindex: *ifindex,
        weight: *weight,
        onlink: false,
        encapsulates: false,
    };
    Resolution {
        kind: RouteKind::Unicast,
        table: 254,
        prefix: "0.0.0.0/0".parse().unwrap(),
        hops: hops.iter().map(hop).collect(),
        source: Some(OURS),
        mtu: None,
    }
}

fn hop(last: u8) -> Hop {
    Hop {
        uplink: PortSlot::uplink(0),
        src_mac: mac(1),
        dst_mac: mac(0x10 + last),
        vlan: None,
        source: OURS,
        mtu: 1500,
        weight: 1,
        device: 1,
    }
}

fn found(target: &str, resolution: &Resolution) -> Vec<NextHop> {
    next_hops(ip(target), resolution, &[], &[fact()], &kernel())
}

#[test]
fn a_neighbour_is_reached_straight_and_who_is_stale_is_asked_for() {
    let straight = route(&[(1, None, 1)]);
    let known = |last, ask| {
        vec![NextHop::Known {
            hop: hop(last),
            ask,
        }]
    };
    assert_eq!(found("192.0.2.2", &straight), known(2, None));
    let asked = |last| Asked {
        ifindex: 1,
        neighbour: IpAddr::from([192, 0, 2, last]),
    };
    assert_eq!(found("192.0.2.3", &straight), known(3, Some(asked(3))));
    assert_eq!(found("192.0.2.4", &straight), [NextHop::Ask(asked(4))]);
}

#[test]
fn gateways_share_by_weight_and_a_way_by_no_uplink_is_none() {
    let shared = route(&[
        (1, Some("192.0.2.2"), 1),
        (1, Some("192.0.2.3"), 3),
        (9, Some("192.0.2.2"), 1),
    ]);
    let hops: Vec<Hop> = found("198.51.100.7", &shared)
        .into_iter()
        .map(|next_hop| match next_hop {
            NextHop::Known { hop, .. } => hop,
            NextHop::Ask(asked) => panic!("{asked:?}"),
        })
        .collect();
    assert_eq!(
        hops,
        [
            hop(2),
            Hop {
                weight: 3,
                ..hop(3)
            }
        ]
    );
}

/// One host with more next hops than the data plane takes keeps no other host's from changing.
#[test]
fn of_too_many_gateways_those_of_the_largest_weight_are_taken() {
    let all: Vec<Hop> = (1..=HOPS_MAX as u16 + 2)
        .map(|n| Hop {
            // The lightest are amid the others.
            weight: if n == 7 || n == 30 { 1 } else { 2 },
            mtu: 1400 + n,
            ..hop(2)
        })
        .collect();
    let mut kept = all.clone();
    assert!(keep_heaviest(&mut kept));
    let heavy: Vec<Hop> = all.iter().filter(|hop| hop.weight == 2).cloned().collect();
    assert_eq!(kept, heavy);
    let paths = [(ip("192.0.2.2"), kept.clone()), (ip("192.0.2.3"), all)];
    let published =
        |(host, hops)| Underlay::new(Encapsulation::default(), [(OURS, 0)], [(host, hops)]);
    assert_eq!(paths.map(|path| published(path).is_ok()), [true, false]);
    assert!(!keep_heaviest(&mut kept));
    assert_eq!(kept, heavy);
}

#[test]
fn a_vlan_s_frames_are_tagged_and_a_route_s_mtu_counts() {
    let tagged = Resolution {
        mtu: Some(1400),
        ..route(&[(7, None, 1)])
    };
    let expected = Hop {
        src_mac: mac(7),
        vlan: Some(100),
        device: 0,
        mtu: 1400,
        ..hop(2)
    };
    assert_eq!(
        found("192.0.2.2", &tagged),
        [NextHop::Known {
            hop: expected,
            ask: None
        }]
    );
    let narrow = Resolution {
        mtu: Some(100),
        ..tagged
    };
    assert_eq!(found("192.0.2.2", &narrow), []);
}

#[test]
fn there_is_no_way_to_ourselves_or_by_a_link_that_is_down() {
    let ourselves = Resolution {
        kind: RouteKind::Local,
        ..route(&[(1, None, 1)])
    };
    assert_eq!(found("192.0.2.1", &ourselves), []);
    let down = Fact {
        up: false,
        ..fact()
    };
    assert_eq!(
        next_hops(
            ip("192.0.2.2"),
            &route(&[(1, None, 1)]),
            &[],
            &[down],
            &kernel()
        ),
        []
    );
}

#[test]
fn a_group_goes_by_the_interface_of_our_address() {
    let kernel = kernel_with_ours_on(7);
    let homes = homes(&[OURS], &[fact()], &kernel);
    let expected = Hop {
        src_mac: mac(7),
        dst_mac: Mac([0x01, 0x00, 0x5e, 0x0a, 0x0b, 0x0c]),
        vlan: Some(100),
        device: 0,
        ..hop(0)
    };
    let hop = to_group(ip("230.138.11.12"), &homes, &[fact()], &kernel);
    assert_eq!(hop, Some(expected));
    assert_eq!(
        to_group(ip("ff05::1"), &homes, &[fact()], &kernel),
        None,
        "we have no address of IPv6"
    );
}

#[test]
fn our_address_is_reached_in_the_vlans_of_its_interface() {
    for (ifindex, vlans, traced) in [
        (1, &[0][..], None),
        (7, &[100], Some(100)),
        (9, &[0], None),
        // It comes in by all uplinks, and in the VLANs on them.
        (5, &[0, 100], None),
    ] {
        let kernel = kernel_with_ours_on(ifindex);
        let homes = homes(&[OURS], &[fact()], &kernel);
        let expected: BTreeSet<_> = vlans.iter().map(|vlan| (OURS, *vlan)).collect();
        assert_eq!(endpoints(&homes, &[fact()], &kernel), expected);
        assert_eq!(vlan_of(OURS, &[fact()], &kernel), traced);
    }
}

#[test]
fn what_is_left_of_an_mtu() {
    assert_eq!(inner_mtu(&[OURS], &[fact()]), Some(1450));
    assert_eq!(inner_mtu(&[ip("fd00::1")], &[fact()]), Some(1430));
    let wide = Fact {
        mtu: 9000,
        ..fact()
    };
    assert_eq!(inner_mtu(&[], &[fact(), wide]), Some(1450));
    assert_eq!(inner_mtu(&[OURS], &[]), None);
}

/// NIC 0 in a network with a machine at 192.0.2.2, which the underlay does not know; the NIC sends
/// it a frame.
fn frame_for_a_stranger() -> Simulation {
    let mut sim = Simulation::default();
    let guest = sim.attach(PortSlot(0));
    let (vni, far) = (Vni::new(7).unwrap(), mac(0x22));
    let nic = PortConfig {
        name: "nic".into(),
        bypass: true,
        flow_share: 1000,
        ..PortConfig::new(PortSlot(0), PortUid(1), vni, NetworkIdx(0), mac(0x21))
    };
    let mut overlay = Overlay::new(PortUid(2));
    overlay.members = [HostIdx(0)].into();
    overlay.bindings.insert(far, HostIdx(0));
    let network = Network {
        vni,
        macs: [(nic.mac, nic.slot)].into_iter().collect(),
        ports: [nic.slot].into_iter().collect(),
        shared: Default::default(),
        learners: Default::default(),
        overlay: Some(Arc::new(overlay)),
    };
    let frame = build::frame(nic.mac, far).ip([10, 0, 0, 1], [10, 0, 0, 2]);
    sim.publish(Config {
        ports: [Some(Arc::new(nic))].into_iter().collect(),
        networks: [Some(Arc::new(network))].into_iter().collect(),
        hosts: [Some(ip("192.0.2.2"))].into_iter().collect(),
        ..Config::default()
    });
    assert!(guest.send(frame.udp(1, 2).build(), Default::default()));
    sim.run();
    sim
}

/// A worker calls once; what waits for that may have been given up for something else meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn whom_workers_ask_for_is_looked_for_whatever_woke_us() {
    let mut sim = frame_for_a_stranger();
    let kernel = Arc::new(Mirror::start().await.unwrap());
    let options = uplink::Options {
        port: 4789,
        groups: None,
        frames: 64,
        packet: false,
        busy_poll: false,
    };
    let uplinks = Uplinks::start(
        uplink::UplinkSettings::default(),
        options,
        Arc::new(Mutex::new(xdp::Interfaces::new())),
        Arc::new(StartGate::new(sim.switch())),
        kernel,
        crate::uplinks::breaks().1,
        |engine| engine,
    );
    let settings = UnderlayOptions {
        addresses: Vec::new(),
        encapsulation: Encapsulation::default(),
        follow_mtu: false,
    };
    let mut task = NextHopTask::new(settings, sim.switch(), &uplinks).unwrap();
    // Nothing is to be published: no thread runs the worker.
    task.published = Some(Known {
        endpoints: BTreeSet::new(),
        paths: BTreeMap::new(),
    });
    task.renew().await;
    let looked_for: Vec<_> = task.sought.looked_for(Instant::now()).copied().collect();
    assert_eq!(looked_for, [ip("192.0.2.2")]);
    assert_eq!(sim.load().waiting_frames, 1);
}

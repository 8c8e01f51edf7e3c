//! By a packet socket: of frames in VLANs, and of those for other hosts, what the kernel would take
//! itself. The other end of the wire is ours, behind a TAP device.

use std::net::Ipv4Addr;
use std::sync::Arc;

use io::frame::Batch;
use io::packet_socket::{PacketOptions, PacketPort, Packets};
use io::port::Port;
use io::uplink::UplinkPort;
use io::xsk::Link;
use testkit::PATIENCE;
use testkit::cable::Cable;
use testkit::netns::Namespace;
use wire::offload::Offload;
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni, build, checksum};

const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIR_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 0, 3]);
const GROUP: Ipv4Addr = Ipv4Addr::new(230, 0, 0, 1);
/// The source port of the frame behind all others.
const LAST: u16 = 99;

/// VXLAN from 192.0.2.2 with this tag, told by its source port.
fn packet(to: Mac, dst: Ipv4Addr, tci: Option<u16>, sport: u16) -> Vec<u8> {
    let ends = Ends::V4(Ipv4Addr::new(192, 0, 2, 2), dst);
    let (macs, none) = ((THEIR_MAC, to), UdpChecksum::Zero);
    let mut outer = Outer::new(macs, tci, ends, 64, vxlan::PORT, none);
    outer.set_flow(Vni::new(42).unwrap(), sport, 0);
    let inner = build::frame(THEIR_MAC, OUR_MAC).ip([10, 0, 0, 2], [10, 0, 0, 1]);
    let inner = inner.udp(1, 2).build();
    let mut frame = vec![0; outer.len()];
    outer.write(&mut frame, inner.len(), checksum::sum(&inner));
    frame.extend_from_slice(&inner);
    frame
}

/// Source port and VLAN of each frame that the port takes up to the last one.
fn taken(cable: &mut Cable, port: PacketPort) -> Vec<(u16, u16)> {
    let ours = Ipv4Addr::new(192, 0, 2, 1);
    for frame in [
        packet(OUR_MAC, ours, None, 1),
        packet(OUR_MAC, ours, Some(0xe000), 2),
        packet(OUR_MAC, ours, Some(200), 3),
        packet(OTHER_MAC, ours, None, 4),
        packet(OTHER_MAC, ours, Some(200), 5),
        packet(Mac::of_group(GROUP.into()), GROUP, None, 6),
        packet(Mac::of_group(GROUP.into()), GROUP, Some(200), 7),
        packet(OUR_MAC, ours, None, LAST),
    ] {
        cable.send(&frame, Offload::default()).unwrap();
    }
    let mut port = Port::from(UplinkPort::from(port));
    let (mut batch, mut came) = (Batch::new(), Vec::new());
    let is_last = || {
        port.receive(&mut batch).map_err(|e| e.to_string())?;
        for index in 0..batch.len() {
            let frame = batch.to_bytes(index);
            let outer = vxlan::parse(&frame, frame.len(), vxlan::PORT).unwrap();
            came.push((outer.sport, outer.vlan));
        }
        port.complete(&mut batch);
        batch.clear();
        Ok(came
            .last()
            .is_some_and(|(sport, _)| *sport == LAST)
            .then_some(()))
    };
    testkit::wait_for("the last frame", PATIENCE, is_last).unwrap();
    came
}

fn options(ifindex: u32, packets: Packets) -> PacketOptions {
    PacketOptions {
        interface: "eth0".to_owned(),
        ifindex,
        port: vxlan::PORT,
        packets,
        link: Arc::new(Link::new(1500, true)),
    }
}

/// What a socket takes that is opened so, and one that another process had for something else.
fn by(packets: Packets, expected: &[(u16, u16)]) {
    let namespace = Namespace::new().unwrap();
    let mut cable = namespace
        .inside(|| Cable::new("eth0", OUR_MAC).unwrap())
        .unwrap();
    let options = options(namespace.ifindex("eth0").unwrap(), packets);
    let opened = namespace.inside(|| PacketPort::open(&options).unwrap());
    assert_eq!(taken(&mut cable, opened.unwrap()), expected, "{packets:?}");
    let adopted = namespace.inside(|| {
        let theirs = PacketOptions {
            port: vxlan::PORT + 1,
            packets: Packets::All,
            ..options.clone()
        };
        let theirs = PacketPort::open(&theirs).unwrap();
        let socket = theirs.socket().upgrade().unwrap().try_clone().unwrap();
        drop(theirs);
        PacketPort::adopt(&options, socket).unwrap()
    });
    assert_eq!(taken(&mut cable, adopted.unwrap()), expected, "{packets:?}");
}

/// Its packets have lost their tags when they come to it.
#[test]
fn a_socket_of_one_family_takes_what_is_in_no_vlan() {
    by(Packets::V4, &[(1, 0), (2, 0), (6, 0), (LAST, 0)]);
}

/// Of these the data plane takes those in the VLANs of our addresses, which may have hardware
/// addresses of their own.
#[test]
fn a_socket_for_all_packets_says_in_which_vlan_each_is() {
    let expected = [
        (1, 0),
        (2, 0),
        (3, 200),
        (5, 200),
        (6, 0),
        (7, 200),
        (LAST, 0),
    ];
    by(Packets::All, &expected);
}

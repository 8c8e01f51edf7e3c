//! The program's verdicts, one packet at a time (BPF_PROG_TEST_RUN), with a socket that it may give
//! packets to.

use std::net::IpAddr;
use std::sync::Arc;

use butterfly_uplink::{Groups, Program};
use io::xsk::{Link, XskOptions, XskPort};
use testkit::netns::Namespace;
use testkit::{PATIENCE, wait_for};
use wire::vxlan::{Ends, Outer, UdpChecksum};
use wire::{Mac, Vni};
use xdp::Verdict;

const PORT: u16 = 4789;
const US: &str = "192.0.2.1";
const US6: &str = "2001:db8::1";

/// An outer packet to `dst` around 60 bytes, in a VLAN or in none.
fn packet(dst: &str, vlan: Option<u16>) -> Vec<u8> {
    let dst: IpAddr = dst.parse().unwrap();
    let src: IpAddr = if dst.is_ipv4() {
        "192.0.2.2"
    } else {
        "2001:db8::2"
    }
    .parse()
    .unwrap();
    let macs = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    let mut outer = Outer::new(
        macs,
        vlan,
        Ends::new(src, dst).unwrap(),
        64,
        PORT,
        UdpChecksum::Zero,
    );
    outer.set_flow(Vni::new(42).unwrap(), 50_000, 0);
    let mut frame = vec![0xa5; outer.len() + 60];
    outer.write(&mut frame, 60, 0);
    frame
}

/// [`packet`] with the bytes at these offsets changed.
fn changed(dst: &str, vlan: Option<u16>, changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = packet(dst, vlan);
    for &(at, byte) in changes {
        frame[at] = byte;
    }
    frame
}

/// A second tag in front of the first.
fn tagged_twice() -> Vec<u8> {
    let mut frame = packet(US, Some(7));
    frame.splice(12..12, [0x88, 0xa8, 0, 5]);
    frame
}

/// Four bytes of options behind an IPv4 header.
fn with_options() -> Vec<u8> {
    let mut frame = changed(US, None, &[(14, 0x46)]);
    frame.splice(34..34, [1, 1, 1, 1]);
    frame
}

/// An empty destination-options header behind an IPv6 header.
fn with_extension() -> Vec<u8> {
    let mut frame = changed(US6, None, &[(20, 60)]);
    frame.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
    frame
}

fn table() -> Vec<(&'static str, Vec<u8>, Verdict)> {
    use Verdict::{Pass, Redirect};
    vec![
        ("VXLAN to us", packet(US, None), Redirect),
        ("over IPv6", packet(US6, None), Redirect),
        (
            "in the address's VLAN",
            packet("192.0.2.3", Some(7)),
            Redirect,
        ),
        (
            "in it with a priority",
            packet("192.0.2.3", Some(0xe007)),
            Redirect,
        ),
        ("with a priority tag", packet(US, Some(0xe000)), Redirect),
        ("to a multicast group", packet("230.9.8.7", None), Redirect),
        (
            "with a UDP checksum",
            changed(US, None, &[(40, 1), (41, 2)]),
            Redirect,
        ),
        (
            "without the VNI flag",
            changed(US, None, &[(42, 0)]),
            Redirect,
        ),
        (
            "don't fragment or not",
            changed(US, None, &[(20, 0)]),
            Redirect,
        ),
        (
            "cut short behind UDP",
            packet(US, None)[..42].to_vec(),
            Redirect,
        ),
        ("cut short in UDP", packet(US, None)[..41].to_vec(), Pass),
        ("cut short in IPv4", packet(US, None)[..33].to_vec(), Pass),
        ("cut short in IPv6", packet(US6, None)[..53].to_vec(), Pass),
        (
            "cut short in the tag",
            packet("192.0.2.3", Some(7))[..17].to_vec(),
            Pass,
        ),
        ("Ethernet alone", packet(US, None)[..14].to_vec(), Pass),
        ("to another host", packet("192.0.2.9", None), Pass),
        (
            "over IPv6 to another host",
            packet("2001:db8::9", None),
            Pass,
        ),
        ("to another group", packet("231.9.8.7", None), Pass),
        ("to a group of IPv6", packet("ff05::1", None), Pass),
        ("in a VLAN the address is not in", packet(US, Some(7)), Pass),
        ("in another VLAN", packet("192.0.2.3", Some(8)), Pass),
        ("in no VLAN", packet("192.0.2.3", None), Pass),
        (
            "to a group in a VLAN without address",
            packet("230.9.8.7", Some(8)),
            Pass,
        ),
        ("in two tags", tagged_twice(), Pass),
        ("to another port", changed(US, None, &[(37, 0xb4)]), Pass),
        ("TCP", changed(US, None, &[(23, 6)]), Pass),
        ("TCP over IPv6", changed(US6, None, &[(20, 6)]), Pass),
        ("ARP", changed(US, None, &[(13, 6)]), Pass),
        ("the first fragment", changed(US, None, &[(20, 0x20)]), Pass),
        ("a later fragment", changed(US, None, &[(21, 5)]), Pass),
        ("a fragment of IPv6", changed(US6, None, &[(20, 44)]), Pass),
        ("IPv4 options", with_options(), Pass),
        ("a header too short", changed(US, None, &[(14, 0x44)]), Pass),
        ("version 5", changed(US, None, &[(14, 0x55)]), Pass),
        ("IPv6 of version 4", changed(US6, None, &[(14, 0x40)]), Pass),
        ("an IPv6 extension", with_extension(), Pass),
    ]
}

#[test]
fn vxlan_for_us_is_taken_and_all_else_is_the_kernel_s() {
    on_wire("", verdicts);
}

/// The program finds such an interface by a search only.
#[test]
fn an_interface_may_have_a_large_index() {
    on_wire("index 50000", verdicts);
}

fn on_wire(index: &str, body: fn(u32)) {
    let namespace = Namespace::new().unwrap();
    let add = format!("ip link add name wire0 {index} type veth peer name wire1");
    namespace
        .ok(&format!(
            "{add} && ip link set wire0 up && ip link set wire1 up"
        ))
        .unwrap();
    let ifindex = namespace.ifindex("wire0").unwrap();
    namespace.inside(|| body(ifindex)).unwrap();
}

/// More than there are places to find them at without a search, so that many have to be searched
/// for, and others in their stead later.
#[test]
fn every_endpoint_of_many_is_found_and_none_that_has_gone() {
    on_wire("", |ifindex| {
        let program = Program::load(PORT, None).unwrap();
        program.add_interface(ifindex, 0).unwrap();
        let endpoint = |n: u16| -> (IpAddr, u16) {
            ([192, 0, (n / 250) as u8, (n % 250) as u8].into(), n % 5)
        };
        // Of the packets to these, how many are to an endpoint of ours.
        let ours = |numbers: std::ops::Range<u16>| {
            let before = program.counters().unwrap();
            for (ip, vlan) in numbers.map(endpoint) {
                let frame = packet(&ip.to_string(), (vlan != 0).then_some(vlan));
                assert_eq!(
                    xdp::run(program.xdp(), &frame, ifindex, 1).unwrap().verdict,
                    Verdict::Pass
                );
            }
            let now = program.counters().unwrap();
            (
                now.no_socket - before.no_socket,
                now.elsewhere - before.elsewhere,
            )
        };
        for numbers in [0..200, 100..300, 50..60, 0..256] {
            let list: Vec<_> = numbers.clone().map(endpoint).collect();
            // The second time places are taken that were somebody else's before.
            for _ in 0..2 {
                program.set_endpoints(&list).unwrap();
                let count = numbers.len() as u64;
                assert_eq!(ours(0..600), (count, 600 - count), "{numbers:?}");
                assert_eq!(ours(numbers.clone()), (count, 0), "{numbers:?}");
            }
        }
    });
}

fn verdicts(ifindex: u32) {
    let groups = Groups {
        network: "230.1.2.3".parse().unwrap(),
        prefix: 8,
    };
    let program = Program::load(PORT, Some(groups)).unwrap();
    let ask = |frame: &[u8]| {
        let run = xdp::run(program.xdp(), frame, ifindex, 1).unwrap();
        assert_eq!(run.frame, frame, "untouched");
        run.verdict
    };
    let ours = packet(US, None);
    let endpoints = |list: &[(&str, u16)]| {
        let list: Vec<_> = list
            .iter()
            .map(|(ip, vlan)| (ip.parse().unwrap(), *vlan))
            .collect();
        program.set_endpoints(&list)
    };
    endpoints(&[(US, 0), (US6, 0), ("192.0.2.3", 7)]).unwrap();
    assert_eq!(
        ask(&ours),
        Verdict::Pass,
        "an interface that is none of ours"
    );
    program.add_interface(ifindex, 3).unwrap();
    assert_eq!(ask(&ours), Verdict::Pass, "a queue without a socket");
    assert_eq!(program.counters().unwrap().no_socket, 1);

    let socket = XskPort::open(&XskOptions {
        interface: "wire0".to_owned(),
        ifindex,
        queue: 0,
        frames: 64,
        zero_copy: true,
        busy_poll: false,
        unfinished: false,
        link: Arc::new(Link::new(1500, true)),
    })
    .unwrap();
    socket
        .handle()
        .with(|socket| program.set_socket(3, 0, socket))
        .unwrap()
        .unwrap();
    for (name, frame, verdict) in table() {
        assert_eq!(ask(&frame), verdict, "{name}");
    }
    let counted = program.counters().unwrap();
    assert_eq!(
        (
            counted.taken,
            counted.no_socket,
            counted.elsewhere,
            counted.fragments
        ),
        (10, 1, 8, 3)
    );

    endpoints(&[(US6, 0)]).unwrap();
    assert_eq!(ask(&ours), Verdict::Pass, "an address that has gone");
    assert_eq!(
        ask(&packet("230.9.8.7", None)),
        Verdict::Pass,
        "groups go with the addresses of their family"
    );
    assert_eq!(
        ask(&packet(US6, None)),
        Verdict::Redirect,
        "one that stayed"
    );
    let many: Vec<(IpAddr, u16)> = (0..256).map(|n| ([10, 0, 0, n as u8].into(), 0)).collect();
    let error = program.set_endpoints(&many).unwrap_err();
    assert_eq!(
        error.to_string(),
        "257 endpoint addresses are more than 256"
    );
    assert_eq!(
        ask(&packet(US6, None)),
        Verdict::Redirect,
        "nothing has changed"
    );

    drop(socket);
    // A process that another test is starting has it open until its program begins.
    wait_for("a closed socket to get nothing", PATIENCE, || {
        Ok((ask(&packet(US6, None)) == Verdict::Pass).then_some(()))
    })
    .unwrap();
    program.remove_interface(ifindex).unwrap();
    assert!(program.add_interface(ifindex, 64).is_err());
}

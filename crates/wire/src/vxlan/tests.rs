//! Golden bytes from the kernel's vxlan device (Linux 6.18), and what is refused.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::checksum;
use crate::{Mac, Vni};

const HERE: Mac = Mac([2, 0xaa, 0, 0, 0, 1]);
const THERE: Mac = Mac([2, 0xaa, 0, 0, 0, 2]);

/// An inner frame: UDP over IPv4 with TOS 0xbb.
const INNER: &str = "020000000002020000000001080045bb0024000000004011660c0a0000010a0000029c400050001000\
                     000000000000000000";

/// What `ip link add type vxlan id 0x123456 df set ttl 64 tos inherit` put in front of it over
/// IPv4. The kernel gives each packet an identification, which is taken out here.
const KERNEL_V4: &str = "02aa0000000202aa00000001080045ba0056000040004011b5d9c0000201c0000202df2312b5004270b5\
                         0800000012345600";
/// Over IPv6, which has a UDP checksum unless `udp6zerocsumtx` is given.
const KERNEL_V6: &str = "02aa0000000202aa0000000186dd6ba000000042114020010db8000000000000000000000001\
                         20010db8000000000000000000000002df2312b5004299440800000012345600";
const KERNEL_V6_ZERO: &str = "02aa0000000202aa0000000186dd6ba000000042114020010db8000000000000000000000001\
                         20010db8000000000000000000000002df2312b5004200000800000012345700";

fn v4() -> Ends {
    Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2))
}

fn v6() -> Ends {
    let host = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n);
    Ends::V6(host(1), host(2))
}

fn vni(id: u32) -> Vni {
    Vni::new(id).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn outer(ends: Ends, vlan: Option<u16>, checksum: UdpChecksum, id: u32) -> Outer {
    let mut outer = Outer::new((HERE, THERE), vlan, ends, 64, PORT, checksum);
    outer.set_flow(vni(id), 0xdf23, 0xba);
    outer
}

/// The whole frame, written into a buffer where forgotten bytes show.
fn wrap(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xa5; outer.len()];
    outer.write(&mut frame, inner.len(), checksum::sum(inner));
    frame.extend_from_slice(inner);
    frame
}

#[test]
fn headers_are_the_kernels_but_for_what_is_chosen() {
    let inner = bytes(INNER);
    let cases = [
        (v4(), UdpChecksum::Full, 0x12_3456, KERNEL_V4),
        (v6(), UdpChecksum::Full, 0x12_3456, KERNEL_V6),
        (v6(), UdpChecksum::Zero, 0x12_3457, KERNEL_V6_ZERO),
    ];
    for (ends, checksum, id, kernel) in cases {
        let written = wrap(&outer(ends, None, checksum, id), &inner);
        assert_eq!(
            written,
            [bytes(kernel), inner.clone()].concat(),
            "{ends:?} {checksum:?}"
        );
    }
}

#[test]
fn what_was_written_is_found_again() {
    let inner = bytes(INNER);
    for (ends, src, dst) in [
        (v4(), [192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        (
            v6(),
            "2001:db8::1".parse().unwrap(),
            "2001:db8::2".parse::<std::net::IpAddr>().unwrap(),
        ),
    ] {
        for (vlan, checksum) in [
            (None, UdpChecksum::Zero),
            (Some(0x6005), UdpChecksum::Zero),
            (Some(5), UdpChecksum::Full),
        ] {
            let outer = outer(ends, vlan, checksum, 77);
            let mut frame = wrap(&outer, &inner);
            let written = frame.len();
            frame.extend_from_slice(&[0; 7]); // Ethernet padding
            let received = parse(&frame, frame.len(), PORT).unwrap();
            assert_eq!(
                (
                    received.src,
                    received.dst,
                    received.vni,
                    received.tos,
                    received.sport
                ),
                (src, dst, vni(77), 0xba, 0xdf23)
            );
            // Without the priority.
            assert_eq!(received.vlan, if vlan.is_some() { 5 } else { 0 });
            assert_eq!(
                (usize::from(received.inner), received.end as usize),
                (outer.len(), written)
            );
            assert_eq!(received.sum.is_some(), checksum == UdpChecksum::Full);
            assert!(received.verify(|| checksum::sum(&inner)));
            let spoilt = checksum::sum(&inner) + 1;
            assert_eq!(received.verify(|| spoilt), checksum == UdpChecksum::Zero);
            assert_eq!(
                outer.ip_overhead(),
                outer.len() - if vlan.is_some() { 18 } else { 14 }
            );
        }
    }
}

#[test]
fn ipv4_options_are_skipped() {
    let frame = wrap(&outer(v4(), None, UdpChecksum::Zero, 77), &bytes(INNER));
    let mut with = frame[..34].to_vec();
    with.extend_from_slice(&[1, 1, 1, 0]);
    with.extend_from_slice(&frame[34..]);
    with[14] = 0x46;
    let len = (with.len() - 14) as u16;
    with[16..18].copy_from_slice(&len.to_be_bytes());
    with[24..26].fill(0);
    let sum = checksum::checksum(&with[14..38]);
    with[24..26].copy_from_slice(&sum.to_be_bytes());
    let received = parse(&with, with.len(), PORT).unwrap();
    assert_eq!((received.inner, received.end as usize), (54, with.len()));
}

#[test]
fn what_is_not_vxlan_to_this_port_says_why() {
    let good = wrap(&outer(v4(), None, UdpChecksum::Zero, 77), &bytes(INNER));
    // A change, with the IPv4 checksum put right.
    let with = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame[24..26].fill(0);
        let sum = checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let cases = [
        ("ARP", with(13, 6), OuterError::NotVxlan),
        ("IP version", with(14, 0x65), OuterError::Malformed),
        ("IHL", with(14, 0x44), OuterError::Malformed),
        (
            "total length",
            with(17, good.len() as u8),
            OuterError::Malformed,
        ),
        (
            "total length below the header",
            with(17, 19),
            OuterError::Malformed,
        ),
        ("more fragments", with(20, 0x20), OuterError::Fragment),
        ("fragment offset", with(21, 1), OuterError::Fragment),
        ("TCP", with(23, 6), OuterError::NotVxlan),
        ("port", with(37, 0), OuterError::NotVxlan),
        ("UDP length", with(39, 15), OuterError::Malformed),
        ("UDP longer than IP", with(39, 0xff), OuterError::Malformed),
        ("no I flag", with(42, 0xf7), OuterError::NoVni),
    ];
    for (what, frame, error) in cases {
        assert_eq!(parse(&frame, frame.len(), PORT), Err(error), "{what}");
    }
    let mut spoilt = good.clone();
    spoilt[30] ^= 1;
    assert_eq!(
        parse(&spoilt, spoilt.len(), PORT),
        Err(OuterError::Checksum)
    );
    // Reserved flags and fields are not looked at.
    let mut reserved = good.clone();
    reserved[42..46].fill(0xff);
    reserved[49] = 0xff;
    assert!(parse(&reserved, reserved.len(), PORT).is_ok());
    for len in 0..50 {
        assert!(parse(&good, len, PORT).is_err());
    }
    let v6 = wrap(&outer(v6(), None, UdpChecksum::Full, 77), &bytes(INNER));
    for (next, error) in [(44, OuterError::Fragment), (0, OuterError::NotVxlan)] {
        let mut frame = v6.clone();
        frame[20] = next;
        assert_eq!(parse(&frame, frame.len(), PORT), Err(error));
    }
    assert!(OuterError::NoVni.to_string().contains("VNI"));
}

proptest! {
    /// Whatever comes: no panic, and what is found lies within the frame.
    #[test]
    fn what_is_found_lies_within(
        head in prop::collection::vec(any::<u8>(), 0..120), v6 in any::<bool>(),
            more in 0usize..2000,
    ) {
        let mut head = head;
        if head.len() >= 50 {
            // Likely enough to be VXLAN for the parser to go on.
            head[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
            head[14] = if v6 { 0x60 } else { 0x45 };
            head[20..22].fill(0);
            head[if v6 { 20 } else { 23 }] = 17;
        }
        let frame_len = head.len() + more;
        if let Ok(received) = parse(&head, frame_len, PORT) {
            prop_assert!(usize::from(received.inner) <= received.end as usize);
            prop_assert!(received.end as usize <= frame_len);
        }
    }
}

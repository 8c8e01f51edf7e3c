//! The filter of a packet socket: VXLAN that the kernel would take itself passes, and nothing else
//! comes to us (Linux, Documentation/networking/filter.rst).
//!
//! A socket for one family gets packets when their VLAN tags are gone: of one that has a
//! subinterface with that interface as theirs, of one that has none as somebody else's
//! (`PACKET_OTHERHOST`). One for all packets gets them with their tags, whose VLANs are looked at
//! behind it.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;

/// An instruction: code, jumps if true and if false, operand.
type Step = (u16, u8, u8, u32);

/// What the kernel knows of a packet beside its bytes (linux/filter.h, SKF_AD_OFF).
const BESIDE: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = BESIDE + 4;
const IFINDEX: u32 = BESIDE + 8;
const HAS_TAG: u32 = BESIDE + 48;
/// The packet type of what is for another hardware address, or in a VLAN that the kernel has not.
const OTHERHOST: u32 = 3;

const DROP: Step = (RETURN, 0, 0, 0);
const PASS: Step = (RETURN, 0, 0, u32::MAX);

/// UDP to `port` over IPv4, whole and without options, or over IPv6 without extension headers; in
/// no VLAN tag or in one. Of interface `ifindex` itself, and in no tag for this host: a VLAN may
/// have a hardware address of its own.
fn program(port: u16, ifindex: u32) -> Vec<Step> {
    let mut steps = vec![
        (LOAD_WORD, 0, 0, IFINDEX),
        (JUMP_EQUAL, 1, 0, ifindex),
        DROP,
        (LOAD_WORD, 0, 0, PACKET_TYPE),
        (JUMP_EQUAL, 0, 3, OTHERHOST),
        (LOAD_WORD, 0, 0, HAS_TAG),
        (JUMP_EQUAL, 0, 1, 0),
        DROP,
        (LOAD_HALF, 0, 0, 12),
    ];
    let tagged = network(18, port);
    let mut tag = vec![(LOAD_HALF, 0, 0, 16)];
    tag.extend(tagged);
    steps.push((JUMP_EQUAL, 0, tag.len() as u8, 0x8100));
    steps.extend(tag);
    steps.extend(network(14, port));
    steps
}

/// What follows an EtherType that is loaded: the IP header is at `l3`.
fn network(l3: u32, port: u16) -> Vec<Step> {
    let port = u32::from(port);
    let v4 = [
        (LOAD_BYTE, 0, 0, l3),
        (JUMP_EQUAL, 1, 0, 0x45),
        DROP,
        (LOAD_BYTE, 0, 0, l3 + 9),
        (JUMP_EQUAL, 1, 0, 17),
        DROP,
        // More fragments, or not the first.
        (LOAD_HALF, 0, 0, l3 + 6),
        (JUMP_ANY, 0, 1, 0x3fff),
        DROP,
        (LOAD_HALF, 0, 0, l3 + 22),
        (JUMP_EQUAL, 1, 0, port),
        DROP,
        PASS,
    ];
    let v6 = [
        (LOAD_BYTE, 0, 0, l3 + 6),
        (JUMP_EQUAL, 1, 0, 17),
        DROP,
        (LOAD_HALF, 0, 0, l3 + 42),
        (JUMP_EQUAL, 1, 0, port),
        DROP,
        PASS,
    ];
    let mut steps = vec![(JUMP_EQUAL, 0, v4.len() as u8, 0x0800)];
    steps.extend(v4);
    steps.push((JUMP_EQUAL, 0, v6.len() as u8, 0x86dd));
    steps.extend(v6);
    steps.push(DROP);
    steps
}

/// Puts the filter in force, in the place of the one before.
pub(super) fn attach(socket: BorrowedFd<'_>, port: u16, ifindex: u32) -> Result<(), Errno> {
    let mut steps: Vec<libc::sock_filter> = program(port, ifindex)
        .into_iter()
        .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program lives as long as the call, which copies it.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use wire::Mac;
    use wire::vxlan::{Ends, Outer, UdpChecksum};

    use super::*;

    const INDEX: u32 = 7;

    /// What the kernel knows of a packet.
    #[derive(Clone, Copy)]
    struct Beside {
        ifindex: u32,
        kind: u32,
        has_tag: bool,
    }

    const OURS: Beside = Beside {
        ifindex: INDEX,
        kind: 0,
        has_tag: false,
    };

    fn passes(steps: &[Step], packet: &[u8]) -> bool {
        passes_as(steps, packet, OURS)
    }

    /// Runs the filter as the kernel does: a load beyond the packet drops it.
    fn passes_as(steps: &[Step], packet: &[u8], beside: Beside) -> bool {
        let (mut at, mut value) = (0, 0u32);
        loop {
            let (code, jt, jf, k) = steps[at];
            let bytes = |len: usize| packet.get(k as usize..k as usize + len);
            at += 1;
            match code {
                LOAD_WORD => {
                    value = match k {
                        IFINDEX => beside.ifindex,
                        PACKET_TYPE => beside.kind,
                        HAS_TAG => beside.has_tag.into(),
                        _ => panic!("{k:#x}"),
                    }
                }
                LOAD_BYTE | LOAD_HALF => {
                    let Some(bytes) = bytes(if code == LOAD_BYTE { 1 } else { 2 }) else {
                        return false;
                    };
                    value = bytes
                        .iter()
                        .fold(0, |value, byte| value << 8 | u32::from(*byte));
                }
                JUMP_EQUAL => at += usize::from(if value == k { jt } else { jf }),
                JUMP_ANY => at += usize::from(if value & k != 0 { jt } else { jf }),
                _ => return k > 0,
            }
        }
    }

    fn packet(v6: bool, vlan: Option<u16>) -> Vec<u8> {
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let ends = match v6 {
            true => Ends::V6(a.to_ipv6_mapped(), b.to_ipv6_mapped()),
            false => Ends::V4(a, b),
        };
        let outer = Outer::new(
            (Mac([2; 6]), Mac([4; 6])),
            vlan,
            ends,
            64,
            4789,
            UdpChecksum::Zero,
        );
        let mut frame = vec![0; outer.len() + 60];
        outer.write(&mut frame, 60, 0);
        frame
    }

    /// A tag that the kernel took out is beside the packet, or forgotten.
    #[test]
    fn what_is_another_interface_s_or_another_host_s_does_not_pass() {
        let steps = program(4789, INDEX);
        for v6 in [false, true] {
            let frame = packet(v6, None);
            let passes = |beside| passes_as(&steps, &frame, beside);
            // For this host, for all, for a group.
            for kind in 0..OTHERHOST {
                assert!(passes(Beside { kind, ..OURS }), "{kind}");
            }
            // Of a VLAN on it that the kernel has.
            let ifindex = INDEX + 1;
            assert!(!passes(Beside { ifindex, ..OURS }));
            // Of one that it has not, where the tag is forgotten; or for somebody else.
            let others = Beside {
                kind: OTHERHOST,
                ..OURS
            };
            assert!(!passes(others));
            // In a VLAN that may have a hardware address of its own.
            let has_tag = true;
            assert!(passes(Beside { has_tag, ..others }));
        }
    }

    #[test]
    fn vxlan_passes_and_nothing_else() {
        let steps = program(4789, INDEX);
        for (v6, vlan) in [
            (false, None),
            (false, Some(7)),
            (true, None),
            (true, Some(7)),
        ] {
            let frame = packet(v6, vlan);
            assert!(passes(&steps, &frame));
            assert!(!passes(&program(8472, INDEX), &frame));
            let l3 = if vlan.is_some() { 18 } else { 14 };
            let spoils = if v6 {
                vec![(l3 + 6, 6), (l3 + 6, 44)]
            } else {
                vec![(l3, 0x46), (l3 + 9, 6), (l3 + 6, 0x20), (l3 + 7, 1)]
            };
            for (at, byte) in spoils.into_iter().chain([(13, 6)]) {
                let mut spoilt = frame.clone();
                spoilt[at] = byte;
                assert!(!passes(&steps, &spoilt), "byte {at}");
            }
            for len in 0..l3 + if v6 { 44 } else { 24 } {
                assert!(!passes(&steps, &frame[..len]), "{len} bytes");
            }
        }
    }
}

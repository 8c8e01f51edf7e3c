//! The line of a status.

use super::*;

/// An uplink as it should be.
pub fn fact() -> Fact {
    Fact {
        number: 0,
        interface: "eth1".to_owned(),
        ifindex: 7,
        joined: true,
        mode: "AF_XDP, native XDP, zero-copy".to_owned(),
        why: String::new(),
        queues: 1,
        mtu: 1500,
        up: true,
        tap: false,
        of_kernel: true,
        mac: None,
        addresses: Vec::new(),
    }
}

#[test]
fn a_line_says_what_is_in_force_and_why() {
    let fact = |joined, up, mode: &str, why: &str| Fact {
        joined,
        mode: mode.to_owned(),
        why: why.to_owned(),
        up,
        ..fact()
    };
    for (fact, line) in [
        (
            fact(true, true, "AF_XDP, native XDP, zero-copy", ""),
            "eth1: AF_XDP, native XDP, zero-copy",
        ),
        (
            fact(true, true, "packet socket", "no XDP"),
            "eth1: packet socket (no XDP)",
        ),
        (
            fact(true, false, "AF_XDP, native XDP, copy", ""),
            "eth1: link down",
        ),
        (
            fact(true, true, "TAP", "no interface has 192.0.2.1"),
            "eth1: TAP (no interface has 192.0.2.1)",
        ),
        (
            fact(false, false, "", "there is no interface 'eth1'"),
            "eth1: not joined (there is no interface 'eth1')",
        ),
    ] {
        assert_eq!(describe(&fact, &XskStatistics::default()), line);
    }
    let counted = XskStatistics {
        ring_full: 2,
        no_buffer: 1,
        ..XskStatistics::default()
    };
    let fact = fact(true, true, "AF_XDP, generic XDP, copy", "");
    assert_eq!(
        describe(&fact, &counted),
        "eth1: AF_XDP, generic XDP, copy, 3 frames lost"
    );
}

#[test]
fn only_the_slots_of_uplinks_have_a_number() {
    assert_eq!(number(PortSlot::uplink(5)), Some(5));
    assert_eq!(
        (number(PortSlot(0)), number(PortSlot(u32::MAX))),
        (None, None)
    );
}

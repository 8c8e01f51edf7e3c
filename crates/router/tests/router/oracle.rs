//! Compares us with the kernel: packets that go through both come out as the same frames, byte for
//! byte.

use crate::cables::{Cables, NATIVE, PLAIN, TC};
use crate::lab::{Lab, SMALL, story_over};
use crate::ours::Ours;
use crate::packets::generate;
use butterfly_router::layout::Counter;
use xdp::Mode;

const PACKETS: usize = 6000;

/// What came out for one frame: in the east, in the west.
pub type Out = (Vec<Vec<u8>>, Vec<Vec<u8>>);

pub fn pass(lab: &mut Lab, frames: &[Vec<u8>]) -> Vec<Out> {
    let one = |frame: &Vec<u8>| {
        lab.east.send(frame);
        (normal(lab.east.receive()), normal(lab.west.receive()))
    };
    frames.iter().map(one).collect()
}

/// ICMP messages of this host's own have an identification of their own (and what it does to the
/// checksum), and those for want of a route and redirects come at a rate for each sender that is
/// the whole machine's. That a neighbour did not answer is told seconds later, when it is another
/// frame's turn.
fn normal(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let is_ours = |frame: &[u8]| {
        let icmp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&1);
        icmp && (frame[26..30] == [10, 1, 0, 1] || frame[26..30] == [10, 2, 0, 1])
    };
    let gave_up = |frame: &[u8]| {
        frame.get(12..14) == Some(&[0x86, 0xdd])
            && frame.get(20) == Some(&58)
            && frame.get(54..56) == Some(&[1, 3])
    };
    frames.retain(|frame| !gave_up(frame));
    frames
        .retain(|frame| !(is_ours(frame) && (frame[34] == 5 || frame[34] == 3 && frame[35] != 4)));
    for frame in frames.iter_mut().filter(|frame| is_ours(frame)) {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    frames
}

/// Equal, but for ICMP errors that one of them lacks: the kernel sends them from a socket that a
/// CPU's namespaces share, and goes without when that one has too much on its way to neighbours
/// that do not answer.
pub fn alike(ours: &Out, kernels: &Out) -> bool {
    let is_error = |frame: &Vec<u8>| match frame.get(12..14) {
        Some([0x08, 0]) => {
            frame.get(23) == Some(&1)
                && frame.get(26..28) == Some(&[10, 1])
                && frame.get(34) != Some(&0)
        }
        Some([0x86, 0xdd]) => {
            frame.get(20) == Some(&58) && frame.get(54).is_some_and(|kind| *kind < 128)
        }
        _ => false,
    };
    let split = |frames: &[Vec<u8>]| -> Out { frames.iter().cloned().partition(is_error) };
    let ((our_errors, our_rest), (their_errors, their_rest)) = (split(&ours.0), split(&kernels.0));
    let errors = our_errors == their_errors || our_errors.is_empty() || their_errors.is_empty();
    errors && our_rest == their_rest && ours.1 == kernels.1
}

/// In the drivers and where packets are the kernel's buffers.
fn compare(setup: &'static str, seed: u64, least: u64) {
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        compare_over(&cables, setup, seed, PACKETS / 2, least / 2);
    }
}

/// `least` is how many of `packets` go the fast way at the least.
pub fn compare_over(cables: &Cables, setup: &'static str, seed: u64, packets: usize, least: u64) {
    story_over(cables, setup, async move |_, mut lab| {
        let frames = generate(seed, packets);
        pass(&mut lab, &frames[..64]);
        let kernel = pass(&mut lab, &frames);
        let ours = Ours::start_over(cables, &SMALL).await;
        let fast = pass(&mut lab, &frames);
        for (number, frame) in frames.iter().enumerate() {
            let (ours, theirs) = (&fast[number], &kernel[number]);
            assert!(
                alike(ours, theirs),
                "frame {number} of seed {seed}: {frame:02x?}\nours: {ours:02x?}\n\
                 the kernel's: {theirs:02x?}"
            );
        }
        let forwarded = ours.count(Counter::Forwarded);
        let sent: usize = fast.iter().map(|(_, west)| west.len()).sum();
        assert!(
            forwarded >= least,
            "only {forwarded} of {sent} went the fast way"
        );
        assert_eq!(forwarded, ours.count(Counter::Sent));
        drop(ours);
        // Given back: the kernel goes on.
        let again = pass(&mut lab, &frames[..200]);
        assert!(
            again
                .iter()
                .zip(&kernel)
                .all(|(again, kernel)| alike(again, kernel))
        );
    });
}

#[test]
fn whole_frames_are_the_kernels() {
    compare("", 1, 1500);
}

/// From an interface of one kind to one of the other.
#[test]
fn from_xdp_to_tc_and_back() {
    for modes in [
        [Mode::Native, Mode::Tc],
        [Mode::Tc, Mode::Native],
        [Mode::Generic, Mode::Tc],
    ] {
        let cables = Cables { modes, ..PLAIN };
        compare_over(&cables, "", 8, PACKETS / 4, 350);
    }
}

#[test]
fn with_strict_reverse_path_filtering() {
    compare(
        "sysctl -qw net.ipv4.conf.east.rp_filter=1 net.ipv4.conf.west.rp_filter=1",
        2,
        1500,
    );
}

#[test]
fn with_loose_reverse_path_filtering_and_no_default_route() {
    compare("sysctl -qw net.ipv4.conf.all.rp_filter=2", 3, 1500);
}

#[test]
fn with_routes_that_refuse() {
    let routes = "ip route add blackhole 203.0.113.0/25; ip route add prohibit 203.0.113.128/26
        ip route add unreachable 203.0.113.192/26; ip -6 route add blackhole 2001:db8:f:1::/64
        ip -6 route add prohibit 2001:db8:e::/80; ip route add default via 10.2.0.5
        ip -6 route add default via 2001:db8:2::5";
    compare(routes, 4, 1000);
}

/// IPv6's lookup goes by the source before it goes by any metric.
#[test]
fn with_routes_for_some_sources_of_a_higher_metric() {
    let routes = "ip -6 route add 2001:db8:f::/48 from 2001:db8:1::3/128 via 2001:db8:2::4 \
        metric 2000
        ip -6 route add 2001:db8:e::/64 from 2001:db8:1::/120 via 2001:db8:2::5 metric 2000";
    compare(routes, 9, 1200);
}

#[test]
fn with_policy_rules_by_the_kernels_lookup() {
    let rules = "ip rule add pref 100 from 10.1.0.3 table 77
    ip route add 203.0.113.0/24 via 10.2.0.4 table 77
        ip route add blackhole 198.51.100.0/24 table 77
        ip -6 rule add pref 100 from 2001:db8:1::3 table 77
        ip -6 route add 2001:db8:f::/48 via 2001:db8:2::4 table 77";
    compare(rules, 5, 1200);
}

/// The source port of a packet of another protocol is none, whatever its number is: those that
/// `generate` makes would be ports of the second rule.
#[test]
fn with_policy_rules_by_protocol_and_ports() {
    let rules = "ip rule add pref 100 ipproto udp table 77
        ip rule add pref 101 sport 25000-36000 table 78
        ip route add 203.0.113.0/24 via 10.2.0.4 table 77
        ip route add blackhole 198.51.100.0/24 table 77
        ip route add 203.0.113.0/24 via 10.2.0.5 table 78
        ip -6 rule add pref 100 ipproto udp table 77
        ip -6 rule add pref 101 sport 25000-36000 table 78
        ip -6 route add 2001:db8:f::/48 via 2001:db8:2::4 table 77
        ip -6 route add 2001:db8:f::/48 via 2001:db8:2::5 table 78";
    compare(rules, 9, 1000);
}

/// The way back of half of the datagrams is another one.
#[test]
fn with_a_way_back_by_protocol_and_ports() {
    let rules = "sysctl -qw net.ipv4.conf.east.rp_filter=1 net.ipv4.conf.west.rp_filter=1
        ip rule add pref 100 ipproto udp sport 1-511 table 77
        ip route add 10.1.0.0/24 via 10.2.0.4 table 77";
    compare(rules, 10, 1000);
}

#[test]
fn with_tables_one_before_the_other() {
    let rules = "ip rule add pref 100 table 77; ip route add 203.0.112.0/23 via 10.2.0.4 table 77
        ip route add throw 203.0.113.128/25 table 77; ip route add 10.2.0.4/32 via 10.2.0.5 table 77
        ip -6 rule add pref 100 table 77; ip -6 route add 2001:db8:f:1::/64 via 2001:db8:2::4 \
        table 77
        ip -6 route add 2001:db8:e::9/128 via 2001:db8:2::5 table 77";
    compare(rules, 6, 1500);
}

#[test]
fn with_an_interface_that_does_not_forward() {
    compare("sysctl -qw net.ipv4.conf.east.forwarding=0", 7, 500);
}

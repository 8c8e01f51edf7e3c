//! What sockets send, frame by frame: each leaves as the kernel's own forwarding sends it, with its
//! headers, its begun checksum and all its segments. What that is, is learnt from the kernel: the
//! same comparison has to hold for it alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::capture::Capture;
use crate::sockets::{all, routed};
use butterfly_router::layout::Counter;
use testkit::netns::Namespace;
use testkit::routed_hosts::{RoutedHosts, WEST};
use testkit::traffic::{self, Station};
use wire::checksum;
use xdp::Mode;

const BYTES: u64 = 3_000_000;
const LENGTHS: [usize; 6] = [0, 1, 64, 511, 1400, 1452];
const V6: usize = 14 + 40;

/// Streams both ways and datagrams, of both families.
fn traffic(hosts: &RoutedHosts, station: &Station) {
    for to in WEST.map(|address| address.parse().expect("an address")) {
        traffic::upload(&hosts.east, to, BYTES).expect("all of it comes");
        traffic::download(&hosts.east, to, BYTES).expect("all of it comes");
        traffic::echoes(&hosts.east, to, &LENGTHS).expect("all are answered");
    }
    let _ = station;
}

/// The MAC address of a device.
pub fn mac(of: &Namespace, device: &str) -> [u8; 6] {
    let json = of.ok(&format!("ip -j link show {device}")).expect("ip");
    let said: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let text = said[0]["address"].as_str().expect("an address");
    text.parse::<wire::Mac>().expect("a MAC address").0
}

/// One direction: who sends and who receives on each side of the router.
struct Direction {
    sends: [u8; 6],
    enters: [u8; 6],
    leaves: [u8; 6],
    receives: [u8; 6],
}

impl Direction {
    /// Frames that a host sends to be forwarded, and those that another has got.
    fn of_both(&self, from: &[Vec<u8>], to: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let between = |frames: &[Vec<u8>], source: [u8; 6], destination: [u8; 6]| {
            let own = |frame: &&Vec<u8>| frame[..6] == destination && frame[6..12] == source;
            let frames = frames.iter().filter(own);
            frames
                .filter(|frame| is_transport(frame))
                .cloned()
                .collect()
        };
        (
            between(from, self.sends, self.enters),
            between(to, self.leaves, self.receives),
        )
    }

    /// What becomes of a frame on its way.
    fn forwarded(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[..6].copy_from_slice(&self.receives);
        frame[6..12].copy_from_slice(&self.leaves);
        if is_v6(&frame) {
            frame[21] -= 1;
            return frame;
        }
        frame[22] -= 1;
        fix_header(&mut frame);
        frame
    }
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd]
}

/// TCP or UDP: not what hosts and routers say on their own account.
fn is_transport(frame: &[u8]) -> bool {
    let protocol = if is_v6(frame) { frame[20] } else { frame[23] };
    protocol == 6 || protocol == 17
}

/// IPv4's own checksum, of a header without options.
fn fix_header(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// How often each frame is there.
fn counted(frames: impl IntoIterator<Item = Vec<u8>>) -> BTreeMap<Vec<u8>, usize> {
    frames.into_iter().fold(BTreeMap::new(), |mut all, frame| {
        *all.entry(frame).or_default() += 1;
        all
    })
}

/// What went in and came out both ways.
struct Crossing {
    directions: [Direction; 2],
    seen: [Vec<Vec<u8>>; 2],
    captures: [Capture; 2],
}

impl Crossing {
    fn watch(hosts: &RoutedHosts) -> Crossing {
        let [east, west] = [&hosts.east, &hosts.west].map(|host| mac(host, "eth0"));
        let [near, far] = ["east0", "west0"].map(|name| mac(&hosts.router, name));
        let direction = |sends, enters, leaves, receives| Direction {
            sends,
            enters,
            leaves,
            receives,
        };
        Crossing {
            directions: [
                direction(east, near, far, west),
                direction(west, far, near, east),
            ],
            seen: [Vec::new(), Vec::new()],
            captures: [&hosts.east, &hosts.west].map(Capture::new),
        }
    }

    fn look(&mut self) {
        for (seen, capture) in self.seen.iter_mut().zip(&self.captures) {
            seen.extend(capture.frames());
        }
    }

    /// What went in and came out, of both ways, once a condition holds for both.
    fn until(&mut self, holds: impl Fn(&Direction, &[Vec<u8>], &[Vec<u8>]) -> Result<(), String>) {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            self.look();
            let [east, west] = &self.seen;
            let both = [(east, west), (west, east)];
            let mut judged = self
                .directions
                .iter()
                .zip(both)
                .map(|(direction, (from, to))| {
                    let (sent, came) = direction.of_both(from, to);
                    holds(direction, &sent, &came)
                });
            match judged.find_map(Result::err) {
                None => return,
                Some(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Some(why) => panic!("{why}"),
            }
        }
    }
}

/// Every frame came out once, changed as forwarding changes it and in nothing else.
fn one_for_one(direction: &Direction, sent: &[Vec<u8>], came: &[Vec<u8>]) -> Result<(), String> {
    let expected = counted(sent.iter().map(|frame| direction.forwarded(frame)));
    let came = counted(came.iter().cloned());
    let differs = |a: &BTreeMap<Vec<u8>, usize>, b: &BTreeMap<Vec<u8>, usize>| {
        let mut only = a
            .iter()
            .filter(|(frame, count)| b.get(*frame) != Some(*count));
        only.next().map(|(frame, count)| {
            let head = &frame[..frame.len().min(96)];
            format!("{count} of {} bytes: {head:02x?}", frame.len())
        })
    };
    match (differs(&expected, &came), differs(&came, &expected)) {
        (None, None) => Ok(()),
        (missing, surplus) => Err(format!("expected: {missing:?}\ncame: {surplus:?}")),
    }
}

/// Joined on the way or not, each stream's bytes came out in order under the headers that they were
/// sent with.
fn byte_for_byte(direction: &Direction, sent: &[Vec<u8>], came: &[Vec<u8>]) -> Result<(), String> {
    let sent: Vec<Vec<u8>> = sent
        .iter()
        .map(|frame| direction.forwarded(frame))
        .collect();
    let mut pieces: BTreeMap<(Vec<u8>, u32), Vec<&Vec<u8>>> = BTreeMap::new();
    for frame in &sent {
        pieces
            .entry(flow_and_sequence(frame))
            .or_default()
            .push(frame);
    }
    let mut left: usize = sent.iter().map(|frame| payload(frame).len()).sum();
    for whole in came {
        let (flow, mut sequence) = flow_and_sequence(whole);
        let mut rest = payload(whole);
        let mut first = true;
        loop {
            let fits = |piece: &&&Vec<u8>| {
                // An acknowledgement has the same place as the bytes that follow it.
                let some = payload(piece).is_empty() == rest.is_empty();
                // Datagrams have no place, and are not joined here.
                let whole_of_it = is_tcp(piece) || payload(piece).len() == rest.len();
                let fits = some && whole_of_it && rest.starts_with(payload(piece));
                fits && (!first || same_headers(piece, whole))
            };
            let at = pieces.get(&(flow.clone(), sequence));
            let Some(piece) = at.into_iter().flatten().find(fits) else {
                return Err(format!("nobody sent {:02x?} at {sequence}", &whole[..96]));
            };
            let len = payload(piece).len();
            (rest, left) = (&rest[len..], left - len.min(left));
            sequence = sequence.wrapping_add(len as u32);
            first = false;
            if rest.is_empty() {
                break;
            }
        }
    }
    (left == 0)
        .then_some(())
        .ok_or(format!("{left} bytes have not come"))
}

fn transport(frame: &[u8]) -> usize {
    if is_v6(frame) { V6 } else { 34 }
}

fn is_tcp(frame: &[u8]) -> bool {
    frame[if is_v6(frame) { 20 } else { 23 }] == 6
}

/// A frame's flow and its place in it: of a datagram, nothing but its flow.
fn flow_and_sequence(frame: &[u8]) -> (Vec<u8>, u32) {
    let l4 = transport(frame);
    let addresses = if is_v6(frame) {
        &frame[22..l4]
    } else {
        &frame[26..l4]
    };
    let flow = [addresses, &frame[l4..l4 + 4]].concat();
    let sequence = frame[l4 + 4..l4 + 8].try_into().expect("four bytes");
    let sequence = if is_tcp(frame) {
        u32::from_be_bytes(sequence)
    } else {
        0
    };
    (flow, sequence)
}

fn payload(frame: &[u8]) -> &[u8] {
    let l4 = transport(frame);
    let header = if is_tcp(frame) {
        usize::from(frame[l4 + 12] >> 4) * 4
    } else {
        8
    };
    &frame[l4 + header..]
}

/// All but what joining changes: lengths, what depends on them, and the flags PSH and FIN.
fn same_headers(piece: &[u8], whole: &[u8]) -> bool {
    let masked = |frame: &[u8]| {
        let mut head = frame[..frame.len() - payload(frame).len()].to_vec();
        let l4 = transport(frame);
        if is_v6(frame) {
            head[18..20].fill(0);
        } else {
            head[16..18].fill(0);
            head[24..26].fill(0);
        }
        if is_tcp(frame) {
            head[l4 + 13] &= !0x09;
            head[l4 + 16..l4 + 18].fill(0);
        } else {
            head[l4 + 4..l4 + 8].fill(0);
        }
        head
    };
    masked(piece) == masked(whole)
}

/// Whether a frame's transport checksum is only begun.
fn is_begun(frame: &[u8]) -> bool {
    let l4 = transport(frame);
    let addresses = if is_v6(frame) {
        &frame[22..l4]
    } else {
        &frame[26..l4]
    };
    let protocol = if is_tcp(frame) { 6 } else { 17 };
    let length = frame.len() - l4;
    let pseudo = checksum::add(
        checksum::sum(addresses),
        checksum::sum(&[&(length as u32).to_be_bytes()[..], &[0, protocol]].concat()),
    );
    let all = checksum::add(pseudo, checksum::sum(&frame[l4..]));
    checksum::fold(all) != 0xffff
}

fn hosts() -> (RoutedHosts, Station) {
    let hosts = RoutedHosts::with_default_offloads("east0", "west0").expect("the kernel forwards");
    let station = Station::new(&hosts.west).expect("a station");
    (hosts, station)
}

#[test]
fn frames_of_sockets_are_the_kernels() {
    let (hosts, station) = hosts();
    let mut kernel = Crossing::watch(&hosts);
    traffic(&hosts, &station);
    kernel.until(one_for_one);
    for modes in [
        [None, None],
        [Some(Mode::Native), Some(Mode::Tc)],
        [Some(Mode::Tc), Some(Mode::Generic)],
    ] {
        let mut ours = Crossing::watch(&hosts);
        let report = routed(&hosts, modes, || traffic(&hosts, &station));
        ours.until(one_for_one);
        let forwarded = all(&report, Counter::Forwarded);
        assert!(forwarded > 100, "{modes:?}: {report:?}");
        let (sent, _) = ours.directions[0].of_both(&ours.seen[0], &ours.seen[1]);
        assert!(sent.iter().any(|frame| is_begun(frame)), "begun checksums");
        if modes == [None, None] {
            // With a program in XDP the other end cuts its segments itself.
            assert!(sent.iter().any(|frame| frame.len() > 4000), "segments");
            let crossed = sent.len()
                + ours.directions[1]
                    .of_both(&ours.seen[1], &ours.seen[0])
                    .0
                    .len();
            assert_eq!(forwarded as usize, crossed, "none is left to the kernel");
        }
    }
}

/// GRO joins what comes in by the router's ends, by us as by the kernel.
#[test]
fn what_is_joined_on_its_way_is_the_kernels() {
    let (hosts, station) = hosts();
    for host in [&hosts.east, &hosts.west] {
        host.ok("ethtool -K eth0 tso off gso off").expect("ethtool");
    }
    for near in ["east0", "west0"] {
        hosts
            .router
            .ok(&format!("ethtool -K {near} gro on"))
            .expect("ethtool");
    }
    let mut kernel = Crossing::watch(&hosts);
    traffic(&hosts, &station);
    kernel.until(byte_for_byte);
    let mut ours = Crossing::watch(&hosts);
    let report = routed(&hosts, [None, None], || traffic(&hosts, &station));
    ours.until(byte_for_byte);
    let (forwarded, bytes) = (
        all(&report, Counter::Forwarded),
        all(&report, Counter::ForwardedBytes),
    );
    let (sent, _) = ours.directions[0].of_both(&ours.seen[0], &ours.seen[1]);
    assert!(sent.iter().all(|frame| frame.len() <= 1514), "one by one");
    assert!(
        bytes / forwarded > 1600,
        "joined: {bytes} bytes in {forwarded}"
    );
}

/// A link behind the router takes less than both hosts know: they learn it from the kernel, which
/// gets what is too long for the link or, where a route says less, for the route.
#[test]
fn path_mtu_is_learnt_from_the_kernel() {
    for (shrink, mtu) in [
        ("ip link set west0 mtu 1400", 1400),
        (
            "ip route change 10.2.0.0/24 dev west0 mtu 1300 &&
                ip -6 route change 2001:db8:2::/64 dev west0 metric 256 mtu 1300",
            1300,
        ),
    ] {
        let (hosts, _station) = hosts();
        hosts.router.ok(shrink).expect("ip");
        let report = routed(&hosts, [None, None], || {
            for address in WEST {
                let to = address.parse().expect("an address");
                traffic::upload(&hosts.east, to, BYTES).expect("all of it comes");
                let way = hosts
                    .east
                    .ok(&format!("ip route get {address}"))
                    .expect("ip");
                assert!(way.contains(&format!("mtu {mtu}")), "{way}");
            }
        });
        for one in report.interfaces.iter().filter(|one| one.name == "east0") {
            for counters in &one.counters {
                let of = |counter: Counter| counters[counter as usize];
                assert!(of(Counter::TooBig) > 0, "{report:?}");
                let (packets, bytes) = (of(Counter::Forwarded), of(Counter::ForwardedBytes));
                assert!(
                    bytes > BYTES && bytes / packets > 2000,
                    "segments stay whole: {report:?}"
                );
            }
        }
    }
}

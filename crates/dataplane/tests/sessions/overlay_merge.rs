//! TCP segments and datagrams from the wire that reach a guest as one large frame, when it has
//! negotiated that (GRO).

use dataplane::DropReason::*;
use dataplane::Simulation;
use io::port::Accepts;
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::parse::TcpFlags;

use crate::lab::*;
use crate::wire_lab::*;

const PUSH: TcpFlags = TcpFlags(0x18);

/// A host with a guest that takes large frames, and a connection from a machine elsewhere to it.
fn connected(family: Family) -> (Host, Nic, Far) {
    connected_on(Simulation::default(), family)
}

fn connected_on(sim: Simulation, family: Family) -> (Host, Nic, Far) {
    let mut host = Host::on(sim);
    let a = host.lab.nic();
    host.lab
        .group_of(a, vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
    let b = host.far(20, 2);
    host.enters(b.at, a, data(b.nic, a, family, SYN, 999, 0));
    let answer = ip(a, b.nic, family)
        .tcp(80, 4000, SYN_ACK)
        .seq(999)
        .ack(1000);
    host.leaves(a, b.at, answer.build());
    host.enters(b.at, a, data(b.nic, a, family, ACK, 1000, 0));
    // The whole path has seen data too: from here on the fast path is open.
    host.enters(b.at, a, data(b.nic, a, family, ACK, 1000, 0));
    host.lab.peer(a).accept(Accepts::ALL);
    (host, a, b)
}

/// A segment of `len` bytes.
fn data(from: Nic, to: Nic, family: Family, flags: TcpFlags, seq: u32, len: usize) -> Vec<u8> {
    let ack = if flags == SYN { 0 } else { 1000 };
    let segment = ip(from, to, family).dont_fragment().tcp(4000, 80, flags);
    let payload: Vec<u8> = (0..len).map(|n| (n as u32 + seq) as u8).collect();
    segment.seq(seq).ack(ack).payload(&payload).build()
}

/// These inner frames come from the wire in one batch; gives what the guest receives.
fn together(host: &mut Host, from: Far, to: Nic, frames: &[Vec<u8>]) -> Vec<(Vec<u8>, Offload)> {
    for frame in frames {
        assert!(host.wire.send(inbound(from.at, frame), Offload::default()));
    }
    let before = host.lab.drops();
    host.lab.sim.run();
    assert_eq!(difference(&before, &host.lab.drops()), []);
    std::iter::from_fn(|| host.lab.peer(to).receive()).collect()
}

#[test]
fn segments_in_a_row_arrive_as_the_frame_that_they_could_have_been_cut_from() {
    for family in FAMILIES {
        let (mut host, a, b) = connected(family);
        let segment = |flags, seq, len| data(b.nic, a, family, flags, seq, len);
        let frames = [
            segment(ACK, 1000, 1300),
            segment(ACK, 2300, 1300),
            segment(PUSH, 3600, 200),
        ];
        let arrived = together(&mut host, b, a, &frames);
        let payload: Vec<u8> = (0..2800u32)
            .map(|n| match n {
                0..1300 => (n + 1000) as u8,
                1300..2600 => (n - 1300 + 2300) as u8,
                _ => (n - 2600 + 3600) as u8,
            })
            .collect();
        let large = ip(b.nic, a, family)
            .dont_fragment()
            .tcp(4000, 80, PUSH)
            .seq(1000)
            .ack(1000);
        assert_eq!(
            arrived,
            [large.payload(&payload).gso(1300).build_with_offload()]
        );
        let flow = &host.lab.sim.flows(None)[0];
        assert_eq!(flow.frames_out, 6, "each segment is counted");

        // A guest that takes no large frames gets each.
        host.lab.peer(a).accept(Accepts::default());
        let frames = [segment(ACK, 3800, 1300), segment(ACK, 5100, 1300)];
        let arrived = together(&mut host, b, a, &frames);
        assert_eq!(
            arrived
                .into_iter()
                .map(|(frame, _)| frame)
                .collect::<Vec<_>>(),
            frames
        );
    }
}

/// A datagram of `len` bytes.
fn datagram(from: Nic, to: Nic, family: Family, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
    flow(from, to, family).payload(&payload).build()
}

fn flow(from: Nic, to: Nic, family: Family) -> wire::build::Builder {
    ip(from, to, family).dont_fragment().udp(4000, 53)
}

#[test]
fn datagrams_in_a_row_arrive_as_one_where_that_was_negotiated() {
    for family in FAMILIES {
        let (mut host, a, b) = connected(family);
        let frames = [1000, 1000, 300].map(|len| datagram(b.nic, a, family, len));
        let payload: Vec<u8> = [1000, 1000, 300]
            .into_iter()
            .flat_map(|len| (0..len).map(|n| n as u8))
            .collect();
        let large = flow(b.nic, a, family)
            .payload(&payload)
            .gso(1000)
            .build_with_offload();
        // The first of a flow by the whole path, later ones by the fast path.
        for _ in 0..3 {
            assert_eq!(
                together(&mut host, b, a, &frames),
                std::slice::from_ref(&large)
            );
        }
        // Something of the same flow between them, without a checksum, or of another one.
        let mut bare = frames[0].clone();
        let field = if family == Family::V4 { 40 } else { 60 };
        bare[field..field + 2].fill(0);
        let mixed = [
            frames[0].clone(),
            bare,
            frames[0].clone(),
            frames[1].clone(),
        ];
        let lens = |arrived: Vec<(Vec<u8>, Offload)>| -> Vec<usize> {
            arrived
                .iter()
                .map(|(frame, _)| frame.len() - (field + 2))
                .collect()
        };
        assert_eq!(lens(together(&mut host, b, a, &mixed)), [1000, 1000, 2000]);
        host.lab.peer(a).accept(Accepts {
            uso: false,
            ..Accepts::ALL
        });
        let arrived = together(&mut host, b, a, &frames);
        assert_eq!(
            lens(arrived),
            [1000, 1000, 300],
            "a guest that takes TCP alone"
        );
    }
}

#[test]
fn what_takes_the_whole_path_is_merged_as_well() {
    for family in FAMILIES {
        let (mut host, a, b) = connected(family);
        // Another snapshot: the fast path knows nobody until the whole path has seen him again.
        host.lab.publish();
        let frames = [1000, 1100, 1200].map(|seq| data(b.nic, a, family, ACK, seq, 100));
        let arrived = together(&mut host, b, a, &frames);
        assert_eq!((arrived.len(), arrived[0].1.gso_size), (1, 100));
        let flow = &host.lab.sim.flows(None)[0];
        assert_eq!(flow.frames_out, 6, "each segment is counted");
    }
}

#[test]
fn what_goes_to_another_worker_is_merged_as_well() {
    for family in FAMILIES {
        let (mut host, a, b) = connected_on(Simulation::several(2), family);
        let uplink = host.lab.sim.worker_of(dataplane::PortSlot::uplink(0));
        for worker in 0..2 {
            assert!(host.lab.sim.move_queue(a.slot, worker));
            let seq = 1000 + 300 * worker as u32;
            let frames = [0, 100, 200].map(|more| data(b.nic, a, family, ACK, seq + more, 100));
            let arrived = together(&mut host, b, a, &frames);
            assert_eq!(
                (arrived.len(), arrived[0].1.gso_size),
                (1, 100),
                "{worker} of {uplink:?}"
            );
        }
    }
}

#[test]
fn what_is_out_of_order_damaged_or_pushed_is_not_merged_with_what_follows() {
    for family in FAMILIES {
        let (mut host, a, b) = connected(family);
        let segment = |flags, seq, len| data(b.nic, a, family, flags, seq, len);
        let lens = |arrived: &[(Vec<u8>, Offload)]| {
            let headers = segment(ACK, 0, 0).len();
            arrived
                .iter()
                .map(|(frame, _)| frame.len() - headers)
                .collect::<Vec<_>>()
        };
        let gap = [
            segment(ACK, 1000, 100),
            segment(ACK, 1200, 100),
            segment(ACK, 1300, 100),
        ];
        assert_eq!(lens(&together(&mut host, b, a, &gap)), [100, 200]);
        let pushed = [segment(PUSH, 1400, 100), segment(ACK, 1500, 100)];
        assert_eq!(lens(&together(&mut host, b, a, &pushed)), [100, 100]);
        let short = [
            segment(ACK, 1600, 100),
            segment(ACK, 1700, 60),
            segment(ACK, 1760, 100),
        ];
        assert_eq!(lens(&together(&mut host, b, a, &short)), [160, 100]);
        let mut damaged = segment(ACK, 1960, 100);
        *damaged.last_mut().unwrap() ^= 1;
        let frames = [
            segment(ACK, 1860, 100),
            damaged.clone(),
            segment(ACK, 2060, 100),
        ];
        let arrived = together(&mut host, b, a, &frames);
        assert_eq!(lens(&arrived), [100, 100, 100]);
        assert_eq!(arrived[1].0, damaged, "its receiver finds out");
        // The end of the connection takes the whole path, and nothing is lost of what came before
        // it.
        let ended = [
            segment(ACK, 2160, 100),
            segment(ACK, 2260, 100),
            segment(FIN_ACK, 2360, 0),
        ];
        let arrived = together(&mut host, b, a, &ended);
        assert_eq!(lens(&arrived).iter().sum::<usize>(), 200);
        assert_eq!(arrived.last().unwrap().0, ended[2]);
    }
}

/// The outer headers around an inner frame with something left to do, as a kernel hands it over a
/// veth.
fn unfinished(from: Far, (inner, offload): (Vec<u8>, Offload)) -> (Vec<u8>, Offload) {
    let frame = inbound(from.at, &inner);
    let front = (frame.len() - inner.len()) as u16;
    let checksum = offload.checksum.map(|partial| PartialChecksum {
        start: partial.start + front,
        ..partial
    });
    (
        frame,
        Offload {
            checksum,
            ..offload
        },
    )
}

#[test]
fn what_was_on_no_wire_is_completed_for_who_needs_it_and_left_as_it_is_for_others() {
    for family in FAMILIES {
        let (mut host, a, b) = connected(family);
        let segment = |seq, len: usize| {
            let segment = ip(b.nic, a, family).dont_fragment().tcp(4000, 80, ACK);
            segment.seq(seq).ack(1000).payload(&vec![seq as u8; len])
        };
        let arrive = |host: &mut Host, frames: &[(Vec<u8>, Offload)]| -> Vec<(Vec<u8>, Offload)> {
            for frame in frames {
                let (frame, offload) = unfinished(b, frame.clone());
                assert!(host.wire.send(frame, offload));
            }
            let before = host.lab.drops();
            host.lab.sim.run();
            assert_eq!(difference(&before, &host.lab.drops()), []);
            std::iter::from_fn(|| host.lab.peer(a).receive()).collect()
        };
        // Alone: as it came. A large one is not made larger.
        let begun = segment(1000, 500).partial_checksum().build_with_offload();
        assert_eq!(
            arrive(&mut host, std::slice::from_ref(&begun)),
            std::slice::from_ref(&begun)
        );
        let large = |seq| segment(seq, 20_000).gso(1000).build_with_offload();
        let two = [large(1500), large(21_500)];
        assert_eq!(arrive(&mut host, &two), two);
        // In a row they become one without being summed.
        let row: Vec<_> = [41_500, 42_500]
            .map(|seq| segment(seq, 1000).partial_checksum().build_with_offload())
            .into();
        let merged = arrive(&mut host, &row);
        assert_eq!(
            (merged.len(), merged[0].1.gso_size, merged[0].1.checksum),
            (1, 1000, large(0).1.checksum)
        );
        // A guest that leaves nothing to be done gets finished packets.
        host.lab.peer(a).accept(Accepts::default());
        let finished = segment(43_500, 500).build();
        let frame = segment(43_500, 500).partial_checksum().build_with_offload();
        assert_eq!(
            arrive(&mut host, &[frame]),
            [(finished, Offload::default())]
        );
        let cut = arrive(&mut host, &[large(44_000)]);
        assert!(
            cut.len() == 20
                && cut
                    .iter()
                    .all(|(_, offload)| *offload == Offload::default())
        );
    }
}

#[test]
fn what_is_left_undone_has_to_fit_what_it_is_left_in() {
    let (mut host, a, b) = connected(Family::V4);
    let inner = data(b.nic, a, Family::V4, ACK, 1000, 500);
    let offload = |start, gso| Offload {
        checksum: Some(PartialChecksum { start, offset: 16 }),
        gso,
        gso_size: if gso == Gso::None { 0 } else { 100 },
        ..Offload::default()
    };
    // Another place than the transport's, or one in front of the inner frame and segments.
    for offload in [offload(50 + 20, Gso::None), offload(34, Gso::Udp)] {
        let before = host.lab.drops();
        assert!(host.wire.send(inbound(b.at, &inner), offload));
        host.lab.sim.run();
        assert_eq!(difference(&before, &host.lab.drops()), [(BadOffload, 1)]);
    }
    host.lab.silent();
}

/// Of a frame's head, which is where a checksum is completed, the outer headers are a part.
#[test]
fn a_checksum_behind_what_is_left_of_the_head_is_refused() {
    let mut host = Host::on(Simulation::default());
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_in(UDP, 53)]);
    let b = host.far(20, 2);
    let inner = ip(b.nic, a, Family::V4).udp(4000, 53);
    let inner = inner.payload(&[7; 300]).build();
    let mut passed = vec![];
    for start in 180..220 {
        let offload = Offload {
            checksum: Some(PartialChecksum {
                start: 50 + start,
                offset: 0,
            }),
            ..Offload::default()
        };
        let before = host.lab.drops();
        assert!(host.wire.send(inbound(b.at, &inner), offload));
        host.lab.sim.run();
        match host.lab.peer(a).receive() {
            Some(_) => passed.push(start),
            None => assert_eq!(difference(&before, &host.lab.drops()), [(BadOffload, 1)]),
        }
    }
    // 256 bytes are at hand of a frame from the wire.
    assert_eq!(passed.last(), Some(&(256 - 50 - 2)), "{passed:?}");
}

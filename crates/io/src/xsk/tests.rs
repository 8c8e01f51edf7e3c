//! Sessions with a kernel of our own making: what goes in comes out, nothing is lost, nothing
//! breaks but the port.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::vxlan::{Ends, Outer, UdpChecksum};
use wire::{Mac, Vni};

use super::*;
use crate::error::TransmitError;
use crate::frame::{FRAME_MAX, HEAD_MAX};
use crate::memory_port::MemoryPort;
use crate::port::Port;
use crate::uplink::UplinkPort;

const FRAMES: u32 = 64;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + len) as u8).collect()
}

fn outer(checksum: UdpChecksum) -> Outer {
    let macs = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let ends = Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let mut outer = Outer::new(macs, Some(7), ends, 64, 4789, checksum);
    outer.set_flow(Vni::new(42).unwrap(), 50_000, 0);
    outer
}

/// An Ethernet frame with a TCP segment of `len` bytes over IPv4, checksum left undone.
fn tcp(len: usize) -> (Vec<u8>, Offload) {
    let mut frame = vec![0xa5; 14 + 20 + 20 + len];
    frame[12..14].copy_from_slice(&[8, 0]);
    let total = (40 + len) as u16;
    frame[14..34].copy_from_slice(&[
        0x45,
        0,
        (total >> 8) as u8,
        total as u8,
        0,
        1,
        0x40,
        0,
        64,
        6,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ]);
    let checksum = wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..54].copy_from_slice(&[
        0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
    ]);
    let pseudo = wire::checksum::pseudo_v4(
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(10, 0, 0, 2),
        6,
        20 + len as u32,
    );
    frame[50..52].copy_from_slice(&wire::checksum::fold(pseudo).to_be_bytes());
    for (i, byte) in frame[54..].iter_mut().enumerate() {
        *byte = i as u8;
    }
    let offload = Offload {
        checksum: Some(PartialChecksum {
            start: 34,
            offset: 16,
        }),
        ..Offload::default()
    };
    (frame, offload)
}

fn port(mtu: u32) -> (Port, XskPeer) {
    let (port, peer) = XskPort::in_memory(FRAMES, mtu).unwrap();
    (Port::from(UplinkPort::from(port)), peer)
}

fn accounting(port: &Port) -> (usize, usize) {
    match port {
        Port::Uplink(uplink) => match &**uplink {
            UplinkPort::Xsk(xsk) => xsk.queue.accounting(),
            UplinkPort::Packet(_) | UplinkPort::Tap(_) | UplinkPort::Dpdk(_) => {
                unreachable!("made here")
            }
        },
        _ => unreachable!("made here"),
    }
}

#[test]
fn frames_of_any_length_arrive_as_they_were_and_their_buffers_go_back() {
    for (mtu, headroom) in [(1500, 256), (9000, 256), (9000, 0), (65_535, 100)] {
        let (mut port, mut peer) = port(mtu);
        let lengths = [
            1, 14, 60, 255, 256, 257, 1518, 1792, 1793, 4000, 9018, 30_000,
        ];
        for len in lengths {
            assert!(peer.inject(&pattern(len), headroom), "{len} of {mtu}");
        }
        let mut batch = Batch::new();
        assert_eq!(port.receive(&mut batch), Ok(lengths.len()));
        for (index, len) in lengths.into_iter().enumerate() {
            let frame = &batch.frames()[index];
            assert_eq!((frame.len(), frame.offload), (len, Offload::default()));
            assert_eq!(frame.head(), &pattern(len)[..len.min(HEAD_MAX)]);
            assert_eq!(batch.to_bytes(index), pattern(len), "{len} of {mtu}");
        }
        assert!(peer.buffers() < FRAMES);
        port.complete(&mut batch);
        assert_eq!((peer.buffers(), accounting(&port).0), (FRAMES, 0));
        assert_eq!(port.receive(&mut batch), Ok(0));
    }
}

#[test]
fn a_batch_keeps_its_frames_when_the_port_is_gone() {
    let (mut port, mut peer) = port(1500);
    peer.inject(&pattern(1400), 256);
    let mut batch = Batch::new();
    assert_eq!(port.receive(&mut batch), Ok(1));
    drop(port);
    drop(peer);
    assert_eq!(batch.to_bytes(0), pattern(1400));
}

#[test]
fn what_is_sent_is_what_any_uplink_sends() {
    let large = |gso_size| {
        let (frame, offload) = tcp(20_000);
        let gso = Offload {
            gso: Gso::Tcp4,
            gso_size,
            ..offload
        };
        (frame, gso)
    };
    let cases = [
        (pattern(60), Offload::default()),
        (pattern(1400), Offload::default()),
        tcp(0),
        tcp(1001),
        large(1400),
        large(536),
    ];
    for checksum in [UdpChecksum::Zero, UdpChecksum::Full] {
        for (frame, offload) in &cases {
            let (mut xsk, mut peer) = port(1500);
            let (memory, memory_peer) = MemoryPort::pair();
            let mut memory = Port::from(memory);
            let mut batch = Batch::new();
            batch.push_bytes(frame, *offload).unwrap();
            for port in [&mut xsk, &mut memory] {
                port.transmit_outer(&batch, 0, &outer(checksum)).unwrap();
                port.flush().unwrap();
            }
            let mut count = 0;
            while let Some((expected, left)) = memory_peer.receive() {
                assert_eq!(
                    (peer.take(), left),
                    (Some(expected.clone()), Offload::default())
                );
                let received = wire::vxlan::parse(&expected, expected.len(), 4789).unwrap();
                let inner = &expected[usize::from(received.inner)..];
                assert!(received.verify(|| wire::checksum::sum(inner)));
                if offload.checksum.is_some() {
                    let sum = wire::checksum::sum(&inner[34..]);
                    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
                    let pseudo = wire::checksum::pseudo_v4(src, dst, 6, inner.len() as u32 - 34);
                    assert_eq!(wire::checksum::fold(sum + pseudo), 0xffff, "inner checksum");
                }
                count += 1;
            }
            assert_eq!(peer.take(), None);
            assert_eq!(
                count,
                if offload.gso == Gso::None {
                    1
                } else {
                    20_000usize.div_ceil(offload.gso_size.into())
                }
            );
            peer.complete(usize::MAX);
            xsk.flush().unwrap();
            assert_eq!(accounting(&xsk), (0, FRAMES as usize));
        }
    }
}

/// A kernel shows a frame before it says that it has taken its buffer, and may be held up between
/// the two.
#[test]
fn buffers_come_back_before_the_kernel_says_that_it_took_them() {
    let (mut port, mut peer) = port(1500);
    let mut batch = Batch::new();
    for _ in 0..5 {
        assert_eq!(peer.inject_ahead(100), FRAMES, "no buffer is lost");
        let mut came = 0;
        while came < FRAMES as usize {
            let frames = port.receive(&mut batch).unwrap();
            assert_ne!(frames, 0, "after {came}");
            came += frames;
            port.complete(&mut batch);
        }
    }
    assert_eq!(accounting(&port), (0, FRAMES as usize));
}

#[test]
fn few_buffers_go_round_while_few_are_needed_and_all_while_the_worker_sleeps() {
    const MANY: u32 = 2048;
    let (port, mut peer) = XskPort::in_memory(MANY, 1500).unwrap();
    let mut port = Port::from(UplinkPort::from(port));
    let mut batch = Batch::new();
    let mut rounds = |port: &mut Port, peer: &mut XskPeer, count: u32, burst: usize| {
        for _ in 0..count {
            for _ in 0..burst {
                assert!(peer.inject(&pattern(100), 256));
            }
            let mut came = 0;
            while came < burst {
                came += port.receive(&mut batch).unwrap();
                port.complete(&mut batch);
            }
        }
        peer.buffers()
    };
    assert_eq!(rounds(&mut port, &mut peer, 10, 32), MANY);
    assert_eq!(rounds(&mut port, &mut peer, 500, 32), 512);
    // A burst that takes nearly all: as many more for the next one, up to all.
    assert_eq!(rounds(&mut port, &mut peer, 1, 500), 1024);
    assert_eq!(rounds(&mut port, &mut peer, 1, 1000), MANY);
    assert_eq!(rounds(&mut port, &mut peer, 500, 32), 512);
    assert!(!port.arm());
    assert_eq!(peer.buffers(), MANY);
    port.disarm();
    assert_eq!(rounds(&mut port, &mut peer, 100, 32), 512);
    assert_eq!(accounting(&port).0, 0);
}

#[test]
fn a_frame_without_outer_headers_goes_as_it_is() {
    let (mut port, mut peer) = port(1500);
    let mut batch = Batch::new();
    batch.push_bytes(&pattern(300), Offload::default()).unwrap();
    port.transmit(&batch, 0).unwrap();
    assert_eq!(peer.take(), None, "nothing before the flush");
    port.flush().unwrap();
    assert_eq!(peer.take(), Some(pattern(300)));
}

#[test]
fn a_frame_longer_than_the_link_takes_is_refused_and_a_link_that_is_down_takes_none() {
    let (port, mut peer) = XskPort::in_memory(FRAMES, 1500).unwrap();
    let link = port.link.clone();
    let mut port = Port::from(UplinkPort::from(port));
    let mut batch = Batch::new();
    batch
        .push_bytes(&pattern(1518), Offload::default())
        .unwrap();
    batch
        .push_bytes(&pattern(1519), Offload::default())
        .unwrap();
    batch
        .push_bytes(&pattern(2048), Offload::default())
        .unwrap();
    assert_eq!(port.transmit(&batch, 0), Ok(()));
    assert_eq!(port.transmit(&batch, 1), Err(TransmitError::TooSmall));
    assert_eq!(port.mtu(), Some(1500));
    link.change(9000, true);
    assert_eq!((port.transmit(&batch, 2), port.mtu()), (Ok(()), Some(9000)));
    link.change(9000, false);
    assert!(!port.is_up());
    assert_eq!(port.transmit(&batch, 0), Err(TransmitError::Down));
    link.change(1500, true);
    port.flush().unwrap();
    assert_eq!(
        (peer.take(), peer.take(), peer.take()),
        (Some(pattern(1518)), Some(pattern(2048)), None)
    );
}

#[test]
fn a_jumbo_frame_goes_out_in_several_buffers() {
    let (mut port, mut peer) = port(9000);
    let mut batch = Batch::new();
    batch
        .push_bytes(&pattern(8900), Offload::default())
        .unwrap();
    let slots = FRAMES as usize / 4;
    for _ in 0..slots {
        assert_eq!(port.transmit(&batch, 0), Ok(()));
    }
    assert_eq!(port.transmit(&batch, 0), Err(TransmitError::Full));
    port.flush().unwrap();
    for _ in 0..slots {
        assert_eq!(peer.take(), Some(pattern(8900)));
    }
    // A slot is free when the last of its three buffers is.
    assert_eq!(peer.complete(2), 2);
    assert_eq!(port.transmit(&batch, 0), Err(TransmitError::Full));
    assert_eq!(peer.complete(1), 1);
    assert_eq!(port.transmit(&batch, 0), Ok(()));
    assert_eq!(peer.complete(usize::MAX), 3 * slots - 3);
    port.flush().unwrap();
    assert_eq!(accounting(&port), (0, slots - 1));
}

#[test]
fn a_long_body_begins_a_cache_line_as_long_as_the_frame_stays_in_its_chunk() {
    let (port, _peer) = XskPort::in_memory(FRAMES, 1500).unwrap();
    for head in 0..300 {
        let indent = port.queue.indent(head, 1600);
        assert!(
            (indent + head) % 64 == 0 && indent < 64,
            "{indent} before {head}"
        );
    }
    assert_eq!(port.queue.indent(65, 2048 - 63), 63);
    assert_eq!(port.queue.indent(65, 2048 - 62), 0);
}

#[test]
fn a_packet_whose_end_is_missing_waits_for_it() {
    let (mut port, mut peer) = port(1500);
    let mut batch = Batch::new();
    peer.inject(&pattern(100), 256);
    peer.inject_entry(3 * 2048 + 256, 1000, true);
    assert_eq!(port.receive(&mut batch), Ok(1));
    port.complete(&mut batch);
    assert_eq!(port.receive(&mut batch), Ok(0));
    peer.inject_entry(4 * 2048 + 256, 10, false);
    assert_eq!(port.receive(&mut batch), Ok(1));
    assert_eq!(batch.frames()[0].len(), 1010);
}

#[test]
fn rings_that_lie_stop_the_port_once() {
    let chunk = |addr, len| [(addr, len, false); 1].to_vec();
    let endless = [(0, 60, true); 64].to_vec();
    let lies = [
        (
            chunk(u64::MAX, 60),
            None,
            "which no chunk for receiving holds",
        ),
        (
            chunk(64 * 2048, 60),
            None,
            "which no chunk for receiving holds",
        ),
        (chunk(0, 0), None, "0 bytes at 0x0"),
        (chunk(2047, 2), None, "2 bytes at 0x7ff"),
        (chunk(0, u32::MAX), None, "4294967295 bytes"),
        (endless, None, "more than 64 buffers"),
        (Vec::new(), Some(64 * 2048), "0x20000, which was not sent"),
    ];
    for (entries, completed, said) in lies {
        let (mut port, mut peer) = port(1500);
        for (addr, len, more) in entries {
            assert!(peer.inject_entry(addr, len, more));
        }
        if let Some(addr) = completed {
            peer.complete_addr(addr);
        }
        let mut batch = Batch::new();
        let error = match port.receive(&mut batch) {
            Ok(count) => {
                assert_eq!(count, 0);
                port.flush().unwrap_err()
            }
            Err(error) => error,
        };
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(
            (port.receive(&mut batch), port.flush()),
            (Ok(0), Ok(())),
            "it is said once"
        );
        batch.push_bytes(&pattern(60), Offload::default()).unwrap();
        assert_eq!(port.transmit(&batch, 0), Err(TransmitError::Down));
        assert!(!port.is_up() && port.kick_fd().is_none() && !port.arm());
    }
}

#[test]
fn a_queue_is_gone_on_with_by_what_can_be_and_by_nothing_else() {
    let (mut port, mut peer) = XskPort::in_memory(FRAMES, 1500).unwrap();
    let queue = &mut port.queue;
    assert!(peer.inject(&pattern(100), 256));
    assert_eq!(queue.filled(1), 1);
    let filled = queue.peek(0, 0).unwrap();
    queue.take(&filled);
    queue.release(1);
    let left = queue.left();
    let (own, sent) = (8, 12);
    let other = |at: usize, bytes: &[u8]| {
        let mut other = left.clone();
        other[at..at + bytes.len()].copy_from_slice(bytes);
        other
    };
    let chunks = queue.umem.count().to_le_bytes();
    let mut twice = other(4, &2u32.to_le_bytes());
    twice.splice(own..own, left[own..sent].to_vec());
    for (what, left) in [
        ("more than all chunks", other(4, &u32::MAX.to_le_bytes())),
        ("none, with one", other(4, &0u32.to_le_bytes())),
        ("a chunk behind the last", other(own, &chunks)),
        ("a chunk that is nowhere", other(own, &[255; 4])),
        ("a chunk twice", twice),
        (
            "a frame of more chunks than a slot",
            other(sent, &[queue.slot_chunks() as u8 + 1]),
        ),
        ("one slot more", [&left[..], &[0]].concat()),
    ] {
        assert_eq!(queue.take_up(&left), None, "{what}");
    }
    for len in 0..left.len() {
        assert_eq!(queue.take_up(&left[..len]), None, "{len} bytes of it");
    }
    // None of these has changed anything.
    assert_eq!(queue.left(), left);
    assert_eq!(queue.take_up(&left), Some(()));
    assert_eq!(queue.left(), left);
    // A window wider than all chunks is one of all chunks.
    assert_eq!(queue.take_up(&other(0, &[255; 4])), Some(()));
    assert_eq!(queue.left()[..4], chunks);
}

#[test]
fn a_queue_whose_process_has_ended_amid_its_work_loses_what_that_was_at_and_nothing_else() {
    let (mut port, mut peer) = port(1500);
    let mut batch = Batch::new();
    // Two frames have come; one was taken, and is lost.
    assert!(peer.inject(&pattern(100), 256) && peer.inject(&pattern(200), 256));
    let queue = queue_of(&mut port);
    assert_eq!(queue.filled(2), 2);
    let filled = queue.peek(0, 0).unwrap();
    queue.take(&filled);
    queue.release(1);
    // Of what is sent, one frame is with the kernel, one waits, and one was not shown to it yet.
    let mut send = |port: &mut Port, len| {
        batch.clear();
        batch.push_bytes(&pattern(len), Offload::default()).unwrap();
        port.transmit(&batch, 0).unwrap();
    };
    send(&mut port, 300);
    send(&mut port, 400);
    queue_of(&mut port).rings.transmit.publish();
    assert_eq!(peer.take().unwrap(), pattern(300));
    send(&mut port, 500);

    // The next process finds out by the rings alone.
    let queue = queue_of(&mut port);
    let before = queue.accounting();
    assert_eq!(queue.recover(), Some(1), "one buffer is still being sent");
    assert_eq!(queue.accounting(), before, "nothing has changed");
    assert_eq!(peer.complete(1), 1);
    assert_eq!(queue.recover(), Some(0));
    // That frame's slot comes back by the completion ring, and another one waits to be sent.
    let slots = (FRAMES / queue.slot_chunks()) as usize;
    assert_eq!(queue.accounting(), (0, slots - 2));
    queue.give_all();
    assert_eq!(peer.buffers(), FRAMES - 1, "one buffer is filled");
    batch.clear();
    assert_eq!(port.receive(&mut batch), Ok(1));
    assert_eq!(batch.frames()[0].len(), 200);
    port.complete(&mut batch);
    assert_eq!(peer.take().unwrap(), pattern(400));
    assert_eq!((peer.take(), peer.complete(1)), (None, 1));
    let queue = queue_of(&mut port);
    // It looks at the ring again when what it knew of has been taken.
    queue.collect().and_then(|()| queue.collect()).unwrap();
    assert_eq!(queue.accounting(), (0, slots));
    queue.give_all();
    assert_eq!(peer.buffers(), FRAMES, "each has come back once");
}

fn queue_of(port: &mut Port) -> &mut Queue {
    &mut port.as_xsk().unwrap().queue
}

#[test]
fn rings_that_hold_what_cannot_be_are_not_gone_on_with() {
    type Spoil = fn(&mut XskPort, &mut XskPeer);
    let spoilt: [(&str, Spoil); 5] = [
        ("a buffer for sending is filled", |port, peer| {
            let addr = port.queue.umem.addr(FRAMES);
            assert!(peer.inject_entry(addr, 60, false));
        }),
        (
            "a filled buffer begins in one and ends in the next",
            |port, peer| {
                let addr = port.queue.umem.addr(1) - 4;
                assert!(peer.inject_entry(addr, 60, false));
            },
        ),
        ("a buffer is to be filled twice", |port, _| {
            let addr = port.queue.umem.addr(0);
            port.queue.rings.fill.push(addr);
            port.queue.rings.fill.publish();
        }),
        ("a buffer for receiving was sent", |_, peer| {
            peer.complete_addr(0);
        }),
        ("more was sent of a slot than it has", |port, peer| {
            let addr = port.queue.umem.addr(FRAMES);
            for _ in 0..=port.queue.slot_chunks() {
                peer.complete_addr(addr);
            }
        }),
    ];
    for (what, spoil) in spoilt {
        let (mut port, mut peer) = XskPort::in_memory(FRAMES, 1500).unwrap();
        let before = port.queue.accounting();
        spoil(&mut port, &mut peer);
        assert_eq!(port.queue.recover(), None, "{what}");
        assert_eq!(port.queue.accounting(), before, "{what}");
    }
}

#[test]
fn a_frame_longer_than_any_can_be_is_lost_and_its_buffers_are_not() {
    let (mut port, mut peer) = port(9000);
    peer.inject(&pattern(FRAME_MAX + 1), 256);
    peer.inject(&pattern(60), 256);
    let mut batch = Batch::new();
    assert_eq!(port.receive(&mut batch), Ok(1));
    assert_eq!(batch.to_bytes(0), pattern(60));
    port.complete(&mut batch);
    assert_eq!(peer.buffers(), FRAMES);
}

/// What may happen next.
#[derive(Clone, Debug)]
enum Step {
    Inject(usize),
    Receive,
    Complete,
    Transmit(usize),
    Flush,
    Take(usize),
    Return(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![1usize..2000, 1usize..12_000, 60_000usize..70_000].prop_map(Step::Inject),
        2 => Just(Step::Receive),
        2 => Just(Step::Complete),
        4 => (14usize..9_100).prop_map(Step::Transmit),
        1 => Just(Step::Flush),
        1 => (0usize..20).prop_map(Step::Take),
        1 => (0usize..40).prop_map(Step::Return),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_frames_keep_their_order_and_no_buffer_is_lost(
        steps in prop::collection::vec(step(), 1..200),
        mtu in prop_oneof![Just(1500u32), Just(9000), Just(65_535)],
        headroom in 0u32..=256,
    ) {
        let (mut port, mut peer) = port(mtu);
        let slots = accounting(&port).1;
        let (mut arriving, mut leaving) = (VecDeque::new(), VecDeque::new());
        let mut out: VecDeque<Batch> = VecDeque::new();
        let mut written: VecDeque<usize> = VecDeque::new();
        for step in steps {
            match step {
                Step::Inject(len) => if peer.inject(&pattern(len), headroom) && len <= FRAME_MAX {
                    arriving.push_back(len);
                },
                Step::Receive => {
                    let mut batch = Batch::new();
                    let count = port.receive(&mut batch).unwrap();
                    prop_assert_eq!(count, batch.len());
                    for index in 0..count {
                        prop_assert_eq!(Some(batch.to_bytes(index)),
                            arriving.pop_front().map(pattern));
                    }
                    if count > 0 {
                        out.push_back(batch);
                    }
                }
                Step::Complete => if let Some(mut batch) = out.pop_front() {
                    port.complete(&mut batch);
                },
                Step::Transmit(len) => {
                    let mut batch = Batch::new();
                    batch.push_bytes(&pattern(len), Offload::default());
                    match port.transmit(&batch, 0) {
                        Ok(()) => written.push_back(len),
                        Err(TransmitError::TooSmall) =>
                            prop_assert!(len > mtu as usize + LINK_HEADER),
                        Err(error) => prop_assert_eq!(error, TransmitError::Full),
                    }
                }
                Step::Flush => {
                    port.flush().unwrap();
                    leaving.append(&mut written);
                }
                Step::Take(count) => for _ in 0..count.min(leaving.len()) {
                    prop_assert_eq!(peer.take(), leaving.pop_front().map(pattern));
                },
                Step::Return(count) => {
                    peer.complete(count);
                }
            }
        }
        // In the end everything comes home.
        loop {
            let mut batch = Batch::new();
            while let Some(mut batch) = out.pop_front() {
                port.complete(&mut batch);
            }
            if port.receive(&mut batch).unwrap() == 0 {
                break;
            }
            out.push_back(batch);
        }
        port.flush().unwrap();
        peer.swallow();
        peer.complete(usize::MAX);
        port.flush().unwrap();
        prop_assert_eq!((peer.buffers(), accounting(&port)), (FRAMES, (0, slots)));
    }
}

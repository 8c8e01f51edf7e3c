//! Frames of every length through chains of every shape: what arrives is what was sent, and nothing
//! else of either guest's memory changed.

mod common;

use butterfly_io::frame::{BATCH, Batch, FRAME_MAX};
use butterfly_io::port::{Port, TransmitError};
use common::*;
use testkit::ring_driver::{CANARY, GuestOptions, Shape};
use wire::offload::{Offload, PartialChecksum};

const LENGTHS: [usize; 22] = [
    14, 15, 16, 42, 59, 60, 63, 64, 65, 115, 116, 117, 127, 128, 243, 244, 245, 255, 256, 257,
    1514, 9014,
];

/// Sends one frame, compares it, and compares all other memory of both guests with what it was.
fn cross(pair: &mut Pair, frame: &[u8], shape: &Shape) {
    let context = format!("{} bytes in {shape:?}", frame.len());
    assert!(
        pair.from.send(frame, Offload::default(), shape),
        "{context}"
    );
    pair.from.transmitq.publish();
    let sender = pair.from.memory().bytes(0, pair.from.memory().len());
    let receiver = pair.to.memory().bytes(0, pair.to.memory().len());
    assert_eq!(pair.poll(), Turn::ok(1), "{context}");

    let after = pair.from.memory().bytes(0, sender.len());
    assert!(
        same_but(&sender, &after, &pair.from.transmitq.written_by_device()),
        "sender's memory outside the ring, {context}"
    );

    let after = pair.to.memory().bytes(0, receiver.len());
    let rings = pair.to.receiveq.used_at + 6 + 8 * usize::from(pair.to.receiveq.size);
    let mut written = pair.to.receiveq.written_by_device();
    written.push(rings..after.len());
    assert!(
        same_but(&receiver, &after, &written),
        "receiver's memory outside the ring and the buffers, {context}"
    );
    let changed = (rings..after.len())
        .filter(|&at| after[at] != receiver[at])
        .count();
    let header = pair.to.header_len();
    assert!(
        changed <= frame.len() + header,
        "{changed} bytes changed, {context}"
    );

    let got = pair.one();
    assert!(
        got.frame == frame,
        "{} bytes arrived, {context}",
        got.frame.len()
    );
    assert_eq!(got.offload, Offload::default());
    assert_eq!(pair.from.reclaim(), 1, "{context}");
    // `receive` has filled the buffers it read with the canary again: whatever is left was written
    // elsewhere.
    let after = pair.to.memory().bytes(0, receiver.len());
    let (table, behind) = (
        pair.to.receiveq.used_at + 6 + 8 * usize::from(pair.to.receiveq.size),
        after.len(),
    );
    assert!(
        after[table..behind] == receiver[table..behind],
        "receiver's memory after reading, {context}"
    );
}

fn small(features: u64) -> GuestOptions {
    GuestOptions {
        features,
        queue_size: 32,
        memory_len: 512 << 10,
        receive_chains: 16,
        ..GuestOptions::default()
    }
}

every_ring! {
    fn every_length_in_every_chain_shape() {
        let to = GuestOptions {
            receive_shape: Shape::cut(&[16 << 10]),
            ..small(PLAIN)
        };
        let mut pair = Pair::new(small(PLAIN), to);
        let mut shapes = vec![
            Shape::whole(),
            Shape::cut(&[12]),
            Shape::cut(&[12, 14]),
            Shape::cut(&[5, 7]),
            Shape::cut(&[5, 8]),
            Shape::cut(&[1; 17]),
            Shape::cut(&[12, 100, 1, 300]),
            Shape::cut(&[12, 0, 20, 0]),
            Shape::cut(&[268]),
            Shape::cut(&[267, 1]),
        ];
        for parts in 1..=18 {
            shapes.push(Shape::cut(&vec![13; parts - 1]));
        }
        for shape in shapes.clone() {
            let parts = shape.parts.len();
            shapes.push(shape.clone().indirect(0));
            shapes.push(shape.indirect(parts / 2));
        }
        for (number, shape) in shapes.iter().enumerate() {
            // All lengths with the first few, a moving choice with the rest: each comparison is of
            // whole memories.
            for (position, &len) in LENGTHS.iter().enumerate() {
                if number < 6 || (number + position) % 5 == 0 {
                    cross(&mut pair, &pattern(len), shape);
                }
            }
        }
    }
}

every_ring! {
    fn frames_of_64_kib() {
        let big = |shape| GuestOptions {
            receive_shape: shape,
            ..GuestOptions::default()
        };
        for receive in [
            Shape::cut(&[FRAME_MAX + 12]),
            Shape::cut(&[2048]),
            Shape::cut(&[12, 4096, 65536]),
        ] {
            let mut pair = Pair::new(big(Shape::cut(&[64])), big(receive));
            let lens = [65_535, 65_536, 65_550, FRAME_MAX];
            for (len, for_many) in lens.into_iter().flat_map(|len| [(len, false), (len, true)]) {
                pair.for_many = for_many;
                cross(&mut pair, &pattern(len), &Shape::whole());
                cross(&mut pair, &pattern(len), &Shape::cut(&[12, 66, 4096, 32768]));
                cross(&mut pair, &pattern(len), &Shape::cut(&[4096; 16]).indirect(0));
            }
        }
    }
}

every_ring! {
    /// Each takes a look: who sends them is charged for them as for others.
    fn empty_buffers_are_counted() {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        let empty = Shape::cut(&[0; 1000]).indirect(0);
        for shape in [&empty, &Shape::cut(&[0, 12, 0]), &Shape::whole(), &Shape::cut(&[12])] {
            assert!(pair.from.send(&pattern(62), Offload::default(), shape));
        }
        pair.from.transmitq.publish();
        assert_eq!(pair.from_port.receive(&mut pair.batch), Ok(4));
        // Those of a chain of several buffers among them, though the head is all of the frame.
        assert_eq!(pair.batch.pieces(), 1000 + 4 + 2);
        pair.from_port.complete(&mut pair.batch);
        assert_eq!(pair.batch.pieces(), 0);
        assert_eq!(pair.from.reclaim(), 4);
    }
}

every_ring! {
    /// Those of the ring's own table too, where an indirect one holds the rest.
    fn empty_buffers_before_an_indirect_table_are_counted() {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        let shape = Shape::cut(&[0; 200]).indirect(200);
        assert!(pair.from.send(&pattern(62), Offload::default(), &shape));
        pair.from.transmitq.publish();
        assert_eq!(pair.from_port.receive(&mut pair.batch), Ok(1));
        assert_eq!(pair.batch.pieces(), 200);
        pair.from_port.complete(&mut pair.batch);
        assert_eq!(pair.from.reclaim(), 1);
    }
}

/// What becomes of a frame to a guest that receives in chains of this shape.
fn received_in(receive_shape: Shape) -> Turn {
    let to = GuestOptions {
        receive_shape,
        ..GuestOptions::default()
    };
    let mut pair = Pair::new(GuestOptions::default(), to);
    let sent = pair
        .from
        .send(&pattern(62), Offload::default(), &Shape::whole());
    assert!(sent);
    pair.turn()
}

/// 62 bytes and a header in more descriptors than are worth it.
fn is_scattered(turn: Turn) {
    assert_eq!(turn.sent, [Err(TransmitError::Broken)]);
    let error = turn.error.unwrap().to_string();
    assert!(
        error.contains("74 bytes take more than 65 descriptors"),
        "{error}"
    );
}

every_ring! {
    /// Each frame would go through them.
    fn empty_buffers_to_receive_in_are_counted_before_an_indirect_table() {
        let few = [vec![0; 60], vec![2048]].concat();
        assert_eq!(received_in(Shape::cut(&few).indirect(60)), Turn::ok(1));
        let many = [vec![0; 200], vec![2048]].concat();
        is_scattered(received_in(Shape::cut(&many).indirect(200)));
    }
}

every_ring! {
    /// Of a packed ring the whole chain is read, since its id is at its end.
    fn buffers_behind_a_frame_are_counted_where_they_are_read() {
        let few = [vec![2048], vec![0; 60]].concat();
        assert_eq!(received_in(Shape::cut(&few)), Turn::ok(1));
        let turn = received_in(Shape::cut(&[vec![2048], vec![0; 200]].concat()));
        match kind() & RING_PACKED {
            0 => assert_eq!(turn, Turn::ok(1)),
            _ => is_scattered(turn),
        }
    }
}

every_ring! {
    fn receive_chains_of_every_shape() {
        for shape in [
            Shape::cut(&[2048]),
            Shape::cut(&[12, 1600]),
            Shape::cut(&[10, 1600]),
            Shape::cut(&[5, 5, 5, 5, 1600]),
            Shape::cut(&[12, 14, 20, 2000]).indirect(0),
            Shape::cut(&[12, 14, 20, 2000]).indirect(2),
            Shape::cut(&[300, 300, 300, 300, 300, 300]),
            Shape::cut(&[100; 18]).indirect(0),
        ] {
            for features in [PLAIN, PLAIN & !MRG_RXBUF] {
                let to = GuestOptions {
                    receive_shape: shape.clone(),
                    ..small(features)
                };
                let mut pair = Pair::new(small(PLAIN), to);
                for len in [14, 60, 64, 256, 257, 1000, 1514] {
                    cross(&mut pair, &pattern(len), &Shape::whole());
                    cross(&mut pair, &pattern(len), &Shape::cut(&[12, 14, 40]));
                }
            }
        }
    }
}

use butterfly_io::vhost::features::{MRG_RXBUF, RING_PACKED, VERSION_1};

every_ring! {
    fn a_legacy_header_has_ten_bytes() {
        let legacy = small(PLAIN & !MRG_RXBUF & !VERSION_1);
        let mut pair = Pair::new(legacy.clone(), legacy);
        for len in [14, 60, 257, 1514] {
            cross(&mut pair, &pattern(len), &Shape::whole());
            cross(&mut pair, &pattern(len), &Shape::cut(&[10]));
        }
    }
}

every_ring! {
    fn a_frame_is_spread_over_as_many_small_buffers_as_it_takes() {
        let to = GuestOptions {
            receive_shape: Shape::cut(&[100]),
            ..GuestOptions::default()
        };
        let mut pair = Pair::new(GuestOptions::default(), to);
        for (len, chains) in [(14, 1), (88, 1), (89, 2), (188, 2), (1514, 16), (9014, 91)] {
            pair.from.send(&pattern(len), Offload::default(), &Shape::whole());
            assert_eq!(pair.turn(), Turn::ok(1));
            let got = pair.one();
            assert_eq!(
                (got.frame == pattern(len), got.chains),
                (true, chains),
                "{len} bytes"
            );
        }
    }
}

every_ring! {
    fn buffers_that_cross_two_regions() {
        // The second region begins inside the buffers of both guests.
        let regions = |features| GuestOptions {
            second_region: Some(0),
            ..small(features)
        };
        let (mut from, mut to) = (regions(PLAIN), regions(PLAIN));
        from.second_region = Some(0x4000);
        to.receive_shape = Shape::cut(&[16 << 10]);
        to.second_region = Some(0x44000);
        let mut pair = Pair::new(from, to);
        for round in 0..40 {
            let len = 14 + 97 * round;
            assert!(pair.from.send(&pattern(len), Offload::default(), &Shape::whole()));
            assert!(
                pair.from
                    .send(&pattern(9000), Offload::default(), &Shape::cut(&[12, 14]))
            );
            assert_eq!(pair.turn(), Turn::ok(2));
            let got = pair.to.receive();
            assert!(
                got[0].frame == pattern(len) && got[1].frame == pattern(9000),
                "round {round}"
            );
            pair.from.reclaim();
        }
    }
}

every_ring! {
    fn indirect_tables_that_cross_two_regions() {
        // Tables of a quarter of a page: some of these second regions begin inside of one.
        let shape = Shape {
            parts: [vec![12], vec![1; 62]].concat(),
            indirect_from: Some(0),
        };
        for page in 0x44..0x4c {
            let to = GuestOptions {
                receive_shape: shape.clone(),
                second_region: Some(page << 12),
                ..small(PLAIN)
            };
            let mut pair = Pair::new(small(PLAIN), to);
            for round in 0..16 {
                assert!(pair.from.send(&pattern(60), Offload::default(), &Shape::whole()));
                assert_eq!(pair.turn(), Turn::ok(1), "round {round} of page {page:#x}");
                assert!(pair.to.receive()[0].frame == pattern(60));
                pair.from.reclaim();
            }
        }
    }
}

every_ring! {
    fn indices_wrap_around() {
        let near_the_end = |features| GuestOptions {
            start_index: 65_500,
            ..small(features)
        };
        let mut pair = Pair::new(near_the_end(PLAIN), near_the_end(PLAIN));
        for round in 0..100 {
            for frame in 0..3 {
                pair.from.send(
                    &pattern(60 + round + frame),
                    Offload::default(),
                    &Shape::cut(&[12]),
                );
            }
            assert_eq!(pair.turn(), Turn::ok(3));
            let got: Vec<_> = pair.to.receive().into_iter().map(|got| got.frame).collect();
            assert_eq!(got, [0, 1, 2].map(|frame| pattern(60 + round + frame)));
            assert_eq!(pair.from.reclaim(), 3);
        }
        // Two slots of a packed ring for each frame that was sent.
        let taken = if kind() & RING_PACKED != 0 { 600 } else { 300 };
        assert_eq!(pair.from.transmitq.used_index(), 65_500u16.wrapping_add(taken));
        assert_eq!(pair.to.receiveq.used_index(), 65_500u16.wrapping_add(300));
    }
}

every_ring! {
    fn a_batch_has_its_size_and_the_rest_comes_next() {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        for frame in 0..2 * BATCH + 6 {
            pair.from
                .send(&pattern(60 + frame), Offload::default(), &Shape::whole());
        }
        assert_eq!(pair.turn(), Turn::ok(BATCH));
        assert_eq!(pair.from.reclaim(), BATCH);
        assert_eq!(
            (pair.poll(), pair.poll(), pair.poll()),
            (Turn::ok(BATCH), Turn::ok(6), Turn::ok(0))
        );
        let got: Vec<_> = pair.to.receive().into_iter().map(|got| got.frame).collect();
        assert_eq!(got, (0..2 * BATCH + 6).map(|frame| pattern(60 + frame)).collect::<Vec<_>>());
    }
}

every_ring! {
    fn a_receiver_without_room_loses_frames_and_sees_no_half_of_one() {
        use butterfly_io::port::TransmitError::{Full, TooSmall};
        let to = |features, chains| GuestOptions {
            receive_shape: Shape::cut(&[500]),
            receive_chains: chains,
            ..small(features)
        };
        // Three buffers: 1000 bytes take three with their header; what does not fit leaves them for
        // what does.
        let mut pair = Pair::new(small(PLAIN), to(PLAIN, 3));
        for len in [1400, 1500, 60, 900, 60] {
            pair.from.send(&pattern(len), Offload::default(), &Shape::whole());
        }
        assert_eq!(
            pair.turn().sent,
            [Ok(()), Err(Full), Err(Full), Err(Full), Err(Full)]
        );
        assert_eq!(pair.one().frame, pattern(1400));
        for len in [1500, 60, 900, 60] {
            pair.from.send(&pattern(len), Offload::default(), &Shape::whole());
        }
        assert_eq!(pair.turn().sent, [Err(Full), Ok(()), Ok(()), Err(Full)]);
        let got: Vec<_> = pair.to.receive().into_iter().map(|got| got.frame).collect();
        assert_eq!(got, [pattern(60), pattern(900)]);

        let mut pair = Pair::new(small(PLAIN), to(PLAIN & !MRG_RXBUF, 2));
        for len in [489, 488, 489, 60, 60] {
            pair.from.send(&pattern(len), Offload::default(), &Shape::whole());
        }
        assert_eq!(
            pair.turn().sent,
            [Err(TooSmall), Ok(()), Err(TooSmall), Ok(()), Err(Full)]
        );
        let got: Vec<_> = pair.to.receive().into_iter().map(|got| got.frame).collect();
        assert_eq!(got, [pattern(488), pattern(60)]);
        assert!(
            pair.to
                .memory()
                .bytes(pair.to.memory().len() - 64, 64)
                .iter()
                .all(|&byte| byte == CANARY)
        );
    }
}

every_ring! {
    fn one_frame_goes_to_several_receivers() {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        let mut third = common::guest(GuestOptions::default());
        let mut third_port = butterfly_io::port::Port::from(third.port());
        pair.from
            .send(&pattern(1514), Offload::default(), &Shape::cut(&[12, 700]));
        pair.from.transmitq.publish();
        pair.from_port.receive(&mut pair.batch).unwrap();
        for port in [&mut pair.to_port, &mut third_port] {
            port.transmit(&pair.batch, 0).unwrap();
            port.flush().unwrap();
        }
        assert_eq!(pair.from.reclaim(), 0, "the sender's buffer is still needed");
        pair.from_port.complete(&mut pair.batch);
        assert_eq!(pair.from.reclaim(), 1);
        assert_eq!(
            (pair.one().frame, third.receive().remove(0).frame),
            (pattern(1514), pattern(1514))
        );
    }
}

every_ring! {
    fn a_port_taken_apart_goes_on_where_it_stopped() {
        use butterfly_io::vhost::port::VhostPort;
        use butterfly_io::vhost::queue::{Begin, Queue};
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        for round in 0..3 {
            pair.from
                .send(&pattern(100 + round), Offload::default(), &Shape::whole());
            assert_eq!(pair.turn(), Turn::ok(1));
            assert_eq!(pair.one().frame, pattern(100 + round));
            let butterfly_io::port::Port::Vhost(port) = pair.from_port else {
                unreachable!("made from a VhostPort")
            };
            let mut parts = port.into_parts();
            let queue = parts.transmitq.take().unwrap().into_parts();
            let packed = kind() & RING_PACKED != 0;
            let wrap = if packed { 0x8000 } else { 0 };
            assert_eq!(queue.last_avail, (round as u16 + 1) | wrap);
            let mut setup = pair.from.setup(&pair.from.transmitq, &parts.memory);
            if round > 0 {
                setup.begin = Begin::At(queue.last_avail);
            } else {
                setup.begin = Begin::AS_IT_WAS;
            }
            setup.kick = queue.kick;
            parts.transmitq = Some(Queue::new(setup).unwrap());
            pair.from_port = VhostPort::new(parts).into();
        }
    }
}

every_ring! {
    fn a_batch_in_one_call_arrives_as_one_by_one() {
        let (mut one_by_one, mut at_once) = (receiver(), receiver());
        let (mut single, mut whole) = (Port::from(one_by_one.port()), Port::from(at_once.port()));
        let checksum = Offload {
            checksum: Some(PartialChecksum { start: 34, offset: 6 }),
            ..Offload::default()
        };
        let mut batch = Batch::new();
        // Frames as they are; through several chains; with a checksum to complete; cut short by
        // nothing; no room at the end.
        for (len, offload) in [
            (60, Offload::default()),
            (300, Offload::default()),
            (1514, Offload::default()),
            (80, checksum),
            (61, Offload::default()),
            (9014, Offload::default()),
            (62, Offload::default()),
            (63, Offload::default()),
        ] {
            batch.push_bytes(&pattern(len), offload);
        }
        // Out of order, and one of them twice.
        let frames = [7, 0, 1, 2, 3, 3, 5, 4, 6];
        let mut results = [Ok(()); 9];
        whole.transmit_all(&batch, &frames, &mut results);
        let expected = frames.map(|frame| single.transmit(&batch, frame.into()));
        assert_eq!(results, expected);
        assert_eq!(
            results[6],
            Err(TransmitError::Full),
            "the large one finds no room"
        );
        assert_eq!(results[7], Ok(()), "and leaves what there is to smaller ones");
        for port in [&mut single, &mut whole] {
            port.flush().unwrap();
        }
        assert_eq!(whole.info(), single.info());
        let got = at_once.receive();
        assert_eq!(got, one_by_one.receive());
        let frames: Vec<_> = got.into_iter().map(|got| got.frame).collect();
        assert_eq!(frames[..4], [63, 60, 300, 1514].map(pattern));
        assert_eq!(frames[4], frames[5]);
        assert_ne!(frames[4], pattern(80), "its checksum was completed");
        assert_eq!(frames[6..], [61, 62].map(pattern));
    }
}

/// A guest without offloads that has a few small buffers.
fn receiver() -> testkit::ring_driver::Guest {
    common::guest(GuestOptions {
        features: PLAIN,
        receive_shape: Shape::cut(&[512]),
        receive_chains: 12,
        ..GuestOptions::default()
    })
}

//! Target `rings`: split and packed rings in memory that a hostile guest writes as it likes, while
//! frames go both ways.
//!
//! Promises: a ring that lies stops its own port and nothing else; no byte outside the guest's
//! memory, and of its neighbour's none but the receive buffers, is written; what was judged is what
//! is delivered, though the guest rewrites its memory in between; everything ends.
//!
//! Input: a byte of features and one of ring size, the `u16` at which the indices begin, then steps
//! ([`step`]).

use std::sync::Arc;

use io::frame::Batch;
use io::guest_memory::GuestMemory;
use io::memory_port::{MemoryPeer, MemoryPort};
use io::port::Port;
use io::vhost::features::*;
use io::vhost::port::{PortParts, VhostPort};
use io::vhost::queue::{Begin, Queue as DeviceQueue, QueueSetup};
use testkit::ring_driver::queue::{Queue, descriptor, packed_descriptor};
use testkit::ring_driver::{CANARY, GUEST_BASE, Guest, GuestOptions, Shape, USER_BASE};
use wire::offload::Offload;

use crate::input::Input;
use crate::witness::{EVERYTHING, PLAIN, Witness};

const STEPS_MAX: usize = 200;
const MEMORY: usize = 64 << 10;
/// The guest has a little more memory than it hands over: nobody may write there.
const HIDDEN: usize = 4096;
const HANDED_OVER: usize = MEMORY - HIDDEN;
/// Where the memory is cut when it is handed over as two regions.
const CUT: u64 = 32 << 10;

struct Bench {
    hostile: Guest,
    features: u64,
    two_regions: bool,
    port: Port,
    witness: Witness,
    /// The witness takes frames as they are: what arrives can be compared.
    whole: bool,
    friend: MemoryPeer,
    friend_port: Port,
    batch: Batch,
}

/// Drives hostile rings.
pub fn rings(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let second = input.u8();
    let size = 1 << (second % 8);
    let mut features = if choice & 1 != 0 { EVERYTHING } else { PLAIN };
    for (bit, feature) in [
        (2, MRG_RXBUF),
        (4, EVENT_IDX),
        (8, INDIRECT_DESC),
        (16, VERSION_1),
    ] {
        if choice & bit != 0 {
            features &= !feature;
        }
    }
    for (bit, feature) in [(8, RING_PACKED), (16, IN_ORDER)] {
        if second & bit != 0 {
            features |= feature;
        }
    }
    let hostile = Guest::new(GuestOptions {
        features,
        queue_size: size,
        memory_len: MEMORY,
        receive_shape: Shape::cut(&[300, 400]),
        receive_chains: 8,
        start_index: input.u16(),
        ..GuestOptions::default()
    });
    let two_regions = choice & 32 != 0;
    let whole = choice & 64 != 0;
    let memory = memory(&hostile, two_regions);
    let queue = |queue: &Queue| DeviceQueue::new(hostile.setup(queue, &memory)).ok();
    let port = VhostPort::new(PortParts {
        features,
        receiveq: queue(&hostile.receiveq),
        transmitq: queue(&hostile.transmitq),
        transmitq_off: false,
        mtu: None,
        memory: memory.clone(),
    });
    let (friend_port, friend) = MemoryPort::pair();
    let mut bench = Bench {
        features,
        two_regions,
        port: port.into(),
        witness: Witness::new(if whole { EVERYTHING } else { PLAIN }),
        whole,
        friend,
        friend_port: friend_port.into(),
        batch: Batch::new(),
        hostile,
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        bench = step(bench, &mut input);
    }
    bench.turn(&mut input);
    let hidden = bench.hostile.memory().bytes(HANDED_OVER, HIDDEN);
    assert!(
        hidden.iter().all(|&byte| byte == CANARY),
        "written behind the guest's memory"
    );
    assert!(bench.friend_port.is_up());
    bench.witness.check();
}

/// What the device sees of the guest's memory.
fn memory(guest: &Guest, two_regions: bool) -> Arc<GuestMemory> {
    let mut first = guest.regions().remove(0);
    first.size = HANDED_OVER as u64;
    let mut regions = vec![first];
    if two_regions {
        let mut second = guest.regions().remove(0);
        for start in [
            &mut second.guest_addr,
            &mut second.user_addr,
            &mut second.mmap_offset,
        ] {
            *start += CUT;
        }
        second.size = HANDED_OVER as u64 - CUT;
        regions[0].size = CUT;
        regions.push(second);
    }
    Arc::new(GuestMemory::new(regions).expect("memory for a guest"))
}

/// One step of the hostile guest, or of the switch.
fn step(mut bench: Bench, input: &mut Input) -> Bench {
    let op = input.u8();
    let receive = op & 0x80 != 0;
    mend_events(&bench.hostile);
    let Bench {
        hostile, features, ..
    } = &mut bench;
    match op & 0x0f {
        0 | 1 => {
            let (index, addr) = (u16::from(input.u8()), address(input));
            let len = length(input);
            // In a packed ring the upper bits are those that say whether the slot is available.
            let flags = input.u8();
            let flags =
                u16::from(flags & 7) | u16::from(flags & 8) << 4 | u16::from(flags & 16) << 11;
            let next = u16::from(input.u8());
            queue(hostile, receive).write_descriptor(index, addr, len, flags, next);
        }
        2 => scribble(hostile, input),
        3 => queue(hostile, receive).push_available(input.u8().into()),
        4 => queue(hostile, receive).push_available(input.u16()),
        5 => {
            queue(hostile, receive).publish();
        }
        6 => queue(hostile, receive).write_available_index(input.u16()),
        7 => {
            // An indirect table, wherever.
            let (at, count) = (
                usize::from(input.u16()) & 0xfff0,
                usize::from(input.u8() % 9),
            );
            for entry in 0..count {
                let (addr, len) = (address(input), length(input));
                let (flags, next) = (u16::from(input.u8() & 7), u16::from(input.u8() % 16));
                let bytes = match *features & RING_PACKED {
                    0 => descriptor(addr, len, flags, next),
                    _ => packed_descriptor(addr, len, next, flags),
                };
                write(hostile, at + 16 * entry, &bytes);
            }
        }
        8 | 9 => bench.turn(input),
        10 => {
            let offload = input.offload();
            bench.deliver(input.piece(), offload);
        }
        11 => {
            let offload = input.offload();
            let shape = shape(input);
            if !hostile.send(input.piece(), offload, &shape) {
                hostile.transmitq.publish();
            }
        }
        12 => hostile.refill_some(usize::from(input.u8())),
        13 => {
            bench.port.arm();
            bench.port.kicked();
            bench.port.disarm();
        }
        14 => return bench.again(input),
        _ => {
            let _ = bench.port.info();
            bench.deliver(
                &vec![input.u8(); usize::from(input.u16())],
                Offload::default(),
            );
        }
    }
    bench
}

impl Bench {
    /// Frames from the hostile guest to the witness; it may rewrite its memory after they were
    /// judged.
    fn turn(&mut self, input: &mut Input) {
        let _ = self.port.receive(&mut self.batch);
        let judged: Vec<_> = self
            .batch
            .frames()
            .iter()
            .map(|frame| (frame.head().to_vec(), frame.len()))
            .collect();
        scribble(&self.hostile, input);
        let mut expected = Vec::new();
        for (index, judged) in judged.into_iter().enumerate() {
            if self.batch.frames()[index].fault().is_some() {
                continue;
            }
            match self.witness.port.transmit(&self.batch, index) {
                Ok(()) => expected.push(judged),
                Err(error) => assert!(Witness::may_refuse(error), "{error}"),
            }
        }
        let received = self.witness.receive();
        let _ = self.port.flush();
        self.port.complete(&mut self.batch);
        if self.whole {
            assert_eq!(received.len(), expected.len());
            for (got, (head, len)) in received.iter().zip(&expected) {
                assert_eq!(got.frame.len(), *len);
                assert!(got.frame.starts_with(head), "another head than was judged");
            }
        }
    }

    /// A frame of an honest guest to the hostile one.
    fn deliver(&mut self, frame: &[u8], offload: Offload) {
        self.friend.send(frame.to_vec(), offload);
        let received = self.friend_port.receive(&mut self.batch);
        assert!(received.is_ok());
        for index in 0..self.batch.len() {
            let _ = self.port.transmit(&self.batch, index);
        }
        let _ = self.port.flush();
        self.friend_port.complete(&mut self.batch);
    }

    /// The VMM sets the rings up anew: other sizes, other places, other indices.
    fn again(mut self, input: &mut Input) -> Bench {
        let Port::Vhost(port) = self.port else {
            unreachable!("the hostile guest has a vhost-user port");
        };
        let parts = port.into_parts();
        let memory = memory(&self.hostile, self.two_regions);
        let mut queue = |old: Option<DeviceQueue>, like: &Queue| {
            let choice = input.u8();
            let mut setup: QueueSetup = self.hostile.setup(like, &memory);
            if let Some(queue) = old {
                setup.begin = Begin::At(queue.into_parts().last_avail);
            }
            if choice & 1 != 0 {
                let at = input.u16();
                setup.begin = match at & 0x4000 {
                    0 => Begin::At(at),
                    _ => Begin::AsItWas { told: at },
                };
            }
            if choice & 2 != 0 {
                setup.size = if choice & 4 != 0 {
                    input.u16()
                } else {
                    1 << (input.u8() % 16)
                };
            }
            for (bit, place) in [
                (8, &mut setup.desc),
                (16, &mut setup.avail),
                (32, &mut setup.used),
            ] {
                if choice & bit != 0 {
                    *place = USER_BASE + u64::from(input.u16());
                }
            }
            DeviceQueue::new(setup)
                .ok()
                .filter(|_| choice & 0xc0 != 0xc0)
        };
        let receiveq = queue(parts.receiveq, &self.hostile.receiveq);
        let transmitq = queue(parts.transmitq, &self.hostile.transmitq);
        self.port = VhostPort::new(PortParts {
            features: self.features,
            receiveq,
            transmitq,
            transmitq_off: false,
            mtu: None,
            memory,
        })
        .into();
        self
    }
}

/// The driver that plays the guest insists on event structures that make sense, and the guest
/// writes over them.
fn mend_events(guest: &Guest) {
    for queue in [&guest.transmitq, &guest.receiveq] {
        if queue.is_packed() {
            guest.memory().fill(queue.used_at + 2, 2, 0);
        }
    }
}

fn queue(guest: &mut Guest, receive: bool) -> &mut Queue {
    if receive {
        &mut guest.receiveq
    } else {
        &mut guest.transmitq
    }
}

/// Mostly an address in the memory, sometimes near one of its ends, sometimes anything.
fn address(input: &mut Input) -> u64 {
    match input.u8() % 8 {
        0 => input.u64(),
        1 => GUEST_BASE + HANDED_OVER as u64 - u64::from(input.u8()) + 16,
        2 => GUEST_BASE + CUT - u64::from(input.u8()) + 16,
        3 => GUEST_BASE.wrapping_sub(u64::from(input.u8())),
        _ => GUEST_BASE + u64::from(input.u16()),
    }
}

fn length(input: &mut Input) -> u32 {
    match input.u8() % 4 {
        0 => input.u32(),
        1 => u32::from(input.u8()) * 16,
        _ => u32::from(input.u16()) % 3000,
    }
}

fn shape(input: &mut Input) -> Shape {
    let choice = input.u8();
    let parts = (0..choice % 5)
        .map(|_| usize::from(input.u8()))
        .collect::<Vec<_>>();
    let indirect_from =
        (choice & 0x80 != 0).then_some(usize::from(choice >> 4 & 7).min(parts.len()));
    Shape {
        parts,
        indirect_from,
    }
}

/// Writes bytes anywhere in the memory.
fn scribble(guest: &Guest, input: &mut Input) {
    let (at, len) = (usize::from(input.u16()), usize::from(input.u8()));
    write(guest, at, input.take(len));
}

fn write(guest: &Guest, at: usize, bytes: &[u8]) {
    let at = at.min(HANDED_OVER);
    let len = bytes.len().min(HANDED_OVER - at);
    guest.memory().write(at, &bytes[..len]);
}

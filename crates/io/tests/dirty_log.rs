//! What is written into a guest while its VMM moves it is in the VMM's log: each page that changed,
//! and no page that was not written.

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use butterfly_io::guest_memory::{GuestMemory, RegionSpec};
use butterfly_io::guest_view::GuestView;
use butterfly_io::port::{Port, PortError};
use butterfly_io::vhost::features::*;
use butterfly_io::vhost::port::{PortParts, VhostPort};
use butterfly_io::vhost::queue::{Queue as DeviceQueue, QueueError, QueueSetup};
use butterfly_io::vhost::{DirtyLog, LogSetup, LogTooSmall};
use common::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use testkit::ring_driver::queue::Queue;
use testkit::ring_driver::{GUEST_BASE, Guest, GuestOptions, Shape};
use wire::build;
use wire::offload::{Offload, PartialChecksum};
use wire::parse::TcpFlags;

const PAGE: usize = 4096;

/// Bytes of a log for all memory of these guests: up to 8 MiB behind their base.
const LOG: usize = (GUEST_BASE as usize + (8 << 20)) / PAGE / 8;

fn memfd(len: usize) -> File {
    let file = File::from(rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(len.next_multiple_of(PAGE) as u64).unwrap();
    file
}

/// A VMM's log, all of it zero.
struct Log {
    file: File,
    log: Arc<DirtyLog>,
}

impl Log {
    fn new(size: usize) -> Log {
        let file = memfd(size);
        let fd = OwnedFd::from(file.try_clone().unwrap());
        let log = Arc::new(DirtyLog::new(fd, size as u64, 0).unwrap());
        Log { file, log }
    }

    /// All that is to be noted.
    fn all(&self) -> LogSetup {
        LogSetup {
            log: Arc::clone(&self.log),
            call: None,
            buffers: true,
            used: None,
        }
    }

    /// The pages that are noted, by number, which are noted no more.
    fn take(&self) -> BTreeSet<usize> {
        let mut bytes = vec![0; LOG];
        let len = self.file.read_at(&mut bytes, 0).unwrap();
        self.file.write_all_at(&vec![0; len], 0).unwrap();
        let bit = |page: &usize| bytes[page / 8] >> (page % 8) & 1 == 1;
        (0..len * 8).filter(bit).collect()
    }
}

/// What a guest's port is made of when what is written is to be noted.
fn logged(guest: &Guest, setup: &LogSetup) -> Result<PortParts, QueueError> {
    let memory = Arc::new(GuestMemory::new(guest.regions()).unwrap());
    let queue = |queue: &Queue| {
        let log = Some(setup.clone());
        DeviceQueue::new(QueueSetup {
            log,
            ..guest.setup(queue, &memory)
        })
    };
    Ok(PortParts {
        receiveq: Some(queue(&guest.receiveq)?),
        transmitq: Some(queue(&guest.transmitq)?),
        transmitq_off: false,
        mtu: None,
        // Of which the guest's are a part.
        features: guest.port_parts().features,
        memory,
    })
}

fn pages(guest: &Guest, from: usize, to: usize) -> impl Iterator<Item = usize> {
    let base = guest.receiveq.guest_addr(0) as usize;
    (base + from) / PAGE..=(base + to - 1) / PAGE
}

fn snapshot(guest: &Guest) -> Vec<u8> {
    guest.memory().bytes(0, guest.memory().len())
}

/// Pages of a guest whose bytes are not what they were.
fn changed(guest: &Guest, before: &[u8]) -> BTreeSet<usize> {
    let after = snapshot(guest);
    let differs = |at: &usize| before[*at..][..PAGE] != after[*at..][..PAGE];
    let places = (0..after.len()).step_by(PAGE).filter(differs);
    places.flat_map(|at| pages(guest, at, at + PAGE)).collect()
}

/// Pages of a guest's rings that the device may write.
fn ring_pages(guest: &Guest) -> BTreeSet<usize> {
    let ranges = [&guest.receiveq, &guest.transmitq].map(Queue::written_by_device);
    let pages = |range: std::ops::Range<usize>| pages(guest, range.start, range.end);
    ranges.concat().into_iter().flat_map(pages).collect()
}

/// Two guests of which both are being moved.
struct Moved {
    pair: Pair,
    logs: [Log; 2],
}

impl Moved {
    fn new(from: GuestOptions, to: GuestOptions) -> Moved {
        let mut pair = Pair::new(from, to);
        let logs = [Log::new(LOG), Log::new(LOG)];
        let port = |guest: &Guest, log: &Log| -> Port {
            VhostPort::new(logged(guest, &log.all()).unwrap()).into()
        };
        pair.from_port = port(&pair.from, &logs[0]);
        pair.to_port = port(&pair.to, &logs[1]);
        Moved { pair, logs }
    }

    /// Does something with the ports, and compares what was noted with what has changed.
    fn check<T>(&mut self, what: &str, run: impl FnOnce(&mut Pair) -> T) -> T {
        let before = [&self.pair.from, &self.pair.to].map(snapshot);
        self.logs.iter().for_each(|log| drop(log.take()));
        let done = run(&mut self.pair);
        let guests = [&self.pair.from, &self.pair.to];
        for ((guest, log), before) in guests.into_iter().zip(&self.logs).zip(&before) {
            let (changed, noted) = (changed(guest, before), log.take());
            let missed: Vec<_> = changed.difference(&noted).collect();
            assert!(missed.is_empty(), "{what}: pages {missed:x?} are missing");
            let rings = ring_pages(guest);
            let surplus: Vec<_> = noted.difference(&changed).collect();
            let of_rings = surplus.iter().all(|page| rings.contains(page));
            assert!(of_rings, "{what}: pages {surplus:x?} were not written");
        }
        done
    }

    /// Sends these frames, has one turn made, and has both guests take what is theirs. What
    /// arrives is never the byte that nobody wrote.
    fn turn(&mut self, what: &str, frames: &[(Vec<u8>, Offload)], shape: &Shape) -> usize {
        for (frame, offload) in frames {
            assert!(self.pair.from.send(frame, *offload, shape), "{what}");
        }
        self.pair.from.transmitq.publish();
        let turn = self.check(what, Pair::poll);
        assert_eq!(turn, Turn::ok(frames.len()), "{what}");
        self.pair.from.reclaim();
        self.pair.to.receive().len()
    }
}

fn plain(len: usize) -> (Vec<u8>, Offload) {
    let mut frame = pattern(len);
    frame
        .iter_mut()
        .filter(|byte| **byte == 0xa5)
        .for_each(|byte| *byte = 0);
    (frame, Offload::default())
}

fn options(features: u64, receive_shape: Shape) -> GuestOptions {
    GuestOptions {
        features,
        queue_size: 64,
        memory_len: 512 << 10,
        receive_chains: 16,
        receive_shape,
        start_index: 50,
        second_region: Some(0x5_0000),
        ..GuestOptions::default()
    }
}

every_ring! {
    fn every_page_that_changed_is_noted_and_no_other() {
        let shapes = [
            Shape::cut(&[2048]),
            Shape::cut(&[16 << 10]),
            Shape::cut(&[12, 54, 101, 4096]),
            Shape::cut(&[12, 4000, 6000]).indirect(1),
        ];
        let legacy = INDIRECT_DESC;
        for features in [PLAIN, PLAIN & !EVENT_IDX, PLAIN & !MRG_RXBUF, legacy] {
            for shape in &shapes {
                let mut moved = Moved::new(
                    options(features, shape.clone()),
                    options(features, shape.clone()),
                );
                let lengths: &[usize] = match features & MRG_RXBUF {
                    0 => &[14, 60, 1514],
                    _ => &[14, 60, 1514, 4096, 9014],
                };
                // Beyond the end of the rings.
                for round in 0..15 {
                    let len = lengths[round % lengths.len()];
                    let count = [1, 2, 3][round % 3];
                    let what = format!("{count} of {len} bytes into {shape:?}, round {round}");
                    let sent = if round % 2 == 0 { Shape::whole() } else { Shape::cut(&[12, 30]) };
                    let frames = vec![plain(len); count];
                    assert_eq!(moved.turn(&what, &frames, &sent), count, "{what}");
                    if round % 5 == 0 {
                        moved.check("armed", |pair| pair.from_port.arm());
                        moved.check("disarmed", |pair| pair.from_port.disarm());
                    }
                }
            }
        }
    }
}

every_ring! {
    fn what_is_completed_and_what_is_cut_is_noted() {
        let host = CSUM | HOST_TSO4;
        let mut moved = Moved::new(
            options(PLAIN | host, Shape::cut(&[2048])),
            options(PLAIN, Shape::cut(&[700])),
        );
        let udp = build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2);
        let mut large = plain(1400).0;
        large.drain(..300);
        for round in 0..20 {
            let checksum = udp.clone().payload(&large).build_with_offload();
            assert!(checksum.1.checksum.is_none_or(|PartialChecksum { start, .. }| start == 34));
            moved.turn(&format!("a checksum, round {round}"), &[checksum], &Shape::whole());
            let tcp = build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2]);
            let tcp = tcp.tcp(1, 2, TcpFlags::ACK).payload(&plain(3000).0).build();
            let offload = Offload {
                checksum: Some(PartialChecksum { start: 34, offset: 16 }),
                gso: wire::offload::Gso::Tcp4,
                gso_size: 1000,
                ..Offload::default()
            };
            let got = moved.turn(&format!("segments, round \
                                           {round}"), &[(tcp, offload)], &Shape::whole());
            assert_eq!(got, 3);
        }
    }
}

every_ring! {
    fn what_is_given_back_at_the_end_is_noted() {
        let mut moved = Moved::new(
            options(PLAIN, Shape::cut(&[2048])),
            options(PLAIN, Shape::cut(&[2048])),
        );
        moved.pair.from.send(&plain(60).0, Offload::default(), &Shape::whole());
        moved.pair.from.transmitq.publish();
        assert_eq!(moved.pair.from_port.receive(&mut moved.pair.batch), Ok(1));
        assert_eq!(moved.pair.to_port.transmit(&moved.pair.batch, 0), Ok(()));
        // Both ports are taken apart before what they hold was given back.
        moved.check("given back", |pair| {
            pair.batch.clear();
            for (guest, port) in [(&pair.from, &mut pair.from_port),
                (&pair.to, &mut pair.to_port)] {
                let port = std::mem::replace(port, guest.port().into());
                let Port::Vhost(port) = port else { unreachable!("made of a VhostPort") };
                let parts = port.into_parts();
                for queue in [parts.receiveq, parts.transmitq].into_iter().flatten() {
                    queue.into_parts();
                }
            }
        });
        assert_eq!(moved.pair.from.reclaim(), 1);
        assert_eq!(moved.pair.to.receive().len(), 1);
    }
}

every_ring! {
    fn a_ring_alone_is_noted_where_its_vmm_says() {
        let mut pair = Pair::new(
            options(PLAIN, Shape::cut(&[2048])),
            options(PLAIN, Shape::cut(&[2048])),
        );
        let log = Log::new(LOG);
        let call = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        // One page behind where the ring is, which says nothing of where it is noted.
        let used = 0x10_0000 + pair.to.receiveq.used_at as u64 % 4096;
        let setup = LogSetup {
            call: Some(Arc::clone(&call)),
            buffers: false,
            used: Some(used),
            ..log.all()
        };
        pair.to_port = VhostPort::new(logged(&pair.to, &setup).unwrap()).into();
        log.take();
        pair.from.send(&plain(60).0, Offload::default(), &Shape::whole());
        let mut count = [0; 8];
        let _ = rustix::io::read(call.as_fd(), &mut count);
        assert_eq!(pair.turn(), Turn::ok(1));
        let noted = log.take();
        let packed = kind() & RING_PACKED != 0;
        let expected: BTreeSet<usize> = match packed {
            // Its descriptors are nowhere but in the memory.
            true => pages(&pair.to, pair.to.receiveq.desc_at, pair.to.receiveq.desc_at + 1)
                .collect(),
            false => [0x10_0000 / PAGE].into(),
        };
        assert_eq!(noted, expected);
        assert_eq!(rustix::io::read(call.as_fd(), &mut count), Ok(8), "the VMM is told");
        if packed {
            pair.to_port.arm();
            assert_eq!(log.take(), [0x10_0000 / PAGE].into(), "its event structure");
        }
    }
}

every_ring! {
    fn a_log_too_small_makes_no_queue() {
        let guest = guest(options(PLAIN, Shape::cut(&[2048])));
        let last = GUEST_BASE as usize + (512 << 10) - 1;
        let least = (last / PAGE + 1) / 8;
        assert!(logged(&guest, &Log::new(least).all()).is_ok());
        for size in [1, least / 2, least - 1] {
            let setup = Log::new(size).all();
            let (size, addr) = (size as u64, last as u64);
            assert_eq!(
                logged(&guest, &setup).map(|_| ()),
                Err(LogTooSmall { size, addr }.into())
            );
        }
        // What the guest's memory has no part in has to be there too.
        let log = Log::new(least);
        for used in [(last + 1) as u64, u64::MAX - 8, u64::MAX] {
            let setup = LogSetup { used: Some(used), buffers: false, ..log.all() };
            assert!(matches!(
                logged(&guest, &setup).map(|_| ()),
                Err(QueueError::LogTooSmall { .. })
            ), "{used:#x}");
        }
        assert!(log.take().is_empty());
    }
}

#[test]
fn a_log_that_is_cut_short_stops_the_nic_and_nobody_else() {
    let mut moved = Moved::new(
        options(PLAIN, Shape::cut(&[2048])),
        options(PLAIN, Shape::cut(&[2048])),
    );
    moved.logs[1].file.set_len(0).unwrap();
    moved
        .pair
        .from
        .send(&plain(60).0, Offload::default(), &Shape::whole());
    let turn = moved.pair.turn();
    let what = "the file that holds the log of written pages was cut short while it was in use";
    let mut errors: Vec<PortError> = turn.error.into_iter().collect();
    errors.extend(moved.pair.to_port.flush().err());
    assert_eq!(errors, [PortError::Broken { what: what.into() }]);
    assert!(moved.pair.from_port.is_up() && !moved.pair.to_port.is_up());
    assert_eq!(moved.pair.from.reclaim(), 1);
}

/// A VMM takes bits away and copies their pages while frames come in, and once more when its guest
/// stands still: the copy is then what the guest has.
#[test]
fn a_copy_made_meanwhile_is_the_memory() {
    for kind in [0, RING_PACKED] {
        with_kind(kind, || {
            let to = GuestOptions {
                memory_len: 4 << 20,
                queue_size: 1024,
                receive_chains: 1000,
                ..options(PLAIN, Shape::cut(&[2048]))
            };
            let mut moved = Moved::new(options(PLAIN, Shape::cut(&[2048])), to);
            // The guest itself writes nothing after this.
            moved.pair.to.refill_at_once = false;
            let mut copy = snapshot(&moved.pair.to);
            let done = AtomicBool::new(false);
            let regions = moved.pair.to.regions();
            let vmm = File::from(regions[0].fd.try_clone().unwrap());
            let len = copy.len();
            let take = move |copy: &mut [u8], view: &GuestView| {
                let base = GUEST_BASE as usize;
                for word in (base / PAGE / 8..(base + len) / PAGE / 8).step_by(2) {
                    let bits = view.word(word).swap(0, Ordering::SeqCst);
                    for page in (0..16).filter(|bit| bits >> bit & 1 == 1) {
                        let at = (word * 8 + page) * PAGE - base;
                        vmm.read_exact_at(&mut copy[at..][..PAGE], at as u64)
                            .unwrap();
                    }
                }
            };
            let view = log_view(&moved.logs[1].file);
            std::thread::scope(|scope| {
                let (done, copy, take, view) = (&done, &mut copy, &take, &view);
                let vmm = scope.spawn(move || {
                    while !done.load(Ordering::Acquire) {
                        take(copy, view);
                    }
                    take(copy, view);
                });
                let mut sent = 0;
                while sent < 900 {
                    for _ in 0..8 {
                        let frame = plain(60 + sent * 7 % 1400).0;
                        moved
                            .pair
                            .from
                            .send(&frame, Offload::default(), &Shape::whole());
                        sent += 1;
                    }
                    assert_eq!(moved.pair.turn(), Turn::ok(8));
                    moved.pair.from.reclaim();
                }
                done.store(true, Ordering::Release);
                vmm.join().unwrap();
            });
            assert!(copy == snapshot(&moved.pair.to), "some page was missed");
            assert_eq!(moved.pair.to.receive().len(), 904);
        });
    }
}

/// A log as its VMM has it.
fn log_view(file: &File) -> GuestView {
    let memory = GuestMemory::new(vec![RegionSpec {
        guest_addr: 0,
        size: LOG.next_multiple_of(PAGE) as u64,
        user_addr: 0,
        mmap_offset: 0,
        fd: file.try_clone().unwrap().into(),
    }]);
    GuestView::new(&Arc::new(memory.unwrap()), 0, LOG).unwrap()
}

//! A guest that is a few rings in a memfd: the driver's side of a virtio-net queue pair.
//!
//! Lighter than any real driver, and able to do what none does: chains of any shape, buffers that
//! cross regions, rings that lie. [`Guest::port`] gives the device's side for a worker in this
//! process; for a session over vhost-user, [`Guest::regions`] and the queues hold all that a VMM
//! sends. All memory that nobody wrote holds [`CANARY`], so that a comparison of the whole shows a
//! byte written where none belongs.

mod packed;
pub mod queue;
mod split;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use io::guest_memory::{GuestMemory, MissingPages, RegionSpec};
use io::guest_view::GuestView;
use io::vhost::features;
use io::vhost::port::{PortParts, VhostPort};
use io::vhost::queue::{Begin, Queue as DeviceQueue, QueueSetup};
use rustix::fs::MemfdFlags;
use wire::offload::Offload;
use wire::virtio_net;

use queue::{Part, Queue, WRITE};

/// What unused memory holds.
pub const CANARY: u8 = 0xa5;

/// Where the memory begins for the guest.
pub const GUEST_BASE: u64 = 0x4000_0000;

/// Where the memory begins for the VMM that we play.
pub const USER_BASE: u64 = 0x7f12_0000_0000;

/// Bytes left between any two buffers.
const GAP: usize = 64;

/// How a chain is cut into descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Lengths in bytes. When a frame is sent the last one takes what is left, and those beyond its
    /// end are left out.
    pub parts: Vec<usize>,
    /// The first part that is in an indirect table; none when all are descriptors of the ring.
    pub indirect_from: Option<usize>,
}

impl Shape {
    /// Header and frame in one descriptor.
    pub fn whole() -> Self {
        Self::default()
    }

    /// Cut at these lengths, the rest behind.
    pub fn cut(parts: &[usize]) -> Self {
        Shape {
            parts: parts.to_vec(),
            indirect_from: None,
        }
    }

    /// This shape with the parts from number `from` on in an indirect table.
    pub fn indirect(mut self, from: usize) -> Self {
        self.indirect_from = Some(from);
        self
    }
}

/// What kind of guest.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// What was negotiated, as [`features`] has it.
    pub features: u64,
    /// Entries of each ring.
    pub queue_size: u16,
    /// Bytes of memory.
    pub memory_len: usize,
    /// Hand the memory over as two regions, the second from this offset (a multiple of 4096).
    pub second_region: Option<usize>,
    /// The buffers of each chain to receive in.
    pub receive_shape: Shape,
    /// Chains to receive in, at most; less when the ring or the memory is smaller.
    pub receive_chains: usize,
    /// Where the indices of both rings begin; packed rings at that slot, counted in laps from the
    /// first on.
    pub start_index: u16,
    /// Where the memory begins, from [`GUEST_BASE`] and from [`USER_BASE`]: several queue pairs of
    /// one guest are several of these, with memory in several places.
    pub place: u64,
}

impl Default for GuestOptions {
    fn default() -> Self {
        GuestOptions {
            features: features::VERSION_1
                | features::MRG_RXBUF
                | features::INDIRECT_DESC
                | features::EVENT_IDX,
            queue_size: 256,
            memory_len: 4 << 20,
            second_region: None,
            receive_shape: Shape::cut(&[2048]),
            receive_chains: 256,
            start_index: 0,
            place: 0,
        }
    }
}

/// A frame that the guest got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The frame without its header.
    pub frame: Vec<u8>,
    /// What the header says.
    pub offload: Offload,
    /// How many chains it took.
    pub chains: usize,
}

/// Memory, two rings and a driver.
pub struct Guest {
    options: GuestOptions,
    memfd: OwnedFd,
    view: GuestView,
    /// The ring that the guest transmits on.
    pub transmitq: Queue,
    /// The ring that it receives from.
    pub receiveq: Queue,
    /// Where buffers to transmit are put, from `transmit_next` up to `transmit_end`.
    transmit_at: usize,
    transmit_next: usize,
    transmit_end: usize,
    /// Receive chains of which the driver has not made the device a present: see [`Guest::refill`].
    idle: Vec<Vec<Part>>,
    /// Offer every receive chain again once it was read. On by default.
    pub refill_at_once: bool,
}

impl Guest {
    /// Lays out the memory and offers all receive chains.
    pub fn new(options: GuestOptions) -> Self {
        let memfd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
        File::from(memfd.try_clone().expect("a duplicate of a memfd"))
            .set_len(options.memory_len as u64)
            .expect("memory for a guest");
        let base = GUEST_BASE + options.place;
        let own = GuestMemory::new(vec![region(&memfd, &options, 0, options.memory_len)])
            .expect("the guest's own view");
        let view =
            GuestView::new(&Arc::new(own), base, options.memory_len).expect("all of the memory");
        view.fill(0, options.memory_len, CANARY);
        let (size, start) = (options.queue_size, options.start_index);
        let negotiated = options.features;
        let ring = Queue::bytes(size).next_multiple_of(4096);
        let transmitq = Queue::new(&view, base, 0, size, negotiated, start);
        let receiveq = Queue::new(&view, base, ring, size, negotiated, start);
        let transmit_at = 2 * ring;
        let mut guest = Guest {
            memfd,
            transmitq,
            receiveq,
            transmit_at,
            transmit_next: transmit_at,
            transmit_end: (transmit_at + options.memory_len) / 2,
            idle: Vec::new(),
            refill_at_once: true,
            view,
            options,
        };
        guest.lay_out_receive_chains();
        guest.refill();
        guest
    }

    /// This guest as the device sees it: its port, with rings as they are now.
    pub fn port(&self) -> VhostPort {
        VhostPort::new(self.port_parts())
    }

    /// What [`port`](Guest::port) is made of, to change some of it.
    pub fn port_parts(&self) -> PortParts {
        self.port_parts_with(MissingPages::Made)
    }

    /// As [`port_parts`](Guest::port_parts); `missing` says what becomes of pages that the guest
    /// has not used.
    pub fn port_parts_with(&self, missing: MissingPages) -> PortParts {
        let memory = GuestMemory::with(self.regions(), missing).expect("the guest's memory");
        let memory = Arc::new(memory);
        let queue =
            |queue: &Queue| DeviceQueue::new(self.setup(queue, &memory)).expect("the guest's ring");
        PortParts {
            features: self.options.features,
            receiveq: Some(queue(&self.receiveq)),
            transmitq: Some(queue(&self.transmitq)),
            transmitq_off: false,
            mtu: None,
            memory,
        }
    }

    /// What a VMM would say about a ring.
    pub fn setup(&self, queue: &Queue, memory: &Arc<GuestMemory>) -> QueueSetup {
        QueueSetup {
            memory: Arc::clone(memory),
            size: queue.size,
            desc: queue.user_addr(queue.desc_at),
            avail: queue.user_addr(queue.avail_at),
            used: queue.user_addr(queue.used_at),
            features: self.options.features,
            begin: if queue.is_packed() {
                Begin::At(queue.base() as u16)
            } else {
                Begin::AS_IT_WAS
            },
            kick: Some(queue.kick_fd().into()),
            call: Some(queue.call_fd().into()),
            log: None,
        }
    }

    /// What a VMM would say about the memory.
    pub fn regions(&self) -> Vec<RegionSpec> {
        let end = self.options.memory_len;
        let region = |from, len| region(&self.memfd, &self.options, from, len);
        match self.options.second_region {
            Some(cut) => vec![region(0, cut), region(cut, end - cut)],
            None => vec![region(0, end)],
        }
    }

    /// All of the memory, as the guest sees it.
    pub fn memory(&self) -> &GuestView {
        &self.view
    }

    /// Bytes of the virtio-net header before each frame.
    pub fn header_len(&self) -> usize {
        let modern = features::VERSION_1 | features::MRG_RXBUF;
        if self.options.features & modern != 0 {
            12
        } else {
            10
        }
    }

    /// Queues a frame; [`Queue::publish`] of `transmitq` shows it to the device. False when there
    /// is no room.
    pub fn send(&mut self, frame: &[u8], offload: Offload, shape: &Shape) -> bool {
        let header = virtio_net::encode(&offload, 0, 0);
        let mut bytes = header[..self.header_len()].to_vec();
        bytes.extend_from_slice(frame);
        self.send_bytes(&bytes, shape)
    }

    /// Queues a chain that holds these bytes, header and all.
    pub fn send_bytes(&mut self, bytes: &[u8], shape: &Shape) -> bool {
        let mut lens = Vec::new();
        let mut left = bytes.len();
        for &part in &shape.parts {
            lens.push(part.min(left));
            left -= part.min(left);
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            lens.push(left);
        }
        let table = 16 * lens.len();
        let need = bytes.len() + table + 16 + (lens.len() + 1) * GAP;
        if self.transmitq.outstanding() == 0 {
            self.transmit_next = self.transmit_at;
        }
        if self.transmit_next + need > self.transmit_end {
            return false;
        }
        let table_at = self.transmit_next.next_multiple_of(16);
        let mut at = table_at + table + GAP;
        let mut parts = Vec::new();
        let mut rest = bytes;
        for len in lens {
            let (now, later) = rest.split_at(len);
            self.view.write(at, now);
            parts.push((at, len));
            at += len + GAP;
            rest = later;
        }
        let direct = shape.indirect_from.unwrap_or(parts.len());
        let offered = self.transmitq.offer(&parts, 0, direct, table_at);
        if offered {
            self.transmit_next = at;
        }
        offered
    }

    /// Takes back the chains that the device has sent; gives how many.
    pub fn reclaim(&mut self) -> usize {
        let mut count = 0;
        while let Some((_, len)) = self.transmitq.next_used() {
            assert_eq!(len, 0, "the device wrote into what it was to read");
            count += 1;
        }
        count
    }

    /// All frames that the device has delivered and published.
    pub fn receive(&mut self) -> Vec<Received> {
        let mut frames = Vec::new();
        while let Some(mut bytes) = self.take_chain() {
            assert!(
                bytes.len() >= self.header_len(),
                "a frame of {} bytes with its header",
                bytes.len()
            );
            let mut header = [0; virtio_net::HDR_LEN_MRG];
            header[10] = 1;
            let header_len = self.header_len();
            header[..header_len].copy_from_slice(&bytes[..header_len]);
            let chains = usize::from(u16::from_le_bytes([header[10], header[11]]));
            assert!(chains >= 1, "num_buffers is 0");
            for _ in 1..chains {
                bytes.extend(
                    self.take_chain()
                        .expect("the next buffer of a merged frame"),
                );
            }
            let offload = virtio_net::decode(&header).expect("a virtio-net header");
            frames.push(Received {
                frame: bytes.split_off(header_len),
                offload,
                chains,
            });
        }
        if self.refill_at_once {
            self.refill();
        }
        frames
    }

    /// Offers all idle receive chains.
    pub fn refill(&mut self) {
        self.refill_some(usize::MAX);
    }

    /// Offers up to `count` idle receive chains, and publishes them.
    pub fn refill_some(&mut self, count: usize) {
        for _ in 0..count.min(self.idle.len()) {
            let Some(parts) = self.idle.pop() else { break };
            let direct = self
                .options
                .receive_shape
                .indirect_from
                .unwrap_or(parts.len());
            let table = parts[0].0 - GAP - 16 * parts.len();
            if !self.receiveq.offer(&parts, WRITE, direct, table) {
                self.idle.push(parts);
                break;
            }
        }
        self.receiveq.publish();
    }

    fn take_chain(&mut self) -> Option<Vec<u8>> {
        let (chain, len) = self.receiveq.next_used()?;
        let mut bytes = Vec::with_capacity(len);
        for &(at, part) in &chain.parts {
            bytes.extend(self.view.bytes(at, part.min(len - bytes.len())));
        }
        for &(at, part) in &chain.parts {
            self.view.fill(at, part, CANARY);
        }
        self.idle.push(chain.parts);
        Some(bytes)
    }

    fn lay_out_receive_chains(&mut self) {
        let lens = self.options.receive_shape.parts.clone();
        let stride = 16 + 16 * lens.len() + lens.iter().map(|len| len + GAP).sum::<usize>() + GAP;
        let mut at = self.transmit_end + GAP;
        while self.idle.len() < self.options.receive_chains
            && at + stride <= self.options.memory_len
        {
            let mut next = at.next_multiple_of(16) + 16 * lens.len() + GAP;
            let mut parts = Vec::new();
            for &len in &lens {
                parts.push((next, len));
                next += len + GAP;
            }
            self.idle.push(parts);
            at += stride;
        }
        self.idle.reverse();
    }
}

fn region(memfd: &OwnedFd, options: &GuestOptions, from: usize, len: usize) -> RegionSpec {
    RegionSpec {
        guest_addr: GUEST_BASE + options.place + from as u64,
        size: len as u64,
        user_addr: USER_BASE + options.place + from as u64,
        mmap_offset: from as u64,
        fd: memfd.try_clone().expect("a duplicate of a memfd"),
    }
}

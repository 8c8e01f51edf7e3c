//! The guest's side of the benchmark: the lightest driver there can be, the same one against every
//! switch.
//!
//! Two rings whose descriptors and buffers never change ([`crate::ring`]). The driver polls, and a
//! poll of an index takes that cache line from the switch: [`Guest::offer`] and [`Guest::collect`],
//! which measure rates, therefore move many frames at a time or none, and [`pause`] between polls
//! is part of the driver. [`Guest::send`] and [`Guest::receive`] move what there is at once. It
//! notifies the switch only when the switch asks for that.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io::guest_memory::{GuestMemory, RegionSpec};
use io::guest_view::GuestView;
use io::port::Port;
use io::vhost::features;
use io::vhost::port::{PortParts, VhostPort};
use io::vhost::queue::{Begin, Queue, QueueSetup};
use io::vhost::{DirtyLog, LogSetup};
use rustix::fs::MemfdFlags;
use testkit::vhost_frontend::{Frontend, RingSpec};
use wire::offload::Offload;
use wire::virtio_net;

use crate::peers::PeerError;
use crate::ring::{FLAG_WRITE, Ring};

/// Where the memory is, for the guest and for the VMM that we play: one address will do for both.
const BASE: u64 = 0x1000_0000;

/// Memory comes in pages of this size when the host has such pages free.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of the virtio-net header before each frame.
const HEADER_LEN: usize = virtio_net::HDR_LEN_MRG;

/// What the guest negotiates where it is offered: what Linux does, without event indices, which a
/// driver that polls has no use for.
const FEATURES: u64 =
    features::PROTOCOL_FEATURES | features::VERSION_1 | features::MRG_RXBUF | features::OFFLOADS;

/// One guest: memory, a ring to transmit, a ring to receive.
pub struct Guest {
    memory: OwnedFd,
    memory_len: usize,
    /// The guest's memory.
    pub view: GuestView,
    /// Where the guest transmits.
    pub transmit: Ring,
    /// Where it receives.
    pub receive: Ring,
}

impl Guest {
    /// A guest whose rings have `size` entries (a power of two) and whose buffers hold frames of up
    /// to `frame_max` bytes.
    pub fn new(size: u16, frame_max: usize) -> Result<Guest, PeerError> {
        let fail = |what: &str, error: String| PeerError(format!("guest memory: {what}: {error}"));
        // An odd number of cache lines, as allocators of packet buffers make it: with a power of
        // two all buffers would share a few sets of every cache, and what is measured would be
        // that.
        let stride = ((HEADER_LEN + frame_max).div_ceil(64) | 1) * 64;
        let ring_len = Ring::bytes(size);
        let memory_len = (2 * (ring_len + usize::from(size) * stride)).next_multiple_of(HUGE_PAGE);
        let memory = memory(memory_len).map_err(|error| fail("memfd", error.to_string()))?;
        let fd = memory
            .try_clone()
            .map_err(|error| fail("memfd", error.to_string()))?;
        let mapped = GuestMemory::new(vec![region(fd, memory_len)]);
        let mapped = Arc::new(mapped.map_err(|error| fail("mapping", error.to_string()))?);
        let view = GuestView::new(&mapped, BASE, memory_len)
            .ok_or_else(|| fail("mapping", "not one region".to_owned()))?;
        let sent_at = 2 * ring_len;
        let received_at = sent_at + usize::from(size) * stride;
        let transmit = Ring::new(&view, BASE, 0, size, (sent_at, stride), 0)?;
        let mut receive = Ring::new(
            &view,
            BASE,
            ring_len,
            size,
            (received_at, stride),
            FLAG_WRITE,
        )?;
        receive.publish(&view, size);
        Ok(Guest {
            memory,
            memory_len,
            view,
            transmit,
            receive,
        })
    }

    /// The device's side of the guest's rings, for a switch in this process: what a session makes
    /// when a VMM has negotiated.
    pub fn port(&self) -> Result<Port, PeerError> {
        self.port_with(None)
    }

    /// [`port`](Self::port), while a VMM that migrates the guest has all that is written into it
    /// noted.
    pub fn logged_port(&self) -> Result<Port, PeerError> {
        let fail = |error: String| PeerError(format!("log of written pages: {error}"));
        // A bit for each page, from address 0.
        let bytes = (BASE + self.memory_len as u64).div_ceil(8 * 4096);
        let file = rustix::fs::memfd_create("butterfly-bench-log", MemfdFlags::CLOEXEC);
        let file = file.map_err(|error| fail(error.to_string()))?;
        let sized = rustix::fs::ftruncate(&file, bytes);
        sized.map_err(|error| fail(error.to_string()))?;
        let log = DirtyLog::new(file, bytes, 0).map_err(|error| fail(error.to_string()))?;
        self.port_with(Some(LogSetup {
            log: Arc::new(log),
            call: None,
            buffers: true,
            used: None,
        }))
    }

    fn port_with(&self, log: Option<LogSetup>) -> Result<Port, PeerError> {
        let fail =
            |error: &dyn std::fmt::Display| PeerError(format!("guest in this process: {error}"));
        let memory = GuestMemory::new(vec![region_of(self)?]).map_err(|error| fail(&error))?;
        let memory = Arc::new(memory);
        let queue = |ring: &Ring| {
            let spec = ring.spec();
            let call = spec
                .call
                .try_clone_to_owned()
                .map_err(|error| fail(&error))?;
            let setup = QueueSetup {
                memory: Arc::clone(&memory),
                size: spec.size,
                desc: spec.descriptors,
                avail: spec.available,
                used: spec.used,
                features: FEATURES,
                begin: Begin::AS_IT_WAS,
                kick: None,
                call: Some(call.into()),
                log: log.clone(),
            };
            Queue::new(setup).map_err(|error| fail(&error))
        };
        let parts = PortParts {
            receiveq: Some(queue(&self.receive)?),
            transmitq: Some(queue(&self.transmit)?),
            memory: Arc::clone(&memory),
            features: FEATURES,
            transmitq_off: false,
            mtu: None,
        };
        Ok(VhostPort::new(parts).into())
    }

    /// Writes `frame` into every transmit buffer.
    pub fn prepare(&mut self, frame: &[u8], offload: &Offload) {
        let header = virtio_net::encode(offload, 0, 0);
        for index in 0..self.transmit.size {
            let at = self.transmit.buffer(index);
            self.view.write(at, &header);
            self.view.write(at + HEADER_LEN, frame);
            self.transmit
                .describe(&self.view, index, HEADER_LEN + frame.len());
        }
    }

    /// Has every chain be all the transmit buffers, with the frame in them: a byte in each but the
    /// first.
    pub fn prepare_chain(&mut self, frame: &[u8], offload: &Offload) {
        let parts = usize::from(self.transmit.size);
        let head = frame.len() + 1 - parts;
        self.prepare(&frame[..head], offload);
        for (index, byte) in (1..).zip(&frame[head..]) {
            let at = self.transmit.buffer(index);
            self.view.write(at, &[*byte]);
            self.transmit.describe(&self.view, index, 1);
        }
        self.transmit.chain(&self.view);
    }

    /// Sends as many frames as there is room for, at most `most`; `vary` may rewrite each frame's
    /// bytes through the function it is given: (offset in the frame, bytes).
    pub fn send(&mut self, most: u16, vary: impl FnMut(&mut dyn FnMut(usize, &[u8]))) -> u16 {
        // All but what is free is asked for: the device's index is read every time.
        let room = self.transmit.room(&self.view, self.transmit.size);
        let room = if room == 0 {
            self.transmit.room(&self.view, 1)
        } else {
            room
        };
        self.fill(room.min(most), vary)
    }

    /// Sends `chunk` frames if there is room for all of them, else none.
    #[inline]
    pub fn offer(&mut self, chunk: u16, vary: impl FnMut(&mut dyn FnMut(usize, &[u8]))) -> u16 {
        let room = self.transmit.room(&self.view, chunk);
        self.fill(room.min(chunk), vary)
    }

    #[inline]
    fn fill(&mut self, count: u16, mut vary: impl FnMut(&mut dyn FnMut(usize, &[u8]))) -> u16 {
        for number in 0..count {
            let at = self.transmit.next_buffer(number) + HEADER_LEN;
            vary(&mut |offset, bytes| self.view.write(at + offset, bytes));
        }
        self.transmit.publish(&self.view, count);
        count
    }

    /// Frames that have arrived since the last call; their buffers are offered again.
    pub fn receive(&mut self) -> u16 {
        self.collect(1)
    }

    /// Frames that have arrived, if they are at least `chunk`; their buffers are offered again.
    /// Else 0, and they stay.
    #[inline]
    pub fn collect(&mut self, chunk: u16) -> u16 {
        let count = self.receive.take(&self.view, chunk);
        self.receive.publish(&self.view, count);
        count
    }

    /// Fails when nothing has arrived, or when the chain that arrived last was not the one that was
    /// due.
    pub fn check_order(&self) -> Result<(), PeerError> {
        self.receive.check_order(&self.view)
    }

    /// Hands memory and rings to a switch, as a VMM does; the session lasts until the frontend is
    /// dropped.
    pub fn attach(&self, mut frontend: Frontend) -> std::io::Result<Frontend> {
        frontend.negotiate(FEATURES)?;
        let rings = [self.receive.spec(), self.transmit.spec()];
        let memory = region_of(self).map_err(|error| std::io::Error::other(error.0))?;
        frontend.start_with(&[memory], rings, [0; 2])?;
        Ok(frontend)
    }

    /// What its VMM knows of it.
    pub fn described(&self) -> Result<Described, PeerError> {
        let fail = |error: std::io::Error| PeerError(format!("a guest's rings: {error}"));
        let described = |ring: &Ring| -> Result<DescribedRing, PeerError> {
            let spec = ring.spec();
            Ok(DescribedRing {
                places: [spec.descriptors, spec.available, spec.used],
                size: spec.size,
                kick: spec.kick.try_clone_to_owned().map_err(fail)?,
                call: spec.call.try_clone_to_owned().map_err(fail)?,
            })
        };
        Ok(Described {
            memory: region_of(self)?,
            rings: [described(&self.receive)?, described(&self.transmit)?],
        })
    }
}

/// What a VMM knows of its guest, for one that says it over and over while the guest goes on.
pub struct Described {
    memory: RegionSpec,
    rings: [DescribedRing; 2],
}

struct DescribedRing {
    /// Descriptors, available and used ring.
    places: [u64; 3],
    size: u16,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Described {
    /// Stops the rings, and starts them where they were: as for a guest that is started anew.
    pub fn start_again(&self, session: &mut Frontend) -> std::io::Result<()> {
        let bases = session.stop()?;
        let rings = self.rings.each_ref().map(|ring| RingSpec {
            size: ring.size,
            descriptors: ring.places[0],
            available: ring.places[1],
            used: ring.places[2],
            kick: ring.kick.as_fd(),
            call: ring.call.as_fd(),
        });
        session.start_with(std::slice::from_ref(&self.memory), rings, bases)
    }
}

/// Waits about `spins` times what the processor's pause takes.
#[inline]
pub fn pause(spins: u32) {
    for _ in 0..spins {
        std::hint::spin_loop();
    }
}

/// Shared memory, in huge pages when there are enough free.
fn memory(len: usize) -> std::io::Result<OwnedFd> {
    let make = |flags| -> std::io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("butterfly-bench-guest", MemfdFlags::CLOEXEC | flags)?;
        File::from(fd.try_clone()?).set_len(len as u64)?;
        Ok(fd)
    };
    if free_huge_pages() * HUGE_PAGE >= 2 * len
        && let Ok(fd) = make(MemfdFlags::HUGETLB)
    {
        return Ok(fd);
    }
    make(MemfdFlags::empty())
}

fn free_huge_pages() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

fn region_of(guest: &Guest) -> Result<RegionSpec, PeerError> {
    let fd = guest
        .memory
        .try_clone()
        .map_err(|error| PeerError(format!("guest memory: {error}")))?;
    Ok(region(fd, guest.memory_len))
}

fn region(fd: OwnedFd, len: usize) -> RegionSpec {
    RegionSpec {
        guest_addr: BASE,
        size: len as u64,
        user_addr: BASE,
        mmap_offset: 0,
        fd,
    }
}

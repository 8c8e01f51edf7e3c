//! The guest's side of the benchmark: the lightest driver there can be, the same one against every switch.
//!
//! Every descriptor has its buffer for good and the available ring names descriptor i in entry i, so that to
//! send is to raise one index, and to receive and refill is to read one index and raise another. That holds
//! because all switches measured give chains back in order; [`Guest::receive`] says so when one does not.
//! The driver polls; it notifies the switch only when the switch asks for that.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use io::guest_memory::{GuestMemory, RegionSpec};
use io::guest_view::GuestView;
use io::port::Port;
use io::vhost::features;
use io::vhost::port::{PortParts, VhostPort};
use io::vhost::split::{QueueSetup, SplitQueue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use testkit::vhost_frontend::{Frontend, RingSpec};
use wire::offload::Offload;
use wire::virtio_net;

use crate::peers::PeerError;

/// Where the memory is, for the guest and for the VMM that we play: one address will do for both.
const BASE: u64 = 0x1000_0000;

/// Memory comes in pages of this size when the host has such pages free.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of the virtio-net header before each frame.
const HEADER_LEN: usize = virtio_net::HDR_LEN_MRG;

/// What the guest negotiates where it is offered: what Linux does, without event indices, which a driver that
/// polls has no use for.
const FEATURES: u64 =
    features::PROTOCOL_FEATURES | features::VERSION_1 | features::MRG_RXBUF | features::OFFLOADS;

const DESCRIPTOR_LEN: usize = 16;
const FLAG_WRITE: u16 = 2;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// One guest: memory, a ring to transmit, a ring to receive.
pub struct Guest {
    memory: OwnedFd,
    memory_len: usize,
    view: GuestView,
    /// Where the guest transmits.
    transmit: Ring,
    /// Where it receives.
    receive: Ring,
}

impl Guest {
    /// A guest whose rings have `size` entries (a power of two) and whose buffers hold frames of up to
    /// `frame_max` bytes.
    pub fn new(size: u16, frame_max: usize) -> Result<Guest, PeerError> {
        let fail = |what: &str, error: String| PeerError(format!("guest memory: {what}: {error}"));
        // An odd number of cache lines, as allocators of packet buffers make it: with a power of two all buffers
        // would share a few sets of every cache, and what is measured would be that.
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
        let buffers = 2 * ring_len;
        let transmit = Ring::new(&view, 0, size, buffers, stride, 0)?;
        let receive = Ring::new(
            &view,
            ring_len,
            size,
            buffers + usize::from(size) * stride,
            stride,
            FLAG_WRITE,
        )?;
        receive.avail_index(&view).store(size, Ordering::Release);
        Ok(Guest {
            memory,
            memory_len,
            view,
            transmit,
            receive: Ring {
                avail: size,
                ..receive
            },
        })
    }

    /// The device's side of the guest's rings, for a switch in this process: what a session makes when a VMM has
    /// negotiated.
    pub fn port(&self) -> Result<Port, PeerError> {
        let fail = |error: &dyn std::fmt::Display| PeerError(format!("guest in this process: {error}"));
        let memory = GuestMemory::new(vec![region_of(self)?]).map_err(|error| fail(&error))?;
        let memory = Arc::new(memory);
        let queue = |ring: &Ring| {
            let spec = ring.spec();
            let call = spec.call.try_clone_to_owned().map_err(|error| fail(&error))?;
            let setup = QueueSetup {
                memory: Arc::clone(&memory),
                size: spec.size,
                desc: spec.descriptors,
                avail: spec.available,
                used: spec.used,
                features: FEATURES,
                last_avail: None,
                kick: None,
                call: Some(call),
            };
            SplitQueue::new(setup).map_err(|error| fail(&error))
        };
        let parts = PortParts {
            receiveq: Some(queue(&self.receive)?),
            transmitq: Some(queue(&self.transmit)?),
            memory: Arc::clone(&memory),
            features: FEATURES,
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

    /// Sends as many frames as there is room for, at most `most`; `vary` may rewrite each frame's bytes
    /// through the function it is given: (offset in the frame, bytes).
    pub fn send(&mut self, most: u16, mut vary: impl FnMut(&mut dyn FnMut(usize, &[u8]))) -> u16 {
        let ring = &mut self.transmit;
        let used = ring.used_index(&self.view).load(Ordering::Acquire);
        let room = ring.size - ring.avail.wrapping_sub(used);
        let count = room.min(most);
        for number in 0..count {
            let at = ring.buffer(ring.avail.wrapping_add(number) & (ring.size - 1)) + HEADER_LEN;
            vary(&mut |offset, bytes| self.view.write(at + offset, bytes));
        }
        ring.publish(&self.view, count);
        count
    }

    /// Frames that have arrived since the last call; their buffers are offered again.
    pub fn receive(&mut self) -> u16 {
        let ring = &mut self.receive;
        let used = ring.used_index(&self.view).load(Ordering::Acquire);
        let count = used.wrapping_sub(ring.used_seen);
        ring.used_seen = used;
        ring.publish(&self.view, count);
        count
    }

    /// Fails when nothing has arrived, or when the chain that arrived last was not the one that was due, which the
    /// driver relies on.
    pub fn check_order(&self) -> Result<(), PeerError> {
        let ring = &self.receive;
        if ring.used_seen == 0 && ring.used_index(&self.view).load(Ordering::Relaxed) == 0 {
            return Err(PeerError("nothing arrived".to_owned()));
        }
        let last = ring.used_seen.wrapping_sub(1) & (ring.size - 1);
        let at = ring.used_at + 4 + 8 * usize::from(last);
        let id = self.view.word(at).load(Ordering::Relaxed);
        if id == last {
            Ok(())
        } else {
            Err(PeerError(format!("chain {id} came back where {last} was due")))
        }
    }
}

/// One split ring, with a buffer for each descriptor.
pub struct Ring {
    /// Entries.
    size: u16,
    /// Where the descriptor table is, as an address.
    descriptors: u64,
    /// What the guest has made available.
    avail: u16,
    used_seen: u16,
    avail_at: usize,
    used_at: usize,
    buffers: usize,
    stride: usize,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Ring {
    fn bytes(size: u16) -> usize {
        let entries = usize::from(size);
        let part = |len: usize| len.next_multiple_of(4096);
        part(DESCRIPTOR_LEN * entries) + part(6 + 2 * entries) + part(6 + 8 * entries)
    }

    fn new(
        view: &GuestView,
        at: usize,
        size: u16,
        buffers: usize,
        stride: usize,
        flags: u16,
    ) -> Result<Ring, PeerError> {
        let entries = usize::from(size);
        let avail_at = at + (DESCRIPTOR_LEN * entries).next_multiple_of(4096);
        let used_at = avail_at + (6 + 2 * entries).next_multiple_of(4096);
        let bell = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| PeerError(format!("eventfd: {error}")))
        };
        for index in 0..size {
            let buffer = BASE + (buffers + usize::from(index) * stride) as u64;
            let mut bytes = [0; DESCRIPTOR_LEN];
            bytes[..8].copy_from_slice(&buffer.to_le_bytes());
            bytes[8..12].copy_from_slice(&(stride as u32).to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            view.write(at + DESCRIPTOR_LEN * usize::from(index), &bytes);
            view.word(avail_at + 4 + 2 * usize::from(index))
                .store(index, Ordering::Relaxed);
        }
        view.word(avail_at).store(NO_INTERRUPT, Ordering::Relaxed);
        Ok(Ring {
            size,
            descriptors: BASE + at as u64,
            avail: 0,
            used_seen: 0,
            avail_at,
            used_at,
            buffers,
            stride,
            kick: bell()?,
            call: bell()?,
        })
    }

    fn spec(&self) -> RingSpec<'_> {
        RingSpec {
            size: self.size,
            descriptors: self.descriptors,
            available: BASE + self.avail_at as u64,
            used: BASE + self.used_at as u64,
            kick: self.kick.as_fd(),
            call: self.call.as_fd(),
        }
    }

    fn buffer(&self, index: u16) -> usize {
        self.buffers + usize::from(index) * self.stride
    }

    fn describe(&self, view: &GuestView, index: u16, len: usize) {
        let at = (self.descriptors - BASE) as usize + DESCRIPTOR_LEN * usize::from(index) + 8;
        view.write(at, &(len as u32).to_le_bytes());
    }

    fn publish(&mut self, view: &GuestView, count: u16) {
        if count == 0 {
            return;
        }
        self.avail = self.avail.wrapping_add(count);
        self.avail_index(view).store(self.avail, Ordering::Release);
        // The index first, then the switch's wish (virtio 1.2, section 2.7.13.4).
        fence(Ordering::SeqCst);
        if view.word(self.used_at).load(Ordering::Relaxed) & NO_NOTIFY == 0 {
            // A counter that is full is a notification that is still to be read.
            let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        }
    }

    fn avail_index<'a>(&self, view: &'a GuestView) -> &'a std::sync::atomic::AtomicU16 {
        view.word(self.avail_at + 2)
    }

    fn used_index<'a>(&self, view: &'a GuestView) -> &'a std::sync::atomic::AtomicU16 {
        view.word(self.used_at + 2)
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
    let line = info.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
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

/// Connects a guest to a switch's socket, as a VMM does. The session lasts until it is dropped.
pub fn attach(guest: &Guest, socket: &Path) -> Result<Frontend, PeerError> {
    let fail = |error: std::io::Error| PeerError(format!("{}: {error}", socket.display()));
    let mut frontend = Frontend::connect(socket).map_err(fail)?;
    frontend.negotiate(FEATURES).map_err(fail)?;
    let rings = [guest.receive.spec(), guest.transmit.spec()];
    frontend.start_with(&[region_of(guest)?], rings).map_err(fail)?;
    Ok(frontend)
}

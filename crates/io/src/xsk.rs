//! AF_XDP: one queue of a NIC that the kernel keeps, as a port.
//!
//! # Theory of operation
//!
//! An XDP program (`bpf/uplink.bpf.c`) sends what is ours of a queue to that queue's socket; all else stays the kernel's. The
//! socket shares four rings and a piece of memory, the UMEM, with the kernel. Each queue has a socket, rings and UMEM of its
//! own, and all belong to the one worker that has the port: nothing is shared, nothing is locked.
//!
//! - `receive` takes filled buffers into a batch: heads are copied, bodies stay in the UMEM. `complete` gives the buffers
//!   back, in the order in which they were taken. A frame's body so goes from the UMEM into the guest in one copy.
//! - `transmit_outer` writes the outer headers, the judged head and the body straight into the UMEM, and completes there what the
//!   sender left undone: again one copy. `flush` shows it to the kernel and calls it where it wants to be called.
//!
//! The UMEM is private to us and the kernel, so that what is written there can be summed there. (See `umem` for who may touch
//! which chunk when.) A batch keeps the UMEM mapped for as long as it refers to it, also when the port is gone.
//!
//! TX checksum metadata is not used: what needs a checksum is the *inner* packet, while the outer UDP checksum is zero
//! (RFC 7348, section 5, RFC 6935), and drivers that offer it (mlx5, stmmac, igc, ice) compute the outer one. In copy mode the
//! kernel would take it for any driver, but a veth passes unfinished checksums on to an XDP program at its other end, which
//! cannot tell. Nor could it be tried: no driver here has it.

mod mapping;
pub mod peer;
mod queue;
mod ring;
mod socket;
mod transmit;
pub(crate) mod umem;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use wire::offload::Offload;

use crate::copy;
use crate::frame::{BATCH, Batch, FRAME_MAX, Frame, HEAD_MAX, Segment, gather};
use crate::port::{PortError, RingState};
pub use peer::XskPeer;
use queue::{Filled, PARTS_MAX, Queue, QueueFault, Rings};
pub use socket::{XskError, XskMode};
use umem::Umem;

/// The kernel keeps so many bytes of each chunk for receiving free (XDP_PACKET_HEADROOM).
const HEADROOM: u32 = 256;
/// The chunk for frames of an ordinary MTU, and the one for larger ones: a page, more is not possible.
const CHUNK: u32 = 2048;
const CHUNK_LARGE: u32 = 4096;
/// Chunks that one frame may be sent in: Linux takes 18 (MAX_SKB_FRAGS and the linear part).
const CHUNKS_MAX: usize = 17;
/// Ethernet header and one VLAN tag: what a frame may have beyond the link's MTU.
const LINK_HEADER: usize = 14 + 4;
/// A polled port asks the socket for its errors every so many turns that found nothing.
const LOOK_EVERY: u32 = 4096;

/// What an interface's ports have to know of it, told by whoever follows it: the MTU and whether it is up.
#[derive(Debug)]
pub struct Link {
    mtu: AtomicU32,
    up: AtomicBool,
}

impl Link {
    /// A link as it is now.
    pub fn new(mtu: u32, up: bool) -> Link {
        Link {
            mtu: AtomicU32::new(mtu),
            up: AtomicBool::new(up),
        }
    }

    /// It has changed. Taken up by the ports with their next frame.
    pub fn change(&self, mtu: u32, up: bool) {
        self.mtu.store(mtu, Ordering::Relaxed);
        self.up.store(up, Ordering::Relaxed);
    }

    /// Bytes of IP packet that it carries.
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// It is set up, and so is what is at its other end.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
}

/// Which queue of what, and how.
#[derive(Clone, Debug)]
pub struct XskOptions {
    /// The interface's name, for messages.
    pub interface: String,
    /// Its index, in the network namespace of the calling thread.
    pub ifindex: u32,
    /// The queue, from 0.
    pub queue: u32,
    /// Frames that wait in each direction at most: a power of two, 64 to 32768.
    pub frames: u32,
    /// Ask the kernel to do its part within our calls while the port is polled.
    pub busy_poll: bool,
    /// The interface's state.
    pub link: Arc<Link>,
}

/// How the UMEM of a queue is cut.
struct Sizes {
    /// Chunks for each direction.
    frames: u32,
    chunk_len: u32,
    /// Every frame that the link brings fits in one chunk.
    one_chunk: bool,
    /// Chunks for each frame to be sent.
    slot_chunks: u32,
}

impl XskOptions {
    fn sizes(&self) -> Sizes {
        let longest = self.link.mtu().min(u32::from(u16::MAX)) + LINK_HEADER as u32;
        let chunk_len = if longest <= CHUNK - HEADROOM {
            CHUNK
        } else {
            CHUNK_LARGE
        };
        Sizes {
            frames: self.frames.clamp(64, 32_768).next_power_of_two(),
            chunk_len,
            one_chunk: longest <= chunk_len - HEADROOM,
            slot_chunks: longest.div_ceil(chunk_len).next_power_of_two(),
        }
    }
}

/// The port of one queue.
#[derive(Debug)]
pub struct XskPort {
    name: String,
    /// `None` once the interface is gone: epoll would report it for ever.
    socket: Option<Arc<OwnedFd>>,
    queue: Queue,
    mode: XskMode,
    link: Arc<Link>,
    busy_poll: bool,
    in_memory: bool,
    /// Something was put into the transmit ring that the kernel may not know of.
    unsent: bool,
    /// The longest frame that can be sent, whatever the link's MTU is now.
    capacity: usize,
    /// Turns without a frame since the socket was last asked for errors.
    quiet: u32,
    received: u64,
    transmitted: u64,
    calls: u64,
    /// Frames that no frame of ours can hold.
    oversize: u64,
    /// Frames that found no slot free.
    full: u64,
    broken: Option<String>,
    /// `broken` has been returned to the caller.
    reported: bool,
}

/// What the kernel counted for a socket: frames that it could not give us, or that we gave it wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XskStatistics {
    /// Lost for other reasons than a full ring: longer than the buffers.
    pub dropped: u64,
    /// Lost because the receive ring was full.
    pub ring_full: u64,
    /// Lost because no buffer was in the fill ring.
    pub no_buffer: u64,
    /// Descriptors that the kernel refused to send.
    pub invalid: u64,
}

/// A port's socket, for whoever puts it into the program's map and reads what the kernel counts. It does not keep the socket: the
/// queue is free again when the port goes.
#[derive(Clone, Debug)]
pub struct XskHandle(Weak<OwnedFd>);

impl XskHandle {
    /// What the kernel has counted; `None` when the port is gone.
    pub fn statistics(&self) -> Option<XskStatistics> {
        let counted = sockopt::xdp_statistics(&*self.0.upgrade()?).ok()?;
        Some(XskStatistics {
            dropped: counted.rx_dropped,
            ring_full: counted.rx_ring_full.unwrap_or(0),
            no_buffer: counted.rx_fill_ring_empty_descs.unwrap_or(0),
            invalid: counted.tx_invalid_descs,
        })
    }

    /// Calls `what` with the socket; `None` when the port is gone. Not to be kept.
    pub fn with<T>(&self, what: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        Some(what(self.0.upgrade()?.as_fd()))
    }
}

impl XskPort {
    /// Binds a socket to the queue in the best mode that its driver offers: zero-copy before copy, several buffers a frame before
    /// one. Needs CAP_NET_RAW (and CAP_IPC_LOCK or a limit of locked memory that the UMEM fits in).
    pub fn open(options: &XskOptions) -> Result<XskPort, XskError> {
        let sizes = options.sizes();
        let umem = Umem::new(sizes.frames, sizes.chunk_len).map_err(|error| XskError::Socket {
            interface: options.interface.clone(),
            queue: options.queue,
            error: error.into(),
        })?;
        let umem = Arc::new(umem);
        let (socket, rings, mode) = socket::open(options, &umem, sizes.one_chunk)?;
        let busy_poll = options.busy_poll && socket::prefer_busy_poll(socket.as_fd(), true);
        let port = XskPort::new(options, Arc::new(socket), umem, rings, mode);
        Ok(XskPort { busy_poll, ..port })
    }

    fn new(
        options: &XskOptions,
        socket: Arc<OwnedFd>,
        umem: Arc<Umem>,
        rings: Rings,
        mode: XskMode,
    ) -> XskPort {
        let chunks = if mode.multi_buffer { CHUNKS_MAX } else { 1 };
        let longest = chunks * umem.chunk_len() as usize;
        let queue = Queue::new(umem, rings, options.sizes().slot_chunks);
        XskPort {
            name: format!("queue {} of '{}'", options.queue, options.interface),
            socket: Some(socket),
            capacity: queue.slot_len().min(longest),
            queue,
            mode,
            link: options.link.clone(),
            busy_poll: false,
            in_memory: false,
            unsent: false,
            quiet: 0,
            received: 0,
            transmitted: 0,
            calls: 0,
            oversize: 0,
            full: 0,
            broken: None,
            reported: false,
        }
    }

    /// There is no socket: see [`peer`].
    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// What was agreed with the driver.
    pub fn mode(&self) -> XskMode {
        self.mode
    }

    /// The UMEM lies in reserved huge pages.
    pub fn in_huge_pages(&self) -> bool {
        self.queue.umem.is_huge()
    }

    /// The socket, for the program's map.
    pub fn handle(&self) -> XskHandle {
        XskHandle(self.socket.as_ref().map_or_else(Weak::new, Arc::downgrade))
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        self.report()?;
        if self.unsent {
            self.call_to_send();
        }
        match take(&mut self.queue, batch) {
            Ok(taken) => {
                self.received += taken.frames as u64;
                self.oversize += taken.oversize;
                if taken.frames == 0 {
                    self.nothing_came();
                }
                Ok(taken.frames)
            }
            Err(fault) => {
                self.fail(fault);
                self.report().map(|()| 0)
            }
        }
    }

    /// Gives the batch's buffers back.
    #[inline]
    pub(crate) fn complete(&mut self, buffers: usize) {
        if buffers > 0 && self.queue.put_back(buffers) {
            self.call_to_receive();
        }
    }

    /// What was written becomes the kernel's.
    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        if self.queue.rings.transmit.publish() {
            self.unsent = true;
        }
        if self.unsent {
            self.call_to_send();
        }
        if let Err(fault) = self.queue.collect() {
            self.fail(fault);
        }
        self.report()
    }

    /// Its descriptor is readable whenever there is a frame. True when there is one, or something is to be sent yet.
    pub(crate) fn arm(&mut self) -> bool {
        self.look_for_errors();
        if self.unsent {
            self.call_to_send();
        }
        if self.busy_poll
            && let Some(socket) = &self.socket
        {
            // Asleep, the queue's interrupts have to wake us.
            socket::prefer_busy_poll(socket.as_fd(), false);
        }
        self.broken.is_none() && (self.queue.filled(1) > 0 || (self.unsent && self.link.is_up()))
            || (self.broken.is_some() && !self.reported)
    }

    pub(crate) fn disarm(&mut self) {
        if self.busy_poll
            && let Some(socket) = &self.socket
        {
            socket::prefer_busy_poll(socket.as_fd(), true);
        }
    }

    pub(crate) fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.broken.is_none() && self.link.is_up()
    }

    /// The link's, capped at what the field of an IP packet's length can say.
    pub(crate) fn mtu(&self) -> Option<u16> {
        Some(u16::try_from(self.link.mtu()).unwrap_or(u16::MAX))
    }

    pub(crate) fn ring_state(&self) -> RingState {
        RingState {
            kind: "af_xdp",
            up: self.is_up(),
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            calls: self.calls,
            broken: self.broken.clone(),
            ..RingState::default()
        }
    }

    /// The longest frame that the link takes, and that fits this port: larger only after it was opened anew.
    #[inline]
    fn longest(&self) -> usize {
        (self.link.mtu() as usize + LINK_HEADER).min(self.capacity)
    }

    /// A turn without a frame: now and then the socket is asked for what it would say to poll.
    fn nothing_came(&mut self) {
        if self.busy_poll {
            // The kernel's own turn at the queue, here and now.
            self.call_to_receive();
        }
        self.quiet += 1;
        if self.quiet >= LOOK_EVERY {
            self.quiet = 0;
            self.look_for_errors();
        }
    }

    /// The interface may be gone without a word to those who only look at the rings.
    fn look_for_errors(&mut self) {
        if let Some(socket) = &self.socket
            && let Ok(Err(errno)) = sockopt::socket_error(socket)
        {
            self.lose(errno);
        }
    }

    /// Calls the kernel to send what is in the ring. In copy mode that is when it is sent, some 32 frames a call.
    fn call_to_send(&mut self) {
        // A bound for a kernel that says "again" for ever; each call that makes no progress ends the loop.
        let mut left = self.queue.rings.transmit.waiting();
        while left > 0 {
            if !self.queue.rings.transmit.wants_wakeup() {
                // The driver is at it.
                self.unsent = false;
                return;
            }
            let Some(socket) = &self.socket else { break };
            self.calls += 1;
            let said = rustix::net::send(socket, &[], SendFlags::DONTWAIT);
            let now = self.queue.rings.transmit.waiting();
            match said {
                Ok(_) | Err(Errno::AGAIN) if now < left => left = now,
                // It is at work on its own, or its own queue is full: again with the next turn.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => break,
                // The link is down: what waits is sent when it is up.
                Err(Errno::NETDOWN) => break,
                // One frame the kernel did not like; it has taken it.
                Err(Errno::MSGSIZE | Errno::INVAL | Errno::OVERFLOW) if now < left => left = now,
                Err(errno) => return self.lose(errno),
            }
        }
        self.unsent = self.queue.rings.transmit.waiting() > 0;
    }

    /// Tells the kernel that there are buffers to fill again.
    #[cold]
    fn call_to_receive(&mut self) {
        let Some(socket) = &self.socket else { return };
        self.calls += 1;
        // Nothing is received here; an error shows elsewhere.
        let _ = rustix::net::recv(socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
    }

    fn fail(&mut self, fault: QueueFault) {
        self.stop(format!("{}: {fault}", self.name));
    }

    fn lose(&mut self, errno: Errno) {
        self.stop(match errno {
            Errno::NXIO | Errno::NODEV | Errno::NETDOWN | Errno::BADF => {
                format!("{}: the interface is gone", self.name)
            }
            errno => format!("{}: {}", self.name, std::io::Error::from(errno)),
        });
    }

    fn stop(&mut self, why: String) {
        self.broken.get_or_insert(why);
        self.socket = None;
        self.unsent = false;
    }

    /// Says once why the port is stopped.
    fn report(&mut self) -> Result<(), PortError> {
        match &self.broken {
            Some(what) if !self.reported => {
                self.reported = true;
                Err(PortError::Broken { what: what.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The largest MTU that this port can do; with a larger one it has to be opened anew.
    pub fn mtu_max(&self) -> u32 {
        (self.capacity - LINK_HEADER) as u32
    }
}

/// What came of [`take`].
#[derive(Default, Debug)]
struct Taken {
    frames: usize,
    oversize: u64,
}

/// Up to the batch's room of packets, each with its buffers, from the queue into the batch.
fn take(queue: &mut Queue, batch: &mut Batch) -> Result<Taken, QueueFault> {
    let mut taken = Taken::default();
    let room = batch.room() as u32;
    let count = queue.filled(room).min(room);
    if count == 0 {
        return Ok(taken);
    }
    let mut list = [Filled::NONE; BATCH];
    for (behind, place) in (0..count).zip(&mut list) {
        *place = queue.peek(behind, HEAD_MAX)?;
        copy::prefetch(place.ptr);
        copy::prefetch(place.ptr.wrapping_add(64));
    }
    let (frames, segments) = batch.slots(count as usize);
    // Entries of the ring that are done with, and those of them that the batch refers to. Frames are no more than entries.
    let (mut done, mut owed) = (0, 0);
    while done < count {
        let first = &list[done as usize];
        if !first.more {
            fill_whole(&mut frames[taken.frames], segments, first);
            queue.take(first);
            (done, owed) = (done + 1, owed + 1);
            taken.frames += 1;
            continue;
        }
        let Some(parts) = parts_of(queue, done)? else {
            // Its end has not been written yet.
            break;
        };
        if fill_parts(&mut frames[taken.frames], segments, queue, done..done + parts)? {
            owed += parts;
            taken.frames += 1;
        } else {
            taken.oversize += 1;
        }
        done += parts;
    }
    queue.release(done);
    if taken.oversize > 0 {
        queue.put_back(0);
    }
    if taken.frames > 0 {
        batch.commit(taken.frames);
        batch.owe(owed as usize);
        batch.hold_umem(&queue.umem);
    }
    Ok(taken)
}

/// How many buffers the packet has whose first one is so many entries behind the next. `None`: its last one is not there yet.
fn parts_of(queue: &mut Queue, first: u32) -> Result<Option<u32>, QueueFault> {
    for part in 0..PARTS_MAX {
        if queue.filled(first + part + 1) <= first + part {
            return Ok(None);
        }
        if !queue.peek(first + part, 0)?.more {
            return Ok(Some(part + 1));
        }
    }
    Err(QueueFault::EndlessPacket)
}

/// A frame in one buffer: its head is copied, the rest stays where it is.
#[inline(always)]
fn fill_whole(frame: &mut Frame, segments: &mut Vec<Segment>, filled: &Filled) {
    let len = filled.len as usize;
    let head_len = len.min(HEAD_MAX);
    // SAFETY: the buffer is valid for reads of `len` bytes (`Queue::peek`), of which `head_len` are read; in whole blocks up to
    // `HEAD_MAX` bytes of the UMEM (`ample`), into what is behind the head and never looked at. The kernel does not write a
    // filled buffer.
    unsafe {
        let head = frame.head_space().as_mut_ptr();
        if filled.ample {
            copy::blocks(filled.ptr, head, head_len);
        } else {
            copy::bytes(filled.ptr, head, head_len);
        }
    }
    let start = segments.len();
    if len > head_len {
        segments.push(Segment {
            ptr: filled.ptr.wrapping_add(head_len),
            len: len - head_len,
        });
    }
    frame.fill(len, start..segments.len(), Offload::default(), None);
}

/// The same of a frame in several buffers, which are these entries of the ring. False, and the buffers the kernel's again, when it
/// is longer than a frame can be.
#[cold]
fn fill_parts(
    frame: &mut Frame,
    segments: &mut Vec<Segment>,
    queue: &mut Queue,
    entries: Range<u32>,
) -> Result<bool, QueueFault> {
    let (start, mut len) = (segments.len(), 0);
    for entry in entries.clone() {
        let part = queue.peek(entry, 0)?;
        len += part.len as usize;
        segments.push(Segment {
            ptr: part.ptr,
            len: part.len as usize,
        });
    }
    let fits = len <= FRAME_MAX;
    for entry in entries {
        let part = queue.peek(entry, 0)?;
        match fits {
            true => queue.take(&part),
            false => queue.refuse(&part),
        }
    }
    if !fits {
        segments.truncate(start);
        return Ok(false);
    }
    let head_len = len.min(HEAD_MAX);
    let taken = gather(&mut segments[start..], &mut frame.head_space()[..head_len]);
    frame.fill(len, start + taken..segments.len(), Offload::default(), None);
    Ok(true)
}

#[cfg(test)]
mod tests;

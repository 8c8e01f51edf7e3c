//! AF_XDP: one queue of a NIC that the kernel keeps, as a port.
//!
//! # Theory of operation
//!
//! An XDP program (`bpf/uplink.bpf.c`) sends what is ours of a queue to that queue's socket; all
//! else stays the kernel's. The socket shares four rings and a piece of memory, the UMEM, with the
//! kernel. Each queue has a socket, rings and UMEM of its own, and all belong to the one worker
//! that has the port: nothing is shared, nothing is locked.
//!
//! - `receive` takes filled buffers into a batch: heads are copied, bodies stay in the UMEM.
//!   `complete` gives the buffers back, in the order in which they were taken; only as many go
//!   round as are needed (`window`). A frame's body so goes from the UMEM into the guest in one
//!   copy.
//! - `transmit_outer` writes the outer headers, the judged head and the body straight into the
//!   UMEM, and completes there what the sender left undone: again one copy. `flush` shows it to the
//!   kernel and calls it where it wants to be called.
//!
//! The UMEM is private to us and the kernel, so that what is written there can be summed there.
//! (See `umem` for who may touch which chunk when.) A batch keeps the UMEM mapped for as long as it
//! refers to it, also when the port is gone.
//!
//! Of an interface whose packets may be the kernel's own buffers (a veth; all in generic mode)
//! frames come with checksums that are only begun, and in generic mode several as one: what is left
//! to do in them is found out by their bytes and noted ([`vxlan::left_undone`]).
//!
//! TX checksum metadata is not used: what needs a checksum is the *inner* packet, the outer UDP
//! checksum being zero (RFC 7348, section 5; RFC 6935), and a driver may compute the outermost
//! wherever it was told to begin, as mlx5's does. In copy mode the kernel would take it for any
//! driver, but a veth passes unfinished checksums on to an XDP program at its other end, which
//! cannot tell. Nor could it be tried in a NIC: there is none here that has it.

mod adopted;
mod handle;
mod mapping;
mod options;
pub mod peer;
mod queue;
mod receive;
mod ring;
mod socket;
mod transmit;
pub(crate) mod umem;
mod window;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use wire::vxlan;

use crate::error::PortError;
use crate::frame::{Batch, Fault};
use crate::port_info::PortInfo;
use adopted::Cut;
use queue::{Queue, QueueFault, Rings};
use umem::Umem;

pub use handle::{XskHandle, XskStatistics};
pub use options::{Link, XskOptions};
pub use peer::XskPeer;
pub use socket::{XskError, XskMode};

/// The kernel keeps so many bytes of each chunk for receiving free (XDP_PACKET_HEADROOM).
const HEADROOM: u32 = 256;
/// Chunks that one frame may be sent in: Linux takes 18 (MAX_SKB_FRAGS and the linear part).
const CHUNKS_MAX: usize = 17;
/// Ethernet header and one VLAN tag: what a frame may have beyond the link's MTU.
const LINK_HEADER: usize = 14 + 4;
/// The socket is asked for its errors every so many turns or looks that found nothing.
const LOOK_EVERY: u32 = 4096;

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
    /// See [`XskOptions::unfinished`].
    unfinished: bool,
    in_memory: bool,
    /// It is another process's still: see [`adopt`](Self::adopt).
    idle: bool,
    /// Something was put into the transmit ring that the kernel may not know of.
    unsent: bool,
    /// The longest frame that can be sent, whatever the link's MTU is now.
    capacity: usize,
    /// Turns and looks without a frame since the socket was last asked for errors.
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

impl XskPort {
    /// Binds a socket to the queue in the best mode that its driver offers: zero-copy before copy,
    /// several buffers a frame before one. Needs CAP_NET_RAW (and CAP_IPC_LOCK or a limit of locked
    /// memory that the UMEM fits in).
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
        let queue = Queue::new(umem, rings, options.sizes().slot_chunks);
        XskPort::over(options, socket, queue, mode)
    }

    fn over(options: &XskOptions, socket: Arc<OwnedFd>, queue: Queue, mode: XskMode) -> XskPort {
        let chunks = if mode.multi_buffer { CHUNKS_MAX } else { 1 };
        let longest = chunks * queue.umem.chunk_len() as usize;
        XskPort {
            name: format!("queue {} of '{}'", options.queue, options.interface),
            socket: Some(socket),
            capacity: queue.slot_len().min(longest),
            queue,
            mode,
            link: options.link.clone(),
            busy_poll: false,
            unfinished: options.unfinished,
            in_memory: false,
            idle: false,
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

    /// The kernel does its part within our calls while the port is polled.
    pub fn busy_polls(&self) -> bool {
        self.busy_poll
    }

    /// The UMEM lies in reserved huge pages.
    pub fn in_huge_pages(&self) -> bool {
        self.queue.umem.is_huge()
    }

    /// The socket, for the program's map.
    pub fn handle(&self) -> XskHandle {
        let cut = Cut {
            frames: self.queue.umem.count(),
            chunk_len: self.queue.umem.chunk_len(),
            slot_chunks: self.queue.slot_chunks(),
            mode: self.mode,
        };
        XskHandle::new(self.socket.as_ref(), &self.queue.umem, cut)
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        self.report()?;
        if self.unsent {
            self.call_to_send();
        }
        match receive::take(&mut self.queue, batch) {
            Ok(taken) => {
                self.received += taken.frames as u64;
                self.oversize += taken.oversize;
                if taken.frames == 0 {
                    self.nothing_came();
                } else if self.unfinished {
                    self.look_at_what_is_undone(batch, taken.frames);
                }
                Ok(taken.frames)
            }
            Err(fault) => {
                self.fail(fault);
                self.report().map(|()| 0)
            }
        }
    }

    /// Notes what the kernel has left undone in the last `count` frames of a batch.
    fn look_at_what_is_undone(&self, batch: &mut Batch, count: usize) {
        let mtu = self.link.mtu();
        let first = batch.len() - count;
        for frame in &mut batch.frames_mut()[first..] {
            match vxlan::left_undone(frame.head(), frame.len(), mtu) {
                Some(offload) => frame.offload = offload,
                None => frame.set_fault(Fault::BadOffload),
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

    /// Its descriptor is readable whenever there is a frame. True when there is one, or something
    /// is to be sent yet.
    pub(crate) fn arm(&mut self) -> bool {
        self.look_for_errors();
        if self.unsent {
            self.call_to_send();
        }
        if self.queue.give_all() {
            self.call_to_receive();
        }
        if self.busy_poll
            && let Some(socket) = &self.socket
        {
            // Asleep, the queue's interrupts have to wake us.
            socket::prefer_busy_poll(socket.as_fd(), false);
        }
        self.has_work()
    }

    /// Whether there is work, without arming the socket, whose errors are asked for now and then.
    pub(crate) fn look(&mut self) -> bool {
        self.look_for_errors_sometimes();
        self.has_work()
    }

    fn has_work(&mut self) -> bool {
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

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo {
            kind: "af_xdp",
            up: self.is_up(),
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            calls: self.calls,
            broken: self.broken.clone(),
            ..PortInfo::default()
        }
    }

    /// The longest frame that the link takes, and that fits this port: larger only after it was
    /// opened anew.
    #[inline]
    fn longest(&self) -> usize {
        (self.link.mtu() as usize + LINK_HEADER).min(self.capacity)
    }

    /// A turn without a frame.
    fn nothing_came(&mut self) {
        if self.busy_poll {
            // The kernel's own turn at the queue, here and now.
            self.call_to_receive();
        }
        self.look_for_errors_sometimes();
    }

    /// Now and then the socket is asked for what it would say to poll.
    fn look_for_errors_sometimes(&mut self) {
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

    /// Calls the kernel to send what is in the ring. In copy mode that is when it is sent, some 32
    /// frames a call.
    fn call_to_send(&mut self) {
        // A bound for a kernel that says "again" for ever; each call that makes no progress ends
        // the loop.
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
                Ok(_)
                | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                    break;
                }
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

#[cfg(test)]
mod tests;

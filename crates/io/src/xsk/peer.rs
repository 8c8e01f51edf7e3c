//! The kernel's side of the rings, played by a test, a fuzzer or a benchmark: a port whose wire is
//! memory.
//!
//! The port is the real one, with its UMEM and rings; there is no socket and no NIC. So what it
//! costs to encapsulate and to segment is measured without what a veth costs, and what the rings do
//! with a kernel that is slow, full or wrong is seen without one. Frames go in and out as a driver
//! in copy mode would move them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::options::Sizes;
use super::queue::Rings;
use super::ring::{self, Consumer, Producer};
use super::umem::Umem;
use super::{HEADROOM, Link, XskMode, XskOptions, XskPort};
use crate::copy;

/// What is at the other end of a port in memory.
#[derive(Debug)]
pub struct XskPeer {
    umem: Arc<Umem>,
    fill: Consumer<u64>,
    receive: Producer<XdpDesc>,
    transmit: Consumer<XdpDesc>,
    completion: Producer<u64>,
    kick: Arc<OwnedFd>,
    /// Chunks of the frame that [`take`](Self::take) is in the middle of, and those taken and not
    /// completed.
    held: Vec<u64>,
    /// Entries of the fill ring that were used and not released.
    #[cfg(test)]
    ahead: u32,
}

impl XskPort {
    /// A port of so many frames in each direction on a link of this MTU, and its other end.
    ///
    /// # Errors
    /// The process is out of memory or descriptors.
    pub fn in_memory(frames: u32, mtu: u32) -> Result<(XskPort, XskPeer), Errno> {
        let options = XskOptions {
            interface: "memory".to_owned(),
            ifindex: 0,
            queue: 0,
            frames,
            zero_copy: false,
            busy_poll: false,
            unfinished: false,
            link: Arc::new(Link::new(mtu, true)),
        };
        let sizes = options.sizes();
        let umem = Arc::new(Umem::new(sizes.frames, sizes.chunk_len)?);
        let (fill, peer_fill) = ring::in_memory(Sizes::fill_ring(sizes.frames), 0)?;
        let (peer_receive, receive) = ring::in_memory(sizes.frames, 0)?;
        let (transmit, peer_transmit) = ring::in_memory(sizes.frames, 0)?;
        let (peer_completion, completion) = ring::in_memory(sizes.frames, 0)?;
        let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kick = Arc::new(kick);
        let peer = XskPeer {
            umem: umem.clone(),
            fill: peer_fill,
            receive: peer_receive,
            transmit: peer_transmit,
            completion: peer_completion,
            kick: kick.clone(),
            held: Vec::new(),
            #[cfg(test)]
            ahead: 0,
        };
        let rings = Rings {
            fill,
            receive,
            transmit,
            completion,
        };
        let mode = XskMode {
            zero_copy: false,
            multi_buffer: true,
        };
        let mut port = XskPort::new(&options, kick, umem, rings, mode);
        port.in_memory = true;
        Ok((port, peer))
    }
}

impl XskPeer {
    /// A frame from the wire, in as many buffers as it takes; `headroom` bytes of each are left
    /// free in front of it. False when there are not so many buffers: it is lost.
    pub fn inject(&mut self, frame: &[u8], headroom: u32) -> bool {
        let headroom = headroom.min(HEADROOM);
        let room = (self.umem.chunk_len() - headroom) as usize;
        let parts = frame.len().div_ceil(room).max(1) as u32;
        if self.fill.available(parts) < parts || self.receive.room(parts) < parts {
            return false;
        }
        let mut rest = frame;
        for _ in 0..parts {
            let (part, behind) = rest.split_at(rest.len().min(room));
            rest = behind;
            let addr = self.fill.peek(0) + u64::from(headroom);
            self.fill.release(1);
            // SAFETY: the address is that of a chunk in the fill ring, which is ours; the part fits
            // in it behind the headroom.
            unsafe {
                copy::bytes(
                    part.as_ptr(),
                    self.umem.start().add(addr as usize),
                    part.len(),
                )
            };
            self.push_received(addr, part.len() as u32, !rest.is_empty());
        }
        self.show();
        true
    }

    /// One frame for each buffer that there is, shown before any of these is said to be taken: as a
    /// kernel that is held up between the two. Gives how many; the next call says it.
    #[cfg(test)]
    pub(super) fn inject_ahead(&mut self, len: u32) -> u32 {
        let before = std::mem::take(&mut self.ahead);
        self.fill.release(before);
        let count = self
            .fill
            .available(u32::MAX)
            .min(self.receive.room(u32::MAX));
        for behind in 0..count {
            let addr = self.fill.peek(behind);
            self.push_received(addr, len, false);
        }
        self.ahead = count;
        self.show();
        count
    }

    /// Puts any entry into the receive ring, as no kernel would. False when it is full.
    pub fn inject_entry(&mut self, addr: u64, len: u32, more: bool) -> bool {
        let room = self.receive.room(1) > 0;
        if room {
            self.push_received(addr, len, more);
            self.show();
        }
        room
    }

    /// The next frame that the port has sent and flushed; its buffers are with us until
    /// [`complete`](Self::complete).
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        for behind in 0.. {
            if self.transmit.available(behind + 1) <= behind {
                return None;
            }
            let XdpDesc { addr, len, options } = self.transmit.peek(behind);
            // The kernel checks this too.
            let chunk_len = u64::from(self.umem.chunk_len());
            let inside = addr % chunk_len + u64::from(len) <= chunk_len;
            let end = addr + u64::from(len);
            assert!(
                inside && end <= self.umem.len() as u64,
                "{len} bytes at {addr:#x} are sent"
            );
            let from = frame.len();
            frame.resize(from + len as usize, 0);
            // SAFETY: inside the UMEM by the line above, and not written while it is in the ring;
            // `frame` has the room.
            unsafe {
                copy::bytes(
                    self.umem.start().add(addr as usize),
                    frame[from..].as_mut_ptr(),
                    len as usize,
                )
            };
            if !options.contains(XdpDescOptions::XDP_PKT_CONTD) {
                self.hold(behind + 1);
                return Some(frame);
            }
        }
        None
    }

    /// Takes all that was sent without looking at it, and completes it. Gives how many buffers.
    pub fn swallow(&mut self) -> u32 {
        let count = self.transmit.available(u32::MAX);
        self.hold(count);
        self.complete(count as usize);
        count
    }

    /// Gives up to `count` of the buffers that were [taken](Self::take) back, oldest first. Gives
    /// how many.
    pub fn complete(&mut self, count: usize) -> usize {
        let count = count
            .min(self.held.len())
            .min(self.completion.room(u32::MAX) as usize);
        for addr in self.held.drain(..count) {
            self.completion.push(addr);
        }
        self.completion.publish();
        count
    }

    /// Completes an address that was perhaps never sent, as no kernel would.
    pub fn complete_addr(&mut self, addr: u64) {
        if self.completion.room(1) > 0 {
            self.completion.push(addr);
            self.completion.publish();
        }
    }

    /// Buffers that the port has given for receiving and that are free.
    pub fn buffers(&mut self) -> u32 {
        self.fill.available(u32::MAX)
    }

    fn hold(&mut self, count: u32) {
        self.held
            .extend((0..count).map(|behind| self.transmit.peek(behind).addr));
        self.transmit.release(count);
    }

    fn push_received(&mut self, addr: u64, len: u32, more: bool) {
        let options = match more {
            true => XdpDescOptions::XDP_PKT_CONTD,
            false => XdpDescOptions::empty(),
        };
        self.receive.push(XdpDesc { addr, len, options });
    }

    fn show(&mut self) {
        self.receive.publish();
        // Fails only when the counter is full, and then the eventfd is readable already.
        let _ = rustix::io::write(&*self.kick, &1u64.to_ne_bytes());
    }
}

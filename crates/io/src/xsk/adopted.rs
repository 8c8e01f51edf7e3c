//! A queue that another process has bound, gone on with by this one: the socket, its rings and its
//! memory stay as they are, and the driver notices nothing.
//!
//! What is fixed is handed over while the other process still uses the queue: socket, memory, and
//! how it is [cut](Cut). The port made of it ([`XskPort::adopt`]) touches no ring before it has
//! been told where the other one has stopped ([`XskPort::left`], [`XskPort::take_up`]); or it finds
//! that out by the rings, where the other one has ended and says nothing ([`XskPort::recover`]).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sys::handed::Handed;

use super::queue::Queue;
use super::umem::Umem;
use super::{XskError, XskMode, XskOptions, XskPort, socket};

/// How long frames may be on their way that another process has sent before it ended. A device
/// gives a buffer back when it has sent or dropped the frame.
const SENT_WITHIN: Duration = Duration::from_millis(20);
const SENT_LOOK: Duration = Duration::from_micros(500);

/// How the memory of a queue is cut, and what was agreed with the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    /// Chunks for each direction.
    pub frames: u32,
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Chunks for each frame to be sent.
    pub slot_chunks: u32,
    pub mode: XskMode,
}

impl Cut {
    /// Five numbers of 32 bits, little-endian.
    pub fn to_note(self) -> Vec<u8> {
        let modes = [self.mode.zero_copy, self.mode.multi_buffer].map(u32::from);
        let sizes = [self.frames, self.chunk_len, self.slot_chunks];
        let words = sizes.into_iter().chain(modes);
        words.flat_map(u32::to_le_bytes).collect()
    }

    /// `None`: no port is like that.
    fn of_note(note: &[u8]) -> Option<Cut> {
        let (words, []) = note.as_chunks() else {
            return None;
        };
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let [
            frames,
            chunk_len,
            slot_chunks,
            zero_copy @ 0..=1,
            multi_buffer @ 0..=1,
        ] = words[..]
        else {
            return None;
        };
        let are_sizes = [frames, chunk_len, slot_chunks]
            .iter()
            .all(|size| size.is_power_of_two());
        let fit = frames <= 32_768 && chunk_len <= 4096 && slot_chunks <= 64.min(frames);
        (are_sizes && fit).then_some(Cut {
            frames,
            chunk_len,
            slot_chunks,
            mode: XskMode {
                zero_copy: zero_copy == 1,
                multi_buffer: multi_buffer == 1,
            },
        })
    }
}

impl XskPort {
    /// The port of a queue that another process [has](super::XskHandle::hand_over). It does nothing
    /// before it is told where that one has [stopped](Self::take_up).
    ///
    /// # Errors
    /// What was handed over is no queue; the kernel has rings mapped once only (before Linux 6.4).
    pub fn adopt(options: &XskOptions, handed: Handed) -> Result<XskPort, XskError> {
        let failed = |errno: Errno| XskError::Socket {
            interface: options.interface.clone(),
            queue: options.queue,
            error: errno.into(),
        };
        let cut = Cut::of_note(&handed.note).ok_or(failed(Errno::INVAL))?;
        let [socket, memory] = handed.take().ok_or(failed(Errno::BADF))?;
        let umem = Umem::handed(memory, cut.frames, cut.chunk_len).map_err(failed)?;
        let rings = socket::rings(socket.as_fd(), cut.frames).map_err(failed)?;
        let busy_poll = options.busy_poll && socket::prefer_busy_poll(socket.as_fd(), true);
        let queue = Queue::idle(Arc::new(umem), rings, cut.slot_chunks);
        let mut port = XskPort::over(options, Arc::new(socket), queue, cut.mode);
        (port.busy_poll, port.idle) = (busy_poll, true);
        Ok(port)
    }

    /// Which queue it is, in words that are the same in any process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where another process is to go on that has [adopted](Self::adopt) the queue. `None`: the
    /// port has broken. It is not to be used again unless that process does not go on.
    pub fn left(&mut self) -> Option<Vec<u8>> {
        self.socket.is_some().then(|| self.queue.left())
    }

    /// It was adopted, and not told yet where to go on.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Goes on with a queue whose process has ended amid its work. Frames that wait for it in the
    /// rings are received and sent; those that it was at are lost.
    ///
    /// # Errors
    /// A sentence: it cannot be told which buffers are whose, and the queue is to be bound anew.
    pub fn recover(&mut self) -> Result<(), String> {
        let cannot = |why: &str| Err(format!("{}: {why}", self.name));
        if self.mode.zero_copy {
            return cannot("its driver has buffers that are in no ring");
        }
        // Older kernels put a buffer that the receive ring had no room for aside.
        match self.handle().statistics() {
            Some(counted) if counted.ring_full == 0 => {}
            _ => return cannot("the kernel may have buffers that are in no ring"),
        }
        let start = Instant::now();
        loop {
            match self.queue.recover() {
                Some(0) => break,
                Some(_) if start.elapsed() < SENT_WITHIN => std::thread::sleep(SENT_LOOK),
                Some(_) => return cannot("frames that were sent are still on their way"),
                None => return cannot("its rings hold what cannot be"),
            }
        }
        self.idle = false;
        self.unsent = self.queue.rings.transmit.waiting() > 0;
        if self.queue.give_all() {
            self.call_to_receive();
        }
        Ok(())
    }

    /// Goes on where another process has [left](Self::left) the queue; without that the port is
    /// broken.
    ///
    /// # Errors
    /// A sentence: that process has said what cannot be.
    pub fn take_up(&mut self, left: Option<&[u8]>) -> Result<(), String> {
        let Some(left) = left else {
            self.stop(format!("{}: it had broken before", self.name));
            return Ok(());
        };
        let done = self.queue.take_up(left);
        done.ok_or_else(|| format!("{}: what is left of it cannot be", self.name))?;
        self.idle = false;
        self.unsent = self.queue.rings.transmit.waiting() > 0;
        Ok(())
    }
}

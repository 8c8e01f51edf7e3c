//! A receive queue and the send queue beside it.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use super::device::{Opened, Pool};
use super::ffi::{self, Frame};
use super::process::enter_thread;
use crate::{BURST, LeftSum, WriteError};

/// A receive queue of a device and the send queue beside it. Any thread may have it, one at a time.
#[derive(Debug)]
pub struct Queue {
    port: u16,
    index: u16,
    pool: Pool,
    /// Received and not looked at yet, or looked at: until the next call of
    /// [`receive`](Self::receive).
    frames: [Frame; BURST],
    count: usize,
    /// Those that [`keep`](Self::keep) kept, the oldest first.
    kept: VecDeque<Buffer>,
    /// Written, and not the device's yet.
    written: Vec<*mut c_void>,
    /// The last, so that the device runs while buffers are given back.
    opened: Arc<Opened>,
}

/// A buffer that is ours.
type Buffer = *mut c_void;

const NO_FRAME: Frame = Frame {
    mbuf: std::ptr::null_mut(),
    data: std::ptr::null(),
    length: 0,
    whole: 0,
};

// SAFETY: the pointers are to buffers of DPDK's that are this queue's alone, and DPDK lets any
// thread use a queue, one at a time: each method here takes the queue by `&mut`, or reads a frame.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(opened: Arc<Opened>, port: u16, index: u16, pool: Pool) -> Queue {
        Queue {
            port,
            index,
            pool,
            frames: [NO_FRAME; BURST],
            count: 0,
            kept: VecDeque::new(),
            written: Vec::with_capacity(BURST),
            opened,
        }
    }

    /// Which queue of the device it is, from 0.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Receives up to `most` frames, and up to [`BURST`], in the place of those of the call before,
    /// whose buffers are the device's again unless they were kept. Gives how many.
    #[inline]
    pub fn receive(&mut self, most: usize) -> usize {
        self.release();
        enter_thread();
        let most = most.min(BURST) as u16;
        // SAFETY: the port runs, the queue is ours alone, and there is room for so many.
        let count =
            unsafe { ffi::bf_receive(self.port, self.index, self.frames.as_mut_ptr(), most) };
        self.count = usize::from(count);
        self.count
    }

    /// The bytes of one of them, if they lie in one piece. They stay where they are while the frame
    /// is [kept](Self::keep), and their memory stays for ever.
    #[inline]
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        let frame = self.frames[..self.count].get(index)?;
        if frame.mbuf.is_null() || frame.length != frame.whole {
            return None;
        }
        // SAFETY: the device has written so many bytes there and is done with the buffer, which is
        // ours until it is given back, by `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(frame.data, frame.length as usize) })
    }

    /// Copies one of them to `out`, wherever its bytes lie. Gives how many it has; of a longer
    /// frame than `out` the first ones are copied.
    pub fn copy(&self, index: usize, out: &mut [u8]) -> usize {
        let Some(frame) = self.frames[..self.count].get(index) else {
            return 0;
        };
        if !frame.mbuf.is_null() {
            let room = u32::try_from(out.len()).unwrap_or(u32::MAX);
            // SAFETY: the frame's buffers are ours, `out` has so much room.
            unsafe { ffi::bf_copy(frame.mbuf, out.as_mut_ptr(), room) };
        }
        frame.whole as usize
    }

    /// Keeps one of them until it is [given back](Self::give_back).
    #[inline]
    pub fn keep(&mut self, index: usize) {
        let frame = &mut self.frames[..self.count][index];
        if !frame.mbuf.is_null() {
            self.kept.push_back(frame.mbuf);
            frame.mbuf = std::ptr::null_mut();
        }
    }

    /// Gives back the first `count` of those that are kept.
    #[inline]
    pub fn give_back(&mut self, count: usize) {
        for _ in 0..count {
            let Some(buffer) = self.kept.pop_front() else {
                return;
            };
            free(buffer);
        }
    }

    /// Writes a frame: `fill` gets so many bytes of a buffer, whatever is in them, and writes all
    /// of them. `left` is for a device that [sums](crate::Device::sums).
    ///
    /// # Errors
    /// There is no buffer for it; nothing has changed.
    #[inline]
    pub fn write(
        &mut self,
        length: usize,
        left: Option<LeftSum>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), WriteError> {
        if self.written.len() >= BURST {
            self.flush();
        }
        if self.written.len() >= BURST {
            return Err(WriteError::Full);
        }
        enter_thread();
        let (mut data, mut room) = (std::ptr::null_mut(), 0);
        // SAFETY: the pool is never freed; both places are ours.
        let buffer = unsafe { ffi::bf_buffer(self.pool.memory, &raw mut data, &raw mut room) };
        if buffer.is_null() {
            return Err(WriteError::Full);
        }
        if length > room as usize {
            free(buffer);
            return Err(WriteError::TooLong);
        }
        // SAFETY: the buffer is ours alone, and has `room` bytes from there on, which were written
        // when its memory was made.
        fill(unsafe { std::slice::from_raw_parts_mut(data, length) });
        // SAFETY: it has room for so many.
        unsafe { ffi::bf_fill(buffer, length as u32) };
        if let Some(LeftSum {
            front,
            ip,
            l4,
            is_ipv4,
            is_tcp,
        }) = left
        {
            // SAFETY: the buffer is ours alone. What is wrong in it makes a wrong frame: a driver
            // looks at no byte beyond the buffer for it.
            unsafe { ffi::bf_leave_sum(buffer, front, ip, l4, is_ipv4.into(), is_tcp.into()) };
        }
        self.written.push(buffer);
        Ok(())
    }

    /// Hands over what was written. True when the device has taken all of it; the rest is for the
    /// next call.
    #[inline]
    pub fn flush(&mut self) -> bool {
        if self.written.is_empty() {
            return true;
        }
        enter_thread();
        let count = self.written.len() as u16;
        // SAFETY: the port runs, the queue is ours alone, and so are these buffers; those that were
        // taken are the device's.
        let taken =
            unsafe { ffi::bf_send(self.port, self.index, self.written.as_mut_ptr(), count) };
        self.written.drain(..usize::from(taken.min(count)));
        self.written.is_empty()
    }

    /// How many frames were written and are not handed over yet.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.written.len()
    }

    /// Gives those up: they are counted as unsent.
    pub fn discard(&mut self) {
        self.opened.discarded(self.written.len());
        for buffer in self.written.drain(..) {
            free(buffer);
        }
    }

    fn release(&mut self) {
        for frame in &mut self.frames[..self.count] {
            let buffer = std::mem::replace(&mut frame.mbuf, std::ptr::null_mut());
            if !buffer.is_null() {
                free(buffer);
            }
        }
        self.count = 0;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.release();
        self.give_back(self.kept.len());
        for buffer in self.written.drain(..) {
            free(buffer);
        }
    }
}

fn free(buffer: Buffer) {
    // SAFETY: it is ours, and nobody has it from here on.
    unsafe { ffi::bf_free(buffer) }
}

//! From the wire: filled buffers become frames of a batch, whose bodies stay in the UMEM.

use std::ops::Range;

use wire::offload::Offload;

use super::queue::{Filled, PARTS_MAX, Queue, QueueFault};
use crate::copy;
use crate::frame::{BATCH, Batch, FRAME_MAX, Frame, HEAD_MAX, gather};
use crate::segment::Segment;

/// What came of [`take`].
#[derive(Default, Debug)]
pub(super) struct Taken {
    /// Frames that were added.
    pub frames: usize,
    /// Packets that were longer than any frame of ours, and are lost.
    pub oversize: u64,
}

/// Up to the batch's room of packets, each with its buffers, from the queue into the batch.
pub(super) fn take(queue: &mut Queue, batch: &mut Batch) -> Result<Taken, QueueFault> {
    let mut taken = Taken::default();
    let room = batch.room() as u32;
    let filled = queue.filled(room);
    queue.saw(filled);
    let count = filled.min(room);
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
    // Entries of the ring that are done with, and those of them that the batch refers to. Frames
    // are no more than entries.
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
        if fill_parts(
            &mut frames[taken.frames],
            segments,
            queue,
            done..done + parts,
        )? {
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

/// How many buffers the packet has whose first one is so many entries behind the next. `None`: its
/// last one is not there yet.
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
    // SAFETY: the buffer is valid for reads of `len` bytes (`Queue::peek`), of which `head_len` are
    // read; in whole blocks up to `HEAD_MAX` bytes of the UMEM (`ample`), into what is behind the
    // head and never looked at. The kernel does not write a filled buffer.
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

/// A frame in several buffers, which are these entries of the ring: its head is copied, the rest
/// stays where it is. False when it is longer than a frame can be; its buffers are the kernel's
/// again then.
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

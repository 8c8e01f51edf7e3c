//! A piece of a sender's memory: what batches hold and what is copied from.

/// A piece of memory that a frame's body lies in. The pointer is valid for reads of `len` bytes as
/// long as the batch that holds the segment is not cleared; another party may write the bytes at
/// any time, so they are only ever copied through raw pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub ptr: *const u8,
    pub len: usize,
}

impl Segment {
    /// A segment of no bytes, to initialise arrays with.
    pub const NOTHING: Segment = Segment {
        ptr: std::ptr::null(),
        len: 0,
    };
}

// SAFETY: a segment points into a mapping that the batch keeps (see `Batch::hold`), and mappings
// belong to no thread.
unsafe impl Send for Segment {}

// SAFETY: a segment is two numbers that nobody changes through a shared reference. What it points
// to is read by copies through raw pointers alone, as many at once as there are workers that a
// batch was handed to.
unsafe impl Sync for Segment {}

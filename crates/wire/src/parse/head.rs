//! Checked reads from the first bytes of a frame.

use super::ParseError;

/// The part of a frame that can be read, and where the frame (or the IP packet in it) ends.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    /// Never longer than `end`.
    bytes: &'a [u8],
    /// Bytes of the whole, seen or not.
    end: usize,
}

impl<'a> Head<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], end: usize) -> Self {
        Head {
            bytes: bytes.get(..end).unwrap_or(bytes),
            end,
        }
    }

    /// These bytes with an earlier end: what is behind an IP packet is not part of it.
    #[inline]
    pub(super) fn cut(self, end: usize) -> Self {
        Head::new(self.bytes, end.min(self.end))
    }

    #[inline]
    pub(super) fn end(self) -> usize {
        self.end
    }

    /// `N` bytes at `at`. Fails with `short` when the packet ends before them, with
    /// [`ParseError::HeadersTooLong`] when it does not but they cannot be seen.
    #[inline]
    pub(super) fn array<const N: usize>(
        self,
        at: usize,
        short: ParseError,
    ) -> Result<&'a [u8; N], ParseError> {
        match self
            .bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk::<N>())
        {
            Some(array) => Ok(array),
            None => Err(self.missing(at, N, short)),
        }
    }

    /// `len` bytes at `at`; fails as [`Head::array`] does.
    #[inline]
    pub(super) fn slice(
        self,
        at: usize,
        len: usize,
        short: ParseError,
    ) -> Result<&'a [u8], ParseError> {
        match self.bytes.get(at..at.saturating_add(len)) {
            Some(slice) => Ok(slice),
            None => Err(self.missing(at, len, short)),
        }
    }

    #[cold]
    fn missing(self, at: usize, len: usize, short: ParseError) -> ParseError {
        if at.saturating_add(len) > self.end {
            short
        } else {
            ParseError::HeadersTooLong
        }
    }
}

//! Fragments of IP packets (RFC 791, RFC 8200), and which are never honest (RFC 1858, 3128, 7112,
//! 8200).

use super::{ParseError, protocol};

/// The largest IP packet, and so the furthest that a fragment may reach.
const PACKET_MAX: usize = 65535;

/// Which part of a packet a fragment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
    /// Where it belongs in the packet, in bytes; a multiple of 8. 0 is the first fragment.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

/// Judges a fragment of `len` bytes of a packet whose length counts `before` bytes ahead of what is
/// fragmented.
#[cold]
pub(super) fn check(
    fragment: Fragment,
    protocol: u8,
    before: usize,
    len: usize,
) -> Result<(), ParseError> {
    if len == 0 || (fragment.more && !len.is_multiple_of(8)) {
        return Err(ParseError::FragmentLength);
    }
    if before + usize::from(fragment.offset) + len > PACKET_MAX {
        return Err(ParseError::FragmentBeyondEnd);
    }
    // At offset 8 lie TCP's flags: no honest sender cuts there (RFC 3128).
    if fragment.offset == 8 && protocol == protocol::TCP {
        return Err(ParseError::TinyFragment);
    }
    Ok(())
}

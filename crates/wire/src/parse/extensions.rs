//! IPv6 extension headers (RFC 8200, section 4; AH: RFC 4302), up to a bound.
//!
//! Walked: hop-by-hop, routing, destination options, fragment, AH. Everything else (ESP, mobility,
//! HIP …) ends the chain and is the packet's protocol.

use super::head::Head;
use super::{Fragment, ParseError};

/// The most extension headers a packet may have.
pub const EXTENSIONS_MAX: usize = 8;

pub(super) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AH: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// The jumbo payload option (RFC 2675).
const OPTION_JUMBO: u8 = 0xc2;

/// Where a chain led.
pub(super) struct Chain {
    pub(super) protocol: u8,
    pub(super) l4: usize,
    pub(super) fragment: Option<Fragment>,
    /// Behind the fragment header; 0 without one.
    pub(super) fragment_start: usize,
}

/// True for the types that [`walk`] goes through.
#[inline]
pub(super) fn is_extension(next: u8) -> bool {
    matches!(
        next,
        HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS
    )
}

/// Follows the chain that starts at `at` with a header of type `next`, which may be none.
#[cold]
pub(super) fn walk(head: Head, at: usize, next: u8) -> Result<Chain, ParseError> {
    let mut chain = Chain {
        protocol: next,
        l4: at,
        fragment: None,
        fragment_start: 0,
    };
    for count in 0..=EXTENSIONS_MAX {
        if !is_extension(chain.protocol) {
            return Ok(chain);
        }
        if count == EXTENSIONS_MAX {
            break;
        }
        // A first fragment has to hold the whole chain (RFC 7112).
        let short = if chain.fragment.is_some() {
            ParseError::TinyFragment
        } else {
            ParseError::Ipv6Extension
        };
        let &[next, len8] = head.array(chain.l4, short)?;
        let len = match chain.protocol {
            FRAGMENT => 8,
            AH => (usize::from(len8) + 2) * 4,
            _ => (usize::from(len8) + 1) * 8,
        };
        let header = head.slice(chain.l4, len, short)?;
        match chain.protocol {
            // Only ever right behind the IPv6 header.
            HOP_BY_HOP if count != 0 => return Err(ParseError::Ipv6Extension),
            HOP_BY_HOP | DESTINATION_OPTIONS => check_options(header)?,
            // The length counts 32-bit words, but IPv6 keeps 8-byte alignment and the fixed part is
            // 12 bytes.
            AH if len < 16 || len % 8 != 0 => return Err(ParseError::Ipv6Extension),
            _ => {}
        }
        let is_fragment_header = chain.protocol == FRAGMENT;
        chain.protocol = next;
        chain.l4 += len;
        if is_fragment_header {
            if chain.fragment_start != 0 {
                return Err(ParseError::Ipv6Extension);
            }
            chain.fragment_start = chain.l4;
            chain.fragment = read_fragment(header)?;
            if chain.fragment.is_some_and(|fragment| fragment.offset != 0) {
                return Ok(chain);
            }
        }
    }
    Err(ParseError::Ipv6TooManyExtensions)
}

/// What a fragment header (RFC 8200, section 4.5) says; nothing for an atomic fragment.
fn read_fragment(header: &[u8]) -> Result<Option<Fragment>, ParseError> {
    let &[_, _, o0, o1, i0, i1, i2, i3] = header else {
        return Err(ParseError::Ipv6Extension);
    };
    let (offset, more) = (u16::from_be_bytes([o0, o1]) & !7, o1 & 1 == 1);
    let id = u32::from_be_bytes([i0, i1, i2, i3]);
    Ok((offset != 0 || more).then_some(Fragment { id, offset, more }))
}

/// Checks that each option of a hop-by-hop or destination options header lies within it.
fn check_options(header: &[u8]) -> Result<(), ParseError> {
    let mut options = header.get(2..).unwrap_or(&[]);
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, _) => rest,
            (&OPTION_JUMBO, _) => return Err(ParseError::Ipv6Jumbogram),
            (_, [len, value @ ..]) => value
                .get(usize::from(*len)..)
                .ok_or(ParseError::Ipv6Extension)?,
            _ => return Err(ParseError::Ipv6Extension),
        };
    }
    Ok(())
}

//! IPv6 neighbour discovery messages (RFC 4861): what anti-spoofing and the always-passed rules
//! need to know.
//!
//! [`parse`] does the checks that a receiver has to do (sections 6.1, 7.1, 8.1), except for the
//! checksum: hop limit 255, code 0, lengths, options. A message that fails them is ignored by any
//! receiver, so it is dropped here rather than passed outside the rules.

use std::net::Ipv6Addr;

use crate::Mac;
use crate::parse::{IpPacket, L4, ParseError};

/// All nodes of a link (RFC 4291, section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The MAC address of that group (RFC 2464, section 7).
pub const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// ICMPv6 type.
pub const ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6 type.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// ICMPv6 type.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// ICMPv6 type.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// ICMPv6 type.
pub const REDIRECT: u8 = 137;

/// Option: the sender's link-layer address.
pub const SOURCE_LINK: u8 = 1;
/// Option: the target's link-layer address.
pub const TARGET_LINK: u8 = 2;

/// A neighbour discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nd {
    /// Which of them.
    pub kind: NdKind,
    /// The source link-layer address option.
    pub source_link: Option<Mac>,
    /// The target link-layer address option.
    pub target_link: Option<Mac>,
}

/// The five messages, with what their fixed part says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdKind {
    /// Asks routers to advertise themselves.
    RouterSolicitation,
    /// A router presents itself.
    RouterAdvertisement,
    /// Asks who has an address.
    NeighbourSolicitation {
        /// The address asked for.
        target: Ipv6Addr,
    },
    /// Says who has an address.
    NeighbourAdvertisement {
        /// The address that the sender says it has.
        target: Ipv6Addr,
        /// The sender is a router.
        router: bool,
        /// It answers a solicitation.
        solicited: bool,
        /// Caches should be overwritten.
        overrides: bool,
    },
    /// A router names a better first hop.
    Redirect {
        /// The better first hop.
        target: Ipv6Addr,
        /// For this destination.
        destination: Ipv6Addr,
    },
}

/// True for the ICMPv6 types of neighbour discovery.
#[inline]
pub fn is_nd(kind: u8) -> bool {
    matches!(kind, ROUTER_SOLICITATION..=REDIRECT)
}

/// Reads the message in `ip`, which [`crate::parse::parse`] made of `head`; `Ok(None)` for any
/// other packet.
///
/// All options have to lie in `head`, lest one that is not judged says something else; router
/// advertisements and redirects alone can be longer, and the options that are not seen are not
/// judged.
pub fn parse(head: &[u8], ip: &IpPacket) -> Result<Option<Nd>, ParseError> {
    let L4::Icmp { kind, code, .. } = ip.l4_info else {
        return Ok(None);
    };
    if !ip.v6 || !is_nd(kind) {
        return Ok(None);
    }
    let malformed = ParseError::NeighbourDiscovery;
    // Fragments: RFC 6980.
    if ip.ttl != 255 || code != 0 || ip.fragment.is_some() {
        return Err(malformed);
    }
    let fixed_len = match kind {
        ROUTER_SOLICITATION => 8,
        ROUTER_ADVERTISEMENT => 16,
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => 24,
        _ => 40,
    };
    let len = ip.l4_len();
    if len < fixed_len {
        return Err(malformed);
    }
    let seen = head.get(usize::from(ip.l4)..).unwrap_or(&[]);
    let (message, whole) = match seen.get(..len) {
        Some(message) => (message, true),
        None => (seen, false),
    };
    let fixed = message.get(..fixed_len).ok_or(ParseError::HeadersTooLong)?;
    if !whole && !matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) {
        return Err(ParseError::HeadersTooLong);
    }
    let mut nd = Nd {
        kind: read_kind(kind, fixed),
        source_link: None,
        target_link: None,
    };
    read_options(&mut nd, &message[fixed_len..], whole)?;
    Ok(Some(nd))
}

fn read_kind(kind: u8, fixed: &[u8]) -> NdKind {
    let address = |at: usize| {
        let octets = fixed.get(at..).and_then(|rest| rest.first_chunk::<16>());
        Ipv6Addr::from(*octets.unwrap_or(&[0; 16]))
    };
    match kind {
        ROUTER_SOLICITATION => NdKind::RouterSolicitation,
        ROUTER_ADVERTISEMENT => NdKind::RouterAdvertisement,
        NEIGHBOUR_SOLICITATION => NdKind::NeighbourSolicitation { target: address(8) },
        NEIGHBOUR_ADVERTISEMENT => NdKind::NeighbourAdvertisement {
            target: address(8),
            router: fixed[4] & 0x80 != 0,
            solicited: fixed[4] & 0x40 != 0,
            overrides: fixed[4] & 0x20 != 0,
        },
        _ => NdKind::Redirect {
            target: address(8),
            destination: address(24),
        },
    }
}

/// Walks the options: type, length in units of eight bytes, never 0 (section 4.6).
fn read_options(nd: &mut Nd, mut options: &[u8], whole: bool) -> Result<(), ParseError> {
    let malformed = Err(ParseError::NeighbourDiscovery);
    while let [kind, rest @ ..] = options {
        let len = match rest.first() {
            Some(0) => return malformed,
            Some(len) => usize::from(*len) * 8,
            None if whole => return malformed,
            None => break,
        };
        let Some(option) = options.get(..len) else {
            if whole {
                return malformed;
            }
            break;
        };
        if matches!(*kind, SOURCE_LINK | TARGET_LINK) {
            // An Ethernet address fills its option (RFC 2464, section 6); two that disagree are
            // nobody's honest message.
            let &[_, _, a, b, c, d, e, f] = option else {
                return malformed;
            };
            let link = Some(Mac([a, b, c, d, e, f]));
            let slot = if *kind == SOURCE_LINK {
                &mut nd.source_link
            } else {
                &mut nd.target_link
            };
            if slot.is_some() && *slot != link {
                return malformed;
            }
            *slot = link;
        }
        options = &options[len..];
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! VXLAN (RFC 7348): what is put in front of an inner frame on the wire, and what is found there.
//!
//! - [`Outer`]: Ethernet, 802.1Q tag, IPv4 or IPv6, UDP and VXLAN headers as one template, made
//!   once for a next hop; what changes from flow to flow is set in a copy, what changes from frame
//!   to frame is filled in by [`Outer::write`].
//! - [`parse`]: the same headers of a frame from the wire; all their lengths are checked here,
//!   once.
//! - [`is_to_port`]: whether a frame is to be looked at for them at all.
//! - [`left_undone`]: what the kernel has not done in a packet of its own that was on no wire.
//! - [`ecn`]: what becomes of congestion marks at both ends of the tunnel (RFC 6040).
//! - [`flow_hash`]: the flow of an inner frame as a number, for the outer UDP source port and the
//!   choice of a path.

pub mod ecn;
mod hash;
mod outer;
mod parse;
mod peek;
#[cfg(test)]
mod tests;
mod undone;

pub use hash::{flow_hash, plain_hash, source_port};
pub use outer::{Ends, OUTER_MAX, Outer, UdpChecksum};
pub use parse::{OuterError, Received, parse};
pub use peek::is_to_port;
pub use undone::{inner_undone, left_undone};

/// The UDP port that IANA has given to VXLAN.
pub const PORT: u16 = 4789;

/// Bytes of a VXLAN header.
pub const VXLAN_LEN: usize = 8;

/// The flag that says that the VNI is valid (RFC 7348, section 5): the only one there is.
const FLAG_VNI: u8 = 0x08;

/// The header of a VXLAN network alone, for whom the kernel makes those before it.
pub fn header(vni: crate::Vni) -> [u8; VXLAN_LEN] {
    let [_, high, middle, low] = vni.id().to_be_bytes();
    [FLAG_VNI, 0, 0, 0, high, middle, low, 0]
}

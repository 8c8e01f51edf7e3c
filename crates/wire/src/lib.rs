//! Packet formats as they are on the wire: parsing, building, checksums.
//!
//! No dependencies, no I/O, no allocation on the parsing side. Everything here works on byte slices
//! that the caller owns; [`parse::parse`] is the one place where the lengths of a frame's headers
//! are checked, and what it returns ([`parse::Packet`]) holds offsets that are valid for that
//! slice.
//!
//! - judging: [`parse`], [`nd`], [`dhcp`]
//! - completing what a sender left undone: [`offload`], [`virtio_net`], [`checksum`], [`segment`],
//!   and its opposite [`merge`]
//! - between hosts: [`vxlan`], [`membership`]
//! - making: [`build`] (frames), [`pcap`] and [`pcapng`] (capture files), [`ipfix`] (records of
//!   flows), [`erspan`] (mirrored frames), [`sflow`] (samples)

mod addr;
pub mod bpf;
pub mod build;
mod bytes;
pub mod checksum;
pub mod dhcp;
pub mod erspan;
pub mod ipfix;
pub mod membership;
pub mod merge;
pub mod nd;
pub mod offload;
pub mod parse;
pub mod pcap;
pub mod pcapng;
pub mod segment;
pub mod sflow;
pub mod virtio_net;
pub mod vxlan;

pub use addr::{AddrError, Mac, Vni};

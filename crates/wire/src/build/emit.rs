//! Writes what a [`Builder`] was told: Ethernet and IP headers, and the offload that goes with the
//! frame.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::l4::Transport;
use super::{Addresses, Builder, len16};
use crate::checksum;
use crate::offload::{Gso, Offload};
use crate::parse::{TcpFlags, ethertype};

impl Builder {
    /// The frame's bytes.
    pub fn build(&self) -> Vec<u8> {
        self.build_with_offload().0
    }

    /// The frame's bytes and what is left to do on them.
    pub fn build_with_offload(&self) -> (Vec<u8>, Offload) {
        let mut out = Vec::with_capacity(128 + self.payload.len());
        out.extend_from_slice(&self.dst.0);
        out.extend_from_slice(&self.src.0);
        for tci in &self.tags {
            out.extend_from_slice(&ethertype::VLAN.to_be_bytes());
            out.extend_from_slice(&tci.to_be_bytes());
        }
        let ethertype = self.ethertype.unwrap_or(match self.addresses {
            Some(Addresses::V4(..)) => ethertype::IPV4,
            Some(Addresses::V6(..)) => ethertype::IPV6,
            None => 0x88b5, // IEEE 802 local experimental
        });
        out.extend_from_slice(&ethertype.to_be_bytes());
        let mut offload = Offload::default();
        match self.addresses {
            None => out.extend_from_slice(&self.payload),
            Some(addresses) => {
                let l4_len = self.transport.header_len() + self.payload.len();
                match addresses {
                    Addresses::V4(src, dst) => self.put_ipv4(&mut out, src, dst, l4_len),
                    Addresses::V6(src, dst) => self.put_ipv6(&mut out, src, dst, l4_len),
                }
                offload.checksum =
                    self.transport
                        .put(&mut out, addresses, &self.payload, self.partial_checksum);
            }
        }
        if self.gso_size != 0 {
            offload.gso = match (&self.transport, self.is_v6()) {
                (Transport::Tcp { .. }, false) => Gso::Tcp4,
                (Transport::Tcp { .. }, true) => Gso::Tcp6,
                (Transport::Udp { .. }, _) => Gso::Udp,
                _ => Gso::None,
            };
            offload.gso_size = if offload.gso == Gso::None {
                0
            } else {
                self.gso_size
            };
            offload.ecn = matches!(&self.transport,
                Transport::Tcp { flags, .. } if flags.contains(TcpFlags::CWR));
        }
        if out.len() < self.pad_to {
            out.resize(self.pad_to, 0);
        }
        (out, offload)
    }

    fn put_ipv4(&self, out: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr, l4_len: usize) {
        let start = out.len();
        let header_len = 20 + self.ip_options.len();
        out.extend_from_slice(&[0x40 | (header_len / 4) as u8, self.tos]);
        out.extend_from_slice(&len16(header_len + l4_len));
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&[if self.dont_fragment { 0x40 } else { 0 }, 0]);
        out.extend_from_slice(&[self.ttl, self.transport.protocol(false), 0, 0]);
        out.extend_from_slice(&src.octets());
        out.extend_from_slice(&dst.octets());
        out.extend_from_slice(&self.ip_options);
        let checksum = checksum::checksum(&out[start..]);
        out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
    }

    fn put_ipv6(&self, out: &mut Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr, l4_len: usize) {
        let extensions_len: usize = self.extensions.iter().map(|(_, header)| header.len()).sum();
        // Each header names the next; the last one the protocol.
        let protocol = self.transport.protocol(true);
        let mut kinds = self
            .extensions
            .iter()
            .map(|(kind, _)| *kind)
            .chain([protocol]);
        out.extend_from_slice(&[0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
        out.extend_from_slice(&len16(extensions_len + l4_len));
        out.extend_from_slice(&[kinds.next().unwrap_or(protocol), self.ttl]);
        out.extend_from_slice(&src.octets());
        out.extend_from_slice(&dst.octets());
        for (_, header) in &self.extensions {
            out.push(kinds.next().unwrap_or(protocol));
            out.extend_from_slice(&header[1..]);
        }
    }
}

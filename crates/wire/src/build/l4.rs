//! Layer-4 headers of built frames, with their checksums.

use super::{Addresses, len16};
use crate::checksum::{self, fold};
use crate::offload::PartialChecksum;
use crate::parse::{TcpFlags, protocol};

/// The layer-4 header to build.
#[derive(Clone, Debug)]
pub(super) enum Transport {
    Raw(u8),
    Tcp {
        sport: u16,
        dport: u16,
        flags: TcpFlags,
        seq: u32,
        ack: u32,
        window: u16,
        options: Vec<u8>,
    },
    Udp {
        sport: u16,
        dport: u16,
    },
    Sctp {
        sport: u16,
        dport: u16,
        verification_tag: u32,
        chunk: u8,
    },
    Icmp {
        kind: u8,
        code: u8,
        rest: u32,
    },
}

impl Transport {
    pub(super) fn protocol(&self, v6: bool) -> u8 {
        match self {
            Transport::Raw(number) => *number,
            Transport::Tcp { .. } => protocol::TCP,
            Transport::Udp { .. } => protocol::UDP,
            Transport::Sctp { .. } => protocol::SCTP,
            Transport::Icmp { .. } if v6 => protocol::ICMPV6,
            Transport::Icmp { .. } => protocol::ICMP,
        }
    }

    pub(super) fn header_len(&self) -> usize {
        match self {
            Transport::Raw(_) => 0,
            Transport::Tcp { options, .. } => 20 + options.len(),
            Transport::Udp { .. } | Transport::Icmp { .. } => 8,
            Transport::Sctp { .. } => 16,
        }
    }

    /// Appends header and payload. With `partial`, the checksum of TCP and UDP is left to be
    /// completed, and where is returned.
    pub(super) fn put(
        &self,
        out: &mut Vec<u8>,
        addresses: Addresses,
        payload: &[u8],
        partial: bool,
    ) -> Option<PartialChecksum> {
        let start = out.len();
        let checksum_at = match self {
            Transport::Raw(_) => None,
            Transport::Tcp {
                sport,
                dport,
                flags,
                seq,
                ack,
                window,
                options,
            } => {
                put_ports(out, *sport, *dport);
                out.extend_from_slice(&seq.to_be_bytes());
                out.extend_from_slice(&ack.to_be_bytes());
                out.extend_from_slice(&[(((20 + options.len()) / 4) << 4) as u8, flags.0]);
                out.extend_from_slice(&window.to_be_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(options);
                Some(16)
            }
            Transport::Udp { sport, dport } => {
                put_ports(out, *sport, *dport);
                out.extend_from_slice(&len16(8 + payload.len()));
                out.extend_from_slice(&[0; 2]);
                Some(6)
            }
            Transport::Sctp {
                sport,
                dport,
                verification_tag,
                chunk,
            } => {
                put_ports(out, *sport, *dport);
                out.extend_from_slice(&verification_tag.to_be_bytes());
                out.extend_from_slice(&[0, 0, 0, 0, *chunk, 0]);
                out.extend_from_slice(&len16(4 + payload.len()));
                None
            }
            Transport::Icmp { kind, code, rest } => {
                out.extend_from_slice(&[*kind, *code, 0, 0]);
                out.extend_from_slice(&rest.to_be_bytes());
                Some(2)
            }
        };
        out.extend_from_slice(payload);
        if matches!(self, Transport::Sctp { .. }) {
            // CRC32c, sent least significant byte first (RFC 9260, appendix A).
            let crc = crc32c(&out[start..]).to_le_bytes();
            out[start + 8..start + 12].copy_from_slice(&crc);
        }

        let offset = checksum_at?;
        let pseudo = self.pseudo_sum(addresses, out.len() - start);
        let field = start + offset..start + offset + 2;
        if partial && !matches!(self, Transport::Icmp { .. }) {
            out[field].copy_from_slice(&fold(pseudo).to_be_bytes());
            return Some(PartialChecksum {
                start: start as u16,
                offset: offset as u16,
            });
        }
        let mut value = !fold(checksum::add(pseudo, checksum::sum(&out[start..])));
        if value == 0 && matches!(self, Transport::Udp { .. }) {
            value = 0xffff;
        }
        out[field].copy_from_slice(&value.to_be_bytes());
        None
    }

    fn pseudo_sum(&self, addresses: Addresses, len: usize) -> u32 {
        match addresses {
            // ICMP for IPv4 has no pseudo-header.
            Addresses::V4(..) if matches!(self, Transport::Icmp { .. }) => 0,
            Addresses::V4(src, dst) => {
                checksum::pseudo_v4(src, dst, self.protocol(false), len as u32)
            }
            Addresses::V6(src, dst) => {
                checksum::pseudo_v6(src, dst, self.protocol(true), len as u32)
            }
        }
    }
}

fn put_ports(out: &mut Vec<u8>, sport: u16, dport: u16) {
    out.extend_from_slice(&sport.to_be_bytes());
    out.extend_from_slice(&dport.to_be_bytes());
}

/// The CRC32c of SCTP (RFC 9260, appendix A), bit by bit: for building, not for the path.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

//! `struct virtio_net_hdr` (virtio 1.2, section 5.1.6): the twelve bytes before every frame in a
//! virtqueue, and before every frame of a TAP device opened with a vnet header of that size.
//!
//! Little-endian throughout (VERSION_1): flags u8, gso_type u8, hdr_len u16, gso_size u16,
//! csum_start u16, csum_offset u16, num_buffers u16.

use std::fmt;

use crate::offload::{Gso, Offload, PartialChecksum};

/// Bytes of the header with VERSION_1 or MRG_RXBUF.
pub const HDR_LEN_MRG: usize = 12;

/// `flags`: the checksum is to be completed.
pub const F_NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum has been verified.
pub const F_DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Writes the header for a frame. `hdr_len` is a hint, the length of the headers that every segment
/// repeats; `num_buffers` the descriptor chains that the frame takes (1 without MRG_RXBUF, 0
/// towards a device).
#[inline]
pub fn encode(offload: &Offload, hdr_len: u16, num_buffers: u16) -> [u8; HDR_LEN_MRG] {
    let mut flags = 0;
    let (mut start, mut offset) = (0, 0);
    if let Some(partial) = offload.checksum {
        flags |= F_NEEDS_CSUM;
        (start, offset) = (partial.start, partial.offset);
    } else if offload.data_valid {
        flags |= F_DATA_VALID;
    }
    let kind = match offload.gso {
        Gso::None => GSO_NONE,
        Gso::Tcp4 => GSO_TCPV4,
        Gso::Tcp6 => GSO_TCPV6,
        Gso::Udp => GSO_UDP_L4,
    };
    let ecn = if offload.ecn && matches!(offload.gso, Gso::Tcp4 | Gso::Tcp6) {
        GSO_ECN
    } else {
        0
    };
    let (hdr_len, gso_size) = if offload.gso == Gso::None {
        (0, 0)
    } else {
        (hdr_len, offload.gso_size)
    };

    let mut out = [0; HDR_LEN_MRG];
    out[0] = flags;
    out[1] = kind | ecn;
    out[2..4].copy_from_slice(&hdr_len.to_le_bytes());
    out[4..6].copy_from_slice(&gso_size.to_le_bytes());
    out[6..8].copy_from_slice(&start.to_le_bytes());
    out[8..10].copy_from_slice(&offset.to_le_bytes());
    out[10..12].copy_from_slice(&num_buffers.to_le_bytes());
    out
}

/// Reads the header a sender put before a frame.
///
/// `hdr_len` and `num_buffers` are not believed and not returned, unknown flag bits are ignored as
/// the specification asks. Whether the checksum's place suits the frame is
/// [`crate::parse::check_offload`]'s to say.
#[inline]
pub fn decode(header: &[u8; HDR_LEN_MRG]) -> Result<Offload, HeaderError> {
    let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if header[..2] == [0, 0] {
        return Ok(Offload::default());
    }
    let gso = match header[1] & !GSO_ECN {
        GSO_NONE => Gso::None,
        GSO_TCPV4 => Gso::Tcp4,
        GSO_TCPV6 => Gso::Tcp6,
        GSO_UDP_L4 => Gso::Udp,
        other => return Err(HeaderError::GsoType(other)),
    };
    let gso_size = if gso == Gso::None { 0 } else { word(4) };
    if gso != Gso::None && gso_size == 0 {
        return Err(HeaderError::GsoSize);
    }
    let partial = PartialChecksum {
        start: word(6),
        offset: word(8),
    };
    Ok(Offload {
        checksum: (header[0] & F_NEEDS_CSUM != 0).then_some(partial),
        data_valid: header[0] & F_DATA_VALID != 0,
        gso,
        gso_size,
        ecn: header[1] & GSO_ECN != 0 && matches!(gso, Gso::Tcp4 | Gso::Tcp6),
    })
}

/// Why a virtio-net header is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// `gso_type` is none that this switch offers (3, UDP fragmentation, is not).
    GsoType(u8),
    /// `gso_type` asks for segments and `gso_size` is 0.
    GsoSize,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderError::GsoType(kind) => write!(
                f,
                "virtio-net header: gso_type {kind} is not one that was offered"
            ),
            HeaderError::GsoSize => {
                f.write_str("virtio-net header: gso_size is 0 although gso_type asks for segments")
            }
        }
    }
}

impl std::error::Error for HeaderError {}

#[cfg(test)]
mod tests {
    use super::*;

    const TSO: Offload = Offload {
        checksum: Some(PartialChecksum {
            start: 34,
            offset: 16,
        }),
        data_valid: false,
        gso: Gso::Tcp4,
        gso_size: 1448,
        ecn: true,
    };

    #[test]
    fn golden_bytes() {
        assert_eq!(
            encode(&TSO, 66, 3),
            [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0, 3, 0]
        );
        assert_eq!(
            encode(&Offload::default(), 66, 1),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
        );
        // A checksum that is to be completed cannot have been checked.
        assert_eq!(
            encode(
                &Offload {
                    data_valid: true,
                    ..TSO
                },
                66,
                3
            )[0],
            1
        );
        let valid = Offload {
            data_valid: true,
            ..Offload::default()
        };
        assert_eq!(encode(&valid, 0, 1), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for gso in [Gso::Tcp4, Gso::Tcp6, Gso::Udp] {
            let offload = Offload {
                gso,
                ecn: gso != Gso::Udp,
                ..TSO
            };
            assert_eq!(decode(&encode(&offload, 54, 1)), Ok(offload));
        }
        let valid = Offload {
            data_valid: true,
            ..Offload::default()
        };
        assert_eq!(decode(&encode(&valid, 0, 1)), Ok(valid));
    }

    #[test]
    fn fields_that_mean_nothing_are_not_carried() {
        // No flag, no type: whatever else is written says nothing.
        assert_eq!(
            decode(&[0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]),
            Ok(Offload::default())
        );
        // An unknown flag is ignored, ECN without TCP too.
        assert_eq!(
            decode(&[0xf8, 0x80, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]),
            Ok(Offload::default())
        );
    }

    #[test]
    fn types_that_are_not_offered_are_refused() {
        for kind in [2, 3, 6, 0x7f] {
            assert_eq!(
                decode(&[1, kind, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
                Err(HeaderError::GsoType(kind))
            );
        }
        assert_eq!(
            decode(&[1, 1, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]),
            Err(HeaderError::GsoSize)
        );
    }
}

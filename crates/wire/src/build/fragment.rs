//! Cuts an IP frame into fragments, as a sender or a router would.

use super::len16;
use crate::checksum;
use crate::parse::{self, IpPacket};

/// Cuts the IP packet in `frame` into fragments that carry at most `size` bytes each (rounded down
/// to a multiple of eight, at least 8). In IPv6 a fragment header with `id` goes right behind the
/// IPv6 header; in IPv4 the options are repeated in each. A frame that is not a whole IP packet is
/// returned as it is.
pub fn fragments(frame: &[u8], size: usize, id: u32) -> Vec<Vec<u8>> {
    let packet = match parse::parse(frame, frame.len()) {
        Ok(packet) => packet,
        Err(_) => return vec![frame.to_vec()],
    };
    let Some(ip) = packet.ip().filter(|ip| ip.fragment.is_none()) else {
        return vec![frame.to_vec()];
    };
    let l3 = usize::from(ip.l3);
    let data_start = if ip.v6 { l3 + 40 } else { usize::from(ip.l4) };
    let (headers, data) = (&frame[..data_start], &frame[data_start..ip.end as usize]);
    let size = (size / 8 * 8).max(8);
    let count = data.len().div_ceil(size);
    let pieces = data.chunks(size).enumerate();
    pieces
        .map(|(i, piece)| fragment(headers, ip, id, i * size, i + 1 < count, piece))
        .collect()
}

/// The IP packet in `frame` as one piece of a larger datagram: its data begin at `offset` (a
/// multiple of eight) there, and another piece follows if `more` says so. A frame that is not a
/// whole IP packet is returned as it is.
pub fn fragment_at(frame: &[u8], offset: u16, more: bool, id: u32) -> Vec<u8> {
    let Ok(packet) = parse::parse(frame, frame.len()) else {
        return frame.to_vec();
    };
    let Some(ip) = packet.ip().filter(|ip| ip.fragment.is_none()) else {
        return frame.to_vec();
    };
    let l3 = usize::from(ip.l3);
    let data_start = if ip.v6 { l3 + 40 } else { usize::from(ip.l4) };
    let (headers, data) = (&frame[..data_start], &frame[data_start..ip.end as usize]);
    fragment(headers, ip, id, usize::from(offset) / 8 * 8, more, data)
}

fn fragment(
    headers: &[u8],
    ip: &IpPacket,
    id: u32,
    offset: usize,
    more: bool,
    piece: &[u8],
) -> Vec<u8> {
    let l3 = usize::from(ip.l3);
    let mut out = headers.to_vec();
    if ip.v6 {
        let next = std::mem::replace(&mut out[l3 + 6], 44);
        out[l3 + 4..l3 + 6].copy_from_slice(&len16(8 + piece.len()));
        out.extend_from_slice(&[next, 0]);
        out.extend_from_slice(&(offset as u16 | u16::from(more)).to_be_bytes());
        out.extend_from_slice(&id.to_be_bytes());
    } else {
        out[l3 + 2..l3 + 4].copy_from_slice(&len16(headers.len() - l3 + piece.len()));
        out[l3 + 4..l3 + 6].copy_from_slice(&(id as u16).to_be_bytes());
        let flags = if more { 0x2000 } else { 0 };
        out[l3 + 6..l3 + 8].copy_from_slice(&(flags | (offset / 8) as u16).to_be_bytes());
        out[l3 + 10..l3 + 12].copy_from_slice(&[0, 0]);
        let checksum = checksum::checksum(&out[l3..]);
        out[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    out.extend_from_slice(piece);
    out
}

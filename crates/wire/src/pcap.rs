//! Capture files of the old kind (libpcap's, pcap-savefile(5)), which the original wrote: a header,
//! then any number of packets. Little-endian, times in microseconds, Ethernet frames without FCS.
//! Which way a frame went and why it was dropped cannot be said in it: see
//! [`pcapng`](crate::pcapng).

/// Bytes of a file's header.
pub const HEADER_LEN: usize = 24;
const MAGIC: u32 = 0xa1b2_c3d4;
const LINK_TYPE_ETHERNET: u32 = 1;
/// What libpcap takes for "all of it".
const SNAP_LEN: u32 = 262_144;

/// Begins a file.
pub fn header(out: &mut Vec<u8>) {
    put32(out, MAGIC);
    out.extend_from_slice(&[2, 0, 4, 0]); // version 2.4
    put32(out, 0);
    put32(out, 0);
    put32(out, SNAP_LEN);
    put32(out, LINK_TYPE_ETHERNET);
}

/// True for the beginning of a file that [`packet`]s can be added to, be it ours or the original's.
pub fn can_go_on(head: &[u8]) -> bool {
    let word = |at: usize| {
        head.get(at..at + 4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    };
    word(0) == Some(MAGIC)
        && head.get(4..8) == Some(&[2, 0, 4, 0])
        && word(20) == Some(LINK_TYPE_ETHERNET)
}

/// Bytes of what stands before a packet.
pub const PACKET_HEADER_LEN: usize = 16;
/// The largest packet of a file, without its header: what libpcap takes for "all of it".
pub const PACKET_MAX: u64 = SNAP_LEN as u64;

/// Bytes of a packet with its header; `None` for a header that no [`packet`] has.
pub fn packet_len(header: &[u8; PACKET_HEADER_LEN]) -> Option<u64> {
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (micros, stored, whole) = (word(4), word(8), word(12));
    let sound = micros < 1_000_000 && stored <= SNAP_LEN && stored <= whole;
    sound.then_some(PACKET_HEADER_LEN as u64 + u64::from(stored))
}

/// Records a whole frame, `time_ns` nanoseconds after 1970.
pub fn packet(out: &mut Vec<u8>, time_ns: u64, frame: &[u8]) {
    put32(out, (time_ns / 1_000_000_000) as u32);
    put32(out, (time_ns % 1_000_000_000 / 1000) as u32);
    put32(out, frame.len() as u32);
    put32(out, frame.len() as u32);
    out.extend_from_slice(frame);
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut out = vec![0xa5];
        header(&mut out);
        packet(&mut out, 1_700_000_001_000_002_999, &[0xd1, 0xd2, 0xd3]);
        #[rustfmt::skip]
        assert_eq!(out, [
            0xa5,
            0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
            0x01, 0xf1, 0x53, 0x65, 2, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 0xd1, 0xd2, 0xd3,
        ]);
        assert!(can_go_on(&out[1..=HEADER_LEN]));
        assert!(!can_go_on(&out[1..HEADER_LEN]) && !can_go_on(&out));
        let mut header: [u8; PACKET_HEADER_LEN] = out[25..41].try_into().unwrap();
        assert_eq!(packet_len(&header), Some(16 + 3));
        header[10] = 0xff;
        assert_eq!(packet_len(&header), None);
    }
}

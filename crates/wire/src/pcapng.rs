//! Capture files: the blocks of pcapng (draft-ietf-opsawg-pcapng) that a trace of one interface
//! needs.
//!
//! A file is [`section_header`], one [`interface`] for each NIC, then any number of [`packet`]s.
//! Little-endian, times in nanoseconds, Ethernet frames without FCS. Each function appends one
//! whole block.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USER_APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TIME_RESOLUTION: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_OSDROP: u16 = 7;

const LINK_TYPE_ETHERNET: u16 = 1;

/// Which way a frame went, as the interface that is traced sees it (epb_flags, bits 0 and 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The interface received it.
    Inbound,
    /// The interface sent it.
    Outbound,
}

/// One frame of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketBlock<'a> {
    /// Which interface, in the order their blocks were written, from 0.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the whole frame.
    pub frame_len: u32,
    /// The part of the frame that was captured.
    pub data: &'a [u8],
    /// Which way it went.
    pub direction: Option<Direction>,
    /// A remark, such as the reason for a drop.
    pub comment: Option<&'a str>,
}

/// Begins a section; `application` is the program that writes it.
pub fn section_header(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        put32(out, 0x1a2b_3c4d); // byte order
        put16(out, 1); // version 1.0
        put16(out, 0);
        out.extend_from_slice(&u64::MAX.to_le_bytes()); // section length: not said
        option(out, SHB_USER_APPLICATION, application.as_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Describes an interface. `snap_len` is the most bytes of a frame that are captured, 0 for all.
pub fn interface(out: &mut Vec<u8>, name: &str, snap_len: u32) {
    block(out, INTERFACE, |out| {
        put16(out, LINK_TYPE_ETHERNET);
        put16(out, 0);
        put32(out, snap_len);
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TIME_RESOLUTION, &[9]); // 10^-9 s
        option(out, OPT_END, &[]);
    });
}

/// Records a frame.
pub fn packet(out: &mut Vec<u8>, packet: &PacketBlock<'_>) {
    block(out, ENHANCED_PACKET, |out| {
        put32(out, packet.interface);
        put32(out, (packet.time_ns >> 32) as u32);
        put32(out, packet.time_ns as u32);
        put32(out, packet.data.len() as u32);
        put32(out, packet.frame_len);
        out.extend_from_slice(packet.data);
        pad(out);
        if let Some(direction) = packet.direction {
            let flags: u32 = match direction {
                Direction::Inbound => 1,
                Direction::Outbound => 2,
            };
            option(out, EPB_FLAGS, &flags.to_le_bytes());
        }
        if let Some(comment) = packet.comment {
            option(out, OPT_COMMENT, comment.as_bytes());
        }
        if packet.direction.is_some() || packet.comment.is_some() {
            option(out, OPT_END, &[]);
        }
    });
}

/// Says how many frames of an interface were to be recorded so far, and how many of them are
/// missing: an interface statistics block (section 4.6), `isb_ifrecv` and `isb_osdrop`.
pub fn statistics(out: &mut Vec<u8>, interface: u32, time_ns: u64, offered: u64, lost: u64) {
    block(out, INTERFACE_STATISTICS, |out| {
        put32(out, interface);
        put32(out, (time_ns >> 32) as u32);
        put32(out, time_ns as u32);
        option(out, ISB_IFRECV, &offered.to_le_bytes());
        option(out, ISB_OSDROP, &lost.to_le_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Appends a block: type, length, body, length again. Bodies are multiples of four bytes.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    // Padding counts from the start of a block, so blocks are made on their own.
    let mut made = Vec::with_capacity(64);
    body(&mut made);
    let len = (made.len() + 12) as u32;
    put32(out, kind);
    put32(out, len);
    out.extend_from_slice(&made);
    put32(out, len);
}

/// Appends an option, its value cut to what its length field can say.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(0xffff)];
    put16(out, code);
    put16(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_header_golden_bytes() {
        let mut out = vec![0xa5];
        section_header(&mut out, "butterfly");
        #[rustfmt::skip]
        assert_eq!(out, [
            0xa5,
            0x0a, 0x0d, 0x0d, 0x0a, 48, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            4, 0, 9, 0, b'b', b'u', b't', b't', b'e', b'r', b'f', b'l', b'y', 0, 0, 0,
            0, 0, 0, 0, 48, 0, 0, 0,
        ]);
    }

    #[test]
    fn interface_golden_bytes() {
        let mut out = Vec::new();
        interface(&mut out, "vm1", 256);
        #[rustfmt::skip]
        assert_eq!(out, [
            1, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0,
            2, 0, 3, 0, b'v', b'm', b'1', 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0,
            40, 0, 0, 0,
        ]);
    }

    #[test]
    fn statistics_golden_bytes() {
        let mut out = Vec::new();
        statistics(&mut out, 1, 0x0102_0304_0506_0708, 9, 2);
        #[rustfmt::skip]
        assert_eq!(out, [
            5, 0, 0, 0, 52, 0, 0, 0, 1, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5,
            4, 0, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 52, 0, 0, 0,
        ]);
    }

    #[test]
    fn packet_golden_bytes() {
        let mut out = vec![0xa5; 3];
        let block = PacketBlock {
            interface: 2,
            time_ns: 0x0102_0304_0506_0708,
            frame_len: 1514,
            data: &[0xd1, 0xd2, 0xd3, 0xd4, 0xd5],
            direction: Some(Direction::Outbound),
            comment: Some("drop!"),
        };
        packet(&mut out, &block);
        #[rustfmt::skip]
        assert_eq!(out, [
            0xa5, 0xa5, 0xa5,
            6, 0, 0, 0, 64, 0, 0, 0, 2, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 5, 0, 0, 0, 0xea, 5, 0, 0,
            0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0, 0, 0,
            2, 0, 4, 0, 2, 0, 0, 0, 1, 0, 5, 0, b'd', b'r', b'o', b'p', b'!', 0, 0, 0, 0, 0, 0, 0,
            64, 0, 0, 0,
        ]);
        let mut plain = Vec::new();
        packet(
            &mut plain,
            &PacketBlock {
                direction: None,
                comment: None,
                data: &[1, 2, 3, 4],
                ..block
            },
        );
        #[rustfmt::skip]
        assert_eq!(plain, [
            6, 0, 0, 0, 36, 0, 0, 0, 2, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 4, 0, 0, 0, 0xea, 5, 0, 0,
            1, 2, 3, 4, 36, 0, 0, 0,
        ]);
    }
}

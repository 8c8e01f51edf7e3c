//! ERSPAN type II (draft-foschiano-erspan, section 4.2): a mirrored frame in GRE, as collectors
//! take it: version 1 of the header, protocol 0x88BE, with GRE's sequence number (RFC 2890).

/// GRE with a sequence number, and ERSPAN's header behind it.
pub const HEADER_LEN: usize = 16;
/// A session's number is not above this: it has ten bits.
pub const SESSION_MAX: u16 = 1023;

/// GRE: a sequence number is there (RFC 2890, section 2).
const GRE_SEQUENCE: u16 = 0x1000;
const PROTOCOL: u16 = 0x88be;
const VERSION: u16 = 1 << 12;
/// Frames keep their own 802.1Q tags.
const TAGS_KEPT: u16 = 3 << 11;
const TRUNCATED: u16 = 1 << 10;

/// What is in front of a mirrored frame, behind the outer IP header. `index` has 20 bits, for the
/// sender to say where the frame was.
pub fn header(session: u16, sequence: u32, is_cut: bool, index: u32) -> [u8; HEADER_LEN] {
    let cut = if is_cut { TRUNCATED } else { 0 };
    let mut header = [0; HEADER_LEN];
    header[0..2].copy_from_slice(&GRE_SEQUENCE.to_be_bytes());
    header[2..4].copy_from_slice(&PROTOCOL.to_be_bytes());
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    header[8..10].copy_from_slice(&VERSION.to_be_bytes());
    let session = TAGS_KEPT | cut | (session & SESSION_MAX);
    header[10..12].copy_from_slice(&session.to_be_bytes());
    header[12..16].copy_from_slice(&(index & 0xf_ffff).to_be_bytes());
    header
}

/// The session of a packet's bytes behind the outer IP header, if they are what [`header`] makes.
pub fn session(gre: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_be_bytes(gre.get(at..at + 2)?.try_into().ok()?));
    let is_ours = word(0)? == GRE_SEQUENCE && word(2)? == PROTOCOL && word(8)? == VERSION;
    Some(word(10)? & SESSION_MAX).filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_drafts() {
        assert_eq!(
            header(0x155, 0x0102_0304, false, 0xabcde),
            [
                0x10, 0x00, 0x88, 0xbe, 1, 2, 3, 4, 0x10, 0x00, 0x19, 0x55, 0x00, 0x0a, 0xbc, 0xde
            ]
        );
        assert_eq!(session(&header(0x155, 1, true, 0)), Some(0x155));
        assert_eq!(session(&header(1, 1, true, 0)[..11]), None);
        assert_eq!(session(&[0; HEADER_LEN]), None);
        // Bits that are not theirs stay as they are.
        let cut = header(0xffff, 0, true, u32::MAX);
        assert_eq!(cut[8..], [0x10, 0x00, 0x1f, 0xff, 0x00, 0x0f, 0xff, 0xff]);
    }
}

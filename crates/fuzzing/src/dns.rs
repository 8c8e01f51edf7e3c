//! Target `dns`: what a server answers to a health check by DNS.
//!
//! Promise: a server is well only by an answer to the very query that was sent, whose code says
//! that the name is there or is not; anything else is a sentence.
//!
//! Input: the answer.

use health::probe::dns_answer;

/// The query, with recursion: example.org A IN.
pub const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";

/// Judges an answer.
pub fn dns(data: &[u8]) {
    match dns_answer(QUERY, data) {
        Ok(()) => {
            // RFC 1035, section 4.1.1: the id, QR, and the code in the last four bits.
            let &[id0, id1, flags, code, ..] = data else {
                panic!("{} bytes are an answer", data.len());
            };
            assert_eq!([id0, id1], QUERY[..2], "it is another query's");
            assert_ne!(flags & 0x80, 0, "a query is taken for an answer");
            assert!(matches!(code & 0xf, 0 | 3), "code {} is well", code & 0xf);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

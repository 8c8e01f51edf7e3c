//! Target `dns`: what a server answers to a health check by DNS.
//!
//! Promise: a server is well only by an answer to the very query that was sent, whose code says
//! that the name is there or is not; anything else is a sentence.
//!
//! Input: the answer.

use health::probe::dns_answer;

/// The number of the query.
pub const ID: u16 = 0x1234;

/// Judges an answer.
pub fn dns(data: &[u8]) {
    match dns_answer(ID, data) {
        Ok(()) => {
            // RFC 1035, section 4.1.1: the id, QR, and the code in the last four bits.
            let &[id0, id1, flags, code, ..] = data else {
                panic!("{} bytes are an answer", data.len());
            };
            assert_eq!(u16::from_be_bytes([id0, id1]), ID, "it is another query's");
            assert_ne!(flags & 0x80, 0, "a query is taken for an answer");
            assert!(matches!(code & 0xf, 0 | 3), "code {} is well", code & 0xf);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

//! Target `v0`: requests of the v0 API, from bytes to the controller and back, with and without
//! encryption.
//!
//! Promises: every request has an answer that parses, one message for one; the configuration in
//! force can be declared again and is then nothing new; the attachments' and the data plane's
//! contracts are kept ([`world`]).
//!
//! Input: a byte (odd: encrypted), then request frames with their lengths before them. When the
//! byte is 2 or 3 modulo 4 the frames are text format, which a fuzzer finds easier to write.

use std::sync::Arc;

use api::encrypted::{Key, decrypt, encrypt};
use api::strict::{self, MalformedMessage};
use api::text_format;
use api::v0::{Encrypted, Message, Messages};
use daemon::decoders::LogControl;
use daemon::decoders::{Operations, V0};
use prost::Message as _;

use crate::input::Input;
use crate::world;

/// Requests that are carried out, one after the other, by one daemon.
const REQUESTS_MAX: usize = 16;

/// Carries out requests.
pub fn v0(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let key = (kind & 1 == 1).then(|| Key::from([7; 32]));
    // A clock that stands still: an input means the same at any time.
    let clock = || 1_800_000_000;
    let operations = Operations::new(world::controller(), LogControl::detached(), clock);
    let operations = Arc::new(operations);
    let handler = V0::new(operations.clone(), key.clone());
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let piece = input.piece();
        let request = if kind & 2 == 0 {
            piece.to_vec()
        } else {
            let text = std::str::from_utf8(piece).unwrap_or_default();
            text_format::parse(text)
                .map_or_else(|_| piece.to_vec(), |messages| messages.encode_to_vec())
        };
        match &key {
            None => clear(&handler, &request),
            Some(key) => sealed(&handler, key, &request),
        }
        world::check(&mut operations.control());
    }
}

fn clear(handler: &V0, request: &[u8]) {
    let answer = handler.answer(request).bytes;
    let asked = match strict::decode_request(request) {
        Ok(asked) => asked,
        Err(MalformedMessage::TooMany { .. }) => {
            Messages::decode(&*answer).expect("a refusal that parses");
            return;
        }
        Err(_) => {
            Message::decode(&*answer).expect("an error that parses");
            return;
        }
    };
    let answered = Messages::decode(&*answer).expect("an answer that parses");
    let expected = if asked.encrypted.is_some() {
        1
    } else {
        asked.messages.len().max(1)
    };
    assert_eq!(answered.messages.len(), expected);
    // What a client's own printer makes of both.
    let text = text_format::print(&asked);
    assert_eq!(text_format::parse(&text).as_ref(), Ok(&asked), "{text}");
}

/// The bytes once as they are, where the envelope belongs, and once properly encrypted.
fn sealed(handler: &V0, key: &Key, bytes: &[u8]) {
    assert!(
        decrypt(key, bytes).is_err(),
        "bytes that this key has encrypted, by chance"
    );
    for content in [bytes.to_vec(), encrypt_same(key, bytes)] {
        let encrypted = Encrypted {
            error: None,
            aes256cbc_sha512: Some(content),
        };
        let request = Messages {
            messages: Vec::new(),
            encrypted: Some(encrypted),
        };
        let answer = handler.answer(&request.encode_to_vec()).bytes;
        let answer =
            strict::decode_reply(&answer, strict::MESSAGES_MAX).expect("an answer that parses");
        let envelope = answer.encrypted.expect("an answer in an envelope");
        if let Some(inner) = envelope.aes256cbc_sha512 {
            decrypt(key, &inner).expect("an answer under the same key");
        }
    }
    handler.answer(bytes);
}

fn encrypt_same(key: &Key, clear: &[u8]) -> Vec<u8> {
    let bytes = encrypt(key, clear);
    assert_eq!(decrypt(key, &bytes).as_deref(), Ok(clear));
    bytes
}

//! The envelope of the v0 API: bytes in, bytes out. Parsing, versions and encryption are here; what
//! is asked for is carried out in [`requests`](super::requests).

use std::sync::Arc;

use api::encrypted::{Key, decrypt, encrypt};
use api::strict::{self, MalformedMessage};
use api::v0::encrypted::{Error as EncryptedError, error::Code};
use api::v0::proto::error::ErrorCode;
use api::v0::{Encrypted, Error, Message, MessageV0, Messages, REVISION};
use prost::Message as _;

use super::requests;
use crate::access::{Gate, Peer};
use crate::app::Operations;

/// Bytes of a reply at most: as soon as the answers are longer, no further request of the frame is
/// carried out.
const REPLY_MAX: usize = 32 << 20;

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub struct Handler {
    operations: Arc<Operations>,
    key: Option<Key>,
    gate: Gate,
}

/// A reply frame.
pub struct Answer {
    /// The frame.
    pub bytes: Vec<u8>,
    /// The daemon is to stop when the reply is out.
    pub quit: bool,
}

impl Handler {
    /// With a key, clear text is refused; without one, encrypted text is. Everybody may do
    /// everything: for whoever drives it without sockets.
    pub fn new(operations: Arc<Operations>, key: Option<Key>) -> Handler {
        Handler::behind(Gate::open(), operations, key)
    }

    /// For clients, who may do what the gate lets them.
    pub(crate) fn behind(gate: Gate, operations: Arc<Operations>, key: Option<Key>) -> Handler {
        Handler {
            operations,
            key,
            gate,
        }
    }

    /// The reply to a request frame of nobody in particular. Waits for the workers.
    pub fn answer(&self, request: &[u8]) -> Answer {
        self.answer_to(&Peer::unknown(), request)
    }

    /// The reply to a client's request frame. Waits for the workers.
    pub(crate) fn answer_to(&self, peer: &Peer, request: &[u8]) -> Answer {
        let Some(key) = &self.key else {
            let (messages, quit) = match strict::decode_request(request) {
                Err(malformed) => return clear(unreadable(&malformed)),
                Ok(messages) if messages.encrypted.is_some() => (rejected(), false),
                Ok(messages) => self.answer_messages(peer, messages.messages),
            };
            return Answer {
                bytes: messages.encode_to_vec(),
                quit,
            };
        };
        // What comes in the clear is not even decoded.
        match strict::decode_encrypted(request) {
            Err(malformed) => clear(unreadable(&malformed)),
            Ok(None) => {
                self.turn_away(peer, "it is in clear text, and there is a key");
                clear(rejected().encode_to_vec())
            }
            Ok(Some(encrypted)) => self.answer_encrypted(peer, key, encrypted),
        }
    }

    /// The reply when answering failed by a defect of ours.
    pub(crate) fn internal_error(&self) -> Answer {
        match self.key {
            Some(_) => refuse_encrypted(Code::InternalError),
            None => clear(alone(ErrorCode::InternalError).encode_to_vec()),
        }
    }

    /// What messages have to be sealed with.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Records an attempt of who has not the key.
    pub(crate) fn turn_away(&self, peer: &Peer, why: &str) {
        self.gate.turned_away("v0", peer, "connect", why);
    }

    fn answer_encrypted(&self, peer: &Peer, key: &Key, encrypted: Encrypted) -> Answer {
        let Some(bytes) = encrypted.aes256cbc_sha512 else {
            return refuse_encrypted(Code::NotSupported);
        };
        let Ok(request) = decrypt(key, &bytes) else {
            self.turn_away(peer, "it is not sealed with the key");
            return refuse_encrypted(Code::Rejected);
        };
        let (bytes, quit) = match strict::decode_request(&request) {
            Err(malformed) => (unreadable(&malformed), false),
            Ok(messages) if messages.encrypted.is_some() => (rejected().encode_to_vec(), false),
            Ok(messages) => {
                let (messages, quit) = self.answer_messages(peer, messages.messages);
                (messages.encode_to_vec(), quit)
            }
        };
        let encrypted = Encrypted {
            error: None,
            aes256cbc_sha512: Some(encrypt(key, &bytes)),
        };
        let reply = Messages {
            messages: vec![],
            encrypted: Some(encrypted),
        };
        Answer {
            bytes: reply.encode_to_vec(),
            quit,
        }
    }

    /// One for one, in order.
    fn answer_messages(&self, peer: &Peer, requests: Vec<Message>) -> (Messages, bool) {
        if requests.is_empty() {
            return (rejected(), false);
        }
        let changing = self.operations.changing();
        let (mut quit, mut length) = (false, 0);
        let mut messages = Vec::with_capacity(requests.len());
        for request in requests {
            let (mut answer, last) = match length {
                0..REPLY_MAX => self.answer_message(peer, request),
                _ => (not_answered(request), false),
            };
            let own = answer.encoded_len();
            if own > REPLY_MAX {
                answer = too_long(answer, own);
            }
            length += answer.encoded_len();
            quit |= last;
            messages.push(answer);
        }
        if let Err(why) = changing.settle() {
            // Whatever was done is undone.
            for answered in messages.iter_mut().filter_map(|one| one.message_0.as_mut()) {
                answered.response = Some(requests::refused(why.to_string()));
            }
        }
        let messages = Messages {
            messages,
            encrypted: None,
        };
        (messages, quit)
    }

    fn answer_message(&self, peer: &Peer, message: Message) -> (Message, bool) {
        let Some(message_0) = message.message_0 else {
            return (failure(ErrorCode::VersionNotManaged), false);
        };
        let message_id = message_0.message_id;
        match message_0.request {
            Some(request) => {
                let outcome = requests::carry_out(&self.operations, &self.gate, peer, request);
                (respond(outcome.response, message_id), outcome.quit)
            }
            None => {
                let echo = message_id.map(|id| MessageV0 {
                    message_id: Some(id),
                    ..Default::default()
                });
                (
                    Message {
                        message_0: echo,
                        ..failure(ErrorCode::EmptyRequest)
                    },
                    false,
                )
            }
        }
    }
}

/// A request that comes behind a reply that is full.
fn not_answered(request: Message) -> Message {
    let why = format!(
        "not carried out: the answers before it are over {REPLY_MAX} bytes, send it in another \
         frame"
    );
    let message_id = request.message_0.and_then(|message| message.message_id);
    respond(requests::refused(why), message_id)
}

/// An answer alone is over the maximum.
fn too_long(answer: Message, length: usize) -> Message {
    let why =
        format!("the answer has {length} bytes, the most is {REPLY_MAX}: ask for one by its id");
    let message_id = answer.message_0.and_then(|message| message.message_id);
    respond(requests::refused(why), message_id)
}

fn respond(response: api::v0::message_v0::Response, message_id: Option<String>) -> Message {
    let message_0 = MessageV0 {
        request: None,
        response: Some(response),
        message_id,
    };
    Message {
        revision: REVISION,
        error: None,
        message_0: Some(message_0),
    }
}

fn clear(bytes: Vec<u8>) -> Answer {
    Answer { bytes, quit: false }
}

fn failure(code: ErrorCode) -> Message {
    Message {
        revision: REVISION,
        error: Some(Error {
            code: Some(code.into()),
        }),
        message_0: None,
    }
}

/// The answer to bytes that are no request: a bare `Message` (docs/v0-contract.md, "Envelope"). One
/// that asks for too much is understood well enough to be told so.
fn unreadable(malformed: &MalformedMessage) -> Vec<u8> {
    let MalformedMessage::TooMany { .. } = malformed else {
        return failure(ErrorCode::ParseError).encode_to_vec();
    };
    let answer = Message {
        error: failure(ErrorCode::Rejected).error,
        ..respond(requests::refused(malformed.to_string()), None)
    };
    Messages {
        messages: vec![answer],
        encrypted: None,
    }
    .encode_to_vec()
}

fn rejected() -> Messages {
    alone(ErrorCode::Rejected)
}

fn alone(code: ErrorCode) -> Messages {
    Messages {
        messages: vec![failure(code)],
        encrypted: None,
    }
}

fn refuse_encrypted(code: Code) -> Answer {
    let error = EncryptedError {
        code: Some(code.into()),
    };
    let encrypted = Encrypted {
        error: Some(error),
        aes256cbc_sha512: None,
    };
    clear(
        Messages {
            messages: vec![],
            encrypted: Some(encrypted),
        }
        .encode_to_vec(),
    )
}

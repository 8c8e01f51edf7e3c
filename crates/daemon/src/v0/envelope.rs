//! The envelope of the v0 API, as the [reader](crate::reader) has it: what comes is decrypted,
//! decoded strictly and written again by our own encoder, so that the daemon is given nothing that
//! a stranger has written; what goes is encrypted.

use api::encrypted::{Key, decrypt, encrypt};
use api::strict::{self, MalformedMessage};
use api::v0::encrypted::{Error as EncryptedError, error::Code};
use api::v0::proto::error::ErrorCode;
use api::v0::{Encrypted, Error, Message, MessageV0, Messages, REVISION, message_v0};
use prost::Message as _;

use super::requests::refused;

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Envelope {
    key: Option<Key>,
}

/// What is in a request frame.
pub enum Opened {
    /// `Messages`, without encryption.
    Request(Vec<u8>),
    /// Nothing that could be carried out: the reply frame.
    Answered(Vec<u8>),
    /// The client has not the key: the reply frame, and a sentence that says what it did.
    Refused(Vec<u8>, &'static str),
}

impl Envelope {
    /// With a key, clear text is refused; without one, encrypted text is.
    pub fn new(key: Option<Key>) -> Envelope {
        Envelope { key }
    }

    /// What messages have to be sealed with.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Takes a request frame out of it.
    pub fn open(&self, frame: &[u8]) -> Opened {
        let Some(key) = &self.key else {
            return match request(frame) {
                Ok(request) => Opened::Request(request),
                Err(answer) => Opened::Answered(answer),
            };
        };
        // What comes in the clear is not even decoded.
        match strict::decode_encrypted(frame) {
            Err(malformed) => Opened::Answered(unreadable(&malformed)),
            Ok(None) => {
                let why = "it is in clear text, and there is a key";
                Opened::Refused(alone(ErrorCode::Rejected), why)
            }
            Ok(Some(encrypted)) => {
                let Some(bytes) = encrypted.aes256cbc_sha512 else {
                    return Opened::Answered(refuse_encrypted(Code::NotSupported));
                };
                let Ok(clear) = decrypt(key, &bytes) else {
                    let why = "it is not sealed with the key";
                    return Opened::Refused(refuse_encrypted(Code::Rejected), why);
                };
                match request(&clear) {
                    Ok(request) => Opened::Request(request),
                    Err(answer) => Opened::Answered(self.seal(answer)),
                }
            }
        }
    }

    /// Puts an answer, `Messages`, into it: the reply frame.
    pub fn seal(&self, answer: Vec<u8>) -> Vec<u8> {
        let Some(key) = &self.key else {
            return answer;
        };
        let encrypted = Encrypted {
            error: None,
            aes256cbc_sha512: Some(encrypt(key, &answer)),
        };
        let reply = Messages {
            messages: vec![],
            encrypted: Some(encrypted),
        };
        reply.encode_to_vec()
    }

    /// The reply frame when answering failed by a defect of ours.
    pub fn internal_error(&self) -> Vec<u8> {
        match self.key {
            Some(_) => refuse_encrypted(Code::InternalError),
            None => alone(ErrorCode::InternalError),
        }
    }
}

/// The request that these bytes are, written again; or the answer to bytes that are none.
fn request(clear: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    match strict::decode_request(clear) {
        Err(malformed) => Err(unreadable(&malformed)),
        Ok(messages) if messages.encrypted.is_some() => Err(alone(ErrorCode::Rejected)),
        Ok(messages) => Ok(messages.encode_to_vec()),
    }
}

/// An error alone, as an answer.
pub fn failure(code: ErrorCode) -> Message {
    Message {
        revision: REVISION,
        error: Some(Error {
            code: Some(code.into()),
        }),
        message_0: None,
    }
}

/// A response, as an answer.
pub fn respond(response: message_v0::Response, message_id: Option<String>) -> Message {
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

/// The answer to bytes that are no request: a bare `Message` (docs/v0-contract.md, "Envelope"). One
/// that asks for too much is understood well enough to be told so.
pub fn unreadable(malformed: &MalformedMessage) -> Vec<u8> {
    let MalformedMessage::TooMany { .. } = malformed else {
        return failure(ErrorCode::ParseError).encode_to_vec();
    };
    let answer = Message {
        error: failure(ErrorCode::Rejected).error,
        ..respond(refused(malformed.to_string()), None)
    };
    Messages {
        messages: vec![answer],
        encrypted: None,
    }
    .encode_to_vec()
}

fn alone(code: ErrorCode) -> Vec<u8> {
    Messages {
        messages: vec![failure(code)],
        encrypted: None,
    }
    .encode_to_vec()
}

fn refuse_encrypted(code: Code) -> Vec<u8> {
    let error = EncryptedError {
        code: Some(code.into()),
    };
    let encrypted = Encrypted {
        error: Some(error),
        aes256cbc_sha512: None,
    };
    Messages {
        messages: vec![],
        encrypted: Some(encrypted),
    }
    .encode_to_vec()
}

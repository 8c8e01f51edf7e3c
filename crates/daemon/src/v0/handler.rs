//! The envelope of the v0 API: bytes in, bytes out. Parsing, versions and encryption are here; what is asked for is
//! carried out in [`requests`](super::requests).

use std::sync::Arc;

use api::encrypted::{Key, decrypt, encrypt};
use api::strict;
use api::v0::encrypted::{Error as EncryptedError, error::Code};
use api::v0::proto::error::ErrorCode;
use api::v0::{Encrypted, Error, Message, MessageV0, Messages};
use prost::Message as _;

use super::requests;
use crate::app::App;

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub struct Handler {
    app: Arc<App>,
    key: Option<Key>,
}

/// A reply frame.
pub struct Answer {
    pub bytes: Vec<u8>,
    /// The daemon is to stop when the reply is out.
    pub quit: bool,
}

impl Handler {
    /// With a key, clear text is refused; without one, encrypted text is.
    pub fn new(app: Arc<App>, key: Option<Key>) -> Handler {
        Handler { app, key }
    }

    /// The reply to a request frame. Waits for the workers.
    pub fn answer(&self, request: &[u8]) -> Answer {
        let Ok(messages) = strict::decode(request) else {
            return clear(parse_error());
        };
        match (messages.encrypted, &self.key) {
            (Some(encrypted), Some(key)) => self.answer_encrypted(key, encrypted),
            (Some(_), None) | (None, Some(_)) => clear(rejected().encode_to_vec()),
            (None, None) => {
                let (messages, quit) = self.answer_messages(messages.messages);
                Answer {
                    bytes: messages.encode_to_vec(),
                    quit,
                }
            }
        }
    }

    /// The reply when answering failed by a defect of ours.
    pub fn internal_error(&self) -> Answer {
        match self.key {
            Some(_) => refuse_encrypted(Code::InternalError),
            None => clear(alone(ErrorCode::InternalError).encode_to_vec()),
        }
    }

    fn answer_encrypted(&self, key: &Key, encrypted: Encrypted) -> Answer {
        let Some(bytes) = encrypted.aes256cbc_sha512 else {
            return refuse_encrypted(Code::NotSupported);
        };
        let Ok(request) = decrypt(key, &bytes) else {
            return refuse_encrypted(Code::Rejected);
        };
        let (bytes, quit) = match strict::decode(&request) {
            Err(_) => (parse_error(), false),
            Ok(messages) if messages.encrypted.is_some() => (rejected().encode_to_vec(), false),
            Ok(messages) => {
                let (messages, quit) = self.answer_messages(messages.messages);
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
    fn answer_messages(&self, requests: Vec<Message>) -> (Messages, bool) {
        if requests.is_empty() {
            return (rejected(), false);
        }
        let mut quit = false;
        let answers = requests.into_iter().map(|request| {
            let (answer, last) = self.answer_message(request);
            quit |= last;
            answer
        });
        let messages = answers.collect();
        (
            Messages {
                messages,
                encrypted: None,
            },
            quit,
        )
    }

    fn answer_message(&self, message: Message) -> (Message, bool) {
        let message_0 = match message.message_0 {
            Some(message_0) if message.revision == 0 => message_0,
            _ => return (failure(ErrorCode::VersionNotManaged), false),
        };
        let message_id = message_0.message_id;
        match message_0
            .request
            .and_then(|request| requests::carry_out(&self.app, request))
        {
            Some(outcome) => {
                let message_0 = MessageV0 {
                    request: None,
                    response: Some(outcome.response),
                    message_id,
                };
                (
                    Message {
                        revision: 0,
                        error: None,
                        message_0: Some(message_0),
                    },
                    outcome.quit,
                )
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

fn clear(bytes: Vec<u8>) -> Answer {
    Answer { bytes, quit: false }
}

fn failure(code: ErrorCode) -> Message {
    Message {
        revision: 0,
        error: Some(Error {
            code: Some(code.into()),
        }),
        message_0: None,
    }
}

/// A bare `Message`, as the contract has it.
fn parse_error() -> Vec<u8> {
    failure(ErrorCode::ParseError).encode_to_vec()
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

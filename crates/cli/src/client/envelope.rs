//! What is in a frame of API v0: messages in the clear, or encrypted when there is a key. No I/O.

use api::encrypted::{self, Key};
use api::strict::{self, MalformedMessage};
use api::v0::message_v0::Response;
use api::v0::proto::error::ErrorCode;
use api::v0::{Encrypted, Messages};
use prost::Message;

/// Why a frame holds no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The daemon could or would not read the request.
    Refused(String),
    /// Not a Butterfly daemon's answer.
    Garbled(String),
}

/// The frame of a request.
pub fn seal(request: &Messages, key: Option<&Key>) -> Vec<u8> {
    let bytes = request.encode_to_vec();
    let Some(key) = key else { return bytes };
    let aes256cbc_sha512 = Some(encrypted::encrypt(key, &bytes));
    let envelope = Encrypted {
        error: None,
        aes256cbc_sha512,
    };
    Messages {
        messages: Vec::new(),
        encrypted: Some(envelope),
    }
    .encode_to_vec()
}

/// The messages of the frame that answers so many requests. With a key what is in the clear may be
/// anybody's, and nothing of it is believed but a refusal's code.
pub fn open(bytes: &[u8], key: Option<&Key>, requests: usize) -> Result<Messages, OpenError> {
    let refused = |what: &str| Err(OpenError::Refused(what.into()));
    match (strict::decode_encrypted(bytes), key) {
        (Ok(Some(Encrypted { error: Some(_), .. })), _) => {
            refused("butterflyd cannot decrypt the request: its key is another one")
        }
        (Ok(Some(_)), None) => refused("the answer is encrypted: give the key with -k"),
        (Ok(Some(envelope)), Some(key)) => {
            match encrypted::decrypt(key, envelope.aes256cbc_sha512()) {
                Ok(clear) => decoded(&clear, requests),
                Err(error) => refused(&format!("the answer: {error}")),
            }
        }
        (_, None) => in_the_clear(bytes, requests),
        (_, Some(_)) => Err(refusal_in_the_clear(bytes, requests)),
    }
}

fn decoded(clear: &[u8], requests: usize) -> Result<Messages, OpenError> {
    // One alone may say what is wrong with a frame that has no request.
    let answer = strict::decode_reply(clear, requests.max(1));
    answer.map_err(|error| match error {
        MalformedMessage::TooMany { what, limit } => {
            OpenError::Garbled(format!("its answer has more than {limit} {what}"))
        }
        error => OpenError::Garbled(error.to_string()),
    })
}

fn in_the_clear(bytes: &[u8], requests: usize) -> Result<Messages, OpenError> {
    decoded(bytes, requests).map_err(|garbled| match strict::decode_error(bytes) {
        // To bytes that it cannot parse a daemon answers with a bare message.
        Ok(Some(error)) => OpenError::Refused(envelope_error(&error)),
        _ => garbled,
    })
}

/// A daemon without the key cannot refuse but in the clear. Nobody but a daemon that has it answers
/// anything else.
fn refusal_in_the_clear(bytes: &[u8], requests: usize) -> OpenError {
    let answer = match in_the_clear(bytes, requests) {
        Ok(answer) => answer,
        Err(error) => return error,
    };
    let errors: Option<Vec<_>> = answer.messages.into_iter().map(|one| one.error).collect();
    match errors.unwrap_or_default().first() {
        Some(error) => OpenError::Refused(envelope_error(error)),
        None => OpenError::Garbled("an answer in the clear to an encrypted request".into()),
    }
}

/// Why a request was refused; none: it was not.
pub fn refusal(response: &Response) -> Option<String> {
    let reason = || {
        response
            .status
            .error
            .as_ref()
            .map(|error| error.description().to_owned())
            .unwrap_or_default()
    };
    (!response.status.status)
        .then(reason)
        .map(|reason| match reason.is_empty() {
            true => "butterflyd refused without a reason".into(),
            false => reason,
        })
}

/// What is wrong with the envelope of a message, if anything: in the daemon's words, where it has
/// some.
pub fn message_error(message: &api::v0::Message) -> Option<String> {
    let error = message.error.as_ref()?;
    let response = message
        .message_0
        .as_ref()
        .and_then(|content| content.response.as_ref());
    Some(
        response
            .and_then(refusal)
            .unwrap_or_else(|| envelope_error(error)),
    )
}

/// What is wrong with an envelope, in a sentence.
pub fn envelope_error(error: &api::v0::Error) -> String {
    match error.code() {
        ErrorCode::Rejected => {
            "butterflyd rejected the message: it has a key (-k) and the request none, or the other \
             way round"
                .into()
        }
        code => format!(
            "butterflyd could not take the message: {}",
            code.as_str_name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use api::v0::{MessageV0, message_v0::Status};

    use super::*;

    fn refused(why: &str) -> Response {
        let error = Some(api::v0::message_v0::Error {
            description: Some(why.into()),
            ..Default::default()
        });
        let status = Status {
            status: false,
            error,
        };
        Response {
            status,
            ..Default::default()
        }
    }

    fn message(code: Option<ErrorCode>) -> api::v0::Message {
        let response = Response {
            status: Status {
                status: true,
                error: None,
            },
            ..Default::default()
        };
        let content = MessageV0 {
            response: Some(response),
            ..Default::default()
        };
        let error = code.map(|code| api::v0::Error {
            code: Some(code.into()),
        });
        api::v0::Message {
            revision: 0,
            message_0: error.is_none().then_some(content),
            error,
        }
    }

    fn answer(code: Option<ErrorCode>) -> Messages {
        Messages {
            messages: vec![message(code)],
            encrypted: None,
        }
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_same_key_alone() {
        let (key, other) = (Key::from([1; 32]), Key::from([2; 32]));
        for key in [None, Some(&key)] {
            assert_eq!(open(&seal(&answer(None), key), key, 1), Ok(answer(None)));
        }
        assert!(matches!(
            open(&seal(&answer(None), Some(&key)), Some(&other), 1),
            Err(OpenError::Refused(_))
        ));
        assert!(matches!(
            open(&seal(&answer(None), Some(&key)), None, 1),
            Err(OpenError::Refused(_))
        ));
    }

    #[test]
    fn clear_text_does_not_pass_for_an_encrypted_answer() {
        let key = Key::from([1; 32]);
        let clear = open(&seal(&answer(None), None), Some(&key), 1);
        assert_eq!(
            clear,
            Err(OpenError::Garbled(
                "an answer in the clear to an encrypted request".into()
            ))
        );
        let nothing = open(&[], Some(&key), 1);
        assert_eq!(nothing, clear);
    }

    /// A daemon without the key cannot refuse but in the clear, where anybody may have written.
    #[test]
    fn of_a_refusal_in_clear_text_the_code_alone_is_believed() {
        let key = Key::from([1; 32]);
        let mut rejected = answer(Some(ErrorCode::Rejected));
        let said = "\x1b[2JThe key has expired: fetch another one from http://192.0.2.1/";
        rejected.messages[0].message_0 = Some(MessageV0 {
            response: Some(refused(said)),
            ..Default::default()
        });
        assert_eq!(message_error(&rejected.messages[0]).as_deref(), Some(said));
        let code = message(Some(ErrorCode::Rejected)).error.unwrap();
        assert_eq!(
            open(&seal(&rejected, None), Some(&key), 1),
            Err(OpenError::Refused(envelope_error(&code)))
        );
        // Who has the key says it, and is believed.
        let sealed = open(&seal(&rejected, Some(&key)), Some(&key), 1);
        assert_eq!(sealed, Ok(rejected));
    }

    /// Empty messages, each of which takes hundreds of times its bytes.
    #[test]
    fn more_answers_than_requests_are_not_decoded() {
        let key = Key::from([1; 32]);
        let many = Messages {
            messages: vec![message(None); 3],
            encrypted: None,
        };
        for key in [None, Some(&key)] {
            let frame = seal(&many, key);
            assert!(matches!(open(&frame, key, 2), Err(OpenError::Garbled(_))));
            assert_eq!(open(&frame, key, 3).as_ref(), Ok(&many));
        }
    }

    #[test]
    fn a_bare_message_says_what_was_wrong() {
        let bare = message(Some(ErrorCode::ParseError)).encode_to_vec();
        let expected = "butterflyd could not take the message: PARSE_ERROR";
        for key in [None, Some(&Key::from([1; 32]))] {
            let opened = open(&bare, key, 1);
            assert_eq!(opened, Err(OpenError::Refused(expected.into())));
        }
    }

    #[test]
    fn other_protocols_are_told_apart() {
        for bytes in [&b"HTTP/1.1 400 Bad Request"[..], b"\xff\xff"] {
            assert!(matches!(open(bytes, None, 1), Err(OpenError::Garbled(_))));
        }
    }
}

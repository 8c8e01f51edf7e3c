//! What is in a frame of API v0: messages in the clear, or encrypted when there is a key. No I/O.

use api::encrypted::{self, Key};
use api::strict;
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

/// The messages of an answer's frame.
pub fn open(bytes: &[u8], key: Option<&Key>) -> Result<Messages, OpenError> {
    let refused = |what: &str| Err(OpenError::Refused(what.into()));
    let garbled = |what: String| OpenError::Garbled(what);
    let Ok(answer) = strict::decode(bytes) else {
        // To bytes that it cannot parse a daemon answers with a bare message.
        let bare = api::v0::Message::decode(bytes)
            .ok()
            .and_then(|message| message.error);
        return Err(match bare {
            Some(error) => OpenError::Refused(envelope_error(&error)),
            None => garbled("bytes of another protocol".into()),
        });
    };
    match (answer.encrypted, key) {
        (Some(Encrypted { error: Some(_), .. }), _) => {
            refused("butterflyd cannot decrypt the request: its key is another one")
        }
        (Some(_), None) => refused("the answer is encrypted: give the key with -k"),
        (Some(envelope), Some(key)) => match encrypted::decrypt(key, envelope.aes256cbc_sha512()) {
            Ok(clear) => strict::decode(&clear).map_err(|error| garbled(error.to_string())),
            Err(error) => refused(&format!("the answer: {error}")),
        },
        // With a key, clear text is nobody's answer but a refusal to look at what is encrypted.
        (None, Some(_))
            if answer
                .messages
                .iter()
                .any(|message| message.error.is_none()) =>
        {
            Err(garbled(
                "an answer in the clear to an encrypted request".into(),
            ))
        }
        (None, _) => Ok(Messages {
            messages: answer.messages,
            encrypted: None,
        }),
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
            assert_eq!(open(&seal(&answer(None), key), key), Ok(answer(None)));
        }
        assert!(matches!(
            open(&seal(&answer(None), Some(&key)), Some(&other)),
            Err(OpenError::Refused(_))
        ));
        assert!(matches!(
            open(&seal(&answer(None), Some(&key)), None),
            Err(OpenError::Refused(_))
        ));
    }

    #[test]
    fn clear_text_does_not_pass_for_an_encrypted_answer() {
        let key = Key::from([1; 32]);
        let clear = open(&seal(&answer(None), None), Some(&key));
        assert_eq!(
            clear,
            Err(OpenError::Garbled(
                "an answer in the clear to an encrypted request".into()
            ))
        );
        // A daemon without the key cannot refuse but in the clear.
        let rejected = answer(Some(ErrorCode::Rejected));
        assert_eq!(open(&seal(&rejected, None), Some(&key)), Ok(rejected));
    }

    #[test]
    fn a_bare_message_says_what_was_wrong() {
        let bare = message(Some(ErrorCode::ParseError)).encode_to_vec();
        let expected = "butterflyd could not take the message: PARSE_ERROR";
        assert_eq!(open(&bare, None), Err(OpenError::Refused(expected.into())));
    }

    #[test]
    fn other_protocols_are_told_apart() {
        for bytes in [&b"HTTP/1.1 400 Bad Request"[..], b"\xff\xff"] {
            assert_eq!(
                open(bytes, None),
                Err(OpenError::Garbled("bytes of another protocol".into()))
            );
        }
    }
}

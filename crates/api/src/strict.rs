//! Decoding v0 bytes as strictly as the original's clients expect.
//!
//! proto2 knows required fields, and a message without one does not parse. prost fills them in instead, so
//! the bytes are looked at once more, through the descriptors.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value,
};

use crate::v0::{DESCRIPTORS, Messages};

/// The v0 files' descriptors.
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("the build wrote a descriptor set"));

/// Why bytes or text are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// The wire format is broken.
    #[error("not a protobuf message: {0}")]
    Wire(String),
    /// The text format is broken.
    #[error("{0}")]
    Text(String),
    /// A required field is missing, or holds an enum value that does not exist.
    #[error("the required field {0} is missing or has an unknown value")]
    Required(String),
}

/// The descriptor of a v0 message, by its full name.
pub(crate) fn descriptor(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(name).expect("a message of the v0 files")
}

/// Parses a request or reply frame; refuses one that lacks a required field anywhere.
pub fn decode(bytes: &[u8]) -> Result<Messages, MalformedMessage> {
    let wire = |e: prost::DecodeError| MalformedMessage::Wire(e.to_string());
    check(&DynamicMessage::decode(descriptor("proto.Messages"), bytes).map_err(wire)?)?;
    Messages::decode(bytes).map_err(wire)
}

/// Every required field, at every depth, is there.
pub(crate) fn check(message: &DynamicMessage) -> Result<(), MalformedMessage> {
    for field in message.descriptor().fields() {
        let present = message.has_field(&field) && known(&field.kind(), &message.get_field(&field));
        if field.cardinality() == Cardinality::Required && !present {
            return Err(MalformedMessage::Required(field.full_name().to_owned()));
        }
    }
    for (_, value) in message.fields() {
        match value {
            Value::Message(inner) => check(inner)?,
            Value::List(items) => items.iter().filter_map(Value::as_message).try_for_each(check)?,
            _ => (),
        }
    }
    Ok(())
}

/// A closed enum's unknown number counts as absent (protobuf language guide, "Enum Behavior").
fn known(kind: &Kind, value: &Value) -> bool {
    match (kind, value) {
        (Kind::Enum(kind), Value::EnumNumber(number)) => kind.get_value(*number).is_some(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v0::message_v0::{Request, SgRuleDelReq};
    use crate::v0::{Message, MessageV0};

    #[test]
    fn what_prost_writes_is_accepted() {
        let request = Request {
            nic_list: Some(true),
            ..Default::default()
        };
        let message = MessageV0 {
            request: Some(request),
            ..Default::default()
        };
        let messages = Messages {
            messages: vec![Message {
                revision: 0,
                error: None,
                message_0: Some(message),
            }],
            encrypted: None,
        };
        assert_eq!(decode(&messages.encode_to_vec()), Ok(messages));
        assert_eq!(decode(&[]), Ok(Messages::default()));
    }

    #[test]
    fn a_missing_required_field_is_named_with_its_message() {
        // messages { message_0 { request { nic_add { id: "a" } } } }, with a revision and without.
        let inner = [0x1a, 0x07, 0x0a, 0x05, 0x0a, 0x03, 0x0a, 0x01, b'a'];
        let with_revision = [&[0x0a, 11, 0x08, 0x00][..], &inner].concat();
        assert_eq!(
            decode(&with_revision),
            Err(MalformedMessage::Required("MessageV0.Nic.mac".into()))
        );
        let without = [&[0x0a, 9][..], &inner].concat();
        assert_eq!(
            decode(&without),
            Err(MalformedMessage::Required("proto.Message.revision".into()))
        );
    }

    #[test]
    fn an_unknown_value_of_a_required_enum_is_refused() {
        let rule = crate::v0::message_v0::Rule {
            direction: 7,
            protocol: 6,
            ..Default::default()
        };
        let request = Request {
            sg_rule_del: Some(SgRuleDelReq {
                sg_id: "a".into(),
                rule,
            }),
            ..Default::default()
        };
        let message = MessageV0 {
            request: Some(request),
            ..Default::default()
        };
        let messages = Messages {
            messages: vec![Message {
                revision: 0,
                error: None,
                message_0: Some(message),
            }],
            encrypted: None,
        };
        let error = decode(&messages.encode_to_vec());
        assert_eq!(
            error,
            Err(MalformedMessage::Required("MessageV0.Rule.direction".into()))
        );
    }

    #[test]
    fn garbage_is_no_message() {
        assert!(matches!(decode(b"hello there"), Err(MalformedMessage::Wire(_))));
        assert!(matches!(decode(&[0x0a, 0xff]), Err(MalformedMessage::Wire(_))));
    }
}

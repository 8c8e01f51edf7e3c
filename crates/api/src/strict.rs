//! Decoding v0 bytes as strictly as the original's clients expect, and never into more memory than
//! is wanted.
//!
//! proto2 knows required fields, and a message without one does not parse. prost fills them in
//! instead. And two bytes of an empty message become hundreds in memory. So the bytes are walked
//! once before anything is decoded, through the descriptors and without allocating: every required
//! field must be there, and there is a maximum of messages and values, of a
//! [request](decode_request) as of a [reply](decode_reply).

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value,
};

use crate::v0::{DESCRIPTORS, Encrypted, Error, Messages};

/// Requests in one frame at most.
pub const MESSAGES_MAX: usize = 16_384;
/// Texts, byte strings and messages inside messages, all together, in one frame at most: some
/// 150,000 rules.
pub const VALUES_MAX: usize = 500_000;
/// The same of a reply: the million rules that a daemon holds have some three million.
pub const REPLY_VALUES_MAX: usize = 4_000_000;

/// The v0 files' descriptors.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS).expect("the build wrote a descriptor set")
});
static MESSAGES: LazyLock<MessageDescriptor> = LazyLock::new(|| descriptor("proto.Messages"));

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
    /// More than one frame may ask for.
    #[error("one frame has more than {limit} {what}: send several")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The most that is allowed.
        limit: usize,
    },
}

/// The descriptor of a v0 message, by its full name.
pub(crate) fn descriptor(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(name)
        .expect("a message of the v0 files")
}

/// Parses the reply to so many requests: refuses one that lacks a required field anywhere, and
/// before it takes memory one with more messages than that, or more than [`REPLY_VALUES_MAX`].
pub fn decode_reply(bytes: &[u8], requests: usize) -> Result<Messages, MalformedMessage> {
    decode_within(bytes, requests, REPLY_VALUES_MAX)
}

/// Parses a request frame: as [`decode_reply`], with at most [`MESSAGES_MAX`] and [`VALUES_MAX`].
pub fn decode_request(bytes: &[u8]) -> Result<Messages, MalformedMessage> {
    decode_within(bytes, MESSAGES_MAX, VALUES_MAX)
}

fn decode_within(
    bytes: &[u8],
    messages: usize,
    values: usize,
) -> Result<Messages, MalformedMessage> {
    let mut walk = Walk {
        messages: Left::of("messages", messages),
        values: Left::of("values", values),
    };
    walk.message(&MESSAGES, bytes)?;
    Messages::decode(bytes).map_err(wire)
}

/// The `encrypted` field of a frame, and nothing else of it: what else is there takes no memory.
pub fn decode_encrypted(bytes: &[u8]) -> Result<Option<Encrypted>, MalformedMessage> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Outline {
        #[prost(message, optional, tag = "2")]
        encrypted: Option<Encrypted>,
    }
    Ok(Outline::decode(bytes).map_err(wire)?.encrypted)
}

/// The error of a bare `Message`, and nothing else of it.
pub fn decode_error(bytes: &[u8]) -> Result<Option<Error>, MalformedMessage> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Outline {
        #[prost(message, optional, tag = "2")]
        error: Option<Error>,
    }
    Ok(Outline::decode(bytes).map_err(wire)?.error)
}

fn wire(error: prost::DecodeError) -> MalformedMessage {
    MalformedMessage::Wire(error.to_string())
}

/// What is still allowed on a walk over the wire format of a message (protobuf.dev, "Encoding").
struct Walk {
    messages: Left,
    values: Left,
}

/// What is left of a maximum.
struct Left {
    what: &'static str,
    limit: usize,
    left: usize,
}

impl Left {
    fn of(what: &'static str, limit: usize) -> Left {
        let left = limit;
        Left { what, limit, left }
    }

    fn charge(&mut self) -> Result<(), MalformedMessage> {
        let (what, limit) = (self.what, self.limit);
        self.left = self
            .left
            .checked_sub(1)
            .ok_or(MalformedMessage::TooMany { what, limit })?;
        Ok(())
    }
}

impl Walk {
    /// A message that comes in two parts, which protobuf would merge, must have its required fields
    /// in both.
    fn message(
        &mut self,
        kind: &MessageDescriptor,
        mut bytes: &[u8],
    ) -> Result<(), MalformedMessage> {
        // Field numbers of the v0 files are below 64.
        let mut seen = 0u64;
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| broken("a field without a number"))?;
            let value = match key & 7 {
                0 => Found::Number(varint(&mut bytes)?),
                1 => Found::Bytes(take(&mut bytes, 8)?),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).unwrap_or(usize::MAX);
                    Found::Bytes(take(&mut bytes, length)?)
                }
                5 => Found::Bytes(take(&mut bytes, 4)?),
                // Groups: the v0 files have none.
                _ => return Err(broken("a wire type that the protocol does not have")),
            };
            let Some(field) = kind.get_field(number) else {
                continue;
            };
            let known = match (field.kind(), &value) {
                (Kind::Message(inner), Found::Bytes(inside)) => {
                    match inner.full_name() {
                        "proto.Message" => self.messages.charge()?,
                        _ => self.values.charge()?,
                    }
                    self.message(&inner, inside)?;
                    true
                }
                (Kind::String | Kind::Bytes, Found::Bytes(_)) => {
                    self.values.charge()?;
                    true
                }
                // A closed enum's unknown number counts as absent (protobuf language guide, "Enum
                // Behavior").
                (Kind::Enum(values), Found::Number(number)) => {
                    values.get_value(*number as i32).is_some()
                }
                _ => true,
            };
            // Of a field that comes twice the last one counts, also where that is as good as none.
            match known {
                _ if number >= 64 => (),
                true => seen |= 1 << number,
                false => seen &= !(1 << number),
            }
        }
        let is_missing = |field: &prost_reflect::FieldDescriptor| {
            field.cardinality() == Cardinality::Required && seen >> field.number() & 1 == 0
        };
        match kind.fields().find(is_missing) {
            Some(field) => Err(MalformedMessage::Required(field.full_name().to_owned())),
            None => Ok(()),
        }
    }
}

/// A field's value, not decoded.
enum Found<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> Result<u64, MalformedMessage> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes
            .split_first()
            .ok_or_else(|| broken("a number is cut short"))?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(broken("a number is longer than 64 bits"))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], MalformedMessage> {
    let (taken, rest) = bytes
        .split_at_checked(length)
        .ok_or_else(|| broken("a value is cut short"))?;
    *bytes = rest;
    Ok(taken)
}

fn broken(why: &str) -> MalformedMessage {
    MalformedMessage::Wire(why.to_owned())
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
            Value::List(items) => items
                .iter()
                .filter_map(Value::as_message)
                .try_for_each(check)?,
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

    fn decode(bytes: &[u8]) -> Result<Messages, MalformedMessage> {
        decode_reply(bytes, MESSAGES_MAX)
    }

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
        // messages { revision: 0 message_0 { request { nic_add { id: "a" } } } }
        let inner = [0x1a, 0x07, 0x0a, 0x05, 0x0a, 0x03, 0x0a, 0x01, b'a'];
        let with_revision = [&[0x0a, 11, 0x08, 0x00][..], &inner].concat();
        assert_eq!(
            decode(&with_revision),
            Err(MalformedMessage::Required("MessageV0.Nic.mac".into()))
        );
        // messages { message_0 { request { nic_del: "a" } } }
        let inner = [0x1a, 0x05, 0x0a, 0x03, 0x1a, 0x01, b'a'];
        let without = [&[0x0a, 7][..], &inner].concat();
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
            Err(MalformedMessage::Required(
                "MessageV0.Rule.direction".into()
            ))
        );
    }

    /// A rule whose direction is INBOUND, and behind that something else, or the other way around.
    #[test]
    fn of_a_field_that_comes_twice_the_last_one_counts() {
        const SG_RULE_DEL: u8 = 12;
        let inside = |number: u8, bytes: &[u8]| {
            let head = [number << 3 | 2, bytes.len() as u8];
            [&head[..], bytes].concat()
        };
        let decoded = |rule: &[u8]| {
            let deletion = [inside(1, b"a"), inside(2, rule)].concat();
            let request = inside(1, &inside(SG_RULE_DEL, &deletion));
            let message = [&[0x08, 0][..], &inside(3, &request)].concat();
            decode(&inside(1, &message))
        };
        assert_eq!(
            decoded(&[0x08, 0, 0x10, 6, 0x08, 80]),
            Err(MalformedMessage::Required(
                "MessageV0.Rule.direction".into()
            ))
        );
        assert!(decoded(&[0x08, 80, 0x10, 6, 0x08, 0]).is_ok());
    }

    /// 4 MB of empty messages, of empty rules in a group and of empty addresses of a NIC: each is
    /// refused before anything of it is decoded. What that saves is measured on a daemon
    /// (`crates/daemon/tests/original.rs`).
    #[test]
    fn what_would_take_much_memory_is_refused_before_it_is_decoded() {
        let inside = |number: u8, bytes: &[u8]| {
            let mut out = vec![number << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut out);
            out.extend_from_slice(bytes);
            out
        };
        let request = |bytes: &[u8]| {
            let message_0 = inside(3, &inside(1, bytes));
            inside(1, &[&[0x08, 6][..], &message_0].concat())
        };
        let messages = [0x0a, 2, 0x08, 6].repeat(1_000_000);
        let refused = |what, limit| Err(MalformedMessage::TooMany { what, limit });
        assert_eq!(decode_request(&messages), refused("messages", MESSAGES_MAX));
        let rules = [0x1a, 4, 0x08, 0, 0x10, 6].repeat(700_000);
        let sg = [&[0x0a, 1, b'a'][..], &rules].concat();
        assert_eq!(
            decode_request(&request(&inside(8, &sg))),
            refused("values", VALUES_MAX)
        );
        let nic = [
            &[0x0a, 0, 0x12, 0, 0x18, 0][..],
            &[0x22, 0].repeat(2_000_000),
        ]
        .concat();
        assert_eq!(
            decode_request(&request(&inside(1, &nic))),
            refused("values", VALUES_MAX)
        );
        // A reply has no more messages than were asked for, and may have more values.
        assert_eq!(decode_reply(&messages, 7), refused("messages", 7));
        assert!(decode_reply(&request(&inside(1, &nic)), 1).is_ok());
        let more = [&nic[..], &[0x22, 0].repeat(2_000_000)].concat();
        assert_eq!(
            decode_reply(&request(&inside(1, &more)), 1),
            refused("values", REPLY_VALUES_MAX)
        );
        // What is not the encrypted part is not looked at.
        let sealed = [messages, inside(2, &inside(2, b"secret"))].concat();
        let part = decode_encrypted(&sealed).unwrap().unwrap();
        assert_eq!(part.aes256cbc_sha512(), b"secret");
        let bare = [request(&inside(1, &nic)), inside(2, &[0x08, 3])].concat();
        let error = decode_error(&bare).unwrap().unwrap();
        assert_eq!(error.code, Some(3));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_an_answer_and_no_panic() {
        let frame = [
            &[0x0a, 0x18, 0x08, 6, 0x1a, 0x14, 0x0a, 0x12, 0x5a, 0x10][..],
            &[0x0a, 1, b'a', 0x12, 0x0b, 0x08, 0, 0x10, 1],
            &[0x2a, 5, 0x0a, 1, b'b', 0x10, 1],
        ]
        .concat();
        assert!(decode_request(&frame).is_ok());
        for at in 0..frame.len() {
            let _ = decode_request(&frame[..at]);
            for bit in 0..8 {
                let mut other = frame.clone();
                other[at] ^= 1 << bit;
                // What the walk lets pass is what prost and prost-reflect take, field for field.
                if let Ok(messages) = decode_request(&other) {
                    assert!(
                        check(
                            &DynamicMessage::decode(descriptor("proto.Messages"), &other[..])
                                .unwrap()
                        )
                        .is_ok()
                    );
                    let _ = messages;
                }
            }
        }
    }

    #[test]
    fn garbage_is_no_message() {
        assert!(matches!(
            decode(b"hello there"),
            Err(MalformedMessage::Wire(_))
        ));
        assert!(matches!(
            decode(&[0x0a, 0xff]),
            Err(MalformedMessage::Wire(_))
        ));
    }
}

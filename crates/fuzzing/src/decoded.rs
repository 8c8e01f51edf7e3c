//! Target `decoded`: what a v1 message takes in memory, told from its bytes before it is decoded.
//!
//! Promises: what prost writes is gone over to its end; as much is told as decoding makes of it, at
//! least; and nothing else is told of bytes that come in pieces.
//!
//! Input: which message, how long pieces are, and its bytes.

use std::sync::LazyLock;

use api::decoded::{Message, Walk, memory};
use api::v1;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};

use crate::input::Input;

/// More than any input becomes in memory, and less: both verdicts.
const LIMITS: [usize; 2] = [usize::MAX, 4096];

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(v1::DESCRIPTORS).expect("the descriptors of v1"));

/// Its name, and what prost makes of bytes, written again.
type Known = (&'static str, fn(&[u8]) -> Option<(Vec<u8>, usize)>);

macro_rules! known {
    ($($name:ident)*) => {
        [$((concat!("butterfly.v1.", stringify!($name)), again::<v1::$name>)),*]
    };
}

/// With every kind of field there is, and lists in lists.
const KNOWN: [Known; 8] = known!(
    Config PutNicRequest UpdateNicRequest ListFlowsRequest TraceFramesRequest SetBindingsRequest
    ExportedConnections ApplyBalancerRequest
);

/// Goes over a message.
pub fn decoded(data: &[u8]) {
    let mut input = Input::new(data);
    let (which, piece) = (usize::from(input.u8()), usize::from(input.u8()).max(1));
    let bytes = input.take(data.len());
    let (name, again) = KNOWN[which % KNOWN.len()];
    let message = Message::named(name).expect("a message of v1");
    for limit in LIMITS {
        assert_eq!(
            in_pieces(message, bytes, piece, limit),
            memory(message, bytes, limit),
            "{name} in pieces of {piece}"
        );
    }
    let Some((written, size)) = again(bytes) else {
        return;
    };
    let told = memory(message, &written, usize::MAX);
    let told = told.unwrap_or_else(|why| panic!("{name}, as prost writes it: {why}"));
    let descriptor = POOL.get_message_by_name(name).expect("a message of v1");
    let whole = DynamicMessage::decode(descriptor, &written[..]);
    let whole = whole.unwrap_or_else(|why| panic!("{name}, as prost writes it: {why}"));
    let taken = size.max(taken(&whole));
    assert!(told >= taken, "{name}: {told} is told, {taken} taken");
}

fn again<T: prost::Message + Default>(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let message = T::decode(bytes).ok()?;
    Some((message.encode_to_vec(), size_of::<T>()))
}

fn in_pieces(
    message: Message,
    bytes: &[u8],
    piece: usize,
    limit: usize,
) -> Result<usize, api::decoded::Refused> {
    let mut walk = Walk::new(message, bytes.len(), limit);
    for mut piece in bytes.chunks(piece) {
        assert!(!walk.is_done(), "it has ended before its end");
        walk.over(&mut piece)?;
        assert!(piece.is_empty(), "bytes of it are left");
    }
    Ok(walk.memory())
}

/// What a message takes at least: its fields as they stand in the struct, and what they lead to.
fn taken(message: &DynamicMessage) -> usize {
    let inline: usize = message
        .descriptor()
        .fields()
        .map(|field| inline(&field))
        .sum();
    let beyond = message.fields().map(|(_, value)| beyond(value));
    inline + beyond.sum::<usize>()
}

/// A message that is in another may be boxed, and one of several is as large as it is.
fn inline(field: &FieldDescriptor) -> usize {
    if field.is_list() {
        return size_of::<Vec<u8>>();
    }
    match (field.containing_oneof(), field.kind()) {
        (Some(_), _) | (None, Kind::Message(_)) => 0,
        (None, kind) => of_kind(&kind),
    }
}

fn of_kind(kind: &Kind) -> usize {
    match kind {
        Kind::Message(message) => least(message),
        Kind::String | Kind::Bytes => size_of::<String>(),
        Kind::Bool => 1,
        Kind::Double
        | Kind::Int64
        | Kind::Uint64
        | Kind::Sint64
        | Kind::Fixed64
        | Kind::Sfixed64 => 8,
        _ => 4,
    }
}

fn least(message: &MessageDescriptor) -> usize {
    message.fields().map(|field| inline(&field)).sum()
}

fn beyond(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Message(message) => taken(message),
        Value::List(list) => list
            .iter()
            .map(|one| match one {
                Value::Message(message) => taken(message),
                Value::String(text) => size_of::<String>() + text.len(),
                Value::Bytes(bytes) => size_of::<Vec<u8>>() + bytes.len(),
                Value::Bool(_) => 1,
                Value::I64(_) | Value::U64(_) | Value::F64(_) => 8,
                _ => 4,
            })
            .sum(),
        _ => 0,
    }
}

//! How much memory a v1 message takes once it is decoded, told from its bytes before that.
//!
//! prost decodes a message at once, and two bytes of an empty one become hundreds in memory. A
//! [`Walk`] goes over the wire format (protobuf.dev, "Encoding") as it arrives, in pieces of any
//! length, and adds up what prost will allocate; beyond a limit it ends. It allocates nothing
//! itself but a stack as deep as the schema. The sum is an upper bound: lists count with the room
//! that they grow by, and a field that comes twice counts twice. The daemon walks each request and
//! each list of connections that it is given.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind as Type, MessageDescriptor};

use crate::v1::DESCRIPTORS;

/// Bytes of a `String` or a `Vec` itself: a pointer and two lengths.
const HANDLE: usize = 24;
/// An allocation's own part, and what allocations are rounded up by (glibc, malloc(3)).
const CHUNK: usize = 16;

/// All messages of v1, told once from the descriptors.
static SHAPES: LazyLock<Shapes> = LazyLock::new(Shapes::of_v1);

/// Why bytes are not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The wire format is broken.
    #[error("not a protobuf message: {why} at byte {at}")]
    Malformed {
        /// What is wrong.
        why: &'static str,
        /// Bytes of the message up to there.
        at: usize,
    },
    /// More memory than it may have.
    #[error("{at} bytes of it take {memory} bytes of memory once decoded, {limit} are allowed")]
    TooMuch {
        /// Bytes of the message up to there.
        at: usize,
        /// What these take.
        memory: usize,
        /// The most that is allowed.
        limit: usize,
    },
}

/// A kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message(usize);

impl Message {
    /// The message by its full name, `butterfly.v1.Nic`.
    pub fn named(name: &str) -> Option<Message> {
        SHAPES.by_name.get(name).copied().map(Message)
    }

    /// What ExportNic gives.
    pub fn of_connections() -> Message {
        Message::named("butterfly.v1.ExportedConnections").expect("a message of the v1 files")
    }

    /// The request of a method, `/butterfly.v1.Butterfly/PutNic`.
    pub fn of_method(path: &str) -> Option<Message> {
        SHAPES.by_method.get(path).copied().map(Message)
    }
}

/// What a whole message takes, in bytes; an error beyond `limit`.
pub fn memory(message: Message, mut bytes: &[u8], limit: usize) -> Result<usize, Refused> {
    let mut walk = Walk::new(message, bytes.len(), limit);
    walk.over(&mut bytes)?;
    Ok(walk.memory())
}

/// The way over one message.
#[derive(Debug)]
pub struct Walk {
    /// The messages that are open, the innermost last; none at the end.
    open: Vec<Open>,
    /// Bytes behind us.
    at: usize,
    /// Bytes of a value to go over.
    skip: usize,
    /// They are numbers of a list in a row, of which each ends with a byte below 0x80.
    packed: bool,
    reading: Reading,
    /// The number that is being read, and its bits so far.
    number: u64,
    bits: u32,
    /// What is being read is the value of this field.
    field: Field,
    field_number: usize,
    memory: usize,
    limit: usize,
}

#[derive(Debug)]
struct Open {
    shape: usize,
    /// Where it ends, from the beginning of the outermost.
    end: usize,
    /// The list that the last element was for.
    list: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Key,
    Number,
    Length,
}

impl Walk {
    /// The way over a message of so many bytes.
    pub fn new(message: Message, len: usize, limit: usize) -> Walk {
        let root = Open {
            shape: message.0,
            end: len,
            list: 0,
        };
        let mut walk = Walk {
            open: vec![root],
            at: 0,
            skip: 0,
            packed: false,
            reading: Reading::Key,
            number: 0,
            bits: 0,
            field: Field::default(),
            field_number: 0,
            memory: SHAPES.all[message.0].size,
            limit,
        };
        walk.close();
        walk
    }

    /// What the bytes so far take, in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// All bytes of the message were gone over.
    pub fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Goes over the next bytes; those behind the message's end are left.
    pub fn over(&mut self, bytes: &mut &[u8]) -> Result<(), Refused> {
        while let Some(end) = self.open.last().map(|open| open.end) {
            if self.skip > 0 {
                let (skipped, rest) = bytes.split_at(self.skip.min(bytes.len()));
                *bytes = rest;
                self.skip -= skipped.len();
                if self.packed {
                    self.numbers(skipped)?;
                } else {
                    self.at += skipped.len();
                }
                if self.skip > 0 {
                    return Ok(());
                }
                self.close();
                continue;
            }
            let Some((first, rest)) = bytes.split_first() else {
                return Ok(());
            };
            *bytes = rest;
            self.at += 1;
            self.number |= u64::from(first & 0x7f) << self.bits;
            if first & 0x80 != 0 {
                self.bits += 7;
                if self.bits >= u64::BITS {
                    return Err(self.malformed("a number is longer than 64 bits"));
                }
                if self.at == end {
                    return Err(self.malformed("a number is cut short"));
                }
                continue;
            }
            self.bits = 0;
            let number = std::mem::take(&mut self.number);
            match self.reading {
                Reading::Key => self.key(number, end)?,
                Reading::Number => self.reading = Reading::Key,
                Reading::Length => self.length(number, end)?,
            }
            self.close();
        }
        Ok(())
    }

    fn key(&mut self, key: u64, end: usize) -> Result<(), Refused> {
        let Ok(key) = u32::try_from(key) else {
            return Err(self.malformed("a field's number is too large"));
        };
        let number = (key >> 3) as usize;
        if number == 0 {
            return Err(self.malformed("a field without a number"));
        }
        if self.at == end {
            return Err(self.malformed("a field without a value"));
        }
        if let Some(open) = self.open.last() {
            let fields = &SHAPES.all[open.shape].fields;
            self.field = fields.get(number).copied().unwrap_or_default();
            self.field_number = number;
        }
        match key & 7 {
            0 => {
                self.reading = Reading::Number;
                self.element()
            }
            2 => {
                self.reading = Reading::Length;
                Ok(())
            }
            1 => self.fixed(8, end),
            5 => self.fixed(4, end),
            // Groups: proto3 has none.
            _ => Err(self.malformed("a wire type that the protocol does not have")),
        }
    }

    fn fixed(&mut self, len: usize, end: usize) -> Result<(), Refused> {
        if len > end - self.at {
            return Err(self.malformed("a number is cut short"));
        }
        self.skip = len;
        self.packed = false;
        self.element()
    }

    fn length(&mut self, len: u64, end: usize) -> Result<(), Refused> {
        self.reading = Reading::Key;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > end - self.at {
            return Err(self.malformed("a value is cut short"));
        }
        match self.field.kind {
            Kind::Message(shape) => {
                self.element()?;
                let end = self.at + len;
                self.open.push(Open {
                    shape,
                    end,
                    list: 0,
                });
                return Ok(());
            }
            Kind::Bytes => {
                self.element()?;
                self.charge(allocation(len))?;
            }
            Kind::Number if self.field.element > 0 && len > 0 => self.element()?,
            Kind::Number | Kind::Unknown => (),
        }
        self.packed = self.field.element > 0 && matches!(self.field.kind, Kind::Number);
        self.skip = len;
        Ok(())
    }

    /// Charges for one more element of a list: what holds it is twice as large at most, and the
    /// first one makes room for some more (`alloc::raw_vec`).
    fn element(&mut self) -> Result<(), Refused> {
        let (element, number) = (self.field.element, self.field_number);
        if element == 0 {
            return Ok(());
        }
        let first = self.open.last().is_some_and(|open| open.list != number);
        if let Some(open) = self.open.last_mut() {
            open.list = number;
        }
        match (first, element) {
            (true, 1) => self.charge(8 + CHUNK),
            (true, 2..=1024) => self.charge(4 * element + CHUNK),
            (true, _) => self.charge(2 * element + CHUNK),
            (false, _) => self.charge(2 * element),
        }
    }

    /// Goes over bytes of numbers in a row, and charges for each at its end: where they are too
    /// much does not depend on the pieces that they come in.
    fn numbers(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        for byte in bytes {
            self.at += 1;
            if *byte < 0x80 {
                self.charge(2 * self.field.element)?;
            }
        }
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Refused> {
        self.memory = self.memory.saturating_add(bytes);
        if self.memory <= self.limit {
            return Ok(());
        }
        Err(Refused::TooMuch {
            at: self.at,
            memory: self.memory,
            limit: self.limit,
        })
    }

    /// Leaves the messages that end here.
    fn close(&mut self) {
        if self.skip > 0 || self.reading != Reading::Key {
            return;
        }
        while self.open.last().is_some_and(|open| open.end == self.at) {
            self.open.pop();
        }
    }

    fn malformed(&self, why: &'static str) -> Refused {
        Refused::Malformed { why, at: self.at }
    }
}

/// What a text or byte string takes beside its handle.
fn allocation(len: usize) -> usize {
    match len {
        0 => 0,
        _ => len.next_multiple_of(CHUNK) + CHUNK,
    }
}

/// What is known of messages.
struct Shapes {
    all: Vec<Shape>,
    by_name: HashMap<String, usize>,
    by_method: HashMap<String, usize>,
}

struct Shape {
    /// Bytes of the Rust type, at the most.
    size: usize,
    /// By their numbers.
    fields: Vec<Field>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Field {
    kind: Kind,
    /// Bytes of one element, if it is a list.
    element: usize,
}

#[derive(Debug, Clone, Copy, Default)]
enum Kind {
    /// Nothing is kept of it.
    #[default]
    Unknown,
    Number,
    Bytes,
    Message(usize),
}

impl Shapes {
    fn of_v1() -> Shapes {
        let pool = DescriptorPool::decode(DESCRIPTORS).expect("the build wrote a descriptor set");
        let mut shapes = Shapes {
            all: Vec::new(),
            by_name: HashMap::new(),
            by_method: HashMap::new(),
        };
        for message in pool.all_messages() {
            shapes.add(&message);
        }
        for service in pool.services() {
            for method in service.methods() {
                let path = format!("/{}/{}", service.full_name(), method.name());
                let request = shapes.add(&method.input());
                shapes.by_method.insert(path, request);
            }
        }
        shapes
    }

    /// No message of v1 has itself inside; a test asks for it.
    fn add(&mut self, message: &MessageDescriptor) -> usize {
        if let Some(known) = self.by_name.get(message.full_name()) {
            return *known;
        }
        let mut size = 0;
        let mut fields = Vec::new();
        for field in message.fields() {
            let (kind, value) = self.value(&field);
            let list = field.is_list() || field.is_map();
            let number = field.number() as usize;
            if fields.len() <= number {
                fields.resize(number + 1, Field::default());
            }
            fields[number] = Field {
                kind,
                element: if list { value } else { 0 },
            };
            let one_of = field.containing_oneof();
            size += match (list, kind) {
                (true, _) => HANDLE,
                // Below, with the others that it stands for.
                (false, _) if one_of.is_some_and(|one_of| !one_of.is_synthetic()) => 0,
                (false, Kind::Number) if field.supports_presence() => 2 * value,
                (false, Kind::Message(_)) => value + 8,
                (false, _) => value,
            };
        }
        for one_of in message.oneofs().filter(|one_of| !one_of.is_synthetic()) {
            let largest = one_of.fields().map(|field| self.value(&field).1).max();
            size += largest.unwrap_or(0) + 8;
        }
        let size = size.next_multiple_of(8);
        self.all.push(Shape { size, fields });
        let at = self.all.len() - 1;
        self.by_name.insert(message.full_name().to_owned(), at);
        at
    }

    /// A field's kind, and the bytes of one value.
    fn value(&mut self, field: &FieldDescriptor) -> (Kind, usize) {
        match field.kind() {
            Type::Message(message) => {
                let shape = self.add(&message);
                (Kind::Message(shape), self.all[shape].size)
            }
            Type::String | Type::Bytes => (Kind::Bytes, HANDLE),
            Type::Bool => (Kind::Number, 1),
            Type::Double
            | Type::Int64
            | Type::Uint64
            | Type::Sint64
            | Type::Fixed64
            | Type::Sfixed64 => (Kind::Number, 8),
            Type::Float
            | Type::Int32
            | Type::Uint32
            | Type::Sint32
            | Type::Fixed32
            | Type::Sfixed32
            | Type::Enum(_) => (Kind::Number, 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use prost::Message as _;

    use super::*;
    use crate::v1;

    fn named(name: &str) -> Message {
        Message::named(&format!("butterfly.v1.{name}")).unwrap()
    }

    #[test]
    fn sizes_are_those_of_the_types_or_a_little_more() {
        macro_rules! sizes {
            ($($name:ident)*) => {
                [$((stringify!($name), size_of::<v1::$name>())),*]
            };
        }
        let sizes = sizes!(
            Nic NicStatus UpdateNicRequest Veth VethRoute Mirror Limits Limit AddressPair Timeouts
            Bench Group Rule PortRange IcmpMatch Endpoint Binding BindingKey Network UplinkConfig
            Config ApplyRequest PutBindingsRequest FlowFilter ListFlowsRequest BpfInstruction
            CaptureFramesRequest TraceHeaders TraceFromHost GetTraceRequest ImportNicRequest
            ExportedConnections ExportedConnection ExportedEnd ExportedTcp Service ServiceKey
            Server HealthCheck HttpCheck DnsCheck CommandCheck BalancerConfig BalancerInterfaces
            BalancerInterface RouterConfig RouterAccessList RouterInterface Flow Trace TraceTarget
            Event Change UpdateServiceRequest UpdateServerRequest ListRoutesRequest
        );
        for (name, size) in sizes {
            let told = SHAPES.all[named(name).0].size;
            assert!(told >= size, "{name}: {told} is told, it is {size}");
            assert!(told <= size * 3 / 2 + 16, "{name}: {told}, it is {size}");
        }
    }

    #[test]
    fn every_method_has_its_request_and_no_field_is_of_a_kind_that_is_not_counted() {
        let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
        let methods = pool.services().flat_map(|service| {
            let name = service.full_name().to_owned();
            let paths = service
                .methods()
                .map(move |method| (format!("/{name}/{}", method.name()), method.input()));
            paths.collect::<Vec<_>>()
        });
        let mut count = 0;
        for (path, request) in methods {
            assert_eq!(
                Message::of_method(&path),
                Message::named(request.full_name()),
                "{path}"
            );
            count += 1;
        }
        assert!(count > 60, "{count}");
        assert_eq!(Message::of_method("/butterfly.v1.Butterfly/PutNic/x"), None);
        for field in pool.all_messages().flat_map(|message| {
            let fields: Vec<_> = message.fields().collect();
            fields
        }) {
            let name = field.full_name();
            assert!(!field.is_map(), "{name}: what a map takes is not counted");
            let fixed = matches!(
                field.kind(),
                Type::Fixed32
                    | Type::Fixed64
                    | Type::Sfixed32
                    | Type::Sfixed64
                    | Type::Float
                    | Type::Double
            );
            assert!(
                !fixed || !field.is_list(),
                "{name}: does not end below 0x80"
            );
        }
    }

    /// A document with something of everything that takes memory.
    fn document() -> v1::Config {
        let rule = v1::Rule {
            direction: 1,
            protocol: Some(6),
            r#match: Some(v1::rule::Match::Ports(v1::PortRange {
                start: 80,
                end: 443,
            })),
            peer: Some(v1::rule::Peer::Cidr("10.0.0.0/8".into())),
        };
        let nic = v1::Nic {
            id: "vm1".into(),
            mac: "52:54:00:00:00:01".into(),
            addresses: vec!["10.0.0.1".into(), "2001:db8::1".into()],
            security_groups: vec!["web".into(); 5],
            allowed_address_pairs: vec![v1::AddressPair::default(); 3],
            timeouts: Some(v1::Timeouts::default()),
            ..Default::default()
        };
        v1::Config {
            nics: vec![nic; 7],
            groups: vec![v1::Group {
                id: "web".into(),
                rules: vec![rule; 100],
                ..Default::default()
            }],
            endpoints: vec![v1::Endpoint {
                vnis: (1..1000).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn as_much_is_told_as_decoding_allocates_and_not_many_times_more() {
        let bytes = document().encode_to_vec();
        let told = memory(named("Config"), &bytes, usize::MAX).unwrap();
        let config = v1::Config::decode(&bytes[..]).unwrap();
        fn list<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        fn texts(texts: &Vec<String>) -> usize {
            list(texts) + texts.iter().map(String::capacity).sum::<usize>()
        }
        let mut taken = size_of::<v1::Config>()
            + list(&config.nics)
            + list(&config.groups)
            + list(&config.endpoints);
        for nic in &config.nics {
            taken += nic.id.capacity() + nic.mac.capacity() + list(&nic.allowed_address_pairs);
            taken += texts(&nic.addresses) + texts(&nic.security_groups);
        }
        taken += list(&config.groups[0].rules) + list(&config.endpoints[0].vnis);
        taken += 100 * "10.0.0.0/8".len();
        assert!(told >= taken, "{told} is told, {taken} taken");
        assert!(told <= 3 * taken, "{told} is told, {taken} taken");
    }

    #[test]
    fn what_becomes_much_in_memory_is_refused_before_its_end() {
        // ApplyRequest { config { nics {} nics {} ... } }, and lists of other kinds.
        let inside = |number: u8, bytes: &[u8]| {
            let mut out = vec![number << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut out);
            out.extend_from_slice(bytes);
            out
        };
        let empty = |number: u8| [number << 3 | 2, 0].repeat(500_000);
        let limit = 8 << 20;
        for (name, bytes) in [
            ("ApplyRequest", inside(1, &empty(1))),
            ("ApplyRequest", inside(1, &inside(2, &empty(3)))),
            ("SetBindingsRequest", empty(1)),
            ("ListFlowsRequest", inside(2, &empty(3))),
            ("ListFlowsRequest", inside(2, &inside(4, &[1; 2 << 20]))),
            ("ListFlowsRequest", inside(2, &[4 << 3, 1].repeat(2 << 20))),
            ("TraceFramesRequest", empty(2)),
            // Two lists in turn.
            (
                "UpdateNicRequest",
                [14 << 3 | 2, 0, 15 << 3 | 2, 0].repeat(250_000),
            ),
        ] {
            let mut walk = Walk::new(named(name), bytes.len(), limit);
            let mut pieces = bytes.chunks(4096);
            let refused = pieces.find_map(|mut piece| walk.over(&mut piece).err());
            let refused = refused.unwrap();
            assert!(memory(named(name), &bytes, limit).is_err());
            let Refused::TooMuch { at, memory, limit } = refused else {
                panic!("{name}: {refused}");
            };
            assert!(at < bytes.len(), "{name}: {at} of {}", bytes.len());
            assert!(
                memory > limit && memory < limit + (64 << 10),
                "{name}: {memory}"
            );
            let why = format!(
                "{at} bytes of it take {memory} bytes of memory once decoded, 8388608 are allowed"
            );
            assert_eq!(refused.to_string(), why);
        }
        // Of what the schema does not know, nothing is kept.
        let unknown = inside(9, &[0; 1 << 20]);
        let told = memory(named("ApplyRequest"), &unknown, limit).unwrap();
        assert_eq!(told, SHAPES.all[named("ApplyRequest").0].size);
    }

    #[test]
    fn a_message_in_pieces_is_the_same_message() {
        let bytes = document().encode_to_vec();
        let whole = memory(named("Config"), &bytes, usize::MAX).unwrap();
        for piece in [1, 2, 3, 7, 1000] {
            let mut walk = Walk::new(named("Config"), bytes.len(), usize::MAX);
            for mut piece in bytes.chunks(piece) {
                assert!(!walk.is_done());
                walk.over(&mut piece).unwrap();
                assert!(piece.is_empty());
            }
            assert!(walk.is_done());
            assert_eq!(walk.memory(), whole);
        }
        // Too much of it ends the way at the same byte: within a list of numbers, too.
        for limit in (whole - 4000..whole).step_by(99) {
            let told = memory(named("Config"), &bytes, limit);
            assert!(told.is_err(), "{limit}");
            for piece in [1, 7, 1000] {
                let mut walk = Walk::new(named("Config"), bytes.len(), limit);
                let mut pieces = bytes.chunks(piece);
                let refused = pieces.find_map(|mut piece| walk.over(&mut piece).err());
                assert_eq!(refused, told.err(), "{limit} in pieces of {piece}");
            }
        }
        let mut more = &[&bytes[..], b"next"].concat()[..];
        let mut walk = Walk::new(named("Config"), bytes.len(), usize::MAX);
        walk.over(&mut more).unwrap();
        assert!(walk.is_done());
        assert_eq!(more, b"next");
        assert!(Walk::new(named("Config"), 0, 0).is_done());
    }

    #[test]
    fn what_is_broken_is_named() {
        let why =
            |bytes: &[u8]| memory(named("Config"), bytes, usize::MAX).map_err(|e| e.to_string());
        for (bytes, told) in [
            (&[0x0a][..], "a field without a value at byte 1"),
            (&[0x0a, 0xff], "a number is cut short at byte 2"),
            (&[0x0a, 5, 0, 0], "a value is cut short at byte 2"),
            (&[0x0a, 2, 0x0a, 1, 0], "a value is cut short at byte 4"),
            (&[0x02, 0], "a field without a number at byte 1"),
            (
                &[0x0b, 0],
                "a wire type that the protocol does not have at byte 1",
            ),
            (&[0x0d, 0, 0, 0], "a number is cut short at byte 1"),
            (&[0xff; 11], "a number is longer than 64 bits at byte 10"),
            (
                &[0xff, 0xff, 0xff, 0xff, 0x7f, 0],
                "a field's number is too large at byte 5",
            ),
        ] {
            let told = format!("not a protobuf message: {told}");
            assert_eq!(why(bytes), Err(told), "{bytes:?}");
        }
    }

    /// What the walk refuses as broken, prost refuses as well; a flipped bit takes nothing that was
    /// not told.
    #[test]
    fn every_cut_and_every_flipped_bit_is_an_answer_and_no_panic() {
        let mut config = document();
        config.nics.truncate(1);
        config.groups[0].rules.truncate(2);
        config.endpoints[0].vnis.truncate(3);
        let bytes = config.encode_to_vec();
        let check = |bytes: &[u8]| match memory(named("Config"), bytes, usize::MAX) {
            Ok(told) => {
                if let Ok(config) = v1::Config::decode(bytes) {
                    let nics = config.nics.capacity() * size_of::<v1::Nic>();
                    assert!(told >= nics, "{told} {nics}");
                }
            }
            Err(e) => assert!(v1::Config::decode(bytes).is_err(), "{e}: {bytes:?}"),
        };
        for at in 0..bytes.len() {
            check(&bytes[..at]);
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                check(&other);
            }
        }
    }
}

//! Messages as JSON, by their descriptors, for logs and browsers: fields are named as in the
//! `.proto`, those that have their default are left out, and 64-bit numbers are numbers. What is
//! for logs has no secrets ([`leave_out_secrets`]).

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::LazyLock;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor,
    SerializeOptions,
};
use serde_json::Value;

/// In the place of what is left out.
pub const LEFT_OUT: &str = "(left out)";

static V0: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(crate::v0::DESCRIPTORS).ok());
static V1: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(crate::v1::DESCRIPTORS).ok());

/// A message of `butterfly.v1` from its bytes; `None` where they are none.
pub fn of_v1(name: &str, bytes: &[u8]) -> Option<Value> {
    let pool = V1.as_ref()?;
    value(
        pool.get_message_by_name(&format!("butterfly.v1.{name}"))?,
        bytes,
    )
}

/// What a method of v1 is given, from its bytes and for logs; `path` is `/SERVICE/METHOD`.
pub fn of_v1_request(path: &str, bytes: &[u8]) -> Option<Value> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let service = V1.as_ref()?.get_service_by_name(service)?;
    let method = service.methods().find(|known| known.name() == method)?;
    let mut request = value(method.input(), bytes)?;
    leave_out_secrets(&mut request);
    Some(request)
}

/// Leaves out what may be a secret of a health check, wherever one is in a message: the arguments
/// of its program, of which there are as many as there were, and the query of its URL.
pub fn leave_out_secrets(message: &mut Value) {
    match message {
        Value::Array(all) => all.iter_mut().for_each(leave_out_secrets),
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), &mut *field) {
                    ("words", Value::Array(words)) => {
                        for argument in words.iter_mut().skip(1) {
                            *argument = Value::from(LEFT_OUT);
                        }
                    }
                    ("http", Value::Object(http)) => {
                        if let Some(Value::String(path)) = http.get_mut("path")
                            && let Some(query) = path.find('?')
                        {
                            path.truncate(query + 1);
                            path.push_str(LEFT_OUT);
                        }
                    }
                    (_, other) => leave_out_secrets(other),
                }
            }
        }
        _ => {}
    }
}

/// A method of v1, as JSON asks for it.
#[derive(Clone, Debug)]
pub struct V1Method(MethodDescriptor);

impl V1Method {
    /// The method of a path, `/SERVICE/METHOD`; `None` where there is none.
    pub fn of(path: &str) -> Option<V1Method> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let service = V1.as_ref()?.get_service_by_name(service)?;
        let found = service.methods().find(|known| known.name() == method);
        found.map(V1Method)
    }

    /// Its name alone.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// True where requests or answers are streams: from the client, from the server.
    pub fn streams(&self) -> (bool, bool) {
        (self.0.is_client_streaming(), self.0.is_server_streaming())
    }

    /// The bytes of a request that is given as JSON, as the protocol's own mapping has it
    /// (protobuf.dev, ProtoJSON); no bytes at all are a request without fields. The error is a
    /// sentence.
    pub fn request(&self, json: &[u8]) -> Result<Vec<u8>, String> {
        if json.is_empty() {
            return Ok(Vec::new());
        }
        let mut json = serde_json::Deserializer::from_slice(json);
        let message = DynamicMessage::deserialize(self.0.input(), &mut json);
        let message = message.map_err(|e| format!("the request: {e}"))?;
        json.end().map_err(|e| format!("the request: {e}"))?;
        Ok(message.encode_to_vec())
    }

    /// Writes an answer as JSON. It is decoded a message at a time, each without those within it:
    /// as a whole it would take fifty times the memory of its bytes. The error is a sentence.
    pub fn write_answer(&self, bytes: &[u8], json: &mut impl Write) -> Result<(), String> {
        write(&self.0.output(), bytes, json)
    }
}

fn write<W: Write>(kind: &MessageDescriptor, bytes: &[u8], json: &mut W) -> Result<(), String> {
    let (plain, messages) = apart(kind, bytes).map_err(|e| e.to_string())?;
    let plain = DynamicMessage::decode(kind.clone(), &*plain).map_err(|e| e.to_string())?;
    let mut own = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut own);
    let written = plain.serialize_with_options(&mut serializer, &options());
    written.map_err(|e| e.to_string())?;
    // What is within it goes before its last brace.
    own.pop();
    let mut between = if own.len() > 1 { "," } else { "" };
    put(json, &own)?;
    for (field, kind, all) in messages.into_values() {
        put(json, format!("{between}\"{}\":", field.name()).as_bytes())?;
        between = ",";
        if !field.is_list() {
            // What comes in several pieces is one message (protobuf.dev, Encoding).
            match all[..] {
                [one] => write(&kind, one, json)?,
                _ => write(&kind, &all.concat(), json)?,
            }
            continue;
        }
        for (number, one) in all.into_iter().enumerate() {
            put(json, if number == 0 { b"[" } else { b"," })?;
            write(&kind, one, json)?;
        }
        put(json, b"]")?;
    }
    put(json, b"}")
}

/// The messages within a message by their fields' numbers, and all else of it.
type Apart<'a> = (Vec<u8>, BTreeMap<u32, Within<'a>>);
type Within<'a> = (FieldDescriptor, MessageDescriptor, Vec<&'a [u8]>);

fn apart<'a>(kind: &MessageDescriptor, bytes: &'a [u8]) -> Result<Apart<'a>, DecodeError> {
    let (mut plain, mut messages) = (Vec::new(), BTreeMap::new());
    let mut rest = bytes;
    while !rest.is_empty() {
        let field = rest;
        let (number, wire) = decode_key(&mut rest)?;
        let value = rest;
        skip_field(wire, number, &mut rest, DecodeContext::default())?;
        let known = kind.get_field(number);
        match known.and_then(|known| of_messages(&known).map(|kind| (known, kind))) {
            Some((known, kind)) if wire == WireType::LengthDelimited => {
                let mut value = &value[..value.len() - rest.len()];
                decode_varint(&mut value)?;
                let (_, _, all) = messages.entry(number).or_insert((known, kind, Vec::new()));
                all.push(value);
            }
            _ => plain.extend_from_slice(&field[..field.len() - rest.len()]),
        }
    }
    Ok((plain, messages))
}

/// The kind of messages that a field has; none where JSON has them in a way of their own.
fn of_messages(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(kind) if !field.is_map() && kind.package_name() != "google.protobuf" => {
            Some(kind)
        }
        _ => None,
    }
}

fn put(json: &mut impl Write, text: &[u8]) -> Result<(), String> {
    json.write_all(text).map_err(|e| e.to_string())
}

/// A message of v0 by its full name, as `MessageV0.Request`, from its bytes.
pub fn of_v0(name: &str, bytes: &[u8]) -> Option<Value> {
    value(V0.as_ref()?.get_message_by_name(name)?, bytes)
}

fn value(descriptor: MessageDescriptor, bytes: &[u8]) -> Option<Value> {
    let message = DynamicMessage::decode(descriptor, bytes).ok()?;
    message
        .serialize_with_options(serde_json::value::Serializer, &options())
        .ok()
}

fn options() -> SerializeOptions {
    SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_is_named_by_its_path() {
        let request = crate::v1::GetNicRequest { id: "a\"b".into() };
        let bytes = request.encode_to_vec();
        assert_eq!(
            of_v1_request("/butterfly.v1.Butterfly/GetNic", &bytes),
            Some(json!({"id": "a\"b"}))
        );
        assert_eq!(of_v1_request("/butterfly.v1.Butterfly/None", &bytes), None);
        assert_eq!(of_v1("GetNicRequest", &bytes[..2]), None, "cut");
    }

    #[test]
    fn a_request_for_logs_has_no_secrets_of_checks() {
        use crate::v1::{self, health_check::Kind};
        let check = |kind| {
            Some(v1::HealthCheck {
                kind: Some(kind),
                ..Default::default()
            })
        };
        let put = |check| v1::PutServiceRequest {
            service: Some(v1::Service {
                check,
                ..Default::default()
            }),
            ..Default::default()
        };
        let shown = |request: v1::PutServiceRequest| {
            let path = "/butterfly.v1.Balancer/PutService";
            let value = of_v1_request(path, &request.encode_to_vec()).unwrap();
            value["service"]["check"].clone()
        };
        let words = ["/probe", "--password", "hunter2"].map(String::from).into();
        assert_eq!(
            shown(put(check(Kind::Command(v1::CommandCheck { words })))),
            json!({"command": {"words": ["/probe", LEFT_OUT, LEFT_OUT]}})
        );
        let http = v1::HttpCheck {
            path: "/up?key=hunter2".into(),
            ..Default::default()
        };
        assert_eq!(
            shown(put(check(Kind::Http(http)))),
            json!({"http": {"path": "/up?(left out)"}})
        );
    }

    #[test]
    fn a_request_of_v0() {
        let request = crate::v0::message_v0::Request {
            nic_del: Some("a".into()),
            ..Default::default()
        };
        assert_eq!(
            of_v0("MessageV0.Request", &request.encode_to_vec()),
            Some(json!({"nic_del": "a"}))
        );
    }

    #[test]
    fn a_method_is_asked_and_answers_in_json() {
        let method = V1Method::of("/butterfly.v1.Butterfly/GetNic").unwrap();
        assert_eq!(
            (method.name(), method.streams()),
            ("GetNic", (false, false))
        );
        let bytes = method.request(br#"{"id": "a"}"#).unwrap();
        assert_eq!(
            bytes,
            crate::v1::GetNicRequest { id: "a".into() }.encode_to_vec()
        );
        assert_eq!(method.request(b"").unwrap(), b"");
        for (wrong, why) in [
            (&b"{\"ids\": 1}"[..], "ids"),
            (b"{\"id\": 1}", "string"),
            (b"{} {}", "trailing"),
            (b"[", "the request: "),
        ] {
            let error = method.request(wrong).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let answer = crate::v1::NicStatus {
            mtu: 1500,
            ..Default::default()
        };
        let mut json = b"x".to_vec();
        method
            .write_answer(&answer.encode_to_vec(), &mut json)
            .unwrap();
        assert_eq!(json, br#"x{"mtu":1500}"#);
        assert!(method.write_answer(b"\xff", &mut json).is_err());
        assert!(method.write_answer(b"\x0a\x02a", &mut json).is_err(), "cut");
        let flows = V1Method::of("/butterfly.v1.Butterfly/ListFlows").unwrap();
        assert_eq!(flows.streams(), (false, true));
        assert!(V1Method::of("/butterfly.v1.Butterfly/None").is_none());
    }

    /// A message at a time it is what it is as a whole.
    #[test]
    fn an_answer_with_messages_in_it_is_the_same_in_json() {
        let rule = |port| crate::v1::Rule {
            direction: 1,
            protocol: Some(0),
            r#match: Some(crate::v1::rule::Match::Ports(crate::v1::PortRange {
                start: port,
                end: port,
            })),
            peer: Some(crate::v1::rule::Peer::Cidr("2001:db8::/32".into())),
        };
        let group = |id: &str, rules| crate::v1::Group {
            id: id.into(),
            rules,
            ..Default::default()
        };
        let nic = crate::v1::Nic {
            id: "a\"b".into(),
            vni: 7,
            addresses: vec!["10.0.0.1".into(), "10.0.0.2".into()],
            timeouts: Some(crate::v1::Timeouts::default()),
            kind: 2,
            ..Default::default()
        };
        let host = crate::v1::Endpoint {
            vnis: vec![1, 2, 300],
            ..Default::default()
        };
        let config = crate::v1::Config {
            nics: vec![nic, crate::v1::Nic::default()],
            groups: vec![group("x", vec![rule(1), rule(2)]), group("", Vec::new())],
            endpoints: vec![host],
            ..Default::default()
        };
        let method = V1Method::of("/butterfly.v1.Butterfly/GetConfig").unwrap();
        for config in [config, crate::v1::Config::default()] {
            let bytes = config.encode_to_vec();
            let mut json = Vec::new();
            method.write_answer(&bytes, &mut json).unwrap();
            let written: Value = serde_json::from_slice(&json).unwrap();
            assert_eq!(Some(written), value(method.0.output(), &bytes));
        }
    }
}

//! Messages as JSON, by their descriptors, for logs and browsers: fields are named as in the
//! `.proto`, those that have their default are left out, and 64-bit numbers are numbers. What is
//! for logs has no secrets ([`leave_out_secrets`]).

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
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

    /// Writes an answer as JSON behind what is there. The error is a sentence.
    pub fn write_answer(&self, bytes: &[u8], json: &mut Vec<u8>) -> Result<(), String> {
        let message = DynamicMessage::decode(self.0.output(), bytes).map_err(|e| e.to_string())?;
        let mut json = serde_json::Serializer::new(json);
        let written = message.serialize_with_options(&mut json, &options());
        written.map(drop).map_err(|e| e.to_string())
    }
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
        let flows = V1Method::of("/butterfly.v1.Butterfly/ListFlows").unwrap();
        assert_eq!(flows.streams(), (false, true));
        assert!(V1Method::of("/butterfly.v1.Butterfly/None").is_none());
    }
}

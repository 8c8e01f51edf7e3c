//! Messages as JSON, by their descriptors, for logs: fields are named as in the `.proto`, those
//! that have their default are left out, and 64-bit numbers are numbers.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;

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

/// What a method of v1 is given, from its bytes; `path` is `/SERVICE/METHOD`.
pub fn of_v1_request(path: &str, bytes: &[u8]) -> Option<Value> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let service = V1.as_ref()?.get_service_by_name(service)?;
    let method = service.methods().find(|known| known.name() == method)?;
    value(method.input(), bytes)
}

/// A message of v0 by its full name, as `MessageV0.Request`, from its bytes.
pub fn of_v0(name: &str, bytes: &[u8]) -> Option<Value> {
    value(V0.as_ref()?.get_message_by_name(name)?, bytes)
}

fn value(descriptor: MessageDescriptor, bytes: &[u8]) -> Option<Value> {
    let message = DynamicMessage::decode(descriptor, bytes).ok()?;
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
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
}

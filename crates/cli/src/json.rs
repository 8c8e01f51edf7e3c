//! API v1 messages as JSON and text format, through their descriptors. Fields are named as in the `.proto`; 64-bit
//! counters are numbers, not the strings of the standard mapping, so that `jq` adds them up. Reading takes the
//! standard mapping too.

use std::sync::LazyLock;

use api::v1;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(v1::DESCRIPTORS).expect("the build wrote a descriptor set"));

/// A message of `butterfly.v1` with every field, defaults too: for programs.
pub fn full(name: &str, message: &impl Message) -> Value {
    value(name, message, false)
}

/// The same without fields that have their default: for files that people edit.
pub fn sparse(name: &str, message: &impl Message) -> Value {
    value(name, message, true)
}

/// A message on one line, for `-v`. Its name is taken from its type, which will do for people.
pub fn line<M: Message + std::fmt::Debug>(message: &M) -> String {
    let name = std::any::type_name::<M>().rsplit("::").next().unwrap_or_default();
    match POOL.get_message_by_name(&format!("butterfly.v1.{name}")) {
        Some(_) => sparse(name, message).to_string(),
        None => format!("{message:?}"),
    }
}

/// Reads a message from JSON, or from protobuf text format when the text does not begin as JSON does.
pub fn parse<M: Message + Default>(name: &str, text: &str) -> Result<M, String> {
    let dynamic = match text.trim_start().starts_with('{') {
        true => {
            let mut reader = serde_json::Deserializer::from_str(text);
            let message =
                DynamicMessage::deserialize(descriptor(name), &mut reader).map_err(|e| e.to_string())?;
            reader.end().map_err(|e| e.to_string())?;
            message
        }
        false => api::text_format::parse_as(descriptor(name), text)?,
    };
    dynamic.transcode_to().map_err(|e| e.to_string())
}

fn value(name: &str, message: &impl Message, skip_defaults: bool) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(skip_defaults);
    let dynamic = DynamicMessage::decode(descriptor(name), message.encode_to_vec().as_slice())
        .expect("a message decodes by its own descriptor");
    dynamic
        .serialize_with_options(serde_json::value::Serializer, &options)
        .expect("a message of v1 has a JSON form")
}

fn descriptor(name: &str) -> MessageDescriptor {
    let name = format!("butterfly.v1.{name}");
    POOL.get_message_by_name(&name)
        .expect("callers name messages of the v1 file")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_printed_for_programs_and_left_out_for_people() {
        let stats = v1::NicStats {
            id: "a".into(),
            ingress_bytes: 1 << 40,
            ..Default::default()
        };
        let expected = json!({
            "id": "a", "ingress_frames": 0, "ingress_bytes": 1_u64 << 40, "egress_frames": 0, "egress_bytes": 0,
            "ingress_drops": 0, "egress_drops": 0, "flows": 0,
        });
        assert_eq!(full("NicStats", &stats), expected);
        assert_eq!(
            sparse("NicStats", &stats),
            json!({ "id": "a", "ingress_bytes": 1_u64 << 40 })
        );
    }

    #[test]
    fn a_configuration_is_read_in_either_form() {
        let json =
            r#"{"nics": [{"id": "a", "mac": "52:54:00:12:34:01", "vni": 42, "security_groups": ["g"]}]}"#;
        let standard = json.replace("security_groups", "securityGroups");
        let text = r#"nics { id: "a" mac: "52:54:00:12:34:01" vni: 42 security_groups: "g" }"#;
        let config: v1::Config = parse("Config", json).unwrap();
        assert_eq!(config.nics[0].security_groups, ["g"]);
        assert_eq!(parse::<v1::Config>("Config", &standard).unwrap(), config);
        assert_eq!(parse::<v1::Config>("Config", text).unwrap(), config);
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for text in [r#"{"nic": []}"#, r#"{"nics": []} x"#, "{", "nics { idd: 1 }"] {
            assert!(parse::<v1::Config>("Config", text).is_err(), "{text}");
        }
    }
}

//! API v1 messages as JSON and text format, through their descriptors. Fields are named as in the
//! `.proto`; 64-bit counters are numbers, not the strings of the standard mapping, so that `jq`
//! adds them up. Reading takes the standard mapping too.

use std::collections::HashMap;
use std::sync::LazyLock;

use api::v1;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::de::StrRead;
use serde_path_to_error::Track;

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(v1::DESCRIPTORS).expect("the build wrote a descriptor set")
});

/// A message of `butterfly.v1` with every field, defaults too: for programs.
pub fn full(name: &str, message: &impl Message) -> Value {
    value(name, message, false)
}

/// A message of `butterfly.v1` without fields that have their default: for files that people edit.
pub fn sparse(name: &str, message: &impl Message) -> Value {
    value(name, message, true)
}

/// A message on one line, for `-v`. Its name is taken from its type, which will do for people.
pub fn line<M: Message + std::fmt::Debug>(message: &M) -> String {
    let name = std::any::type_name::<M>()
        .rsplit("::")
        .next()
        .unwrap_or_default();
    match POOL.get_message_by_name(&format!("butterfly.v1.{name}")) {
        Some(_) => sparse(name, message).to_string(),
        None => format!("{message:?}"),
    }
}

/// Reads a message from JSON, or from protobuf text format when the text does not begin as JSON
/// does.
pub fn parse<M: Message + Default>(name: &str, text: &str) -> Result<M, String> {
    let dynamic = match text.trim_start().starts_with('{') {
        true => {
            read(text, |json| {
                Unique(Some(descriptor(name))).deserialize(json)
            })?;
            read(text, |json| {
                DynamicMessage::deserialize(descriptor(name), json)
            })?
        }
        false => api::text_format::parse_as(descriptor(name), text)?,
    };
    dynamic.transcode_to().map_err(|e| e.to_string())
}

/// Reads JSON as something; an error says where in the document it is: `nics[3].mac: …`.
fn read<T>(
    text: &str,
    read: impl FnOnce(Tracked<'_, '_, '_>) -> Result<T, serde_json::Error>,
) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut track = Track::new();
    let done = read(Tracked::new(&mut reader, &mut track));
    let value = done.map_err(|e| match track.path() {
        path if path.iter().len() == 0 => e.to_string(),
        path => format!("{path}: {e}"),
    })?;
    reader.end().map_err(|e| e.to_string())?;
    Ok(value)
}

type Tracked<'a, 'b, 'text> =
    serde_path_to_error::Deserializer<'a, 'b, &'a mut serde_json::Deserializer<StrRead<'text>>>;

/// JSON in which no object has a key twice, nor once as the `.proto` spells it and once
/// as the standard mapping does: of two the last would count, and the first be lost in silence (RFC
/// 8259, section 4, leaves it open). Within a message, or a list of them; `None`: within others.
#[derive(Clone)]
struct Unique(Option<MessageDescriptor>);

impl Unique {
    /// The one name that a key has, and what is there.
    fn at(&self, key: &str) -> (String, Unique) {
        let field = self.0.as_ref().and_then(|message| {
            let by_name = || message.get_field_by_name(key);
            message.get_field_by_json_name(key).or_else(by_name)
        });
        match field {
            Some(field) => {
                let message = field.kind().as_message().cloned();
                (field.name().to_owned(), Unique(message))
            }
            None => (key.to_owned(), Unique(None)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let (name, value) = self.at(&key);
            map.next_value_seed(value)?;
            match keys.insert(name, key.clone()) {
                Some(before) if before != key => {
                    let why = format!("'{before}' is given twice, once as '{key}'");
                    return Err(A::Error::custom(why));
                }
                Some(twice) => {
                    return Err(A::Error::custom(format!("'{twice}' is given twice")));
                }
                None => (),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self.clone())?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
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
            "id": "a", "ingress_frames": 0, "ingress_bytes": 1_u64 << 40,
            "egress_frames": 0, "egress_bytes": 0, "ingress_drops": 0, "egress_drops": 0,
            "flows": 0, "egress_waits": 0, "egress_wait_ns": 0,
            "egress_kernel_frames": 0, "mirrored_frames": 0, "mirror_lost_frames": 0,
        });
        assert_eq!(full("NicStats", &stats), expected);
        assert_eq!(
            sparse("NicStats", &stats),
            json!({ "id": "a", "ingress_bytes": 1_u64 << 40 })
        );
    }

    #[test]
    fn a_configuration_is_read_in_either_form() {
        let json = r#"{"nics": [{"id": "a", "mac": "52:54:00:12:34:01", "vni": 42,
            "security_groups": ["g"]}]}"#;
        let standard = json.replace("security_groups", "securityGroups");
        let text = r#"nics { id: "a" mac: "52:54:00:12:34:01" vni: 42 security_groups: "g" }"#;
        let config: v1::Config = parse("Config", json).unwrap();
        assert_eq!(config.nics[0].security_groups, ["g"]);
        assert_eq!(parse::<v1::Config>("Config", &standard).unwrap(), config);
        assert_eq!(parse::<v1::Config>("Config", text).unwrap(), config);
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for text in [
            r#"{"nic": []}"#,
            r#"{"nics": []} x"#,
            "{",
            "nics { idd: 1 }",
        ] {
            assert!(parse::<v1::Config>("Config", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_mistake_in_json_says_where_it_is() {
        for (text, why) in [
            (
                r#"{"nics": [{"id": "a"}, {"id": "b", "vni": "x"}]}"#,
                "nics[1].vni: ",
            ),
            (
                r#"{"groups": [{"rules": [{"port": 1}]}]}"#,
                "groups[0].rules[0]",
            ),
            // Of two equal keys the last would have counted.
            (
                r#"{"nics": [], "nics": []}"#,
                "'nics' is given twice at line 1 column",
            ),
            (
                r#"{"nics": [{"id": "a", "vni": 1, "vni": 2}]}"#,
                "nics[0]: 'vni' is given twice at line 1 column",
            ),
            (
                r#"{"nics": [{"security_groups": ["web"], "securityGroups": []}]}"#,
                "nics[0]: 'security_groups' is given twice, once as 'securityGroups' at line 1",
            ),
        ] {
            let error = parse::<v1::Config>("Config", text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

//! v0 messages as protobuf text format: what `butterfly dump` writes and `butterfly request` reads.

use std::fmt::Write as _;

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, Value};

use crate::strict::{MalformedMessage, check, descriptor};
use crate::v0::{Message, Messages};

/// Parses a text-format `Messages`. Comments (`#`) are allowed; required fields are required.
pub fn parse(text: &str) -> Result<Messages, MalformedMessage> {
    let message = DynamicMessage::parse_text_format(descriptor("proto.Messages"), text)
        .map_err(|e| MalformedMessage::Text(e.to_string()))?;
    check(&message)?;
    message
        .transcode_to()
        .map_err(|e| MalformedMessage::Wire(e.to_string()))
}

/// Prints a `Messages`, one field a line, in the order of field numbers.
pub fn print(messages: &Messages) -> String {
    format("proto.Messages", &messages.encode_to_vec())
}

/// Prints a bare `Message`: the answer to bytes that do not parse.
pub fn print_message(message: &Message) -> String {
    format("proto.Message", &message.encode_to_vec())
}

fn format(name: &str, bytes: &[u8]) -> String {
    let message = DynamicMessage::decode(descriptor(name), bytes).expect("just encoded");
    let mut text = String::new();
    print_fields(&message, 0, &mut text);
    text
}

/// The layout of protobuf's own printer, which the original's dumps have and diffs are made against; the one
/// of prost-reflect, read back alike, puts repeated messages into brackets.
fn print_fields(message: &DynamicMessage, indent: usize, out: &mut String) {
    let mut fields: Vec<_> = message.fields().collect();
    fields.sort_by_key(|(field, _)| field.number());
    for (field, value) in fields {
        for value in value.as_list().unwrap_or(std::slice::from_ref(value)) {
            print_field(&field, value, indent, out);
        }
    }
}

fn print_field(field: &FieldDescriptor, value: &Value, indent: usize, out: &mut String) {
    let name = field.name();
    // Writing to a String does not fail.
    let _ = match (value, field.kind()) {
        (Value::Message(inner), _) => {
            let _ = writeln!(out, "{:indent$}{name} {{", "");
            print_fields(inner, indent + 2, out);
            writeln!(out, "{:indent$}}}", "")
        }
        (Value::EnumNumber(number), Kind::Enum(kind)) => match kind.get_value(*number) {
            Some(value) => writeln!(out, "{:indent$}{name}: {}", "", value.name()),
            None => writeln!(out, "{:indent$}{name}: {number}", ""),
        },
        (value, _) => writeln!(out, "{:indent$}{name}: {value}", ""),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"messages {
  revision: 0
  message_0 {
    request {
      sg_rule_add {
        sg_id: "web"
        rule {
          direction: INBOUND
          protocol: 6
          port_start: 80
          port_end: 80
          cidr {
            address: "0.0.0.0"
            mask_size: 0
          }
        }
      }
    }
  }
}
"#;

    #[test]
    fn what_is_printed_parses_to_the_same_text() {
        assert_eq!(print(&parse(TEXT).unwrap()), TEXT);
        let twice = TEXT.repeat(2);
        assert_eq!(print(&parse(&twice).unwrap()), twice);
    }

    #[test]
    fn other_spellings_of_the_text_format_are_understood() {
        let text = "# a comment\nmessages: < revision: 0, message_0 { request { nic_del: 'a' } } >";
        let request = parse(text).unwrap().messages[0]
            .message_0
            .clone()
            .unwrap()
            .request
            .unwrap();
        assert_eq!(request.nic_del.as_deref(), Some("a"));
    }

    #[test]
    fn errors_are_told() {
        let missing = parse("messages { message_0 {} }").unwrap_err();
        assert_eq!(
            missing,
            MalformedMessage::Required("proto.Message.revision".into())
        );
        assert!(matches!(
            parse("messages { nonsense: 1 }"),
            Err(MalformedMessage::Text(_))
        ));
    }

    #[test]
    fn nothing_prints_as_nothing() {
        assert_eq!(print(&Messages::default()), "");
    }
}

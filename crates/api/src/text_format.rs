//! v0 messages as protobuf text format: what `butterfly dump` writes and `butterfly request` reads.

use std::fmt::Write as _;

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

use crate::strict::{MalformedMessage, check, descriptor};
use crate::v0::{Message, Messages};

/// Parses a text-format `Messages`. Comments (`#`) are allowed; required fields are required.
/// Errors name the line, or the message that lacks something.
pub fn parse(text: &str) -> Result<Messages, MalformedMessage> {
    let message = parse_as(descriptor("proto.Messages"), text).map_err(MalformedMessage::Text)?;
    let messages = message.get_field_by_name("messages");
    let messages = messages
        .iter()
        .flat_map(|list| list.as_list().unwrap_or_default());
    for (index, one) in messages.filter_map(Value::as_message).enumerate() {
        check(one).map_err(|e| MalformedMessage::Text(format!("message {}: {e}", index + 1)))?;
    }
    check(&message)?;
    message
        .transcode_to()
        .map_err(|e| MalformedMessage::Wire(e.to_string()))
}

/// Parses a message of any kind; an error names the line. The parser keeps that to itself, and
/// stops at the first mistake: it is in the last line of the shortest beginning that is refused for
/// the same reason; or at the end, where something is missing.
pub fn parse_as(kind: MessageDescriptor, text: &str) -> Result<DynamicMessage, String> {
    let refused = |text: &str| {
        let parsed = DynamicMessage::parse_text_format(kind.clone(), text);
        parsed.err().map(|e| e.to_string())
    };
    let Some(why) = refused(text) else {
        return DynamicMessage::parse_text_format(kind, text).map_err(|e| e.to_string());
    };
    if why.ends_with("end of input") {
        return Err(format!("line {}: {why}", text.lines().count().max(1)));
    }
    let ends: Vec<usize> = text
        .match_indices('\n')
        .map(|(at, _)| at + 1)
        .chain([text.len()])
        .collect();
    let line = 1 + ends.partition_point(|end| refused(&text[..*end]).as_ref() != Some(&why));
    Err(format!("line {line}: {why}"))
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

/// The layout of protobuf's own printer, which the original's dumps have and diffs are made
/// against; the one of prost-reflect, read back alike, puts repeated messages into brackets.
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
        let said = |text: &str| parse(text).unwrap_err().to_string();
        let good = "messages { revision: 0 message_0 {} }\n";
        assert_eq!(
            said(&format!("{good}messages {{ message_0 {{}} }}")),
            "message 2: the required field proto.Message.revision is missing or has an unknown \
             value"
        );
        for (text, line, why) in [
            ("messages { nonsense: 1 }", 1, "nonsense"),
            (
                "\n# a comment\nmessages {\n  revision: 0\n  nonsense: 1\n}\n",
                5,
                "nonsense",
            ),
            ("messages {\n  revision: x\n}\n", 2, "'x'"),
            ("messages {\n  revision: 0\n", 2, "end of input"),
            ("messages {\n  revision: \"a\n", 2, ""),
        ] {
            let said = said(text);
            assert!(
                said.starts_with(&format!("line {line}: ")) && said.contains(why),
                "{text}: {said}"
            );
        }
        // In a long file as in a short one.
        let late = format!(
            "{}messages {{ revision: 0 nonsense: 1 }}\n{}",
            good.repeat(5000),
            good.repeat(100)
        );
        assert!(said(&late).starts_with("line 5001: "), "{}", said(&late));
    }

    #[test]
    fn nothing_prints_as_nothing() {
        assert_eq!(print(&Messages::default()), "");
    }
}

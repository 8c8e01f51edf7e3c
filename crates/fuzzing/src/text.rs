//! Target `text`: v0 messages as text.
//!
//! Promise: what parses prints as text that parses to the same message. Input: the text.

use api::text_format;

/// Parses a text.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(messages) = text_format::parse(text) else {
        return;
    };
    let printed = text_format::print(&messages);
    assert_eq!(
        text_format::parse(&printed).as_ref(),
        Ok(&messages),
        "{printed}"
    );
}

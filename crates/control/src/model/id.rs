//! Ids of NICs and groups. v0 ids are any text, and a NIC's becomes part of file names (socket,
//! packet trace), so what is refused is what a file name or a line of a log cannot hold. Cheap to
//! clone.

use crate::error::Error;
use crate::limits;
use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Fails with [`Error::Id`] when the text cannot be an id.
            pub fn new(text: &str) -> Result<Self, Error> {
                let refuse = |why: String| Error::Id { what: $what, id: text.to_owned(), why };
                if text.is_empty() {
                    return Err(refuse("is empty".to_owned()));
                }
                if text.len() > $max {
                    let why = format!("is {} bytes long, the limit is {}", text.len(), $max);
                    return Err(refuse(why));
                }
                if let Some(bad) = text.chars().find(|c| c.is_control()) {
                    return Err(refuse(format!("has the control character {bad:?}")));
                }
                let check: fn(&str) -> Option<&'static str> = $check;
                match check(text) {
                    Some(why) => Err(refuse(why.to_owned())),
                    None => Ok(Self(text.into())),
                }
            }

            /// The id as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The id as it was given, shared.
            pub fn shared(&self) -> Arc<str> {
                self.0.clone()
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// The id of a NIC: 1 to 128 bytes, no `/`, no control character, not `.` or `..`.
    NicId,
    "NIC",
    limits::NIC_ID,
    |text| match text {
        "." | ".." => Some("names a directory"),
        _ if text.contains('/') => Some("has a '/': it becomes part of file names"),
        _ => None,
    }
);

id!(
    /// The id of a security group: 1 to 255 bytes, no control character.
    GroupId,
    "group",
    limits::GROUP_ID,
    |_| None
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_a_file_name_can_hold() {
        for good in [
            "vnic_1",
            "a b",
            "été",
            "a..b",
            "eni-1234:5",
            &"x".repeat(128),
        ] {
            assert_eq!(NicId::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "a/b",
            "a\0b",
            "a\nb",
            &"x".repeat(129),
        ] {
            assert!(NicId::new(bad).is_err(), "{bad:?}");
        }
        assert!(
            GroupId::new("a/b").is_ok()
                && GroupId::new("").is_err()
                && GroupId::new("a\0").is_err()
        );
        assert_eq!(
            NicId::new("a\0b").unwrap_err().to_string(),
            "NIC id 'a\\0b' has the control character '\\0'"
        );
    }
}

//! The token of `--page-token`: who has it may look at the page over loopback in clear text.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use subtle::ConstantTimeEq;

/// Characters of a token: fewer can be guessed, more are no token.
const LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

/// A token, which may become another one. Cheap to clone; never shown.
#[derive(Clone)]
pub struct Token(Arc<RwLock<Box<str>>>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads it from a file, blanks around it left out. The error is a sentence that names the
    /// file.
    pub fn read(path: &Path) -> Result<Token, String> {
        Ok(Token(Arc::new(RwLock::new(content(path)?))))
    }

    /// It is what the file has by now. Where that cannot be used, nothing changes. Both sentences
    /// are for people.
    pub fn reload(&self, path: &Path) -> Result<String, String> {
        let new = content(path)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(path.display().to_string())
    }

    /// It, if it can be one. The error says what it has.
    pub fn of(token: &str) -> Result<Token, String> {
        Ok(Token(Arc::new(RwLock::new(checked(token)?))))
    }

    /// Whether a header `Authorization` has it (RFC 6750, section 2.1). How long it takes says
    /// nothing of the token but its length.
    pub fn is_in(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked("Bearer ".len()) else {
            return false;
        };
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        scheme.eq_ignore_ascii_case(b"Bearer ") && given.ct_eq(token.as_bytes()).into()
    }
}

/// What a file has.
fn content(path: &Path) -> Result<Box<str>, String> {
    let most = *LENGTH.end() as u64 + 3;
    let token = sys::private_text::read(path, most).and_then(|text| {
        checked(text.trim()).map_err(|why| format!("the token in {} {why}", path.display()))
    });
    token.map_err(|why| format!("--page-token: {why}"))
}

/// It, if it can be a token.
fn checked(token: &str) -> Result<Box<str>, String> {
    let length = token.len();
    if !LENGTH.contains(&length) {
        let (least, most) = (LENGTH.start(), LENGTH.end());
        return Err(format!("has {length} characters, not {least} to {most}"));
    }
    // What a browser can put into a header, and a person into a link.
    let word = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    if !token.chars().all(word) {
        return Err("has other characters than letters, digits and - . _ ~".into());
    }
    Ok(token.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn written(text: &str, mode: u32) -> Result<Token, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let read = Token::read(&path);
        read.map_err(|why| why.replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn a_token_is_read_and_compared() {
        let token = written("0123456789abcdef\n", 0o640).unwrap();
        assert!(token.is_in(b"Bearer 0123456789abcdef"));
        assert!(token.is_in(b"bearer 0123456789abcdef"));
        for wrong in [
            &b""[..],
            b"Bearer",
            b"Bearer ",
            b"0123456789abcdef",
            b"Basic 0123456789abcdef",
            b"Bearer 0123456789abcdeg",
            b"Bearer 0123456789abcde",
            b"Bearer 0123456789abcdef0",
            b"Bearer  0123456789abcdef",
        ] {
            assert!(!token.is_in(wrong), "{:?}", String::from_utf8_lossy(wrong));
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn what_is_no_token_is_refused_by_name() {
        for (text, mode, why) in [
            (
                "0123456789abcdef",
                0o644,
                "can be read by everybody (mode 644): chmod o= FILE",
            ),
            ("short", 0o600, "has 5 characters, not 16 to 256"),
            ("", 0o600, "has 0 characters"),
            (&"x".repeat(300), 0o600, "has 259 characters"),
            ("/123456789abcdef0", 0o600, "other characters than letters"),
            ("0123456789 abcdef", 0o600, "other characters than letters"),
        ] {
            let error = written(text, mode).unwrap_err();
            assert!(error.contains(why) && error.contains("FILE"), "{error}");
        }
        let error = Token::read(Path::new("/nonexistent/token")).unwrap_err();
        assert!(
            error.contains("/nonexistent/token cannot be read"),
            "{error}"
        );
    }
}

//! What goes wrong, by the specification's numbers (SPEC.md, section 5, "Error").

use serde_json::{Value, json};

/// An error as a runtime gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Below 100 the specification's, from 100 on ours.
    pub code: u32,
    /// A sentence.
    pub message: String,
}

/// The daemon refuses.
const REFUSED: u32 = 100;
/// The interface is not as it is to be.
const NOT_AS_DECLARED: u32 = 101;
/// There is no address left.
const NO_ADDRESS: u32 = 102;

impl Error {
    fn new(code: u32, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
        }
    }

    /// The specification's version is none that we know.
    pub fn version(message: impl Into<String>) -> Error {
        Self::new(1, message)
    }

    /// A variable of the environment is missing or wrong.
    pub fn environment(message: impl Into<String>) -> Error {
        Self::new(4, message)
    }

    /// Something cannot be read or written.
    pub fn io(message: impl Into<String>) -> Error {
        Self::new(5, message)
    }

    /// What should be JSON is not, or not of the form.
    pub fn decode(message: impl Into<String>) -> Error {
        Self::new(6, message)
    }

    /// The configuration is wrong.
    pub fn config(message: impl Into<String>) -> Error {
        Self::new(7, message)
    }

    /// It may work later.
    pub fn later(message: impl Into<String>) -> Error {
        Self::new(11, message)
    }

    /// No container can be added now.
    pub fn unavailable(message: impl Into<String>) -> Error {
        Self::new(50, message)
    }

    /// The daemon refuses.
    pub fn refused(message: impl Into<String>) -> Error {
        Self::new(REFUSED, message)
    }

    /// The interface is not as it is to be.
    pub fn differs(message: impl Into<String>) -> Error {
        Self::new(NOT_AS_DECLARED, message)
    }

    /// There is no address left.
    pub fn no_address(message: impl Into<String>) -> Error {
        Self::new(NO_ADDRESS, message)
    }

    /// Several as one, by the first one's number; none is no error.
    pub fn all(errors: &[Error]) -> Result<(), Error> {
        let Some(first) = errors.first() else {
            return Ok(());
        };
        let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
        Err(Self::new(first.code, messages.join("; ")))
    }

    /// An error of another plugin, as it told it; `None`: it told none.
    pub fn of_plugin(answer: &Value) -> Option<Error> {
        let code = u32::try_from(answer["code"].as_u64()?).ok()?;
        let details = answer["details"].as_str().unwrap_or_default();
        let message = answer["msg"].as_str().unwrap_or_default();
        Some(Self::new(code, format!("{message} {details}").trim_end()))
    }

    /// As it is printed.
    pub fn told(&self, version: &str) -> Value {
        json!({ "cniVersion": version, "code": self.code, "msg": self.message })
    }
}

//! Why an operation of the balancer is refused. Each message is a sentence that names the thing and
//! the value. Whatever the error, the operation changed nothing.

use std::net::IpAddr;

use tonic::{Code, Status};

use super::model::Key;

/// Why an operation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{owner}: {field} '{}' {why}", .value.escape_debug())]
    Value {
        owner: String,
        field: String,
        value: String,
        why: String,
    },
    #[error("{0}")]
    Request(String),
    #[error("there is no service {0}")]
    NoService(Key),
    #[error("service {0} has no server {1}")]
    NoServer(Key, IpAddr),
    #[error("there is a service {0} already")]
    ServiceExists(Key),
    #[error("service {0} has a server {1} already")]
    ServerExists(Key, IpAddr),
    #[error("{owner} would have {value} {what}, the limit is {limit}")]
    Quota {
        owner: String,
        what: &'static str,
        value: usize,
        limit: usize,
    },
    /// The kernel or its interfaces do not let us.
    #[error("{0}")]
    Unavailable(String),
}

impl Error {
    pub fn value(
        owner: impl ToString,
        field: impl Into<String>,
        value: impl ToString,
        why: impl Into<String>,
    ) -> Error {
        Error::Value {
            owner: owner.to_string(),
            field: field.into(),
            value: value.to_string(),
            why: why.into(),
        }
    }
}

/// Refuses a count above its stated maximum.
pub fn quota(
    owner: impl ToString,
    what: &'static str,
    value: usize,
    limit: usize,
) -> Result<(), Error> {
    match value > limit {
        true => Err(Error::Quota {
            owner: owner.to_string(),
            what,
            value,
            limit,
        }),
        false => Ok(()),
    }
}

impl From<Error> for Status {
    /// The sentence as it is, under the code that the .proto states for it.
    fn from(error: Error) -> Status {
        let code = match &error {
            Error::Value { .. } | Error::Request(_) => Code::InvalidArgument,
            Error::NoService(_) | Error::NoServer(..) => Code::NotFound,
            Error::ServiceExists(_) | Error::ServerExists(..) => Code::AlreadyExists,
            Error::Quota { .. } => Code::ResourceExhausted,
            Error::Unavailable(_) => Code::FailedPrecondition,
        };
        Status::new(code, error.to_string())
    }
}

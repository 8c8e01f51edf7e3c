//! Why an operation of the router is refused, a sentence that names the thing and the value.
//! Whatever it is, the operation changed nothing.

use tonic::Status;

/// The sentence, under the code that the .proto states for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request cannot be meant.
    #[error("{0}")]
    Invalid(String),
    /// What it names is not there.
    #[error("{0}")]
    NotFound(String),
    /// The kernel or its interfaces do not let us.
    #[error("{0}")]
    Unavailable(String),
}

impl From<Refusal> for Status {
    /// The sentence as it is, under the code that the .proto states for it.
    fn from(refusal: Refusal) -> Status {
        match refusal {
            Refusal::Invalid(why) => Status::invalid_argument(why),
            Refusal::NotFound(why) => Status::not_found(why),
            Refusal::Unavailable(why) => Status::failed_precondition(why),
        }
    }
}

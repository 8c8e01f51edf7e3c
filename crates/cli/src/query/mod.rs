//! What others ask of a `butterfly forward` or `butterfly balance` that runs without a daemon: it
//! answers on a socket of its own, with what API v1's services `Router` and `Balancer` only look
//! at. `butterfly route show` and the like find it where no daemon is.

mod balance;
mod forward;
mod socket;

pub use balance::Balance;
pub use forward::Forward;
pub use socket::{Alone, QuerySocket, running};

/// Why nothing is changed by the socket.
fn no_changes(kind: Alone) -> tonic::Status {
    tonic::Status::failed_precondition(format!(
        "this is `butterfly {kind}`, whose command line says what it does: by its socket it is \
         only looked at"
    ))
}

/// Why there are no events.
fn no_events(kind: Alone) -> tonic::Status {
    tonic::Status::unimplemented(format!(
        "`butterfly {kind}` tells of no changes: ask again, or run the daemon"
    ))
}

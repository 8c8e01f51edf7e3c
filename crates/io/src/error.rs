//! What can go wrong with a port. A file of its own: every kind of port says it, and
//! [`Port`](crate::port::Port), which says it for them, is built of all kinds.

/// The peer broke the protocol, or the port's device failed: the port is stopped. Reported once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The peer wrote what the protocol does not allow.
    #[error("{what}")]
    Broken {
        /// The thing that is wrong and its value.
        what: String,
    },
}

/// Why a frame was not delivered. The frame is lost for this receiver, the caller counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransmitError {
    /// The receiver has no buffer free.
    #[error("the receiver has no buffer free")]
    Full,
    /// The receiver's buffers are shorter than the frame.
    #[error("the receiver's buffer is shorter than the frame")]
    TooSmall,
    /// The receiver is not running.
    #[error("the receiver is not running")]
    Down,
    /// The frame's offload fields do not fit the frame, and the receiver wants them completed.
    #[error("the frame's offload fields do not describe the frame")]
    BadOffload,
    /// The receiver broke the protocol just now; [`flush`](crate::port::Port::flush) says how.
    #[error("the receiver broke the protocol")]
    Broken,
}

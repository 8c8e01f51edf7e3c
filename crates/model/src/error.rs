//! What cannot be.

use std::net::IpAddr;

/// Each message names the thing and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An address that no single machine can have.
    #[error("{address} cannot be the address of {what}: it is no single host's")]
    NoHost {
        /// A service or a server.
        what: &'static str,
        /// The address.
        address: IpAddr,
    },
    /// A server's weight of zero.
    #[error("a weight is 1 to 65535; a server that shall get no new flows is draining")]
    ZeroWeight,
    /// A word that names no protocol.
    #[error("{word} is no protocol that is balanced: tcp, udp or sctp")]
    Protocol {
        /// The word.
        word: String,
    },
}

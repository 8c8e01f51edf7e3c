//! What can go wrong. Whatever fails leaves everything as it was.

use std::net::IpAddr;

use model::ServiceKey;

/// Each message names the thing and the value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value that cannot be.
    #[error(transparent)]
    Value(#[from] model::Error),
    /// An option out of its range.
    #[error("{option} is {value}, which is not within {least} to {most}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was asked for.
        value: u64,
        /// The smallest that is possible.
        least: u64,
        /// The largest that is possible.
        most: u64,
    },
    /// More of something than there is room for.
    #[error("there is room for {room} {what}, not for {asked}")]
    Full {
        /// Services or servers.
        what: &'static str,
        /// How many there may be.
        room: usize,
        /// How many there would be.
        asked: usize,
    },
    /// A service that is not there.
    #[error("there is no service {0}")]
    NoService(ServiceKey),
    /// A service that is there already.
    #[error("there is a service {0} already")]
    ServiceExists(ServiceKey),
    /// A server that is not there.
    #[error("service {key} has no server {address}")]
    NoServer {
        /// The service.
        key: ServiceKey,
        /// The server.
        address: IpAddr,
    },
    /// A server that is there already.
    #[error("service {key} has a server {address} already")]
    ServerExists {
        /// The service.
        key: ServiceKey,
        /// The server.
        address: IpAddr,
    },
    /// Two interfaces whose indices differ by a multiple of 256: the program tells interfaces apart
    /// by the low byte first.
    #[error(
        "interface {ifindex} cannot be balanced beside interface {other}: their indices end in the \
         same byte"
    )]
    InterfaceClash {
        /// The one that was to be attached.
        ifindex: u32,
        /// The one that is.
        other: u32,
    },
    /// An interface that is not there, or has no Ethernet address.
    #[error("there is no Ethernet interface {name}")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// What another process's balancer hands over is not this one's to go on with.
    #[error("the load balancer of the process before cannot be gone on with: {why}")]
    Handed {
        /// Why not.
        why: String,
    },
    /// The kernel's tables cannot be followed.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The program, a map or an interface.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// libbpf, where xdp has no word for it.
    #[error("the load balancer's {what}: {source}")]
    Bpf {
        /// What was done.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
}

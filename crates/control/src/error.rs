//! Why an operation is refused. Each message is a sentence that names the thing and the value;
//! [`Error::kind`] is what an API maps to its own codes. Whatever the error, the operation changed
//! nothing.

use crate::model::{Feature, GroupId, NicId, ServiceKey};
use std::borrow::Cow;
use std::net::IpAddr;

/// Why an operation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An id is empty, too long, or has characters that it must not have.
    #[error("{what} id '{}' {why}", .id.escape_debug())]
    Id {
        /// `NIC` or `group`.
        what: &'static str,
        /// The id as it was given.
        id: String,
        /// What is wrong with it.
        why: String,
    },
    /// A text or number in the request is not what it should be.
    #[error("{owner}: {field} '{}' {why}", .value.escape_debug())]
    Value {
        /// The thing the value belongs to, e.g. `NIC 'vnic_1'`.
        owner: String,
        /// The field's name, e.g. `IP`.
        field: Cow<'static, str>,
        /// The value as it was given.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A rule contradicts itself.
    #[error("rule: {0}")]
    Rule(String),
    /// The NIC is a sniffer of itself.
    #[error("NIC '{0}' cannot be its own sniff target")]
    SniffsItself(NicId),
    /// Another NIC of this VNI has this MAC.
    #[error("NIC '{nic}': MAC {mac} is already that of NIC '{other}' in VNI {vni}")]
    MacTaken {
        /// The NIC that was refused.
        nic: NicId,
        /// The MAC.
        mac: wire::Mac,
        /// Who has it.
        other: NicId,
        /// Where.
        vni: wire::Vni,
    },
    /// Another NIC of this VNI has this address, and not both share it.
    #[error(
        "NIC '{nic}': address {ip} is already that of NIC '{other}' in VNI {vni}; two have one \
         only if both say that it is shared"
    )]
    AddressTaken {
        /// The NIC that was refused.
        nic: NicId,
        /// The address.
        ip: std::net::IpAddr,
        /// Who has it.
        other: NicId,
        /// Where.
        vni: wire::Vni,
    },
    /// Another NIC has this socket or interface.
    #[error("NIC '{nic}': path '{path}' is already that of NIC '{other}'")]
    PathTaken {
        /// The NIC that was refused.
        nic: NicId,
        /// The socket's path or the interface's name.
        path: String,
        /// Who has it.
        other: NicId,
    },
    /// A NIC's mirror is VXLAN to another host of the switch.
    #[error(
        "NIC '{nic}': its mirror is VXLAN to {collector}, which is another host: that would take \
         the copies for frames of a network; mirror to a machine that is none, or by ERSPAN"
    )]
    MirrorToHost {
        /// The NIC.
        nic: NicId,
        /// Where its copies would go.
        collector: std::net::IpAddr,
    },
    /// A NIC of this id is there, and is not to be replaced.
    #[error("NIC '{0}' is there already with other values: {1}")]
    NicDiffers(NicId, String),
    /// A stated maximum would be exceeded.
    #[error("{owner} would have {value} {what}, the limit is {limit}")]
    Quota {
        /// The thing that is full, e.g. `group 'web'`.
        owner: String,
        /// What is counted, e.g. `rules`.
        what: &'static str,
        /// The count that was refused.
        value: usize,
        /// The stated maximum.
        limit: usize,
    },
    /// There is no such NIC.
    #[error("there is no NIC '{0}'")]
    NoNic(NicId),
    /// There is no such group.
    #[error("there is no security group '{0}'")]
    NoGroup(GroupId),
    /// There is no such host.
    #[error("there is no host '{0}'")]
    NoHost(std::net::IpAddr),
    /// There is no such binding.
    #[error("there is no binding of {mac} in VNI {vni}")]
    NoBinding {
        /// The virtual network.
        vni: wire::Vni,
        /// The MAC.
        mac: wire::Mac,
    },
    /// The host has bindings.
    #[error("host '{address}' has {bindings} bindings: delete them with it, or first")]
    HostInUse {
        /// Which one.
        address: std::net::IpAddr,
        /// How many name it.
        bindings: usize,
    },
    /// The NIC's socket, interface or trace file cannot be made.
    #[error("NIC '{nic}': {why}")]
    Attach {
        /// The NIC that was refused.
        nic: NicId,
        /// What the operating system said.
        why: String,
    },
    /// The request contradicts itself.
    #[error("{0}")]
    Invalid(String),
    /// There is no such service.
    #[error("there is no service {0:#}")]
    NoService(ServiceKey),
    /// The service has no such server.
    #[error("service {0:#} has no server {1}")]
    NoServer(ServiceKey, IpAddr),
    /// The service was to be made, and is there.
    #[error("there is a service {0:#} already")]
    ServiceExists(ServiceKey),
    /// The server was to be made, and is there.
    #[error("service {0:#} has a server {1} already")]
    ServerExists(ServiceKey, IpAddr),
    /// The load balancer was not told to work on that interface.
    #[error("nothing is balanced on interface '{}'", .0.escape_debug())]
    NotBalanced(String),
    /// The load balancer, the router or the uplinks did not take the change: a sentence.
    #[error("{why}")]
    Feature {
        /// Which of them.
        feature: Feature,
        /// What the kernel or its interfaces said.
        why: String,
    },
    /// The history has no such revision: a sentence.
    #[error("{0}")]
    NoRevision(String),
    /// The change could not be recorded, so it was not made.
    #[error("the change cannot be recorded: {0}")]
    Journal(String),
    /// The change was refused, and what had been made of it by then could not all be undone.
    #[error("{error}; and what was made of it could not be undone: {left}")]
    HalfUndone {
        /// Why it was refused.
        error: Box<Error>,
        /// What is left, and why.
        left: String,
    },
    /// The data plane did not take the change.
    #[error("the data plane did not take the change: {0}")]
    DataPlane(String),
}

/// What an error is, for an API's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong by itself.
    Invalid,
    /// It names something that is not there.
    NotFound,
    /// It contradicts what is there.
    Conflict,
    /// A stated maximum.
    Quota,
    /// What it was to make is there.
    Exists,
    /// The request is right and the machine cannot do it now.
    Unavailable,
}

impl Error {
    /// What the error is, for an API's codes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Id { .. }
            | Error::Value { .. }
            | Error::Invalid(_)
            | Error::Rule(_)
            | Error::SniffsItself(_) => ErrorKind::Invalid,
            Error::ServiceExists(_) | Error::ServerExists(..) => ErrorKind::Exists,
            Error::MacTaken { .. }
            | Error::AddressTaken { .. }
            | Error::PathTaken { .. }
            | Error::MirrorToHost { .. }
            | Error::NicDiffers(..)
            | Error::HostInUse { .. } => ErrorKind::Conflict,
            Error::Quota { .. } => ErrorKind::Quota,
            Error::NoNic(_)
            | Error::NoGroup(_)
            | Error::NoHost(_)
            | Error::NoBinding { .. }
            | Error::NoService(_)
            | Error::NoServer(..)
            | Error::NotBalanced(_)
            | Error::NoRevision(_) => ErrorKind::NotFound,
            Error::Attach { .. }
            | Error::Feature { .. }
            | Error::Journal(_)
            | Error::DataPlane(_) => ErrorKind::Unavailable,
            Error::HalfUndone { error, .. } => error.kind(),
        }
    }

    /// A value of `owner` that is not what it should be.
    pub fn value(
        owner: &(impl ToString + ?Sized),
        field: impl Into<Cow<'static, str>>,
        value: &str,
        why: &str,
    ) -> Error {
        Error::Value {
            owner: owner.to_string(),
            field: field.into(),
            value: value.to_owned(),
            why: why.to_owned(),
        }
    }
}

impl Error {
    /// A value of a service's check.
    pub(crate) fn check(owner: &str, error: health::CheckError) -> Error {
        let field = format!("check.{}", error.field);
        Error::value(owner, field, &error.value, &error.why)
    }
}

/// Refuses a count above its stated maximum.
pub(crate) fn quota(
    owner: impl ToString,
    what: &'static str,
    value: usize,
    limit: usize,
) -> Result<(), Error> {
    if value > limit {
        Err(Error::Quota {
            owner: owner.to_string(),
            what,
            value,
            limit,
        })
    } else {
        Ok(())
    }
}

//! Why an operation is refused. Each message is a sentence that names the thing and the value;
//! [`Error::kind`] is what an API maps to its own codes. Whatever the error, the operation changed
//! nothing.

use crate::model::{GroupId, NicId};

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
        field: &'static str,
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
    /// There is no such endpoint.
    #[error("there is no endpoint '{0}'")]
    NoEndpoint(std::net::IpAddr),
    /// There is no such binding.
    #[error("there is no binding of {mac} in VNI {vni}")]
    NoBinding {
        /// The virtual network.
        vni: wire::Vni,
        /// The MAC.
        mac: wire::Mac,
    },
    /// The endpoint has bindings.
    #[error("endpoint '{address}' has {bindings} bindings: delete them with it, or first")]
    EndpointInUse {
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
    /// The request is right and the machine cannot do it now.
    Unavailable,
}

impl Error {
    /// What the error is, for an API's codes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Id { .. } | Error::Value { .. } | Error::Rule(_) | Error::SniffsItself(_) => {
                ErrorKind::Invalid
            }
            Error::MacTaken { .. } | Error::PathTaken { .. } | Error::EndpointInUse { .. } => {
                ErrorKind::Conflict
            }
            Error::Quota { .. } => ErrorKind::Quota,
            Error::NoNic(_)
            | Error::NoGroup(_)
            | Error::NoEndpoint(_)
            | Error::NoBinding { .. } => ErrorKind::NotFound,
            Error::Attach { .. } | Error::DataPlane(_) => ErrorKind::Unavailable,
        }
    }

    pub(crate) fn value(
        owner: &impl ToString,
        field: &'static str,
        value: &str,
        why: &str,
    ) -> Error {
        Error::Value {
            owner: owner.to_string(),
            field,
            value: value.to_owned(),
            why: why.to_owned(),
        }
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

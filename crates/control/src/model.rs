//! What the operator declares: NICs, security groups and their rules, who is where, services, and
//! what works on which interface. Plain data,
//! valid by construction: texts are parsed here once, with errors that name the thing and the
//! value, and nothing behind this module parses again.

mod group;
mod id;
mod interface;
pub(crate) mod limits;
mod mac_case;
mod mirror;
mod nic;
mod overlay;
mod parse;
mod part;
mod rule;
mod service;
mod socket_access;
mod veth;
mod vm_tap;

pub use ::model::acl::List as AccessList;
pub use ::model::{Mode, Protocol, ServiceKey, State, Tunnel, Weight, is_of_one_host};
pub use group::{Config, Group, Removal, check_sizes};
pub use id::{GroupId, NicId};
pub use interface::{Feature, Interface, Interfaces};
pub(crate) use interface::{declared, once};
pub use limits::{Limit, Limits, with_bursts};
pub use mac_case::MacCase;
pub use mirror::{Mirror, MirrorKind, SNAP_MAX};
pub use nic::{AddressPair, BenchKind, Nic, NicKind, NicUpdate, Timeouts, VhostMode};
pub use overlay::{
    Binding, BindingKey, Flood, Host, HostUpdate, Membership, NetworkOptions, multicast_group,
};
pub use parse::{
    parse_address, parse_addresses, parse_cidr, parse_groups, parse_mac, parse_masked, parse_vni,
};
pub use part::{IdPattern, Part, PartLimits};
pub(crate) use part::{networks_of, patterns_of};
pub use rule::{Direction, Icmp, Peer, Ports, Rule, RuleMatch};
pub(crate) use service::validate;
pub use service::{DeclaredServer, DeclaredService, DeclaredServices, service_key};
pub use socket_access::{SocketAccess, parse_mode};
pub use veth::{IFNAME, Veth, VethRoute};
pub use vm_tap::VmTap;

//! What the operator declares: NICs, security groups and their rules, and who is where. Plain data,
//! valid by construction: texts are parsed here once, with errors that name the thing and the
//! value, and nothing behind this module parses again.

mod group;
mod id;
pub(crate) mod limits;
mod mac_case;
mod nic;
mod overlay;
mod parse;
mod rule;

pub use group::{Config, Group, Removal};
pub use id::{GroupId, NicId};
pub use limits::{Limit, Limits, with_bursts};
pub use mac_case::MacCase;
pub use nic::{AddressPair, BenchKind, Nic, NicKind, NicUpdate, Timeouts, VhostMode};
pub use overlay::{
    Binding, BindingKey, Endpoint, EndpointUpdate, Flood, Membership, NetworkOptions,
    multicast_group,
};
pub use parse::{
    parse_address, parse_addresses, parse_cidr, parse_groups, parse_mac, parse_masked, parse_vni,
};
pub use rule::{Direction, Icmp, Peer, Ports, Rule, RuleMatch};

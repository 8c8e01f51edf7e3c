//! The router's interfaces as messages; the rest of what it tells is of [`router::messages`].

use api::v1;
use control::InterfaceStatus;
use control::model::{AccessList, Interface};

use crate::tracked_interfaces::Member;
use crate::v1::interface::mode_of;

/// An interface of the router's.
pub fn member(member: Member) -> v1::RouterInterface {
    interface(member.status())
}

/// An interface of the router's with the status that the controller has of it.
pub fn interface(status: InterfaceStatus) -> v1::RouterInterface {
    v1::RouterInterface {
        mode: mode_of(status.mode).into(),
        name: status.name,
        why: status.why,
    }
}

/// An interface as it is declared: of its mode the one that was asked for.
pub fn declared(interface: &Interface) -> v1::RouterInterface {
    v1::RouterInterface {
        name: interface.name.clone(),
        mode: mode_of(interface.mode).into(),
        why: String::new(),
    }
}

/// The access list as it is declared.
pub fn acl(list: &AccessList) -> v1::RouterAccessList {
    v1::RouterAccessList {
        rules: list.rules.iter().map(ToString::to_string).collect(),
        default: if list.default_allows { "allow" } else { "deny" }.into(),
    }
}

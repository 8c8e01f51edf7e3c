//! The helper's own side: one request after the other, each by a thread that enters the namespace
//! and ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink::change::Changes;
use rustix::net::{RecvFlags, SendFlags, send};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, capabilities, move_into_link_name_space,
    set_capabilities, set_no_new_privs,
};
use sys::fd_message;

use super::{Inside, MESSAGE_MAX, Request};

/// Serves the socket that is standard input until its other end is closed. The error is a sentence.
pub fn serve() -> Result<(), String> {
    keep_little().map_err(|e| format!("capabilities cannot be given up: {e}"))?;
    let input = std::io::stdin();
    let socket = input.as_fd();
    while let Some((request, namespace)) = next(socket).map_err(|e| e.to_string())? {
        let answer = match (serde_json::from_slice(&request), namespace) {
            (Ok(Request::SetUp(inside)), Some(namespace)) => {
                within(namespace, move || set_up(&inside))
            }
            (Ok(_), None) => Err("the request comes without a namespace".to_owned()),
            (Err(e), _) => Err(format!("the request cannot be read: {e}")),
        };
        let answer = serde_json::to_vec(&answer).map_err(|e| e.to_string())?;
        send(socket, &answer, SendFlags::NOSIGNAL).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What entering and setting up take, of what there is, and no way to get more.
fn keep_little() -> rustix::io::Result<()> {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let kept = capabilities(None)?.permitted & needed;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    set_no_new_privs(true)
}

/// The next request and the namespace that came with it; `None`: the daemon is gone.
fn next(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let received = fd_message::receive(socket, &mut buffer, 1, RecvFlags::empty())?;
    if received.len == 0 {
        return Ok(None);
    }
    buffer.truncate(received.len);
    Ok(Some((buffer, received.fds.into_iter().next())))
}

/// Runs something on a thread that is in the namespace.
fn within(
    namespace: OwnedFd,
    what: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<(), String> {
    let thread = std::thread::Builder::new().name("namespace".into());
    let thread = thread.spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| format!("the network namespace cannot be entered: {e}"))?;
        what()
    });
    let joined = thread
        .map_err(|e| format!("a thread cannot be started: {e}"))?
        .join();
    joined.unwrap_or_else(|_| Err("the thread in the namespace panicked".to_owned()))
}

fn set_up(inside: &Inside) -> Result<(), String> {
    let name = &inside.name;
    let failed = |what: &dyn std::fmt::Display, e: netlink::Error| format!("{name}: {what}: {e}");
    let plain = |e: netlink::Error| format!("{name}: {e}");
    let mut changes = Changes::new().map_err(plain)?;
    let device = changes.by_name(name).map_err(plain)?;
    let device = device.filter(|device| inside.index.is_none_or(|index| index == device.index));
    let device = device.ok_or_else(|| format!("interface {name} is not there"))?;
    let index = device.index;
    if device.mac != inside.mac() {
        changes.set_mac(index, inside.mac()).map_err(plain)?;
    }
    if device.mtu != u32::from(inside.mtu) {
        changes.set_mtu(index, inside.mtu).map_err(plain)?;
    }
    for route in &inside.routes_gone {
        let route = route.wanted()?;
        let done = changes.remove_route(index, &route);
        done.map_err(|e| failed(&route.to, e))?;
    }
    for (ip, prefix) in &inside.addresses_gone {
        let done = changes.remove_address(index, *ip, *prefix);
        done.map_err(|e| failed(ip, e))?;
    }
    for (ip, prefix) in &inside.addresses {
        let done = changes.add_address(index, *ip, *prefix);
        done.map_err(|e| failed(&format_args!("{ip}/{prefix}"), e))?;
    }
    if !device.up {
        changes.set_up(index, true).map_err(plain)?;
    }
    for route in &inside.routes {
        let route = route.wanted()?;
        let done = changes.add_route(index, &route);
        done.map_err(|e| failed(&route.to, e))?;
    }
    Ok(())
}

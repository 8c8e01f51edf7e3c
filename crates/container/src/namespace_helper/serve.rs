//! The helper's own side: of each asker one request after the other, each by a thread that enters
//! the namespace and ends.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink::change::{Changes, WantedRoute};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, socket_with, socketpair,
    sockopt,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, capabilities, move_into_link_name_space,
    set_capabilities, set_no_new_privs,
};
use sys::fd_message;

use super::{Inside, MESSAGE_MAX, Request, SocketKind};

/// Serves the socket that is standard input until its other end is closed. The error is a sentence.
pub fn serve() -> Result<(), String> {
    keep_little().map_err(|e| format!("capabilities cannot be given up: {e}"))?;
    serve_asker(std::io::stdin().as_fd())
}

fn serve_asker(socket: BorrowedFd<'_>) -> Result<(), String> {
    while let Some((request, namespace)) = next(socket).map_err(|e| e.to_string())? {
        let done = serde_json::from_slice(&request)
            .map_err(|e| format!("the request cannot be read: {e}"))
            .and_then(|request| answer(request, namespace));
        let (said, brought) = match done {
            Ok(brought) => (Ok(()), brought),
            Err(why) => (Err(why), None),
        };
        let said: Result<(), String> = said;
        let said = serde_json::to_vec(&said).map_err(|e| e.to_string())?;
        let fds: Vec<_> = brought.iter().map(AsFd::as_fd).collect();
        fd_message::send(socket, &[IoSlice::new(&said)], &fds, SendFlags::empty())
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Does what is asked for; what the answer brings.
fn answer(request: Request, namespace: Option<OwnedFd>) -> Result<Option<OwnedFd>, String> {
    let without = || "the request comes without a namespace".to_owned();
    match request {
        Request::Another => another().map(Some),
        Request::Make => on_thread(|| make_namespace().map(Some)),
        Request::SetUp(inside) => within(namespace.ok_or_else(without)?, move || {
            set_up(&inside).map(|()| None)
        }),
        Request::SendAllBy { interface, mtu } => {
            within(namespace.ok_or_else(without)?, move || {
                send_all_by(&interface, mtu).map(|()| None)
            })
        }
        Request::Bind {
            kind,
            interface,
            source,
        } => within(namespace.ok_or_else(without)?, move || {
            bound_socket(kind, &interface, source).map(Some)
        }),
    }
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

/// Another pair of sockets, of which one end is served by a thread of its own.
fn another() -> Result<OwnedFd, String> {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
    let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
    let (theirs, ours) = pair.map_err(|e| format!("a pair of sockets cannot be made: {e}"))?;
    let thread = std::thread::Builder::new().name("asker".into());
    // Whoever asks is gone, or is told: there is nobody else to tell.
    let thread = thread.spawn(move || drop(serve_asker(ours.as_fd())));
    thread.map_err(|e| format!("a thread cannot be started: {e}"))?;
    Ok(theirs)
}

/// Runs something on a thread that is in the namespace.
fn within<T: Send + 'static>(
    namespace: OwnedFd,
    what: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    on_thread(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| format!("the network namespace cannot be entered: {e}"))?;
        what()
    })
}

/// Runs something on a thread that ends with it.
fn on_thread<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let thread = std::thread::Builder::new().name("namespace".into());
    let joined = thread
        .spawn(what)
        .map_err(|e| format!("a thread cannot be started: {e}"))?
        .join();
    joined.unwrap_or_else(|_| Err("the thread in the namespace panicked".to_owned()))
}

/// Makes one, for a thread that has no further use of its own.
fn make_namespace() -> Result<OwnedFd, String> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|e| format!("a network namespace cannot be made: {e}"))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    open("/proc/thread-self/ns/net", flags, Mode::empty())
        .map_err(|e| format!("the new network namespace cannot be opened: {e}"))
}

fn send_all_by(interface: &str, mtu: u16) -> Result<(), String> {
    let failed = |e: netlink::Error| format!("{interface}: {e}");
    sys::ethtool::compute_checksums(interface)
        .ok_or_else(|| format!("{interface} does not leave checksums to the kernel"))?;
    let mut changes = Changes::new().map_err(failed)?;
    let index = index_of(&mut changes, interface)?;
    changes.set_up_without_arp(index).map_err(failed)?;
    // A veth takes frames of XDP programs only where packets are merged behind it, or a program is;
    // and the kernel says so only where merging begins while it is up (veth_set_features).
    sys::ethtool::merge_received(interface)
        .ok_or_else(|| format!("{interface} does not merge packets (GRO)"))?;
    let by_default = |to: IpNet| WantedRoute {
        to,
        via: None,
        onlink: false,
        mtu: Some(mtu.into()),
    };
    let (v4, v6) = (Ipv4Net::default().into(), Ipv6Net::default().into());
    changes.add_route(index, &by_default(v4)).map_err(failed)?;
    // Without IPv6 on the host there is none here either, and nothing that needs it.
    let _ = changes.add_route(index, &by_default(v6));
    Ok(())
}

fn bound_socket(kind: SocketKind, interface: &str, source: SocketAddr) -> Result<OwnedFd, String> {
    let (family, prefix) = match source {
        SocketAddr::V4(_) => (AddressFamily::INET, 32),
        SocketAddr::V6(_) => (AddressFamily::INET6, 128),
    };
    let kind = match kind {
        SocketKind::Stream => SocketType::STREAM,
        SocketKind::Datagram => SocketType::DGRAM,
    };
    // Where no interface has an address yet, the kernel binds to any without an error.
    let unaddressed = |e: netlink::Error| format!("{interface}: {}: {e}", source.ip());
    let mut changes = Changes::new().map_err(unaddressed)?;
    let index = index_of(&mut changes, interface)?;
    let added = changes.add_address(index, source.ip(), prefix);
    added.map_err(unaddressed)?;
    let failed = |e: Errno| format!("a socket of {source}: {}", std::io::Error::from(e));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None).map_err(failed)?;
    // A port whose last connection was cut short may be used again.
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
    bind(&socket, &source).map_err(failed)?;
    Ok(socket)
}

fn index_of(changes: &mut Changes, interface: &str) -> Result<u32, String> {
    let found = changes.by_name(interface);
    let found = found.map_err(|e| format!("{interface}: {e}"))?;
    let found = found.ok_or_else(|| format!("interface {interface} is not there"))?;
    Ok(found.index)
}

fn set_up(inside: &Inside) -> Result<(), String> {
    let name = &inside.name;
    let failed = |what: &dyn std::fmt::Display, e: netlink::Error| format!("{name}: {what}: {e}");
    let plain = |e: netlink::Error| format!("{name}: {e}");
    let mut changes = Changes::new().map_err(plain)?;
    let device = match inside.index {
        Some(index) => changes.by_index(index),
        None => changes.by_name(name),
    };
    let device = device.map_err(plain)?;
    let device = device.ok_or_else(|| format!("interface {name} is not there"))?;
    if device.name != *name {
        return Err(format!(
            "interface {name} is not there: it has another name"
        ));
    }
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

//! A container's interface: a veth pair, one end of it in the container's network namespace with
//! address, routes and name, and the way from the other end to the switch.
//!
//! # Theory of operation
//!
//! A NIC of type veth is three interfaces. The container's own (`eth0`) is one end of a pair; the
//! other end is on the host, and beside it is a TAP device, which is the port that a worker polls.
//! The program `bpf/cable.bpf.c` at tc ingress of both of the host's interfaces sends what comes in
//! by the one out by the other, segments whole and checksums begun, so that the host's own stack
//! sees no frame ([`cables`]). Of connections that the switch has let pass it sends the packets
//! straight to the other container; who enters them is the switch.
//!
//! Why a TAP device between, and not a packet socket at the host's end, which would save one
//! interface: the kernel shows packet sockets each frame before any program at tc, so that a
//! program which forwards known flows could not keep their frames from the switch; and it clones
//! each frame for the socket and goes on with it. Why not the TAP device itself in the container,
//! as NICs of type tap may be used: no program can send a frame into another namespace but to the
//! peer of a veth, and the interface would go, with its addresses and routes, whenever the daemon
//! does. The pair stays, and so does the program on it: what comes while there is no switch is
//! dropped.
//!
//! A pair may be of netkit instead. Then the program is at that, and sees what the container sends
//! before it has come in to the host, where a packet cannot be put into another namespace: it is
//! sent to the host's end of the other pair, which has it come in there.
//!
//! The daemon makes the pair itself, the far end right where it belongs, which CAP_NET_ADMIN is
//! enough for. Addresses and routes take a socket of that namespace and so CAP_SYS_ADMIN, which the
//! daemon gives up when it starts: the [`namespace_helper`], a small process of its own, enters
//! namespaces that the daemon has opened and does nothing else.
//!
//! A VMM that uses TAP devices (QEMU's `-netdev tap`, Firecracker) opens one by its name: then that
//! is in the place of the pair, with the same program, and the same flows past the switch. It is
//! persistent and stays, as the pair does. While no VMM has it open, the switch's own device is
//! down, so that the switch drops and counts what is for nobody.
//!
//! A namespace that is not there, or goes, breaks the NIC and does not end it: [`Veths`] says why,
//! and tries again ([`Veths::check`]) until it is there; what goes again and again is made later
//! and later ([`pace`]). Used by the daemon's `attachments`.

pub mod cables;
mod machine_tap;
pub mod namespace;
pub mod namespace_helper;
mod pace;
mod veth;

pub use namespace_helper::NamespaceHelper;
pub use veth::{Broken, Machine, PairSettings, State, Veths, Wanted};

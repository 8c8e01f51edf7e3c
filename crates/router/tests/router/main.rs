//! The router in a namespace of its own, between two TAP devices whose other ends the tests hold:
//! whole frames in, whole frames out. The oracle is the kernel's own forwarding in the same
//! namespace, without the router.

mod acl;
mod another_kernel;
mod cables;
mod capture;
mod changes;
mod counted;
mod devices;
mod flow_cache;
mod full;
mod lab;
mod odd;
mod oracle;
mod ours;
mod packets;
mod peer;
mod scale;
mod sockets;
mod whole;

//! What `butterfly bench forward` measures with: a [`Load`] that sends frames by one interface and
//! counts them at another, a [`Forwarder`] that takes over the forwarding between two others and
//! gives it back to the kernel, and the [`cables`] between them where no interfaces are named.
//!
//! Everything here hangs on this process: programs, threads, namespaces and the interfaces in them
//! are gone with it, however it ends.

pub mod cables;
mod forwarder;
mod load;

pub use forwarder::Forwarder;
pub use load::{Load, Traffic};

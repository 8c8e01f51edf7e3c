//! The programs of `bpf/`, in XDP and at tc ingress: built, loaded, attached, chained, filled and
//! tried.
//!
//! # Theory of operation
//!
//! `build.rs` compiles the C with clang, [`objects`] embeds the result. A feature (uplink,
//! balancer, router) loads its program once ([`Program::load`]; map sizes and constants are set
//! before), fills the program's maps through typed [`Table`]s, and asks [`Interfaces`] to run it on
//! an interface. Several features share an interface: their programs are chained, in the order of
//! [`Feature`], each handing on what is not its own; the first feature there is the program that is
//! attached. A [`AttachPoint`] knows which devices that takes, where the interface is a bond or
//! carries VLANs. Everything hangs on a bpf_link, so that the interface is the kernel's again when
//! the process ends, however it ends; but for what another process
//! [keeps](Interfaces::keep_points), or a BPF file system ([`Pins`]). [`run`] feeds a program with
//! a packet of a test's making and gives back what it made of it.
//!
//! A source that is good for both places is compiled twice and loaded over one set of maps
//! ([`Program::load_both`]); [`Mode::Tc`] runs its part at tc, where checksums that are only begun
//! and segments that are not cut yet stay whole.
//!
//! libbpf-rs (the libbpf project's own binding) and not aya: the programs are C, and libbpf is what
//! C programs' BTF, maps and constants are made for. Its generated skeletons are not used: they
//! bring unsafe code into the crate that includes them, and what they give, names and sizes, is
//! checked here when a table is opened.

mod attach;
mod attach_point;
mod buffers;
mod chain;
mod error;
mod filter;
pub mod objects;
pub mod occupants;
mod pins;
mod program;
mod run;
mod scatter;
mod sink;
mod table;
mod tags;

pub use attach::{
    Attachment, Mode, attach, attach_at_sender_to_stay, attach_by_filter, attach_to_stay,
    is_at_sender,
};
pub use attach_point::{AttachPoint, LinkLayers, Members};
pub use buffers::of_buffers;
pub use chain::{Feature, Interfaces};
pub use error::Error;
pub use libbpf_rs::ErrorKind;
pub use pins::{PinError, Pins};
pub use program::Program;
pub use run::{Run, Verdict, run, run_segments, run_summed, send};
pub use scatter::Scatter;
pub use sink::Sink;
pub use table::{PerCpuTable, Table};
pub use tags::Tags;

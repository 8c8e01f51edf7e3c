//! What the fuzz targets do with their input: one function a target, from bytes to a verdict.
//!
//! # Theory of operation
//!
//! A function here takes any bytes, makes of them what a hostile guest, VMM or client could send,
//! hands that to the code under test and panics when a promise is broken: not only by crashing, but
//! by delivering where nothing may be delivered, by writing where nobody asked to, by answering
//! what does not parse. The promises are in each module's first lines.
//!
//! These functions are called by `fuzz/` (cargo-fuzz, coverage-guided: `make fuzz`) and by this
//! crate's ordinary test, which feeds them the [`seeds`], every file under `fuzz/regressions/`,
//! what campaigns have found and is [`kept`], and some thousand random inputs. A function has no
//! clock, no randomness and no memory of the input before ([`round`] keeps its switch and empties
//! it): an input means the same everywhere.

mod access;
mod cni;
mod decoded;
mod dns;
mod filter;
mod fixture;
mod frames;
mod http;
mod input;
mod keeper;
pub mod kept;
mod netlink;
mod page;
mod ring;
mod round;
pub mod seeds;
mod session;
mod stored;
mod text;
mod tunnel;
mod v0;
mod v1;
mod whole;
mod witness;
mod world;
mod zmtp;

pub use access::access;
pub use cni::cni;
pub use decoded::decoded;
pub use dns::dns;
pub use filter::filter;
pub use frames::frames;
pub use http::http;
pub use keeper::keeper;
pub use netlink::netlink;
pub use page::page;
pub use ring::rings;
pub use round::round;
pub use session::session;
pub use stored::stored;
pub use text::text;
pub use tunnel::tunnel;
pub use v0::v0;
pub use v1::v1;
pub use whole::whole;
pub use zmtp::zmtp;

/// A target: what it is called in `fuzz/`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 20] = [
    ("frames", frames),
    ("rings", rings),
    ("session", session),
    ("round", round),
    ("tunnel", tunnel),
    ("netlink", netlink),
    ("v0", v0),
    ("text", text),
    ("v1", v1),
    ("whole", whole),
    ("decoded", decoded),
    ("dns", dns),
    ("http", http),
    ("page", page),
    ("access", access),
    ("cni", cni),
    ("keeper", keeper),
    ("stored", stored),
    ("zmtp", zmtp),
    ("filter", filter),
];

//! The two protocols that Butterfly speaks, as Rust types.
//!
//! [`v1`] is gRPC, client and server; [`v0`] is protobuf over ZeroMQ as clients of the original
//! speak it, with [ZeroMQ's frames](zmtp), its [strict decoding](strict), its
//! [encryption](encrypted) and its [text format](text_format), which the `dump` and `request`
//! commands read and write; [`json`] shows messages of both in logs, [`decoded`] tells what a v1
//! message takes before it is decoded, and [`shell`] quotes ids in command lines that are shown.
//! The types are generated from `proto/`, and the comments there are the reference manual. Called
//! by the daemon and the command line; knows nothing of either.

/// The version of both programs, and of a release its commit: `0.1.0 (0123456789ab)`.
pub const VERSION: &str = env!("BUTTERFLY_VERSION");

pub mod decoded;
pub mod encrypted;
pub mod json;
pub mod shell;
pub mod strict;
pub mod text_format;
pub mod zmtp;

pub mod v0 {
    //! The v0 protocol. The envelope ([`Messages`], [`Message`], [`Error`]) is in the package
    //! `proto`, everything else ([`MessageV0`], [`Encrypted`]) in none.
    #![allow(
        missing_docs,
        clippy::doc_markdown,
        clippy::large_enum_variant,
        reason = "generated code, whose comments are those of proto/"
    )]
    include!(concat!(env!("OUT_DIR"), "/v0.rs"));
    pub use proto::{Error, Message, Messages};

    /// The protocol's revision in all that we send, as the last release of the original has it. No
    /// program is known to read it.
    pub const REVISION: u32 = 6;

    /// Bytes of an answer at most, and of all answers in a reply before the last one: as soon as
    /// they are more, a daemon carries out no further request of the frame.
    pub const REPLY_MAX: usize = 32 << 20;

    /// Bytes of a whole reply at most, before it is encrypted.
    pub const WHOLE_REPLY_MAX: usize = 2 * REPLY_MAX;

    /// The descriptor set of the v0 files.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v0.desc"));
}

pub mod v1 {
    //! The v1 protocol: messages, [`butterfly_client`] and [`butterfly_server`].
    #![allow(
        missing_docs,
        clippy::doc_markdown,
        clippy::large_enum_variant,
        reason = "generated code, whose comments are those of proto/"
    )]
    mod tree {
        include!(concat!(env!("OUT_DIR"), "/v1.rs"));
    }
    pub use tree::butterfly::v1::*;

    /// The descriptor set of the v1 file.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v1.desc"));
}

//! The v0 API: protobuf over ZeroMQ, as clients of the original daemon speak it. A decoder over the
//! controller.
//!
//! [`server`] has the connections, [`zmtp`] the bytes on them, [`handler`] the envelope with its
//! encryption, and [`requests`] what is asked for; [`few`] is what clients share; [`convert`] turns
//! messages into the model and back.

mod convert;
mod few;
pub mod handler;
mod requests;
pub mod server;
pub(crate) mod zmtp;

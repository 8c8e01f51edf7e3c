//! The v0 API: protobuf over ZeroMQ, as clients of the original daemon speak it. A decoder over the
//! controller.
//!
//! What clients send is parsed in the [reader](crate::reader): [`conversation`] has it in hand,
//! [`zmtp`] the bytes, [`envelope`] the messages and their encryption. The daemon has the rest:
//! [`server`] the connections, [`handler`] the messages, [`requests`] what is asked for; [`key`]
//! reads its key; [`few`] is what clients share; [`convert`] turns messages into the model and
//! back.

pub mod conversation;
mod convert;
pub mod envelope;
mod few;
pub mod handler;
pub mod key;
mod requests;
pub mod server;
pub(crate) mod zmtp;

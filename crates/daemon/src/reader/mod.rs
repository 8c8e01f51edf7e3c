//! What strangers send is parsed in processes that can do nothing with it.
//!
//! Clients of API v0, clients that come over TLS, and servers that answer health checks send bytes
//! before anybody knows who they are, and libraries parse them. A mistake in one of those is not to
//! be worth the host's network. So a *reader*, a process of its own, gets the connection itself: it
//! holds no capability, can open no file, make no socket and run nothing
//! ([`sys::reading_only`]), and is nobody where the daemon is root; it becomes so itself, when no
//! other process of nobody's can look into it any more. The daemon accepts the
//! connection, asks the kernel who is there, passes the descriptor on, and keeps one end of a pair
//! of sockets, over which it gets what was understood:
//!
//! - of a client of v0 ([`conversation`](crate::v0::conversation)), whose ZMTP, encryption and
//!   protobuf messages the reader parses: requests, which our own encoder has written again;
//! - of a client over TLS ([`relay`]), whose handshake, certificate and records it parses: the
//!   certificate's names, and then the clear bytes;
//! - of a server that is checked ([`checks`]), whose TLS, HTTP or DNS it parses: that all is well,
//!   or why not.
//!
//! There are two readers, one for clients and one for health answers, so that no client can have a
//! server look dead. Each is started when it is first needed. One that ends is started again, and
//! so is one that does not answer for as long as a thread may hang; the connections that it had end
//! with it, as if the other side had hung up.
//!
//! What a reader that is taken over can still do: say that a connection which it has is of somebody
//! else (it has the keys), and that a server is well or not.

pub mod checks;
mod process;
mod relay;
mod started;
pub mod words;

pub use process::{ARGUMENT, serve};
pub use relay::{NoClient, Protocol, Secured, secure};
pub use started::Reader;

//! Addresses told to routers by BGP, from a file of settings alone.
//!
//! # Theory of operation
//!
//! The speaker is BIRD, as a child of this process: [`Speaker`] writes its whole configuration
//! ([`configuration`]) from what the operator says of the neighbours ([`Settings`]) and from the
//! routes that are to be told, each with its metric, and has BIRD read it anew by its control
//! socket when the routes change. BIRD compares, and tells its neighbours what differs.
//!
//! Weighed: no Rust library of BGP that speaks, and not only parses, is kept as BIRD and FRR are;
//! GoBGP would be a second runtime in the package; a speaker of our own is months until it is as
//! tried by others' routers. FRR needs two daemons and its own user's folders for what one BIRD
//! does. BIRD brings the TCP MD5 signature (RFC 2385), communities (RFC 1997, 8092), BFD (RFC 5880)
//! and the hold timer.
//!
//! **A session that BIRD has given up** it takes up again when it is told so, and only then: it
//! does not try again to listen on a port that another program has. So whoever has a speaker asks
//! it for its [sessions](Speaker::sessions), and tells it [once more](Speaker::announce_again).
//!
//! **It ends with us.** BIRD runs beside a shell that reads from a pipe, whose other end this
//! process has: whatever ends this process, the shell then ends BIRD, which closes its sessions
//! with a notification, and the neighbours drop the routes at once. Where the shell is killed the
//! kernel ends BIRD (`setpriv --pdeathsig TERM`). Where the host itself is gone, BFD or the hold
//! time tells them. Nothing but announced routes goes out, nothing comes in, and the kernel's
//! tables are not touched.
//!
//! **Or with the next one.** A process that hands [its end of the pipe](Pipes) to another one
//! leaves it BIRD as it is: no session ends, and no route is withdrawn.

mod configuration;
mod error;
mod session;
mod settings;
mod speaker;

pub use configuration::{Routes, configuration};
pub use error::Error;
pub use session::{Session, State};
pub use settings::{Community, Family, Neighbour, Password, Settings};
pub use speaker::{Pipes, Speaker};

//! What the sessions share: a daemon of one's own, the command line that drives it, and the hosts around it.
//!
//! The programs tested are the ones beside the test binary (`target/debug`, `target/release`), as `make test` builds
//! them; nothing of the daemon is linked in here.

pub mod daemon;
pub mod lab;

pub use daemon::Daemon;
pub use lab::Lab;

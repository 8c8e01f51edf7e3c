//! What this host counts, for Prometheus: `/metrics` over HTTP, where `--metrics` says.
//!
//! [`families`] is the table of all that is told, which docs/metrics.md repeats for users; a test
//! compares the two. For every scrape [`gather`] reads the counters, which no worker is asked for
//! but for a handful of its own numbers, and [`encode`] writes them in the order of the table, by
//! the library of the Prometheus project. [`requests`] counts what the APIs are asked, as it
//! happens. [`server`] speaks HTTP: OpenMetrics 1.0 to who takes it, else the text format 0.0.4.
//!
//! The controller's lock is held while NICs and rules are read, not while they are written out;
//! one scrape is made at a time.

mod encode;
mod families;
mod gather;
mod process;
mod requests;
pub mod server;

pub use requests::Requests;

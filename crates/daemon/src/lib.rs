//! The data plane of one host, as the daemon `butterflyd`.
//!
//! # Theory of operation
//!
//! Threads. The *worker* moves frames and nothing else; it is told what to do by commands that it
//! answers between two batches. The *vhost-user* thread speaks to VMMs and hands finished ports to
//! the worker. A small tokio runtime serves the APIs; an operation takes the
//! [controller](control::Controller)'s lock on a thread that may wait. Trace files have a thread
//! each. A task keeps the uplinks in line with what the kernel knows, a thread of its own the
//! router. Whoever panics outside of the runtime ends the process: half a switch is worse than a
//! restart.
//!
//! Both APIs are decoders over the controller: v0 for clients of the original daemon, v1 for
//! everybody else.
//!
//! # What is public
//!
//! What the program itself needs ([`run_program`]), and in [`decoders`] what stands between
//! somebody's bytes and the daemon, for whoever drives that without sockets and files.

mod access;
mod app;
mod arrivals;
mod attachments;
mod audit;
mod balancer;
mod bench_report;
mod connections;
mod cores;
mod datagrams;
mod deaf;
mod deaths;
pub mod decoders;
mod dpdk_args;
mod events;
mod features;
mod flow_log;
mod forgotten;
mod handover;
mod held;
mod http;
mod idle_states;
mod ini;
mod kernel;
mod kernel_flows;
mod lines;
mod lock;
mod log_repeats;
mod logging;
mod metrics;
mod mirrors;
mod namespaces;
#[cfg(test)]
mod nowhere;
mod option_interfaces;
mod options;
mod page;
mod places;
mod privileges;
mod program;
mod reader;
mod reload;
mod router;
mod run;
mod sflow;
mod shares;
mod start_gate;
mod states;
mod stored;
mod tracked_interfaces;
mod underlay;
mod unix_socket;
mod upgrade;
mod uplinks;
mod v0;
mod v1;
mod watchdog;
mod worker_thread;

pub use program::{Failure, run_program};

//! `butterflyd`: the data plane of one host.
//!
//! # Theory of operation
//!
//! Threads. The *worker* moves frames and nothing else; it is told what to do by commands that it
//! answers between two batches. The *vhost-user* thread speaks to VMMs and hands finished ports to
//! the worker. A small tokio runtime serves the APIs; an operation takes the
//! [controller](control::Controller)'s lock on a thread that may wait. Trace files have a thread
//! each. A task keeps the [uplinks](uplinks) in line with what the kernel knows, a thread of its
//! own the [router]. Whoever panics outside of the runtime ends the process: half a switch is worse
//! than a restart.
//!
//! Both APIs are decoders over the controller: [`v0`] for clients of the original daemon, [`v1`]
//! for everybody else.

mod app;
mod attachments;
mod balancer;
mod bench_report;
mod connections;
mod cores;
mod dpdk_args;
mod events;
mod idle_states;
mod ini;
mod kernel;
mod lock;
mod logging;
mod options;
mod places;
mod port_states;
mod router;
mod run;
mod tracked_interfaces;
mod underlay;
mod unix_socket;
mod uplinks;
mod v0;
mod v1;
mod worker_thread;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Options, Settings};

/// The command line or a file it names is wrong (sysexits would say 64 and 78; clap says 2).
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.dpdk_help {
        print!("{}", dpdk_args::help());
        return ExitCode::SUCCESS;
    }
    let settings = match Settings::resolve(options) {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("butterflyd: {why}");
            return ExitCode::from(USAGE);
        }
    };
    let log = logging::start(settings.log_level, settings.no_syslog);
    match run::run(settings, log.clone()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            // Whoever started us by hand may not read the journal.
            if !log.errors_on_stderr() {
                eprintln!("butterflyd: {why}");
            }
            ExitCode::FAILURE
        }
    }
}

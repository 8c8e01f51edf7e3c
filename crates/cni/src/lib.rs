//! `butterfly-cni`: the plugin by which container runtimes (containerd, CRI-O, podman) give
//! containers their interfaces: CNI, specification 1.1 and all before it
//! (github.com/containernetworking/cni, SPEC.md). docs/containers.md has a configuration.
//!
//! # Theory of operation
//!
//! A runtime calls the program once for each operation; the operation and the container are in the
//! environment ([`call`]), the network's configuration on standard input ([`config`]), and the
//! answer or the error goes to standard output ([`result`]). An interface is a NIC of type veth,
//! put and deleted over API v1 ([`daemon`]); its id is made of the network's name, the container's
//! id and the interface's name, so that whatever was added can be found again by those alone. Its
//! addresses are given by another plugin (`host-local`, `dhcp`), or by [`ipam`], which keeps them
//! in a file.
//!
//! What fails half way is taken back: a failed ADD leaves neither a NIC nor a lease.

mod call;
mod check;
mod config;
mod daemon;
mod error;
mod ipam;
mod meant;
mod operations;
mod result;

use std::io::{Read, Write};
use std::process::ExitCode;

use call::{Call, Command};
use config::Config;
use error::Error;
use serde_json::Value;

pub use meant::{Meant, meant};

/// A configuration is a page or two.
const INPUT_MAX: u64 = 16 << 20;

/// The program.
pub fn main() -> ExitCode {
    let mut version = result::NEWEST.to_owned();
    let (answer, code) = match run(&mut version) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(error) => (Some(error.told(&version)), ExitCode::FAILURE),
    };
    if let Some(answer) = answer {
        // A runtime that does not listen has its answer in the code.
        let _ = writeln!(std::io::stdout(), "{answer:#}");
    }
    code
}

/// The operation that the environment says; `version` becomes the configuration's.
fn run(version: &mut String) -> Result<Option<Value>, Error> {
    let call = Call::from_environment()?;
    let mut input = String::new();
    let read = std::io::stdin().take(INPUT_MAX).read_to_string(&mut input);
    read.map_err(|e| Error::io(format!("standard input cannot be read: {e}")))?;
    if call.command == Command::Version {
        return Ok(Some(result::versions(&input)));
    }
    let config = Config::parse(&input)?;
    version.clone_from(&config.version);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| Error::io(format!("no runtime: {e}")))?;
    runtime.block_on(operations::run(&call, &config))
}

//! `butterflyd`: the command line, the log, and then the daemon, which is a library. Started by the
//! daemon itself with one argument, it is the namespace helper (`container::namespace_helper`) or who
//! waits for a guest's pages (`io::post_copy::helper`) instead.

use std::process::ExitCode;

use butterfly_daemon::{Options, Predecessor, Settings, keep, run, start_log};
use clap::Parser;

/// The command line or a file it names is wrong (sysexits would say 64 and 78; clap says 2).
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    let is = |argument| first.as_ref().is_some_and(|first| first == argument);
    if is(container::namespace_helper::ARGUMENT) {
        return end("namespace helper", container::namespace_helper::serve());
    }
    if is(io::post_copy::helper::ARGUMENT) {
        return end("helper of post-copy", io::post_copy::helper::serve());
    }
    let options = Options::parse();
    if let Some(text) = options.text_asked_for() {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    if let Some((socket, until_idle)) = options.keeper_asked_for() {
        return match keep(socket, until_idle) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("butterflyd: {why}");
                ExitCode::FAILURE
            }
        };
    }
    let predecessor = options.takes_over().then(Predecessor::at_stdin);
    let predecessor = match predecessor.transpose() {
        Ok(predecessor) => predecessor,
        Err(why) => {
            eprintln!("butterflyd: {why}");
            return ExitCode::from(USAGE);
        }
    };
    let settings = match Settings::resolve(options) {
        Ok(settings) => settings,
        Err(why) => {
            if let Some(predecessor) = predecessor {
                predecessor.refuse(&why);
            }
            eprintln!("butterflyd: {why}");
            return ExitCode::from(USAGE);
        }
    };
    let log = start_log(&settings);
    match run(settings, log.clone(), predecessor) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log.last_words(&why);
            ExitCode::FAILURE
        }
    }
}

/// How a process ends that is not the daemon itself.
fn end<E: std::fmt::Display>(what: &str, result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("butterflyd: {what}: {why}");
            ExitCode::FAILURE
        }
    }
}

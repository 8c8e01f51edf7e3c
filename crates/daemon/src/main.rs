//! `butterflyd`: the command line, the log, and then the daemon, which is a library. Started by the
//! daemon itself with one argument, it is the keeper of namespaces instead (`container::keeper`).

use std::process::ExitCode;

use butterfly_daemon::{Options, Predecessor, Settings, keep, run, start_log};
use clap::Parser;

/// The command line or a file it names is wrong (sysexits would say 64 and 78; clap says 2).
const USAGE: u8 = 2;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == container::keeper::ARGUMENT)
    {
        return keep_namespaces();
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

fn keep_namespaces() -> ExitCode {
    match container::keeper::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("butterflyd: keeper of namespaces: {why}");
            ExitCode::FAILURE
        }
    }
}

//! `butterflyd`: the command line, the log, and then the daemon, which is a library.

use std::process::ExitCode;

use butterfly_daemon::{Options, Settings, run, start_log};
use clap::Parser;

/// The command line or a file it names is wrong (sysexits would say 64 and 78; clap says 2).
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(text) = options.text_asked_for() {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    let settings = match Settings::resolve(options) {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("butterflyd: {why}");
            return ExitCode::from(USAGE);
        }
    };
    let log = start_log(&settings);
    match run(settings, log.clone()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log.last_words(&why);
            ExitCode::FAILURE
        }
    }
}

//! `butterflyd`: the daemon, and the processes that it starts. All of it is a library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match butterfly_daemon::run_program(std::env::args_os().nth(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

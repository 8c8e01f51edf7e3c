//! `butterfly`, the command line of the Butterfly data plane.
//!
//! Theory of operation. The arguments are a chain of commands joined by `+`; [`chain`] parses them
//! all before the first runs. Each [`command`] is a thin face over the operations of a
//! [`client::Client`], which speaks API v1 (gRPC) or API v0 (ZeroMQ) as the endpoint's scheme says.
//! The commands think in API v1 messages alone; [`translate`] turns them into v0's and back, which
//! is also what `dump` and `request` are made of. Answers are printed by [`output`]; errors are one
//! sentence on stderr and the exit codes of [`error`].

mod chain;
mod client;
mod command;
mod doctor;
mod endpoint;
mod error;
mod forwarding;
mod help;
mod json;
#[cfg(test)]
mod manual;
mod options;
mod output;
mod query;
mod session;
mod stay;
mod top;
mod translate;
mod words;

use std::process::ExitCode;

use chain::{Chain, ParseError};
use error::Error;
use session::Session;

fn main() -> ExitCode {
    let chain = match chain::parse(std::env::args_os()) {
        Ok(chain) => chain,
        // Prints help and version to stdout, mistakes to stderr; a closed pipe is no failure here
        // either.
        Err(ParseError::Part(error)) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
        Err(ParseError::Chain(error)) => return fail(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime
        .map_err(Error::Output)
        .and_then(|runtime| runtime.block_on(run(chain)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Runs the commands in order; the first failure ends the chain.
async fn run(chain: Chain) -> Result<(), Error> {
    let mut session = Session::new(chain.global);
    let of = chain.commands.len();
    let mut commands = chain.commands.into_iter();
    while let Some(command) = commands.next() {
        session.goes_on(commands.len() > 0);
        let done = command.run(&mut session).await;
        // Also after a failure: what was done and printed before it is true. Why it failed is more
        // than that nobody reads that.
        let printed = session.finish();
        let first = of - commands.len() + 1;
        match done.and(printed) {
            Err(error) if error.is_closed_pipe() && !commands.all(|next| next.only_prints()) => {
                return Err(Error::LeftUndone { first, of });
            }
            done => done?,
        }
    }
    Ok(())
}

fn fail(error: &Error) -> ExitCode {
    if !error.is_closed_pipe() {
        output::say(&format!("butterfly: {error}\n"));
    }
    error.exit_code()
}

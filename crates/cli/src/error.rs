//! What can go wrong on the command line, and the exit code a script sees for it.
//! Every message is one sentence for stderr that names the thing and the value.

use std::io;
use std::process::ExitCode;

/// The help text about exit codes; `docs/cli.md` carries it too.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done (also: what was to be deleted was not there, what was to be added was there already)
  1  the daemon refused; its reason is on stderr
  2  wrong usage: a command, an option or an input file that cannot be used
  3  the daemon cannot be reached, or gave no answer in time
  4  the output could not be written
A command that ends with 1 or 2 has changed nothing, but of several names that it was given those
before the refused one are done. With 3 the daemon may have done what was asked, or may do it yet:
no answer came. With 4 it is done, and could not be told. That nobody reads the output any more is
no failure, unless commands of the chain that do more than print are left undone: then it is 4. The
commands before it in a chain are done, those behind it are not. No command of a chain with a usage
mistake runs.";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon understood and said no; the text is the daemon's.
    #[error("{0}")]
    Refused(String),
    /// The command, an option or an input file cannot be used.
    #[error("{0}")]
    Usage(String),
    /// No daemon there, the connection broke, or no answer in time.
    #[error("{0}")]
    Unreachable(String),
    /// Standard output or an output file cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Who read the output has gone, and commands of the chain that do more than print were not
    /// run.
    #[error(
        "nobody reads the output any more: command {first} of {of} and those behind it were not run"
    )]
    LeftUndone { first: usize, of: usize },
}

impl Error {
    /// The code for `exit(2)`. A reader that closed the pipe (`butterfly nic list | head -1`) is no
    /// failure where nothing is left undone.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Error::Refused(_) => 1,
            Error::Usage(_) => 2,
            Error::Unreachable(_) => 3,
            Error::Output(_) if self.is_closed_pipe() => 0,
            Error::Output(_) | Error::LeftUndone { .. } => 4,
        })
    }

    /// True when the reader of our output went away: the command ends without a word.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// An operation that only API v1 has, asked of a v0 endpoint.
    pub fn needs_v1(what: &str, endpoint: &str) -> Error {
        Error::Usage(format!(
            "{what} needs API v1, and {endpoint} speaks v0: use -e unix:PATH or -e \
             https://HOST:PORT"
        ))
    }
}

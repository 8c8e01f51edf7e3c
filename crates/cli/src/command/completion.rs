//! `butterfly completion`: scripts that complete commands and options in a shell.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::{Shell, generate};

use crate::error::Error;
use crate::help;
use crate::session::Session;

/// `completion`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly completion bash > /etc/bash_completion.d/butterfly")]
pub struct CompletionArgs {
    /// The shell
    shell: For,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum For {
    Bash,
    Zsh,
    Fish,
}

impl CompletionArgs {
    /// Prints the shell's script.
    pub fn run(self, session: &mut Session) -> Result<(), Error> {
        let shell = match self.shell {
            For::Bash => Shell::Bash,
            For::Zsh => Shell::Zsh,
            For::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        generate(shell, &mut help::command(), "butterfly", &mut script);
        session.out.text(&String::from_utf8_lossy(&script))
    }
}

/// `man`, for those who make packages.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly man /usr/share/man/man1")]
pub struct ManArgs {
    /// The folder, which must be there
    folder: PathBuf,
}

impl ManArgs {
    /// Writes a page of the manual for each command: butterfly.1, butterfly-nic-add.1, …
    pub fn run(self) -> Result<(), Error> {
        let command = help::command();
        clap_mangen::generate_to(command, &self.folder)
            .map_err(|e| Error::Usage(format!("manual pages in {}: {e}", self.folder.display())))
    }
}

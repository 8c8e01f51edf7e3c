//! `butterfly completion`: scripts that complete commands and options in a shell.

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

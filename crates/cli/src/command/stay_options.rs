//! Whether what a command without a daemon does goes on when it ends ([`crate::stay`]).

use std::path::PathBuf;

use clap::Args;

use crate::error::Error;
use crate::query::Alone;
use crate::stay::{self, FOLDER, Stay};

/// The option for it.
#[derive(Args, Debug)]
pub struct StayOptions {
    /// Leave the programs where they are when this ends, for the next command with --stay, which
    /// goes on with them; in a folder of the BPF file system [default: /sys/fs/bpf/butterfly]
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true,
        default_missing_value = FOLDER)]
    stay: Option<PathBuf>,
}

impl StayOptions {
    /// What a command before has left, if this one is to go on with it.
    pub fn begin(&self, kind: Alone) -> Result<Option<Stay>, Error> {
        let folder = self.stay.as_deref();
        folder.map(|folder| Stay::begin(kind, folder)).transpose()
    }

    /// What is to be added to what is said of an interface that cannot be had.
    pub fn hint(&self, kind: Alone) -> String {
        match self.stay {
            None => stay::hint(kind),
            Some(_) => String::new(),
        }
    }
}

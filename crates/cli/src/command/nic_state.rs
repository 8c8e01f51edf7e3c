//! `butterfly flows export` and `flows import`: a NIC's connections and counters, opaque bytes that
//! follow a machine to its next host.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::error::Error;
use crate::session::Session;

/// `flows export`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly flows export vnic_1 --file vnic_1.state")]
pub struct ExportArgs {
    /// Id of the NIC
    nic: String,
    /// Where to write; - is standard output
    #[arg(short, long, default_value = "-")]
    file: PathBuf,
}

/// `flows import`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly flows import vnic_1 vnic_1.state")]
pub struct ImportArgs {
    /// Id of the NIC
    nic: String,
    /// What `flows export` wrote; - is standard input
    file: PathBuf,
}

impl ExportArgs {
    /// Writes the NIC's connections to the file, or to standard output.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let to_stdout = self.file.as_os_str() == "-";
        if to_stdout && io::stdout().is_terminal() {
            return Err(Error::Usage(
                "the connections are binary: name a --file, or redirect the output".into(),
            ));
        }
        let state = session.client().await?.export_nic(&self.nic).await?;
        if to_stdout {
            session.out.flush()?;
            let mut stdout = io::stdout();
            stdout.write_all(&state)?;
            return Ok(stdout.flush()?);
        }
        std::fs::write(&self.file, &state).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.file.display()))
        })?;
        match session.out.json {
            true => session
                .out
                .value(&json!({ "id": self.nic, "bytes": state.len() })),
            false => Ok(()),
        }
    }
}

impl ImportArgs {
    /// Takes in the connections in the file, and prints how many they are.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let state = read_file(&self.file)?;
        let flows = session.client().await?.import_nic(&self.nic, state).await?;
        match session.out.json {
            true => session
                .out
                .value(&json!({ "id": self.nic, "flows": flows })),
            false => session.out.text(&flows.to_string()),
        }
    }
}

/// The content of an input file; `-` is standard input.
pub fn read_file(path: &PathBuf) -> Result<Vec<u8>, Error> {
    let mut content = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().read_to_end(&mut content).map(|_| content),
        false => std::fs::read(path),
    };
    read.map_err(|error| Error::Usage(format!("cannot read {}: {error}", path.display())))
}

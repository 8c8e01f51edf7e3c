//! `butterfly flows export` and `flows import`: a NIC's connections and counters, opaque bytes that
//! follow a machine to its next host.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
        put_in_place(&self.file, &state).map_err(|error| {
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

/// Puts a file where none or another one is, as a whole. It is for its owner alone, since it says
/// what connections can be spoken on with. A link is neither followed nor replaced.
fn put_in_place(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "what is there is no file, and stays",
            ));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut new = std::ffi::OsString::from(".");
    new.push(name);
    new.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(new);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let done = file.write_all(content);
    let done = done.and_then(|()| fs::rename(&new, path));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_exported_is_its_owner_s_alone_and_goes_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        put_in_place(&at("new"), b"first").unwrap();
        assert_eq!(mode(&at("new")), 0o600);
        // One that everybody can read, and somebody has open.
        fs::set_permissions(at("new"), PermissionsExt::from_mode(0o666)).unwrap();
        let mut open = fs::File::open(at("new")).unwrap();
        put_in_place(&at("new"), b"second").unwrap();
        assert_eq!(mode(&at("new")), 0o600);
        let mut seen = Vec::new();
        open.read_to_end(&mut seen).unwrap();
        assert_eq!(seen, b"first");
        assert_eq!(fs::read(at("new")).unwrap(), b"second");

        fs::write(at("other"), b"is as it was").unwrap();
        symlink(at("other"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        for link in ["link", "dangling"] {
            let refused = put_in_place(&at(link), b"third").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{link}");
            assert!(at(link).is_symlink(), "{link}");
        }
        assert_eq!(fs::read(at("other")).unwrap(), b"is as it was");
        assert!(!at("nothing").exists());
        assert!(put_in_place(&at("."), b"third").is_err());
        // Nothing else is left.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }
}

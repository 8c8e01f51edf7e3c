//! This project's daemon with a store and a keeper, as a service has them: what is to outlive it
//! does.

use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use super::butterfly::{self, butterfly, sibling};
use super::process::{self, PeerError, Process};

/// A daemon that is killed, stopped and upgraded, and is there again.
pub struct Lasting {
    // In the order in which they go; `None` between two daemons.
    daemon: Option<Process>,
    _keeper: Process,
    dir: TempDir,
    /// Whose network namespace it runs in.
    holder: Option<u32>,
    core: String,
    options: Vec<String>,
}

impl Lasting {
    /// One worker on `core`, in the network namespace of process `holder`, with more options.
    pub fn start(holder: Option<u32>, core: usize, options: &[&str]) -> Result<Lasting, PeerError> {
        process::inherit()?;
        let dir =
            tempfile::tempdir().map_err(|e| PeerError(format!("temporary directory: {e}")))?;
        let path = |name: &str| dir.path().join(name);
        let (socket, log) = (path("keeper.sock"), path("keeper.log"));
        let mut command = Process::command(sibling("butterflyd")?);
        command.arg("--as-keeper").arg(&socket);
        let keeper = Process::start(&mut command, &log)?;
        process::wait_for(&[&socket], &log)?;
        let mut all: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        for (option, name) in [("--store", "store"), ("--keeper", "keeper.sock")] {
            all.extend([option.to_owned(), path(name).display().to_string()]);
        }
        let mut lasting = Lasting {
            daemon: None,
            _keeper: keeper,
            dir,
            holder,
            core: core.to_string(),
            options: all,
        };
        lasting.again()?;
        Ok(lasting)
    }

    /// Where its sockets are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends the daemon by this signal, and starts the next one.
    pub fn ended_and_started(&mut self, signal: Signal) -> Result<(), PeerError> {
        self.daemon
            .take()
            .map_or(Ok(()), |daemon| daemon.end(signal))?;
        self.again()
    }

    /// `butterfly upgrade`, to the same program.
    pub fn upgraded(&mut self) -> Result<(), PeerError> {
        let said = butterfly(self.dir(), "upgrade")?;
        let pid = heir(&said).ok_or_else(|| PeerError(format!("no process in '{said}'")))?;
        let Some(daemon) = &mut self.daemon else {
            return Err(PeerError("there is no daemon to be upgraded".to_owned()));
        };
        daemon.succeeded_by(pid)
    }

    fn again(&mut self) -> Result<(), PeerError> {
        // Those of one that was killed would be taken for the next one's.
        for name in ["api.sock", "v0.sock"] {
            let _ = std::fs::remove_file(self.dir().join(name));
        }
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let core = Some(self.core.as_str());
        let daemon = butterfly::daemon_in(self.holder, self.dir.path(), core, &options)?;
        self.daemon = Some(daemon);
        Ok(())
    }
}

/// Who has taken the daemon's place, by what the command says.
fn heir(said: &str) -> Option<u32> {
    let (_, rest) = said.split_once("as process ")?;
    rest.split(';').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_next_process_is_found_in_what_the_command_says() {
        let said = "butterflyd 1.0 goes on as process 4711; no frame was forwarded for 1.2 ms\n";
        assert_eq!(super::heir(said), Some(4711));
        assert_eq!(super::heir("done"), None);
    }
}

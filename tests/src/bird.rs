//! BIRD, a routing daemon (`tools/setup.sh` installs Debian's): one in a namespace.

use std::path::PathBuf;

use testkit::Result;
use testkit::netns::Namespace;
use testkit::process::{self, Process};

/// Whether it is installed, and if not a line that says so.
pub fn is_here() -> bool {
    let is_here = process::run(&["bird", "--version"]).is_ok();
    if !is_here {
        eprintln!("skipped: there is no BIRD here (tools/setup.sh installs Debian's)");
    }
    is_here
}

/// One that runs, until dropped.
#[derive(Debug)]
pub struct Bird {
    process: Process,
    control: PathBuf,
    _dir: tempfile::TempDir,
}

impl Bird {
    /// Starts one in a namespace. `id` is its router id, of the form of an IPv4 address;
    /// `protocols` its configuration but for the interfaces, which it always knows.
    pub fn start(host: &Namespace, id: &str, protocols: &str) -> Result<Self> {
        let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let (config, control) = (dir.path().join("conf"), dir.path().join("control"));
        let text = format!("router id {id};\nprotocol device {{ scan time 1; }}\n{protocols}");
        std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
        let command = format!("bird -f -c {} -s {}", config.display(), control.display());
        Ok(Bird {
            process: host.start(&format!("bird-{id}"), &command)?,
            control,
            _dir: dir,
        })
    }

    /// A command of `birdc`'s.
    pub fn run(&self, command: &str) -> Result<String> {
        let control = self.control.display().to_string();
        let words = ["birdc", "-s", &control];
        process::run(
            &words
                .into_iter()
                .chain(command.split(' '))
                .collect::<Vec<_>>(),
        )
    }

    /// It is gone without a word.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

//! FRR, a routing daemon that others' networks run (`tools/setup.sh` installs Debian's): a speaker
//! of BGP in a namespace, and of BFD.

use std::path::Path;
use std::time::Duration;

use crate::netns::Namespace;
use crate::process::{self, Process};
use crate::{Result, wait_for};

/// Where Debian has its daemons.
const DAEMONS: &str = "/usr/lib/frr";

/// Whether it is installed.
pub fn is_here() -> bool {
    Path::new(DAEMONS).join("bgpd").exists()
}

/// Who speaks to whom: AS number and address.
pub type Party<'a> = (u32, &'a str);

/// One side of a session with its tables, until dropped.
#[derive(Debug)]
pub struct Speaker {
    bgpd: Process,
    _bfdd: Process,
    _zebra: Process,
    dir: tempfile::TempDir,
}

impl Speaker {
    /// Starts one in a namespace. `more` is what it says beside the session, within `router bgp`
    /// and behind it.
    pub fn start(
        namespace: &Namespace,
        own: Party<'_>,
        other: Party<'_>,
        more: &str,
    ) -> Result<Self> {
        let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let zebra = start(namespace, "zebra", dir.path(), "")?;
        let socket = dir.path().join("zserv.api");
        wait_for("zebra", Duration::from_secs(60), || {
            Ok(socket.exists().then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", zebra.log()))?;
        let settings = format!(
            "router bgp {}\n bgp router-id {}\n no bgp ebgp-requires-policy\n timers bgp 1 3\n \
             neighbor {peer} remote-as {}\n neighbor {peer} timers connect 1\n{more}",
            own.0,
            own.1,
            other.0,
            peer = other.1
        );
        Ok(Self {
            _bfdd: start(namespace, "bfdd", dir.path(), "")?,
            bgpd: start(namespace, "bgpd", dir.path(), &settings)?,
            _zebra: zebra,
            dir,
        })
    }

    /// What it answers to a command of its shell, by which its operators ask it.
    pub fn ask(&self, command: &str) -> Result<String> {
        let dir = self.dir.path().display().to_string();
        process::run(&["vtysh", "--vty_socket", &dir, "-c", command])
    }

    /// Its BGP daemon is gone without a word.
    pub fn kill(&mut self) {
        self.bgpd.kill();
    }
}

/// One of the daemons. They give up root's rights, so the folder is theirs.
fn start(namespace: &Namespace, daemon: &str, dir: &Path, settings: &str) -> Result<Process> {
    let (dir, config) = (
        dir.display().to_string(),
        dir.join(format!("{daemon}.conf")),
    );
    std::fs::write(&config, settings).map_err(|e| format!("{}: {e}", config.display()))?;
    process::run(&["chown", "-R", "frr:frr", &dir])?;
    let control = match daemon {
        "bfdd" => format!(" --bfdctl {dir}/bfdd.sock"),
        _ => String::new(),
    };
    let command = format!(
        "{DAEMONS}/{daemon} -f {} -i {dir}/{daemon}.pid -z {dir}/zserv.api --vty_socket {dir} \
         -P 0{control}",
        config.display()
    );
    namespace.start(daemon, &command)
}

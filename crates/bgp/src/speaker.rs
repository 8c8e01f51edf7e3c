//! BIRD as our child: started, told, ended.

use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::unistd::User;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, capabilities};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

use crate::configuration::{Routes, configuration};
use crate::error::Error;
use crate::settings::Settings;

/// What BIRD is asked takes it milliseconds; its start and its end no second.
const PATIENCE: Duration = Duration::from_secs(10);
/// Whose BIRD is, where there is such a user (Debian's package makes it).
const USER: &str = "bird";
/// What it may do beside what every program may: the port below 1024, the signature of TCP, BFD.
const CAPABILITIES: &str = "net_admin,+net_bind_service,+net_raw";

/// A BIRD that runs. Dropped, it is ended, and its neighbours forget what it has told.
#[derive(Debug)]
pub struct Speaker {
    settings: Settings,
    folder: PathBuf,
    pid: Pid,
    ended: watch::Receiver<Option<String>>,
}

impl Speaker {
    /// Starts BIRD, which announces nothing yet. `folder` is for its files, and is made anew.
    ///
    /// # Errors
    /// There is no BIRD, it refuses the configuration, or does not answer.
    pub async fn start(settings: Settings, folder: &Path) -> Result<Speaker, Error> {
        let owner = owner();
        prepare(folder, owner.as_ref())?;
        write(&settings, folder, owner.as_ref(), &Routes::new())?;
        check(&settings, folder)?;
        let (told, pid) = oneshot::channel();
        let (tell_end, ended) = watch::channel(None);
        let command = command(&settings, folder, owner.as_ref());
        std::thread::Builder::new()
            .name("bgp".into())
            .spawn(move || attend(command, told, tell_end))
            .map_err(|source| program(&settings, source))?;
        let pid = match pid.await {
            Ok(Ok(pid)) => pid,
            Ok(Err(source)) => return Err(program(&settings, source)),
            Err(_) => return Err(Error::Silent(io::ErrorKind::BrokenPipe.into())),
        };
        let speaker = Speaker {
            settings,
            folder: folder.to_owned(),
            pid,
            ended,
        };
        speaker.answers().await?;
        Ok(speaker)
    }

    /// Announces these routes and no others. When it returns, BIRD has taken them over, and tells
    /// its neighbours what is new to them.
    ///
    /// # Errors
    /// The configuration cannot be written, or BIRD does not take it.
    pub async fn announce(&self, routes: &Routes) -> Result<(), Error> {
        write(&self.settings, &self.folder, owner().as_ref(), routes)?;
        self.ask("configure").await.map(drop)
    }

    /// What BIRD says of its sessions (`show protocols`).
    ///
    /// # Errors
    /// It does not answer.
    pub async fn sessions(&self) -> Result<String, Error> {
        self.ask("show protocols").await
    }

    /// Waits until BIRD has ended of itself, and says how.
    pub async fn ended(&mut self) -> String {
        let ended = self.ended.wait_for(Option::is_some).await;
        ended
            .ok()
            .and_then(|how| how.clone())
            .unwrap_or_else(|| "nobody knows how".to_owned())
    }

    /// Withdraws all routes, gives the neighbours [`Settings::grace`] to choose others, and ends
    /// BIRD, which closes its sessions.
    pub async fn stop(mut self) {
        match self.announce(&Routes::new()).await {
            Ok(()) => tokio::time::sleep(self.settings.grace).await,
            Err(error) => tracing::warn!("BGP: {error}"),
        }
        let _ = kill_process(self.pid, Signal::TERM);
        if tokio::time::timeout(PATIENCE, self.ended()).await.is_err() {
            tracing::warn!("BGP: BIRD does not end and is killed");
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }

    /// Waits for its control socket.
    async fn answers(&self) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.ask("show status").await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let how = self.ended.borrow().clone();
                    if let Some(how) = how {
                        return Err(Error::Silent(io::Error::other(how)));
                    }
                    if tokio::time::Instant::now() > deadline {
                        return Err(error);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One command of BIRD's, and its answer: lines that begin with a number of four digits, the
    /// last one's followed by a blank; from 8000 on it is a refusal.
    async fn ask(&self, command: &str) -> Result<String, Error> {
        let talk = async {
            let mut stream = UnixStream::connect(self.folder.join("control")).await?;
            let (reader, mut writer) = stream.split();
            let mut lines = tokio::io::BufReader::new(reader).lines();
            answer(&mut lines).await?;
            writer.write_all(format!("{command}\n").as_bytes()).await?;
            answer(&mut lines).await
        };
        let done = tokio::time::timeout(PATIENCE, talk).await;
        let (code, text) = done
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(Error::Silent)?;
        match code {
            8000.. => Err(Error::Refused(text)),
            _ => Ok(text),
        }
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // Its number is not another's as long as nobody has waited for it.
        if self.ended.borrow().is_none() {
            let _ = kill_process(self.pid, Signal::TERM);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn answer<R: tokio::io::AsyncBufRead + Unpin>(
    lines: &mut tokio::io::Lines<R>,
) -> io::Result<(u32, String)> {
    let mut text = Vec::new();
    loop {
        let line = lines.next_line().await?;
        let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
        let code = line.get(..4).and_then(|code| code.parse().ok());
        // A line of the same number as the one before it has a blank in its place.
        let rest = if code.is_some() { 5 } else { 1 };
        text.push(line.get(rest..).unwrap_or_default().to_owned());
        if let (Some(code), Some(b' ')) = (code, line.as_bytes().get(4)) {
            return Ok((code, text.join("\n")));
        }
    }
}

/// The user that BIRD is, if there is one and we may become it. A service manager may have left us
/// too little for that; then BIRD has no more than we have.
fn owner() -> Option<User> {
    let needed = CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::CHOWN
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_BIND_SERVICE
        | CapabilitySet::NET_RAW;
    let may = capabilities(None).is_ok_and(|sets| sets.permitted.contains(needed));
    User::from_name(USER).ok().flatten().filter(|_| may)
}

fn prepare(folder: &Path, owner: Option<&User>) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: folder.to_owned(),
        source,
    };
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(folder)
        .map_err(failed)?;
    give(folder, owner).map_err(failed)
}

fn give(path: &Path, owner: Option<&User>) -> io::Result<()> {
    match owner {
        Some(user) => chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())),
        None => Ok(()),
    }
}

/// Writes the configuration beside the old one and puts it in its place: BIRD never reads half.
fn write(
    settings: &Settings,
    folder: &Path,
    owner: Option<&User>,
    routes: &Routes,
) -> Result<(), Error> {
    let (path, new) = (folder.join("conf"), folder.join("conf.new"));
    let put = || {
        // BIRD may write here: what it has put in our way is not followed.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        io::Write::write_all(&mut file, configuration(settings, routes).as_bytes())?;
        if let Some(user) = owner {
            let (user, group) = (user.uid.as_raw(), user.gid.as_raw());
            std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
        }
        std::fs::rename(&new, &path)
    };
    put().map_err(|source| Error::Write {
        path: path.clone(),
        source,
    })
}

/// Has BIRD read its configuration without running.
fn check(settings: &Settings, folder: &Path) -> Result<(), Error> {
    let mut bird = Command::new(&settings.bird);
    let output = bird
        .arg("-p")
        .arg("-c")
        .arg(folder.join("conf"))
        .stdin(Stdio::null())
        .output()
        .map_err(|source| program(settings, source))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Refused(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

fn program(settings: &Settings, source: io::Error) -> Error {
    Error::Program {
        program: settings.bird.clone(),
        source,
    }
}

fn command(settings: &Settings, folder: &Path, owner: Option<&User>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--no-new-privs"]);
    if let Some(user) = owner {
        command.args(["--bounding-set", &format!("-all,+{CAPABILITIES}")]);
        command.args(["--reuid", &user.uid.to_string()]);
        command.args(["--regid", &user.gid.to_string(), "--clear-groups"]);
        command.args(["--inh-caps", &format!("-all,+{CAPABILITIES}")]);
        command.args(["--ambient-caps", &format!("-all,+{CAPABILITIES}")]);
    }
    command.args(["--", &settings.bird, "-f", "-c"]);
    // From where it is: what its folder lies in may be closed to its user.
    command.args(["conf", "-s", "control"]).current_dir(folder);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// The life of the thread that is BIRD's parent.
fn attend(
    mut command: Command,
    told: oneshot::Sender<io::Result<Pid>>,
    ended: watch::Sender<Option<String>>,
) {
    let mut child: Child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let _ = told.send(Err(error));
            return;
        }
    };
    let _ = told.send(Ok(Pid::from_child(&child)));
    if let Some(said) = child.stderr.take() {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            tracing::info!("BIRD: {line}");
        }
    }
    let how = match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    ended.send_replace(Some(how));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field of /proc/PID/status.
    fn status(pid: Pid, field: &str) -> Option<String> {
        let path = format!("/proc/{}/status", pid.as_raw_nonzero());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.trim().to_owned())
    }

    /// What BIRD has, that nobody else reads its files, and that nothing of it is left.
    #[tokio::test]
    async fn bird_has_little_and_ends_with_its_speaker() {
        if Command::new("bird").arg("--version").output().is_err() {
            eprintln!("skipped: there is no BIRD here (tools/setup.sh installs Debian's)");
            return;
        }
        let settings: Settings = "[local]\nas = 65001\nrouter-id = 127.0.0.1\nport = 17979\n\
             grace = 0\n[neighbour 127.0.0.2]\nas = 65002\nport = 17979\npassword = secret\n"
            .parse()
            .expect("it is right");
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("bgp");
        let speaker = Speaker::start(settings, &folder).await.expect("BIRD runs");
        let pid = speaker.pid;
        assert_eq!(status(pid, "NoNewPrivs:").as_deref(), Some("1"));
        if let Some(user) = owner() {
            let (uid, own) = (status(pid, "Uid:").expect("it runs"), user.uid.to_string());
            assert!(uid.split_whitespace().all(|one| one == own), "{uid}");
            // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW.
            let capabilities = format!("{:016x}", 1 << 10 | 1 << 12 | 1 << 13);
            for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
                assert_eq!(
                    status(pid, set).as_deref(),
                    Some(capabilities.as_str()),
                    "{set}"
                );
            }
        }
        let mode = |path: &Path| {
            let metadata = std::fs::metadata(path).expect("it is there");
            std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777
        };
        assert_eq!((mode(&folder), mode(&folder.join("conf"))), (0o700, 0o600));
        let routes = Routes::from([("192.0.2.1".parse().expect("an address"), 7)]);
        speaker.announce(&routes).await.expect("BIRD takes it");
        let sessions = speaker.sessions().await.expect("BIRD answers");
        assert!(sessions.contains("neighbour_0"), "{sessions}");
        speaker.stop().await;
        assert_eq!(
            status(pid, "Uid:"),
            None,
            "it has ended, and was waited for"
        );
        assert!(!folder.exists(), "nothing is left");
    }
}

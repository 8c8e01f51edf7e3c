//! BIRD as our child: started, told, ended; or handed to the next process, and gone on with there.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::User;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, capabilities};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tracing::Level;

use crate::configuration::{Routes, configuration};
use crate::error::Error;
use crate::session::{self, Session};
use crate::settings::Settings;

/// What BIRD is asked takes it milliseconds; its start and its end no second.
const PATIENCE: Duration = Duration::from_secs(10);
/// Whose BIRD is, where there is such a user (Debian's package makes it).
const USER: &str = "bird";
/// What it may do beside what every program may: the port below 1024, the signature of TCP, BFD.
const CAPABILITIES: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::NET_ADMIN, "net_admin"),
    (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
    (CapabilitySet::NET_RAW, "net_raw"),
];

/// Runs the program that is said, and ends it when nobody has the other end of the standard input
/// any more. Should the shell be killed, what runs is sent a signal by the kernel (`setpriv`); so
/// is what the shell may not signal, since it is another user.
const ATTENDED: &str =
    r#""$@" </dev/null 2>&1 & exec >/dev/null; read -r end; kill -TERM $! && wait $!"#;

/// The longest line of BIRD's that is told as a whole, and the longest answer. It hears strangers.
const LINE_MAX: u64 = 64 << 10;
const ANSWER_MAX: u64 = 16 << 20;

/// What ties BIRD to the process that tells it what to announce, as descriptors: whoever has them
/// can [go on](Speaker::adopt) with it.
#[derive(Debug)]
pub struct Pipes {
    /// BIRD ends when no process has this open any more.
    pub lifeline: OwnedFd,
    /// What BIRD says, to its end.
    pub output: OwnedFd,
}

/// A BIRD that runs. Dropped, it is ended, and its neighbours forget what it has told.
#[derive(Debug)]
pub struct Speaker {
    settings: Settings,
    folder: PathBuf,
    /// `None`: it has ended, or is about to.
    lifeline: Arc<Mutex<Option<OwnedFd>>>,
    output: OwnedFd,
    ended: watch::Receiver<Option<String>>,
}

impl Speaker {
    /// Starts BIRD, which announces nothing yet. `folder` is for its files, and is made anew.
    ///
    /// # Errors
    /// There is no BIRD, it refuses the configuration, or does not answer.
    pub async fn start(settings: Settings, folder: &Path) -> Result<Speaker, Error> {
        let owner = owner().await?;
        prepare(folder, owner.as_ref())?;
        write(&settings, folder, &Routes::new())?;
        check(&settings, folder).await?;
        let failed = |source| program(&settings, source);
        let mut child = command(&settings, folder, owner.as_ref())
            .spawn()
            .map_err(failed)?;
        let (Some(lifeline), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let pipes = Pipes {
            lifeline: lifeline.into(),
            output: output.into(),
        };
        Speaker::over(settings, folder, pipes, Some(child)).await
    }

    /// Goes on with the BIRD of another process, which has [handed](Speaker::pipes) it over and
    /// tells it nothing any more. Its sessions and routes stay as they are until
    /// [`announce`](Speaker::announce).
    ///
    /// # Errors
    /// It does not answer; it is ended then.
    pub async fn adopt(settings: Settings, folder: &Path, pipes: Pipes) -> Result<Speaker, Error> {
        Speaker::over(settings, folder, pipes, None).await
    }

    async fn over(
        settings: Settings,
        folder: &Path,
        pipes: Pipes,
        child: Option<Child>,
    ) -> Result<Speaker, Error> {
        let output = pipes.output.try_clone().map_err(Error::Silent)?;
        let (tell_end, ended) = watch::channel(None);
        let speaker = Speaker {
            settings,
            folder: folder.to_owned(),
            lifeline: Arc::new(Mutex::new(Some(pipes.lifeline))),
            output: pipes.output,
            ended,
        };
        let lifeline = speaker.lifeline.clone();
        std::thread::Builder::new()
            .name("bgp".into())
            .spawn(move || attend(output, &lifeline, child, &tell_end))
            .map_err(|source| program(&speaker.settings, source))?;
        speaker.answers().await?;
        Ok(speaker)
    }

    /// Others of the same pipes, for a process that is to go on with this BIRD.
    ///
    /// # Errors
    /// It has ended, or there are no descriptors to be had.
    pub fn pipes(&self) -> io::Result<Pipes> {
        let lifeline = self.lifeline.lock();
        let lifeline = lifeline.unwrap_or_else(PoisonError::into_inner);
        let ended = || io::Error::other("BIRD has ended");
        Ok(Pipes {
            lifeline: lifeline.as_ref().ok_or_else(ended)?.try_clone()?,
            output: self.output.try_clone()?,
        })
    }

    /// Announces these routes and no others. When it returns, BIRD has taken them over, and tells
    /// its neighbours what is new to them.
    ///
    /// # Errors
    /// The configuration cannot be written, or BIRD does not take it.
    pub async fn announce(&self, routes: &Routes) -> Result<(), Error> {
        write(&self.settings, &self.folder, routes)?;
        self.ask("configure").await.map(drop)
    }

    /// Has BIRD take up again what it has given up of what it was told last; what works is left
    /// alone.
    ///
    /// # Errors
    /// BIRD does not take it.
    pub async fn announce_again(&self) -> Result<(), Error> {
        self.ask("configure").await.map(drop)
    }

    /// What BIRD says of its sessions, of all neighbours in the order of the settings. Nothing is
    /// kept of the speaker: others may tell it something meanwhile.
    ///
    /// # Errors
    /// It does not answer.
    pub fn sessions(&self) -> impl Future<Output = Result<Vec<Session>, Error>> + Send + use<> {
        let (settings, folder) = (self.settings.clone(), self.folder.clone());
        async move {
            let answer = ask(&folder, "show protocols").await?;
            Ok(session::parse(&settings, &answer))
        }
    }

    /// Waits until BIRD has ended, and says how.
    pub fn ended(&self) -> impl Future<Output = String> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            let ended = ended.wait_for(Option::is_some).await;
            ended
                .ok()
                .and_then(|how| how.clone())
                .unwrap_or_else(|| "nobody knows how".to_owned())
        }
    }

    /// How long [`stop`](Speaker::stop) may take, with what BIRD is being told when it begins.
    pub fn stop_within(settings: &Settings) -> Duration {
        settings.grace + 3 * PATIENCE
    }

    /// Withdraws all routes, gives the neighbours [`Settings::grace`] to choose others, and ends
    /// BIRD, which closes its sessions.
    pub async fn stop(self) {
        match self.announce(&Routes::new()).await {
            Ok(()) => tokio::time::sleep(self.settings.grace).await,
            Err(error) => tracing::warn!("BGP: {error}"),
        }
        let bird = self.process().await;
        self.let_go();
        if tokio::time::timeout(PATIENCE, self.ended()).await.is_err() {
            tracing::warn!("BGP: BIRD does not end and is killed");
            if let Ok(bird) = bird {
                let _ = pidfd_send_signal(&bird, Signal::KILL);
            }
        }
    }

    fn let_go(&self) {
        let mut lifeline = self.lifeline.lock().unwrap_or_else(PoisonError::into_inner);
        *lifeline = None;
    }

    /// BIRD itself, who listens on its control socket.
    async fn process(&self) -> io::Result<OwnedFd> {
        let stream = UnixStream::connect(self.folder.join("control")).await?;
        let pid = stream.peer_cred()?.pid().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
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

    async fn ask(&self, command: &str) -> Result<String, Error> {
        ask(&self.folder, command).await
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.let_go();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One command of BIRD's, and its answer: lines that begin with a number of four digits, the last
/// one's followed by a blank; from 8000 on it is a refusal.
async fn ask(folder: &Path, command: &str) -> Result<String, Error> {
    let talk = async {
        let mut stream = UnixStream::connect(folder.join("control")).await?;
        let (reader, mut writer) = stream.split();
        let reader = tokio::io::BufReader::new(reader.take(ANSWER_MAX));
        let mut lines = reader.lines();
        answer(&mut lines).await?;
        writer.write_all(format!("{command}\n").as_bytes()).await?;
        answer(&mut lines).await
    };
    let (code, text) = in_time(talk).await.map_err(Error::Silent)?;
    match code {
        8000.. => Err(Error::Refused(text)),
        _ => Ok(text),
    }
}

/// What is not done in time has failed.
async fn in_time<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(PATIENCE, done).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
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
/// too little for that; then BIRD is our user, and has of its capabilities those that we have. To
/// be asked once: the host's directory of users may be far away.
async fn owner() -> Result<Option<User>, Error> {
    let of_users = CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::CHOWN;
    let of_birds = CAPABILITIES.map(|(one, _)| one);
    let needed = of_birds.into_iter().fold(of_users, CapabilitySet::union);
    if !ours().contains(needed) {
        return Ok(None);
    }
    let found = tokio::task::spawn_blocking(|| User::from_name(USER));
    let found = in_time(async { Ok(found.await.map_err(io::Error::other)??) });
    found
        .await
        .map_err(|source| Error::User { user: USER, source })
}

/// The capabilities that we have.
fn ours() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted)
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

/// Writes the configuration beside the old one and puts it in its place: BIRD never reads half. It
/// is whose the folder is.
fn write(settings: &Settings, folder: &Path, routes: &Routes) -> Result<(), Error> {
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
        let of = std::fs::metadata(folder)?;
        if of.uid() != file.metadata()?.uid() {
            std::os::unix::fs::fchown(&file, Some(of.uid()), Some(of.gid()))?;
        }
        std::fs::rename(&new, &path)
    };
    put().map_err(|source| Error::Write {
        path: path.clone(),
        source,
    })
}

/// Has BIRD read its configuration without running.
async fn check(settings: &Settings, folder: &Path) -> Result<(), Error> {
    let mut bird = tokio::process::Command::new(&settings.bird);
    bird.arg("-p").arg("-c").arg(folder.join("conf"));
    bird.stdin(Stdio::null()).kill_on_drop(true);
    let output = in_time(bird.output()).await;
    let output = output.map_err(|source| program(settings, source))?;
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
    let mut command = Command::new("sh");
    command.args(["-c", ATTENDED, "sh"]);
    command.args(["setpriv", "--pdeathsig", "TERM", "--no-new-privs"]);
    let ours = ours();
    let has = CAPABILITIES.iter().filter(|(one, _)| ours.contains(*one));
    let keeps = has.fold("-all".to_owned(), |all, (_, name)| all + ",+" + name);
    if let Some(user) = owner {
        command.args(["--bounding-set", &keeps]);
        command.args(["--reuid", &user.uid.to_string()]);
        command.args(["--regid", &user.gid.to_string(), "--clear-groups"]);
    }
    command.args(["--inh-caps", &keeps, "--ambient-caps", &keeps]);
    command.args(["--", &settings.bird, "-f", "-c"]);
    // From where it is: what its folder lies in may be closed to its user.
    command.args(["conf", "-s", "control"]).current_dir(folder);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // A signal to our group does not end it before routes are withdrawn.
        .process_group(0);
    command
}

/// Hears what BIRD says until it has ended, and tells how.
fn attend(
    output: OwnedFd,
    lifeline: &Mutex<Option<OwnedFd>>,
    child: Option<Child>,
    ended: &watch::Sender<Option<String>>,
) {
    hear(BufReader::new(File::from(output)), |line| {
        match severity(line) {
            Level::ERROR => tracing::error!("BIRD: {line}"),
            Level::WARN => tracing::warn!("BIRD: {line}"),
            _ => tracing::info!("BIRD: {line}"),
        }
    });
    // The shell ends, too.
    *lifeline.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let how = child.map(|mut child| child.wait());
    let how = match how {
        Some(Ok(status)) => status.to_string(),
        Some(Err(error)) => error.to_string(),
        None => "as the child of another process".to_owned(),
    };
    ended.send_replace(Some(how));
}

/// How grave BIRD says that a line is: in the third word, behind date and time. Not all that it
/// calls fatal is: `<FATAL> Shutdown completed`.
fn severity(line: &str) -> Level {
    match line.split_whitespace().nth(2) {
        Some("<ERR>" | "<BUG>") => Level::ERROR,
        Some("<WARN>" | "<AUTH>") => Level::WARN,
        _ => Level::INFO,
    }
}

/// Tells each line until there are no more. Bytes that are no text do not end it: neighbours have
/// their words in what BIRD says (RFC 9003).
fn hear(mut output: impl BufRead, mut told: impl FnMut(&str)) {
    let mut line = Vec::new();
    let mut next = |line: &mut Vec<u8>| (&mut output).take(LINE_MAX).read_until(b'\n', line);
    while next(&mut line).is_ok_and(|len| len > 0) {
        told(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener};

    use super::*;
    use crate::session::State;

    #[test]
    fn what_bird_says_is_wrong_is_told_so() {
        let line = |class: &str| format!("2026-11-30 17:34:05.720 <{class}> neighbour_0: <ERR>");
        for (class, level) in [
            ("ERR", Level::ERROR),
            ("BUG", Level::ERROR),
            ("WARN", Level::WARN),
            ("AUTH", Level::WARN),
            ("INFO", Level::INFO),
            ("RMT", Level::INFO),
            ("FATAL", Level::INFO),
        ] {
            assert_eq!(severity(&line(class)), level, "{class}");
        }
        assert_eq!(severity("gone"), Level::INFO);
    }

    /// A neighbour says why it goes in bytes that are no UTF-8.
    #[test]
    fn what_is_no_text_does_not_end_it() {
        let said = b"<RMT> neighbour_0: \"gone \xff\"\nand on\n\nto the end";
        let mut heard = Vec::new();
        hear(&said[..], |line| heard.push(line.to_owned()));
        let lines = [
            "<RMT> neighbour_0: \"gone \u{fffd}\"",
            "and on",
            "",
            "to the end",
        ];
        assert_eq!(heard, lines);
    }

    #[test]
    fn a_line_without_an_end_is_told_in_pieces() {
        let said = vec![b'x'; LINE_MAX as usize + 7];
        let mut heard = Vec::new();
        hear(&said[..], |line| heard.push(line.len()));
        assert_eq!(heard, [LINE_MAX as usize, 7]);
    }

    /// Another program in BIRD's place.
    #[tokio::test(start_paused = true)]
    async fn a_bird_that_hangs_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let program = dir.path().join("bird");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").expect("it is written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("it is a program");
        let settings = Settings {
            bird: program.display().to_string(),
            ..settings(17981)
        };
        let why = loop {
            let error = check(&settings, dir.path()).await.expect_err("it hangs");
            // A child of another test's may have it open for writing until it is another program.
            match error.to_string() {
                busy if busy.contains("busy") => {}
                why => break why,
            }
        };
        assert!(why.contains("timed out"), "{why}");
    }

    /// Field of /proc/PID/status.
    fn status(pid: Pid, field: &str) -> Option<String> {
        let path = format!("/proc/{}/status", pid.as_raw_nonzero());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.trim().to_owned())
    }

    async fn pid(folder: &Path) -> Pid {
        let stream = UnixStream::connect(folder.join("control")).await;
        let credentials = stream.expect("BIRD listens").peer_cred();
        let pid = credentials.expect("it is known who").pid();
        pid.and_then(Pid::from_raw).expect("it is here")
    }

    fn settings(port: u16) -> Settings {
        let text = format!(
            "[local]\nas = 65001\nrouter-id = 127.0.0.1\nport = {port}\ngrace = 0\n\
             [neighbour 127.0.0.2]\nas = 65002\nport = {port}\npassword = secret\n"
        );
        text.parse().expect("it is right")
    }

    fn is_here() -> bool {
        let is_here = Command::new("bird").arg("--version").output().is_ok();
        if !is_here {
            eprintln!("skipped: there is no BIRD here (tools/setup.sh installs Debian's)");
        }
        is_here
    }

    /// Where the daemon may not become another user, as under its unit: what else it may is not
    /// for BIRD, which hears strangers.
    #[test]
    fn as_our_user_bird_has_no_more_capabilities() {
        let dir = tempfile::tempdir().expect("a folder");
        let program = dir.path().join("bird");
        let script = "#!/bin/sh\nexec grep Cap /proc/self/status\n";
        std::fs::write(&program, script).expect("it is written");
        for path in [dir.path(), &program] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, mode).expect("all may run it");
        }
        if !ours().contains(CapabilitySet::SETUID | CapabilitySet::BPF) {
            eprintln!("skipped: not root, who gives another user capabilities");
            return;
        }
        let settings = Settings {
            bird: program.display().to_string(),
            ..settings(17982)
        };
        let bird = command(&settings, dir.path(), None);
        let has = "+net_admin,+net_bind_service,+net_raw,+bpf,+perfmon";
        let mut unit = Command::new("setpriv");
        unit.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        unit.args(["--inh-caps", has, "--ambient-caps", has, "--"]);
        unit.arg(bird.get_program()).args(bird.get_args());
        unit.current_dir(dir.path());
        unit.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut unit = unit.spawn().expect("it runs");
        let mut said = String::new();
        let mut output = unit.stdout.take().expect("what it says");
        output.read_to_string(&mut said).expect("text");
        drop(unit.stdin.take());
        unit.wait().expect("it has ended");
        // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW.
        let capabilities = format!("{:016x}", 1 << 10 | 1 << 12 | 1 << 13);
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(said.contains(&format!("{set}:\t{capabilities}")), "{said}");
        }
    }

    /// What BIRD has, that nobody else reads its files, and that nothing of it is left.
    #[tokio::test]
    async fn bird_has_little_and_ends_with_its_speaker() {
        if !is_here() {
            return;
        }
        let settings = settings(17979);
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("bgp");
        let speaker = Speaker::start(settings, &folder).await.expect("BIRD runs");
        let pid = pid(&folder).await;
        assert_eq!(status(pid, "NoNewPrivs:").as_deref(), Some("1"));
        if let Some(user) = owner().await.expect("it is known") {
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
        let neighbours: Vec<_> = sessions.iter().map(|one| one.neighbour).collect();
        assert_eq!(neighbours, ["127.0.0.2".parse::<IpAddr>().expect("one")]);
        speaker.stop().await;
        assert_eq!(
            status(pid, "Uid:"),
            None,
            "it has ended, and was waited for"
        );
        assert!(!folder.exists(), "nothing is left");
    }

    /// Another program has the port at first. BIRD does not try again before it is told to.
    #[tokio::test]
    async fn a_port_that_another_has_is_taken_when_it_is_free() {
        if !is_here() {
            return;
        }
        let other = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = other.local_addr().expect("it is bound").port();
        let text = format!(
            "[local]\nas = 65001\nrouter-id = 127.0.0.1\nport = {port}\ngrace = 0\n\
             [neighbour 127.0.0.2]\nas = 65002\nport = {port}\nmultihop = 2\n"
        );
        let settings: Settings = text.parse().expect("it is right");
        let dir = tempfile::tempdir().expect("a folder");
        let speaker = Speaker::start(settings, &dir.path().join("bgp")).await;
        let speaker = speaker.expect("BIRD runs");
        let none = "Error: No listening socket";
        session(&speaker, |one| {
            one.state == State::Down && one.error == none
        })
        .await;
        drop(other);
        session(&speaker, |one| {
            one.state == State::Down && one.error == none
        })
        .await;
        speaker.announce_again().await.expect("BIRD takes it");
        session(&speaker, |one| one.state > State::Down).await;
        speaker.stop().await;
    }

    /// Waits until the only session is so.
    async fn session(speaker: &Speaker, is: impl Fn(&Session) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let sessions = speaker.sessions().await.expect("BIRD answers");
            if sessions.iter().all(&is) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{sessions:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The one who has started it is not who ends it.
    #[tokio::test]
    async fn bird_goes_on_with_whoever_has_its_pipes() {
        if !is_here() {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("bgp");
        let settings = settings(17980);
        let first = Speaker::start(settings.clone(), &folder).await;
        let first = first.expect("BIRD runs");
        let bird = pid(&folder).await;
        let pipes = first.pipes().expect("it runs still");
        let next = Speaker::adopt(settings, &folder, pipes).await;
        let next = next.expect("it answers");
        first.let_go();
        let routes = Routes::from([("192.0.2.1".parse().expect("an address"), 7)]);
        next.announce(&routes).await.expect("BIRD takes it");
        assert_eq!(pid(&folder).await, bird);
        // Both hear of its end.
        next.let_go();
        next.ended().await;
        assert_eq!(first.ended().await, "exit status: 0");
        assert!(first.pipes().is_err() && next.pipes().is_err());
        assert_eq!(status(bird, "Uid:"), None);
    }
}

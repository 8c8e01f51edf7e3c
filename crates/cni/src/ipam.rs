//! Who gives addresses: another plugin, called as the runtime calls us, or we ourselves.

mod leases;

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::call::Call;
use crate::config::{Attachment, Config, Ipam};
use crate::error::Error;
use crate::result::{Addresses, Ip, VERSIONS};

pub use leases::{Leases, first_of};

/// How long another plugin may take: one may wait for a DHCP server. All that one GC asks of it
/// takes no longer together.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// With less time than this it is not asked.
const LEAST: Duration = Duration::from_secs(1);
/// How often it is asked whether it has ended, once it has said all.
const AGAIN: Duration = Duration::from_millis(1);

/// Takes addresses for a container.
pub fn add(call: &Call, config: &Config) -> Result<Addresses, Error> {
    match &config.ipam {
        Ipam::NotUsed => {
            let asked = config.asked(call)?;
            let all = match call.arguments.ips.is_empty() {
                true => &config.ips,
                false => &call.arguments.ips,
            };
            let net = |(text, ip): (&String, &IpAddr)| {
                let net = text.parse().unwrap_or_else(|_| ipnet::IpNet::from(*ip));
                Ip { net, gateway: None }
            };
            Ok(Addresses {
                ips: all.iter().zip(&asked).map(net).collect(),
                ..Addresses::default()
            })
        }
        Ipam::Ours(ranges) => {
            let leases = Leases::open(ranges, &config.name)?;
            leases.take(&attachment(call), &config.asked(call)?)
        }
        Ipam::Plugin(plugin) => {
            let answer = run(plugin, "ADD", call, config)?;
            Addresses::parse(&answer)
        }
    }
}

/// Another plugin that has failed is told to take back what it may have given all the same
/// (SPEC.md, section 4); of ours nothing is left.
pub fn failed(call: &Call, config: &Config) {
    if let Ipam::Plugin(plugin) = &config.ipam {
        // The error that is told is that of ADD.
        let _ = run(plugin, "DEL", call, config);
    }
}

/// Addresses that a container has already, by our own leases; what another plugin has given it
/// knows alone.
pub fn held(call: &Call, config: &Config) -> Result<Vec<IpAddr>, Error> {
    match &config.ipam {
        Ipam::Ours(ranges) => Leases::open(ranges, &config.name)?.held(&attachment(call)),
        Ipam::NotUsed | Ipam::Plugin(_) => Ok(Vec::new()),
    }
}

/// Gives back what a container has got beside these.
pub fn give_back_but(call: &Call, config: &Config, kept: &[IpAddr]) -> Result<(), Error> {
    match &config.ipam {
        Ipam::Ours(ranges) => {
            Leases::open(ranges, &config.name)?.give_back_but(&attachment(call), kept)
        }
        Ipam::NotUsed | Ipam::Plugin(_) => Ok(()),
    }
}

/// Gives a container's addresses back; those that it has not are given back already.
pub fn del(call: &Call, config: &Config) -> Result<(), Error> {
    match &config.ipam {
        Ipam::NotUsed => Ok(()),
        Ipam::Ours(ranges) => Leases::open(ranges, &config.name)?.give_back(&attachment(call)),
        Ipam::Plugin(plugin) => run(plugin, "DEL", call, config).map(drop),
    }
}

/// Whether a container still has its addresses.
pub fn check(call: &Call, config: &Config) -> Result<(), Error> {
    match &config.ipam {
        Ipam::NotUsed => Ok(()),
        Ipam::Ours(ranges) => Leases::open(ranges, &config.name)?.check(&attachment(call)),
        Ipam::Plugin(plugin) => run(plugin, "CHECK", call, config).map(drop),
    }
}

/// Whether addresses can be given out at all.
pub fn status(call: &Call, config: &Config) -> Result<(), Error> {
    match &config.ipam {
        Ipam::NotUsed => Ok(()),
        Ipam::Ours(ranges) => Leases::open(ranges, &config.name)?.status(),
        Ipam::Plugin(plugin) => run(plugin, "STATUS", call, config).map(drop),
    }
}

/// Addresses are another plugin's to give.
pub fn is_delegated(config: &Config) -> bool {
    matches!(config.ipam, Ipam::Plugin(_))
}

/// Gives back what a container had of another plugin that is told of it by no runtime any more, and
/// may know no GC; our own leases [`gc`] finds. The plugin has half of the time that is left: one
/// that hangs leaves some for the others.
pub fn lost(
    call: &Call,
    config: &Config,
    container: &str,
    ifname: &str,
    until: Instant,
) -> Result<(), Error> {
    let Ipam::Plugin(plugin) = &config.ipam else {
        return Ok(());
    };
    let call = Call {
        container: container.to_owned(),
        ifname: ifname.to_owned(),
        netns: String::new(),
        ..call.clone()
    };
    run_within(plugin, "DEL", &call, config, left(until) / 2).map(drop)
}

/// Gives back what nobody has by an attachment that is used.
pub fn gc(
    call: &Call,
    config: &Config,
    is_used: impl Fn(&str, &str) -> bool,
    until: Instant,
) -> Result<(), Error> {
    match &config.ipam {
        Ipam::NotUsed => Ok(()),
        Ipam::Ours(ranges) => Leases::open(ranges, &config.name)?.keep(is_used),
        Ipam::Plugin(plugin) => run_within(plugin, "GC", call, config, left(until)).map(drop),
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn attachment(call: &Call) -> Attachment {
    Attachment {
        container: call.container.clone(),
        ifname: call.ifname.clone(),
    }
}

/// Runs another plugin with our own environment and configuration, for the call's container; its
/// answer. STATUS and GC are for those that know them.
fn run(plugin: &str, command: &str, call: &Call, config: &Config) -> Result<Value, Error> {
    run_within(plugin, command, call, config, PATIENCE)
}

fn run_within(
    plugin: &str,
    command: &str,
    call: &Call,
    config: &Config,
    patience: Duration,
) -> Result<Value, Error> {
    let program = find(plugin, &call.path)?;
    let failed = |e: io::Error| Error::io(format!("{}: {e}", program.display()));
    if matches!(command, "STATUS" | "GC") && config.version.as_str() < VERSIONS[6] {
        return Ok(Value::Null);
    }
    if patience < LEAST {
        return Err(Error::later(format!(
            "{plugin} was not asked {command}: it has taken too long already"
        )));
    }
    let child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", &call.container)
        .env("CNI_IFNAME", &call.ifname)
        .env("CNI_NETNS", &call.netns)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // With all that it starts it can be killed.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let ended = finish(child, config.text.clone(), patience).map_err(failed)?;
    let Some((status, said)) = ended else {
        let secs = patience.as_secs_f64();
        return Err(Error::later(format!(
            "{plugin} has not answered {command} for {secs:.0} s, and was killed"
        )));
    };
    let answer: Value = serde_json::from_slice(&said).unwrap_or_default();
    if status.success() {
        return Ok(answer);
    }
    let why = format!("{plugin} ended with {status} and said nothing");
    Err(Error::of_plugin(&answer).unwrap_or_else(|| Error::io(why)))
}

/// Gives a plugin its configuration and waits for its end: how it ended, and what it has said.
/// `None`: it did not end in time. It is killed then with all that it has started.
fn finish(
    mut child: Child,
    config: String,
    patience: Duration,
) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let ended = end(&mut child, config, patience);
    if !matches!(ended, Ok(Some(_))) {
        // Fails where nobody is left of them.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        child.wait()?;
    }
    ended
}

fn end(
    child: &mut Child,
    config: String,
    patience: Duration,
) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let until = Instant::now() + patience;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (tell, told) = mpsc::channel();
    // One that neither reads nor writes holds up this thread alone.
    let talk = move || {
        if let Some(mut input) = input {
            // One that does not read its configuration says so itself.
            let _ = input.write_all(config.as_bytes());
        }
        let mut said = Vec::new();
        let read = output.map_or(Ok(0), |mut output| output.read_to_end(&mut said));
        // Nobody listens any more where it was too late.
        let _ = tell.send(read.map(|_| said));
    };
    std::thread::Builder::new().spawn(talk)?;
    let Ok(said) = told.recv_timeout(patience) else {
        return Ok(None);
    };
    let said = said?;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((status, said)));
        }
        std::thread::sleep(AGAIN);
    }
    Ok(None)
}

fn find(plugin: &str, path: &str) -> Result<PathBuf, Error> {
    let folders = std::env::split_paths(path);
    let mut files = folders.map(|folder| folder.join(plugin));
    let missing = || {
        Error::config(format!(
            "ipam type '{plugin}' is in no folder of CNI_PATH ({path})"
        ))
    };
    files.find(|file| file.is_file()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Mutex;

    /// A script that is open to be written cannot be run, and what another test starts at that
    /// moment has it open, too.
    static SCRIPTS: Mutex<()> = Mutex::new(());

    /// The call ADD of a network whose addresses are of a plugin `moody`, which is this script.
    fn with_plugin(folder: &Path, script: &str) -> (Call, Config) {
        let program = folder.join("moody");
        std::fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let path = folder.display().to_string();
        let variable = |name: &str| match name {
            "CNI_COMMAND" => "ADD".to_owned(),
            "CNI_CONTAINERID" => "c1".to_owned(),
            "CNI_NETNS" => "/run/netns/c1".to_owned(),
            "CNI_IFNAME" => "eth0".to_owned(),
            "CNI_PATH" => path.clone(),
            _ => String::new(),
        };
        let text = r#"{"cniVersion":"1.1.0","name":"pods","vni":7,"ipam":{"type":"moody"}}"#;
        (Call::read(variable).unwrap(), Config::parse(text).unwrap())
    }

    #[test]
    fn a_plugin_that_fails_is_told_to_take_back() {
        let _alone = SCRIPTS.lock();
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls");
        let script = format!(
            "echo $CNI_COMMAND $CNI_CONTAINERID >> {}\n[ $CNI_COMMAND = DEL ]\n",
            calls.display()
        );
        let (call, config) = with_plugin(folder.path(), &script);
        assert!(add(&call, &config).is_err());
        failed(&call, &config);
        assert_eq!(std::fs::read_to_string(&calls).unwrap(), "ADD c1\nDEL c1\n");
    }

    /// It waits itself, or what it has started has its output; or it has said all and goes on.
    #[test]
    fn a_plugin_that_does_not_end_is_killed() {
        let _alone = SCRIPTS.lock();
        for waits in [
            "exec sleep 600",
            "sleep 600 &\nexit 0",
            "exec sleep 600 >&-",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let own = folder.path().join("own");
            let script = format!("echo $$ > {}\n{waits}\n", own.display());
            let (call, config) = with_plugin(folder.path(), &script);
            let patience = Duration::from_secs(2);
            let error = run_within("moody", "ADD", &call, &config, patience).unwrap_err();
            assert_eq!(
                (error.code, error.message.as_str()),
                (11, "moody has not answered ADD for 2 s, and was killed"),
                "{waits}"
            );
            let own = std::fs::read_to_string(&own).unwrap();
            let process = Path::new("/proc").join(own.trim());
            assert!(!process.exists(), "{waits}: it is reaped");
        }
        // One that ends in time has said what it says.
        let folder = tempfile::tempdir().unwrap();
        let (call, config) = with_plugin(folder.path(), "cat\n");
        let patience = Duration::from_secs(60);
        let answer = run_within("moody", "ADD", &call, &config, patience).unwrap();
        assert_eq!(answer["name"], "pods");
    }

    /// However many they are; and one that it hangs for leaves time for another.
    #[test]
    fn a_plugin_that_hangs_has_one_time_for_all_that_are_lost() {
        let _alone = SCRIPTS.lock();
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls");
        let script = format!(
            "echo $CNI_COMMAND $CNI_CONTAINERID >> {}\n\
             [ $CNI_CONTAINERID = works ] || exec sleep 600\n",
            calls.display()
        );
        let (call, config) = with_plugin(folder.path(), &script);
        let until = Instant::now() + Duration::from_secs(8);
        let lost = |container: &str| lost(&call, &config, container, "eth0", until);
        let killed = lost("hangs").unwrap_err();
        assert_eq!(killed.code, 11, "{killed:?}");
        assert!(
            killed.message.contains("has not answered DEL"),
            "{killed:?}"
        );
        assert_eq!(lost("works"), Ok(()));
        let errors: Vec<Error> = (0..10).map(|_| lost("hangs").unwrap_err()).collect();
        let last = errors.last().unwrap();
        assert_eq!(
            (last.code, last.message.as_str()),
            (11, "moody was not asked DEL: it has taken too long already")
        );
        let calls = std::fs::read_to_string(&calls).unwrap();
        assert!(calls.starts_with("DEL hangs\nDEL works\n"), "{calls}");
        assert!(calls.lines().count() < 5, "{calls}");
        // What it is asked last has the same end.
        let error = gc(&call, &config, |_, _| true, Instant::now()).unwrap_err();
        assert!(error.message.contains("was not asked GC"), "{error:?}");
    }
}

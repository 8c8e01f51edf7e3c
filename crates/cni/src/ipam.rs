//! Who gives addresses: another plugin, called as the runtime calls us, or we ourselves.

mod leases;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::call::Call;
use crate::config::{Attachment, Config, Ipam};
use crate::error::Error;
use crate::result::{Addresses, Ip, VERSIONS};

pub use leases::{Leases, first_of};

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
/// may know no GC; our own leases [`gc`] finds.
pub fn lost(call: &Call, config: &Config, container: &str, ifname: &str) -> Result<(), Error> {
    let Ipam::Plugin(plugin) = &config.ipam else {
        return Ok(());
    };
    let call = Call {
        container: container.to_owned(),
        ifname: ifname.to_owned(),
        netns: String::new(),
        ..call.clone()
    };
    run(plugin, "DEL", &call, config).map(drop)
}

/// Gives back what nobody has by an attachment that is used.
pub fn gc(call: &Call, config: &Config, is_used: impl Fn(&str, &str) -> bool) -> Result<(), Error> {
    match &config.ipam {
        Ipam::NotUsed => Ok(()),
        Ipam::Ours(ranges) => Leases::open(ranges, &config.name)?.keep(is_used),
        Ipam::Plugin(plugin) => run(plugin, "GC", call, config).map(drop),
    }
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
    let program = find(plugin, &call.path)?;
    let failed = |e: std::io::Error| Error::io(format!("{}: {e}", program.display()));
    if matches!(command, "STATUS" | "GC") && config.version.as_str() < VERSIONS[6] {
        return Ok(Value::Null);
    }
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", &call.container)
        .env("CNI_IFNAME", &call.ifname)
        .env("CNI_NETNS", &call.netns)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read its configuration says so itself.
        let _ = std::io::Write::write_all(&mut input, config.text.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() {
        return Ok(answer);
    }
    let why = format!("{plugin} ended with {} and said nothing", output.status);
    Err(Error::of_plugin(&answer).unwrap_or_else(|| Error::io(why)))
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

    #[test]
    fn a_plugin_that_fails_is_told_to_take_back() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (program, calls) = (folder.path().join("moody"), folder.path().join("calls"));
        let script = format!(
            "#!/bin/sh\necho $CNI_COMMAND $CNI_CONTAINERID >> {}\n[ $CNI_COMMAND = DEL ]\n",
            calls.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let path = folder.path().display().to_string();
        let variable = |name: &str| match name {
            "CNI_COMMAND" => "ADD".to_owned(),
            "CNI_CONTAINERID" => "c1".to_owned(),
            "CNI_NETNS" => "/run/netns/c1".to_owned(),
            "CNI_IFNAME" => "eth0".to_owned(),
            "CNI_PATH" => path.clone(),
            _ => String::new(),
        };
        let call = Call::read(variable).unwrap();
        let text = r#"{"cniVersion":"1.1.0","name":"pods","vni":7,"ipam":{"type":"moody"}}"#;
        let config = Config::parse(text).unwrap();
        assert!(add(&call, &config).is_err());
        failed(&call, &config);
        assert_eq!(std::fs::read_to_string(&calls).unwrap(), "ADD c1\nDEL c1\n");
    }
}

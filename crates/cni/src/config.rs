//! A network's configuration: what administrators write (docs/containers.md), and what runtimes
//! add.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::call::{Call, is_name};
use crate::error::Error;
use crate::result;

/// Where the daemon listens.
const SOCKET: &str = "unix:/run/butterfly/api.sock";
/// Bytes of a network's name: NICs' ids and folders are named after it.
const NAME_MAX: usize = 64;

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The specification's version that the answer is in.
    pub version: String,
    pub name: String,
    /// The daemon's API v1.
    pub socket: String,
    pub vni: Option<u32>,
    pub groups: Vec<String>,
    pub mtu: u32,
    pub anti_spoof: bool,
    pub mac: Option<String>,
    /// Addresses that are asked for.
    pub ips: Vec<String>,
    pub dns: Value,
    pub ipam: Ipam,
    /// What plugins before this one have answered.
    pub previous: Option<Value>,
    /// GC: attachments that are in use.
    pub valid: Option<Vec<Attachment>>,
    /// All of it, as it came.
    pub text: String,
}

/// Who gives addresses.
#[derive(Debug, Clone)]
pub enum Ipam {
    /// Nobody does: the addresses that are asked for are taken.
    NotUsed,
    /// We do.
    Ours(Ranges),
    /// The plugin of this name.
    Plugin(String),
}

/// Addresses to give out: one of each set.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Ranges {
    #[serde(rename = "type")]
    _kind: String,
    pub ranges: Vec<Vec<Range>>,
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Where leases are kept.
    #[serde(default = "data_dir")]
    pub data_dir: PathBuf,
}

fn data_dir() -> PathBuf {
    "/var/lib/cni/butterfly".into()
}

/// A run of addresses.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Range {
    pub subnet: String,
    pub range_start: Option<IpAddr>,
    pub range_end: Option<IpAddr>,
    pub gateway: Option<IpAddr>,
}

/// A route of the containers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    pub dst: String,
    pub gw: Option<IpAddr>,
}

/// A container's interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container: String,
    pub ifname: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    cni_version: String,
    name: String,
    #[serde(default)]
    socket: Option<String>,
    #[serde(default)]
    vni: Option<u32>,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    anti_spoof: Option<bool>,
    #[serde(default)]
    dns: Value,
    #[serde(default)]
    ipam: Value,
    #[serde(default)]
    prev_result: Option<Value>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    #[serde(default)]
    args: Args,
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        rename = "cni.dev/valid-attachments"
    )]
    valid: Option<Vec<Attachment>>,
}

/// Runtimes in Go that have no attachments say null, which is no missing key.
fn null_is_empty<'de, D>(value: D) -> Result<Option<Vec<Attachment>>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let list = Option::<Vec<Attachment>>::deserialize(value)?;
    Ok(Some(list.unwrap_or_default()))
}

/// What a runtime adds for the capabilities `mac` and `ips`.
#[derive(Deserialize, Default)]
struct RuntimeConfig {
    #[serde(default)]
    mac: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
}

/// CONVENTIONS.md: `args`, by who reads them.
#[derive(Deserialize, Default)]
struct Args {
    #[serde(default)]
    cni: RuntimeConfig,
    #[serde(default)]
    butterfly: OwnArgs,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct OwnArgs {
    vni: Option<u32>,
    groups: Option<Vec<String>>,
}

impl Config {
    /// Reads and checks it.
    pub fn parse(text: &str) -> Result<Config, Error> {
        let decode = |e: serde_json::Error| Error::decode(format!("the configuration: {e}"));
        let written: Written = serde_json::from_str(text).map_err(decode)?;
        let version = match written.cni_version.as_str() {
            "" => "0.1.0",
            version => version,
        };
        if !result::VERSIONS.contains(&version) {
            let known = result::VERSIONS.join(", ");
            return Err(Error::version(format!(
                "cniVersion {version} is none of {known}"
            )));
        }
        let name = written.name;
        if !is_name(&name) || name.len() > NAME_MAX {
            let why = format!("is not letters, digits, '_', '.' and '-', at most {NAME_MAX}");
            return Err(Error::config(format!("name '{name}' {why}")));
        }
        if let Some(previous) = &written.prev_result {
            if !previous.is_object() {
                return Err(Error::config(format!("prevResult {previous} is no result")));
            }
            // The answer to ADD is to hold these, and what is made here behind them.
            for list in ["interfaces", "ips", "routes"] {
                let there = &previous[list];
                if !there.is_array() && !there.is_null() {
                    let why = format!("{list} of prevResult are no list: {there}");
                    return Err(Error::config(why));
                }
            }
        }
        let ipam = match written.ipam["type"].as_str() {
            None | Some("") => Ipam::NotUsed,
            Some("butterfly") => {
                let ranges: Ranges = serde_json::from_value(written.ipam).map_err(decode)?;
                Ipam::Ours(ranges)
            }
            Some(plugin) if plugin.contains('/') || plugin.starts_with('.') => {
                return Err(Error::config(format!(
                    "ipam type '{plugin}' is not a plugin's name"
                )));
            }
            Some(plugin) => Ipam::Plugin(plugin.to_owned()),
        };
        let (runtime, args) = (written.runtime_config, written.args);
        let first = |a: Vec<String>, b: Vec<String>| if a.is_empty() { b } else { a };
        Ok(Config {
            version: version.to_owned(),
            name,
            socket: written.socket.unwrap_or_else(|| SOCKET.to_owned()),
            vni: args.butterfly.vni.or(written.vni),
            groups: args.butterfly.groups.unwrap_or(written.groups),
            mtu: written.mtu,
            anti_spoof: written.anti_spoof.unwrap_or(true),
            mac: runtime.mac.or(args.cni.mac),
            ips: first(runtime.ips, args.cni.ips),
            dns: written.dns,
            ipam,
            previous: written.prev_result,
            valid: written.valid,
            text: text.to_owned(),
        })
    }

    /// The network that a container is to be in.
    pub fn vni(&self, call: &Call) -> Result<u32, Error> {
        let missing = || {
            Error::config(format!(
                "network '{}' has no vni, and CNI_ARGS no BUTTERFLY_VNI",
                self.name
            ))
        };
        call.arguments.vni.or(self.vni).ok_or_else(missing)
    }

    /// Addresses that are asked for, without their prefix lengths.
    pub fn asked(&self, call: &Call) -> Result<Vec<IpAddr>, Error> {
        let all = match call.arguments.ips.is_empty() {
            true => &self.ips,
            false => &call.arguments.ips,
        };
        let parse = |text: &String| {
            let address = text
                .split_once('/')
                .map_or(text.as_str(), |(address, _)| address);
            let refused = |_| Error::config(format!("'{text}' is not an address"));
            address.parse().map_err(refused)
        };
        all.iter().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_attachments_are_none_and_a_missing_key_is_unknown() {
        let valid = |more: &str| {
            let text = format!(r#"{{"cniVersion":"1.1.0","name":"pods"{more}}}"#);
            Config::parse(&text).unwrap().valid
        };
        assert_eq!(valid(""), None);
        let none = Some(Vec::new());
        assert_eq!(valid(r#","cni.dev/valid-attachments":null"#), none);
        assert_eq!(valid(r#","cni.dev/valid-attachments":[]"#), none);
        let one = valid(r#","cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"}]"#);
        assert_eq!(one.map(|all| all.len()), Some(1));
    }

    #[test]
    fn what_is_written_is_checked() {
        let ok = r#"{"cniVersion":"1.1.0","name":"pods","type":"butterfly-cni","vni":42,
                     "groups":["a"],"args":{"butterfly":{"groups":["b"]}},
                     "runtimeConfig":{"ips":["10.0.0.9/24"]},
                     "ipam":{"type":"butterfly","ranges":[[{"subnet":"10.0.0.0/24"}]]}}"#;
        let config = Config::parse(ok).unwrap();
        assert_eq!(
            (config.vni, config.groups),
            (Some(42), vec!["b".to_owned()])
        );
        assert_eq!(config.ips, ["10.0.0.9/24"]);
        for (text, code) in [
            ("", 6),
            (r#"{"cniVersion":"1.0.0"}"#, 6),
            (r#"{"cniVersion":"2.0.0","name":"a"}"#, 1),
            (r#"{"cniVersion":"1.0.0","name":"a b"}"#, 7),
            (
                r#"{"cniVersion":"1.0.0","name":"a","ipam":{"type":"../x"}}"#,
                7,
            ),
            (r#"{"cniVersion":"1.0.0","name":"a","prevResult":"b"}"#, 7),
            (
                r#"{"cniVersion":"1.0.0","name":"a","prevResult":{"ips":{}}}"#,
                7,
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"a","prevResult":{"interfaces":"eth0"}}"#,
                7,
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"a","ipam":{"type":"butterfly"}}"#,
                6,
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"a","args":{"butterfly":{"vnis":1}}}"#,
                6,
            ),
        ] {
            assert_eq!(Config::parse(text).unwrap_err().code, code, "{text}");
        }
    }
}

//! The INI file of the original daemon: `[general]` and `[security]`. What is not known is refused
//! by name, so that a misspelt key is not a default silently kept.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;

use crate::cores::{Cores, count};
use crate::logging::Level;
use crate::options::{DSCP_MAX, OuterChecksum, UplinkMode, mode, mtu, sflow_rate, size};

/// What the file says; `None` where it says nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ini {
    pub log_level: Option<Level>,
    pub ip: Option<IpAddr>,
    pub endpoint: Option<String>,
    pub socket_dir: Option<PathBuf>,
    /// The original's sample says `graph-cpu-core`, its code reads `graph-core-id`.
    pub graph_cpu_core: Option<Cores>,
    pub graph_core_id: Option<Cores>,
    pub workers: Option<usize>,
    pub dpdk_args: Option<String>,
    pub nic_mtu: Option<u16>,
    pub dpdk_port: Option<u32>,
    /// Separated by commas.
    pub uplink: Option<Vec<String>>,
    pub vxlan_port: Option<u16>,
    pub vxlan_ttl: Option<u8>,
    pub vxlan_dscp: Option<u8>,
    pub vxlan_checksum: Option<OuterChecksum>,
    pub uplink_mode: Option<UplinkMode>,
    pub trace_dir: Option<PathBuf>,
    pub trace_dir_max: Option<u64>,
    pub api_group: Option<String>,
    pub vhost_owner: Option<String>,
    pub vhost_group: Option<String>,
    pub guest_memory_populated: Option<bool>,
    pub vhost_mode: Option<u32>,
    pub store: Option<PathBuf>,
    pub keeper: Option<PathBuf>,
    pub encryption_key_path: Option<PathBuf>,
    pub insecure_api: Option<bool>,
    pub access: Option<PathBuf>,
    pub audit: Option<PathBuf>,
    pub flow_log: Option<PathBuf>,
    pub ipfix: Vec<String>,
    pub sflow: Vec<String>,
    pub sflow_rate: Option<u32>,
    /// Separated by commas.
    pub metrics: Vec<String>,
    pub insecure_metrics: Option<bool>,
    pub page: Vec<String>,
    pub page_token: Option<PathBuf>,
    /// Separated by commas.
    pub balance_interfaces: Vec<String>,
    pub balance_hook: Option<PathBuf>,
    pub balance_seed: Option<PathBuf>,
    pub balance_bgp: Option<PathBuf>,
    pub check_programs: Option<PathBuf>,
    /// Separated by commas.
    pub router_interfaces: Vec<String>,
    pub router_acl: Option<PathBuf>,
}

impl Ini {
    /// Reads a file. The error is a sentence with file, section and key.
    pub fn load(path: &Path) -> Result<Ini, String> {
        let file = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|e| format!("{file} cannot be read: {e}"))?;
        parse(&text).map_err(|why| format!("{file}: {why}"))
    }
}

fn parse(text: &str) -> Result<Ini, String> {
    let mut ini = Ini::default();
    // Editors of another system begin files with a byte-order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = ini::Ini::load_from_str_noescape(text).map_err(|e| e.to_string())?;
    let mut given = BTreeMap::new();
    for (section, properties) in &parsed {
        let section = section.unwrap_or_default();
        for (key, value) in properties {
            let value = without_comment(value);
            set(&mut ini, section, key, value)?;
            if value.is_empty() {
                continue;
            }
            if let Some(before) = given.insert((section, key), value)
                && before != value
            {
                let several = match list_of(&mut ini, section, key).is_some() {
                    true => ": several are separated by commas",
                    false => "",
                };
                return Err(format!(
                    "[{section}] {key} is given twice, as '{before}' and as '{value}'{several}"
                ));
            }
        }
    }
    Ok(ini)
}

/// A value ends where a blank and then `;` or `#` follow: a comment behind it.
fn without_comment(value: &str) -> &str {
    let ends = value
        .match_indices([';', '#'])
        .find(|(at, _)| *at == 0 || value[..*at].ends_with([' ', '\t']));
    ends.map_or(value, |(at, _)| &value[..at]).trim()
}

fn set(ini: &mut Ini, section: &str, key: &str, value: &str) -> Result<(), String> {
    let name = format!("[{section}] {key}");
    if !value.is_empty()
        && let Some(list) = list_of(ini, section, key)
    {
        *list = names(value);
        return Ok(());
    }
    match (section, key) {
        // An empty value is no value: the original's packages ship the file with keys to be filled
        // in.
        ("general" | "security", _) if value.is_empty() && known(section, key) => (),
        ("general", "log-level") => ini.log_level = Some(parsed(&name, value)?),
        ("general", "ip") => ini.ip = Some(parsed(&name, value)?),
        ("general", "endpoint") => ini.endpoint = Some(value.to_owned()),
        ("general", "socket-dir") => ini.socket_dir = Some(value.into()),
        ("general", "graph-cpu-core") => ini.graph_cpu_core = Some(parsed(&name, value)?),
        ("general", "graph-core-id") => ini.graph_core_id = Some(parsed(&name, value)?),
        ("general", "store") => ini.store = Some(value.into()),
        ("general", "keeper") => ini.keeper = Some(value.into()),
        ("general", "trace-dir") => ini.trace_dir = Some(value.into()),
        ("general", "trace-dir-max") => {
            ini.trace_dir_max = Some(size(value).map_err(|e| format!("{name}: {e}"))?)
        }
        ("general", "api-group") => ini.api_group = Some(value.to_owned()),
        ("general", "vhost-owner") => ini.vhost_owner = Some(value.to_owned()),
        ("general", "vhost-group") => ini.vhost_group = Some(value.to_owned()),
        ("general", "vhost-mode") => {
            ini.vhost_mode = Some(mode(value).map_err(|e| format!("{name}: {e}"))?)
        }
        ("general", "guest-memory-populated") => {
            ini.guest_memory_populated = Some(yes(&name, value)?)
        }
        ("general", "workers") => {
            ini.workers = Some(count(value).map_err(|e| format!("{name}: {e}"))?)
        }
        ("general", "dpdk-args") => ini.dpdk_args = Some(value.to_owned()),
        ("general", "nic-mtu") => {
            ini.nic_mtu = Some(mtu(value).map_err(|e| format!("{name}: {e}"))?)
        }
        ("general", "dpdk-port") => ini.dpdk_port = Some(parsed(&name, value)?),
        ("general", "uplink-mode") => {
            ini.uplink_mode =
                Some(UplinkMode::from_str(value, false).map_err(|e| format!("{name}: {e}"))?);
        }
        ("general", "vxlan-port") => {
            ini.vxlan_port = Some(parsed::<NonZeroU16>(&name, value)?.get())
        }
        ("general", "vxlan-ttl") => ini.vxlan_ttl = Some(parsed::<NonZeroU8>(&name, value)?.get()),
        ("general", "vxlan-dscp") => ini.vxlan_dscp = Some(within(&name, value, DSCP_MAX)?),
        ("general", "vxlan-checksum") => {
            ini.vxlan_checksum =
                Some(OuterChecksum::from_str(value, false).map_err(|e| format!("{name}: {e}"))?);
        }
        ("general", "router-acl") => ini.router_acl = Some(value.into()),
        ("general", "balance-hook") => ini.balance_hook = Some(value.into()),
        ("general", "balance-bgp") => ini.balance_bgp = Some(value.into()),
        ("general", "check-programs") => ini.check_programs = Some(value.into()),
        ("security", "page-token") => ini.page_token = Some(value.into()),
        ("general", "flow-log") => ini.flow_log = Some(value.into()),
        ("general", "sflow-rate") => {
            ini.sflow_rate = Some(sflow_rate(value).map_err(|e| format!("{name}: {e}"))?)
        }
        ("security", "insecure-metrics") => ini.insecure_metrics = Some(yes(&name, value)?),
        ("security", "encryption_key_path") => ini.encryption_key_path = Some(value.into()),
        ("security", "access") => ini.access = Some(value.into()),
        ("security", "balance-seed") => ini.balance_seed = Some(value.into()),
        ("security", "audit") => ini.audit = Some(value.into()),
        ("security", "insecure-api") => ini.insecure_api = Some(yes(&name, value)?),
        ("general" | "security", _) => return Err(format!("there is no key {name}")),
        ("", _) => return Err(format!("the key {key} stands before the first section")),
        _ => {
            return Err(format!(
                "there is no section [{section}] (key {key}), only [general] and [security]"
            ));
        }
    }
    Ok(())
}

fn yes(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("{name} = '{value}': it is true or false")),
    }
}

/// Where the values of a key go that are separated by commas; `None` of another key.
fn list_of<'a>(ini: &'a mut Ini, section: &str, key: &str) -> Option<&'a mut Vec<String>> {
    Some(match (section, key) {
        ("general", "uplink") => ini.uplink.get_or_insert_default(),
        ("general", "balance-interfaces") => &mut ini.balance_interfaces,
        ("general", "router-interfaces") => &mut ini.router_interfaces,
        ("general", "metrics") => &mut ini.metrics,
        ("general", "page") => &mut ini.page,
        ("general", "ipfix") => &mut ini.ipfix,
        ("general", "sflow") => &mut ini.sflow,
        _ => return None,
    })
}

/// Names that commas separate.
fn names(value: &str) -> Vec<String> {
    value
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect()
}

fn known(section: &str, key: &str) -> bool {
    match section {
        "general" => matches!(
            key,
            "log-level"
                | "ip"
                | "endpoint"
                | "socket-dir"
                | "graph-cpu-core"
                | "graph-core-id"
                | "trace-dir"
                | "api-group"
                | "vhost-owner"
                | "vhost-group"
                | "vhost-mode"
                | "guest-memory-populated"
                | "store"
                | "keeper"
                | "trace-dir-max"
                | "workers"
                | "dpdk-args"
                | "nic-mtu"
                | "dpdk-port"
                | "uplink"
                | "uplink-mode"
                | "vxlan-port"
                | "vxlan-ttl"
                | "vxlan-dscp"
                | "vxlan-checksum"
                | "balance-interfaces"
                | "balance-hook"
                | "balance-bgp"
                | "check-programs"
                | "router-interfaces"
                | "router-acl"
                | "metrics"
                | "page"
                | "flow-log"
                | "ipfix"
                | "sflow"
                | "sflow-rate"
        ),
        _ => matches!(
            key,
            "encryption_key_path"
                | "insecure-api"
                | "access"
                | "audit"
                | "balance-seed"
                | "insecure-metrics"
                | "page-token"
        ),
    }
}

fn parsed<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|e| format!("{name} = '{value}': {e}"))
}

/// A number of at most `most`.
fn within(name: &str, value: &str, most: u8) -> Result<u8, String> {
    let number: u8 = parsed(name, value)?;
    match number <= most {
        true => Ok(number),
        false => Err(format!("{name} = '{value}': it is within 0 and {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key() {
        let text = "
; a comment
# another
[general]
log-level = debug
ip=10.0.0.1
endpoint = ipc:///run/v0.sock
socket-dir = /run/b
graph-cpu-core = 2,4-5
graph-core-id = 6
trace-dir = /t
trace-dir-max = 2G
api-group = a
vhost-owner = o
vhost-group = g
vhost-mode = 640
guest-memory-populated = true
store = /s
keeper = /k
workers = 3
dpdk-args = -c1 -n1 --vdev=eth_pcap0,iface=eth0
nic-mtu = 9000
dpdk-port = 0
uplink = eth1,eth2
uplink-mode = packet
vxlan-port = 8472
vxlan-ttl = 9
vxlan-dscp = 46
vxlan-checksum = on
balance-interfaces = eth0, eth1
balance-hook = /etc/butterfly/hook
balance-bgp = /etc/butterfly/bgp.ini
check-programs = /usr/local/lib/checks
router-interfaces = eth2,eth3.100
router-acl = /etc/butterfly/acl
metrics = unix:/run/m.sock, tcp:127.0.0.1:9417
page = unix:/run/p.sock
flow-log = /f
ipfix = 192.0.2.9:4739, [2001:db8::9]:4739
sflow = 192.0.2.9:6343, [2001:db8::9]:6343
sflow-rate = 100
[security]
balance-seed = /etc/butterfly/balance-seed
insecure-metrics = true
page-token = /etc/butterfly/page-token
encryption_key_path = /etc/butterfly/key
insecure-api = yes
access = /etc/butterfly/access.toml
audit = /var/log/butterfly/audit.json
";
        let expected = Ini {
            log_level: Some(Level::Debug),
            ip: Some([10, 0, 0, 1].into()),
            endpoint: Some("ipc:///run/v0.sock".into()),
            socket_dir: Some("/run/b".into()),
            graph_cpu_core: Some("2,4-5".parse().unwrap()),
            graph_core_id: Some("6".parse().unwrap()),
            workers: Some(3),
            dpdk_args: Some("-c1 -n1 --vdev=eth_pcap0,iface=eth0".into()),
            nic_mtu: Some(9000),
            dpdk_port: Some(0),
            uplink: Some(vec!["eth1".into(), "eth2".into()]),
            uplink_mode: Some(UplinkMode::Packet),
            vxlan_port: Some(8472),
            vxlan_ttl: Some(9),
            vxlan_dscp: Some(46),
            vxlan_checksum: Some(OuterChecksum::On),
            trace_dir: Some("/t".into()),
            trace_dir_max: Some(2 << 30),
            api_group: Some("a".into()),
            vhost_owner: Some("o".into()),
            vhost_group: Some("g".into()),
            vhost_mode: Some(0o640),
            guest_memory_populated: Some(true),
            store: Some("/s".into()),
            keeper: Some("/k".into()),
            encryption_key_path: Some("/etc/butterfly/key".into()),
            insecure_api: Some(true),
            access: Some("/etc/butterfly/access.toml".into()),
            audit: Some("/var/log/butterfly/audit.json".into()),
            metrics: vec!["unix:/run/m.sock".into(), "tcp:127.0.0.1:9417".into()],
            insecure_metrics: Some(true),
            page: vec!["unix:/run/p.sock".into()],
            page_token: Some("/etc/butterfly/page-token".into()),
            flow_log: Some("/f".into()),
            ipfix: vec!["192.0.2.9:4739".into(), "[2001:db8::9]:4739".into()],
            sflow: vec!["192.0.2.9:6343".into(), "[2001:db8::9]:6343".into()],
            sflow_rate: Some(100),
            balance_interfaces: vec!["eth0".into(), "eth1".into()],
            balance_hook: Some("/etc/butterfly/hook".into()),
            balance_seed: Some("/etc/butterfly/balance-seed".into()),
            balance_bgp: Some("/etc/butterfly/bgp.ini".into()),
            check_programs: Some("/usr/local/lib/checks".into()),
            router_interfaces: vec!["eth2".into(), "eth3.100".into()],
            router_acl: Some("/etc/butterfly/acl".into()),
        };
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(
            parse("[general]\nip =\nkeeper =\nvhost-mode=\n[security]\naudit=\n"),
            Ok(Ini::default())
        );
        // So is that of any key, whatever its value is read as.
        for line in text.lines().filter(|line| line.contains(" = ")) {
            let key = line.split_once(" = ").unwrap().0;
            let section = match known("general", key) {
                true => "general",
                false => "security",
            };
            let empty = format!("[{section}]\n{key} =\n");
            assert_eq!(parse(&empty), Ok(Ini::default()), "{empty}");
        }
    }

    #[test]
    fn comments_behind_values_and_a_byte_order_mark_are_no_values() {
        let text = "\u{feff}[general]\nsocket-dir = /run/b ; where sockets are\n\
                    endpoint=ipc:///run/a;b#c\t# odd\nip = ; none\n";
        let expected = Ini {
            socket_dir: Some("/run/b".into()),
            endpoint: Some("ipc:///run/a;b#c".into()),
            ..Ini::default()
        };
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn what_is_said_twice_and_is_the_same_is_no_mistake() {
        let text = "[general]\nip = ::1\nstore =\n[security]\naudit = /a\n[general]\n\
                    ip = ::1 ; again\nstore = /s\nstore =\n";
        let expected = Ini {
            ip: Some("::1".parse().unwrap()),
            store: Some("/s".into()),
            audit: Some("/a".into()),
            ..Ini::default()
        };
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn refusals_name_section_and_key() {
        for (text, expected) in [
            (
                "[general]\nlog-levle = debug",
                "there is no key [general] log-levle",
            ),
            (
                "[general]\nencryption_key_path = /k",
                "there is no key [general] encryption_key_path",
            ),
            (
                "[generale]\nip = 1.2.3.4",
                "there is no section [generale] (key ip)",
            ),
            ("ip = 1.2.3.4", "the key ip stands before the first section"),
            ("[general]\nip = host", "[general] ip = 'host': "),
            (
                "[general]\nnic-mtu = 5",
                "[general] nic-mtu: '5' is neither max",
            ),
            (
                "[general]\nlog-level = loud",
                "[general] log-level = 'loud': ",
            ),
            ("[general]\nvxlan-ttl = 0", "[general] vxlan-ttl = '0': "),
            (
                "[general]\nvxlan-dscp = 64",
                "[general] vxlan-dscp = '64': it is within 0 and 63",
            ),
            (
                "[security]\ninsecure-api = maybe",
                "[security] insecure-api = 'maybe': it is true or false",
            ),
            ("[general]\nuplink-mode = fast", "[general] uplink-mode: "),
            (
                "[general]\nvxlan-checksum = maybe",
                "[general] vxlan-checksum: ",
            ),
            (
                "[general]\nuplink = eth1\nuplink = eth2",
                "[general] uplink is given twice, as 'eth1' and as 'eth2': several are separated \
                 by commas",
            ),
            (
                "[general]\nsflow = a\n[general]\nsflow = b, c",
                "[general] sflow is given twice, as 'a' and as 'b, c': several are separated by \
                 commas",
            ),
            (
                "[security]\ninsecure-api = false\n[general]\nip = ::1\n[security]\n\
                 insecure-api = true",
                "[security] insecure-api is given twice, as 'false' and as 'true'",
            ),
            (
                "[security]\naccess = /a\naccess =\naccess = /b",
                "[security] access is given twice, as '/a' and as '/b'",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn errors_name_the_file() {
        let error = Ini::load(Path::new("/nonexistent/butterflyd.ini")).unwrap_err();
        assert!(
            error.starts_with("/nonexistent/butterflyd.ini cannot be read: "),
            "{error}"
        );
    }

    #[test]
    fn the_manual_s_example_has_every_key() {
        let manual = include_str!("../../../docs/daemon.md");
        let (_, example) = manual.split_once("```ini\n").unwrap();
        let Ini {
            log_level: Some(_),
            ip: Some(_),
            endpoint: Some(_),
            socket_dir: Some(_),
            graph_cpu_core: Some(_),
            graph_core_id: Some(_),
            workers: Some(_),
            dpdk_args: Some(_),
            nic_mtu: Some(_),
            dpdk_port: Some(_),
            uplink: Some(_),
            vxlan_port: Some(_),
            vxlan_ttl: Some(_),
            vxlan_dscp: Some(_),
            vxlan_checksum: Some(_),
            uplink_mode: Some(_),
            trace_dir: Some(_),
            trace_dir_max: Some(_),
            api_group: Some(_),
            vhost_owner: Some(_),
            vhost_group: Some(_),
            vhost_mode: Some(0o660),
            guest_memory_populated: Some(_),
            store: Some(_),
            keeper: Some(_),
            encryption_key_path: Some(_),
            insecure_api: Some(_),
            access: Some(_),
            audit: Some(_),
            metrics,
            insecure_metrics: Some(_),
            page,
            page_token: Some(_),
            flow_log: Some(_),
            ipfix,
            sflow,
            sflow_rate: Some(_),
            balance_interfaces,
            balance_hook: Some(_),
            balance_seed: Some(_),
            balance_bgp: Some(_),
            check_programs: Some(_),
            router_interfaces,
            router_acl: Some(_),
        } = parse(example.split_once("```").unwrap().0).unwrap()
        else {
            panic!("the example leaves a key out");
        };
        let lists = [
            balance_interfaces,
            router_interfaces,
            metrics,
            page,
            ipfix,
            sflow,
        ];
        assert!(
            lists.iter().all(|list| !list.is_empty()),
            "the example leaves a key out"
        );
    }

    /// The file in packaging/ is what is installed: it must parse, and say nothing but defaults.
    #[test]
    fn the_packaged_file_parses() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/butterflyd.ini");
        Ini::load(&path).unwrap();
    }
}

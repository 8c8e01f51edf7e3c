//! The command line, and what it and the INI file add up to: [`Settings`].
//!
//! The options are those of the original daemon, and the new ones behind them. A value on the command line
//! wins over the INI file's, which wins over the default.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser;
use dataplane::underlay::Encapsulation;
use wire::vxlan::UdpChecksum;

use crate::cores::{self, Cores};
use crate::dpdk_args::{self, DpdkArgs};
use crate::ini::Ini;
use crate::logging::Level;

/// Where the v0 API listens unless told otherwise.
pub const V0_ENDPOINT: &str = "tcp://127.0.0.1:9999";
/// Where the v1 API listens unless told otherwise.
pub const V1_ENDPOINT: &str = "unix:/run/butterfly/api.sock";

/// What the kernel of a guest takes: an IP packet's length has 16 bits.
const MTU_MAX: u16 = u16::MAX;

#[derive(Parser, Debug, Default)]
#[command(
    name = "butterflyd",
    version,
    disable_help_flag = true,
    args_override_self = true,
    about = "Butterfly's daemon: virtual networks, security groups and NICs for the machines of this host"
)]
pub struct Options {
    /// This host's address towards other hosts: VXLAN comes to it, on the interface that has it
    #[arg(short = 'i', long, value_name = "IP")]
    pub ip: Option<IpAddr>,
    /// Where the vhost-user sockets are made [default: /run/butterfly]
    #[arg(short = 's', long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,
    /// An INI file with sections [general] and [security]; the command line wins over it
    #[arg(short = 'c', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the v0 API listens (ZeroMQ): tcp://ADDRESS:PORT, ipc://PATH or none [default: tcp://127.0.0.1:9999]
    #[arg(short = 'e', long, value_name = "ENDPOINT")]
    pub endpoint: Option<String>,
    /// none, error, warning, info or debug [default: info]
    #[arg(short = 'l', long, value_name = "LEVEL")]
    pub log_level: Option<Level>,
    /// Run one worker on each of these cores: 1, or 0,2-3 [default: one, wherever the scheduler likes]
    #[arg(short = 'u', long, value_name = "CORES")]
    pub graph_cpu_core: Option<Cores>,
    /// Largest IP packet of NICs that do not say, in bytes: 68..65535, or max [default: what the uplinks carry, else 1500]
    #[arg(short = 'm', long, value_name = "MTU", value_parser = mtu)]
    pub nic_mtu: Option<u16>,
    /// Write every NIC's packets to a file, unless the NIC says otherwise
    #[arg(short = 't', long)]
    pub packet_trace: bool,
    /// Encrypt the v0 API with the key in this file (base64 of 32 bytes), and refuse clear text
    #[arg(
        short = 'k',
        long = "key",
        alias = "k",
        alias = "encryption-key",
        value_name = "FILE"
    )]
    pub key: Option<PathBuf>,
    /// Log to standard error, not to the journal or syslog
    #[arg(long)]
    pub no_syslog: bool,
    /// Offer guests neither checksum nor segmentation offload
    #[arg(long)]
    pub no_offload: bool,
    /// Options of DPDK, taken for what they mean here
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub dpdk_args: Option<String>,
    /// Accepted and not used: the kernel keeps the NICs
    #[arg(long, value_name = "N")]
    pub dpdk_port: Option<u32>,

    /// Where the v1 API listens (gRPC): unix:PATH, tcp:ADDRESS:PORT (mutual TLS) or none; may be repeated
    /// [default: unix:/run/butterfly/api.sock]
    #[arg(long, value_name = "URI")]
    pub api: Vec<String>,
    /// A group whose members may use the unix sockets of the APIs beside root
    #[arg(long, value_name = "GROUP")]
    pub api_group: Option<String>,
    /// The daemon's certificate for --api tcp:, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Who signs the certificates of clients, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Allow the v0 API in clear text on addresses other hosts can reach
    #[arg(long)]
    pub insecure_api: bool,
    /// Run so many workers without keeping them on cores of their own; -u says which cores instead
    #[arg(long, value_name = "N", value_parser = cores::count)]
    pub workers: Option<usize>,
    /// Connections tracked at most
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    pub max_flows: u32,
    /// Connections that one NIC may have started at most [default: a quarter of --max-flows, 65536 at the most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub max_flows_per_nic: Option<u32>,
    /// Microseconds that an idle worker polls before it sleeps
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub poll_us: u64,
    /// Keep the cores of -u from idle states that take longer than this to wake from, in microseconds; 0: from halting
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub wake_us: Option<u32>,
    /// Join this host to others by this interface, which the kernel keeps; may be repeated [default: the one that has
    /// the address of -i]
    #[arg(long, value_name = "INTERFACE")]
    pub uplink: Vec<String>,
    /// Have the kernel do its part for uplinks within this daemon's calls, and not in interrupts, while there is traffic
    #[arg(long)]
    pub busy_poll: bool,
    /// UDP port of VXLAN [default: 4789]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: Option<u16>,
    /// TTL, or hop limit, of outer packets [default: 64]
    #[arg(long, value_name = "TTL", value_parser = clap::value_parser!(u8).range(1..))]
    pub vxlan_ttl: Option<u8>,
    /// DSCP of outer packets, 0..63 [default: the inner packet's]; ECN is always the inner packet's (RFC 6040)
    #[arg(long, value_name = "DSCP", value_parser = clap::value_parser!(u8).range(..=i64::from(DSCP_MAX)))]
    pub vxlan_dscp: Option<u8>,
    /// UDP checksum of outer packets; auto is over IPv6 alone, where others drop those without (RFC 6935) [default: auto]
    #[arg(long, value_name = "WHERE")]
    pub vxlan_checksum: Option<OuterChecksum>,
    /// Balance the load of services on this interface, which the kernel keeps; may be repeated
    #[arg(long, value_name = "INTERFACE")]
    pub balance_interface: Vec<String>,
    /// Flows that the load balancer remembers, 80 bytes of the kernel's memory each
    #[arg(long, value_name = "N", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    pub balance_max_flows: u32,
    /// Run this program as `PROGRAM announce ADDRESS`, or withdraw, when a service's address comes or goes
    #[arg(long, value_name = "PROGRAM")]
    pub balance_hook: Option<PathBuf>,
    /// Forward transit packets between interfaces, which the kernel keeps, VLANs among them; may be repeated
    #[arg(long, value_name = "INTERFACE")]
    pub router: Vec<String>,
    /// Lines of 64 bytes in the router's table for IPv4, one for one to ten prefixes
    #[arg(long, value_name = "N", default_value_t = router::Options::default().nodes4, value_parser = clap::value_parser!(u32).range(router::Options::NODES))]
    pub router_nodes4: u32,
    /// Lines of 64 bytes in the router's table for IPv6, one for one to three prefixes
    #[arg(long, value_name = "N", default_value_t = router::Options::default().nodes6, value_parser = clap::value_parser!(u32).range(router::Options::NODES))]
    pub router_nodes6: u32,
    /// Print this help
    #[arg(short = 'h', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// Of outer packets, where nothing is said.
const TTL: u8 = 64;
/// Six bits (RFC 2474, section 3).
pub const DSCP_MAX: u8 = 63;

/// Which outer packets have a UDP checksum.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OuterChecksum {
    #[default]
    Auto,
    On,
    Off,
}

/// Everything the daemon is started with, defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub ip: Option<IpAddr>,
    pub socket_dir: PathBuf,
    /// `None`: no v0 API.
    pub v0_endpoint: Option<String>,
    pub v0_key: Option<PathBuf>,
    pub insecure_api: bool,
    pub v1_endpoints: Vec<String>,
    pub tls: Tls,
    pub api_group: Option<String>,
    pub log_level: Level,
    pub no_syslog: bool,
    /// One entry a worker: the core that it is to stay on.
    pub workers: Vec<Option<usize>>,
    /// `None`: what the uplinks carry.
    pub mtu: Option<u16>,
    pub packet_trace: bool,
    pub offloads: bool,
    pub max_flows: u32,
    pub max_flows_per_nic: u32,
    pub poll_us: u64,
    /// How long a worker's core may take to wake, microseconds, and which cores these are. `None`: as the kernel has it.
    pub wake: Option<(u32, Vec<usize>)>,
    /// The interfaces that are to join this host to others; empty: the one that has `ip`.
    pub uplinks: Vec<String>,
    pub busy_poll: bool,
    pub vxlan_port: u16,
    /// What outer headers have in common; its port is `vxlan_port`.
    pub encapsulation: Encapsulation,
    /// Interfaces that services are balanced on from the start.
    pub balance_interfaces: Vec<String>,
    pub balance_max_flows: u32,
    pub balance_hook: Option<PathBuf>,
    /// Interfaces that are routed between from the start, and the sizes of the router's tables.
    pub router_interfaces: Vec<String>,
    pub router: router::Options,
    /// What was accepted and has no effect, to be logged once logging runs.
    pub remarks: Vec<String>,
}

/// The three files of mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
}

impl Settings {
    /// Reads the INI file if one is named, and adds up. The error is a sentence for the user.
    pub fn resolve(options: Options) -> Result<Settings, String> {
        let ini = match &options.config {
            Some(path) => Ini::load(path)?,
            None => Ini::default(),
        };
        let dpdk = match options.dpdk_args.or(ini.dpdk_args) {
            Some(text) => dpdk_args::parse(&text)?,
            None => DpdkArgs::default(),
        };
        let mut remarks = dpdk.remarks;
        if let Some(port) = options.dpdk_port.or(ini.dpdk_port) {
            remarks.push(format!(
                "--dpdk-port {port} has no effect: the kernel keeps the NICs; see --uplink"
            ));
        }
        let outer_checksum = options.vxlan_checksum.or(ini.vxlan_checksum).unwrap_or_default();
        let vxlan_port = options.vxlan_port.or(ini.vxlan_port).unwrap_or(wire::vxlan::PORT);
        let socket_dir = options
            .socket_dir
            .or(ini.socket_dir)
            .unwrap_or_else(|| "/run/butterfly".into());
        let workers = match (options.graph_cpu_core, options.workers) {
            // What the line says of either takes the place of what the file says of both.
            (None, None) => cores::workers(ini.graph_cpu_core.or(dpdk_cores(dpdk.core)), ini.workers)?,
            (list, count) => cores::workers(list, count)?,
        };
        Ok(Settings {
            ip: options.ip.or(ini.ip),
            socket_dir: std::path::absolute(&socket_dir)
                .map_err(|e| format!("the socket directory {}: {e}", socket_dir.display()))?,
            v0_endpoint: unless_none(
                options
                    .endpoint
                    .or(ini.endpoint)
                    .unwrap_or_else(|| V0_ENDPOINT.into()),
            ),
            v0_key: options.key.or(ini.encryption_key_path),
            insecure_api: options.insecure_api,
            v1_endpoints: match options.api.is_empty() {
                true => vec![V1_ENDPOINT.into()],
                false => options.api.into_iter().filter_map(unless_none).collect(),
            },
            tls: Tls {
                cert: options.tls_cert,
                key: options.tls_key,
                ca: options.tls_ca,
            },
            api_group: options.api_group,
            log_level: options.log_level.or(ini.log_level).unwrap_or(Level::Info),
            no_syslog: options.no_syslog,
            wake: options.wake_us.map(|us| wake(us, &workers)).transpose()?,
            workers,
            mtu: options.nic_mtu.or(ini.nic_mtu),
            packet_trace: options.packet_trace,
            offloads: !options.no_offload,
            max_flows: options.max_flows,
            // A part of the table: one NIC cannot take what the others need, unless it was said so.
            max_flows_per_nic: match options.max_flows_per_nic {
                Some(count) => count.min(options.max_flows),
                None => (options.max_flows / 4).clamp(1, 65_536),
            },
            poll_us: options.poll_us,
            // The original named it among DPDK's options.
            uplinks: match (options.uplink.is_empty(), ini.uplink) {
                (false, _) => options.uplink,
                (true, Some(names)) => names.split(',').map(|name| name.trim().to_owned()).collect(),
                (true, None) => dpdk.uplink.into_iter().collect(),
            },
            busy_poll: options.busy_poll,
            vxlan_port,
            encapsulation: Encapsulation {
                port: vxlan_port,
                ttl: options.vxlan_ttl.or(ini.vxlan_ttl).unwrap_or(TTL),
                dscp: options.vxlan_dscp.or(ini.vxlan_dscp),
                checksum_v4: checksum(outer_checksum == OuterChecksum::On),
                checksum_v6: checksum(outer_checksum != OuterChecksum::Off),
            },
            balance_interfaces: match options.balance_interface.is_empty() {
                true => ini.balance_interfaces,
                false => options.balance_interface,
            },
            balance_max_flows: options.balance_max_flows,
            balance_hook: options.balance_hook.or(ini.balance_hook),
            router_interfaces: match options.router.is_empty() {
                true => ini.router_interfaces,
                false => options.router,
            },
            router: router::Options {
                nodes4: options.router_nodes4,
                nodes6: options.router_nodes6,
                ..router::Options::default()
            },
            remarks,
        })
    }
}

fn checksum(on: bool) -> UdpChecksum {
    if on { UdpChecksum::Full } else { UdpChecksum::Zero }
}

/// The core that DPDK's options name.
fn dpdk_cores(core: Option<usize>) -> Option<Cores> {
    core.map(Cores::one)
}

/// What is to be asked of the workers' cores.
fn wake(wake_us: u32, workers: &[Option<usize>]) -> Result<(u32, Vec<usize>), String> {
    let cores: Option<Vec<usize>> = workers.iter().copied().collect();
    let cores = cores.ok_or_else(|| format!("--wake-us {wake_us} needs -u: of which cores it is asked"))?;
    Ok((wake_us, cores))
}

fn unless_none(endpoint: String) -> Option<String> {
    (endpoint != "none").then_some(endpoint)
}

/// An MTU as `-m` and `nic-mtu` take it.
pub fn mtu(text: &str) -> Result<u16, String> {
    match text {
        "max" => Ok(MTU_MAX),
        number => number
            .parse()
            .ok()
            .filter(|mtu| *mtu >= control::limits::MTU_MIN)
            .ok_or_else(|| format!("'{text}' is neither max nor a number within 68 and {MTU_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &[&str]) -> Result<Settings, String> {
        let line = std::iter::once("butterflyd").chain(line.iter().copied());
        Settings::resolve(Options::try_parse_from(line).map_err(|e| e.to_string())?)
    }

    fn defaults() -> Settings {
        settings(&[]).unwrap()
    }

    #[test]
    fn the_command_line_of_clap_is_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn the_manual_has_the_help() {
        use clap::CommandFactory;
        let manual = include_str!("../../../docs/daemon.md");
        let help = Options::command().term_width(100).render_help().to_string();
        for line in help.trim_end().lines() {
            assert!(
                manual.contains(line.trim_end()),
                "docs/daemon.md does not say '{line}'"
            );
        }
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let expected = Settings {
            ip: None,
            socket_dir: "/run/butterfly".into(),
            v0_endpoint: Some("tcp://127.0.0.1:9999".into()),
            v0_key: None,
            insecure_api: false,
            v1_endpoints: vec!["unix:/run/butterfly/api.sock".into()],
            tls: Tls::default(),
            api_group: None,
            log_level: Level::Info,
            no_syslog: false,
            workers: vec![None],
            mtu: None,
            packet_trace: false,
            offloads: true,
            max_flows: 1 << 20,
            max_flows_per_nic: 65_536,
            poll_us: 50,
            wake: None,
            uplinks: vec![],
            busy_poll: false,
            vxlan_port: 4789,
            encapsulation: Encapsulation {
                checksum_v6: UdpChecksum::Full,
                ..Encapsulation::default()
            },
            balance_interfaces: vec![],
            balance_max_flows: 262_144,
            balance_hook: None,
            router_interfaces: vec![],
            router: router::Options::default(),
            remarks: vec![],
        };
        assert_eq!(defaults(), expected);
    }

    /// Each line: an option in every spelling, and the settings it makes, all others being the defaults.
    #[test]
    fn every_option_in_every_spelling() {
        let with = |change: &dyn Fn(&mut Settings)| {
            let mut settings = defaults();
            change(&mut settings);
            settings
        };
        type Change<'a> = &'a dyn Fn(&mut Settings);
        let table: &[(&[&str], Change)] = &[
            (
                &["-i 192.168.0.1", "--ip 192.168.0.1", "--ip=192.168.0.1"],
                &|s| {
                    s.ip = Some([192, 168, 0, 1].into());
                },
            ),
            (&["-s /tmp", "--socket-dir /tmp"], &|s| {
                s.socket_dir = "/tmp".into()
            }),
            (&["-e tcp://127.0.0.1:1", "--endpoint tcp://127.0.0.1:1"], &|s| {
                s.v0_endpoint = Some("tcp://127.0.0.1:1".into());
            }),
            (&["-e none", "-e tcp://127.0.0.1:1 -e none"], &|s| {
                s.v0_endpoint = None;
            }),
            (&["-l debug", "--log-level debug"], &|s| {
                s.log_level = Level::Debug
            }),
            (&["-l none"], &|s| s.log_level = Level::None),
            (&["-u 1", "--graph-cpu-core 1", "-u 1 --workers 1"], &|s| {
                s.workers = vec![Some(1)]
            }),
            (&["-u 0,2-3"], &|s| s.workers = vec![Some(0), Some(2), Some(3)]),
            (&["--workers 3"], &|s| s.workers = vec![None; 3]),
            (&["-m 9000", "--nic-mtu 9000"], &|s| s.mtu = Some(9000)),
            (&["-m max"], &|s| s.mtu = Some(65535)),
            (&["-t", "--packet-trace"], &|s| s.packet_trace = true),
            (&["-k /k", "--key /k", "--k /k", "--encryption-key /k"], &|s| {
                s.v0_key = Some("/k".into())
            }),
            (&["--no-syslog"], &|s| s.no_syslog = true),
            (&["--no-offload"], &|s| s.offloads = false),
            (&["--api none"], &|s| s.v1_endpoints = vec![]),
            (&["--api unix:/a --api tcp:[::1]:7"], &|s| {
                s.v1_endpoints = vec!["unix:/a".into(), "tcp:[::1]:7".into()];
            }),
            (&["--tls-cert /c --tls-key /k --tls-ca /a"], &|s| {
                s.tls = Tls {
                    cert: Some("/c".into()),
                    key: Some("/k".into()),
                    ca: Some("/a".into()),
                };
            }),
            (&["--insecure-api"], &|s| s.insecure_api = true),
            (&["--api-group kvm"], &|s| s.api_group = Some("kvm".into())),
            (&["--max-flows 4096"], &|s| {
                (s.max_flows, s.max_flows_per_nic) = (4096, 1024)
            }),
            (&["--max-flows-per-nic 100000"], &|s| {
                s.max_flows_per_nic = 100_000
            }),
            (&["--max-flows 4096 --max-flows-per-nic 5000"], &|s| {
                (s.max_flows, s.max_flows_per_nic) = (4096, 4096)
            }),
            (&["--poll-us 0"], &|s| s.poll_us = 0),
            (&["-u 0,2 --wake-us 20"], &|s| {
                s.workers = vec![Some(0), Some(2)];
                s.wake = Some((20, vec![0, 2]));
            }),
            (&["--uplink eth1 --uplink=eth2"], &|s| {
                s.uplinks = vec!["eth1".into(), "eth2".into()];
            }),
            (&["--busy-poll"], &|s| s.busy_poll = true),
            (&["--vxlan-port 8472"], &|s| {
                s.vxlan_port = 8472;
                s.encapsulation.port = 8472;
            }),
            (&["--vxlan-ttl 9 --vxlan-dscp 46"], &|s| {
                (s.encapsulation.ttl, s.encapsulation.dscp) = (9, Some(46));
            }),
            (&["--vxlan-checksum on"], &|s| {
                s.encapsulation.checksum_v4 = UdpChecksum::Full
            }),
            (&["--vxlan-checksum off"], &|s| {
                s.encapsulation.checksum_v6 = UdpChecksum::Zero
            }),
            (&["--balance-interface eth0 --balance-interface eth1"], &|s| {
                s.balance_interfaces = vec!["eth0".into(), "eth1".into()];
            }),
            (&["--balance-max-flows 4096"], &|s| s.balance_max_flows = 4096),
            (&["--balance-hook /h"], &|s| s.balance_hook = Some("/h".into())),
            (&["--router eth0 --router eth1.7"], &|s| {
                s.router_interfaces = vec!["eth0".into(), "eth1.7".into()];
            }),
            (&["--router-nodes4 65536 --router-nodes6 4096"], &|s| {
                (s.router.nodes4, s.router.nodes6) = (65_536, 4096);
            }),
        ];
        for (spellings, change) in table {
            for spelling in *spellings {
                let line: Vec<&str> = spelling.split(' ').collect();
                assert_eq!(settings(&line).as_ref(), Ok(&with(*change)), "{spelling}");
            }
        }
    }

    #[test]
    fn the_command_lines_of_the_original_s_readme() {
        let plain = settings(&["-i", "192.168.0.1", "-s", "/tmp"]).unwrap();
        assert_eq!(
            (plain.socket_dir.to_str(), plain.remarks.len()),
            (Some("/tmp"), 0)
        );
        let args = "-c1 -n1 --socket-mem 64 --vdev=eth_pcap0,iface=eth0";
        let dpdk = settings(&["-i", "192.168.0.1", "-s", "/tmp", "--dpdk-args", args]).unwrap();
        assert_eq!(
            (dpdk.workers, dpdk.uplinks),
            (vec![Some(0)], vec!["eth0".to_owned()])
        );
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for line in [
            "-i host",
            "-l loud",
            "-m 67",
            "-m 65536",
            "-u x",
            "-u 1,1",
            "--workers 0",
            "--workers 33",
            "-u 1,2 --workers 3",
            "--wake-us 20",
            "-u 1 --wake-us soon",
            "--max-flows 1",
            "--vxlan-port 0",
            "--vxlan-ttl 0",
            "--vxlan-dscp 64",
            "--vxlan-checksum maybe",
            "--router-nodes4 1023",
            "--router-nodes6 67108864",
            "--nonsense",
            "-s",
            "extra",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(settings(&words).is_err(), "{line}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("butterflyd.ini");
        let text = "[general]\nnic-mtu = max\ngraph-cpu-core = 3,5\ndpdk-args = -c 2\nlog-level = error\ndpdk-port = 1\n";
        std::fs::write(&path, text).unwrap();
        let settings = settings(&["-c", path.to_str().unwrap(), "-l", "warning"]).unwrap();
        assert_eq!(
            (settings.mtu, settings.workers, settings.log_level),
            (Some(65535), vec![Some(3), Some(5)], Level::Warning)
        );
        assert!(settings.remarks[0].starts_with("--dpdk-port 1 has no effect"));
    }
}

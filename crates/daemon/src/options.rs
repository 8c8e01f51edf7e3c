//! The command line, and what it and the INI file add up to: [`Settings`].
//!
//! The options are those of the original daemon, and the new ones behind them. A value on the
//! command line wins over the INI file's, which wins over the default.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use dataplane::underlay::Encapsulation;
use netlink::change::PairKind;
use wire::vxlan::UdpChecksum;

use crate::cores::{self, Cores};
use crate::datagrams;
use crate::dpdk_args::{self, DpdkArgs, Join};
use crate::ini::Ini;
use crate::logging::Level;

/// Where the v1 API listens unless told otherwise.
pub const V1_ENDPOINT: &str = "unix:/run/butterfly/api.sock";

/// What the kernel of a guest takes: an IP packet's length has 16 bits.
const MTU_MAX: u16 = u16::MAX;

/// The command line.
#[derive(Parser, Debug, Default)]
#[command(
    name = "butterflyd",
    version = api::VERSION,
    disable_help_flag = true,
    args_override_self = true,
    about = "Butterfly's daemon: virtual networks, security groups and NICs for the machines of \
             this host"
)]
pub struct Options {
    /// This host's address towards other hosts: VXLAN comes to it, on the interface that has it
    #[arg(short = 'i', long, value_name = "IP")]
    pub(crate) ip: Option<IpAddr>,
    /// Where the vhost-user sockets are made [default: /run/butterfly]
    #[arg(short = 's', long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
    /// An INI file with sections [general] and [security]; the command line wins over it
    #[arg(short = 'c', long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where the v0 API listens (ZeroMQ): ipc://PATH, tcp://ADDRESS:PORT with -k or --insecure-api,
    /// or none [default: none]
    #[arg(short = 'e', long, value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// none, error, warning, info or debug [default: info]
    #[arg(short = 'l', long, value_name = "LEVEL")]
    pub(crate) log_level: Option<Level>,
    /// Run one worker on each of these cores: 1, or 0,2-3 [default: one, wherever the scheduler
    /// likes]
    #[arg(short = 'u', long, value_name = "CORES")]
    pub(crate) graph_cpu_core: Option<Cores>,
    /// Largest IP packet of NICs that do not say, in bytes: 68..65535, or max [default: what the
    /// uplinks carry, else 1500]
    #[arg(short = 'm', long, value_name = "MTU", value_parser = mtu)]
    pub(crate) nic_mtu: Option<u16>,
    /// Write every NIC's packets to a file, unless the NIC says otherwise
    #[arg(short = 't', long)]
    pub(crate) packet_trace: bool,
    /// Beneath which packet traces are written, and nowhere else [default: /tmp, where the original
    /// wrote them; of the systemd service /var/lib/butterfly/traces]
    #[arg(long, value_name = "DIR")]
    pub(crate) trace_dir: Option<PathBuf>,
    /// Bytes that all packet traces there may have together, those of before among them: 500M, 16G.
    /// Beyond it they record nothing more, and none is deleted [default: a quarter of the file
    /// system, 16G at the most]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) trace_dir_max: Option<u64>,
    /// Keep what is declared in this folder, so that it outlives the daemon; none: nothing does
    /// [default: none; of the systemd service /var/lib/butterfly]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// The service's folders, as systemd tells them: the first is the store unless another is said.
    #[arg(long, hide = true, env = "STATE_DIRECTORY")]
    pub(crate) state_directory: Option<OsString>,
    /// Have TAP devices, connections and VMMs' sockets outlive the daemon, however it ends, by the
    /// keeper that listens on this socket, which is started where none does; needs --store. none:
    /// they go with the daemon [default: none]
    #[arg(long, value_name = "SOCKET")]
    pub(crate) keeper: Option<PathBuf>,
    /// Be a keeper on this socket, and nothing else
    #[arg(long, value_name = "SOCKET")]
    pub(crate) as_keeper: Option<PathBuf>,
    /// Of a keeper: end when nothing is left to be held.
    #[arg(long, hide = true, requires = "as_keeper")]
    pub(crate) until_idle: bool,
    /// Of a daemon that another one starts in its place: its standard input is the socket to it.
    #[arg(long, hide = true)]
    pub(crate) take_over: bool,
    /// Changes that can be gone back to
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) store_revisions: u64,
    /// Encrypt the v0 API with the key in this file (base64 of 32 bytes), and refuse clear text
    #[arg(
        short = 'k',
        long = "key",
        alias = "k",
        alias = "encryption-key",
        value_name = "FILE"
    )]
    pub(crate) key: Option<PathBuf>,
    /// Log to standard error, not to the journal or syslog
    #[arg(long)]
    pub(crate) no_syslog: bool,
    /// Offer guests neither checksum nor segmentation offload
    #[arg(long)]
    pub(crate) no_offload: bool,
    /// Options of DPDK, taken for what they mean here: --vdev=eth_pcap0,iface=eth0 names an uplink
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub(crate) dpdk_args: Option<String>,
    /// Which device of --dpdk-args is used, counted from 0 [default: the first that is no member of
    /// a bond]
    #[arg(long, value_name = "N")]
    pub(crate) dpdk_port: Option<u32>,
    /// Print what becomes of each option of --dpdk-args
    #[arg(long)]
    pub(crate) dpdk_help: bool,
    /// Print the manual page, in roff
    #[arg(long, hide = true)]
    pub(crate) man: bool,

    /// Where the v1 API listens (gRPC): unix:PATH, tcp:ADDRESS:PORT (mutual TLS) or none; may be
    /// repeated [default: unix:/run/butterfly/api.sock]
    #[arg(long, value_name = "URI")]
    pub(crate) api: Vec<String>,
    /// A group whose members may use the unix sockets of the APIs beside root
    #[arg(long, value_name = "GROUP")]
    pub(crate) api_group: Option<String>,
    /// The user that owns the vhost-user sockets [default: the daemon's]
    #[arg(long, value_name = "USER")]
    pub(crate) vhost_owner: Option<String>,
    /// The group of the vhost-user sockets, which its members may connect to: that of the emulators
    #[arg(long, value_name = "GROUP")]
    pub(crate) vhost_group: Option<String>,
    /// Permissions of the vhost-user sockets, octal [default: with --vhost-group 0660, else by the
    /// umask]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(crate) vhost_mode: Option<u32>,
    /// Take memory of guests only as far as its emulator has populated it (QEMU: prealloc=on): a
    /// NIC that has the daemon use a page that is not there stops, and the daemon is never charged
    /// for it
    #[arg(long)]
    pub(crate) guest_memory_populated: bool,
    /// Seconds after which a thread of the daemon that does not move ends it, to be started again;
    /// 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) hang_secs: u32,
    /// Who may do what, TOML (docs/access.md); read again on SIGHUP [default: root, --api-group and
    /// whoever has a certificate may do everything]
    #[arg(long, value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// Append every change, and every attempt that is refused, to this file, JSON; opened again on
    /// SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// Append connections that begin and end, and what is refused, to this file, JSON
    /// (docs/flows.md); opened again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) flow_log: Option<PathBuf>,
    /// Send connections that are over, and what is refused, to this collector, IPFIX over UDP; may
    /// be repeated
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) ipfix: Vec<String>,
    /// Send samples of frames, and what interfaces have counted, to this collector, sFlow version 5
    /// over UDP; may be repeated
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) sflow: Vec<String>,
    /// Of so many frames one is sampled, where a NIC has no rate of its own; 0: of those alone that
    /// have one [default: 1000]
    #[arg(long, value_name = "FRAMES", value_parser = sflow_rate)]
    pub(crate) sflow_rate: Option<u32>,
    /// The daemon's certificate for --api tcp:, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Who signs the certificates of clients, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Allow the v0 API in clear text over TCP: whoever can connect, local users among them, then
    /// owns this host
    #[arg(long)]
    pub(crate) insecure_api: bool,
    /// Serve what is counted, for Prometheus, as /metrics over HTTP: unix:PATH or tcp:ADDRESS:PORT
    /// (mutual TLS); may be repeated (docs/metrics.md)
    #[arg(long, value_name = "URI")]
    pub(crate) metrics: Vec<String>,
    /// Serve --metrics tcp: in clear text, on loopback addresses alone: whoever is on this host may
    /// then read them
    #[arg(long)]
    pub(crate) insecure_metrics: bool,
    /// Serve a page that shows this host to browsers: unix:PATH or tcp:ADDRESS:PORT (mutual TLS);
    /// may be repeated (docs/page.md)
    #[arg(long, value_name = "URI")]
    pub(crate) page: Vec<String>,
    /// Serve --page tcp: in clear text, on loopback addresses alone, to who has the token in this
    /// file
    #[arg(long, value_name = "FILE")]
    pub(crate) page_token: Option<PathBuf>,
    /// Run so many workers without keeping them on cores of their own; -u says which cores instead
    #[arg(long, value_name = "N", value_parser = cores::count)]
    pub(crate) workers: Option<usize>,
    /// Connections tracked at most
    #[arg(long, value_name = "N", default_value_t = 1 << 20,
        value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    pub(crate) max_flows: u32,
    /// Connections that one NIC may have started at most [default: a quarter of --max-flows, 65536
    /// at the most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub(crate) max_flows_per_nic: Option<u32>,
    /// Connections of containers that the kernel may forward itself once the rules have let them
    /// pass, 128 bytes of its memory each and 450 in use; off: none (docs/containers.md)
    #[arg(long, value_name = "N|off", default_value = "16384", value_parser = kernel_flows)]
    pub(crate) kernel_flows: u32,
    /// What containers' interfaces are made of from now on; netkit needs Linux 6.12
    /// (docs/containers.md)
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    pub(crate) container_pairs: ContainerPairs,
    /// Microseconds that an idle worker polls before it sleeps
    #[arg(long, value_name = "US", default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) poll_us: u64,
    /// Keep the cores of -u from idle states that take longer than this to wake from, in
    /// microseconds; 0: from halting
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub(crate) wake_us: Option<u32>,
    /// Join this host to others by this interface, which the kernel keeps; may be repeated
    /// [default: the one that has the address of -i]
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) uplink: Vec<String>,
    /// How uplinks are joined: best by XDP where that is to be had; packet by packet sockets, for
    /// hosts of containers over virtual links (docs/uplink.md) [default: best]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) uplink_mode: Option<UplinkMode>,
    /// Have the kernel do its part for uplinks within this daemon's calls, and not in interrupts,
    /// while there is traffic
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// UDP port of VXLAN [default: 4789]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) vxlan_port: Option<u16>,
    /// TTL, or hop limit, of outer packets [default: 64]
    #[arg(long, value_name = "TTL", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) vxlan_ttl: Option<u8>,
    /// DSCP of outer packets, 0..63 [default: the inner packet's]; ECN is always the inner packet's
    /// (RFC 6040)
    #[arg(long, value_name = "DSCP",
        value_parser = clap::value_parser!(u8).range(..=i64::from(DSCP_MAX)))]
    pub(crate) vxlan_dscp: Option<u8>,
    /// UDP checksum of outer packets; auto is over IPv6 alone, where others drop those without (RFC
    /// 6935) [default: auto]
    #[arg(long, value_name = "WHERE")]
    pub(crate) vxlan_checksum: Option<OuterChecksum>,
    /// Balance the load of services on this interface, which the kernel keeps; may be repeated
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) balance_interface: Vec<String>,
    /// Flows that the load balancer remembers, 80 bytes of the kernel's memory each
    #[arg(long, value_name = "N", default_value_t = 262_144,
        value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    pub(crate) balance_max_flows: u32,
    /// Seed of the load balancer's hashes, which a fleet shares: this file has 16 hexadecimal
    /// digits; without it strangers know the seed (docs/balancer.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) balance_seed: Option<PathBuf>,
    /// Run this program as `PROGRAM announce ADDRESS`, or withdraw, when a service's address comes
    /// or goes
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) balance_hook: Option<PathBuf>,
    /// Announce services' addresses by BGP: this file names the neighbours, and
    /// docs/balancer-bgp.md all that it may say. A BIRD of the daemon's own speaks
    #[arg(long, value_name = "FILE")]
    pub(crate) balance_bgp: Option<PathBuf>,
    /// Health checks may run programs of this folder, as nobody
    #[arg(long, value_name = "DIR")]
    pub(crate) check_programs: Option<PathBuf>,
    /// Forward transit packets between interfaces, which the kernel keeps, VLANs among them; may be
    /// repeated
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) router: Vec<String>,
    /// The router forwards what the rules of this file allow, and drops what they deny
    /// (docs/router.md); read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) router_acl: Option<PathBuf>,
    /// Lines of 64 bytes in the router's table for IPv4, one for one to ten prefixes
    #[arg(long, value_name = "N", default_value_t = router::Options::default().nodes4,
        value_parser = clap::value_parser!(u32).range(router::Options::NODES))]
    pub(crate) router_nodes4: u32,
    /// Lines of 64 bytes in the router's table for IPv6, one for one to three prefixes
    #[arg(long, value_name = "N", default_value_t = router::Options::default().nodes6,
        value_parser = clap::value_parser!(u32).range(router::Options::NODES))]
    pub(crate) router_nodes6: u32,
    /// Print this help
    #[arg(short = 'h', long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

/// Where packet traces are written unless told otherwise.
const TRACE_DIR: &str = "/tmp";
/// The TTL of outer packets, unless an option says another.
const TTL: u8 = 64;
/// Six bits (RFC 2474, section 3).
pub const DSCP_MAX: u8 = 63;

/// What the interfaces of containers are made of.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ContainerPairs {
    #[default]
    Veth,
    Netkit,
}

impl From<ContainerPairs> for PairKind {
    fn from(pairs: ContainerPairs) -> PairKind {
        match pairs {
            ContainerPairs::Veth => PairKind::Veth,
            ContainerPairs::Netkit => PairKind::Netkit,
        }
    }
}

/// Which outer packets have a UDP checksum.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OuterChecksum {
    #[default]
    Auto,
    On,
    Off,
}

/// How uplinks are joined.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UplinkMode {
    #[default]
    Best,
    Packet,
}

/// Everything the daemon is started with, defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub(crate) ip: Option<IpAddr>,
    pub(crate) socket_dir: PathBuf,
    /// `None`: no v0 API.
    pub(crate) v0_endpoint: Option<String>,
    pub(crate) v0_key: Option<PathBuf>,
    pub(crate) insecure_api: bool,
    pub(crate) v1_endpoints: Vec<String>,
    pub(crate) tls: Tls,
    /// Where /metrics is served, and whether in clear text.
    pub(crate) metrics: Vec<String>,
    pub(crate) insecure_metrics: bool,
    /// Where the page is served, and the file of its token.
    pub(crate) page: Vec<String>,
    pub(crate) page_token: Option<PathBuf>,
    pub(crate) api_group: Option<String>,
    /// Whose the sockets of NICs are, by name, and their permissions.
    pub(crate) vhost_owner: Option<String>,
    pub(crate) vhost_group: Option<String>,
    pub(crate) vhost_mode: Option<u32>,
    pub(crate) guest_memory_populated: bool,
    /// Looks of the watchdog, a second apart, that a thread may stay in one place; 0: for ever.
    pub(crate) hang_secs: u32,
    /// Who may do what, and where it is recorded.
    pub(crate) access: Option<PathBuf>,
    pub(crate) audit: Option<PathBuf>,
    /// Where connections are told.
    pub(crate) flow_log: Option<PathBuf>,
    pub(crate) ipfix: Vec<String>,
    /// Collectors of samples, and of how many frames one is taken.
    pub(crate) sflow: Vec<SocketAddr>,
    pub(crate) sflow_rate: u32,
    pub(crate) log_level: Level,
    pub(crate) no_syslog: bool,
    /// One entry a worker: the core that it is to stay on.
    pub(crate) workers: Vec<Option<usize>>,
    /// `None`: what the uplinks carry.
    pub(crate) mtu: Option<u16>,
    pub(crate) packet_trace: bool,
    /// Beneath which packet traces are written, absolute.
    pub(crate) trace_dir: PathBuf,
    /// Bytes that they may have together; `None`: a part of the disk.
    pub(crate) trace_dir_max: Option<u64>,
    /// Where the store is; `None`: nothing outlives the daemon.
    pub(crate) store: Option<PathBuf>,
    /// The service's folder of state, whatever the store is.
    pub(crate) state_dir: Option<PathBuf>,
    /// The socket of who has TAP devices outlive the daemon.
    pub(crate) keeper: Option<PathBuf>,
    /// Revisions that the store keeps at most.
    pub(crate) store_revisions: u64,
    pub(crate) offloads: bool,
    pub(crate) max_flows: u32,
    pub(crate) max_flows_per_nic: u32,
    /// 0: none.
    pub(crate) kernel_flows: u32,
    pub(crate) container_pairs: ContainerPairs,
    pub(crate) poll_us: u64,
    /// How long a worker's core may take to wake, microseconds, and which cores these are. `None`:
    /// as the kernel has it.
    pub(crate) wake: Option<(u32, Vec<usize>)>,
    /// The interfaces that are to join this host to others; empty: the one that has `ip`.
    pub(crate) uplinks: Vec<String>,
    /// No interface is joined, whatever has `ip`: a device that leads nowhere was asked for.
    pub(crate) alone: bool,
    /// A device that DPDK drives is one of the uplinks.
    pub(crate) dpdk: Option<OfDpdk>,
    pub(crate) uplink_mode: UplinkMode,
    pub(crate) busy_poll: bool,
    pub(crate) vxlan_port: u16,
    /// What outer headers have in common; its port is `vxlan_port`.
    pub(crate) encapsulation: Encapsulation,
    /// Interfaces that services are balanced on from the start.
    pub(crate) balance_interfaces: Vec<String>,
    pub(crate) balance_max_flows: u32,
    pub(crate) balance_seed: Option<PathBuf>,
    pub(crate) balance_hook: Option<PathBuf>,
    pub(crate) balance_bgp: Option<PathBuf>,
    /// Where the programs are that health checks may run.
    pub(crate) check_programs: Option<PathBuf>,
    /// Interfaces that are routed between from the start, and the sizes of the router's tables.
    pub(crate) router_interfaces: Vec<String>,
    pub(crate) router_acl: Option<PathBuf>,
    pub(crate) router: router::Options,
    /// What was accepted and has no effect, or not the one that may be expected: to be logged once
    /// logging runs.
    pub(crate) remarks: Vec<String>,
    /// Remarks that somebody ought to act on: logged as warnings.
    pub(crate) warnings: Vec<String>,
}

/// The three files of mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
}

impl Options {
    /// The socket on which to be a keeper in the place of running, if that is asked for, and
    /// whether to end when there is nothing to hold.
    pub fn keeper_asked_for(&self) -> Option<(&Path, bool)> {
        Some((self.as_keeper.as_deref()?, self.until_idle))
    }

    /// Whether another daemon has started this one in its place.
    pub fn takes_over(&self) -> bool {
        self.take_over
    }

    /// What is to be printed in the place of running, if that is asked for.
    pub fn text_asked_for(&self) -> Option<String> {
        if self.man {
            return Some(man());
        }
        self.dpdk_help.then(dpdk_args::help)
    }
}

impl Settings {
    /// Reads the INI file if one is named, and adds up. The error is a sentence for the user.
    pub fn resolve(options: Options) -> Result<Settings, String> {
        let ini = match &options.config {
            Some(path) => Ini::load(path)?,
            None => Ini::default(),
        };
        let file = options
            .config
            .as_deref()
            .unwrap_or(Path::new("the INI file"));
        let mut said = Said {
            file,
            remarks: Vec::new(),
        };
        let text: fn(&String) -> String = String::clone;
        let path: fn(&PathBuf) -> String = |path| path.display().to_string();
        let dpdk_args = said.one(
            "--dpdk-args",
            "dpdk-args",
            options.dpdk_args,
            ini.dpdk_args,
            text,
        );
        let dpdk_port = said.one(
            "--dpdk-port",
            "dpdk-port",
            options.dpdk_port,
            ini.dpdk_port,
            u32::to_string,
        );
        let mut dpdk = DpdkArgs::default();
        let mut of_dpdk = None;
        match dpdk_args {
            Some(text) if dpdk::AVAILABLE => {
                let args;
                (args, dpdk.core) = dpdk_args::for_dpdk(&text)?;
                of_dpdk = Some(OfDpdk {
                    args,
                    port: dpdk_port,
                });
            }
            Some(text) => dpdk = dpdk_args::parse(&text)?,
            None => {}
        }
        let interface_of =
            |address: &str| dpdk_args::pci_interface(Path::new(PCI_DEVICES), address);
        let join = match &of_dpdk {
            Some(_) => Join::Address,
            None => dpdk.join(dpdk_port, interface_of)?,
        };
        said.remarks.append(&mut dpdk.remarks);
        let named = (!options.uplink.is_empty()).then_some(options.uplink);
        let named = said.one("--uplink", "uplink", named, ini.uplink, |names| {
            names.join(",")
        });
        let (mut uplinks, alone) = uplinks(named, join, &mut said.remarks);
        uplinks.extend(of_dpdk.as_ref().map(OfDpdk::interface));
        let uplink_mode = said.one(
            "--uplink-mode",
            "uplink-mode",
            options.uplink_mode,
            ini.uplink_mode,
            |mode| format!("{mode:?}").to_lowercase(),
        );
        let outer_checksum = said.one(
            "--vxlan-checksum",
            "vxlan-checksum",
            options.vxlan_checksum,
            ini.vxlan_checksum,
            |checksum| format!("{checksum:?}").to_lowercase(),
        );
        let outer_checksum = outer_checksum.unwrap_or_default();
        let vxlan_port = said.one(
            "--vxlan-port",
            "vxlan-port",
            options.vxlan_port,
            ini.vxlan_port,
            u16::to_string,
        );
        let vxlan_port = vxlan_port.unwrap_or(wire::vxlan::PORT);
        let socket_dir = said
            .one("-s", "socket-dir", options.socket_dir, ini.socket_dir, path)
            .unwrap_or_else(|| "/run/butterfly".into());
        let cores_of_file = said.core_id(ini.graph_core_id, ini.graph_cpu_core);
        let workers = match (options.graph_cpu_core, options.workers) {
            // What the line says of either takes the place of what the file says of both.
            (None, None) => {
                cores::workers(cores_of_file.or(dpdk.core.map(Cores::one)), ini.workers)?
            }
            (list, count) => {
                said.differs(
                    "-u",
                    "graph-cpu-core",
                    list.as_ref(),
                    cores_of_file.as_ref(),
                    Cores::to_string,
                );
                said.differs(
                    "--workers",
                    "workers",
                    count.as_ref(),
                    ini.workers.as_ref(),
                    usize::to_string,
                );
                cores::workers(list, count)?
            }
        };
        let v0_endpoint = said.one("-e", "endpoint", options.endpoint, ini.endpoint, text);
        let v0_endpoint = v0_endpoint.and_then(unless_none);
        let v0_key = said.one(
            "-k",
            "encryption_key_path",
            options.key,
            ini.encryption_key_path,
            path,
        );
        let insecure_api = said.yes("--insecure-api", options.insecure_api, ini.insecure_api);
        let insecure_metrics = said.yes(
            "--insecure-metrics",
            options.insecure_metrics,
            ini.insecure_metrics,
        );
        let guest_memory_populated = said.yes(
            "--guest-memory-populated",
            options.guest_memory_populated,
            ini.guest_memory_populated,
        );
        let mut warnings = Vec::new();
        if v0_endpoint.is_none() && (v0_key.is_some() || insecure_api) {
            warnings.push(format!(
                "the v0 API is off, though there is {}: say where it is to listen, as \
                 -e tcp://0.0.0.0:9999, or endpoint = tcp://0.0.0.0:9999 in the INI file (the \
                 original's default)",
                if v0_key.is_some() {
                    "a key for it"
                } else {
                    "--insecure-api"
                }
            ));
        }
        let trace_dir = said
            .one(
                "--trace-dir",
                "trace-dir",
                options.trace_dir,
                ini.trace_dir,
                path,
            )
            .or_else(|| traces_of(options.state_directory.as_deref()?))
            .unwrap_or_else(|| TRACE_DIR.into());
        let trace_dir_max = said.one(
            "--trace-dir-max",
            "trace-dir-max",
            options.trace_dir_max,
            ini.trace_dir_max,
            u64::to_string,
        );
        let store = said
            .one("--store", "store", options.store, ini.store, path)
            .or_else(|| first_of(options.state_directory.as_deref()?))
            .filter(|store| store.as_os_str() != "none" && !store.as_os_str().is_empty());
        let keeper = said
            .one("--keeper", "keeper", options.keeper, ini.keeper, path)
            .filter(|keeper| keeper.as_os_str() != "none" && !keeper.as_os_str().is_empty());
        let keeper = match &store {
            Some(_) => keeper,
            None => {
                warnings.extend(keeper.map(|_| {
                    "--keeper counts for nothing without --store: no NIC outlives the daemon"
                        .to_owned()
                }));
                None
            }
        };
        let ip = said.one("-i", "ip", options.ip, ini.ip, IpAddr::to_string);
        let log_level = said.one(
            "-l",
            "log-level",
            options.log_level,
            ini.log_level,
            Level::to_string,
        );
        let mtu = said.one(
            "-m",
            "nic-mtu",
            options.nic_mtu,
            ini.nic_mtu,
            u16::to_string,
        );
        let ttl = said.one(
            "--vxlan-ttl",
            "vxlan-ttl",
            options.vxlan_ttl,
            ini.vxlan_ttl,
            u8::to_string,
        );
        let dscp = said.one(
            "--vxlan-dscp",
            "vxlan-dscp",
            options.vxlan_dscp,
            ini.vxlan_dscp,
            u8::to_string,
        );
        let api_group = said.one(
            "--api-group",
            "api-group",
            options.api_group,
            ini.api_group,
            text,
        );
        let vhost_owner = said.one(
            "--vhost-owner",
            "vhost-owner",
            options.vhost_owner,
            ini.vhost_owner,
            text,
        );
        let vhost_group = said.one(
            "--vhost-group",
            "vhost-group",
            options.vhost_group,
            ini.vhost_group,
            text,
        );
        let vhost_mode = said.one(
            "--vhost-mode",
            "vhost-mode",
            options.vhost_mode,
            ini.vhost_mode,
            |mode| format!("{mode:04o}"),
        );
        let access = said.one("--access", "access", options.access, ini.access, path);
        let audit = said.one("--audit", "audit", options.audit, ini.audit, path);
        let flow_log = said.one(
            "--flow-log",
            "flow-log",
            options.flow_log,
            ini.flow_log,
            path,
        );
        let names = |names: &Vec<String>| names.join(",");
        let balance_interfaces = said.one(
            "--balance-interface",
            "balance-interfaces",
            some(options.balance_interface),
            some(ini.balance_interfaces),
            names,
        );
        let balance_seed = said.one(
            "--balance-seed",
            "balance-seed",
            options.balance_seed,
            ini.balance_seed,
            path,
        );
        let balance_hook = said.one(
            "--balance-hook",
            "balance-hook",
            options.balance_hook,
            ini.balance_hook,
            path,
        );
        let check_programs = said.one(
            "--check-programs",
            "check-programs",
            options.check_programs,
            ini.check_programs,
            path,
        );
        let balance_bgp = said.one(
            "--balance-bgp",
            "balance-bgp",
            options.balance_bgp,
            ini.balance_bgp,
            path,
        );
        let router_interfaces = said.one(
            "--router",
            "router-interfaces",
            some(options.router),
            some(ini.router_interfaces),
            names,
        );
        let router_acl = said.one(
            "--router-acl",
            "router-acl",
            options.router_acl,
            ini.router_acl,
            path,
        );
        let metrics = said.one(
            "--metrics",
            "metrics",
            some(options.metrics),
            some(ini.metrics),
            names,
        );
        let page = said.one("--page", "page", some(options.page), some(ini.page), names);
        let page_token = said.one(
            "--page-token",
            "page-token",
            options.page_token,
            ini.page_token,
            path,
        );
        let ipfix = said.one(
            "--ipfix",
            "ipfix",
            some(options.ipfix),
            some(ini.ipfix),
            names,
        );
        let sflow = said.one(
            "--sflow",
            "sflow",
            some(options.sflow),
            some(ini.sflow),
            names,
        );
        let sflow = sflow.unwrap_or_default();
        let sflow_rate = said.one(
            "--sflow-rate",
            "sflow-rate",
            options.sflow_rate,
            ini.sflow_rate,
            u32::to_string,
        );
        Ok(Settings {
            ip,
            socket_dir: std::path::absolute(&socket_dir)
                .map_err(|e| format!("the socket directory {}: {e}", socket_dir.display()))?,
            v0_endpoint,
            v0_key,
            insecure_api,
            v1_endpoints: match options.api.is_empty() {
                true => vec![V1_ENDPOINT.into()],
                false => options.api.into_iter().filter_map(unless_none).collect(),
            },
            tls: Tls {
                cert: options.tls_cert,
                key: options.tls_key,
                ca: options.tls_ca,
            },
            metrics: metrics.unwrap_or_default(),
            insecure_metrics,
            page: page.unwrap_or_default(),
            page_token,
            api_group,
            vhost_owner,
            vhost_group,
            vhost_mode,
            guest_memory_populated,
            hang_secs: options.hang_secs,
            access,
            audit,
            flow_log,
            ipfix: ipfix.unwrap_or_default(),
            sflow: (sflow.iter().map(|to| datagrams::collector("--sflow", to)))
                .collect::<Result<_, _>>()?,
            sflow_rate: sflow_rate.unwrap_or(SFLOW_RATE),
            log_level: log_level.unwrap_or(Level::Info),
            no_syslog: options.no_syslog,
            wake: options.wake_us.map(|us| wake(us, &workers)).transpose()?,
            workers,
            mtu,
            packet_trace: options.packet_trace,
            trace_dir: std::path::absolute(&trace_dir)
                .map_err(|e| format!("the folder of traces {}: {e}", trace_dir.display()))?,
            trace_dir_max,
            store,
            state_dir: options.state_directory.as_deref().and_then(first_of),
            keeper,
            store_revisions: options.store_revisions,
            offloads: !options.no_offload,
            max_flows: options.max_flows,
            // A part of the table: one NIC cannot take what the others need, unless it was said so.
            max_flows_per_nic: match options.max_flows_per_nic {
                Some(count) => count.min(options.max_flows),
                None => (options.max_flows / 4).clamp(1, 65_536),
            },
            kernel_flows: options.kernel_flows,
            container_pairs: options.container_pairs,
            poll_us: options.poll_us,
            uplinks,
            alone,
            dpdk: of_dpdk,
            uplink_mode: uplink_mode.unwrap_or_default(),
            busy_poll: options.busy_poll,
            vxlan_port,
            encapsulation: Encapsulation {
                port: vxlan_port,
                ttl: ttl.unwrap_or(TTL),
                dscp,
                checksum_v4: checksum(outer_checksum == OuterChecksum::On),
                checksum_v6: checksum(outer_checksum != OuterChecksum::Off),
            },
            balance_interfaces: balance_interfaces.unwrap_or_default(),
            balance_max_flows: options.balance_max_flows,
            balance_seed,
            balance_hook,
            balance_bgp,
            check_programs,
            router_interfaces: router_interfaces.unwrap_or_default(),
            router_acl,
            router: router::Options {
                nodes4: options.router_nodes4,
                nodes6: options.router_nodes6,
                ..router::Options::default()
            },
            remarks: said.remarks,
            warnings,
        })
    }
}

/// What the command line and the file say of one thing: the line counts, and a file that says
/// otherwise is told of.
struct Said<'a> {
    file: &'a Path,
    remarks: Vec<String>,
}

impl Said<'_> {
    fn one<T: PartialEq>(
        &mut self,
        option: &str,
        key: &str,
        line: Option<T>,
        file: Option<T>,
        show: impl Fn(&T) -> String,
    ) -> Option<T> {
        self.differs(option, key, line.as_ref(), file.as_ref(), show);
        line.or(file)
    }

    /// An option that is there or not, and its key.
    fn yes(&mut self, option: &str, line: bool, file: Option<bool>) -> bool {
        if line && file == Some(false) {
            self.remarks.push(format!(
                "{option} of the command line counts, not {} = false of {}",
                option.trim_start_matches('-'),
                self.file.display()
            ));
        }
        line || file == Some(true)
    }

    fn differs<T: PartialEq>(
        &mut self,
        option: &str,
        key: &str,
        line: Option<&T>,
        file: Option<&T>,
        show: impl Fn(&T) -> String,
    ) {
        if let (Some(line), Some(file)) = (line, file)
            && line != file
        {
            self.remarks.push(format!(
                "{option} {} of the command line counts, not {key} = {} of {}",
                show(line),
                show(file),
                self.file.display()
            ));
        }
    }

    /// The one of a key's two names that counted in the original.
    fn core_id(&mut self, id: Option<Cores>, core: Option<Cores>) -> Option<Cores> {
        if let (Some(id), Some(core)) = (&id, &core)
            && id != core
        {
            self.remarks.push(format!(
                "graph-core-id = {id} counts, not graph-cpu-core = {core}, both of {}",
                self.file.display()
            ));
        }
        id.or(core)
    }
}

/// Where Linux lists PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// What is named counts, then what the original's options for DPDK lead to.
fn uplinks(
    named: Option<Vec<String>>,
    dpdk: Join,
    remarks: &mut Vec<String>,
) -> (Vec<String>, bool) {
    match (named, dpdk) {
        (Some(names), Join::Interfaces(others)) if names != others => {
            remarks.push(format!(
                "the uplinks {} count, not {} of --dpdk-args",
                names.join(","),
                others.join(",")
            ));
            (names, false)
        }
        (Some(names), Join::NoInterface) => {
            remarks.push(format!(
                "the uplinks {} count, not the device of --dpdk-args that leads nowhere",
                names.join(",")
            ));
            (names, false)
        }
        (Some(names), _) | (None, Join::Interfaces(names)) => (names, false),
        (None, Join::Address) => (Vec::new(), false),
        (None, Join::NoInterface) => (Vec::new(), true),
    }
}

/// What DPDK is started with, in a build that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfDpdk {
    /// Its words.
    pub args: Vec<String>,
    /// The device, by DPDK's number; `None`: the first that is nobody's part.
    pub port: Option<u32>,
}

impl OfDpdk {
    /// What the kernel's end of the device is called.
    pub fn interface(&self) -> String {
        format!("dpdk{}", self.port.unwrap_or_default())
    }
}

/// A list that was given.
fn some(names: Vec<String>) -> Option<Vec<String>> {
    (!names.is_empty()).then_some(names)
}

/// A number of connections, or `off`, which is 0.
fn kernel_flows(text: &str) -> Result<u32, String> {
    let max = dataplane::flow::kernel::CONNECTIONS_MAX;
    match text.parse() {
        _ if text == "off" => Ok(0),
        Ok(count) if count <= max => Ok(count),
        _ => Err(format!("'{text}' is not a number from 0 to {max}, nor off")),
    }
}

fn checksum(on: bool) -> UdpChecksum {
    if on {
        UdpChecksum::Full
    } else {
        UdpChecksum::Zero
    }
}

/// What is to be asked of the workers' cores.
fn wake(wake_us: u32, workers: &[Option<usize>]) -> Result<(u32, Vec<usize>), String> {
    let cores: Option<Vec<usize>> = workers.iter().copied().collect();
    let cores =
        cores.ok_or_else(|| format!("--wake-us {wake_us} needs -u: of which cores it is asked"))?;
    Ok((wake_us, cores))
}

/// Folders that are separated by colons (systemd.exec(5), STATE_DIRECTORY).
fn each_of(folders: &OsStr) -> impl Iterator<Item = PathBuf> {
    let folders = folders.as_bytes().split(|byte| *byte == b':');
    folders.map(|folder| OsStr::from_bytes(folder).into())
}

/// The first of them.
fn first_of(folders: &OsStr) -> Option<PathBuf> {
    each_of(folders).next()
}

/// The one of them that is for packet traces, which nobody else can write to.
fn traces_of(folders: &OsStr) -> Option<PathBuf> {
    each_of(folders).find(|folder| folder.file_name() == Some(OsStr::new("traces")))
}

fn unless_none(endpoint: String) -> Option<String> {
    (endpoint != "none").then_some(endpoint)
}

/// The manual page, of section 8.
fn man() -> String {
    let man = clap_mangen::Man::new(Options::command()).section("8");
    let mut page = Vec::new();
    // Only a writer can fail, and memory does not.
    man.render(&mut page).expect("a page is written to memory");
    String::from_utf8_lossy(&page).into_owned()
}

/// Permissions of a file, octal.
pub fn mode(text: &str) -> Result<u32, String> {
    control::model::parse_mode(text)
        .ok_or_else(|| format!("'{text}' are no permissions: three octal digits, as 660"))
}

/// Of so many frames sFlow takes one if nothing is said.
const SFLOW_RATE: u32 = 1000;

/// What `--sflow-rate` and `sflow-rate` take.
pub fn sflow_rate(text: &str) -> Result<u32, String> {
    let most = dataplane::sampling::RATE_MAX;
    let rate = text.parse().ok();
    rate.filter(|rate| *rate <= most)
        .ok_or_else(|| format!("'{text}' is not a number within 0 and {most}"))
}

/// A number of bytes as `--trace-dir-max` and `trace-dir-max` take it, or of KiB, MiB, GiB or TiB.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        Some((at, 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| digits);
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("'{text}' is no number of bytes, as 500M or 16G"))
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
            v0_endpoint: None,
            v0_key: None,
            insecure_api: false,
            v1_endpoints: vec!["unix:/run/butterfly/api.sock".into()],
            tls: Tls::default(),
            metrics: vec![],
            insecure_metrics: false,
            page: vec![],
            page_token: None,
            api_group: None,
            vhost_owner: None,
            vhost_group: None,
            vhost_mode: None,
            guest_memory_populated: false,
            hang_secs: 10,
            access: None,
            audit: None,
            flow_log: None,
            ipfix: vec![],
            sflow: vec![],
            sflow_rate: 1000,
            log_level: Level::Info,
            no_syslog: false,
            workers: vec![None],
            mtu: None,
            packet_trace: false,
            trace_dir: "/tmp".into(),
            trace_dir_max: None,
            store: None,
            state_dir: None,
            keeper: None,
            store_revisions: 1000,
            offloads: true,
            max_flows: 1 << 20,
            max_flows_per_nic: 65_536,
            kernel_flows: 16_384,
            container_pairs: ContainerPairs::Veth,
            poll_us: 50,
            wake: None,
            uplinks: vec![],
            alone: false,
            dpdk: None,
            uplink_mode: UplinkMode::Best,
            busy_poll: false,
            vxlan_port: 4789,
            encapsulation: Encapsulation {
                checksum_v6: UdpChecksum::Full,
                ..Encapsulation::default()
            },
            balance_interfaces: vec![],
            balance_max_flows: 262_144,
            balance_seed: None,
            balance_hook: None,
            balance_bgp: None,
            check_programs: None,
            router_interfaces: vec![],
            router_acl: None,
            router: router::Options::default(),
            remarks: vec![],
            warnings: vec![],
        };
        assert_eq!(defaults(), expected);
    }

    /// Each line: an option in every spelling, and the settings it makes, all others being the
    /// defaults.
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
            (
                &["-e tcp://127.0.0.1:1", "--endpoint tcp://127.0.0.1:1"],
                &|s| {
                    s.v0_endpoint = Some("tcp://127.0.0.1:1".into());
                },
            ),
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
            (&["-u 0,2-3"], &|s| {
                s.workers = vec![Some(0), Some(2), Some(3)]
            }),
            (&["--workers 3"], &|s| s.workers = vec![None; 3]),
            (&["-m 9000", "--nic-mtu 9000"], &|s| s.mtu = Some(9000)),
            (&["-m max"], &|s| s.mtu = Some(65535)),
            (&["-t", "--packet-trace"], &|s| s.packet_trace = true),
            (&["--trace-dir /var/lib/butterfly/traces"], &|s| {
                s.trace_dir = "/var/lib/butterfly/traces".into();
            }),
            (&["--trace-dir-max 500M"], &|s| {
                s.trace_dir_max = Some(500 << 20);
            }),
            (&["--store /var/lib/butterfly"], &|s| {
                s.store = Some("/var/lib/butterfly".into());
            }),
            (&["--store none"], &|s| s.store = None),
            (&["--store /s --keeper /k"], &|s| {
                (s.store, s.keeper) = (Some("/s".into()), Some("/k".into()));
            }),
            (&["--store /s --keeper none"], &|s| {
                s.store = Some("/s".into());
            }),
            (&["--state-directory /s:/s/traces"], &|s| {
                (s.store, s.trace_dir) = (Some("/s".into()), "/s/traces".into());
                s.state_dir = Some("/s".into());
            }),
            (&["--state-directory /s:/s/traces --trace-dir /t"], &|s| {
                (s.store, s.trace_dir) = (Some("/s".into()), "/t".into());
                s.state_dir = Some("/s".into());
            }),
            (&["--state-directory /s --store none"], &|s| {
                (s.store, s.state_dir) = (None, Some("/s".into()));
            }),
            (&["--store-revisions 7"], &|s| s.store_revisions = 7),
            (
                &["-k /k", "--key /k", "--k /k", "--encryption-key /k"],
                &|s| {
                    s.v0_key = Some("/k".into());
                    s.warnings = vec![
                    "the v0 API is off, though there is a key for it: say where it is to listen, \
                     as -e tcp://0.0.0.0:9999, or endpoint = tcp://0.0.0.0:9999 in the INI file \
                     (the original's default)"
                        .into(),
                ];
                },
            ),
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
            (&["--guest-memory-populated"], &|s| {
                s.guest_memory_populated = true;
            }),
            (&["--insecure-api -e tcp://*:1"], &|s| {
                (s.insecure_api, s.v0_endpoint) = (true, Some("tcp://*:1".into()));
            }),
            (
                &["--page unix:/p --page tcp:[::1]:9 --page-token /t"],
                &|s| {
                    s.page = vec!["unix:/p".into(), "tcp:[::1]:9".into()];
                    s.page_token = Some("/t".into());
                },
            ),
            (
                &["--metrics unix:/m --metrics tcp:[::1]:9 --insecure-metrics"],
                &|s| {
                    s.metrics = vec!["unix:/m".into(), "tcp:[::1]:9".into()];
                    s.insecure_metrics = true;
                },
            ),
            (&["--api-group kvm"], &|s| s.api_group = Some("kvm".into())),
            (&["--access /a --audit /b"], &|s| {
                (s.access, s.audit) = (Some("/a".into()), Some("/b".into()));
            }),
            (&["--flow-log /f --ipfix 192.0.2.9:4739"], &|s| {
                (s.flow_log, s.ipfix) = (Some("/f".into()), vec!["192.0.2.9:4739".into()]);
            }),
            (&["--sflow 192.0.2.9:6343 --sflow-rate 50"], &|s| {
                s.sflow = vec!["192.0.2.9:6343".parse().unwrap()];
                s.sflow_rate = 50;
            }),
            (&["--max-flows 4096"], &|s| {
                (s.max_flows, s.max_flows_per_nic) = (4096, 1024)
            }),
            (&["--max-flows-per-nic 100000"], &|s| {
                s.max_flows_per_nic = 100_000
            }),
            (&["--kernel-flows off", "--kernel-flows 0"], &|s| {
                s.kernel_flows = 0
            }),
            (&["--kernel-flows 100"], &|s| s.kernel_flows = 100),
            (&["--container-pairs netkit"], &|s| {
                s.container_pairs = ContainerPairs::Netkit
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
            (&["--uplink-mode packet", "--uplink-mode=packet"], &|s| {
                s.uplink_mode = UplinkMode::Packet
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
            (
                &["--balance-interface eth0 --balance-interface eth1"],
                &|s| {
                    s.balance_interfaces = vec!["eth0".into(), "eth1".into()];
                },
            ),
            (&["--balance-max-flows 4096"], &|s| {
                s.balance_max_flows = 4096
            }),
            (&["--balance-seed /s"], &|s| {
                s.balance_seed = Some("/s".into())
            }),
            (&["--balance-hook /h"], &|s| {
                s.balance_hook = Some("/h".into())
            }),
            (&["--balance-bgp /b"], &|s| {
                s.balance_bgp = Some("/b".into())
            }),
            (&["--check-programs /p"], &|s| {
                s.check_programs = Some("/p".into())
            }),
            (&["--router eth0 --router eth1.7"], &|s| {
                s.router_interfaces = vec!["eth0".into(), "eth1.7".into()];
            }),
            (&["--router-acl /a"], &|s| s.router_acl = Some("/a".into())),
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

    /// Each line: what the original is started with, and the uplinks, whether it is alone and the
    /// lines of the log.
    #[test]
    fn the_command_lines_of_the_original_s_samples_and_tests() {
        let default = "-c1 -n1 --socket-mem 64 --no-shconf --huge-unlink";
        let ring = format!("{default} --vdev=eth_ring0");
        let test = "-c1 -n1 --no-huge -m 1024 --no-pci --file-prefix=host --vdev=eth_ring0";
        let two = "--no-huge --vdev=eth_ring0 --vdev=eth_pcap0,iface=eth0 \
                   --vdev=net_af_packet0,iface=eth1";
        let bond = "--no-pci --vdev=net_pcap0,iface=eth0 --vdev=net_pcap1,iface=eth1 \
                    --vdev net_bonding0,mode=1,slave=net_pcap0,slave=net_pcap1";
        let base = ["-i", "192.168.0.1", "-s", "/tmp"];
        for (more, uplinks, alone, remarks) in [
            (vec!["--dpdk-args", default], vec![], false, 4),
            (vec!["-u", "2", "--dpdk-args", &ring], vec![], true, 4),
            (vec!["--dpdk-args", test], vec![], true, 5),
            (vec!["--dpdk-args", test, "--dpdk-port=3"], vec![], false, 6),
            (vec!["--dpdk-port=3"], vec![], false, 1),
            (
                vec!["--dpdk-args", two, "--dpdk-port", "2"],
                vec!["eth1"],
                false,
                3,
            ),
            (
                vec!["--dpdk-args", two, "--dpdk-port=1", "-t", "--no-offload"],
                vec!["eth0"],
                false,
                3,
            ),
            (vec!["--dpdk-args", bond], vec!["eth0", "eth1"], false, 2),
            (
                vec!["--dpdk-args", two, "--uplink", "eth9"],
                vec!["eth9"],
                false,
                4,
            ),
        ] {
            let settings = settings(&[&base[..], &more].concat()).unwrap();
            assert_eq!(settings.uplinks, uplinks, "{more:?}");
            assert_eq!(settings.alone, alone, "{more:?}");
            assert_eq!(
                settings.remarks.len(),
                remarks,
                "{more:?}: {:?}",
                settings.remarks
            );
            assert_eq!(settings.v0_endpoint, None, "v0 is to be asked for");
        }
    }

    #[test]
    fn the_original_s_ini_with_one_word_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("butterflyd.ini");
        let text = "[general]\nlog-level = info\nip = 192.168.0.1\nendpoint = tcp://0.0.0.0:9999\n\
                    socket-dir = /tmp\n\
                    graph-cpu-core = 1\ngraph-core-id = 2\nnic-mtu = max\ndpdk-port = 0\n\
                    dpdk-args = -c1 -n1 --socket-mem 64 --no-shconf --huge-unlink \
                    --vdev=eth_pcap0,iface=eth0\n\
                    [security]\nencryption_key_path =\ninsecure-api = true\n";
        std::fs::write(&path, text).unwrap();
        let settings = settings(&["-c", path.to_str().unwrap()]).unwrap();
        assert_eq!(settings.v0_endpoint.as_deref(), Some("tcp://0.0.0.0:9999"));
        assert!(settings.insecure_api && settings.warnings.is_empty());
        assert_eq!(settings.uplinks, ["eth0"]);
        assert_eq!(settings.workers, [Some(2)]);
        assert!(
            settings
                .remarks
                .last()
                .unwrap()
                .starts_with("graph-core-id = 2 counts"),
            "{:?}",
            settings.remarks
        );
    }

    #[test]
    fn a_key_or_the_word_without_an_endpoint_is_told_of() {
        for line in [&["-k", "/k"], &["--insecure-api", "-t"]] {
            let settings = settings(line).unwrap();
            assert!(
                settings.warnings[0].contains("-e tcp://0.0.0.0:9999"),
                "{line:?}"
            );
        }
        assert_eq!(
            settings(&["-k", "/k", "-e", "ipc:///v0"])
                .unwrap()
                .warnings
                .len(),
            0
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
            "--kernel-flows on",
            "--container-pairs bridge",
            "--kernel-flows 1048577",
            "--vxlan-port 0",
            "--vxlan-ttl 0",
            "--vxlan-dscp 64",
            "--vxlan-checksum maybe",
            "--uplink-mode fast",
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
        let text = "[general]\nnic-mtu = max\ngraph-cpu-core = 3,5\ndpdk-args = -c 2\n\
                    log-level = error\ndpdk-port = 1\n";
        std::fs::write(&path, text).unwrap();
        let settings = settings(&["-c", path.to_str().unwrap(), "-l", "warning"]).unwrap();
        assert_eq!(
            (settings.mtu, settings.workers, settings.log_level),
            (Some(65535), vec![Some(3), Some(5)], Level::Warning)
        );
        assert!(settings.remarks[0].starts_with("--dpdk-port 1 has no effect"));
        assert_eq!(
            settings.remarks[1],
            format!(
                "-l warning of the command line counts, not log-level = error of {}",
                path.display()
            )
        );
    }

    #[test]
    fn what_is_allowed_by_the_command_line_alone_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("butterflyd.ini");
        let options = [
            "--insecure-api",
            "--insecure-metrics",
            "--guest-memory-populated",
        ];
        let resolved = |value: &str, options: &[&str]| {
            let text = format!(
                "[general]\nguest-memory-populated = {value}\nendpoint = tcp://127.0.0.1:1\n\
                 [security]\ninsecure-api = {value}\ninsecure-metrics = {value}\n"
            );
            std::fs::write(&path, text).unwrap();
            let settings =
                settings(&[&["-c", path.to_str().unwrap()][..], options].concat()).unwrap();
            let all = [
                settings.insecure_api,
                settings.insecure_metrics,
                settings.guest_memory_populated,
            ];
            (all, settings.remarks)
        };
        assert_eq!(resolved("no", &[]), ([false; 3], vec![]));
        assert_eq!(resolved("yes", &[]), ([true; 3], vec![]));
        assert_eq!(resolved("yes", &options), ([true; 3], vec![]));
        assert_eq!(resolved("", &options), ([true; 3], vec![]));
        let (all, remarks) = resolved("no", &options);
        assert_eq!(all, [true; 3]);
        let said = options.map(|option| {
            format!(
                "{option} of the command line counts, not {} = false of {}",
                &option[2..],
                path.display()
            )
        });
        assert_eq!(remarks, said);
    }
}

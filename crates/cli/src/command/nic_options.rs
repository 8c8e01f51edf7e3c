//! The options that describe a NIC, and the API v1 messages they make. `nic add` and `nic update`
//! share [`NicArgs`]; what only a new NIC has is in [`NicAdd`].

use std::net::IpAddr;

use api::v1;
use clap::{Args, ValueEnum};

use super::{nic_limits, nic_mirror};
use crate::error::Error;

/// What a NIC attaches to, by the original's names.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A vhost-user socket that the daemon listens on (or connects to: --client), for a virtual
    /// machine
    #[value(alias = "vhost_user_server", alias = "vhost-user")]
    VhostUserServer,
    /// A TAP device of the host, for a container or a namespace
    Tap,
    /// A TAP device of the host that a virtual machine monitor opens by its name: QEMU, also with
    /// vhost-net, or Firecracker
    VmTap,
    /// A veth pair, one end of which is in a container's network namespace: --netns
    Veth,
    /// A traffic generator or echo inside the daemon
    Bench,
}

/// What a NIC of type bench does.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Btype {
    /// Sends ICMP echo requests to --dip at --dmac
    #[value(name = "ICMP_SND_LIKE", alias = "icmp-snd-like")]
    Sender,
    /// Answers ICMP echo requests
    #[value(name = "ICMP_RCV_LIKE", alias = "icmp-rcv-like")]
    Receiver,
}

/// What the operator wants of a link.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Frames pass
    Up,
    /// No frame passes
    Down,
}

/// `nic add`.
#[derive(Args, Debug)]
#[command(after_help = "\
Adding a NIC of an id that exists is an error where values differ (over v1), unless --replace says
that it is to be replaced whole; the same values again are no error.

Examples:
  butterfly nic add --id vnic_1 --mac 52:54:00:12:34:01 --vni 1337 --ip 42.0.0.1 --sg web ssh
  butterfly nic add --id c1 --mac 52:54:00:12:34:02 --vni 1337 --ip 42.0.0.2 \
      --type tap --path tap-c1
  butterfly nic add --id c2 --mac 52:54:00:12:34:03 --vni 1337 --ip 42.0.0.3/24 \
      --gateway 42.0.0.254 --type veth --netns c2 --ifname eth0
  butterfly nic add --id m1 --mac 52:54:00:12:34:04 --vni 1337 --ip 42.0.0.4 \
      --type vm-tap --path tap-m1 --tap-uid 64055 --how")]
pub struct NicAdd {
    /// Names the NIC and its socket, <socket-dir>/qemu-vhost-<ID>
    #[arg(long)]
    pub id: String,
    /// The guest's MAC address, as 52:54:00:12:34:01
    #[arg(long)]
    mac: String,
    /// The virtual network; NICs hear each other in the same network only
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=0xff_ffff))]
    vni: u32,
    /// What the NIC attaches to
    #[arg(long = "type", ignore_case = true, default_value = "vhost-user-server")]
    kind: Type,
    /// The socket's path, the TAP device's name, or that of a veth's end on the host [default: made
    /// from the id]
    #[arg(long)]
    path: Option<String>,
    /// API v1, type vhost-user-server: let the virtual machine monitor listen at the path, and
    /// connect to it
    #[arg(long)]
    client: bool,
    /// Receive a copy of all that this NIC sends and receives, and send nothing
    #[arg(long, value_name = "NIC")]
    sniff_target: Option<String>,
    /// Type bench: what it does
    #[arg(long, ignore_case = true)]
    btype: Option<Btype>,
    /// Type bench: the IPv4 address to send to
    #[arg(long, value_name = "ADDRESS")]
    dip: Option<String>,
    /// Type bench: the MAC address to send to
    #[arg(long, value_name = "MAC")]
    dmac: Option<String>,
    /// Type veth: the container's network namespace: a name of `ip netns`, an absolute path, or a
    /// process
    #[arg(long, value_name = "NAME|PATH|PID")]
    netns: Option<String>,
    /// Type veth: the interface's name in the container [default: eth0]
    #[arg(long, value_name = "NAME")]
    ifname: Option<String>,
    /// Type veth: default routers of the container, one of each family; on the link even where no
    /// --ip has a prefix that they are in
    #[arg(long, num_args = 1.., value_name = "ADDRESS")]
    gateway: Vec<String>,
    /// Type veth: further routes of the container, on the link without VIA
    #[arg(long, num_args = 1.., value_name = "NET[,VIA]")]
    route: Vec<String>,
    /// Type veth: networks on the link, which give addresses their prefix length, as --ip
    /// ADDRESS/LENGTH does
    #[arg(long, num_args = 1.., value_name = "NET")]
    subnet: Vec<String>,
    /// Type vm-tap: the number of the user who may open the device [default: root, or with
    /// --tap-gid any]
    #[arg(long, value_name = "UID")]
    tap_uid: Option<u32>,
    /// Type vm-tap: the number of the group who may; with --tap-uid both have to be the opener's
    #[arg(long, value_name = "GID")]
    tap_gid: Option<u32>,
    /// Type vm-tap: the device has several queues, as QEMU's queues=N needs
    #[arg(long)]
    tap_multi_queue: bool,
    /// Print what a guest or a container needs to use the NIC
    #[arg(long)]
    pub how: bool,
    /// API v1: its addresses may be those of other NICs of the network that are --shared, too
    #[arg(long)]
    shared: bool,
    /// Replace a NIC of that id whole, whatever its values are (over v0 this is always so)
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    settings: NicArgs,
}

/// `nic update`: what is given replaces the NIC's value, what is not stays.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  butterfly nic update vnic_1 --ip 42.0.0.1 42.0.0.9 --enable-antispoof
  butterfly nic update vnic_1 --sg ''      (leaves no group)
  butterfly nic update vnic_1 --limit-out 100mbit,burst=1mb --limit-in 1gbit,connections=500
  butterfly nic update vnic_1 --limit-out packets=20k,floods=100,floods-burst=20
  butterfly nic update vnic_1 --mirror erspan:192.0.2.9,id=7,direction=out
  butterfly nic update vnic_1 --sflow-rate 100")]
pub struct NicUpdate {
    /// The NIC
    #[arg(value_name = "NIC", required_unless_present = "id")]
    nic: Option<String>,
    /// The NIC, by an option
    #[arg(long, conflicts_with = "nic", value_name = "NIC")]
    id: Option<String>,
    #[command(flatten)]
    settings: NicArgs,
}

/// What can be said of a new NIC and changed later.
#[derive(Args, Debug)]
struct NicArgs {
    /// IPv4 and IPv6 addresses of the guest, several after one --ip or with several; of a new veth
    /// also ADDRESS/LENGTH, as the container has it; update: '' leaves none
    #[arg(long, num_args = 1.., value_name = "ADDRESS", value_parser = address_of_nic)]
    ip: Vec<String>,
    /// Security groups, which need not exist yet, with blanks or commas between; update: '' leaves
    /// none
    #[arg(long, num_args = 1.., value_name = "SG", value_delimiter = ',')]
    sg: Vec<String>,
    /// Drop what the guest sends from other addresses than its own [default of a new NIC: on in API
    /// v1, off in API v0]
    #[arg(
        long,
        visible_alias = "anti-spoof",
        overrides_with = "disable_antispoof"
    )]
    enable_antispoof: bool,
    /// Let the guest send from any address; its MAC is checked all the same
    #[arg(long, visible_alias = "no-anti-spoof")]
    disable_antispoof: bool,
    /// Do not filter the NIC at all; update: API v1
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false", hide_possible_values = true)]
    bypass_filtering: Option<bool>,
    /// Write the NIC's frames to --trace-path, behind what is there
    #[arg(long, value_name = "true|false", hide_possible_values = true)]
    packet_trace: Option<bool>,
    /// The trace's file in the daemon's folder of traces: .pcap, or .pcapng with drop reasons
    /// [default: butterfly-<pid>-<id>.pcap]
    #[arg(long, value_name = "FILE")]
    trace_path: Option<String>,
    /// API v1: further sources that anti-spoofing lets pass, with their MAC when it is another;
    /// update: '' leaves none
    #[arg(long, num_args = 1.., value_name = "NET[,MAC]")]
    allowed_address_pair: Vec<String>,
    /// API v1: forget an idle TCP connection after this long, 60..432000
    #[arg(long, value_name = "SECS")]
    tcp_established_timeout: Option<u32>,
    /// API v1: forget UDP seen in one direction after this long, 30..60
    #[arg(long, value_name = "SECS")]
    udp_timeout: Option<u32>,
    /// API v1: forget UDP seen in both directions after this long, 60..180
    #[arg(long, value_name = "SECS")]
    udp_stream_timeout: Option<u32>,
    /// API v1: the guest may be a DHCP server
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false", hide_possible_values = true)]
    allow_dhcp_server: Option<bool>,
    /// API v1: the guest may send router advertisements and redirects, of IPv4 and IPv6
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false", hide_possible_values = true)]
    allow_router_advertisements: Option<bool>,
    /// API v1: frames to MACs that nobody has go to this NIC, and it may send from any MAC
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false", hide_possible_values = true)]
    learn_macs: Option<bool>,
    /// API v1: the largest IP packet in bytes, offered to the guest; update: 0 leaves it to the
    /// daemon's --nic-mtu
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// API v1: take the link down, so that no frame passes, or up again
    #[arg(long, value_name = "up|down", hide_possible_values = true)]
    link: Option<Link>,
    /// API v1: what the guest may send in a second, in all its queues together: what is more waits
    /// with it (connections and floods: is dropped). RATE is in bits as in tc (100mbit), the other
    /// keys are packets, connections, floods and the bursts of each; update: none leaves no limit
    #[arg(long, value_name = "RATE[,burst=SIZE][,KEY=N...]", value_parser = nic_limits::parse)]
    limit_out: Option<v1::Limits>,
    /// API v1: what the guest may be sent in a second; what is more waits in a short queue and is
    /// dropped beyond it. As --limit-out
    #[arg(long, value_name = "RATE[,burst=SIZE][,KEY=N...]", value_parser = nic_limits::parse)]
    limit_in: Option<v1::Limits>,
    /// API v1: send copies of the NIC's frames to a collector, vxlan:ADDRESS or erspan:ADDRESS, by
    /// the host's own routes. Keys are port (VXLAN, 4789), id (the VNI, or ERSPAN's session),
    /// direction (in, out) and snap-len (bytes of a frame); update: none ends it
    #[arg(long, value_name = "KIND:ADDRESS[,KEY=VALUE...]", value_parser = nic_mirror::parse)]
    mirror: Option<v1::Mirror>,
    /// API v1: of so many frames that the guest sends one is sampled for the collectors of the
    /// daemon's --sflow; 0: none is; default: as the daemon's --sflow-rate says
    #[arg(long, value_name = "FRAMES|default", value_parser = sflow_rate)]
    sflow_rate: Option<v1::SflowRate>,
    /// API v1, type vhost-user-server: the user that owns the socket, by name or number, so that
    /// the emulator can connect; update: '' leaves it to the daemon's --vhost-owner
    #[arg(long, value_name = "USER")]
    socket_owner: Option<String>,
    /// API v1, type vhost-user-server: the group whose members may connect to the socket; update:
    /// '' leaves it to the daemon's --vhost-group
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// API v1, type vhost-user-server: the socket's permissions, octal [default: the daemon's
    /// --vhost-mode, or 660 with a group]; update: '' leaves it to that
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
}

/// A rate of samples, or that there is none of its own.
fn sflow_rate(text: &str) -> Result<v1::SflowRate, String> {
    let frames = match text {
        "default" => None,
        number => Some(
            number
                .parse()
                .map_err(|_| format!("'{text}' is neither a number of frames nor `default`"))?,
        ),
    };
    Ok(v1::SflowRate { frames })
}

impl NicAdd {
    /// The NIC to put.
    pub fn nic(self) -> Result<v1::Nic, Error> {
        let (veth, vm_tap) = (self.veth()?, self.vm_tap()?);
        let mut settings = self.settings;
        for ip in &mut settings.ip {
            if let Some((address, _)) = ip.split_once('/') {
                *ip = address.to_owned();
            }
        }
        for (option, values) in [("--ip", &settings.ip), ("--sg", &settings.sg)] {
            if values.iter().any(String::is_empty) {
                return Err(Error::Usage(format!(
                    "{option} '' means none in `nic update` alone: leave it out"
                )));
            }
        }
        let (kind, bench) = match (self.kind, self.btype) {
            (Type::Bench, Some(btype)) => {
                let role = match btype {
                    Btype::Sender => v1::bench::Role::IcmpSender,
                    Btype::Receiver => v1::bench::Role::IcmpReceiver,
                };
                let (target_ip, target_mac) =
                    (self.dip.unwrap_or_default(), self.dmac.unwrap_or_default());
                (
                    v1::NicKind::Bench,
                    Some(v1::Bench {
                        role: role.into(),
                        target_ip,
                        target_mac,
                    }),
                )
            }
            (Type::Bench, None) => return Err(Error::Usage("--type bench needs --btype".into())),
            (_, Some(_)) => return Err(Error::Usage("--btype goes with --type bench".into())),
            (Type::Tap, None) => (v1::NicKind::Tap, None),
            (Type::Veth, None) => (v1::NicKind::Veth, None),
            (Type::VmTap, None) => (v1::NicKind::VmTap, None),
            (Type::VhostUserServer, None) => (v1::NicKind::VhostUser, None),
        };
        Ok(v1::Nic {
            id: self.id,
            mac: self.mac,
            vni: self.vni,
            anti_spoof: settings.anti_spoof(),
            allowed_address_pairs: settings.pairs(),
            timeouts: settings.timeouts(),
            addresses: settings.ip,
            security_groups: settings.sg,
            sniff_target: self.sniff_target.unwrap_or_default(),
            // That in which the target is.
            sniff_vni: None,
            bypass_filtering: settings.bypass_filtering.unwrap_or_default(),
            kind: kind.into(),
            bench,
            path: self.path.unwrap_or_default(),
            packet_trace: settings.packet_trace,
            packet_trace_path: settings.trace_path.unwrap_or_default(),
            allow_dhcp_server: settings.allow_dhcp_server.unwrap_or_default(),
            allow_router_advertisements: settings.allow_router_advertisements.unwrap_or_default(),
            learn_macs: settings.learn_macs.unwrap_or_default(),
            mtu: settings.mtu.unwrap_or_default(),
            link_down: settings.link == Some(Link::Down),
            vhost_mode: match self.client {
                true => v1::VhostMode::Client,
                false => v1::VhostMode::Unspecified,
            }
            .into(),
            lenient: false,
            shared: self.shared,
            veth,
            vm_tap,
            limit_out: settings.limit_out,
            limit_in: settings.limit_in,
            // Of a new NIC `none` is the default.
            mirror: settings.mirror.filter(|mirror| !mirror.address.is_empty()),
            sflow_rate: settings.sflow_rate.and_then(|rate| rate.frames),
            socket_owner: settings.socket_owner.unwrap_or_default(),
            socket_group: settings.socket_group.unwrap_or_default(),
            socket_mode: settings.socket_mode.unwrap_or_default(),
        })
    }

    /// Who may open it, of a TAP device of a virtual machine monitor.
    fn vm_tap(&self) -> Result<Option<v1::VmTap>, Error> {
        let given = [
            ("--tap-uid", self.tap_uid.is_some()),
            ("--tap-gid", self.tap_gid.is_some()),
            ("--tap-multi-queue", self.tap_multi_queue),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) if self.kind != Type::VmTap => {
                Err(Error::Usage(format!("{option} goes with --type vm-tap")))
            }
            Some(_) => Ok(Some(v1::VmTap {
                uid: self.tap_uid,
                gid: self.tap_gid,
                multi_queue: self.tap_multi_queue,
            })),
            None => Ok(None),
        }
    }

    /// The container's end, of a veth.
    fn veth(&self) -> Result<Option<v1::Veth>, Error> {
        let with_length = |ip: &&String| ip.contains('/');
        if self.kind != Type::Veth {
            let given = [
                ("--netns", self.netns.is_some()),
                ("--ifname", self.ifname.is_some()),
                ("--gateway", !self.gateway.is_empty()),
                ("--route", !self.route.is_empty()),
                ("--subnet", !self.subnet.is_empty()),
                (
                    "--ip ADDRESS/LENGTH",
                    self.settings.ip.iter().any(|ip| with_length(&ip)),
                ),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(Error::Usage(format!("{option} goes with --type veth"))),
                None => Ok(None),
            };
        }
        let Some(netns) = self.netns.clone() else {
            return Err(Error::Usage("--type veth needs --netns".into()));
        };
        let route = |text: &String| {
            let (to, via) = text.split_once(',').unwrap_or((text, ""));
            v1::VethRoute {
                to: to.into(),
                via: via.into(),
            }
        };
        let mut subnets = self.subnet.clone();
        subnets.extend(self.settings.ip.iter().filter(with_length).cloned());
        Ok(Some(v1::Veth {
            netns,
            ifname: self.ifname.clone().unwrap_or_default(),
            subnets,
            gateways: self.gateway.clone(),
            routes: self.route.iter().map(route).collect(),
        }))
    }
}

impl NicUpdate {
    /// The values to replace. Timeouts that were not given are 0 in it, beside ones that were.
    pub fn request(self) -> Result<v1::UpdateNicRequest, Error> {
        let settings = self.settings;
        if let Some(ip) = settings.ip.iter().find(|ip| ip.contains('/')) {
            return Err(Error::Usage(format!(
                "--ip {ip}: a prefix length is for `nic add --type veth`"
            )));
        }
        let pairs = settings.pairs();
        Ok(v1::UpdateNicRequest {
            id: self.nic.or(self.id).expect("clap requires one of them"),
            anti_spoof: settings.anti_spoof(),
            allowed_address_pairs: (!settings.allowed_address_pair.is_empty())
                .then_some(v1::AddressPairList { pairs }),
            timeouts: settings.timeouts(),
            addresses: replacement(settings.ip).map(|addresses| v1::AddressList { addresses }),
            security_groups: replacement(settings.sg).map(|groups| v1::GroupList { groups }),
            bypass_filtering: settings.bypass_filtering,
            packet_trace: settings.packet_trace,
            packet_trace_path: settings.trace_path,
            allow_dhcp_server: settings.allow_dhcp_server,
            allow_router_advertisements: settings.allow_router_advertisements,
            learn_macs: settings.learn_macs,
            mtu: settings.mtu,
            link_down: settings.link.map(|link| link == Link::Down),
            limit_out: settings.limit_out,
            limit_in: settings.limit_in,
            mirror: settings.mirror,
            sflow_rate: settings.sflow_rate,
            socket_owner: settings.socket_owner,
            socket_group: settings.socket_group,
            socket_mode: settings.socket_mode,
            leave_groups: Vec::new(),
            join_groups: Vec::new(),
        })
    }
}

impl NicArgs {
    fn anti_spoof(&self) -> Option<bool> {
        (self.enable_antispoof || self.disable_antispoof).then_some(self.enable_antispoof)
    }

    fn pairs(&self) -> Vec<v1::AddressPair> {
        let pair = |text: &String| {
            let (net, mac) = text.split_once(',').unwrap_or((text, ""));
            v1::AddressPair {
                net: net.into(),
                mac: mac.into(),
            }
        };
        self.allowed_address_pair
            .iter()
            .filter(|text| !text.is_empty())
            .map(pair)
            .collect()
    }

    fn timeouts(&self) -> Option<v1::Timeouts> {
        let timeouts = [
            self.tcp_established_timeout,
            self.udp_timeout,
            self.udp_stream_timeout,
        ];
        timeouts.iter().any(Option::is_some).then(|| v1::Timeouts {
            tcp_established_secs: self.tcp_established_timeout.unwrap_or_default(),
            udp_secs: self.udp_timeout.unwrap_or_default(),
            udp_stream_secs: self.udp_stream_timeout.unwrap_or_default(),
        })
    }
}

/// What a list option replaces: nothing when it is not given, everything when it is; `''` is no
/// element.
fn replacement(values: Vec<String>) -> Option<Vec<String>> {
    (!values.is_empty()).then(|| {
        values
            .into_iter()
            .filter(|value| !value.is_empty())
            .collect()
    })
}

/// An address as [`address`], with a prefix length or without.
fn address_of_nic(text: &str) -> Result<String, String> {
    let Some((ip, length)) = text.split_once('/') else {
        return address(text);
    };
    let length: u8 = length
        .parse()
        .map_err(|_| "expected a prefix length behind the /")?;
    match ip.parse::<IpAddr>() {
        Ok(ip) if length <= if ip.is_ipv4() { 32 } else { 128 } => Ok(format!("{ip}/{length}")),
        Ok(_) => Err("the prefix is longer than the address".into()),
        Err(_) => Err("expected an IPv4 or IPv6 address".into()),
    }
}

/// An address in canonical form, or `''`.
pub fn address(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        _ => text
            .parse::<IpAddr>()
            .map(|ip| ip.to_string())
            .map_err(|_| "expected an IPv4 or IPv6 address".into()),
    }
}

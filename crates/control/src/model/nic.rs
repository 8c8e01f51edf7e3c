//! A NIC: one attachment of one guest to one virtual network.

use super::parse::unmapped;
use super::{GroupId, Limits, MacCase, Mirror, NicId, SocketAccess, Veth, VmTap};
use crate::error::{Error, quota};
use crate::limits;
use ipnet::IpNet;
use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use wire::{Mac, Vni};

pub use dataplane::snapshot::{AddressPair, Timeouts};

/// How the guest is attached.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum NicKind {
    /// A vhost-user socket; [`Nic::vhost_mode`] says who listens.
    #[default]
    VhostUser,
    /// A TAP interface.
    Tap,
    /// A traffic generator in the daemon.
    Bench(BenchKind),
    /// A veth pair, one end of which is in a container's network namespace.
    Veth(Box<Veth>),
    /// A TAP interface that a VMM opens.
    VmTap(VmTap),
}

impl NicKind {
    /// A NIC that changes from the one to the other keeps its port.
    pub(crate) fn same_port(&self, other: &NicKind) -> bool {
        match (self, other) {
            // The container's end is made anew where it has to be, the switch's stays.
            (NicKind::Veth(_), NicKind::Veth(_)) => true,
            // So is the VMM's device.
            (NicKind::VmTap(_), NicKind::VmTap(_)) => true,
            _ => self == other,
        }
    }
}

/// Which side of a vhost-user socket listens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum VhostMode {
    /// We do, and the VMM connects.
    #[default]
    Server,
    /// The VMM does; we connect, and connect again whenever it returns.
    Client,
}

/// What a bench NIC does.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum BenchKind {
    /// v0 `ICMP_SND_LIKE`: sends ICMP echo requests as fast as they are taken.
    Send {
        /// Destination address (v0 `dip`).
        ip: IpAddr,
        /// Destination MAC (v0 `dmac`).
        mac: Mac,
    },
    /// v0 `ICMP_RCV_LIKE`: takes and counts.
    Receive,
}

/// A NIC as declared. Everything but `id`, `mac` and `vni` has a default ([`Nic::new`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nic {
    /// Its id.
    pub id: NicId,
    /// Its MAC address, unique in its VNI (sniffers excepted: they send nothing), unless it is
    /// lenient.
    pub mac: Mac,
    /// Which of the MAC's letters were written in upper case: it is given back as written.
    pub mac_case: MacCase,
    /// Its virtual network.
    pub vni: Vni,
    /// Its addresses, each once. Two NICs of a VNI share one if both say so (`shared`), or both are
    /// lenient.
    pub ips: Vec<IpAddr>,
    /// Its groups, each once. One that does not exist (yet, or any more) allows nothing and counts
    /// as one with an egress rule: what it would have refused is not known.
    pub security_groups: Vec<GroupId>,
    /// Source addresses are checked (MACs always are). Default no, as v0; v1's decoder asks for it.
    pub anti_spoof: bool,
    /// Addresses besides its own that it may send from.
    pub allowed_address_pairs: Vec<AddressPair>,
    /// This NIC gets a copy of what that one sends and receives, and can send nothing. A target
    /// that does not exist (yet) gives no copies until it does.
    pub sniff_target: Option<NicId>,
    /// Sniffers only: the network of the NIC that is meant by `sniff_target`. One of that id in
    /// another network is another one: nothing of it is copied. `None`: in any, as versions of
    /// before have stored it; the APIs always say one.
    pub sniff_vni: Option<Vni>,
    /// Its packets are not filtered. Default no.
    pub bypass_filtering: bool,
    /// How the guest is attached. Default vhost-user.
    pub kind: NicKind,
    /// Kind vhost-user only: who listens. Default we. Another mode of the same NIC is another
    /// attachment, for which the path must be free.
    pub vhost_mode: VhostMode,
    /// Kind vhost-user where we listen: whose the socket is. Default: as the daemon's options say.
    pub socket: SocketAccess,
    /// vhost-user: the socket's absolute path, default `<socket-dir>/qemu-vhost-<id>`. TAP: the
    /// interface's name, default made of the id. A path that says the default is kept as `None`.
    pub path: Option<String>,
    /// Its packets are written to a file. Default no (v0: as the daemon's option says).
    pub packet_trace: bool,
    /// That file, beneath the daemon's folder of traces; relative to it unless absolute. Default
    /// `<trace-dir>/butterfly-<pid>-<id>.pcap`.
    pub packet_trace_path: Option<String>,
    /// Copies of its frames are sent to a collector. Default no.
    pub mirror: Option<Mirror>,
    /// Of so many frames that the guest sends one is sampled by sFlow, 0: none. Default: the
    /// daemon's `--sflow-rate`.
    pub sflow_rate: Option<u32>,
    /// How long its idle flows are remembered; see [`Nic::timeouts_in_bounds`].
    pub timeouts: Timeouts,
    /// It may answer DHCP. Default no.
    pub allow_dhcp_server: bool,
    /// It may send router advertisements and redirects, of IPv6 (RFC 4861) and IPv4 (RFC 1256, RFC
    /// 792). Default no.
    pub allow_router_advertisements: bool,
    /// Frames to MACs that nobody has go to it, and it may send from any MAC. Default no.
    pub learn_macs: bool,
    /// Largest packet, bytes behind the Ethernet header. Default: the daemon's.
    pub mtu: Option<u16>,
    /// The link is down as the operator wants it: no frame comes from the NIC or goes to it, and
    /// the guest is told. Default no.
    pub link_down: bool,
    /// What it may send in a second. Default: no limit.
    pub limit_out: Limits,
    /// What it may be sent in a second. Default: no limit.
    pub limit_in: Limits,
    /// It takes what the original took, for what API v0 makes: its MAC may be another lenient NIC's
    /// of the VNI (frames go to the one that sent from it last), or that of nobody; its IPs may be
    /// such as are no host's, which are given back and stand for nothing. Default no.
    pub lenient: bool,
    /// Its IPs may be those of other NICs of the VNI that say so, too: an address that moves
    /// between machines, or that several answer for (anycast). Default no.
    pub shared: bool,
}

/// Replaces the given values of a NIC and keeps the others. A list replaces the whole list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of `Nic`")]
pub struct NicUpdate {
    pub ips: Option<Vec<IpAddr>>,
    pub security_groups: Option<Vec<GroupId>>,
    /// Groups to be in no more, and to be in beside the others: what two callers change at one time
    /// adds up.
    pub leave_groups: Vec<GroupId>,
    pub join_groups: Vec<GroupId>,
    pub anti_spoof: Option<bool>,
    pub allowed_address_pairs: Option<Vec<AddressPair>>,
    pub bypass_filtering: Option<bool>,
    pub packet_trace: Option<bool>,
    pub packet_trace_path: Option<String>,
    /// `Some(None)`: no mirror any more.
    pub mirror: Option<Option<Mirror>>,
    /// `Some(None)`: the daemon's again, as with the group and the mode.
    pub socket_owner: Option<Option<String>>,
    pub socket_group: Option<Option<String>>,
    pub socket_mode: Option<Option<u32>>,
    /// `Some(None)`: the daemon's again.
    pub sflow_rate: Option<Option<u32>>,
    pub timeouts: Option<Timeouts>,
    pub allow_dhcp_server: Option<bool>,
    pub allow_router_advertisements: Option<bool>,
    pub learn_macs: Option<bool>,
    /// `Some(None)`: the daemon's again.
    pub mtu: Option<Option<u16>>,
    pub link_down: Option<bool>,
    pub limit_out: Option<Limits>,
    pub limit_in: Option<Limits>,
}

impl Nic {
    /// A vhost-user NIC in no group, with every default.
    pub fn new(id: NicId, mac: Mac, vni: Vni) -> Nic {
        Nic {
            id,
            mac,
            mac_case: MacCase::default(),
            vni,
            ips: Vec::new(),
            security_groups: Vec::new(),
            anti_spoof: false,
            allowed_address_pairs: Vec::new(),
            sniff_target: None,
            sniff_vni: None,
            bypass_filtering: false,
            kind: NicKind::VhostUser,
            vhost_mode: VhostMode::Server,
            socket: SocketAccess::default(),
            path: None,
            packet_trace: false,
            packet_trace_path: None,
            mirror: None,
            sflow_rate: None,
            timeouts: Timeouts::default(),
            allow_dhcp_server: false,
            allow_router_advertisements: false,
            learn_macs: false,
            mtu: None,
            link_down: false,
            limit_out: Limits::default(),
            limit_in: Limits::default(),
            lenient: false,
            shared: false,
        }
    }

    /// Its MAC address as it was written.
    pub fn mac_text(&self) -> String {
        self.mac_case.write(self.mac)
    }

    /// Those of its addresses that a host can have.
    pub fn host_addresses(&self) -> impl Iterator<Item = IpAddr> + use<'_> {
        self.ips.iter().copied().filter(is_host)
    }

    /// Whether a NIC that has the id of its target is that if it is in this network.
    pub(crate) fn sniffs_in(&self, vni: Vni) -> bool {
        self.sniff_vni.is_none_or(|own| own == vni)
    }

    /// This NIC with the given values replaced.
    pub fn updated(&self, update: NicUpdate) -> Nic {
        let mut nic = self.clone();
        replace(&mut nic.ips, update.ips);
        replace(&mut nic.security_groups, update.security_groups);
        nic.security_groups
            .retain(|id| !update.leave_groups.contains(id));
        // One that it is in already is kept once, as in every list of groups.
        nic.security_groups.extend(update.join_groups);
        replace(&mut nic.anti_spoof, update.anti_spoof);
        replace(&mut nic.allowed_address_pairs, update.allowed_address_pairs);
        replace(&mut nic.bypass_filtering, update.bypass_filtering);
        replace(&mut nic.packet_trace, update.packet_trace);
        replace(
            &mut nic.packet_trace_path,
            update.packet_trace_path.map(Some),
        );
        replace(&mut nic.mirror, update.mirror);
        replace(&mut nic.socket.owner, update.socket_owner);
        replace(&mut nic.socket.group, update.socket_group);
        replace(&mut nic.socket.mode, update.socket_mode);
        replace(&mut nic.sflow_rate, update.sflow_rate);
        replace(&mut nic.timeouts, update.timeouts);
        replace(&mut nic.allow_dhcp_server, update.allow_dhcp_server);
        replace(
            &mut nic.allow_router_advertisements,
            update.allow_router_advertisements,
        );
        replace(&mut nic.learn_macs, update.learn_macs);
        replace(&mut nic.mtu, update.mtu);
        replace(&mut nic.link_down, update.link_down);
        replace(&mut nic.limit_out, update.limit_out);
        replace(&mut nic.limit_in, update.limit_in);
        nic
    }

    /// The bounds of security-groups.md 10: TCP established 60..=432000 s, UDP one-way 30..=60, UDP
    /// stream 60..=180.
    pub fn timeouts_in_bounds(&self) -> Result<(), Error> {
        let Timeouts {
            tcp_established_secs,
            udp_secs,
            udp_stream_secs,
            ..
        } = self.timeouts;
        for (field, value, bounds) in [
            ("TCP timeout", tcp_established_secs, 60..=432_000),
            ("UDP timeout", udp_secs, 30..=60),
            ("UDP stream timeout", udp_stream_secs, 60..=180),
        ] {
            if !bounds.contains(&value) {
                let why = format!(
                    "is not within {} and {} seconds",
                    bounds.start(),
                    bounds.end()
                );
                return Err(Error::value(&self.owner(), field, &value.to_string(), &why));
            }
        }
        Ok(())
    }

    /// How messages name it.
    pub(crate) fn owner(&self) -> String {
        format!("NIC '{}'", self.id)
    }

    /// Repeated values dropped, networks without host bits; fails with what can be seen to be wrong
    /// without looking at other NICs.
    pub(crate) fn normalised(mut self) -> Result<Nic, Error> {
        let owner = self.owner();
        let refuse = |field, value: &dyn ToString, why| {
            Err(Error::value(&owner, field, &value.to_string(), why))
        };
        for pair in &mut self.allowed_address_pairs {
            pair.net = IpNet::trunc(&pair.net);
        }
        dedup(&mut self.ips, |ip| *ip);
        dedup(&mut self.security_groups, GroupId::clone);
        dedup(&mut self.allowed_address_pairs, |pair| (pair.net, pair.mac));
        quota(&owner, "IPs", self.ips.len(), limits::IPS_PER_NIC)?;
        quota(
            &owner,
            "security groups",
            self.security_groups.len(),
            limits::GROUPS_PER_NIC,
        )?;
        quota(
            &owner,
            "allowed address pairs",
            self.allowed_address_pairs.len(),
            limits::PAIRS_PER_NIC,
        )?;
        if self.mac.is_multicast() && !self.lenient {
            return refuse(
                "MAC",
                &self.mac,
                "is a group address, a NIC cannot send from it",
            );
        }
        if self.mac == Mac([0; 6]) && !self.lenient {
            return refuse("MAC", &self.mac, "is nobody's address, no driver takes it");
        }
        if self.mac.is_multicast() || self.mac == Mac([0; 6]) {
            let why = match self.kind {
                NicKind::Tap => Some("is not an address that a TAP interface can have"),
                NicKind::Veth(_) => Some("is not an address that a veth can have"),
                _ => None,
            };
            if let Some(why) = why {
                return refuse("MAC", &self.mac, why);
            }
        }
        if let NicKind::VmTap(tap) = self.kind {
            tap.check(&self)?;
        }
        if let NicKind::Veth(veth) = self.kind {
            self.kind = NicKind::Veth(Box::new(veth.normalised(&owner)?));
        }
        if let Some(ip) = self.ips.iter().find(|ip| !self.lenient && !is_host(ip)) {
            unmapped(&owner, "IP", &ip.to_string(), *ip)?;
            return refuse("IP", ip, "is not the address of one host");
        }
        if self.sniff_target.as_ref() == Some(&self.id) {
            return Err(Error::SniffsItself(self.id));
        }
        if let Some(vni) = self.sniff_vni.filter(|_| self.sniff_target.is_none()) {
            return refuse("sniff VNI", &vni, "goes with a sniffer alone");
        }
        if self.vhost_mode != VhostMode::Server && self.kind != NicKind::VhostUser {
            return refuse("vhost mode", &"client", "goes with a vhost-user NIC alone");
        }
        self.socket.in_bounds(&self)?;
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < limits::MTU_MIN) {
            return refuse("MTU", &mtu, "is below the smallest, 68");
        }
        let cannot_be = |path: &&String| path.contains('\0') || path.len() > limits::TRACE_PATH;
        if let Some(path) = self.packet_trace_path.as_ref().filter(cannot_be) {
            return refuse(
                "packet trace path",
                path,
                "is not a path of at most 4095 bytes",
            );
        }
        if let Some(mirror) = &self.mirror {
            mirror.in_bounds(&self)?;
        }
        let most = dataplane::sampling::RATE_MAX;
        if let Some(rate) = self.sflow_rate.filter(|rate| *rate > most) {
            let why = format!("is not within 0 and {most}");
            return Err(Error::value(&owner, "sFlow rate", &rate.to_string(), &why));
        }
        self.timeouts_in_bounds()?;
        self.limits_in_bounds()?;
        Ok(self)
    }
}

/// False for unspecified, broadcast and multicast addresses (RFC 1122 section 3.2.1.3, RFC 4291
/// section 2.7), and for IPv4 ones in the form of IPv6, which no packet has.
pub(super) fn is_host(ip: &IpAddr) -> bool {
    let mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    !(ip.is_unspecified() || ip.is_multicast() || *ip == IpAddr::V4(Ipv4Addr::BROADCAST) || mapped)
}

fn replace<T>(value: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *value = new;
    }
}

/// Keeps the first of equal values and the order.
fn dedup<T, K: Eq + Hash>(values: &mut Vec<T>, key: impl Fn(&T) -> K) {
    let mut seen = HashSet::with_capacity(values.len());
    values.retain(|value| seen.insert(key(value)));
}

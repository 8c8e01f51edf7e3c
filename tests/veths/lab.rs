//! A daemon with containers: the words that the sessions are written in, as configurations that
//! are applied and frames by packet sockets. All that a session declares is one configuration,
//! which is in force when its next frame is sent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::v1;
use butterfly_tests::Daemon;
use butterfly_tests::api::Api;
use butterfly_tests::packet_peer::{PacketPeer, hex};
use butterfly_tests::trials::Stage;
use dataplane::ruleset::{Direction, Peer, RuleSpec};
use dataplane::{
    AddressPair, DropReason, GroupIdx, MOVE_SECS, PortConfig, PortSlot, PortUid, UnknownTcp,
};
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_closely};

use crate::contract::words::*;

/// The most NICs that a session has.
const SEATS: usize = 4;
const VNI: u32 = 7;
/// Flows that each may have begun.
pub const SHARE: u16 = 8;
/// Frames of a known flow that are sent at once.
const BURST: usize = 12;

/// Namespaces whose stacks say nothing and answer nothing.
const SILENCE: &str = "nft '
    table inet silent {
        chain in { type filter hook input priority 0; policy drop; }
        chain out { type filter hook output priority 0; policy drop; }
    }
    table arp silent {
        chain in { type filter hook input priority 0; policy drop; }
        chain out { type filter hook output priority 0; policy drop; }
    }'";

/// A group as it is declared.
#[derive(Clone, Default)]
struct Declared {
    rules: Vec<RuleSpec>,
    members: Vec<IpAddr>,
    drain: bool,
    unknown_tcp: UnknownTcp,
}

pub struct Lab {
    daemon: Daemon,
    api: Api,
    /// A container for each NIC there may be.
    seats: Vec<PacketPeer>,
    /// Frames that have come to each, and were not looked at.
    inboxes: Vec<Vec<String>>,
    ports: Vec<Option<PortConfig>>,
    /// The NIC that one is a sniffer of.
    targets: BTreeMap<PortSlot, PortSlot>,
    groups: Vec<Option<Declared>>,
    /// Interfaces that are there.
    made: Vec<bool>,
    is_in_force: bool,
    /// When the last NIC came.
    newest: Instant,
}

impl Stage for Lab {
    fn start(options: &[&str]) -> Result<Self> {
        let daemon = Daemon::start(options)?;
        let mut seats = Vec::new();
        for _ in 0..SEATS {
            let namespace = Namespace::new()?;
            namespace.ok(SILENCE)?;
            seats.push(PacketPeer::waiting("eth0", namespace)?);
        }
        Ok(Lab {
            api: Api::connect(&daemon)?,
            daemon,
            seats,
            inboxes: vec![Vec::new(); SEATS],
            ports: Vec::new(),
            targets: BTreeMap::new(),
            groups: Vec::new(),
            made: vec![false; SEATS],
            is_in_force: false,
            newest: Instant::now(),
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.ports.clear();
        self.targets.clear();
        self.groups.clear();
        self.is_in_force = false;
        self.put_in_force()?;
        self.inboxes.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        self.daemon.is_running()
    }

    fn dump(&self) -> String {
        self.daemon.dump()
    }
}

/// What is declared.
impl Lab {
    /// A NIC with an address of each family, in no group.
    pub fn nic(&mut self) -> Nic {
        let slot = PortSlot(self.ports.len() as u32);
        assert!(self.ports.len() < SEATS, "there are {SEATS} containers");
        let nic = Nic::new(0, slot, PortUid(0));
        self.ports.push(Some(nic.config(0)));
        self.is_in_force = false;
        nic
    }

    pub fn configure(&mut self, nic: Nic, change: impl FnOnce(&mut PortConfig)) {
        change(self.ports[nic.slot.0 as usize].as_mut().unwrap());
        self.is_in_force = false;
    }

    /// One NIC gets copies of what another sends and is delivered, and can send nothing.
    pub fn sniffs(&mut self, sniffer: Nic, target: Nic) {
        self.targets.insert(sniffer.slot, target.slot);
        self.is_in_force = false;
    }

    pub fn delete(&mut self, nic: Nic) {
        self.ports[nic.slot.0 as usize] = None;
        self.is_in_force = false;
    }

    /// A new group with these rules and no members.
    pub fn group(&mut self, rules: Vec<RuleSpec>) -> GroupIdx {
        self.groups.push(Some(Declared {
            rules,
            ..Declared::default()
        }));
        self.is_in_force = false;
        GroupIdx(self.groups.len() as u32 - 1)
    }

    pub fn set_rules(&mut self, group: GroupIdx, rules: Vec<RuleSpec>) {
        self.declared(group).rules = rules;
    }

    /// Several groups in one change.
    pub fn change_groups(&mut self, changes: &[(GroupIdx, Vec<RuleSpec>)]) {
        for (group, rules) in changes {
            self.set_rules(*group, rules.clone());
        }
    }

    /// The addresses that a group stands for.
    pub fn set_members(&mut self, group: GroupIdx, members: &[IpAddr]) {
        self.declared(group).members = members.to_vec();
    }

    /// Flows that a rule of the group has let pass outlive it.
    pub fn drain(&mut self, group: GroupIdx) {
        self.declared(group).drain = true;
    }

    pub fn unknown_tcp(&mut self, group: GroupIdx, what: UnknownTcp) {
        self.declared(group).unknown_tcp = what;
    }

    pub fn delete_group(&mut self, group: GroupIdx) {
        self.groups[group.0 as usize] = None;
        self.is_in_force = false;
    }

    fn declared(&mut self, group: GroupIdx) -> &mut Declared {
        self.is_in_force = false;
        self.groups[group.0 as usize].get_or_insert_default()
    }

    /// How many flows a NIC may have begun: all of them.
    pub fn share(&mut self, _nic: Nic) -> u16 {
        SHARE
    }

    /// NICs that have come into their networks are not new any more: their connections would be
    /// known.
    pub fn settle(&mut self) {
        self.put_in_force().unwrap();
        let end = self.newest + Duration::from_secs(MOVE_SECS.into()) + Duration::from_millis(500);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }

    fn put_in_force(&mut self) -> Result<()> {
        if self.is_in_force {
            return Ok(());
        }
        self.api.apply(self.config())?;
        for seat in 0..SEATS {
            let is_there = matches!(self.ports.get(seat), Some(Some(_)));
            if is_there && !self.made[seat] {
                self.seats[seat].listen()?;
                self.newest = Instant::now();
            }
            self.made[seat] = is_there;
        }
        self.is_in_force = true;
        Ok(())
    }

    fn config(&self) -> v1::Config {
        let nics = self.ports.iter().flatten();
        let groups = self.groups.iter().enumerate();
        v1::Config {
            nics: nics.map(|nic| self.nic_as_declared(nic)).collect(),
            groups: groups
                .filter_map(|(index, group)| Some((index, group.as_ref()?)))
                .map(|(index, group)| v1::Group {
                    id: group_id(index as u32),
                    members: group.members.iter().map(IpAddr::to_string).collect(),
                    rules: group.rules.iter().map(rule_as_declared).collect(),
                    removal: match group.drain {
                        true => v1::Removal::Drain.into(),
                        false => v1::Removal::Cut.into(),
                    },
                    allow_midstream: group.unknown_tcp == UnknownTcp::Adopt,
                    silent_midstream: group.unknown_tcp == UnknownTcp::Drop,
                })
                .collect(),
            ..v1::Config::default()
        }
    }

    fn nic_as_declared(&self, nic: &PortConfig) -> v1::Nic {
        let pair = |pair: &AddressPair| v1::AddressPair {
            net: pair.net.to_string(),
            mac: pair.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        };
        let target = self.targets.get(&nic.slot);
        let seat = &self.seats[nic.slot.0 as usize];
        v1::Nic {
            id: nic_id(nic.slot),
            mac: nic.mac.to_string(),
            vni: VNI,
            addresses: nic.addresses.iter().map(IpAddr::to_string).collect(),
            security_groups: nic.groups.iter().map(|group| group_id(group.0)).collect(),
            anti_spoof: Some(nic.anti_spoof),
            allowed_address_pairs: nic.pairs.iter().map(pair).collect(),
            sniff_target: target.map(|slot| nic_id(*slot)).unwrap_or_default(),
            bypass_filtering: nic.bypass,
            allow_dhcp_server: nic.allow_dhcp_server,
            allow_router_advertisements: nic.allow_router_advertisements,
            mtu: nic.mtu.into(),
            kind: v1::NicKind::Veth.into(),
            path: format!("bf-lab{}", nic.slot.0),
            veth: Some(v1::Veth {
                netns: seat.namespace.pid().to_string(),
                ..v1::Veth::default()
            }),
            ..v1::Nic::default()
        }
    }
}

/// Frames, and what becomes of them.
impl Lab {
    /// The frame arrives, as it is, at these and nowhere else, and nothing is dropped.
    #[track_caller]
    pub fn passes_to(&mut self, from: Nic, to: &[Nic], frame: Vec<u8>) {
        self.put_in_force().unwrap();
        let before = self.drops();
        self.send(from, std::slice::from_ref(&frame));
        self.arrives(to, &[frame], &before);
        self.silent();
        assert_eq!(difference(&before, &self.drops()), [], "dropped");
    }

    /// A frame of a flow that goes on: it passes as often as it is sent, by the worker and then by
    /// the kernel.
    #[track_caller]
    pub fn keeps_passing(&mut self, from: Nic, to: Nic, frame: Vec<u8>) {
        self.passes(from, to, frame.clone());
        let (before, begun) = (self.drops(), self.by_kernel(from));
        let burst = vec![frame; BURST];
        let known = wait_closely("the kernel to forward a flow", PATIENCE, || {
            self.send(from, &burst);
            self.arrives(&[to], &burst, &before);
            Ok((self.by_kernel(from) > begun).then_some(()))
        });
        known.unwrap();
        self.silent();
        assert_eq!(difference(&before, &self.drops()), [], "dropped");
    }

    /// The frame arrives nowhere, and is counted once, for this reason.
    #[track_caller]
    pub fn refuses(&mut self, from: Nic, frame: Vec<u8>, reason: DropReason) {
        self.put_in_force().unwrap();
        let before = self.drops();
        self.send(from, &[frame]);
        self.drops_one(&before, reason);
        if reason == DropReason::TcpNotSyn && self.may_reset() {
            // On a slow machine NICs have become old, and it may be answered.
            self.collect();
            self.inboxes[from.slot.0 as usize].retain(|frame| !is_reset(frame));
        }
        self.silent();
    }

    /// The frame is dropped as [`refuses`](Lab::refuses) says, and its sender gets this reset and
    /// nobody else anything.
    #[track_caller]
    pub fn resets(&mut self, from: Nic, frame: Vec<u8>, reset: Vec<u8>) {
        self.put_in_force().unwrap();
        let before = self.drops();
        self.send(from, &[frame]);
        self.arrives(&[from], &[reset], &before);
        self.drops_one(&before, DropReason::TcpNotSyn);
        self.silent();
    }

    /// Has other rules while frames are on their way, and gives what of these has arrived.
    pub fn change_amid(
        &mut self,
        from: Nic,
        to: Nic,
        frames: Vec<Vec<u8>>,
        changes: &[(GroupIdx, Vec<RuleSpec>)],
    ) -> Vec<Vec<u8>> {
        self.put_in_force().unwrap();
        let before = self.drops();
        self.change_groups(changes);
        let config = self.config();
        let (api, seat) = (&mut self.api, &mut self.seats[from.slot.0 as usize]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for some in frames.chunks(2) {
                    seat.send(some).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            api.apply(config).unwrap();
        });
        self.is_in_force = true;
        let done = wait_closely("all frames to arrive or be dropped", PATIENCE, || {
            self.collect();
            let arrived = self.inboxes[to.slot.0 as usize].len() as u64;
            let dropped: u64 = difference(&before, &self.drops()).iter().map(|d| d.1).sum();
            Ok((arrived + dropped == frames.len() as u64).then_some(()))
        });
        done.unwrap();
        let arrived = std::mem::take(&mut self.inboxes[to.slot.0 as usize]);
        self.silent();
        arrived.iter().map(|frame| bytes(frame)).collect()
    }

    /// How many flows are tracked.
    pub fn flows(&mut self) -> usize {
        self.api.flows().unwrap().len()
    }

    fn send(&mut self, from: Nic, frames: &[Vec<u8>]) {
        self.seats[from.slot.0 as usize].send(frames).unwrap();
    }

    /// What has come to all that are there.
    fn collect(&mut self) {
        for seat in (0..SEATS).filter(|seat| self.made[*seat]) {
            let more = self.seats[seat].take().unwrap();
            self.inboxes[seat].extend(more);
        }
    }

    /// These frames arrive at each of these, and no others there.
    #[track_caller]
    fn arrives(&mut self, to: &[Nic], frames: &[Vec<u8>], before: &Drops) {
        let arrived = wait_closely("frames to arrive", PATIENCE, || {
            self.collect();
            let len = |nic: &Nic| self.inboxes[nic.slot.0 as usize].len();
            Ok(to.iter().all(|nic| len(nic) >= frames.len()).then_some(()))
        });
        if let Err(e) = arrived {
            panic!("{e}; dropped: {:?}", difference(before, &self.drops()));
        }
        let expected: Vec<String> = frames.iter().map(|frame| hex(frame)).collect();
        for nic in to {
            let inbox = std::mem::take(&mut self.inboxes[nic.slot.0 as usize]);
            assert_eq!(inbox, expected, "at {}", nic_id(nic.slot));
        }
    }

    #[track_caller]
    fn drops_one(&mut self, before: &Drops, reason: DropReason) {
        let expected = [(reason.name().to_owned(), 1)];
        let mut dropped = Vec::new();
        let counted = wait_closely("a drop to be counted", PATIENCE, || {
            dropped = difference(before, &self.drops());
            Ok((!dropped.is_empty()).then_some(()))
        });
        self.collect();
        counted.unwrap_or_else(|e| panic!("{e}: {}; arrived: {:?}", reason.name(), self.inboxes));
        assert_eq!(dropped, expected);
    }

    /// Nobody has received anything.
    #[track_caller]
    fn silent(&mut self) {
        self.collect();
        for (seat, inbox) in self.inboxes.iter().enumerate() {
            assert!(inbox.is_empty(), "at seat {seat}: {inbox:?}");
        }
    }

    /// Drops of all NICs that are there, in both directions, by reason.
    fn drops(&mut self) -> Drops {
        let mut sums = Drops::new();
        for drop in self.api.drops().unwrap() {
            *sums.entry(drop.reason).or_default() += drop.frames;
        }
        sums
    }

    /// Frames of a NIC that the kernel has forwarded.
    fn by_kernel(&mut self, nic: Nic) -> u64 {
        let id = nic_id(nic.slot);
        let stats = self.api.stats().unwrap();
        let stats = stats.iter().find(|stats| stats.id == id);
        stats.unwrap().egress_kernel_frames
    }

    fn may_reset(&self) -> bool {
        self.newest.elapsed() >= Duration::from_secs(u64::from(MOVE_SECS) - 1)
    }
}

/// Frames dropped, by reason.
type Drops = BTreeMap<String, u64>;

fn difference(before: &Drops, after: &Drops) -> Vec<(String, u64)> {
    let more = |(reason, count): (&String, &u64)| {
        let more = count - before.get(reason).unwrap_or(&0);
        (more > 0).then(|| (reason.clone(), more))
    };
    after.iter().filter_map(more).collect()
}

fn nic_id(slot: PortSlot) -> String {
    format!("n{}", slot.0 + 1)
}

fn group_id(index: u32) -> String {
    format!("g{index}")
}

fn rule_as_declared(rule: &RuleSpec) -> v1::Rule {
    let (start, end) = (*rule.selector.start(), *rule.selector.end());
    let direction = match rule.direction {
        Direction::Ingress => v1::Direction::Ingress,
        Direction::Egress => v1::Direction::Egress,
    };
    v1::Rule {
        direction: direction.into(),
        protocol: rule.protocol.map(u32::from),
        r#match: match rule.protocol {
            _ if (start, end) == (0, u16::MAX) => None,
            Some(ICMP) => {
                let [kind, code] = start.to_be_bytes().map(u32::from);
                Some(v1::rule::Match::Icmp(v1::IcmpMatch {
                    r#type: Some(kind),
                    code: Some(code),
                }))
            }
            _ => Some(v1::rule::Match::Ports(v1::PortRange {
                start: start.into(),
                end: end.into(),
            })),
        },
        peer: match rule.peer {
            Peer::Any => None,
            Peer::Net(net) => Some(v1::rule::Peer::Cidr(net.to_string())),
            Peer::Group(group) => Some(v1::rule::Peer::Group(group_id(group.0))),
        },
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let pairs = pairs.filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs
        .filter_map(|pair| u8::from_str_radix(pair, 16).ok())
        .collect()
}

/// A TCP segment that is a reset, of IPv4 or IPv6 without options.
fn is_reset(frame: &str) -> bool {
    let frame = bytes(frame);
    let at = |at: usize| frame.get(at).copied().unwrap_or_default();
    match at(12) {
        0x08 => at(23) == TCP && at(47) & 4 != 0,
        _ => at(20) == TCP && at(67) & 4 != 0,
    }
}

//! A switch with guests: what the sessions are written in.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::drop_reason::DropReason;
use dataplane::overlay::Overlay;
use dataplane::ruleset::{Direction, Peer, RuleSet, RuleSpec};
use dataplane::snapshot::SharedMacs;
use dataplane::trial::{End, Outcome, Report, To};
use dataplane::*;
use io::memory_port::MemoryPeer;
use wire::build::{self, Builder};
use wire::offload::Offload;
use wire::parse::TcpFlags;
use wire::{Mac, Vni};

pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const RST: TcpFlags = TcpFlags::RST;
pub const FIN_ACK: TcpFlags = TcpFlags(0x11);
pub const SYN_ACK: TcpFlags = TcpFlags(0x12);
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A guest's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nic {
    pub slot: PortSlot,
    pub uid: PortUid,
    pub mac: Mac,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Nic {
    pub fn ip(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

pub struct Lab {
    pub sim: Simulation,
    ports: Vec<Option<PortConfig>>,
    groups: Vec<Option<Group>>,
    peers: Vec<MemoryPeer>,
    /// What networks are on other hosts, by their index.
    pub overlays: [Option<Overlay>; 3],
    pub hosts: Vec<IpAddr>,
    epoch: u64,
    uids: u32,
}

impl Lab {
    pub fn new() -> Lab {
        Lab::on(Simulation::default())
    }

    pub fn on(sim: Simulation) -> Lab {
        Lab {
            sim,
            ports: Vec::new(),
            groups: Vec::new(),
            peers: Vec::new(),
            overlays: [None, None, None],
            hosts: Vec::new(),
            epoch: 0,
            uids: 100,
        }
    }

    /// Two NICs of one network; the second is in a group with these rules, the first in none.
    pub fn pair(rules: Vec<RuleSpec>) -> (Lab, Nic, Nic) {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        lab.group_of(b, rules);
        (lab, a, b)
    }

    /// A NIC in network 0, with an address of each family, in no group.
    pub fn nic(&mut self) -> Nic {
        self.nic_in(0)
    }

    pub fn nic_in(&mut self, network: u32) -> Nic {
        let peer = self.sim.attach(PortSlot(self.ports.len() as u32));
        self.nic_with(network, peer)
    }

    /// A NIC whose guest was attached before.
    pub fn nic_on(&mut self, peer: MemoryPeer) -> Nic {
        self.nic_with(0, peer)
    }

    fn nic_with(&mut self, network: u32, peer: MemoryPeer) -> Nic {
        let n = self.ports.len() as u8 + 1;
        let slot = PortSlot(self.ports.len() as u32);
        self.uids += 1;
        let nic = Nic {
            slot,
            uid: PortUid(self.uids),
            mac: Mac([2, 0, 0, 0, network as u8, n]),
            v4: Ipv4Addr::new(10, 0, 0, n),
            v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()),
        };
        let (vni, network) = (Vni::new(network).unwrap(), NetworkIdx(network));
        self.ports.push(Some(PortConfig {
            name: "nic".into(),
            addresses: vec![nic.v4.into(), nic.v6.into()],
            anti_spoof: true,
            flow_share: 1000,
            ..PortConfig::new(slot, nic.uid, vni, network, nic.mac)
        }));
        self.peers.push(peer);
        self.publish();
        nic
    }

    pub fn configure(&mut self, nic: Nic, change: impl FnOnce(&mut PortConfig)) {
        change(self.ports[nic.slot.0 as usize].as_mut().unwrap());
        self.publish();
    }

    /// The limits of a NIC that has some.
    pub fn meters(&self, nic: Nic) -> &limits::Meters {
        let config = self.ports[nic.slot.0 as usize].as_ref();
        config.and_then(|config| config.meters.as_deref()).unwrap()
    }

    /// Deletes the NIC; its guest stays attached.
    pub fn delete(&mut self, nic: Nic) {
        self.ports[nic.slot.0 as usize] = None;
        self.publish();
    }

    /// Another NIC takes the slot of a deleted one, with the same addresses.
    pub fn replace(&mut self, nic: Nic) -> Nic {
        self.uids += 1;
        let uid = PortUid(self.uids);
        self.configure(nic, |config| config.uid = uid);
        Nic { uid, ..nic }
    }

    /// A new group with these rules and no members.
    pub fn group(&mut self, rules: Vec<RuleSpec>) -> GroupIdx {
        self.groups.push(Some(Group {
            rules: numbered(rules),
            ..Group::default()
        }));
        self.publish();
        GroupIdx(self.groups.len() as u32 - 1)
    }

    /// A new group with these rules and this one NIC in it.
    pub fn group_of(&mut self, nic: Nic, rules: Vec<RuleSpec>) -> GroupIdx {
        let group = self.group(rules);
        self.configure(nic, |config| config.groups.push(group));
        group
    }

    pub fn set_rules(&mut self, group: GroupIdx, rules: Vec<RuleSpec>) {
        self.change_group(group, |group| group.rules = numbered(rules));
    }

    pub fn change_group(&mut self, group: GroupIdx, change: impl FnOnce(&mut Group)) {
        change(self.groups[group.0 as usize].get_or_insert_default());
        self.publish();
    }

    /// Several groups in one snapshot.
    pub fn change_groups(&mut self, changes: &[(GroupIdx, Vec<RuleSpec>)]) {
        for (group, rules) in changes {
            self.groups[group.0 as usize].get_or_insert_default().rules = numbered(rules.clone());
        }
        self.publish();
    }

    pub fn delete_group(&mut self, group: GroupIdx) {
        self.groups[group.0 as usize] = None;
        self.publish();
    }

    pub fn publish(&mut self) {
        self.epoch += 1;
        let snapshot = self.snapshot(self.epoch);
        self.sim.publish(snapshot);
    }

    /// All that was configured.
    pub fn snapshot(&self, epoch: u64) -> Snapshot {
        let of_network = |network: u32| {
            let ports = self
                .ports
                .iter()
                .flatten()
                .filter(move |p| p.network.0 == network);
            let mine: Vec<_> = ports.collect();
            Network {
                vni: Vni::new(network).unwrap(),
                macs: mine
                    .iter()
                    .filter(|p| !p.is_sniffer)
                    .map(|p| (p.mac, p.slot))
                    .collect(),
                ports: mine.iter().map(|p| p.slot).collect(),
                shared: shared(&mine),
                learners: mine
                    .iter()
                    .filter(|p| p.learn_macs)
                    .map(|p| p.slot)
                    .collect(),
                overlay: self.overlays[network as usize].clone().map(Arc::new),
            }
        };
        Snapshot {
            epoch: Epoch(epoch),
            ports: self
                .ports
                .iter()
                .map(|port| port.clone().map(Arc::new))
                .collect(),
            networks: (0..3).map(|n| Some(Arc::new(of_network(n)))).collect(),
            groups: self
                .groups
                .iter()
                .map(|group| group.clone().map(Arc::new))
                .collect(),
            hosts: self.hosts.iter().copied().map(Some).collect(),
            ..Snapshot::default()
        }
    }

    /// Sends a frame; the switch comes to rest.
    pub fn send(&mut self, from: Nic, frame: Vec<u8>) {
        self.send_with(from, frame, Offload::default());
    }

    pub fn send_with(&mut self, from: Nic, frame: Vec<u8>, offload: Offload) {
        self.queue(from, frame, offload);
        self.sim.run();
    }

    /// Queues a frame: what is queued together comes in one batch.
    pub fn queue(&mut self, from: Nic, frame: Vec<u8>, offload: Offload) {
        assert!(self.peer(from).send(frame, offload));
    }

    /// What the NIC has received since this was asked last.
    pub fn received(&mut self, nic: Nic) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.peer(nic).receive())
            .map(|(frame, _)| frame)
            .collect()
    }

    pub fn peer(&self, nic: Nic) -> &MemoryPeer {
        &self.peers[nic.slot.0 as usize]
    }

    /// The frame arrives, as it is, at `to` and nowhere else, and nothing is dropped.
    #[track_caller]
    pub fn passes(&mut self, from: Nic, to: Nic, frame: Vec<u8>) {
        self.passes_to(from, &[to], frame);
    }

    #[track_caller]
    pub fn passes_to(&mut self, from: Nic, to: &[Nic], frame: Vec<u8>) {
        let before = self.drops();
        if let Some(report) = self.tried(from.slot, &frame) {
            assert_eq!(
                foretold(&report),
                [],
                "a trial says that it is dropped: {report:?}"
            );
            let told = report.targets.iter().map(|target| target.to);
            let copies = report.copies.iter().map(|slot| To::Nic(*slot));
            let told = told.filter(|to| matches!(to, To::Nic(_))).chain(copies);
            let told: BTreeSet<_> = told.collect();
            let meant = to.iter().map(|nic| To::Nic(nic.slot)).collect();
            assert_eq!(told, meant, "where a trial says it goes");
        }
        self.send(from, frame.clone());
        assert_eq!(difference(&before, &self.drops()), [], "dropped");
        for slot in 0..self.peers.len() {
            let expected = to
                .iter()
                .filter(|nic| nic.slot.0 as usize == slot)
                .map(|_| frame.clone());
            let arrived: Vec<_> =
                std::iter::from_fn(|| self.peers[slot].receive().map(|(f, _)| f)).collect();
            assert_eq!(arrived, expected.collect::<Vec<_>>(), "at slot {slot}");
        }
    }

    /// The frame arrives nowhere, and is counted once, for this reason.
    #[track_caller]
    pub fn refuses(&mut self, from: Nic, frame: Vec<u8>, reason: DropReason) {
        let before = self.drops();
        if let Some(report) = self
            .tried(from.slot, &frame)
            .filter(|_| !is_of_the_moment(reason))
        {
            assert_eq!(foretold(&report), [reason], "by a trial: {report:?}");
        }
        self.send(from, frame);
        assert_eq!(difference(&before, &self.drops()), [(reason, 1)]);
        self.silent();
    }

    /// The frame is dropped as [`refuses`](Lab::refuses) says, and its sender gets this reset and
    /// nobody else anything; a trial foretells it.
    #[track_caller]
    pub fn resets(&mut self, from: Nic, frame: Vec<u8>, reset: Vec<u8>) {
        let before = self.drops();
        if let Some(report) = self.tried(from.slot, &frame) {
            assert_eq!(foretold(&report), [DropReason::TcpNotSyn], "{report:?}");
            assert_eq!(report.answer, Some(reset.clone()), "by a trial");
        }
        self.silent();
        self.send(from, frame);
        let dropped = difference(&before, &self.drops());
        assert_eq!(dropped, [(DropReason::TcpNotSyn, 1)]);
        assert_eq!(self.received(from), [reset]);
        self.silent();
    }

    /// NICs that have come into their networks are not new any more: their connections would be
    /// known.
    pub fn settle(&mut self) {
        self.wait(dataplane::MOVE_SECS.into());
    }

    /// Nobody has received anything.
    #[track_caller]
    pub fn silent(&mut self) {
        for (slot, peer) in self.peers.iter().enumerate() {
            assert_eq!(peer.receive(), None, "at slot {slot}");
        }
    }

    /// What a trial says would become of a frame. It changes nothing.
    #[track_caller]
    pub fn tried(&mut self, from: PortSlot, frame: &[u8]) -> Option<Box<Report>> {
        let before = self.all_that_can_be_seen();
        let report = self.sim.trial(from, frame)?;
        let after = self.all_that_can_be_seen();
        assert_eq!(before, after, "a trial has changed something");
        Some(report)
    }

    /// Counters of all NICs, uplinks and rules, flows, learnt MACs, and what workers hold.
    fn all_that_can_be_seen(&mut self) -> String {
        let nics = (0..self.ports.len()).map(|slot| PortSlot(slot as u32));
        let ports: Vec<_> = nics
            .chain([PortSlot::uplink(0), PortSlot::uplink(1)])
            .map(|slot| self.sim.port(slot))
            .collect();
        let rules: Vec<_> = (0..16).map(|rule| self.sim.rule(RuleSlot(rule))).collect();
        let flows = self.sim.flows(None);
        let learned: Vec<_> = (0..3)
            .map(|vni| {
                let vni = Vni::new(vni).unwrap();
                self.sim.ask(move |switch| switch.learned(vni))
            })
            .collect();
        let load = self.sim.load();
        let held = (
            load.datagrams,
            load.held_fragments,
            load.waiting_frames,
            load.learned_macs,
        );
        format!(
            "{ports:?} {rules:?} {flows:?} {learned:?} {held:?} {}",
            load.flows_evicted
        )
    }

    /// Drops of all ports by reason, both directions.
    pub fn drops(&self) -> Vec<u64> {
        let mut sums = vec![0; DropReason::ALL.len()];
        let nics = (0..self.ports.len()).map(|slot| PortSlot(slot as u32));
        for slot in nics.chain([PortSlot::uplink(0), PortSlot::uplink(1)]) {
            let counters = self.sim.port(slot);
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum += counters.drops_from[index] + counters.drops_to[index];
            }
        }
        sums
    }

    pub fn wait(&mut self, secs: u64) {
        self.sim.advance(Duration::from_secs(secs));
    }

    /// How many flows are tracked.
    pub fn flows(&mut self) -> usize {
        self.sim.flows(None).len()
    }

    /// Opens a TCP connection from `a` to port `dport` of `b`. Both begin at sequence number 1000.
    #[track_caller]
    pub fn connect(&mut self, a: Nic, b: Nic, family: Family, sport: u16, dport: u16) {
        self.passes(
            a,
            b,
            ip(a, b, family).tcp(sport, dport, SYN).seq(1000).build(),
        );
        let answer = ip(b, a, family)
            .tcp(dport, sport, SYN_ACK)
            .seq(1000)
            .ack(1001);
        self.passes(b, a, answer.build());
        let ack = ip(a, b, family).tcp(sport, dport, ACK).seq(1001).ack(1001);
        self.passes(a, b, ack.build());
    }
}

/// MACs that several have.
fn shared(ports: &[&PortConfig]) -> SharedMacs {
    let mut shared = SharedMacs::default();
    for port in ports.iter().filter(|port| !port.is_sniffer) {
        shared.entry(port.mac).or_default().push(port.slot);
    }
    shared.retain(|_, slots| slots.len() > 1);
    shared
}

/// Why a trial says that a frame is dropped, once for each target that refuses it.
pub fn foretold(report: &Report) -> Vec<DropReason> {
    let ended = match report.end {
        Some((_, End::Dropped(reason))) => Some(reason),
        _ => None,
    };
    let refused = report
        .targets
        .iter()
        .filter_map(|target| match target.verdict {
            Outcome::Dropped { reason, .. } => Some(reason),
            Outcome::Pass | Outcome::Waits => None,
        });
    ended.into_iter().chain(refused).collect()
}

/// Nobody can know it before.
fn is_of_the_moment(reason: DropReason) -> bool {
    use DropReason::*;
    matches!(
        reason,
        RingFull | BufferTooSmall | HandoffFull | TargetBroken | BitLimit | PacketLimit
    )
}

pub fn difference(before: &[u64], after: &[u64]) -> Vec<(DropReason, u64)> {
    let both = DropReason::ALL.iter().zip(before.iter().zip(after));
    both.filter(|(_, (before, after))| before != after)
        .map(|(reason, (before, after))| (*reason, after - before))
        .collect()
}

/// A frame from one NIC to another, as far as IP.
pub fn ip(from: Nic, to: Nic, family: Family) -> Builder {
    build::frame(from.mac, to.mac).ip(from.ip(family), to.ip(family))
}

pub fn udp(from: Nic, to: Nic, family: Family, sport: u16, dport: u16) -> Vec<u8> {
    ip(from, to, family)
        .udp(sport, dport)
        .payload(b"hello")
        .build()
}

/// Rule slots are the position in the list.
fn numbered(mut rules: Vec<RuleSpec>) -> RuleSet {
    for (slot, rule) in (0..).zip(&mut rules) {
        rule.slot = RuleSlot(slot);
    }
    RuleSet::new(rules)
}

pub fn rule(
    direction: Direction,
    protocol: Option<u8>,
    ports: std::ops::RangeInclusive<u16>,
    peer: Peer,
) -> RuleSpec {
    RuleSpec {
        direction,
        protocol,
        selector: ports,
        peer,
        slot: RuleSlot(0),
    }
}

/// Anybody may reach this port.
pub fn allow_in(protocol: u8, port: u16) -> RuleSpec {
    rule(Direction::Ingress, Some(protocol), port..=port, Peer::Any)
}

pub fn allow_out(protocol: u8, port: u16) -> RuleSpec {
    rule(Direction::Egress, Some(protocol), port..=port, Peer::Any)
}

/// Everything of a protocol, or of all, from anybody.
pub fn allow_all_in(protocol: Option<u8>) -> RuleSpec {
    rule(Direction::Ingress, protocol, 0..=u16::MAX, Peer::Any)
}

pub fn allow_all_out(protocol: Option<u8>) -> RuleSpec {
    rule(Direction::Egress, protocol, 0..=u16::MAX, Peer::Any)
}

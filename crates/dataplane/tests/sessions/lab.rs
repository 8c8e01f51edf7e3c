//! A switch with guests: what the sessions are written in.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dataplane::drop_reason::DropReason;
use dataplane::overlay::Overlay;
use dataplane::ruleset::{RuleSet, RuleSpec};
use dataplane::snapshot::SharedMacs;
use dataplane::trial::{End, Outcome, Report, To};
use dataplane::*;
use io::memory_port::MemoryPeer;
use wire::Vni;
use wire::offload::Offload;

pub use crate::contract::words::*;

pub const SCTP: u8 = 132;

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
        let (a, b) = lab.two(rules);
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
        let slot = PortSlot(self.ports.len() as u32);
        self.uids += 1;
        let nic = Nic::new(network, slot, PortUid(self.uids));
        self.ports.push(Some(nic.config(network)));
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

    /// One NIC gets copies of what another sends and is delivered, and can send nothing.
    pub fn sniffs(&mut self, sniffer: Nic, target: Nic) {
        self.configure(sniffer, |config| config.is_sniffer = true);
        self.configure(target, |config| config.sniffers.push(sniffer.slot));
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

    pub fn set_rules(&mut self, group: GroupIdx, rules: Vec<RuleSpec>) {
        self.change_group(group, |group| group.rules = numbered(rules));
    }

    pub fn change_group(&mut self, group: GroupIdx, change: impl FnOnce(&mut Group)) {
        change(self.groups[group.0 as usize].get_or_insert_default());
        self.publish();
    }

    /// The addresses that a group stands for.
    pub fn set_members(&mut self, group: GroupIdx, members: &[IpAddr]) {
        self.change_group(group, |group| {
            group.members = members.iter().copied().collect();
        });
    }

    /// Flows that a rule of the group has let pass outlive it.
    pub fn drain(&mut self, group: GroupIdx) {
        self.change_group(group, |group| group.drain = true);
    }

    pub fn unknown_tcp(&mut self, group: GroupIdx, what: UnknownTcp) {
        self.change_group(group, |group| group.unknown_tcp = what);
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

    /// The frame arrives, as it is, at these and nowhere else, and nothing is dropped.
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

    /// A frame of a flow that goes on: it passes as often as it is sent.
    #[track_caller]
    pub fn keeps_passing(&mut self, from: Nic, to: Nic, frame: Vec<u8>) {
        for _ in 0..3 {
            self.passes(from, to, frame.clone());
        }
    }

    /// Has other rules while frames are on their way, and gives what of these has arrived.
    pub fn change_amid(
        &mut self,
        from: Nic,
        to: Nic,
        frames: Vec<Vec<u8>>,
        changes: &[(GroupIdx, Vec<RuleSpec>)],
    ) -> Vec<Vec<u8>> {
        for frame in frames {
            self.queue(from, frame, Offload::default());
        }
        self.change_groups(changes);
        self.sim.run();
        self.received(to)
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

    /// How many flows a NIC may have begun.
    pub fn share(&mut self, nic: Nic) -> u16 {
        self.configure(nic, |config| config.flow_share = 8);
        8
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

/// Rule slots are the position in the list.
fn numbered(mut rules: Vec<RuleSpec>) -> RuleSet {
    for (slot, rule) in (0..).zip(&mut rules) {
        rule.slot = RuleSlot(slot);
    }
    RuleSet::new(rules)
}

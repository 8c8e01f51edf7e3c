//! Target `whole`: guests, hosts on the wire and a client of both APIs, all at once, on a
//! controller with its data plane of two workers.
//!
//! After every step a model says what may cross. It is made of the declared configuration alone and
//! of the flows that have been let pass; what it says is the contract (docs/security-groups.md,
//! docs/security.md), said once more and simply ([`model`]).
//!
//! Promises: a frame is delivered, unchanged and once, to whom the model lets it, and to nobody
//! else; what needs no flow to be there (UDP, echo requests) is delivered where the model lets it;
//! what goes to the wire goes to hosts of its network, and comes from a NIC; what the switch says
//! itself are answers for machines on other hosts, to who has asked, and resets of connections that
//! are not known, to who could have them. A guest that breaks the protocol of its ring is out
//! alone, and back when the same configuration is applied. What the client is told was done is what
//! is declared then ([`client`]).
//!
//! Input: steps, each a byte and what the step takes: see [`Lab::step`]. Every frame is alone: the
//! data plane comes to rest before the next step.

mod client;
mod frames;
mod messages;
mod model;
mod plane;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::model::{Config, Direction, GroupId, Nic, NicId};
use control::{Controller, HostSettings, NicState};
use dataplane::{PortSlot, Simulation, WorkerConfig};
use io::memory_port::MemoryPeer;
use testkit::ring_driver::Shape;
use wire::offload::Offload;
use wire::parse::protocol;
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni, checksum};

use crate::fixture::{self, HERE, HERE_MAC, ROUTER_MAC, mac};
use crate::input::Input;
use client::Client;
use frames::{Flow, Sent, sent};
use model::*;
use plane::{Broken, Shared, Side, World, lock};

const STEPS_MAX: usize = 72;
const WORKERS: usize = 2;
/// NICs that there may be; machine `n` has the MAC `mac(n)` and the addresses `v4(n)` and `v6(n)`,
/// and so has NIC `n`, if nothing else is declared of it. Machines behind it are on other hosts, if
/// anywhere.
const NICS: u8 = 5;
const MACHINES: u8 = 8;
const GROUPS: u8 = 3;
const VNIS: u8 = 2;

/// The last is never declared.
const HOSTS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(192, 0, 2, 2),
    Ipv4Addr::new(192, 0, 2, 3),
    Ipv4Addr::new(192, 0, 2, 9),
];

struct Lab {
    client: Client,
    shared: Shared,
    wire: MemoryPeer,
    flows: BTreeSet<Flow>,
    /// MACs of others that a NIC which may do so has sent from: frames to them go there.
    heard: BTreeSet<(Vni, Mac, NicId)>,
}

/// Plays all of them.
pub fn whole(data: &[u8]) {
    let mut input = Input::new(data);
    let mut lab = Lab::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        lab.step(&mut input);
    }
}

impl Lab {
    fn new() -> Lab {
        let broken = Broken::default();
        let told = broken.clone();
        let mut sim = Simulation::configured(WORKERS, |_| {
            let told = told.clone();
            WorkerConfig {
                max_flows: 1024,
                max_fragments: 16,
                max_learned_macs: 16,
                seed: 1,
                on_broken: Box::new(move |slot, why| lock(&told).push((slot, why))),
            }
        });
        let wire = sim.attach(PortSlot::uplink(0));
        sim.set_underlay(fixture::underlay(HOSTS, 1600));
        let shared = Shared(Arc::new(Mutex::new(World {
            sim,
            sides: BTreeMap::new(),
            broken,
        })));
        let settings = HostSettings {
            overlay: true,
            ..HostSettings::default()
        };
        let attachments = Box::new(shared.clone());
        let control = Controller::new(settings, attachments, Arc::new(shared.clone()));
        Lab {
            client: Client::new(control),
            shared,
            wire,
            flows: BTreeSet::new(),
            heard: BTreeSet::new(),
        }
    }

    /// The client's steps, then the guests' and the hosts'.
    fn step(&mut self, input: &mut Input<'_>) {
        let step = input.u8();
        match step % 32 {
            0..=15 => self.client.step(step, input),
            16 => self.lie(input),
            17..=21 => self.arrive(input),
            22..=30 => self.leave(input),
            _ => self.move_queue(input),
        }
        self.forget_flows();
    }

    /// Gives a NIC, or the wire, to another worker: nothing comes of it.
    fn move_queue(&mut self, input: &mut Input<'_>) {
        let (number, worker) = (input.u8() % (NICS + 1), input.u8());
        let slot = match number {
            NICS => Some(PortSlot::uplink(0)),
            number => self.slot(&nic_id(number)),
        };
        if let Some(slot) = slot {
            let worker = usize::from(worker) % WORKERS;
            self.shared.lock().sim.move_queue(slot, worker);
        }
        let got = self.run();
        assert!(got.is_empty(), "frames by a move");
    }

    fn slot(&self, id: &NicId) -> Option<PortSlot> {
        self.client.control().nic(id).ok().map(|status| status.slot)
    }

    /// A guest whose ring says what cannot be.
    fn lie(&mut self, input: &mut Input<'_>) {
        let id = nic_id(input.u8() % NICS);
        let how = input.u8();
        let Ok(status) = self.client.control().nic(&id) else {
            return;
        };
        let healthy = !matches!(status.state, NicState::Broken(_));
        {
            let mut world = self.shared.lock();
            let Some(Side::Ring(guest)) = world.sides.get_mut(&status.slot.0) else {
                return;
            };
            match how & 1 {
                0 => guest.transmitq.write_available_index(20_000),
                _ => {
                    guest
                        .transmitq
                        .write_descriptor(0, 0xdead_0000_0000, 60, 0, 0);
                    guest.transmitq.push_available(0);
                    let index = guest.transmitq.used_index();
                    guest.transmitq.write_available_index(index.wrapping_add(1));
                }
            }
            guest.transmitq.notify();
        }
        let got = self.run();
        assert!(got.is_empty(), "a lie was delivered");
        let state = self.client.control().nic(&id).expect("it is there").state;
        assert!(
            !healthy || matches!(state, NicState::Broken(_)),
            "{id}: a lie ({how}) went unseen"
        );
    }

    /// A host sends a frame in the name of some machine.
    fn arrive(&mut self, input: &mut Input<'_>) {
        let (from, vni) = (host(input, 3), vni(input));
        let name = machine(input);
        let sent = sent(input, name);
        let mut outer = Outer::new(
            (ROUTER_MAC, HERE_MAC),
            None,
            Ends::V4(from, HERE),
            64,
            vxlan::PORT,
            UdpChecksum::Zero,
        );
        outer.set_flow(vni, 1, 0);
        let mut frame = vec![0; outer.len()];
        outer.write(&mut frame, sent.bytes.len(), checksum::sum(&sent.bytes));
        frame.extend_from_slice(&sent.bytes);
        self.wire.send(frame, Offload::default());
        let got = self.run();
        let back = self.out_of_the_wire(vni, sent.reset.as_deref().unwrap_or_default());

        let config = self.client.control().config();
        let comes = is_taken(&config, from.into(), vni, &sent);
        if !back.is_empty() {
            let why = format!("a reset: {from} has sent {}", sent.says());
            assert_eq!(back, [IpAddr::from(from)], "{why}");
            assert!(
                comes && got.is_empty() && enters(&config, vni, &sent),
                "{why}"
            );
        }
        for (id, frame) in got {
            let nic = &config.nics[&id];
            assert_eq!(frame, sent.bytes, "{id}: another frame than was sent");
            assert_eq!(nic.vni, vni, "{id}: a frame of another network");
            let why = format!("{id} was sent {} by {from}", sent.says());
            assert!(comes && self.is_up(&id, nic), "{why}");
            assert!(self.is_for(&id, nic, sent.dst), "{why}");
            let Some(talk) = sent.talk else { continue };
            let lets = allows(&config, nic, Direction::Ingress, sent.from, talk);
            let flow = sent.flow(vni, talk);
            assert!(lets || self.answers(&config, flow), "{why}");
            self.flows.insert(flow);
        }
        if let Some(talk) = sent.talk
            && comes
            && is_let_in(&config, vni, &sent, talk)
        {
            self.flows.insert(sent.flow(vni, talk));
        }
    }

    /// A guest sends a frame.
    fn leave(&mut self, input: &mut Input<'_>) {
        let id = nic_id(input.u8() % NICS);
        // In its own name, as a rule.
        let name = match input.u8() {
            0..=223 => None,
            other => Some(other % MACHINES),
        };
        let config = self.client.control().config();
        let Some(nic) = config.nics.get(&id) else {
            return;
        };
        let own = (0..NICS).find(|number| mac(*number) == nic.mac);
        let sent = sent(input, name.or(own).unwrap_or_default());
        let healthy = self.is_up(&id, nic);
        if !self.send(&id, &sent.bytes) {
            return;
        }
        let got = self.run();
        let told = self.out_of_the_wire(nic.vni, &sent.bytes);
        let why = |to: &dyn std::fmt::Display| format!("{id} sent {} to {to}", sent.says());

        let owns = nic.bypass_filtering
            || sent.src == nic.mac && (!nic.anti_spoof || nic.ips.contains(&sent.from));
        // By the sender's rules; ARP needs none.
        let goes = |lab: &Lab| {
            let by_rule = sent.talk.is_none_or(|talk| {
                leaves(&config, nic, &sent, talk) || lab.answers(&config, sent.flow(nic.vni, talk))
            });
            healthy && !nic.link_down && owns && by_rule
        };
        if nic.bypass_filtering && sent.src != nic.mac {
            self.heard.insert((nic.vni, sent.src, id.clone()));
        }
        let mut reached = BTreeSet::new();
        let alone = got.len() == 1;
        for (to, frame) in got {
            let target = &config.nics[&to];
            if to == id && sent.reset.as_ref() == Some(&frame) {
                let passes = sent
                    .talk
                    .is_some_and(|talk| leaves(&config, nic, &sent, talk));
                let enters = enters(&config, nic.vni, &sent);
                assert!(goes(self) && passes && enters, "a reset: {}", why(&to));
                assert!(
                    alone && told.is_empty(),
                    "a reset, beside others: {}",
                    why(&to)
                );
                continue;
            }
            if to == id {
                answered(&config, nic, &sent, &frame);
                continue;
            }
            assert_eq!(frame, sent.bytes, "{to}: another frame than was sent");
            assert!(reached.insert(to.clone()), "twice: {}", why(&to));
            assert_eq!(target.vni, nic.vni, "another network: {}", why(&to));
            assert!(goes(self) && self.is_up(&to, target), "{}", why(&to));
            assert!(self.is_for(&to, target, sent.dst), "{}", why(&to));
            if let Some(talk) = sent.talk {
                let lets = allows(&config, target, Direction::Ingress, sent.from, talk);
                let flow = sent.flow(nic.vni, talk);
                assert!(lets || self.answers(&config, flow), "{}", why(&to));
            }
        }
        self.reaches_hosts(&config, nic, &sent, &told, goes(self), &why);

        // What depends on no flow is there.
        let begins = sent.talk.filter(|talk| talk.needs_no_flow());
        let target = config.nics.iter();
        let target = target
            .filter(|(_, other)| other.vni == nic.vni && other.mac == sent.dst)
            .find(|(other, _)| **other != id);
        if let (Some(talk), Some((to, target))) = (begins, target) {
            let enters = allows(&config, target, Direction::Ingress, sent.from, talk);
            let up = healthy && self.is_up(to, target) && !nic.link_down;
            let passes = up && owns && leaves(&config, nic, &sent, talk) && enters;
            assert!(!passes || reached.contains(to), "not there: {}", why(to));
        }
        // What goes to all other hosts has begun, also while there are none.
        let key = (nic.vni, sent.dst);
        let is_here = config.nics.values().any(|one| (one.vni, one.mac) == key);
        let is_unknown = !is_here && !config.bindings.contains_key(&key);
        let to_all_hosts = goes(self) && is_unknown && learns(&config, nic.vni);
        if let Some(talk) = sent.talk
            && (to_all_hosts
                || !reached.is_empty()
                || !told.is_empty()
                || goes(self) && is_let_in(&config, nic.vni, &sent, talk))
        {
            self.flows.insert(sent.flow(nic.vni, talk));
        }
    }

    /// What went to the wire, by the hosts that it went to.
    fn reaches_hosts(
        &self,
        config: &Config,
        nic: &Nic,
        sent: &Sent,
        told: &[IpAddr],
        goes: bool,
        why: &dyn Fn(&dyn std::fmt::Display) -> String,
    ) {
        let local = config.nics.values();
        let local = local
            .filter(|other| other.vni == nic.vni)
            .any(|other| other.mac == sent.dst);
        let bound = config.bindings.get(&(nic.vni, sent.dst));
        for host in told {
            assert!(goes && !local, "{}", why(host));
            if let Some(bound) = bound {
                assert_eq!(*host, bound.host, "{}", why(host));
                continue;
            }
            let known = hosts_of(config, nic.vni).contains(host);
            let anybody = accepts_anybody(config, nic.vni) || learns(config, nic.vni);
            let flood = host.is_multicast() && accepts_anybody(config, nic.vni);
            assert!(known || flood || anybody, "{}", why(host));
            let unknown = sent.dst.is_multicast() || learns(config, nic.vni);
            assert!(unknown, "a MAC that nobody has: {}", why(host));
        }
        let mut heard = self.heard.iter();
        let here = local || heard.any(|(vni, mac, _)| (*vni, *mac) == (nic.vni, sent.dst));
        let begins = sent.talk.filter(|talk| talk.needs_no_flow());
        if let (Some(talk), Some(bound), false) = (begins, bound, here) {
            let passes = goes && leaves(config, nic, sent, talk);
            assert!(
                !passes || told == [bound.host],
                "not on the wire: {}",
                why(&bound.host)
            );
        }
    }

    fn send(&mut self, id: &NicId, bytes: &[u8]) -> bool {
        let slot = self.client.control().nic(id).expect("it is there").slot;
        match self.shared.lock().sides.get_mut(&slot.0) {
            None => false,
            Some(Side::Memory(peer)) => {
                peer.send(bytes.to_vec(), Offload::default());
                true
            }
            Some(Side::Ring(guest)) => {
                guest.reclaim();
                let sent = guest.send(bytes, Offload::default(), &Shape::whole());
                if sent {
                    guest.transmitq.publish();
                    guest.transmitq.notify();
                }
                sent
            }
        }
    }

    /// Lets the data plane come to rest; what was delivered to whom.
    fn run(&mut self) -> Vec<(NicId, Vec<u8>)> {
        let (mut got, broken) = {
            let mut world = self.shared.lock();
            // Long enough for NICs not to be new for long: those are sent no resets.
            world.sim.advance(Duration::from_secs(1));
            let broken = std::mem::take(&mut *lock(&world.broken));
            let mut got: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
            for (slot, side) in &mut world.sides {
                let all = got.entry(*slot).or_default();
                match side {
                    Side::Memory(peer) => {
                        all.extend(std::iter::from_fn(|| peer.receive()).map(|(frame, _)| frame));
                    }
                    Side::Ring(guest) => {
                        all.extend(guest.receive().into_iter().map(|received| received.frame));
                        guest.receiveq.publish();
                    }
                }
            }
            (got, broken)
        };
        for (slot, why) in broken {
            self.client
                .control()
                .port_state(slot, NicState::Broken(why));
        }
        let mut named = Vec::new();
        for nic in self.client.control().nics() {
            let frames = got.remove(&nic.slot.0).unwrap_or_default();
            named.extend(frames.into_iter().map(|frame| (nic.nic.id.clone(), frame)));
        }
        assert!(
            got.values().all(Vec::is_empty),
            "a frame for a NIC that is gone"
        );
        named
    }

    /// What has come to the wire in this network: the hosts that it is for. It is `sent` alone.
    fn out_of_the_wire(&self, vni: Vni, sent: &[u8]) -> Vec<IpAddr> {
        let mut hosts = Vec::new();
        while let Some((frame, _)) = self.wire.receive() {
            let outer = vxlan::parse(&frame, frame.len(), vxlan::PORT).expect("VXLAN");
            assert_eq!((outer.src, outer.vni), (HERE.into(), vni));
            let inner = &frame[usize::from(outer.inner)..outer.end as usize];
            assert_eq!(inner, sent, "another frame on the wire than was sent");
            hosts.push(outer.dst);
        }
        hosts
    }

    fn is_for(&self, id: &NicId, nic: &Nic, dst: Mac) -> bool {
        let heard = (nic.vni, dst, id.clone());
        nic.mac == dst || dst.is_multicast() || self.heard.contains(&heard)
    }

    fn is_up(&self, id: &NicId, nic: &Nic) -> bool {
        let status = self.client.control().nic(id).expect("it is there");
        !nic.link_down && !matches!(status.state, NicState::Broken(_))
    }

    /// True when a frame of this flow answers one that was let pass and still would be.
    fn answers(&self, config: &Config, flow: Flow) -> bool {
        let mut begun = flow;
        (begun.from, begun.to) = (flow.to, flow.from);
        begun.talk.ports.reverse();
        if let protocol::ICMP | protocol::ICMPV6 = flow.talk.protocol {
            begun.talk.reply = false;
        }
        if !self.flows.contains(&begun) {
            return false;
        }
        let leaves = nic_of(config, flow.vni, begun.from).is_none_or(|nic| {
            let own = nic.ips.contains(&begun.from);
            egress(config, nic, own, begun.to, begun.talk)
        });
        let enters = nic_of(config, flow.vni, begun.to)
            .is_none_or(|nic| allows(config, nic, Direction::Ingress, begun.from, begun.talk));
        leaves && enters
    }

    /// Flows of NICs that are not there any more, or elsewhere.
    fn forget_flows(&mut self) {
        let config = self.client.control().config();
        let here = |vni, ip| nic_of(&config, vni, ip).is_some();
        let ours = |ip| (0..NICS).any(|number| mac(number) == mac_of(ip));
        self.flows.retain(|flow| {
            let ends = [flow.from, flow.to];
            ends.iter().any(|ip| here(flow.vni, *ip))
                && ends.iter().all(|ip| !ours(*ip) || here(flow.vni, *ip))
        });
    }
}

/// The NIC of the machine that has an address, whether the NIC has it or not.
fn nic_of(config: &Config, vni: Vni, ip: IpAddr) -> Option<&Nic> {
    let mut all = config.nics.values();
    all.find(|nic| nic.vni == vni && nic.mac == mac_of(ip))
}

fn mac_of(ip: IpAddr) -> Mac {
    let last = match ip {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    mac(last)
}

fn nic_id(number: u8) -> NicId {
    NicId::new(&format!("nic{number}")).expect("an id")
}

/// One that there is, or the one more that never is.
fn group_id(number: u8) -> GroupId {
    GroupId::new(&format!("group{number}")).expect("an id")
}

fn machine(input: &mut Input<'_>) -> u8 {
    input.u8() % MACHINES
}

fn host(input: &mut Input<'_>, of: u8) -> Ipv4Addr {
    HOSTS[usize::from(input.u8() % of)]
}

fn vni(input: &mut Input<'_>) -> Vni {
    number_of(input.u8() % VNIS)
}

fn number_of(network: u8) -> Vni {
    Vni::new(u32::from(network) + 7).expect("a VNI")
}

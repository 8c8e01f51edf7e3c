//! Target `whole`: guests, hosts on the wire and a client of the API, all at once, on a controller
//! with its data plane.
//!
//! After every step a model says what may cross. It is made of the declared configuration alone and
//! of the flows that have been let pass; what it says is the contract (docs/security-groups.md,
//! docs/security.md), said once more and simply.
//!
//! Promises: a frame is delivered, unchanged and once, to whom the model lets it, and to nobody
//! else; what needs no flow to be there (UDP, echo requests) is delivered where the model lets it;
//! what goes to the wire goes to hosts of its network, and comes from a NIC; what the switch says
//! itself are answers for machines on other hosts, to who has asked, and resets of connections that
//! are not known, to who could have them. A guest that breaks the
//! protocol of its ring is out alone, and back when the same configuration is applied.
//!
//! Input: steps, each a byte and what the step takes: see [`Lab::step`]. Every frame is alone: the
//! data plane comes to rest before the next step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use control::model::{
    Binding, Config, Direction, Group, GroupId, Host, Membership, NetworkOptions, Nic, NicId, Peer,
    Ports, Rule, RuleMatch,
};
use control::{
    AttachError, Attachments, Controller, DataPlane, DataPlaneError, HostSettings, NicState,
    OpenRequest,
};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::{PortSlot, PortUid, RuleSlot, Simulation, Snapshot, WorkerConfig};
use io::memory_port::MemoryPeer;
use io::trace::Trace;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use wire::offload::Offload;
use wire::parse::{self, Net, TcpFlags, protocol};
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni, build, checksum};

use crate::fixture::{self, HERE, HERE_MAC, ROUTER_MAC, mac, v4};
use crate::input::Input;
use crate::witness::PLAIN;

const STEPS_MAX: usize = 48;
/// NICs that there may be; machine `n` has the MAC `mac(n)` and the address `v4(n)`, and so has NIC
/// `n`. Machines behind it are on other hosts, if anywhere.
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

/// A guest's end.
enum Side {
    Memory(MemoryPeer),
    Ring(Box<Guest>),
}

/// The data plane and what is attached to it.
struct World {
    sim: Simulation,
    /// By slot.
    sides: BTreeMap<u32, Side>,
    broken: Broken,
}

type Broken = Arc<Mutex<Vec<(PortSlot, String)>>>;

#[derive(Clone)]
struct Shared(Arc<Mutex<World>>);

/// One frame's protocol and ports; of an echo request its number in both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Talk {
    protocol: u8,
    ports: [u16; 2],
    /// An echo reply, which is no beginning of anything.
    reply: bool,
}

/// A flow that has been let pass, by who began it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Flow {
    vni: Vni,
    from: Ipv4Addr,
    to: Ipv4Addr,
    talk: Talk,
}

/// A frame as its sender has made it.
struct Sent {
    bytes: Vec<u8>,
    /// What answers it where it is amid an unknown connection.
    reset: Option<Vec<u8>>,
    src: Mac,
    dst: Mac,
    from: Ipv4Addr,
    to: Ipv4Addr,
    /// `None`: an ARP request.
    talk: Option<Talk>,
}

struct Lab {
    control: Controller,
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
        let mut sim = Simulation::new(WorkerConfig {
            max_flows: 1024,
            max_fragments: 16,
            max_learned_macs: 16,
            seed: 1,
            on_broken: Box::new(move |slot, why| lock(&told).push((slot, why))),
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
        Lab {
            control: Controller::new(settings, attachments, Arc::new(shared.clone())),
            shared,
            wire,
            flows: BTreeSet::new(),
            heard: BTreeSet::new(),
        }
    }

    /// The client's steps, then the hosts', then the guests'.
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 32 {
            0..=3 => self.put_nic(input),
            4 => drop(self.control.delete_nic(&nic_id(input.u8() % NICS))),
            5 | 6 => self.put_group(input),
            7 => drop(self.control.delete_group(&group_id(input.u8() % GROUPS))),
            8 => {
                let (group, machine) = (group_id(input.u8() % GROUPS), machine(input));
                drop(self.control.add_member(&group, v4(machine).into()));
            }
            9 => {
                let (group, machine) = (group_id(input.u8() % GROUPS), machine(input));
                drop(self.control.delete_member(&group, v4(machine).into()));
            }
            10 => self.put_host(input),
            11 => drop(self.control.delete_host(host(input, 2).into(), true)),
            12 => self.put_binding(input),
            13 => {
                let key = (vni(input), mac(machine(input)));
                drop(self.control.delete_bindings(&[key]));
            }
            14 => {
                let (vni, choice) = (vni(input), input.u8());
                let options = NetworkOptions {
                    from_anybody: (choice & 1 != 0).then_some(true),
                    learning: [None, Some(false), Some(true), None][usize::from(choice >> 1 & 3)],
                    ..NetworkOptions::new(vni)
                };
                drop(self.control.put_network(options));
            }
            15 => self.apply_again(),
            16 => self.lie(input),
            17..=21 => self.arrive(input),
            _ => self.leave(input),
        }
        self.forget_flows();
    }

    fn put_nic(&mut self, input: &mut Input<'_>) {
        let (number, choice, groups) = (input.u8() % NICS, input.u8(), input.u8());
        let groups = (0..GROUPS).filter(|group| groups >> group & 1 != 0);
        let nic = Nic {
            ips: vec![v4(number).into()],
            security_groups: groups.map(group_id).collect(),
            anti_spoof: choice & 2 == 0,
            bypass_filtering: choice & 0x1c == 0x1c,
            link_down: choice & 0x60 == 0x60,
            ..Nic::new(nic_id(number), mac(number), number_of(choice & 1))
        };
        drop(self.control.put_nic(nic));
    }

    fn put_group(&mut self, input: &mut Input<'_>) {
        let mut group = Group::new(group_id(input.u8() % GROUPS));
        for _ in 0..input.u8() % 5 {
            let (choice, peer) = (input.u8(), input.u8());
            let direction = match choice & 1 {
                0 => Direction::Ingress,
                _ => Direction::Egress,
            };
            let port = |port| {
                RuleMatch::Ports(Ports {
                    start: port,
                    end: port,
                })
            };
            let (protocol, matching) = match choice >> 1 & 7 {
                0 => (None, RuleMatch::Any),
                1 | 2 => (Some(protocol::TCP), port(80)),
                3 | 4 => (Some(protocol::UDP), port(53)),
                5 => (Some(protocol::UDP), RuleMatch::Any),
                _ => (Some(protocol::ICMP), RuleMatch::Any),
            };
            let peer = match peer & 3 {
                0 | 1 => Peer::Any,
                2 => Peer::Group(group_id(peer >> 2 & 3)),
                _ => Peer::Net(IpAddr::from(v4(peer >> 2 & 7)).into()),
            };
            let rule = Rule::new(direction, protocol, matching, peer);
            group.rules.push_back(rule.expect("a rule that can match"));
        }
        drop(self.control.put_group(group));
    }

    fn put_host(&mut self, input: &mut Input<'_>) {
        let (address, choice) = (host(input, 2), input.u8());
        let listed = (0..VNIS).filter(|number| choice >> number & 1 != 0);
        let vnis = match choice & 0xf0 {
            0xf0 => Membership::Every,
            _ => Membership::Listed(listed.map(number_of).collect()),
        };
        drop(self.control.put_host(Host {
            vnis,
            ..Host::new(address.into())
        }));
    }

    fn put_binding(&mut self, input: &mut Input<'_>) {
        let (vni, machine, host) = (vni(input), machine(input), host(input, 2));
        let ips = [v4(machine).into()];
        let binding = Binding {
            ips: ips[..usize::from(input.u8() & 3 != 0)].into(),
            ..Binding::new(vni, mac(machine), host.into())
        };
        drop(self.control.put_bindings(vec![binding]));
    }

    /// Applies the configuration that is in force: nothing changes, and what is broken is healed.
    fn apply_again(&mut self) {
        let config = self.control.config();
        let diff = self.control.apply(config, false);
        let diff = diff.expect("a configuration that is in force");
        assert!(diff.is_empty(), "{diff:?}");
        for healed in self.control.heal(&diff, false) {
            assert_eq!(healed.state, NicState::Up, "{healed:?}");
        }
    }

    /// A guest whose ring says what cannot be.
    fn lie(&mut self, input: &mut Input<'_>) {
        let id = nic_id(input.u8() % NICS);
        let how = input.u8();
        let Ok(status) = self.control.nic(&id) else {
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
        let state = self.control.nic(&id).expect("it is there").state;
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

        let config = self.control.config();
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
        let config = self.control.config();
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
            || sent.src == nic.mac && (!nic.anti_spoof || nic.ips.contains(&sent.from.into()));
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
            let unknown = sent.dst == Mac::BROADCAST || learns(config, nic.vni);
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
        let slot = self.control.nic(id).expect("it is there").slot;
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
            self.control.port_state(slot, NicState::Broken(why));
        }
        let mut named = Vec::new();
        for nic in self.control.nics() {
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
        nic.mac == dst || dst == Mac::BROADCAST || self.heard.contains(&heard)
    }

    fn is_up(&self, id: &NicId, nic: &Nic) -> bool {
        let status = self.control.nic(id).expect("it is there");
        !nic.link_down && !matches!(status.state, NicState::Broken(_))
    }

    /// True when a frame of this flow answers one that was let pass and still would be.
    fn answers(&self, config: &Config, flow: Flow) -> bool {
        let mut begun = flow;
        (begun.from, begun.to) = (flow.to, flow.from);
        begun.talk.ports.reverse();
        if flow.talk.protocol == protocol::ICMP {
            begun.talk.reply = false;
        }
        if !self.flows.contains(&begun) {
            return false;
        }
        let of = |ip: Ipv4Addr| {
            let mut all = config.nics.values();
            all.find(|nic| nic.vni == flow.vni && nic.ips.contains(&ip.into()))
        };
        let leaves = of(begun.from).is_none_or(|nic| {
            let own = nic.ips.contains(&begun.from.into());
            egress(config, nic, own, begun.to, begun.talk)
        });
        let enters = of(begun.to)
            .is_none_or(|nic| allows(config, nic, Direction::Ingress, begun.from, begun.talk));
        leaves && enters
    }

    /// Flows of NICs that are not there any more, or elsewhere.
    fn forget_flows(&mut self) {
        let config = self.control.config();
        let here = |vni: Vni, ip: Ipv4Addr| {
            let mut all = config.nics.values();
            all.any(|nic| nic.vni == vni && nic.ips.contains(&ip.into()))
        };
        let ours = |ip: Ipv4Addr| (0..NICS).any(|number| v4(number) == ip);
        self.flows.retain(|flow| {
            let ends = [flow.from, flow.to];
            ends.iter().any(|ip| here(flow.vni, *ip))
                && ends.iter().all(|ip| !ours(*ip) || here(flow.vni, *ip))
        });
    }
}

/// Whether a frame is for a NIC whose rules let it in. Then it has begun, also where the NIC is
/// broken or down and is not reached.
fn is_let_in(config: &Config, vni: Vni, sent: &Sent, talk: Talk) -> bool {
    let mut nics = config.nics.values();
    nics.any(|nic| {
        nic.vni == vni
            && nic.mac == sent.dst
            && allows(config, nic, Direction::Ingress, sent.from, talk)
    })
}

impl Talk {
    fn needs_no_flow(self) -> bool {
        self.protocol == protocol::UDP || self.protocol == protocol::ICMP && !self.reply
    }
}

impl Sent {
    fn flow(&self, vni: Vni, talk: Talk) -> Flow {
        Flow {
            vni,
            from: self.from,
            to: self.to,
            talk,
        }
    }

    fn says(&self) -> String {
        let Sent {
            src,
            dst,
            from,
            to,
            talk,
            ..
        } = self;
        format!("{src} > {dst}, {from} > {to}, {talk:?}")
    }
}

/// A frame in the name of a machine, to another one or to all.
fn sent(input: &mut Input<'_>, name: u8) -> Sent {
    let (to, choice) = (machine(input), input.u8());
    // Its address is another one's now and then.
    let claimed = match input.u8() {
        0..=223 => name,
        other => other % MACHINES,
    };
    let (src, from, target) = (mac(name), v4(claimed), v4(to));
    let port = |choice: u8| [53, 80, 99, 1000][usize::from(choice & 3)];
    let ports = [port(choice >> 2), port(choice >> 4)];
    let ip = |dst| build::frame(src, dst).ip(from, target);
    let talk = |protocol, ports, reply| {
        Some(Talk {
            protocol,
            ports,
            reply,
        })
    };
    let (dst, bytes, talk) = match choice & 3 {
        0 => {
            let bytes = build::arp_request(src, from, target);
            (Mac::BROADCAST, bytes, None)
        }
        1 => {
            let flags = match choice & 0x80 {
                0 => TcpFlags::SYN,
                _ => TcpFlags::ACK,
            };
            let tcp = ip(mac(to)).tcp(ports[0], ports[1], flags);
            (mac(to), tcp.build(), talk(protocol::TCP, ports, false))
        }
        2 => {
            let udp = ip(mac(to)).udp(ports[0], ports[1]).payload(b"whole");
            (mac(to), udp.build(), talk(protocol::UDP, ports, false))
        }
        _ => {
            let (number, reply) = (ports[0], choice & 0x80 != 0);
            let echo = match reply {
                false => ip(mac(to)).echo_request(number, 1),
                true => ip(mac(to)).echo_reply(number, 1),
            };
            let talk = talk(protocol::ICMP, [number; 2], reply);
            (mac(to), echo.build(), talk)
        }
    };
    let is_amid = talk.is_some_and(|talk| talk.protocol == protocol::TCP) && choice & 0x80 != 0;
    let reset = is_amid.then(|| {
        let back = build::frame(dst, src).ip(target, from).dont_fragment();
        back.tcp(ports[1], ports[0], TcpFlags::RST)
            .window(0)
            .build()
    });
    Sent {
        bytes,
        reset,
        src,
        dst,
        from,
        to: target,
        talk,
    }
}

/// Whoever has the frame's destination on this host would let it in; who is on another one asks its
/// own rules.
fn enters(config: &Config, vni: Vni, sent: &Sent) -> bool {
    let Some(talk) = sent.talk else { return false };
    let here = config.nics.values();
    let mut here = here.filter(|nic| nic.vni == vni && nic.mac == sent.dst);
    here.all(|nic| allows(config, nic, Direction::Ingress, sent.from, talk))
}

/// What the switch itself says to a NIC: an answer, for a machine that is bound.
fn answered(config: &Config, nic: &Nic, sent: &Sent, frame: &[u8]) {
    let packet = parse::parse(frame, frame.len()).expect("a frame that parses");
    let Net::Arp(arp) = packet.net else {
        panic!("back to its sender: {}", sent.says());
    };
    assert!(
        sent.talk.is_none() && arp.op == 2,
        "an answer without a question"
    );
    assert_eq!(arp.sender_ip, sent.to, "an answer to another question");
    let bound = config.bindings.get(&(nic.vni, arp.sender_mac));
    let has = bound.is_some_and(|bound| bound.ips.contains(&arp.sender_ip.into()));
    assert!(has, "an answer for nobody: {arp:?}");
}

/// Whether a frame is taken from a host: by who it is, and in whose name.
fn is_taken(config: &Config, host: IpAddr, vni: Vni, sent: &Sent) -> bool {
    if !accepts_anybody(config, vni) && !hosts_of(config, vni).contains(&host) {
        return false;
    }
    let mut here = config.nics.values().filter(|nic| nic.vni == vni);
    if here.any(|nic| nic.mac == sent.src || nic.ips.contains(&sent.from.into())) {
        return false;
    }
    let by_mac = match config.bindings.get(&(vni, sent.src)) {
        Some(bound) => bound.host == host,
        None => learns(config, vni),
    };
    let bound = config.bindings.values();
    let mut bound = bound
        .filter(|one| one.vni == vni && one.ips.contains(&sent.from.into()))
        .peekable();
    by_mac && (bound.peek().is_none() || bound.any(|one| one.host == host))
}

/// The hosts of a network: declared for it, for every one, or by what is bound to them.
fn hosts_of(config: &Config, vni: Vni) -> BTreeSet<IpAddr> {
    let declared = config.hosts.values().filter(|host| host.is_in(vni));
    let bound = config.bindings.values().filter(|one| one.vni == vni);
    let declared = declared.map(|host| host.address);
    declared.chain(bound.map(|one| one.host)).collect()
}

fn accepts_anybody(config: &Config, vni: Vni) -> bool {
    let said = config.networks.get(&vni).and_then(|said| said.from_anybody);
    // While nobody is known at all.
    said.unwrap_or(config.hosts.is_empty() && config.bindings.is_empty())
}

fn learns(config: &Config, vni: Vni) -> bool {
    let said = config.networks.get(&vni).and_then(|said| said.learning);
    said.unwrap_or(!config.bindings.values().any(|one| one.vni == vni))
}

/// The sender's rules.
fn leaves(config: &Config, nic: &Nic, sent: &Sent, talk: Talk) -> bool {
    let own = nic.ips.contains(&sent.from.into());
    egress(config, nic, own, sent.to, talk)
}

fn egress(config: &Config, nic: &Nic, own: bool, to: Ipv4Addr, talk: Talk) -> bool {
    let restricts = |id: &GroupId| {
        let group = config.groups.get(id);
        group.is_none_or(|group| {
            let mut rules = group.rules.iter();
            rules.any(|rule| rule.direction() == Direction::Egress)
        })
    };
    match nic.security_groups.iter().any(restricts) {
        false => nic.bypass_filtering || own,
        true => allows(config, nic, Direction::Egress, to, talk),
    }
}

/// Whether a rule of one of its groups lets that pass, with this address at the other end.
fn allows(config: &Config, nic: &Nic, direction: Direction, other: Ipv4Addr, talk: Talk) -> bool {
    let is_member = |id: &GroupId| {
        let Some(group) = config.groups.get(id) else {
            return false;
        };
        let of = |nic: &Nic| nic.security_groups.contains(id) && nic.ips.contains(&other.into());
        group.members.contains(&IpAddr::from(other)) || config.nics.values().any(of)
    };
    let lets = |rule: &Rule| {
        let peer = match rule.peer() {
            Peer::Any => true,
            Peer::Net(net) => net.contains(&IpAddr::from(other)),
            Peer::Group(id) => is_member(id),
        };
        let port = match rule.matching() {
            RuleMatch::Ports(Ports { start, end }) => (start..=end).contains(&talk.ports[1]),
            RuleMatch::Any | RuleMatch::Icmp(_) => true,
        };
        let protocol = rule.protocol().is_none_or(|one| one == talk.protocol);
        rule.direction() == direction && protocol && port && peer
    };
    let groups = nic.security_groups.iter();
    let mut groups = groups.filter_map(|id| config.groups.get(id));
    nic.bypass_filtering || groups.any(|group| group.rules.iter().any(lets))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic before this one")
}

impl World {
    /// Even NICs have a ring, odd ones do without.
    fn attach(&mut self, slot: PortSlot, nic: &Nic) {
        let side = match nic.mac.0[5] % 2 {
            0 => {
                let guest = Guest::new(GuestOptions {
                    features: PLAIN,
                    queue_size: 32,
                    memory_len: 256 << 10,
                    receive_shape: Shape::cut(&[2048]),
                    receive_chains: 32,
                    ..GuestOptions::default()
                });
                self.sim.attach_port(slot, guest.port().into());
                Side::Ring(Box::new(guest))
            }
            _ => Side::Memory(self.sim.attach(slot)),
        };
        self.sides.insert(slot.0, side);
    }
}

impl Attachments for Shared {
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let mut world = self.lock();
        assert!(!world.sides.contains_key(&request.slot.0), "a slot in use");
        world.attach(request.slot, request.nic);
        Ok(())
    }

    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]) {
        let mut world = self.lock();
        for (_, slot) in gone {
            assert!(world.sim.detach(*slot), "closed what is not open");
            world.sides.remove(&slot.0);
        }
    }

    fn heal(&mut self, requests: &[OpenRequest<'_>]) -> Vec<Option<NicState>> {
        let mut world = self.lock();
        let heal = requests.iter().map(|request| {
            world.attach(request.slot, request.nic);
            Some(NicState::Up)
        });
        heal.collect()
    }

    fn trace(&mut self, _: &Nic, _: &str) -> Result<Option<Trace>, AttachError> {
        Ok(None)
    }
}

impl DataPlane for Shared {
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        self.lock().sim.publish(Snapshot::clone(&snapshot));
        Ok(())
    }

    fn port_counters(&self, slot: PortSlot) -> PortCounters {
        self.lock().sim.port(slot)
    }

    fn rule_counters(&self, slot: RuleSlot) -> RuleCounters {
        self.lock().sim.rule(slot)
    }

    fn flows(&self, port: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError> {
        Ok(self
            .lock()
            .sim
            .ask(move |switch| switch.flows(port).unwrap_or_default()))
    }

    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError> {
        Ok(self.lock().sim.import_flows(flows))
    }

    fn remove_flows(&self, flows: &[FlowInfo]) -> Result<usize, DataPlaneError> {
        Ok(self.lock().sim.remove_flows(flows))
    }
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

//! Connection tracking against a model that is obviously right: a list of flows, searched from the
//! start.
//!
//! Random packets of three NICs, random waits and random changes of rules run through the switch
//! and through the model; both have to agree on every single frame: delivered, or dropped for which
//! reason. However many workers there are: each NIC is another one's then.

use std::time::Duration;

use dataplane::ruleset::RuleSpec;
use dataplane::{DropReason, MOVE_SECS, Simulation};
use proptest::prelude::*;
use wire::build::Builder;
use wire::parse::TcpFlags;

use crate::lab::*;

const NICS: usize = 3;

/// One step of a session.
#[derive(Clone, Debug)]
enum Step {
    Send(Packet),
    Wait(u64),
    /// NIC `n` is in a group with these rules from now on, which drains or cuts.
    Rules(usize, Vec<RuleSpec>, bool),
    /// The group of NIC `n` is deleted; the NIC goes on naming it.
    Delete(usize),
    Addresses(usize, bool),
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Packet {
    from: usize,
    to: usize,
    v6: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Udp(u16, u16),
    Tcp(u16, u16, u8),
    EchoRequest(u16),
    EchoReply(u16),
    Other(u8),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    SynSent,
    SynSent2,
    SynRecv,
    Established,
    FinWait,
    CloseWait,
    LastAck,
    TimeWait,
    Close,
    OneWay,
    Stream,
}

/// A flow, by its first packet.
#[derive(Clone, Debug)]
struct Flow {
    first: Packet,
    state: State,
    last: u64,
    drain: [bool; 2],
}

#[derive(Clone, Default)]
struct Side {
    rules: Vec<RuleSpec>,
    drain: bool,
    /// Its group does not exist.
    missing: bool,
    without_address: bool,
}

#[derive(Default)]
struct Model {
    now: u64,
    sides: [Side; NICS],
    flows: Vec<Flow>,
}

impl Packet {
    fn is_reply_of(&self, first: &Packet) -> bool {
        let reversed = match first.kind {
            Kind::Udp(s, d) => matches!(self.kind, Kind::Udp(a, b) if (a, b) == (d, s)),
            Kind::Tcp(s, d, _) => matches!(self.kind, Kind::Tcp(a, b, _) if (a, b) == (d, s)),
            Kind::EchoRequest(id) => self.kind == Kind::EchoReply(id),
            Kind::EchoReply(_) => false,
            Kind::Other(n) => self.kind == Kind::Other(n),
        };
        reversed && (self.from, self.to, self.v6) == (first.to, first.from, first.v6)
    }

    fn is_more_of(&self, first: &Packet) -> bool {
        let same = match (first.kind, self.kind) {
            (Kind::Tcp(s, d, _), Kind::Tcp(a, b, _)) => (a, b) == (s, d),
            (a, b) => a == b && !matches!(a, Kind::EchoReply(_)),
        };
        same && (self.from, self.to, self.v6) == (first.from, first.to, first.v6)
    }

    fn protocol(&self) -> u8 {
        match self.kind {
            Kind::Udp(..) => UDP,
            Kind::Tcp(..) => TCP,
            Kind::EchoRequest(_) | Kind::EchoReply(_) if self.v6 => 58,
            Kind::EchoRequest(_) | Kind::EchoReply(_) => ICMP,
            Kind::Other(n) => n,
        }
    }

    fn selector(&self) -> Option<u16> {
        match self.kind {
            Kind::Udp(_, d) | Kind::Tcp(_, d, _) => Some(d),
            Kind::EchoRequest(_) => Some(if self.v6 { 128 << 8 } else { 8 << 8 }),
            Kind::EchoReply(_) => Some(if self.v6 { 129 << 8 } else { 0 }),
            Kind::Other(_) => None,
        }
    }
}

impl Side {
    fn allows(&self, out: bool, packet: &Packet) -> bool {
        self.rules.iter().any(|rule| {
            let protocol = match rule.protocol {
                None => true,
                Some(ICMP) if packet.v6 => packet.protocol() == 58,
                Some(protocol) => protocol == packet.protocol(),
            };
            let all = rule.selector == (0..=u16::MAX);
            let selector = all
                || packet
                    .selector()
                    .is_some_and(|s| rule.selector.contains(&s));
            (rule.direction == dataplane::ruleset::Direction::Egress) == out && protocol && selector
        })
    }

    fn is_open(&self, out: bool) -> bool {
        let any = |rule: &RuleSpec| {
            let egress = rule.direction == dataplane::ruleset::Direction::Egress;
            egress == out && rule.protocol.is_none() && rule.selector == (0..=u16::MAX)
        };
        (self.rules.iter().any(any) && !self.drain) || (out && !self.needs_egress())
    }

    fn needs_egress(&self) -> bool {
        let egress = |rule: &RuleSpec| rule.direction == dataplane::ruleset::Direction::Egress;
        self.missing || self.rules.iter().any(egress)
    }
}

impl Model {
    /// What becomes of a packet: `None` is delivery.
    fn send(&mut self, packet: Packet) -> Option<DropReason> {
        let (from, to) = (&self.sides[packet.from], &self.sides[packet.to]);
        if from.without_address {
            return Some(DropReason::IpSpoofed);
        }
        if from.is_open(true) && to.is_open(false) && to.is_open(true) && from.is_open(false) {
            return None;
        }
        self.flows
            .retain(|flow| self.now - flow.last < timeout(flow));
        let mut known = self.find(&packet);
        if let Some(at) = known {
            // Every packet decides again: that is what the epochs have to come to.
            let first = self.flows[at].first;
            let granted = [self.egress(&first), self.ingress(&first)];
            let flow = &mut self.flows[at];
            if (granted[0] || flow.drain[0]) && (granted[1] || flow.drain[1]) {
                let groups = [first.from, first.to];
                for (side, granted) in granted.into_iter().enumerate() {
                    if granted {
                        let group = &self.sides[groups[side]];
                        let by_rule = side == 1 || group.needs_egress();
                        flow.drain[side] = by_rule && group.drain;
                    }
                }
            } else {
                let begins = matches!(packet.kind, Kind::Tcp(_, _, flags) if flags & SYN.0 != 0);
                let is_tcp = matches!(packet.kind, Kind::Tcp(..));
                let [from, to] = [packet.from, packet.to].map(|nic| self.sides[nic].missing);
                // It waits for the group.
                if is_tcp && !begins && (from || to) {
                    return Some(match from {
                        true => DropReason::NoEgressRule,
                        false => DropReason::NoIngressRule,
                    });
                }
                self.flows.remove(at);
                known = None;
            }
        }
        if let Some(at) = known {
            match follow(&self.flows[at], &packet) {
                Ok(Some(state)) => {
                    let flow = &mut self.flows[at];
                    (flow.state, flow.last) = (state, self.now);
                    return None;
                }
                Err(reason) => return Some(reason),
                Ok(None) => drop(self.flows.remove(at)),
            }
        }
        if !self.egress(&packet) {
            return Some(DropReason::NoEgressRule);
        }
        if !self.ingress(&packet) {
            return Some(DropReason::NoIngressRule);
        }
        let state = match packet.kind {
            Kind::EchoReply(_) => return None,
            Kind::Tcp(_, _, flags) if !valid(flags) => return Some(DropReason::TcpBadFlags),
            Kind::Tcp(_, _, flags) if flags != SYN.0 => return Some(DropReason::TcpNotSyn),
            Kind::Tcp(..) => State::SynSent,
            _ => State::OneWay,
        };
        let (from, to) = (&self.sides[packet.from], &self.sides[packet.to]);
        self.flows.push(Flow {
            first: packet,
            state,
            last: self.now,
            drain: [from.drain && from.needs_egress(), to.drain],
        });
        None
    }

    fn find(&self, packet: &Packet) -> Option<usize> {
        self.flows
            .iter()
            .position(|flow| packet.is_more_of(&flow.first) || packet.is_reply_of(&flow.first))
    }

    fn egress(&self, packet: &Packet) -> bool {
        let side = &self.sides[packet.from];
        (!side.needs_egress() && !side.without_address) || side.allows(true, packet)
    }

    fn ingress(&self, packet: &Packet) -> bool {
        self.sides[packet.to].allows(false, packet)
    }
}

/// The state after a packet; `Ok(None)`: the flow is over and this is a new one.
fn follow(flow: &Flow, packet: &Packet) -> Result<Option<State>, DropReason> {
    use State::*;
    let out = packet.is_more_of(&flow.first);
    let Kind::Tcp(_, _, flags) = packet.kind else {
        let state = if out { flow.state } else { Stream };
        return Ok(Some(state));
    };
    if !valid(flags) {
        return Err(DropReason::TcpBadFlags);
    }
    let flags = TcpFlags(flags);
    let (syn, ack, fin) = (
        flags.contains(SYN),
        flags.contains(ACK),
        flags.contains(TcpFlags::FIN),
    );
    let state = flow.state;
    if flags.contains(RST) {
        // All resets of these sessions are in the window.
        return Ok(Some(Close));
    }
    let next = if syn && !ack {
        match state {
            TimeWait | Close => return Ok(None),
            SynSent if !out => SynSent2,
            SynSent | SynSent2 => state,
            _ if out => state,
            _ => return Err(DropReason::TcpBadState),
        }
    } else if syn {
        match (state, out) {
            (SynSent | SynSent2, false) | (SynSent2 | SynRecv, true) => SynRecv,
            (_, false) => state,
            (_, true) => return Err(DropReason::TcpBadState),
        }
    } else if fin {
        match state {
            SynSent | SynSent2 => return Err(DropReason::TcpBadState),
            SynRecv | Established => FinWait,
            FinWait | CloseWait | LastAck => LastAck,
            over => over,
        }
    } else {
        match (state, out) {
            (SynSent | SynSent2, true) => return Err(DropReason::TcpBadState),
            (SynRecv, true) => Established,
            (FinWait, _) => CloseWait,
            (LastAck, _) => TimeWait,
            (state, _) => state,
        }
    };
    Ok(Some(next))
}

fn valid(flags: u8) -> bool {
    [0x02, 0x12, 0x04, 0x14, 0x11, 0x10].contains(&flags)
}

fn timeout(flow: &Flow) -> u64 {
    use State::*;
    match (flow.first.kind, flow.state) {
        (Kind::Tcp(..), Established) => 432_000,
        (Kind::Tcp(..), SynSent | SynSent2 | FinWait | TimeWait) => 120,
        (Kind::Tcp(..), SynRecv | CloseWait) => 60,
        (Kind::Tcp(..), LastAck) => 30,
        (Kind::Tcp(..), _) => 10,
        (Kind::Udp(..), OneWay) => 30,
        (Kind::Udp(..), _) => 180,
        (Kind::Other(_), _) => 600,
        _ => 30,
    }
}

/// What answers a packet that is dropped amid an unknown connection.
fn reset(packet: &Packet, nics: &[Nic]) -> Option<Vec<u8>> {
    let family = if packet.v6 { Family::V6 } else { Family::V4 };
    match packet.kind {
        Kind::Tcp(s, d, 0x10 | 0x11) => {
            let start = ip(nics[packet.to], nics[packet.from], family).dont_fragment();
            Some(start.tcp(d, s, RST).seq(1001).window(0).build())
        }
        _ => None,
    }
}

fn frame(packet: &Packet, nics: &[Nic]) -> Vec<u8> {
    let family = if packet.v6 { Family::V6 } else { Family::V4 };
    let start: Builder = ip(nics[packet.from], nics[packet.to], family);
    match packet.kind {
        Kind::Udp(s, d) => start.udp(s, d).build(),
        // Sequence numbers stand still: a SYN or FIN counts one, and all resets are in the window.
        Kind::Tcp(s, d, flags) => {
            let seq = if flags & 2 != 0 { 1000 } else { 1001 };
            start.tcp(s, d, TcpFlags(flags)).seq(seq).ack(1001).build()
        }
        Kind::EchoRequest(id) => start.echo_request(id, 1).build(),
        Kind::EchoReply(id) => start.echo_reply(id, 1).build(),
        Kind::Other(n) => start.protocol(n).payload(&[1; 8]).build(),
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    let flags = prop_oneof![
        4 => Just(0x02u8), 4 => Just(0x12), 8 => Just(0x10), 3 => Just(0x11), 1 => Just(0x14),
            1 => Just(0x03),
    ];
    let kind = prop_oneof![
        3 => (1u16..3, 1u16..3).prop_map(|(s, d)| Kind::Udp(s, d)),
        8 => (1u16..3, 1u16..3, flags).prop_map(|(s, d, f)| Kind::Tcp(s, d, f)),
        1 => (1u16..3).prop_map(Kind::EchoRequest),
        1 => (1u16..3).prop_map(Kind::EchoReply),
        1 => Just(Kind::Other(47)),
    ];
    (0..NICS, 1..NICS, any::<bool>(), kind).prop_map(|(from, hop, v6, kind)| Packet {
        from,
        to: (from + hop) % NICS,
        v6,
        kind,
    })
}

fn rules() -> impl Strategy<Value = Vec<RuleSpec>> {
    let one = prop_oneof![
        2 => Just(allow_all_in(None)),
        2 => Just(allow_all_in(Some(TCP))),
        1 => Just(allow_all_in(Some(ICMP))),
        1 => Just(allow_all_in(Some(47))),
        2 => (1u16..3).prop_map(|port| allow_in(TCP, port)),
        2 => (1u16..3).prop_map(|port| allow_in(UDP, port)),
        1 => Just(allow_all_out(None)),
        1 => (1u16..3).prop_map(|port| allow_out(TCP, port)),
        1 => Just(allow_all_out(Some(UDP))),
    ];
    proptest::collection::vec(one, 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => packet().prop_map(Step::Send),
        2 => prop_oneof![Just(1u64), Just(9), Just(10), Just(29), Just(30), Just(60), Just(119),
            Just(180), Just(600)]
            .prop_map(Step::Wait),
        2 => (0..NICS, rules(), any::<bool>())
            .prop_map(|(nic, rules, drain)| Step::Rules(nic, rules, drain)),
        1 => (0..NICS, any::<bool>()).prop_map(|(nic, gone)| Step::Addresses(nic, gone)),
        1 => (0..NICS).prop_map(Step::Delete),
    ]
}

/// The address of a NIC that has none, as far as anti-spoofing goes.
fn set_addresses(lab: &mut Lab, nic: Nic, gone: bool) {
    lab.configure(nic, |config| {
        config.addresses = if gone {
            vec![]
        } else {
            vec![nic.v4.into(), nic.v6.into()]
        };
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn the_switch_does_what_the_model_does(
        first in proptest::collection::vec(rules(), NICS),
        steps in proptest::collection::vec(step(), 1..120),
        workers in 1..=3usize,
    ) {
        let mut lab = Lab::on(Simulation::several(workers));
        let mut model = Model::default();
        let nics: Vec<Nic> = (0..NICS).map(|_| lab.nic()).collect();
        let mut groups = Vec::new();
        for (nic, rules) in nics.iter().zip(first) {
            model.sides[groups.len()].rules = rules.clone();
            groups.push(lab.group_of(*nic, rules));
        }
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(secs) => {
                    model.now += secs;
                    lab.sim.advance(Duration::from_secs(secs));
                }
                Step::Rules(nic, rules, drain) => {
                    let without_address = model.sides[nic].without_address;
                    model.sides[nic] = Side {
                        rules: rules.clone(),
                        drain,
                        missing: false,
                        without_address,
                    };
                    lab.change_group(groups[nic], |group| group.drain = drain);
                    lab.set_rules(groups[nic], rules);
                }
                Step::Delete(nic) => {
                    let without_address = model.sides[nic].without_address;
                    model.sides[nic] = Side {
                        missing: true,
                        without_address,
                        ..Side::default()
                    };
                    lab.delete_group(groups[nic]);
                }
                Step::Addresses(nic, gone) => {
                    model.sides[nic].without_address = gone;
                    set_addresses(&mut lab, nics[nic], gone);
                }
                Step::Send(packet) => {
                    let expected = model.send(packet);
                    let before = lab.drops();
                    let bytes = frame(&packet, &nics);
                    lab.send(nics[packet.from], bytes.clone());
                    let dropped = difference(&before, &lab.drops());
                    let arrived = lab.received(nics[packet.to]);
                    let answers = lab.received(nics[packet.from]);
                    let is_reset = expected == Some(DropReason::TcpNotSyn)
                        && model.now >= MOVE_SECS.into();
                    let answer = reset(&packet, &nics).filter(|_| is_reset);
                    let expected = match expected {
                        None => (vec![], vec![bytes], vec![]),
                        Some(reason) => (vec![(reason, 1)], vec![], answer.into_iter().collect()),
                    };
                    let came = (dropped, arrived, answers);
                    prop_assert_eq!(came, expected, "step {}: {:?}", number, packet);
                }
            }
        }
    }
}

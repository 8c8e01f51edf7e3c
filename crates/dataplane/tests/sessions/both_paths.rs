//! The fast path against the whole path alone: the same packets of connections, batch by batch, to
//! two switches, one of which may not use its fast path. What arrives, what is counted, and every
//! flow as it then stands have to be the same.
//!
//! Where a NIC's share is full, which of its flows goes for a new one is a matter of the order in
//! which those of one batch began. That is the same too as long as the fast path takes all of a
//! batch; so with full shares there are packets of that kind only, and odd ones in between with
//! shares that never fill.

use std::sync::Arc;
use std::time::Duration;

use dataplane::flow::FlowInfo;
use dataplane::limits::{Limit, Limits, Meters};
use dataplane::ruleset::RuleSpec;
use dataplane::{PortSlot, RuleSlot, Simulation, UnknownTcp};
use proptest::prelude::*;
use wire::offload::Offload;
use wire::parse::TcpFlags;

use crate::lab::*;

const NICS: usize = 3;

/// Nobody's: who is watched from there takes the whole path with all that he sends.
const NOBODY: PortSlot = PortSlot(99);

#[derive(Clone, Debug)]
enum Step {
    /// NIC `n` sends these at once.
    Batch(usize, Vec<Packet>),
    Wait(u64),
    /// The rules of NIC `n` from now on.
    Rules(usize, Vec<RuleSpec>),
    /// NIC `n` may send from any address, or from its own alone.
    AntiSpoof(usize, bool),
    /// How many connections NIC `n` may begin, and be sent, at once, and one more every second.
    Limits(usize, [Option<u64>; 2]),
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    to: usize,
    v6: bool,
    ports: (u16, u16),
    kind: Kind,
    /// From an address of another.
    forged: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Udp,
    /// Flags, sequence, acknowledgement, options.
    Tcp(u8, u32, u32, Options),
    Echo(bool),
    Sctp(u8),
    Fragment(u16),
}

#[derive(Clone, Copy, Debug)]
enum Options {
    None,
    /// Those of a SYN.
    Scale(u8),
    Timestamp,
    /// An acknowledgement of later blocks.
    Sack,
    Broken,
}

/// One of the two switches.
fn lab(share: u32, whole: bool) -> (Lab, Vec<Nic>) {
    let mut lab = Lab::on(Simulation::default());
    let nics: Vec<Nic> = (0..NICS).map(|_| lab.nic()).collect();
    for nic in &nics {
        lab.configure(*nic, |config| {
            config.flow_share = share;
            if whole {
                config.sniffers = vec![NOBODY];
            }
        });
    }
    (lab, nics)
}

fn frame(from: usize, packet: &Packet, nics: &[Nic]) -> Vec<u8> {
    let family = if packet.v6 { Family::V6 } else { Family::V4 };
    let (sender, target) = (nics[from], nics[packet.to]);
    let start = match packet.forged {
        true => wire::build::frame(sender.mac, target.mac)
            .ip(nics[3 - from - packet.to].ip(family), target.ip(family)),
        false => ip(sender, target, family),
    };
    let (here, there) = packet.ports;
    match packet.kind {
        Kind::Udp => start.udp(here, there).payload(b"hello").build(),
        Kind::Tcp(flags, seq, ack, options) => {
            let segment = start.tcp(here, there, TcpFlags(flags)).seq(seq).ack(ack);
            let segment = segment.window(500).tcp_options(options.bytes());
            segment.payload(&[7; 4]).build()
        }
        Kind::Echo(true) => start.echo_request(here, 1).build(),
        Kind::Echo(false) => start.echo_reply(there, 1).build(),
        Kind::Sctp(chunk) => start.sctp(here, there, 7, chunk).build(),
        Kind::Fragment(id) if !packet.v6 => {
            let mut whole = start.udp(here, there).payload(&[1; 8]).build();
            whole[18..20].copy_from_slice(&id.to_be_bytes());
            whole[20] |= 0x20;
            whole
        }
        Kind::Fragment(_) => start.udp(here, there).payload(&[1; 8]).build(),
    }
}

impl Options {
    fn bytes(self) -> &'static [u8] {
        match self {
            Options::None => &[],
            Options::Scale(0) => &[2, 4, 5, 180, 1, 3, 3, 0],
            Options::Scale(_) => &[2, 4, 5, 180, 1, 3, 3, 9],
            Options::Timestamp => &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            Options::Sack => &[1, 1, 5, 10, 0, 0, 4, 0, 0, 0, 5, 0],
            Options::Broken => &[1, 1, 5, 40],
        }
    }
}

/// `odd`: the whole path sees some of them.
fn packet(from: usize, v6: bool, odd: bool) -> impl Strategy<Value = Packet> {
    let odd = u32::from(odd);
    // In the order of a connection's life and out of it; URG, PSH, and none at all.
    let flags = prop_oneof![
        4 => Just(0x02u8), 4 => Just(0x12), 8 => Just(0x10), 4 => Just(0x18), 4 => Just(0x11),
        2 => Just(0x04), 1 => Just(0x14), 1 => Just(0x30), 1 => Just(0x03), 1 => Just(0x00),
    ];
    let number = || {
        prop_oneof![
            4 => Just(1000u32), 4 => Just(1001), 1 => Just(1400), 1 => Just(u32::MAX - 9),
        ]
    };
    let options = prop_oneof![
        6 => Just(Options::None), 2 => (0..2u8).prop_map(Options::Scale),
            3 => Just(Options::Timestamp),
        2 => Just(Options::Sack), odd => Just(Options::Broken),
    ];
    let kind = prop_oneof![
        6 => Just(Kind::Udp),
        20 => (flags, number(), number(), options).prop_map(|(f, s, a, o)| Kind::Tcp(f, s, a, o)),
        2 => Just(Kind::Echo(true)), 2 * odd => Just(Kind::Echo(false)),
        odd => prop_oneof![Just(1u8), Just(2), Just(0), Just(6)].prop_map(Kind::Sctp),
        odd => (0..3u16).prop_map(Kind::Fragment),
    ];
    let ports = prop_oneof![
        12 => (1u16..3, 1u16..3), odd => Just((68, 67)), odd => Just((67, 68)),
    ];
    let forged = prop_oneof![9 => Just(false), odd => Just(true)];
    (1..NICS, ports, kind, forged).prop_map(move |(hop, ports, kind, forged)| Packet {
        to: (from + hop) % NICS,
        v6,
        ports,
        kind,
        forged,
    })
}

fn rules() -> impl Strategy<Value = Vec<RuleSpec>> {
    let one = prop_oneof![
        4 => Just(allow_all_in(Some(TCP))),
        3 => Just(allow_all_in(Some(UDP))),
        1 => Just(allow_all_in(Some(ICMP))),
        1 => Just(allow_all_in(Some(SCTP))),
        2 => (1u16..3).prop_map(|port| allow_in(TCP, port)),
        1 => (1u16..3).prop_map(|port| allow_in(UDP, port)),
        1 => (1u16..3).prop_map(|port| allow_out(TCP, port)),
        1 => Just(allow_all_out(None)),
        1 => Just(allow_all_in(None)),
    ];
    proptest::collection::vec(one, 0..4)
}

fn step(odd: bool) -> impl Strategy<Value = Step> {
    // Of one family a batch: the fast path takes one after the other.
    let batch = (0..NICS, prop_oneof![3 => Just(false), 1 => Just(true)]).prop_flat_map(
        move |(from, v6)| {
            proptest::collection::vec(packet(from, v6, odd), 1..12)
                .prop_map(move |all| Step::Batch(from, all))
        },
    );
    prop_oneof![
        24 => batch,
        2 => prop_oneof![Just(1u64), Just(29), Just(60), Just(119), Just(180)].prop_map(Step::Wait),
        1 => (0..NICS, rules()).prop_map(|(nic, rules)| Step::Rules(nic, rules)),
        1 => (0..NICS, any::<bool>()).prop_map(|(nic, on)| Step::AntiSpoof(nic, on)),
        1 => (0..NICS, limits()).prop_map(|(nic, bursts)| Step::Limits(nic, bursts)),
    ]
}

fn limits() -> impl Strategy<Value = [Option<u64>; 2]> {
    let one = || prop_oneof![1 => Just(None), 2 => (1u64..6).prop_map(Some)];
    [one(), one()]
}

fn meters(bursts: [Option<u64>; 2]) -> Option<Arc<Meters>> {
    let [egress, ingress] = bursts.map(|burst| Limits {
        connections: burst.map(|burst| Limit { rate: 1, burst }),
        ..Limits::default()
    });
    Meters::new(egress, ingress).map(Arc::new)
}

/// All flows, in an order that does not depend on where they lie.
fn flows(lab: &mut Lab) -> Vec<FlowInfo> {
    let mut flows = lab.sim.flows(None);
    flows.sort_by_key(|flow| format!("{:?}", (flow.protocol, flow.initiator, flow.responder)));
    flows
}

/// The rules of a NIC, and its limits as in [`Step::Limits`].
type OfNic = (Vec<RuleSpec>, [Option<u64>; 2]);

/// What a session begins with, and what becomes of TCP amid an unknown connection.
fn first() -> impl Strategy<Value = (Vec<OfNic>, UnknownTcp)> {
    let limits = prop_oneof![1 => Just([None; 2]), 1 => limits()];
    let nics = proptest::collection::vec((rules(), limits), NICS);
    let unknown = prop_oneof![
        Just(UnknownTcp::Reset),
        Just(UnknownTcp::Drop),
        Just(UnknownTcp::Adopt)
    ];
    (nics, unknown)
}

fn agree(
    share: u32,
    (first, unknown_tcp): (Vec<OfNic>, UnknownTcp),
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let (mut fast, nics) = lab(share, false);
    let (mut whole, _) = lab(share, true);
    let mut groups = Vec::new();
    for (nic, (rules, bursts)) in nics.iter().zip(first) {
        for lab in [&mut fast, &mut whole] {
            lab.configure(*nic, |config| config.meters = meters(bursts));
            let group = lab.group_of(*nic, rules.clone());
            lab.change_group(group, |group| group.unknown_tcp = unknown_tcp);
            groups.push(group);
        }
    }
    fast.settle();
    whole.settle();
    for (number, step) in steps.into_iter().enumerate() {
        for lab in [&mut fast, &mut whole] {
            match &step {
                Step::Batch(from, packets) => {
                    // Nobody is in a hurry, in which turns are as long as their frames cost: that
                    // differs here.
                    lab.sim.advance(Duration::from_millis(2));
                    for packet in packets {
                        lab.queue(nics[*from], frame(*from, packet, &nics), Offload::default());
                    }
                    lab.sim.run();
                }
                Step::Wait(secs) => lab.sim.advance(Duration::from_secs(*secs)),
                Step::Rules(nic, rules) => lab.set_rules(groups[2 * nic], rules.clone()),
                Step::AntiSpoof(nic, on) => {
                    lab.configure(nics[*nic], |config| config.anti_spoof = *on);
                }
                Step::Limits(nic, bursts) => {
                    lab.configure(nics[*nic], |config| config.meters = meters(*bursts));
                }
            }
        }
        for nic in &nics {
            prop_assert_eq!(fast.received(*nic), whole.received(*nic), "step {}", number);
            let counted = [&fast, &whole].map(|lab| lab.sim.port(nic.slot));
            prop_assert_eq!(&counted[0], &counted[1], "step {}", number);
        }
        for rule in (0..4).map(RuleSlot) {
            prop_assert_eq!(fast.sim.rule(rule), whole.sim.rule(rule), "step {}", number);
        }
        prop_assert_eq!(flows(&mut fast), flows(&mut whole), "step {}", number);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_fast_path_does_what_the_whole_path_does(
        first in first(),
        steps in proptest::collection::vec(step(true), 1..60),
    ) {
        agree(1000, first, steps)?;
    }

    #[test]
    fn the_fast_path_gives_up_the_flows_that_the_whole_path_gives_up(
        first in first(),
        steps in proptest::collection::vec(step(false), 1..60),
    ) {
        agree(6, first, steps)?;
    }
}

//! A bench NIC: a host without a guest, which sends ICMP echo requests or answers them.
//!
//! It is a neighbour like any other (it answers ARP, neighbour solicitations and echo requests for
//! its addresses) and its packets go through the whole path, rules included. The sender keeps up to
//! [`WINDOW`] requests on their way: an answer makes room for the next, and after [`QUIET_NS`]
//! without any answer one request counts as lost. It has no clock:
//! [`Port::tick`](crate::port::Port::tick) says what time it is.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use wire::nd::{self, NdKind};
use wire::offload::Offload;
use wire::parse::{self, IpPacket, L4, Net, Packet, protocol};
use wire::{Mac, build, checksum};

use crate::deliver::Accepts;
use crate::error::TransmitError;
use crate::frame::Batch;
use crate::port_info::PortInfo;

/// Echo requests on their way at most.
pub const WINDOW: u16 = 64;

/// After so many nanoseconds without an answer the next request is sent all the same.
pub const QUIET_NS: u64 = 1_000_000;

/// Answers that wait to be received at most; the port is full then.
const ANSWERS_MAX: usize = 256;

/// Bytes behind the ICMP header of a request: as many as `ping` sends.
const PAYLOAD: usize = 56;

/// What a bench NIC does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchMode {
    /// Sends echo requests to an address at a MAC (v0 `ICMP_SND_LIKE`).
    Send {
        /// Whom the packets are addressed to.
        ip: IpAddr,
        /// Where the frames go.
        mac: Mac,
    },
    /// Answers and counts (v0 `ICMP_RCV_LIKE`).
    Receive,
}

/// A sender that cannot send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BenchError {
    /// It has no address of its destination's family.
    #[error("a bench NIC that sends to {0} has no address of that family")]
    NoAddress(IpAddr),
}

/// What a sender has seen of its requests; its port writes, whoever prints it reads.
#[derive(Debug, Default)]
pub struct BenchReport {
    answers: AtomicU64,
    lost: AtomicU64,
    /// Sequence number and round trip of the last request that was timed.
    sequence: AtomicU16,
    round_trip_ns: AtomicU64,
}

impl BenchReport {
    /// Answers that came.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Requests that were given up.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sequence number of the last request that was timed, and the nanoseconds until its answer: as
    /// exact as the worker's turns, and a moment's number beside another's.
    pub fn last(&self) -> (u16, u64) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        (sequence, self.round_trip_ns.load(Ordering::Relaxed))
    }
}

/// The port of a bench NIC.
#[derive(Debug)]
pub struct BenchPort {
    mac: Mac,
    addresses: Vec<IpAddr>,
    sender: Option<Sender>,
    /// Frames that the host behind the port sends next.
    answers: VecDeque<Vec<u8>>,
    received: u64,
    transmitted: u64,
}

impl BenchPort {
    /// A bench NIC with its addresses; a sender uses the first of its destination's family.
    pub fn new(mac: Mac, addresses: &[IpAddr], mode: BenchMode) -> Result<BenchPort, BenchError> {
        let sender = match mode {
            BenchMode::Receive => None,
            BenchMode::Send { ip, mac: to } => {
                let own = addresses.iter().find(|own| own.is_ipv4() == ip.is_ipv4());
                Some(Sender::new(
                    mac,
                    *own.ok_or(BenchError::NoAddress(ip))?,
                    to,
                    ip,
                ))
            }
        };
        let addresses = addresses.to_vec();
        Ok(BenchPort {
            mac,
            addresses,
            sender,
            answers: VecDeque::new(),
            received: 0,
            transmitted: 0,
        })
    }

    /// What a sender sees; `None` of a receiver.
    pub fn report(&self) -> Option<Arc<BenchReport>> {
        self.sender.as_ref().map(|sender| sender.report.clone())
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, mono_ns: u64) {
        if let Some(sender) = &mut self.sender {
            sender.tick(mono_ns);
        }
    }

    /// When [`tick`](Self::tick) is needed next, if nothing is received before.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.sender.as_ref().and_then(Sender::deadline)
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        while batch.room() > 0 {
            if let Some(frame) = self.answers.pop_front() {
                batch.push_bytes(&frame, Offload::default());
            } else if let Some(frame) = self.sender.as_mut().and_then(Sender::next) {
                batch.push_bytes(frame, Offload::default());
            } else {
                break;
            }
        }
        let count = batch.len() - before;
        self.received += count as u64;
        count
    }

    /// The host behind the port gets a frame: most are only counted.
    pub(crate) fn transmit(&mut self, batch: &Batch, index: usize) -> Result<(), TransmitError> {
        if self.answers.len() >= ANSWERS_MAX {
            return Err(TransmitError::Full);
        }
        self.transmitted += 1;
        let frame = &batch.frames()[index];
        // A host drops what it does not understand.
        let Ok(packet) = parse::parse(frame.head(), frame.len()) else {
            return Ok(());
        };
        if packet.dst != self.mac && !packet.dst.is_multicast() {
            return Ok(());
        }
        let answer = match packet.net {
            Net::Arp(arp) => (arp.op == 1 && self.addresses.contains(&arp.target_ip.into()))
                .then(|| build::arp_reply(self.mac, arp.target_ip, arp.sender_mac, arp.sender_ip)),
            Net::Ip(ip) => self.answer_ip(&packet, &ip, batch, index),
            Net::Other => None,
        };
        self.answers.extend(answer);
        Ok(())
    }

    /// True when there is something to send.
    pub(crate) fn arm(&self) -> bool {
        !self.answers.is_empty() || self.sender.as_ref().is_some_and(Sender::has_room)
    }

    /// Checksums are not looked at.
    pub(crate) fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo {
            kind: "bench",
            up: true,
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            ..PortInfo::default()
        }
    }

    fn answer_ip(
        &mut self,
        packet: &Packet,
        ip: &IpPacket,
        batch: &Batch,
        index: usize,
    ) -> Option<Vec<u8>> {
        let head = batch.frames()[index].head();
        if let Ok(Some(message)) = nd::parse(head, ip) {
            return self.answer_nd(&message, ip);
        }
        let (L4::Icmp { kind, code: 0, id }, None) = (ip.l4_info, ip.fragment) else {
            return None;
        };
        let for_us = packet.dst == self.mac && self.addresses.contains(&ip.dst());
        let icmp = ip.protocol
            == if ip.v6 {
                protocol::ICMPV6
            } else {
                protocol::ICMP
            };
        if !for_us || !icmp {
            return None;
        }
        let at = usize::from(ip.l4);
        let sequence = u16::from_be_bytes([*head.get(at + 6)?, *head.get(at + 7)?]);
        match (ip.v6, kind) {
            (false, 8) | (true, 128) => {
                let whole = batch.to_bytes(index);
                let payload = whole.get(at + 8..ip.end as usize)?;
                let reply = build::frame(self.mac, packet.src).ip(ip.dst(), ip.src());
                Some(reply.echo_reply(id, sequence).payload(payload).build())
            }
            (false, 0) | (true, 129) => {
                let sender = self.sender.as_mut()?;
                if sender.id == id && sender.to == ip.src() {
                    sender.answered(sequence);
                }
                None
            }
            _ => None,
        }
    }

    /// The address of a neighbour that asks, unless it asks whether its own is taken.
    fn answer_nd(&self, message: &nd::Nd, ip: &IpPacket) -> Option<Vec<u8>> {
        let NdKind::NeighbourSolicitation { target } = message.kind else {
            return None;
        };
        let (IpAddr::V6(src), true) = (ip.src(), self.addresses.contains(&target.into())) else {
            return None;
        };
        let to = message.source_link?;
        Some(build::neighbour_advertisement(self.mac, target, to, src))
    }
}

/// The requests on their way.
#[derive(Debug)]
struct Sender {
    to: IpAddr,
    id: u16,
    /// A request, its sequence number and checksum those of the last one sent.
    frame: Vec<u8>,
    /// Where its ICMP header begins.
    at: usize,
    /// The number of the next request.
    next: u16,
    /// The oldest request that an answer is waited for; `next` when there is none.
    oldest: u16,
    now_ns: u64,
    /// When the last answer came, or was given up.
    progress_ns: u64,
    /// The request that is timed, and when it was sent.
    timed: Option<(u16, u64)>,
    report: Arc<BenchReport>,
}

impl Sender {
    fn new(mac: Mac, own: IpAddr, to_mac: Mac, to: IpAddr) -> Self {
        let id = u16::from_be_bytes([mac.0[4], mac.0[5]]);
        let payload: [u8; PAYLOAD] = std::array::from_fn(|byte| byte as u8);
        let request = build::frame(mac, to_mac)
            .ip(own, to)
            .echo_request(id, 0)
            .payload(&payload);
        let frame = request.build();
        let at = frame.len() - PAYLOAD - 8;
        Sender {
            to,
            id,
            frame,
            at,
            next: 0,
            oldest: 0,
            now_ns: 0,
            progress_ns: 0,
            timed: None,
            report: Arc::default(),
        }
    }

    fn in_flight(&self) -> u16 {
        self.next.wrapping_sub(self.oldest)
    }

    fn has_room(&self) -> bool {
        self.in_flight() < WINDOW
    }

    /// The next request, if there is room for it.
    fn next(&mut self) -> Option<&[u8]> {
        if !self.has_room() {
            return None;
        }
        if self.in_flight() == 0 {
            self.progress_ns = self.now_ns;
        }
        let word = |at: usize| u16::from_be_bytes([self.frame[at], self.frame[at + 1]]);
        let (sum_at, sequence_at) = (self.at + 2, self.at + 6);
        let sum = checksum::update_u16(word(sum_at), word(sequence_at), self.next);
        self.frame[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        self.frame[sequence_at..sequence_at + 2].copy_from_slice(&self.next.to_be_bytes());
        self.timed.get_or_insert((self.next, self.now_ns));
        self.next = self.next.wrapping_add(1);
        Some(&self.frame)
    }

    /// Frames do not overtake each other: requests before the one that was answered are answered or
    /// lost.
    fn answered(&mut self, sequence: u16) {
        let skipped = sequence.wrapping_sub(self.oldest);
        if skipped < self.in_flight() {
            self.report.answers.fetch_add(1, Ordering::Relaxed);
            self.report
                .lost
                .fetch_add(skipped.into(), Ordering::Relaxed);
            self.time(sequence);
            self.oldest = sequence.wrapping_add(1);
            self.progress_ns = self.now_ns;
        }
    }

    /// An answer to this request or a later one: the next request is timed anew.
    fn time(&mut self, sequence: u16) {
        let Some((timed, sent_ns)) = self
            .timed
            .filter(|(timed, _)| sequence.wrapping_sub(*timed) < WINDOW)
        else {
            return;
        };
        self.timed = None;
        if timed == sequence {
            let took = self.now_ns.saturating_sub(sent_ns);
            self.report.round_trip_ns.store(took, Ordering::Relaxed);
            self.report.sequence.store(sequence, Ordering::Relaxed);
        }
    }

    fn tick(&mut self, mono_ns: u64) {
        self.now_ns = self.now_ns.max(mono_ns);
        if self
            .deadline()
            .is_some_and(|deadline| deadline <= self.now_ns)
        {
            self.report.lost.fetch_add(1, Ordering::Relaxed);
            self.timed = self.timed.filter(|(timed, _)| *timed != self.oldest);
            self.oldest = self.oldest.wrapping_add(1);
            self.progress_ns = self.now_ns;
        }
    }

    /// When a request is given up, if one is needed to be.
    fn deadline(&self) -> Option<u64> {
        (!self.has_room()).then(|| self.progress_ns.saturating_add(QUIET_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const THERE: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn sender(own: &str, to: &str) -> BenchPort {
        BenchPort::new(
            HERE,
            &[ip(own)],
            BenchMode::Send {
                ip: ip(to),
                mac: THERE,
            },
        )
        .unwrap()
    }

    fn receiver(addresses: &[&str]) -> BenchPort {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
        BenchPort::new(THERE, &addresses, BenchMode::Receive).unwrap()
    }

    /// All that the host behind the port sends now.
    fn sent(port: &mut BenchPort) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut batch = Batch::new();
        while port.receive(&mut batch) > 0 {
            frames.extend((0..batch.len()).map(|index| batch.to_bytes(index)));
            batch.clear();
        }
        frames
    }

    fn give(port: &mut BenchPort, frames: &[Vec<u8>]) {
        for frame in frames {
            let mut batch = Batch::new();
            let index = batch.push_bytes(frame, Offload::default()).unwrap();
            port.transmit(&batch, index).unwrap();
        }
    }

    fn payload() -> Vec<u8> {
        (0..56).collect()
    }

    #[test]
    fn a_window_of_requests_is_sent_and_each_is_answered() {
        for (own, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (mut here, mut there) = (sender(own, to), receiver(&[to]));
            // The numbers are about to wrap.
            let start = 0xff80;
            let requests = here.sender.as_mut().unwrap();
            (requests.next, requests.oldest) = (start, start);
            for round in 0..4 {
                let requests = sent(&mut here);
                assert_eq!(requests.len(), usize::from(WINDOW));
                assert!(!here.arm());
                let first = start.wrapping_add(round * WINDOW);
                let expected = build::frame(HERE, THERE)
                    .ip(ip(own), ip(to))
                    .echo_request(1, first);
                assert_eq!(requests[0], expected.payload(&payload()).build());

                give(&mut there, &requests);
                let answers = sent(&mut there);
                let expected = build::frame(THERE, HERE)
                    .ip(ip(to), ip(own))
                    .echo_reply(1, first);
                assert_eq!(answers[0], expected.payload(&payload()).build());
                give(&mut here, &answers);
                assert!(here.arm());
            }
        }
    }

    #[test]
    fn what_is_not_answered_is_given_up_after_a_millisecond() {
        let mut here = sender("10.0.0.1", "10.0.0.2");
        here.tick(5_000_000);
        let requests = sent(&mut here);
        assert_eq!((requests.len(), here.next_tick()), (64, Some(6_000_000)));
        here.tick(5_999_999);
        assert!(sent(&mut here).is_empty());
        here.tick(6_000_000);
        assert_eq!(sent(&mut here).len(), 1, "one a millisecond into the void");
        assert_eq!(here.next_tick(), Some(7_000_000));

        // The last of the first window is answered: all before it are not waited for any more.
        let mut there = receiver(&["10.0.0.2"]);
        give(&mut there, &requests[63..]);
        give(&mut here, &sent(&mut there));
        assert_eq!(sent(&mut here).len(), 63);
        let report = here.report().unwrap();
        assert_eq!(
            (report.answers(), report.lost()),
            (1, 63),
            "62 skipped, one given up"
        );
        // A late answer is nothing new.
        give(&mut there, &requests[..1]);
        give(&mut here, &sent(&mut there));
        assert!(sent(&mut here).is_empty());
    }

    #[test]
    fn a_round_trip_is_timed() {
        let (mut here, mut there) = (sender("10.0.0.1", "10.0.0.2"), receiver(&["10.0.0.2"]));
        here.tick(5_000_000);
        let requests = sent(&mut here);
        here.tick(5_031_000);
        give(&mut there, &requests[..1]);
        give(&mut here, &sent(&mut there));
        let report = here.report().unwrap();
        assert_eq!((report.answers(), report.last()), (1, (0, 31_000)));
        // The next that is sent is the next that is timed: number 64.
        assert_eq!(sent(&mut here).len(), 1);
        here.tick(5_050_000);
        give(&mut there, &requests[1..]);
        give(&mut here, &sent(&mut there));
        assert_eq!((report.answers(), report.last()), (64, (0, 31_000)));
        assert!(receiver(&["10.0.0.2"]).report().is_none());
    }

    #[test]
    fn both_kinds_answer_for_their_addresses_alone() {
        let mut port = receiver(&["10.0.0.2", "fd00::2"]);
        let asked = |target| build::arp_request(HERE, "10.0.0.1".parse().unwrap(), target);
        give(
            &mut port,
            &[
                asked("10.0.0.3".parse().unwrap()),
                asked("10.0.0.2".parse().unwrap()),
            ],
        );
        let reply = build::arp_reply(
            THERE,
            "10.0.0.2".parse().unwrap(),
            HERE,
            "10.0.0.1".parse().unwrap(),
        );
        assert_eq!(sent(&mut port), [reply]);

        let (own, other) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let solicitations = [
            build::neighbour_solicitation(HERE, own, other),
            build::neighbour_solicitation(HERE, own, "fd00::3".parse().unwrap()),
            build::neighbour_solicitation(HERE, "::".parse().unwrap(), other),
        ];
        give(&mut port, &solicitations);
        assert_eq!(
            sent(&mut port),
            [build::neighbour_advertisement(THERE, other, HERE, own)]
        );

        let request = |to: &str, mac| {
            build::frame(HERE, mac)
                .ip(ip("10.0.0.1"), ip(to))
                .echo_request(9, 9)
        };
        let not_ours = [
            request("10.0.0.3", THERE).build(),
            request("10.0.0.2", Mac::BROADCAST).build(),
            request("10.0.0.2", Mac([2, 0, 0, 0, 0, 3])).build(),
            build::frame(HERE, THERE)
                .ip(ip("10.0.0.1"), ip("10.0.0.2"))
                .udp(1, 2)
                .build(),
            vec![0xff; 20],
        ];
        give(&mut port, &not_ours);
        assert!(sent(&mut port).is_empty());
        assert_eq!(port.info().frames_transmitted, 10);
    }

    #[test]
    fn answers_that_nobody_takes_fill_the_port_and_not_the_memory() {
        let mut port = receiver(&["10.0.0.2"]);
        let request = build::arp_request(
            HERE,
            "10.0.0.1".parse().unwrap(),
            "10.0.0.2".parse().unwrap(),
        );
        let mut batch = Batch::new();
        let index = batch.push_bytes(&request, Offload::default()).unwrap();
        for _ in 0..ANSWERS_MAX {
            port.transmit(&batch, index).unwrap();
        }
        assert_eq!(port.transmit(&batch, index), Err(TransmitError::Full));
        assert_eq!(sent(&mut port).len(), ANSWERS_MAX);
    }

    #[test]
    fn a_sender_needs_an_address_of_the_family_that_it_sends_to() {
        let to = ip("fd00::2");
        let made = BenchPort::new(
            HERE,
            &[ip("10.0.0.1")],
            BenchMode::Send { ip: to, mac: THERE },
        );
        assert_eq!(made.unwrap_err(), BenchError::NoAddress(to));
    }
}

//! Short exchanges on ports that the switch has not seen: a whole TCP connection, or a question and
//! its answer in UDP. What is said in which order, for whoever plays both guests.
//!
//! A connection is SYN, SYN-ACK, ACK, FIN-ACK, FIN-ACK, ACK: six frames of 60 bytes, no data. The
//! client acknowledges, and ends the connection in the same breath.

use wire::parse::TcpFlags;

use crate::load::{self, PORTS};
use crate::peers::PeerError;

/// Bytes of every frame, without FCS.
pub const FRAME: usize = 60;

/// Offset of the TCP checksum in an Ethernet/IPv4 frame without IP options.
const CHECKSUM: usize = 50;

/// Which exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A TCP connection that begins and ends.
    Connection,
    /// A datagram and its answer.
    Transaction,
}

/// One kind of exchange: its frames, with both ports 0.
pub struct Exchange {
    kind: Kind,
    /// Who speaks, and what.
    steps: Vec<(usize, [u8; FRAME])>,
}

/// The steps of a connection: who speaks, flags, sequence and acknowledgement number.
const CONNECTION: [(usize, TcpFlags, u32, u32); 6] = {
    let fin = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);
    let syn_ack = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
    [
        (0, TcpFlags::SYN, 1000, 0),
        (1, syn_ack, 5000, 1001),
        (0, TcpFlags::ACK, 1001, 5001),
        (0, fin, 1001, 5001),
        (1, fin, 5001, 1002),
        (0, TcpFlags::ACK, 1002, 5002),
    ]
};

impl Exchange {
    /// An exchange of this kind.
    pub fn new(kind: Kind) -> Result<Exchange, PeerError> {
        let steps = match kind {
            Kind::Connection => CONNECTION
                .into_iter()
                .map(|(from, flags, seq, ack)| {
                    let segment = load::header(from)?.tcp(0, 0, flags).seq(seq).ack(ack);
                    Ok((from, sized(&segment.window(65_535).build())))
                })
                .collect::<Result<Vec<_>, PeerError>>()?,
            Kind::Transaction => [0, 1]
                .into_iter()
                .map(|from| Ok((from, sized(&load::datagram(from, FRAME)?))))
                .collect::<Result<Vec<_>, PeerError>>()?,
        };
        Ok(Exchange { kind, steps })
    }

    /// How many frames it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Who speaks in a step.
    pub fn speaker(&self, step: usize) -> usize {
        self.steps[step].0
    }

    /// What is said once a step has arrived.
    pub fn next(&self, step: usize) -> &'static [usize] {
        const CONNECTION: [&[usize]; 6] = [&[1], &[2, 3], &[], &[4], &[5], &[]];
        const TRANSACTION: [&[usize]; 2] = [&[1], &[]];
        match self.kind {
            Kind::Connection => CONNECTION[step],
            Kind::Transaction => TRANSACTION[step],
        }
    }

    /// The frame of a step of exchange `number`, with its ports and the checksum that goes with
    /// them (RFC 1624); datagrams have none.
    pub fn frame(&self, step: usize, number: u32) -> [u8; FRAME] {
        let (from, mut out) = self.steps[step];
        let [client, server] = load::ports(number);
        let (here, there) = if from == 0 {
            (client, server)
        } else {
            (server, client)
        };
        out[PORTS..PORTS + 2].copy_from_slice(&here.to_be_bytes());
        out[PORTS + 2..PORTS + 4].copy_from_slice(&there.to_be_bytes());
        if self.kind == Kind::Connection {
            let before = u16::from_be_bytes([out[CHECKSUM], out[CHECKSUM + 1]]);
            let mut sum = u32::from(!before) + u32::from(here) + u32::from(there);
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            out[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        out
    }
}

/// A frame, padded as a guest's driver pads it.
fn sized(frame: &[u8]) -> [u8; FRAME] {
    let mut out = [0; FRAME];
    out[..frame.len()].copy_from_slice(frame);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_of_a_connection_is_what_the_builder_makes() {
        let exchange = Exchange::new(Kind::Connection).unwrap();
        for number in [0, 1, 49_999, 50_000, 6_399_999] {
            let [client, server] = load::ports(number);
            for (step, (from, flags, seq, ack)) in CONNECTION.into_iter().enumerate() {
                let (here, there) = if from == 0 {
                    (client, server)
                } else {
                    (server, client)
                };
                let segment = load::header(from).unwrap().tcp(here, there, flags);
                let mut built = segment.seq(seq).ack(ack).window(65_535).build();
                built.resize(60, 0);
                assert_eq!(exchange.frame(step, number)[..], built[..]);
            }
        }
    }

    #[test]
    fn every_step_is_said_once() {
        for kind in [Kind::Connection, Kind::Transaction] {
            let exchange = Exchange::new(kind).unwrap();
            let all = (0..exchange.len()).flat_map(|step| exchange.next(step));
            let said: Vec<usize> = all.copied().collect();
            assert_eq!(said, (1..exchange.len()).collect::<Vec<_>>());
        }
    }
}

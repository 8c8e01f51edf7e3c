//! What is sent: the frames of each load, and how one becomes a frame of the next flow.

use wire::build::{self, Builder};
use wire::offload::Offload;
use wire::parse::TcpFlags;

use crate::peers::{GUEST_MACS, PeerError, guest_ip};

/// Offset of the two ports in an Ethernet/IPv4 frame.
pub const PORTS: usize = 34;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// UDP frames of this many bytes (with FCS, as the field counts: 64 is the least) over so many
    /// flows.
    Udp { frame_len: usize, flows: u32 },
    /// TCP frames of 64 KiB with a partial checksum, to be cut by whoever is the last to touch
    /// them.
    Tso,
}

impl Load {
    /// The name in tables and in the ratios.
    pub fn name(self) -> String {
        match self {
            Load::Udp {
                frame_len,
                flows: 1,
            } => format!("{frame_len}"),
            Load::Udp { frame_len, flows } => format!("{frame_len}x{flows}flows"),
            Load::Tso => "tso64k".to_owned(),
        }
    }

    /// How many flows the frames are of.
    pub fn flows(self) -> u32 {
        match self {
            Load::Udp { flows, .. } => flows,
            Load::Tso => 1,
        }
    }

    /// Bytes of a frame as guests see it, without FCS.
    pub fn frame_bytes(self) -> usize {
        match self {
            Load::Udp { frame_len, .. } => frame_len - 4,
            Load::Tso => 65_226,
        }
    }
}

/// The flows of a load in turn, for [`crate::guest::Guest::send`].
pub struct Turns {
    flows: u32,
    next: u32,
    /// Each frame is written to, be it the same as before.
    writes: bool,
}

impl Turns {
    /// Beginning with the first.
    pub fn of(load: Load) -> Turns {
        Turns {
            flows: load.flows(),
            next: 0,
            writes: load.flows() > 1,
        }
    }

    /// Of one flow too each frame is written to, as guests write theirs: what a sender of many
    /// flows has to do besides.
    pub fn written(mut self) -> Turns {
        self.writes = true;
        self
    }

    /// Makes a frame one of the next flow.
    #[inline]
    pub fn next(&mut self, write: &mut dyn FnMut(usize, &[u8])) {
        if self.writes {
            let [[a, b], [c, d]] = ports(self.next).map(u16::to_be_bytes);
            write(PORTS, &[a, b, c, d]);
            self.next = if self.next + 1 == self.flows {
                0
            } else {
                self.next + 1
            };
        }
    }
}

/// Source and destination port of flow `number`: 50,000 source ports for each of the allowed
/// destinations.
#[inline]
pub fn ports(number: u32) -> [u16; 2] {
    const SOURCES: u32 = 50_000;
    let destination = (number / SOURCES) as u16 % crate::TRAFFIC_PORTS;
    [
        10_000 + (number % SOURCES) as u16,
        crate::TRAFFIC_PORT + destination,
    ]
}

/// What guests say to each other before and during a measurement.
pub struct Script {
    /// Said once, in this order: who says it, and what. It lets a switch know (or learn) where
    /// guest 1 is, and begins the connection.
    pub first: Vec<(usize, Vec<u8>)>,
    /// What guest 0 then sends over and over.
    pub frame: Vec<u8>,
    /// What it leaves undone in it.
    pub offload: Offload,
}

/// The frames of a load.
pub fn script(load: Load) -> Result<Script, PeerError> {
    let announce = header(1)?
        .udp(crate::TRAFFIC_PORT, 9)
        .payload(&[0; 18])
        .build();
    let mut first = vec![(1, announce)];
    match load {
        Load::Udp { .. } => Ok(Script {
            first,
            frame: datagram(0, load.frame_bytes())?,
            offload: Offload::default(),
        }),
        Load::Tso => {
            let (here, there) = (10_000, crate::TRAFFIC_PORT);
            let syn = header(0)?
                .tcp(here, there, TcpFlags::SYN)
                .seq(0)
                .window(65_535);
            first.push((0, syn.build()));
            let syn_ack = TcpFlags::SYN | TcpFlags::ACK;
            let answer = header(1)?
                .tcp(there, here, syn_ack)
                .seq(0)
                .ack(1)
                .window(65_535);
            first.push((1, answer.build()));
            let payload = vec![0x5a; load.frame_bytes() - 54];
            let data = header(0)?
                .tcp(here, there, TcpFlags::ACK)
                .seq(1)
                .ack(1)
                .window(65_535);
            let (frame, offload) = data.payload(&payload).gso(1448).build_with_offload();
            Ok(Script {
                first,
                frame,
                offload,
            })
        }
    }
}

/// A UDP frame of the first flow, `len` bytes without FCS: from guest 0, or the answer of guest 1.
pub fn datagram(from: usize, len: usize) -> Result<Vec<u8>, PeerError> {
    let [client, server] = ports(0);
    let (here, there) = if from == 0 {
        (client, server)
    } else {
        (server, client)
    };
    let mut frame = header(from)?
        .udp(here, there)
        .payload(&vec![0x5a; len - 42])
        .build();
    // No checksum (RFC 768), so that the ports can be rewritten alone.
    frame[40..42].fill(0);
    Ok(frame)
}

/// A datagram from guest 1 that begins a flow: to a port that the rules let in.
pub fn request_from_afar(len: usize) -> Result<Vec<u8>, PeerError> {
    let mut frame = datagram(1, len)?;
    let [[a, b], [c, d]] = ports(0).map(u16::to_be_bytes);
    frame[PORTS..PORTS + 4].copy_from_slice(&[a, b, c, d]);
    Ok(frame)
}

/// A frame from one guest to the other, up to the IP header.
pub fn header(from: usize) -> Result<Builder, PeerError> {
    let to = 1 - from;
    let mac = |index: usize| {
        GUEST_MACS[index]
            .parse()
            .map_err(|error| PeerError(format!("{error}")))
    };
    Ok(build::frame(mac(from)?, mac(to)?).ip(guest_ip(from), guest_ip(to)))
}

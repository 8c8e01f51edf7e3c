//! One measurement: frames from guest 0 to guest 1 for a while, counted where they arrive.

use std::time::{Duration, Instant};

use wire::build::{self, Builder};
use wire::offload::Offload;
use wire::parse::TcpFlags;

use crate::guest::Guest;
use crate::peers::{GUEST_MACS, PeerError, guest_ip};

/// Frames offered at a time: half of what a switch takes at a time, so that it never waits for the driver.
const BURST: u16 = 64;

/// Offsets of the UDP ports in an Ethernet/IPv4 frame.
const UDP_PORTS: usize = 34;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// UDP frames of this many bytes (with FCS, as the field counts: 64 is the least) over so many flows.
    Udp { frame_len: usize, flows: u32 },
    /// TCP frames of 64 KiB with a partial checksum, to be cut by whoever is the last to touch them.
    Tso,
}

impl Load {
    /// The name in tables and in the ratios.
    pub fn name(self) -> String {
        match self {
            Load::Udp { frame_len, flows: 1 } => format!("{frame_len}"),
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

/// The flows of a load in turn, for [`Guest::send`].
pub struct Turns {
    flows: u32,
    next: u32,
}

impl Turns {
    /// Beginning with the first.
    pub fn of(load: Load) -> Turns {
        Turns {
            flows: load.flows(),
            next: 0,
        }
    }

    /// Makes a frame one of the next flow.
    #[inline]
    pub fn next(&mut self, write: &mut dyn FnMut(usize, &[u8])) {
        if self.flows > 1 {
            write(UDP_PORTS, &ports(self.next));
            self.next = if self.next + 1 == self.flows {
                0
            } else {
                self.next + 1
            };
        }
    }
}

/// Frames a second that reach guest 1, over `duration` after a warm-up in which every flow is seen.
pub fn rate(guests: &mut [Guest; 2], load: Load, duration: Duration) -> Result<f64, PeerError> {
    prepare(guests, load)?;
    let flows = load.flows();
    let mut turns = Turns::of(load);
    let mut run = |guests: &mut [Guest; 2], least: u64, least_time: Duration, most_time: Duration| {
        let start = Instant::now();
        let mut count = 0u64;
        loop {
            for _ in 0..64 {
                guests[0].send(BURST, |write| turns.next(write));
                count += u64::from(guests[1].receive());
            }
            let elapsed = start.elapsed();
            if (elapsed >= least_time && count >= least) || elapsed >= most_time {
                return count as f64 / elapsed.as_secs_f64();
            }
        }
    };
    let settled = Duration::from_millis(150);
    run(guests, 2 * u64::from(flows), settled, Duration::from_secs(4));
    let rate = run(guests, 0, duration, duration);
    guests[1].check_order()?;
    drain(guests);
    Ok(rate)
}

/// Source and destination port of flow `number`: 10,000 source ports for each of the allowed destinations.
fn ports(number: u32) -> [u8; 4] {
    let source = 10_000 + (number % 10_000) as u16;
    let destination = crate::TRAFFIC_PORT + (number / 10_000) as u16;
    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
    [a, b, c, d]
}

/// What guests say to each other before and during a measurement.
pub struct Script {
    /// Said once, in this order: who says it, and what. It lets a switch know (or learn) where guest 1 is, and
    /// begins the connection.
    pub first: Vec<(usize, Vec<u8>)>,
    /// What guest 0 then sends over and over.
    pub frame: Vec<u8>,
    /// What it leaves undone in it.
    pub offload: Offload,
}

/// The frames of a load.
pub fn script(load: Load) -> Result<Script, PeerError> {
    let announce = header(1)?.udp(crate::TRAFFIC_PORT, 9).payload(&[0; 18]).build();
    let mut first = vec![(1, announce)];
    match load {
        Load::Udp { frame_len, .. } => {
            let payload = vec![0x5a; load.frame_bytes() - 42];
            let mut frame = header(0)?
                .udp(10_000, crate::TRAFFIC_PORT)
                .payload(&payload)
                .build();
            debug_assert_eq!(frame.len() + 4, frame_len);
            // No checksum (RFC 768), so that the ports can be rewritten alone.
            frame[40..42].fill(0);
            let offload = Offload::default();
            Ok(Script {
                first,
                frame,
                offload,
            })
        }
        Load::Tso => {
            let (here, there) = (10_000, crate::TRAFFIC_PORT);
            let syn = header(0)?.tcp(here, there, TcpFlags::SYN).seq(0).window(65_535);
            first.push((0, syn.build()));
            let syn_ack = TcpFlags::SYN | TcpFlags::ACK;
            let answer = header(1)?.tcp(there, here, syn_ack).seq(0).ack(1).window(65_535);
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

/// Says what comes first, and fills guest 0's buffers.
fn prepare(guests: &mut [Guest; 2], load: Load) -> Result<(), PeerError> {
    let script = script(load)?;
    for (from, frame) in &script.first {
        exchange(guests, *from, frame);
    }
    guests[0].prepare(&script.frame, &script.offload);
    Ok(())
}

/// A frame from one guest to the other, up to the IP header.
fn header(from: usize) -> Result<Builder, PeerError> {
    let to = 1 - from;
    let mac = |index: usize| {
        GUEST_MACS[index]
            .parse()
            .map_err(|error| PeerError(format!("{error}")))
    };
    Ok(build::frame(mac(from)?, mac(to)?).ip(guest_ip(from), guest_ip(to)))
}

/// Sends one frame and waits until it has arrived, or has not.
fn exchange(guests: &mut [Guest; 2], from: usize, frame: &[u8]) {
    guests[from].prepare(frame, &Offload::default());
    guests[from].send(1, |_| ());
    drain(guests);
}

/// Waits until nothing arrives any more.
fn drain(guests: &mut [Guest; 2]) {
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(30) {
        if guests[0].receive() + guests[1].receive() > 0 {
            quiet_since = Instant::now();
        }
    }
}

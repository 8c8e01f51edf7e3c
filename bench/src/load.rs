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

    /// Bytes of a frame as guests see it, without FCS.
    pub fn frame_bytes(self) -> usize {
        match self {
            Load::Udp { frame_len, .. } => frame_len - 4,
            Load::Tso => 65_226,
        }
    }
}

/// Frames a second that reach guest 1, over `duration` after a warm-up in which every flow is seen.
pub fn rate(guests: &mut [Guest; 2], load: Load, duration: Duration) -> Result<f64, PeerError> {
    prepare(guests, load)?;
    let flows = match load {
        Load::Udp { flows, .. } => flows,
        Load::Tso => 1,
    };
    let mut next = 0;
    let mut vary = |write: &mut dyn FnMut(usize, &[u8])| {
        if flows > 1 {
            write(UDP_PORTS, &ports(next));
            next = if next + 1 == flows { 0 } else { next + 1 };
        }
    };
    let mut run = |guests: &mut [Guest; 2], least: u64, least_time: Duration, most_time: Duration| {
        let start = Instant::now();
        let mut count = 0u64;
        loop {
            for _ in 0..64 {
                guests[0].send(BURST, &mut vary);
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

/// Fills guest 0's buffers, and lets the switch see guest 1 so that it knows (or learns) where that is.
fn prepare(guests: &mut [Guest; 2], load: Load) -> Result<(), PeerError> {
    let announce = header(1)?.udp(crate::TRAFFIC_PORT, 9).payload(&[0; 18]).build();
    exchange(guests, 1, &announce);
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
            guests[0].prepare(&frame, &Offload::default());
        }
        Load::Tso => {
            let (here, there) = (10_000, crate::TRAFFIC_PORT);
            let syn = header(0)?.tcp(here, there, TcpFlags::SYN).seq(0).window(65_535);
            exchange(guests, 0, &syn.build());
            let syn_ack = TcpFlags::SYN | TcpFlags::ACK;
            let answer = header(1)?.tcp(there, here, syn_ack).seq(0).ack(1).window(65_535);
            exchange(guests, 1, &answer.build());
            let payload = vec![0x5a; load.frame_bytes() - 54];
            let data = header(0)?
                .tcp(here, there, TcpFlags::ACK)
                .seq(1)
                .ack(1)
                .window(65_535);
            let (frame, offload) = data.payload(&payload).gso(1448).build_with_offload();
            guests[0].prepare(&frame, &offload);
        }
    }
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

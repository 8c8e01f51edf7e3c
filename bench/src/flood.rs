//! What a guest sends that floods: new flows, refused ones, and fragments, as fast as it can, while
//! two others go on with what they had before.

use std::time::{Duration, Instant};

use wire::build;
use wire::parse::TcpFlags;

use crate::guest::Guest;
use crate::interrupt;
use crate::load::{PORTS, Turns};
use crate::peers::{PeerError, guest_ip, guest_mac};

/// Which guest floods, and which one.
const FLOODER: usize = 2;
const FLOODED: usize = 0;

/// Frames that the driver moves at a time.
const CHUNK: u16 = 64;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flood {
    /// SYNs from random ports, to one that is allowed.
    Syn,
    /// Datagrams to random ports, few of which are allowed.
    Udp,
    /// Fragments of sixteen bytes of datagrams whose beginning never comes.
    Fragments,
}

impl Flood {
    pub const ALL: [Flood; 3] = [Flood::Syn, Flood::Udp, Flood::Fragments];

    /// The name in tables and ratios.
    pub fn name(self) -> &'static str {
        match self {
            Flood::Syn => "flood_syn",
            Flood::Udp => "flood_udp",
            Flood::Fragments => "flood_fragments",
        }
    }

    /// A frame of it.
    pub fn frame(self) -> Result<Vec<u8>, PeerError> {
        let start = build::frame(guest_mac(FLOODER)?, guest_mac(FLOODED)?)
            .ip(guest_ip(FLOODER), guest_ip(FLOODED));
        let port = crate::TRAFFIC_PORT;
        let mut frame = match self {
            Flood::Syn => start.tcp(1, port, TcpFlags::SYN).window(65_535).build(),
            Flood::Udp | Flood::Fragments => start.udp(1, port).payload(&[0; 8]).build(),
        };
        match self {
            // Checksums are not looked at; none at all is as good as the right one.
            Flood::Syn => {}
            Flood::Udp => frame[40..42].fill(0),
            // At offset 8, and not the last.
            Flood::Fragments => frame[20..22].copy_from_slice(&[0x20, 1]),
        }
        frame.resize(60, 0);
        Ok(frame)
    }

    /// Makes it another frame of the flood.
    pub fn vary(self, random: &mut u64, write: &mut dyn FnMut(usize, &[u8])) {
        *random = random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let [a, b, c, d, ..] = random.to_be_bytes();
        match self {
            Flood::Syn => write(PORTS, &[a, b]),
            Flood::Udp => write(PORTS, &[a, b, c, d]),
            // The identification: of another datagram each.
            Flood::Fragments => write(18, &[a, b]),
        }
    }
}

/// Frames a second that arrive from guest 0 at guest 1, while the third floods, or is quiet.
pub fn under(
    guests: &mut [Guest; 2],
    flooder: &mut Guest,
    flood: Option<Flood>,
    turns: &mut Turns,
    window: Duration,
) -> Result<f64, PeerError> {
    let (start, mut random, mut count) = (Instant::now(), 1u64, 0u64);
    loop {
        for _ in 0..16 {
            if let Some(flood) = flood {
                flooder.offer(CHUNK, |write| flood.vary(&mut random, write));
            }
            guests[0].offer(CHUNK, |write| turns.next(write));
            guests[0].collect(CHUNK);
            count += u64::from(guests[1].collect(CHUNK));
        }
        let elapsed = start.elapsed();
        if elapsed >= window {
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
        interrupt::check()?;
    }
}

//! What a guest sends that floods another one, as fast as it can, while two go on with what they
//! had before.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use wire::Mac;
use wire::build::{self, Builder};
use wire::offload::Offload;
use wire::parse::TcpFlags;

use crate::guest::{Described, Guest};
use crate::load::{PORTS, Turns};
use crate::peers::{PeerError, guest_ip, guest_mac};
use crate::report::Samples;
use crate::{interrupt, rate};

/// Which guest floods, and which one. Of a crowd that hears broadcasts that one is the first.
pub const FLOODER: usize = 2;
const FLOODED: usize = 3;

/// Frames that the driver moves at a time.
const CHUNK: u16 = 64;

/// Bytes of a datagram in a chain: a byte in each descriptor of a ring of 1,024 but the first.
const CHAIN: usize = 1_100;

/// Bytes of a large frame behind its headers.
const LARGE: usize = 65_000;

/// Notifications a turn of the driver.
const KICKS: usize = 16;

/// A frame that has not come after so long is lost.
const LOST: Duration = Duration::from_secs(1);

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flood {
    /// SYNs from random ports, to one that is allowed.
    Syn,
    /// Datagrams to random ports, few of which are allowed.
    Udp,
    /// Fragments of sixteen bytes of datagrams whose beginning never comes.
    Fragments,
    /// Datagrams of one flow: a neighbour that is just as busy.
    Small,
    /// Datagrams in as many descriptors as its ring has, a byte in each.
    Chains,
    /// Descriptors without a byte of a frame.
    Empty,
    /// Frames of 64 KiB of one connection.
    Large,
    /// Broadcasts of 1,500 bytes to a crowd.
    Broadcasts,
    /// Broadcasts of 64 KiB to a crowd.
    LargeBroadcasts,
    /// A datagram at a time, and notifications that nobody has asked for.
    Kicks,
    /// No frame: its VMM stops its rings and starts them anew, memory and all, as fast as the
    /// switch answers. It is not a new connection: OVS looks for one once a second.
    Restarts,
}

impl Flood {
    pub const ALL: [Flood; 11] = [
        Flood::Small,
        Flood::Syn,
        Flood::Udp,
        Flood::Fragments,
        Flood::Chains,
        Flood::Empty,
        Flood::Kicks,
        Flood::Restarts,
        Flood::Large,
        Flood::Broadcasts,
        Flood::LargeBroadcasts,
    ];

    /// Those of frames of which not everything is known.
    pub const UNKNOWN: [Flood; 3] = [Flood::Syn, Flood::Udp, Flood::Fragments];

    /// The name in tables and ratios.
    pub fn name(self) -> &'static str {
        match self {
            Flood::Syn => "flood_syn",
            Flood::Udp => "flood_udp",
            Flood::Fragments => "flood_fragments",
            Flood::Small => "flood_small",
            Flood::Chains => "flood_chains",
            Flood::Empty => "flood_empty",
            Flood::Large => "flood_large",
            Flood::Broadcasts => "flood_broadcasts",
            Flood::LargeBroadcasts => "flood_large_broadcasts",
            Flood::Kicks => "flood_kicks",
            Flood::Restarts => "flood_restarts",
        }
    }

    /// Fills the transmit buffers of the guest that floods; not of one whose frames are a
    /// connection's.
    pub fn prepare(self, flooder: &mut Guest) -> Result<(), PeerError> {
        let (frame, offload) = self.frame()?;
        match self {
            Flood::Chains => flooder.prepare_chain(&frame, &offload),
            _ => flooder.prepare(&frame, &offload),
        }
        Ok(())
    }

    /// A frame of it.
    fn frame(self) -> Result<(Vec<u8>, Offload), PeerError> {
        let to = match self {
            Flood::Broadcasts | Flood::LargeBroadcasts => Mac::BROADCAST,
            _ => guest_mac(FLOODED)?,
        };
        let start = header_by(to, FLOODER, FLOODED)?;
        let port = crate::TRAFFIC_PORT;
        let mut frame = match self {
            Flood::Syn => start.tcp(1, port, TcpFlags::SYN).window(65_535).build(),
            Flood::Chains => start.udp(1, port).payload(&[0; CHAIN - 42]).build(),
            Flood::Broadcasts => start.udp(1, port).payload(&[0; 1_500 - 28]).build(),
            Flood::LargeBroadcasts => return Ok(large(start.tcp(1, port, TcpFlags::ACK))),
            _ => start.udp(1, port).payload(&[0; 8]).build(),
        };
        match self {
            // Checksums are not looked at; none at all is as good as the right one.
            Flood::Udp => frame[40..42].fill(0),
            // At offset 8, and not the last.
            Flood::Fragments => frame[20..22].copy_from_slice(&[0x20, 1]),
            Flood::Empty => return Ok((Vec::new(), Offload::default())),
            _ => {}
        }
        frame.resize(frame.len().max(60), 0);
        Ok((frame, Offload::default()))
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
            _ => {}
        }
    }
}

/// Begins a connection to the guest that is flooded; what is sent of it then.
fn connection(guests: &mut [Guest; 2]) -> Result<(Vec<u8>, Offload), PeerError> {
    let (here, there) = (10_000, crate::TRAFFIC_PORT);
    let of = |header: Builder, ports: (u16, u16), flags, seq, ack| {
        let tcp = header.tcp(ports.0, ports.1, flags).seq(seq).ack(ack);
        tcp.window(65_535)
    };
    let (out, back) = (header(FLOODER, FLOODED)?, header(FLOODED, FLOODER)?);
    let syn = of(out.clone(), (here, there), TcpFlags::SYN, 0, 0);
    rate::say(guests, 0, &syn.build())?;
    let both = TcpFlags::SYN | TcpFlags::ACK;
    let answer = of(back, (there, here), both, 0, 1);
    rate::say(guests, 1, &answer.build())?;
    Ok(large(of(out, (here, there), TcpFlags::ACK, 1, 1)))
}

/// 64 KiB behind these headers, to be cut into segments.
fn large(header: Builder) -> (Vec<u8>, Offload) {
    let data = header.payload(&vec![0x5a; LARGE]);
    data.gso(1448).build_with_offload()
}

/// From one guest to another, up to the IP header.
fn header(from: usize, to: usize) -> Result<Builder, PeerError> {
    header_by(guest_mac(to)?, from, to)
}

/// The same to a MAC address that need not be the other guest's.
fn header_by(mac: Mac, from: usize, to: usize) -> Result<Builder, PeerError> {
    let frame = build::frame(guest_mac(from)?, mac);
    Ok(frame.ip(guest_ip(from), guest_ip(to)))
}

/// The guest that floods, and those that it floods.
pub struct Attack {
    flood: Flood,
    guests: [Guest; 2],
    /// Who else hears its broadcasts.
    crowd: Vec<Guest>,
    random: u64,
    /// Is notified in the switch's place while there is no flood: that costs the driver as much.
    nobody: OwnedFd,
    /// It floods now.
    pub on: bool,
}

impl Attack {
    /// Guests that do nothing yet.
    pub fn new(guests: [Guest; 2], crowd: Vec<Guest>) -> Result<Attack, PeerError> {
        let nobody = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Attack {
            flood: Flood::Small,
            guests,
            crowd,
            random: 1,
            nobody: nobody.map_err(|error| PeerError(format!("an eventfd: {error}")))?,
            on: false,
        })
    }

    /// What is to be sent from now on.
    pub fn prepare(&mut self, flood: Flood) -> Result<(), PeerError> {
        self.flood = flood;
        if flood != Flood::Large {
            return flood.prepare(&mut self.guests[0]);
        }
        let (frame, offload) = connection(&mut self.guests)?;
        self.guests[0].prepare(&frame, &offload);
        Ok(())
    }

    /// What the VMM of the guest that floods starts anew over and over; `None`: it does not.
    pub fn restarts(&self) -> Result<Option<Described>, PeerError> {
        let restarts = self.on && self.flood == Flood::Restarts;
        restarts.then(|| self.guests[0].described()).transpose()
    }

    /// Fills the ring, if it floods, and takes what has arrived.
    #[inline]
    fn go_on(&mut self) {
        let Attack {
            flood,
            guests: [flooder, flooded],
            crowd,
            random,
            nobody,
            on,
        } = self;
        match flood {
            Flood::Restarts => {}
            Flood::Kicks => {
                if *on {
                    flooder.offer(1, |_| ());
                }
                for _ in 0..KICKS {
                    if *on {
                        flooder.transmit.kick();
                    } else {
                        let _ = rustix::io::write(&*nobody, &1u64.to_ne_bytes());
                    }
                }
            }
            _ => {
                if *on {
                    flooder.offer(CHUNK, |write| flood.vary(random, write));
                }
            }
        }
        for guest in std::iter::once(flooded).chain(crowd) {
            guest.collect(CHUNK.min(guest.receive.size / 4));
        }
    }
}

/// Frames a second that arrive from guest 0 at guest 1 beside the attack.
pub fn arriving(
    guests: &mut [Guest; 2],
    attack: &mut Attack,
    turns: &mut Turns,
    window: Duration,
) -> Result<f64, PeerError> {
    let (start, mut count) = (Instant::now(), 0u64);
    loop {
        for _ in 0..16 {
            attack.go_on();
            guests[0].offer(CHUNK, |write| turns.next(write));
            count += u64::from(guests[1].collect(CHUNK));
        }
        let elapsed = start.elapsed();
        if elapsed >= window {
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
        interrupt::check()?;
    }
}

/// Seconds of the round trips between guests 0 and 1 beside the attack, one frame in flight.
pub fn round_trips(
    guests: &mut [Guest; 2],
    attack: &mut Attack,
    window: Duration,
) -> Result<Samples, PeerError> {
    let (begun, mut times) = (Instant::now(), Samples::default());
    while begun.elapsed() < window {
        let start = Instant::now();
        for from in 0..2 {
            guests[from].send(1, |_| ());
            while guests[1 - from].receive() == 0 {
                attack.go_on();
                if start.elapsed() > LOST {
                    return Err(PeerError("a frame did not arrive".to_owned()));
                }
            }
        }
        times.push(start.elapsed().as_secs_f64());
        interrupt::check()?;
    }
    Ok(times)
}

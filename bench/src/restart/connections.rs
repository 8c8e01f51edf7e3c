//! Connections between guests 0 and 1 that are to outlive what happens to their switch. What the
//! server says in one passes by its state alone: no rule lets it in.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use testkit::netns::Namespace;
use wire::parse::TcpFlags;

use super::end::End;
use crate::exchange::{Exchange, FRAME, Kind};
use crate::load::{self, PORTS};
use crate::peers::{PeerError, guest_ip};
use crate::{TRAFFIC_PORT, interrupt};

/// Segments that are under way at once.
const BLOCK: usize = 64;

/// How often a segment is said at the most, and how long nothing is said in between: it may be lost
/// as any frame. Where a connection is opened, it is the machine that has other things to do, and
/// the more patience the better.
const TIMES: usize = 5;
const OPENING_TIMES: usize = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// A segment that has not come by then is said again.
const LATE: Duration = Duration::from_millis(20);

/// The kernel says its own again until then.
const KERNEL_LATE: Duration = Duration::from_secs(5);

/// Of how many the server speaks after an event.
const ASKED: usize = 4_096;

/// TCP connections.
pub enum Connections {
    /// In segments of our own.
    Guests(Segments),
    /// Of the kernels of two containers: the client's ends and the server's.
    Sockets(Sockets),
}

impl Connections {
    /// So many of them, open.
    pub fn open(count: usize, ends: &mut [End]) -> Result<Connections, PeerError> {
        let segments = Segments {
            exchange: Exchange::new(Kind::Connection)?,
            asked: (0..count as u32)
                .step_by(count.div_ceil(ASKED).max(1))
                .collect(),
        };
        let all: Vec<u32> = (0..count as u32).collect();
        segments.open(&all, ends)?;
        Ok(Connections::Guests(segments))
    }

    /// So many between two containers.
    pub fn between(
        client: Namespace,
        server: Namespace,
        count: usize,
    ) -> Result<Connections, PeerError> {
        let at = (guest_ip(1), TRAFFIC_PORT);
        let listener = server.inside(|| TcpListener::bind(at))?.map_err(failed)?;
        let mut sockets = Sockets {
            client,
            _server: server,
            listener,
            open: Vec::new(),
        };
        for _ in 0..count {
            let pair = sockets.pair()?;
            sockets.open.push(pair);
        }
        Ok(Connections::Sockets(sockets))
    }

    /// How many are asked after an event.
    pub fn asked(&self) -> usize {
        match self {
            Connections::Guests(segments) => segments.asked.len(),
            Connections::Sockets(sockets) => sockets.open.len(),
        }
    }

    /// How many there are no more, of those that are asked; in their stead there are others.
    pub fn lost(&mut self, ends: &mut [End]) -> Result<usize, PeerError> {
        match self {
            Connections::Guests(segments) => segments.lost(ends),
            Connections::Sockets(sockets) => sockets.lost(),
        }
    }
}

/// Connections by their numbers ([`Exchange`]).
pub struct Segments {
    exchange: Exchange,
    asked: Vec<u32>,
}

impl Segments {
    fn open(&self, numbers: &[u32], ends: &mut [End]) -> Result<(), PeerError> {
        for step in 0..3 {
            let frame = |number| Ok(self.exchange.frame(step, number));
            let speaker = self.exchange.speaker(step);
            let silent = insist(ends, speaker, numbers, OPENING_TIMES, frame)?;
            if let Some(number) = silent.first() {
                let what = format!("step {step} of connection {number} does not pass");
                return Err(PeerError(what));
            }
        }
        Ok(())
    }

    fn lost(&self, ends: &mut [End]) -> Result<usize, PeerError> {
        let lost = insist(ends, 1, &self.asked, TIMES, amid)?;
        self.open(&lost, ends)?;
        Ok(lost.len())
    }
}

/// What the server says amid a connection, behind the first three steps: an acknowledgement.
fn amid(number: u32) -> Result<[u8; FRAME], PeerError> {
    let [client, server] = load::ports(number);
    let segment = load::header(1)?
        .tcp(server, client, TcpFlags::ACK)
        .seq(5001)
        .ack(1001)
        .window(65_535)
        .pad_to(FRAME)
        .build();
    let sized = segment.try_into();
    sized.map_err(|segment: Vec<u8>| PeerError(format!("a segment of {} bytes", segment.len())))
}

/// Has one of the two guests say the segment of each connection, again where it does not come;
/// those whose segment never does.
fn insist(
    ends: &mut [End],
    from: usize,
    numbers: &[u32],
    times: usize,
    frame: impl Fn(u32) -> Result<[u8; FRAME], PeerError>,
) -> Result<Vec<u32>, PeerError> {
    let mut silent = numbers.to_vec();
    for time in 0..times {
        if silent.is_empty() {
            break;
        }
        if time > 0 {
            interrupt::sleep(PAUSE)?;
        }
        let mut still = Vec::new();
        for block in silent.chunks(BLOCK) {
            let frames: Result<Vec<_>, _> = block.iter().map(|number| frame(*number)).collect();
            let came = say(ends, from, &frames?)?;
            let others = block.iter().zip(came).filter(|(_, came)| !came);
            still.extend(others.map(|(number, _)| *number));
        }
        silent = still;
    }
    Ok(silent)
}

/// Says these, from one of the guests to the other; which have come.
fn say(ends: &mut [End], from: usize, frames: &[[u8; FRAME]]) -> Result<Vec<bool>, PeerError> {
    // Ports, sequence numbers, flags.
    const WHAT: std::ops::Range<usize> = PORTS..PORTS + 14;
    let mut came = vec![false; frames.len()];
    for frame in frames {
        ends[from].send(frame);
    }
    let begun = Instant::now();
    while came.contains(&false) && begun.elapsed() < LATE {
        interrupt::check()?;
        ends[from].tend()?;
        ends[1 - from].receive(|got| {
            let same = |frame: &[u8; FRAME]| got.get(WHAT) == Some(&frame[WHAT]);
            if let Some(index) = frames.iter().position(same) {
                came[index] = true;
            }
        });
        std::thread::yield_now();
    }
    Ok(came)
}

/// The kernel's connections.
pub struct Sockets {
    client: Namespace,
    _server: Namespace,
    listener: TcpListener,
    open: Vec<[TcpStream; 2]>,
}

impl Sockets {
    fn pair(&self) -> Result<[TcpStream; 2], PeerError> {
        let at = (guest_ip(1), TRAFFIC_PORT).into();
        let connect = || TcpStream::connect_timeout(&at, KERNEL_LATE);
        let client = self.client.inside(connect)?.map_err(failed)?;
        let (server, _) = self.listener.accept().map_err(failed)?;
        client.set_nonblocking(true).map_err(failed)?;
        Ok([client, server])
    }

    fn lost(&mut self) -> Result<usize, PeerError> {
        let mut silent = Vec::new();
        for (index, [_, server]) in self.open.iter_mut().enumerate() {
            // What is broken is not heard either.
            let _ = server.write(&[7]);
            silent.push(index);
        }
        let begun = Instant::now();
        while !silent.is_empty() && begun.elapsed() < KERNEL_LATE {
            interrupt::check()?;
            let open = &mut self.open;
            silent.retain(|index| !has_received(&mut open[*index][0]));
            std::thread::sleep(Duration::from_millis(1));
        }
        for index in &silent {
            self.open[*index] = self.pair()?;
        }
        Ok(silent.len())
    }
}

/// Has a byte come?
fn has_received(client: &mut TcpStream) -> bool {
    loop {
        match client.read(&mut [0]) {
            Ok(count) => return count == 1,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

fn failed(error: std::io::Error) -> PeerError {
    PeerError(format!("a connection: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_amid_a_connection_is_between_its_ports() {
        let exchange = Exchange::new(Kind::Connection).unwrap();
        for number in [0, 49_999, 50_000] {
            let segment = amid(number).unwrap();
            // As the SYN-ACK, which the server has said before.
            assert_eq!(segment[..PORTS + 4], exchange.frame(1, number)[..PORTS + 4]);
            assert_eq!(segment[47], TcpFlags::ACK.0);
        }
    }
}

//! What is measured between two containers: each row's traffic, by sockets of their own kernels.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::netns::Namespace;

use super::entrants::{PORT, address};
use crate::report::Samples;

/// What does not count at the beginning of a window.
const WARM: Duration = Duration::from_millis(300);
/// Bytes of a datagram that fills a frame of 64 bytes, with Ethernet's checksum.
const SMALL: usize = 18;
/// Bytes that are written to a stream at once.
const CHUNK: usize = 256 << 10;
/// Nothing that is to come takes so long; the first connection of two containers that have just
/// come up waits for their links.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    Stream,
    Small,
    Median,
    Late,
    Connections,
}

/// All of them, in the order in which they are told.
pub const ROWS: [Row; 5] = [
    Row::Stream,
    Row::Small,
    Row::Median,
    Row::Late,
    Row::Connections,
];

impl Row {
    /// Its name in the last line.
    pub fn name(self) -> &'static str {
        match self {
            Row::Stream => "stream",
            Row::Small => "udp64",
            Row::Median => "rtt_p50",
            Row::Late => "rtt_p99",
            Row::Connections => "connections",
        }
    }

    /// What it is.
    pub fn title(self) -> &'static str {
        match self {
            Row::Stream => "TCP stream",
            Row::Small => "UDP of 64 bytes that arrives",
            Row::Median => "TCP round trip, median",
            Row::Late => "TCP round trip, 99 of 100",
            Row::Connections => "TCP connections",
        }
    }

    /// What it is counted in.
    pub fn unit(self) -> &'static str {
        match self {
            Row::Stream => "Gbit/s",
            Row::Small => "kframes/s",
            Row::Median | Row::Late => "us",
            Row::Connections => "a second",
        }
    }
}

/// Traffic between two containers, and what was seen of its rows.
pub type Window = fn(&[Namespace; 2], Duration) -> Result<Vec<f64>, String>;

/// In this order.
pub const WINDOWS: &[(&[Row], Window)] = &[
    (&[Row::Median, Row::Late], round_trips),
    (&[Row::Stream], stream),
    (&[Row::Small], small),
    (&[Row::Connections], connections),
];

fn io<T>(what: &str, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|e| format!("{what}: {e}"))
}

fn to() -> SocketAddr {
    SocketAddr::new(address(1), PORT)
}

fn listen(end: &Namespace) -> Result<TcpListener, String> {
    io("listen", end.inside(|| TcpListener::bind(to()))?)
}

/// A connection between both; the sockets are their namespaces' wherever they are used.
fn connected(ends: &[Namespace; 2], listener: &TcpListener) -> Result<[TcpStream; 2], String> {
    let client = io(
        "connect",
        ends[0].inside(|| TcpStream::connect_timeout(&to(), PATIENCE))?,
    )?;
    let (server, _) = io("accept", listener.accept())?;
    for socket in [&client, &server] {
        io("nodelay", socket.set_nodelay(true))?;
        io("time-out", socket.set_read_timeout(Some(PATIENCE)))?;
        io("time-out", socket.set_write_timeout(Some(PATIENCE)))?;
    }
    Ok([client, server])
}

/// Gbit/s that arrive.
fn stream(ends: &[Namespace; 2], window: Duration) -> Result<Vec<f64>, String> {
    let listener = listen(&ends[1])?;
    let [mut client, mut server] = connected(ends, &listener)?;
    let (ended, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let chunk = vec![7; CHUNK];
            while !ended.load(Ordering::Relaxed) {
                if client.write_all(&chunk).is_err() {
                    break;
                }
            }
            let _ = client.shutdown(std::net::Shutdown::Both);
        });
        scope.spawn(|| {
            let mut chunk = vec![0; CHUNK];
            while let Ok(count) = server.read(&mut chunk)
                && count > 0
            {
                arrived.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        let rate = counted(&arrived, window);
        ended.store(true, Ordering::Relaxed);
        Ok(vec![rate? * 8.0 / 1e9])
    })
}

/// What is added a second, after the spell that does not count. Nothing at all is no rate.
fn counted(number: &AtomicU64, window: Duration) -> Result<f64, String> {
    std::thread::sleep(WARM);
    let (begun, before) = (Instant::now(), number.load(Ordering::Relaxed));
    std::thread::sleep(window);
    match number.load(Ordering::Relaxed) - before {
        0 => Err(format!("nothing arrived in {window:?}")),
        more => Ok(more as f64 / begun.elapsed().as_secs_f64()),
    }
}

/// Thousands of small datagrams that arrive in a second.
fn small(ends: &[Namespace; 2], window: Duration) -> Result<Vec<f64>, String> {
    let [from, at] = ends;
    let server = io("bind", at.inside(|| UdpSocket::bind(to()))?)?;
    let client = io("bind", from.inside(|| UdpSocket::bind((address(0), 0)))?)?;
    io("connect", client.connect(to()))?;
    io(
        "time-out",
        server.set_read_timeout(Some(Duration::from_millis(50))),
    )?;
    let (ended, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // What finds no room is sent again.
                let _ = client.send(&[7; SMALL]);
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; SMALL];
            while !ended.load(Ordering::Relaxed) {
                if server.recv(&mut buffer).is_ok() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let rate = counted(&arrived, window);
        ended.store(true, Ordering::Relaxed);
        Ok(vec![rate? / 1e3])
    })
}

/// Microseconds of one byte there and back, one outstanding: median, and of 99 in 100.
fn round_trips(ends: &[Namespace; 2], window: Duration) -> Result<Vec<f64>, String> {
    let listener = listen(&ends[1])?;
    let [mut client, mut server] = connected(ends, &listener)?;
    let mut times = Samples::default();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while server.read_exact(&mut byte).is_ok() && server.write_all(&byte).is_ok() {}
        });
        let begun = Instant::now();
        while begun.elapsed() < WARM + window {
            let start = Instant::now();
            let mut byte = [7];
            io("write", client.write_all(&byte))?;
            io("read", client.read_exact(&mut byte))?;
            if begun.elapsed() > WARM {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        drop(client);
        Ok::<_, String>(())
    })?;
    Ok(vec![times.median(), times.quantile(0.99)])
}

/// Connections a second, one after the other: made, a byte each way, closed.
fn connections(ends: &[Namespace; 2], window: Duration) -> Result<Vec<f64>, String> {
    let listener = listen(&ends[1])?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = [0];
            while let Ok((mut server, _)) = listener.accept()
                && !ended.load(Ordering::Relaxed)
            {
                let _ = server.set_read_timeout(Some(PATIENCE));
                let _ = server.read_exact(&mut byte);
                let _ = server.write_all(&byte);
            }
        });
        let done = ends[0].inside(|| {
            let (begun, mut made) = (Instant::now(), 0u64);
            while begun.elapsed() < window {
                let mut client = TcpStream::connect(to())?;
                client.set_read_timeout(Some(PATIENCE))?;
                client.write_all(&[7])?;
                client.read_exact(&mut [0])?;
                made += 1;
            }
            Ok(made as f64 / begun.elapsed().as_secs_f64())
        });
        ended.store(true, Ordering::Relaxed);
        // Who waits for the next one is beside the listener: this one comes whatever has failed.
        let _ = ends[1].inside(|| TcpStream::connect(to()));
        Ok(vec![io("connections", done?)?])
    })
}

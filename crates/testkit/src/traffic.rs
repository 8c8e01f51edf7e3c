//! Traffic of real sockets between namespaces, as programs send it: streams that the kernel joins
//! to large packets (GSO), datagrams, round trips. Checksums and segments are left to whoever needs
//! them, as the interfaces are set.
//!
//! A [`Station`] answers in a namespace until it is dropped; the functions are its clients, of
//! another namespace or the same. Bodies are compared byte for byte. For tests, and for benchmarks:
//! every function says what it measured.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::netns::Namespace;
use crate::{PATIENCE, Result};

/// Takes streams and compares them with [`body`].
pub const UPLOAD: u16 = 7001;
/// Sends as many bytes of [`body`] as the client asks for, in eight bytes of its own.
pub const DOWNLOAD: u16 = 7002;
/// Sends back what comes, of streams and datagrams.
pub const ECHO: u16 = 7007;
/// Takes datagrams and counts them.
pub const DISCARD: u16 = 7009;

/// How often a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
const CHUNK: usize = 128 * 1024;

/// What a stream carries, from a byte on: no two places of it look alike.
fn fill(from: u64, out: &mut [u8]) {
    for (at, byte) in (from..).zip(out) {
        // The high bytes of a product: splitmix64's multiplier.
        *byte = ((at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * (at % 8))) as u8;
    }
}

/// `len` bytes of what streams carry.
pub fn body(len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    fill(0, &mut body);
    body
}

/// All services, on addresses of a namespace.
#[derive(Debug)]
pub struct Station {
    end: Arc<AtomicBool>,
    datagrams: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Station {
    /// Listens on all addresses of both families. Datagrams are answered from the address that the
    /// kernel chooses, which on a host with several need not be the one that was asked: see
    /// [`on`](Self::on). Its threads end with it.
    pub fn new(host: &Namespace) -> Result<Station> {
        Self::on(host, &[IpAddr::from([0; 16])])
    }

    /// Listens on these addresses alone, and answers from them.
    pub fn on(host: &Namespace, addresses: &[IpAddr]) -> Result<Station> {
        let mut station = Station {
            end: Arc::default(),
            datagrams: Arc::default(),
            threads: Vec::new(),
        };
        for address in addresses {
            station.listen(host, *address)?;
        }
        Ok(station)
    }

    fn listen(&mut self, host: &Namespace, address: IpAddr) -> Result<()> {
        for port in [UPLOAD, DOWNLOAD, ECHO] {
            let listener = host.inside(|| TcpListener::bind((address, port)))?;
            let listener = listener.map_err(|e| format!("a station's port {port}: {e}"))?;
            listener.set_nonblocking(true).map_err(|e| e.to_string())?;
            let end = self.end.clone();
            self.threads
                .push(std::thread::spawn(move || accept(&listener, port, &end)));
        }
        for port in [ECHO, DISCARD] {
            let socket = host.inside(|| UdpSocket::bind((address, port)))?;
            let socket = socket.map_err(|e| format!("a station's port {port}: {e}"))?;
            socket
                .set_read_timeout(Some(LOOK))
                .map_err(|e| e.to_string())?;
            let (end, count) = (self.end.clone(), self.datagrams.clone());
            self.threads.push(std::thread::spawn(move || {
                datagrams(&socket, port, &end, &count)
            }));
        }
        Ok(())
    }

    /// Datagrams that came to [`DISCARD`] so far.
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, port: u16, end: &AtomicBool) {
    std::thread::scope(|scope| {
        while !end.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    scope.spawn(move || converse(stream, port, end));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(LOOK / 10)
                }
                Err(_) => return,
            }
        }
    });
}

fn converse(mut stream: TcpStream, port: u16, end: &AtomicBool) {
    let set = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(LOOK)))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.set_nodelay(true));
    if set.is_err() {
        return;
    }
    let mut chunk = vec![0; CHUNK];
    let mut request = Vec::new();
    let mut judge = Judge::default();
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(len) => match port {
                ECHO if stream.write_all(&chunk[..len]).is_ok() => {}
                UPLOAD => judge.take(&chunk[..len]),
                DOWNLOAD => {
                    request.extend(&chunk[..len]);
                    let Ok(count) = request[..].try_into() else {
                        continue;
                    };
                    if give(&mut stream, u64::from_be_bytes(count), None).is_err() {
                        return;
                    }
                    break;
                }
                _ => return,
            },
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if end.load(Ordering::Relaxed) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
    if port == UPLOAD {
        // The verdict: bytes that were right, and whether one was wrong.
        let _ = stream.write_all(&judge.right.to_be_bytes());
        let _ = stream.write_all(&[judge.wrong.into()]);
    }
}

fn datagrams(socket: &UdpSocket, port: u16, end: &AtomicBool, count: &AtomicU64) {
    let mut datagram = vec![0; 65536];
    while !end.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut datagram) else {
            continue;
        };
        if port == ECHO {
            let _ = socket.send_to(&datagram[..len], from);
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Compares a stream with what it should carry.
#[derive(Default)]
struct Judge {
    right: u64,
    wrong: bool,
    expected: Vec<u8>,
}

impl Judge {
    fn take(&mut self, bytes: &[u8]) {
        if self.expected.is_empty() {
            self.expected = [body(PERIOD), body(CHUNK)].concat();
        }
        let at = (self.right % PERIOD as u64) as usize;
        self.wrong |= bytes != &self.expected[at..at + bytes.len()];
        self.right += bytes.len() as u64;
    }
}

/// After so many bytes a stream begins again; a multiple of no packet's length.
const PERIOD: usize = 1_000_003;

/// Sends so many bytes, or as many as a time allows.
fn give(stream: &mut TcpStream, count: u64, until: Option<Instant>) -> std::io::Result<u64> {
    let bytes = body(PERIOD);
    let mut sent = 0;
    while sent < count && until.is_none_or(|until| Instant::now() < until) {
        let at = (sent % PERIOD as u64) as usize;
        let len = CHUNK
            .min(PERIOD - at)
            .min(usize::try_from(count - sent).unwrap_or(CHUNK));
        stream.write_all(&bytes[at..at + len])?;
        sent += len as u64;
    }
    Ok(sent)
}

fn connect(from: &Namespace, to: SocketAddr) -> Result<TcpStream> {
    let stream = from.inside(|| TcpStream::connect_timeout(&to, PATIENCE))?;
    let stream = stream.map_err(|e| format!("connect to {to}: {e}"))?;
    let set = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    set.map_err(|e| e.to_string())?;
    Ok(stream)
}

fn verdict(mut stream: TcpStream, sent: u64) -> Result<()> {
    let mut verdict = [0; 9];
    stream
        .shutdown(std::net::Shutdown::Write)
        .and_then(|()| stream.read_exact(&mut verdict))
        .map_err(|e| format!("the verdict of {sent} bytes: {e}"))?;
    let came = u64::from_be_bytes(verdict[..8].try_into().unwrap_or_default());
    if came != sent || verdict[8] != 0 {
        return Err(format!(
            "{came} of {sent} bytes came, wrong: {}",
            verdict[8] != 0
        ));
    }
    Ok(())
}

/// Sends so many bytes to a station, which has to have all of them.
pub fn upload(from: &Namespace, to: IpAddr, bytes: u64) -> Result<()> {
    let mut stream = connect(from, (to, UPLOAD).into())?;
    let sent = give(&mut stream, bytes, None).map_err(|e| format!("send to {to}: {e}"))?;
    verdict(stream, sent)
}

/// Asks a station for so many bytes, all of which have to come.
pub fn download(from: &Namespace, to: IpAddr, bytes: u64) -> Result<()> {
    let mut stream = connect(from, (to, DOWNLOAD).into())?;
    let failed = |e: std::io::Error| format!("{bytes} bytes from {to}: {e}");
    stream.write_all(&bytes.to_be_bytes()).map_err(failed)?;
    let mut judge = Judge::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        match stream.read(&mut chunk).map_err(failed)? {
            0 => break,
            len => judge.take(&chunk[..len]),
        }
    }
    if judge.right != bytes || judge.wrong {
        return Err(format!(
            "{} of {bytes} bytes came from {to}, wrong: {}",
            judge.right, judge.wrong
        ));
    }
    Ok(())
}

/// Bits a second of one stream to a station, over a time.
pub fn stream_rate(from: &Namespace, to: IpAddr, time: Duration) -> Result<f64> {
    let mut stream = connect(from, (to, UPLOAD).into())?;
    let start = Instant::now();
    let sent = give(&mut stream, u64::MAX, Some(start + time))
        .map_err(|e| format!("send to {to}: {e}"))?;
    verdict(stream, sent)?;
    Ok(sent as f64 * 8.0 / start.elapsed().as_secs_f64())
}

fn udp(from: &Namespace, to: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let socket =
        from.inside(|| UdpSocket::bind((any, 0)).and_then(|one| one.connect(to).map(|()| one)))?;
    let socket = socket.map_err(|e| format!("a datagram socket to {to}: {e}"))?;
    socket
        .set_read_timeout(Some(PATIENCE))
        .map_err(|e| e.to_string())?;
    Ok(socket)
}

/// Datagrams a second that arrive at a station, of one socket that sends as fast as it can, each of
/// `len` bytes.
pub fn datagram_rate(
    from: &Namespace,
    station: &Station,
    to: IpAddr,
    len: usize,
    time: Duration,
) -> Result<f64> {
    let socket = udp(from, (to, DISCARD).into())?;
    let payload = body(len);
    let (start, before) = (Instant::now(), station.datagrams());
    while start.elapsed() < time {
        for _ in 0..64 {
            // What there is no room for, or nobody listens to, is lost: it is arrivals that count.
            let _ = socket.send(&payload);
        }
    }
    Ok((station.datagrams() - before) as f64 / start.elapsed().as_secs_f64())
}

/// A datagram of each length there and back, byte for byte.
pub fn echoes(from: &Namespace, to: IpAddr, lengths: &[usize]) -> Result<()> {
    let socket = udp(from, (to, ECHO).into())?;
    for len in lengths {
        let sent = body(*len);
        let failed = |e: std::io::Error| format!("a datagram of {len} bytes to {to}: {e}");
        socket.send(&sent).map_err(failed)?;
        let mut back = vec![0; 65536];
        let came = socket.recv(&mut back).map_err(failed)?;
        if back[..came] != sent {
            return Err(format!(
                "of a datagram of {len} bytes to {to} {came} came back"
            ));
        }
    }
    Ok(())
}

/// The median nanoseconds of `times` round trips of a byte on one stream.
pub fn stream_round_trip(from: &Namespace, to: IpAddr, times: usize) -> Result<f64> {
    let mut stream = connect(from, (to, ECHO).into())?;
    let mut byte = [7];
    median(times, || {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)
    })
    .map_err(|e| format!("a round trip to {to}: {e}"))
}

fn median(times: usize, mut once: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    let mut took = Vec::with_capacity(times);
    for _ in 0..times.max(1) {
        let start = Instant::now();
        once()?;
        took.push(start.elapsed().as_nanos());
    }
    took.sort_unstable();
    Ok(took[took.len() / 2] as f64)
}

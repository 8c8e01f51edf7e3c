//! Streams: TCP and SCTP servers and clients. SCTP is used in its one-to-one style, which has the
//! calls of TCP.
//!
//! What `tcp-serve` and `tcp-put` send says where in the stream it is ([`Pattern`]), and who reads
//! it looks at every byte: a switch that merged, cut or mixed segments wrongly, under checksums
//! that it vouched for, shows here and nowhere else.

use crate::{Outcome, endpoint, number};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

const CHUNK: usize = 64 * 1024;
/// How often a client writes down how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// What streams are made of: `PERIOD` bytes, again and again.
struct Pattern(Vec<u8>);

impl Pattern {
    /// A prime, so that what is a segment or a buffer too early or too late is something else.
    const PERIOD: usize = 65_521;

    fn new() -> Self {
        // Knuth's multiplier: neighbouring bytes have nothing to do with each other.
        let byte = |at: usize| {
            ((at % Self::PERIOD) as u32)
                .wrapping_mul(2_654_435_761)
                .to_be_bytes()[0]
        };
        Self((0..Self::PERIOD + CHUNK).map(byte).collect())
    }

    /// `len` bytes of the stream from `at` on; at most `CHUNK`.
    fn stretch(&self, at: u64, len: usize) -> &[u8] {
        let start = (at % Self::PERIOD as u64) as usize;
        &self.0[start..start + len]
    }

    /// Fails when these bytes are not those from `at` on.
    fn check(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let sent = self.stretch(at, bytes.len());
        match sent.iter().zip(bytes).position(|(sent, came)| sent != came) {
            None => Ok(()),
            Some(first) => Err(format!(
                "byte {} is not the one that was sent",
                at + first as u64
            )),
        }
    }
}

/// Which protocol a stream runs over.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Tcp,
    Sctp,
}

/// In how many pieces that which a stream with a rate sends in a second goes.
const PIECES: u64 = 200;

/// Sends to everybody who connects, at most `rate` bytes a second (0: as fast as it goes).
pub fn serve(kind: Kind, port: &str, rate: &str) -> Outcome {
    let rate: u64 = number(rate, "rate")?;
    each_connection(kind, port, move |mut stream| {
        let pattern = Pattern::new();
        let begin = Instant::now();
        let mut sent = 0u64;
        loop {
            let allowed = (begin.elapsed().as_secs_f64() * rate as f64) as u64;
            let due = allowed.saturating_sub(sent);
            // A few bytes are always due: sent one by one they would take a processor.
            if rate > 0 && due < rate.div_ceil(PIECES) {
                std::thread::sleep(Duration::from_secs(1) / PIECES as u32);
                continue;
            }
            let want = match rate {
                0 => CHUNK,
                _ => due.min(CHUNK as u64) as usize,
            };
            match stream.write(pattern.stretch(sent, want)) {
                Ok(n) if n > 0 => sent += n as u64,
                _ => return,
            }
        }
    })
}

/// Reads until `bytes` have come (0: no bound) or `secs` have passed, and says how many came and
/// how fast. With `progress`, a file holds the count while it runs. Fewer bytes than asked for is a
/// failure, and so are others than were sent.
pub fn fetch(addr: &str, port: &str, bytes: &str, secs: &str, progress: Option<&str>) -> Outcome {
    let (target, secs): (u64, f64) = (number(bytes, "bytes")?, number(secs, "seconds")?);
    let limit = Duration::from_secs_f64(secs);
    let mut stream = connect(Kind::Tcp, endpoint(addr, port)?, limit)?;
    stream
        .set_read_timeout(Some(PROGRESS_EVERY))
        .map_err(|e| format!("cannot set a time-out: {e}"))?;
    let begin = Instant::now();
    let (mut count, mut noted) = (0u64, begin);
    let (pattern, mut chunk) = (Pattern::new(), vec![0u8; CHUNK]);
    let mut end = "time";
    while begin.elapsed() < limit {
        match stream.read(&mut chunk) {
            Ok(0) => {
                end = "closed";
                break;
            }
            Ok(n) => {
                pattern.check(count, &chunk[..n])?;
                count += n as u64;
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(format!("after {count} bytes: {e}")),
        }
        if let Some(path) = progress
            && noted.elapsed() >= PROGRESS_EVERY
        {
            noted = Instant::now();
            note(path, count);
        }
        if target > 0 && count >= target {
            end = "done";
            break;
        }
    }
    let secs = begin.elapsed().as_secs_f64();
    let line = format!(
        "bytes={count} secs={secs:.3} mbit={:.1} end={end}",
        count as f64 * 8e-6 / secs
    );
    if target > 0 && count < target {
        Err(line)
    } else {
        Ok(line)
    }
}

/// The rename makes the count whole for whoever reads it.
fn note(path: &str, count: u64) {
    let fresh = format!("{path}.new");
    if std::fs::write(&fresh, format!("{count}\n")).is_ok() {
        let _ = std::fs::rename(fresh, path);
    }
}

/// Reads from everybody who connects, until they stop sending; answers with the count, or with what
/// is wrong.
pub fn sink(port: &str) -> Outcome {
    each_connection(Kind::Tcp, port, |mut stream| {
        let (pattern, mut chunk) = (Pattern::new(), vec![0u8; CHUNK]);
        let mut count = 0u64;
        let answer = loop {
            match stream.read(&mut chunk) {
                Ok(0) => break count.to_string(),
                Ok(n) => match pattern.check(count, &chunk[..n]) {
                    Ok(()) => count += n as u64,
                    Err(wrong) => break wrong,
                },
                Err(_) => return,
            }
        };
        let _ = stream.write_all(format!("{answer}\n").as_bytes());
    })
}

/// Sends `bytes` and waits until the other side says that as many came.
pub fn put(addr: &str, port: &str, bytes: &str, secs: &str) -> Outcome {
    let (bytes, secs): (u64, f64) = (number(bytes, "bytes")?, number(secs, "seconds")?);
    let limit = Duration::from_secs_f64(secs);
    let mut stream = connect(Kind::Tcp, endpoint(addr, port)?, limit)?;
    let (begin, pattern) = (Instant::now(), Pattern::new());
    stream
        .set_write_timeout(Some(limit))
        .and_then(|()| stream.set_read_timeout(Some(limit)))
        .map_err(|e| format!("cannot set a time-out: {e}"))?;
    let mut left = bytes;
    while left > 0 {
        if begin.elapsed() > limit {
            return Err(format!("{left} of {bytes} bytes are left after {secs} s"));
        }
        let want = left.min(CHUNK as u64) as usize;
        left -= stream
            .write(pattern.stretch(bytes - left, want))
            .map_err(|e| format!("with {left} bytes left: {e}"))? as u64;
    }
    stream
        .shutdown(std::net::Shutdown::Write)
        .map_err(|e| format!("cannot end the stream: {e}"))?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .map_err(|e| format!("no answer: {e}"))?;
    if answer.trim() != bytes.to_string() {
        return Err(format!(
            "sent {bytes} bytes, the other side says {:?}",
            answer.trim()
        ));
    }
    let secs = begin.elapsed().as_secs_f64();
    Ok(format!(
        "bytes={bytes} secs={secs:.3} mbit={:.1}",
        bytes as f64 * 8e-6 / secs
    ))
}

/// Sends back what comes.
pub fn echo(kind: Kind, port: &str) -> Outcome {
    each_connection(kind, port, |mut stream| {
        let mut chunk = vec![0u8; CHUNK];
        while let Ok(n) = stream.read(&mut chunk) {
            if n == 0 || stream.write_all(&chunk[..n]).is_err() {
                return;
            }
        }
    })
}

/// Sends `count` small messages and waits for each to come back.
pub fn ping(kind: Kind, addr: &str, port: &str, count: &str, secs: &str) -> Outcome {
    let (count, secs): (u32, f64) = (number(count, "count")?, number(secs, "seconds")?);
    let limit = Duration::from_secs_f64(secs);
    let mut stream = connect(kind, endpoint(addr, port)?, limit)?;
    stream
        .set_read_timeout(Some(limit))
        .map_err(|e| format!("cannot set a time-out: {e}"))?;
    for i in 0..count {
        let message = format!("message {i:08}");
        let mut answer = vec![0u8; message.len()];
        stream
            .write_all(message.as_bytes())
            .map_err(|e| format!("message {i}: {e}"))?;
        stream
            .read_exact(&mut answer)
            .map_err(|e| format!("answer {i}: {e}"))?;
        if answer != message.as_bytes() {
            return Err(format!("answer {i} is not what was sent"));
        }
    }
    Ok(format!("answers={count}"))
}

fn each_connection(
    kind: Kind,
    port: &str,
    each: impl Fn(Socket) + Clone + Send + 'static,
) -> Outcome {
    let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, number(port, "port")?));
    let listener = socket(kind, local).and_then(|socket| {
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&local.into())?;
        socket.listen(64)?;
        Ok(socket)
    });
    let listener = listener.map_err(|e| format!("cannot listen on port {port}: {e}"))?;
    println!("listening");
    loop {
        let (stream, _) = listener
            .accept()
            .map_err(|e| format!("cannot accept: {e}"))?;
        let each = each.clone();
        std::thread::spawn(move || each(stream));
    }
}

fn connect(kind: Kind, to: SocketAddr, limit: Duration) -> Result<Socket, String> {
    socket(kind, to)
        .and_then(|socket| {
            socket.connect_timeout(&to.into(), limit)?;
            Ok(socket)
        })
        .map_err(|e| format!("cannot connect to {to}: {e}"))
}

fn socket(kind: Kind, like: SocketAddr) -> std::io::Result<Socket> {
    let protocol = if kind == Kind::Tcp {
        Protocol::TCP
    } else {
        Protocol::from(132)
    };
    Socket::new(Domain::for_address(like), Type::STREAM, Some(protocol))
}

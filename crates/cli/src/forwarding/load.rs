//! Frames sent by one interface and counted at another.
//!
//! Both are XDP programs. The source makes frames in the kernel (BPF_F_TEST_XDP_LIVE_FRAMES) and
//! gives them to the interface's driver, without a socket buffer, as fast as that takes them. The
//! sink counts what comes of them in its driver, and drops it there.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use wire::{Mac, build};
use xdp::{Attachment, Mode, Program, Scatter, Sink, attach, objects};

/// Of the bytes that a frame has on the wire, those that the hardware adds.
const FCS: u32 = 4;
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Where UDP has its checksum.
const CHECKSUM: std::ops::Range<usize> = 40..42;
/// Discard (RFC 863), on both sides.
const PORT: u16 = 9;

/// The first batch; those that follow are a third of a window.
const FIRST: u32 = 1 << 14;
/// Until what is under way has arrived, its count does not change for so long.
const QUIET: Duration = Duration::from_millis(20);
/// A link may go down and come up when a program is attached.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is sent.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The forwarding host's address on the source's cable.
    pub gateway: Mac,
    /// Where it says it comes from.
    pub from: Ipv4Addr,
    /// Where it goes to, in turn: a power of two of them.
    pub to: Vec<IpAddr>,
}

/// The two programs, on their interfaces.
#[derive(Debug)]
pub struct Load {
    traffic: Traffic,
    source: (u32, Mac),
    scatter: Scatter,
    sink: Sink,
    frame: Vec<u8>,
    /// What a batch takes beside its frames.
    overhead: Duration,
    _attached: [Attachment; 2],
}

/// What was measured in a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Frames a second that the source has made.
    pub offered: f64,
    /// Frames a second that have come to the sink.
    pub arrived: f64,
}

impl Load {
    /// Takes the two interfaces, of the calling thread's network namespace: their indices, and the
    /// source's address. Other frames at the sink are the kernel's as ever.
    ///
    /// # Errors
    /// An interface takes no program. The text is for people.
    pub fn new(source: (u32, Mac), sink: u32, traffic: Traffic) -> Result<Load, String> {
        let failed = |e: xdp::Error| e.to_string();
        let scatter = Scatter::new(traffic.to.len() as u32).map_err(failed)?;
        let counter = Sink::new(SocketAddrV4::new(traffic.from, PORT)).map_err(failed)?;
        // Drivers send frames of XDP where they run a program.
        let pass = Program::load("pass", objects::PASS, |_| Ok(())).map_err(failed)?;
        let sends = attach(&pass, source.0, Some(Mode::Native));
        let sends = sends.map_err(|e| format!("it cannot send: {e}"))?;
        let counts = attach(counter.program(), sink, None);
        let counts = counts.map_err(|e| format!("it cannot count: {e}"))?;
        Ok(Load {
            traffic,
            source,
            scatter,
            sink: counter,
            frame: Vec::new(),
            overhead: Duration::ZERO,
            _attached: [sends, counts],
        })
    }

    /// From now on frames of so many bytes on the wire are sent, FCS among them: 64 at least.
    ///
    /// # Errors
    /// The kernel refuses. The text is for people.
    pub fn set_size(&mut self, bytes: u32) -> Result<(), String> {
        let len = bytes.saturating_sub(FCS) as usize;
        let mut frame = build::frame(self.source.1, self.traffic.gateway)
            .ip(self.traffic.from, Ipv4Addr::UNSPECIFIED)
            .udp(PORT, PORT)
            .payload(&vec![0; len.saturating_sub(HEADERS)])
            .build();
        // None: the destination is to be another.
        frame[CHECKSUM].fill(0);
        let told = self
            .scatter
            .set_frame(&frame, &self.traffic.to, self.source.0);
        told.map_err(|e| e.to_string())?;
        self.frame = frame;
        Ok(())
    }

    /// Sends some frames until some have come. False: none comes.
    ///
    /// # Errors
    /// The source cannot send. The text is for people.
    pub fn arrives(&mut self) -> Result<bool, String> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let before = self.arrived()?;
            self.send(64)?;
            self.settle()?;
            if self.arrived()? > before {
                let alone = [self.send(1)?, self.send(1)?, self.send(1)?];
                self.overhead = alone.into_iter().min().unwrap_or_default();
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends for about so long.
    ///
    /// # Errors
    /// The source cannot send. The text is for people.
    pub fn window(&mut self, length: Duration) -> Result<Window, String> {
        let before = (self.scatter.made().map_err(text)?, self.arrived()?);
        let (mut batch, mut took) = (FIRST, Duration::ZERO);
        while took < length {
            let one = self.send(batch)?.saturating_sub(self.overhead);
            took += one;
            let secs = one.as_secs_f64().max(1e-6);
            let third = f64::from(batch) * length.as_secs_f64() / 3.0 / secs;
            batch = (third as u32).max(FIRST);
        }
        self.settle()?;
        let now = (self.scatter.made().map_err(text)?, self.arrived()?);
        let per_second = |count: u64| count as f64 / took.as_secs_f64();
        Ok(Window {
            offered: per_second(now.0 - before.0),
            arrived: per_second(now.1 - before.1),
        })
    }

    /// Frames that have come so far.
    pub fn arrived(&self) -> Result<u64, String> {
        self.sink.count().map_err(text)
    }

    fn send(&self, frames: u32) -> Result<Duration, String> {
        let sent = xdp::send(self.scatter.program(), &self.frame, self.source.0, frames);
        sent.map_err(|e| format!("the source cannot send: {e}"))
    }

    /// Waits until what is under way has come.
    fn settle(&self) -> Result<(), String> {
        let mut before = self.arrived()?;
        loop {
            std::thread::sleep(QUIET);
            let now = self.arrived()?;
            if now == before {
                return Ok(());
            }
            before = now;
        }
    }
}

fn text(error: xdp::Error) -> String {
    error.to_string()
}

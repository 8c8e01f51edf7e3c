//! What looking costs: a stream between two guests, in turn with nobody looking and with the
//! metrics scraped, connections logged, another guest's frames captured or traced as they pass, or
//! the stream's own frames sampled.
//!
//! A third guest begins ten thousand connections a second, so that there is something to log, to
//! capture and to trace; only the samples are taken of the stream itself. Windows with and without
//! a watcher follow each other. What is compared is the worker's own time a frame, from its
//! counters of frames and of nanoseconds in turns that found one: who looks runs on the driver's
//! core, and what that takes of the driver's time is not the path's.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::flood::Flood;
use crate::guest::Guest;
use crate::hugepages::HugePages;
use crate::load::Turns;
use crate::peers::{PeerError, Process, Setup, butterfly};
use crate::plan::BASE;
use crate::report::{Ratios, Samples};
use crate::{interrupt, rate, regime};

/// Guest memory only.
const HUGE_PAGES: u64 = 64;

/// Between two connections of the third guest.
const CONNECTION_EVERY: Duration = Duration::from_micros(100);

/// A watcher has begun by then.
const SETTLED: Duration = Duration::from_millis(400);

/// Who looks.
#[derive(Clone, Copy)]
enum Watcher {
    /// `/metrics`, once a second.
    Metrics,
    /// `butterfly watch --of flows`, which turns the log of connections on.
    FlowLog,
    /// `butterfly capture` of the third guest's NIC.
    Capture,
    /// `butterfly trace --live` of it, a hundred frames a second as it is without `--rate`.
    LiveTrace,
    /// sFlow of both NICs of the stream, at the default rate.
    Samples,
}

/// One frame of so many is sampled, as it is without `--sflow-rate`.
const SAMPLE_RATE: u32 = 1000;

impl Watcher {
    const ALL: [Watcher; 5] = [
        Watcher::Metrics,
        Watcher::FlowLog,
        Watcher::Capture,
        Watcher::LiveTrace,
        Watcher::Samples,
    ];

    /// The name in the table and in ratios.
    fn name(self) -> &'static str {
        match self {
            Watcher::Metrics => "metrics",
            Watcher::FlowLog => "flow_log",
            Watcher::Capture => "capture",
            Watcher::LiveTrace => "live_trace",
            Watcher::Samples => "samples",
        }
    }

    /// Looks from now on; None where it is the daemon itself that does.
    fn start(self, dir: &Path) -> Result<Option<Process>, PeerError> {
        let line = match self {
            Watcher::Metrics => {
                let url = "http://localhost/metrics";
                let socket = metrics(dir);
                let socket = socket.display();
                let script = format!(
                    "while curl -sS -o /dev/null --unix-socket {socket} {url}; do sleep 1; done"
                );
                let mut command = Process::command("sh");
                command.args(["-c", &script]);
                return Process::start(&mut command, &dir.join("watcher.log")).map(Some);
            }
            Watcher::Samples => return sample(dir, SAMPLE_RATE).map(|()| None),
            Watcher::FlowLog => "watch --of flows --json",
            Watcher::Capture => "capture nic2",
            Watcher::LiveTrace => "trace --live nic2",
        };
        butterfly::watcher(dir, line).map(Some)
    }

    /// Ends it. An error where the collector has no sample: then nobody has looked.
    fn stop(
        self,
        dir: &Path,
        process: Option<Process>,
        collector: &UdpSocket,
    ) -> Result<(), PeerError> {
        drop(process);
        if let Watcher::Samples = self {
            sample(dir, 0)?;
            let mut datagram = [0; 1500];
            collector
                .recv(&mut datagram)
                .map_err(|error| PeerError(format!("no sample has come: {error}")))?;
            while collector.recv(&mut datagram).is_ok() {}
        }
        Ok(())
    }
}

/// Sets the rate of both NICs of the stream; 0: no frame is sampled.
fn sample(dir: &Path, rate: u32) -> Result<(), PeerError> {
    let line = format!("nic update nic0 --sflow-rate {rate} + nic update nic1 --sflow-rate {rate}");
    butterfly::butterfly(dir, &line).map(drop)
}

/// Where samples are sent to.
fn collector() -> Result<(UdpSocket, String), PeerError> {
    let bound = || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?.to_string();
        Ok((socket, address))
    };
    bound().map_err(|error: std::io::Error| PeerError(format!("a collector's socket: {error}")))
}

/// Runs it and prints the table.
pub fn run(quick: bool, core: usize) -> Result<Ratios, PeerError> {
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let driver = usize::from(core == 0);
    regime::pin(driver);
    let dir =
        tempfile::tempdir().map_err(|error| PeerError(format!("temporary directory: {error}")))?;
    let dir = dir.path();
    let socket = format!("unix:{}", metrics(dir).display());
    let (collector, address) = collector()?;
    let options = [
        "--metrics",
        &socket,
        "--sflow",
        &address,
        "--sflow-rate",
        "0",
    ];
    let running = butterfly::start(dir, core, Setup::Flood, true, &options)?;
    let guest = || Guest::new(1024, 2_036);
    let guests = [guest()?, guest()?, guest()?, guest()?];
    let _sessions = running.connect(&guests)?;
    let [first, second, third, fourth] = guests;
    let mut scene = Scene::new(dir, [first, second], [third, fourth])?;
    let (rounds, window) = match quick {
        true => (8, Duration::from_millis(400)),
        false => (30, Duration::from_secs(1)),
    };
    println!("the worker's ns a frame, {rounds} windows with and without in turn");
    println!(
        "{:<12} {:>14} {:>14} {:>8}",
        "", "nobody", "looking", "ratio"
    );
    let mut ratios = Ratios::default();
    for watcher in Watcher::ALL {
        let (mut without, mut with) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            without.push(scene.window(window)?);
            let watching = watcher.start(dir)?;
            scene.window(SETTLED)?;
            with.push(scene.window(window)?);
            watcher.stop(dir, watching, &collector)?;
            // What it leaves, a view without its captures among it, is in force.
            scene.window(SETTLED)?;
        }
        let ratio = with.quotients(&without);
        let name = watcher.name();
        println!(
            "{name:<12} {:>14} {:>14} {:>8}",
            without.summary(),
            with.summary(),
            ratio.summary()
        );
        ratios.push(name, ratio.median());
    }
    Ok(ratios)
}

fn metrics(dir: &Path) -> PathBuf {
    dir.join("metrics.sock")
}

/// The stream, and connections that begin beside it.
struct Scene<'a> {
    dir: &'a Path,
    stream: [Guest; 2],
    turns: Turns,
    /// Who begins connections, and with whom.
    others: [Guest; 2],
    /// Of the first one's ports.
    random: u64,
}

impl Scene<'_> {
    fn new(
        dir: &Path,
        mut stream: [Guest; 2],
        mut others: [Guest; 2],
    ) -> Result<Scene<'_>, PeerError> {
        rate::meet(&mut stream)?;
        let turns = rate::begin(&mut stream, BASE)?;
        Flood::Udp.prepare(&mut others[0])?;
        Ok(Scene {
            dir,
            stream,
            turns,
            others,
            random: 1,
        })
    }

    /// Lets both send for a while; the worker's nanoseconds a frame.
    fn window(&mut self, window: Duration) -> Result<f64, PeerError> {
        let before = worker(self.dir)?;
        let (start, mut next) = (Instant::now(), Duration::ZERO);
        while start.elapsed() < window {
            let once = Duration::from_millis(2);
            rate::flood(&mut self.stream, &mut self.turns, 0, once, once)?;
            while next < start.elapsed() {
                let random = &mut self.random;
                self.others[0].offer(1, |write| Flood::Udp.vary(random, write));
                next += CONNECTION_EVERY;
            }
            self.others[1].collect(64);
            interrupt::check()?;
        }
        let after = worker(self.dir)?;
        let [frames, busy_ns] = [0, 1].map(|n| after[n] - before[n]);
        match frames {
            0 => Err(PeerError("nothing passed".to_owned())),
            frames => Ok(busy_ns as f64 / frames as f64),
        }
    }
}

/// What the worker has counted: frames, and nanoseconds in turns that found one.
fn worker(dir: &Path) -> Result<[u64; 2], PeerError> {
    let text = butterfly::butterfly(dir, "worker list --json")?;
    let told: Value =
        serde_json::from_str(&text).map_err(|error| PeerError(format!("worker list: {error}")))?;
    let worker = &told["workers"][0];
    let of = |name: &str| {
        // ProtoJSON writes 64-bit numbers as texts.
        let text = worker[name].as_str().and_then(|text| text.parse().ok());
        text.or_else(|| worker[name].as_u64())
            .ok_or_else(|| PeerError(format!("worker list: no {name} in {text:?}: {told}")))
    };
    Ok([of("frames")?, of("busy_ns")?])
}

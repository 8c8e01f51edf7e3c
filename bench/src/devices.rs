//! How long thousands of interfaces take to go, how long others wait meanwhile, and how long a
//! daemon takes to end that has them all: with what the project aims at, reached or missed.
//!
//! Each of the TAP devices is alone in its network, and all are in a network namespace of their
//! own. `crates/daemon/tests/heal.rs` tries the same on a machine that may be busy, where times
//! tell little.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::v1;
use rustix::process::Signal;
use testkit::netns::Namespace;

use crate::durable::{Client, connect, millis, refused};
use crate::peers::{PeerError, butterfly};
use crate::report::Ratios;

const NICS: u32 = 2000;
/// Between two requests of who asks meanwhile: without a pause it takes the core that the removal
/// needs.
const PAUSE: Duration = Duration::from_millis(5);

/// A time in milliseconds, and what it is to be below.
struct Aim {
    name: &'static str,
    what: &'static str,
    limit: f64,
    ms: f64,
}

impl Aim {
    fn is_reached(&self) -> bool {
        self.ms < self.limit
    }
}

/// Runs it alone and prints it; an error where an aim is missed.
pub fn run() -> Result<Ratios, PeerError> {
    let runtime =
        tokio::runtime::Runtime::new().map_err(|error| PeerError(format!("tokio: {error}")))?;
    let aims = runtime.block_on(measure())?;
    print!("{}", text(&aims));
    match aims.iter().all(Aim::is_reached) {
        true => Ok(ratios(&aims)),
        false => Err(PeerError("an aim is missed".into())),
    }
}

/// Runs it, prints it, and adds its numbers.
pub async fn add_to(ratios_of_all: &mut Ratios) -> Result<(), PeerError> {
    let aims = measure().await?;
    print!("{}", text(&aims));
    ratios_of_all.extend(ratios(&aims));
    Ok(())
}

fn text(aims: &[Aim]) -> String {
    let mut out = format!("{NICS} TAP NICs:\n");
    for aim in aims {
        let reached = if aim.is_reached() {
            "reached"
        } else {
            "MISSED "
        };
        let Aim {
            what, limit, ms, ..
        } = aim;
        let _ = writeln!(out, "{reached} {what} below {limit} ms: {ms:.1}");
    }
    out
}

fn ratios(aims: &[Aim]) -> Ratios {
    let mut ratios = Ratios::default();
    for aim in aims {
        ratios.push(aim.name, aim.ms);
    }
    ratios
}

async fn measure() -> Result<[Aim; 3], PeerError> {
    let space = Namespace::new().map_err(|e| PeerError(format!("a namespace: {e}")))?;
    let dir = tempfile::tempdir().map_err(|e| PeerError(format!("temporary directory: {e}")))?;
    let daemon = butterfly::daemon_in(Some(space.pid()), dir.path(), None, &[])?;
    let (mut client, other) = (connect(dir.path()).await?, connect(dir.path()).await?);
    apply(&mut client, NICS).await?;
    is_there(&space, NICS)?;

    let over = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(longest(other, over.clone()));
    let start = Instant::now();
    apply(&mut client, 0).await?;
    let removed = millis(start);
    over.store(true, Ordering::Relaxed);
    let others = asking.await.map_err(|e| PeerError(e.to_string()))??;
    is_there(&space, 0)?;

    apply(&mut client, NICS).await?;
    is_there(&space, NICS)?;
    let start = Instant::now();
    daemon.end(Signal::TERM)?;
    let stopped = millis(start);
    is_there(&space, 0)?;
    let aim = |name, what, limit, ms| Aim {
        name,
        what,
        limit,
        ms,
    };
    Ok([
        aim(
            "taps_removed_ms",
            "all removed by one request",
            3000.0,
            removed,
        ),
        aim(
            "taps_removed_others_max_ms",
            "the longest other request meanwhile",
            50.0,
            others,
        ),
        aim(
            "taps_stop_ms",
            "a daemon that ends with all of them",
            2000.0,
            stopped,
        ),
    ])
}

/// So many are declared, and nothing else.
async fn apply(client: &mut Client, nics: u32) -> Result<(), PeerError> {
    let nic = |number: u32| {
        let [_, _, high, low] = number.to_be_bytes();
        v1::Nic {
            id: format!("tap{number}"),
            mac: format!("52:54:00:00:{high:02x}:{low:02x}"),
            vni: number,
            kind: v1::NicKind::Tap.into(),
            ..Default::default()
        }
    };
    let config = v1::Config {
        nics: (0..nics).map(nic).collect(),
        ..Default::default()
    };
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    client.apply(request).await.map(drop).map_err(refused)
}

/// The longest of the requests until it is over, in milliseconds.
async fn longest(mut client: Client, over: Arc<AtomicBool>) -> Result<f64, PeerError> {
    let mut longest: f64 = 0.0;
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        let listed = client.list_nics(v1::ListNicsRequest {}).await;
        listed.map_err(refused)?;
        longest = longest.max(millis(start));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(longest)
}

/// The namespace has so many devices besides its loopback.
fn is_there(space: &Namespace, devices: u32) -> Result<(), PeerError> {
    let path = format!("/proc/{}/net/dev", space.pid());
    let lines = std::fs::read_to_string(&path).map_err(|e| PeerError(format!("{path}: {e}")))?;
    // Two lines say what is in the others.
    match lines.lines().skip(2).count() as u32 {
        there if there == devices + 1 => Ok(()),
        there => Err(PeerError(format!(
            "{there} interfaces, not {devices} and one"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_reached_below_its_limit() {
        let aim = |limit, ms| Aim {
            name: "taps_stop_ms",
            what: "the end",
            limit,
            ms,
        };
        let aims = [aim(50.0, 49.9), aim(50.0, 50.0)];
        let said = format!(
            "{NICS} TAP NICs:\nreached the end below 50 ms: 49.9\nMISSED  the end below 50 ms: 50.0\n"
        );
        assert_eq!(text(&aims), said);
    }
}

//! What a switch costs while nothing happens.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::interrupt;
use crate::peers::PeerError;

/// What processes used of one core.
pub struct Used {
    /// All of their threads together.
    pub percent: f64,
    /// The thread that used most of it.
    busiest: String,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} % of a core, most of it {}",
            self.percent, self.busiest
        )
    }
}

/// The share of one core that the processes use during `duration`, after a second in which they
/// come to rest. Read from the scheduler's own account (nanoseconds), so that little is not
/// nothing.
pub fn measure(pids: &[u32], duration: Duration) -> Result<Used, PeerError> {
    interrupt::sleep(Duration::from_secs(1))?;
    let (start, before) = (Instant::now(), cpu_ns(pids)?);
    interrupt::sleep(duration)?;
    let after = cpu_ns(pids)?;
    let elapsed = start.elapsed().as_nanos() as f64;
    let used: Vec<(u64, PathBuf)> = after
        .into_iter()
        .map(|(thread, ns)| (ns - before.get(&thread).unwrap_or(&0).min(&ns), thread))
        .collect();
    let busiest = used.iter().max().map(|(_, thread)| thread.join("comm"));
    let busiest = busiest.and_then(|path| std::fs::read_to_string(path).ok());
    Ok(Used {
        percent: used.iter().map(|(ns, _)| *ns as f64).sum::<f64>() * 100.0 / elapsed,
        busiest: busiest.unwrap_or_default().trim().to_owned(),
    })
}

/// Nanoseconds that each thread of the processes has run.
fn cpu_ns(pids: &[u32]) -> Result<HashMap<PathBuf, u64>, PeerError> {
    let mut threads = HashMap::new();
    for pid in pids {
        let tasks = format!("/proc/{pid}/task");
        let fail = |error: std::io::Error| PeerError(format!("{tasks}: {error}"));
        for task in std::fs::read_dir(&tasks).map_err(fail)? {
            let task = task.map_err(fail)?.path();
            // A thread may end at any time.
            let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            let ns = text.split(' ').next().and_then(|field| field.parse().ok());
            threads.insert(task, ns.unwrap_or(0));
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_of_this_process_grows_with_its_work() {
        let pids = [std::process::id()];
        let all = || cpu_ns(&pids).unwrap().values().sum::<u64>();
        let before = all();
        let mut value = 1u64;
        for _ in 0..20_000_000 {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        assert!(all() > before);
    }
}

//! What a switch costs while nothing happens.

use std::time::{Duration, Instant};

use crate::interrupt;
use crate::peers::PeerError;

/// The share of one core that the processes used during `duration`, in percent, after a second in which they come
/// to rest. Read from the scheduler's own account (nanoseconds), so that little is not nothing.
pub fn percent(pids: &[u32], duration: Duration) -> Result<f64, PeerError> {
    interrupt::sleep(Duration::from_secs(1))?;
    let (start, before) = (Instant::now(), cpu_ns(pids)?);
    interrupt::sleep(duration)?;
    let used = cpu_ns(pids)?.saturating_sub(before);
    Ok(used as f64 * 100.0 / start.elapsed().as_nanos() as f64)
}

/// Nanoseconds that all threads of the processes have run.
fn cpu_ns(pids: &[u32]) -> Result<u64, PeerError> {
    let mut sum = 0;
    for pid in pids {
        let tasks = format!("/proc/{pid}/task");
        let fail = |error: std::io::Error| PeerError(format!("{tasks}: {error}"));
        for task in std::fs::read_dir(&tasks).map_err(fail)? {
            // A thread may end at any time.
            let text = std::fs::read_to_string(task.map_err(fail)?.path().join("schedstat"));
            let text = text.unwrap_or_default();
            sum += text
                .split(' ')
                .next()
                .and_then(|field| field.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_of_this_process_grows_with_its_work() {
        let pids = [std::process::id()];
        let before = cpu_ns(&pids).unwrap();
        let mut value = 1u64;
        for _ in 0..20_000_000 {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        assert!(cpu_ns(&pids).unwrap() > before);
    }
}

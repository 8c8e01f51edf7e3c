//! What a wake-up costs on this machine: a thread that sleeps in epoll on the switch's core, and an
//! eventfd.
//!
//! A switch that sleeps when idle is woken in no less time than this before its first frame; in a
//! virtual machine most of it is the hypervisor's, which has to be asked to let the halted core go
//! on.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;

use crate::peers::PeerError;
use crate::{interrupt, regime};

/// Nothing sleeps longer than this without looking whether it is over.
const LOOK: Duration = Duration::from_millis(100);

/// Seconds from the write to an eventfd until a thread on `core` that slept on it runs, `count`
/// times, each after a quiet time.
pub fn measure(core: usize, count: usize, quiet: Duration) -> Result<Vec<f64>, PeerError> {
    let failed = |error: Errno| PeerError(format!("an eventfd to be woken by: {error}"));
    let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).map_err(failed)?;
    let sleeper = epoll::create(epoll::CreateFlags::empty()).map_err(failed)?;
    let readable = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    epoll::add(&sleeper, &bell, readable.0, readable.1).map_err(failed)?;
    let start = Instant::now();
    let (woken_ns, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            regime::pin(core);
            while !stop.load(Ordering::Relaxed) {
                let mut events = Vec::with_capacity(1);
                let timeout = LOOK.try_into().ok();
                let slept = epoll::wait(
                    &sleeper,
                    rustix::buffer::spare_capacity(&mut events),
                    timeout.as_ref(),
                );
                let now_ns = start.elapsed().as_nanos() as u64;
                if slept.is_ok_and(|count| count > 0) {
                    let _ = rustix::io::read(bell.as_fd(), &mut [0; 8]);
                    woken_ns.store(now_ns, Ordering::Release);
                }
            }
        });
        let times = (0..count).map(|_| {
            interrupt::rest(quiet)?;
            woken_ns.store(0, Ordering::Release);
            let rung = start.elapsed();
            rustix::io::write(&bell, &1u64.to_ne_bytes()).map_err(failed)?;
            loop {
                match woken_ns.load(Ordering::Acquire) {
                    0 if start.elapsed() > rung + 10 * LOOK => {
                        return Err(PeerError("a sleeping thread was not woken".to_owned()));
                    }
                    0 => std::hint::spin_loop(),
                    at => return Ok((at as f64 - rung.as_nanos() as f64) / 1e9),
                }
            }
        });
        let times = times.collect();
        stop.store(true, Ordering::Relaxed);
        times
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_woken_each_time() {
        let times = measure(0, 3, Duration::from_millis(1)).unwrap();
        assert_eq!(times.len(), 3);
        assert!(
            times.iter().all(|time| (0.0..1.0).contains(time)),
            "{times:?}"
        );
    }
}

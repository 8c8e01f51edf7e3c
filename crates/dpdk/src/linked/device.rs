//! A port of DPDK's.

use std::ffi::{CStr, c_char, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::ffi;
use super::queue::Queue;
use crate::{BURST, Counters, Error, QueueOptions};

/// The ports that DPDK has and that are no part of others: their numbers and names.
pub fn ports() -> Vec<(u16, String)> {
    let mut ports = Vec::new();
    let mut from = 0;
    // SAFETY: any number may be asked for.
    while let Ok(number) = u16::try_from(unsafe { ffi::bf_next_port(from) }) {
        if let Ok(described) = describe(number) {
            ports.push((number, text(&described.name)));
        }
        from = number + 1;
    }
    ports
}

/// A device of DPDK's. Closed when it and all its queues are dropped.
#[derive(Debug)]
pub struct Device {
    number: u16,
    name: String,
    driver: String,
    mac: [u8; 6],
    mtu: u16,
    queues: RangeInclusive<u16>,
    sums: bool,
    /// By queue.
    pools: Mutex<Vec<Pool>>,
    opened: Mutex<Weak<Opened>>,
    /// Frames that it did not take.
    discarded: AtomicU64,
}

/// Buffers for frames of this MTU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pool {
    pub memory: *mut c_void,
    mtu: u16,
    count: u32,
}

// SAFETY: a pool is DPDK's, which lets any thread use it, and is never freed.
unsafe impl Send for Pool {}

/// A device that runs: stopped when its last queue is dropped.
#[derive(Debug)]
pub(super) struct Opened(pub Arc<Device>);

impl Opened {
    /// So many frames were given up.
    pub(super) fn discarded(&self, count: usize) {
        self.0.discarded.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was started, and no queue of it is left that could be used.
        unsafe { ffi::bf_stop(self.0.number) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: it is stopped: what runs holds it.
        unsafe { ffi::bf_close(self.number) }
    }
}

impl Device {
    /// Takes the port of this number. To be called once for a port, after [`start`](crate::start).
    ///
    /// # Errors
    /// There is none, or it does not say what it is.
    pub fn take(number: u16) -> Result<Device, Error> {
        let there = ports();
        if !there.iter().any(|(other, _)| *other == number) {
            let names = there
                .iter()
                .map(|(number, name)| format!("{number} ({name})"));
            let names: Vec<String> = names.collect();
            return Err(Error::NoPort {
                number,
                has: match names.is_empty() {
                    true => "it has found no device".to_owned(),
                    false => format!("there are {}", names.join(", ")),
                },
            });
        }
        let described = describe(number).map_err(|error| Error::Device {
            number,
            name: String::new(),
            step: "asking what it is".to_owned(),
            why: reason(error),
        })?;
        Ok(Device {
            number,
            name: text(&described.name),
            driver: text(&described.driver),
            mac: described.mac,
            mtu: described.mtu,
            sums: described.sums != 0,
            queues: described.queues_least.max(1)..=described.queues_most.max(1),
            pools: Mutex::new(Vec::new()),
            opened: Mutex::new(Weak::new()),
            discarded: AtomicU64::new(0),
        })
    }

    /// DPDK's number of it.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// DPDK's name of it: `net_af_packet0`, or a PCI address.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which driver it has: `net_af_packet`.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Its hardware address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The MTU that it came with.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Whether a frame's checksum may be left to it: see [`LeftSum`](crate::LeftSum).
    pub fn sums(&self) -> bool {
        self.sums
    }

    /// Sets it up and starts it. Its queues run until the last of them is dropped.
    ///
    /// # Errors
    /// It runs already, or refuses a step.
    pub fn open(self: &Arc<Self>, options: QueueOptions) -> Result<Vec<Queue>, Error> {
        let failed = |step: &str, why: String| Error::Device {
            number: self.number,
            name: self.name.clone(),
            step: step.to_owned(),
            why,
        };
        let mut opened = lock(&self.opened);
        if opened.strong_count() > 0 {
            return Err(failed("opening it", "its queues are in use".to_owned()));
        }
        let queues = options
            .queues
            .clamp(*self.queues.start(), *self.queues.end());
        // What waits in both directions, in the cache of a thread or two, and on the way.
        let count = (2 * u32::from(options.frames) + 16 * BURST as u32).next_power_of_two() - 1;
        let pools: Result<Vec<Pool>, Error> = (0..queues)
            .map(|queue| {
                let pool = self.pool(queue, options.mtu, count);
                pool.ok_or_else(|| {
                    let step = "making its buffers";
                    failed(step, format!("no memory for {count} of them"))
                })
            })
            .collect();
        let pools = pools?;
        let memory: Vec<*mut c_void> = pools.iter().map(|pool| pool.memory).collect();
        let mut step: *const c_char = c"opening it".as_ptr();
        // SAFETY: the port is ours and does not run; there is a pool for each queue; `step` becomes
        // a constant of the shim's.
        let error = unsafe {
            ffi::bf_open(
                self.number,
                queues,
                options.frames,
                options.mtu.into(),
                memory.as_ptr(),
                &raw mut step,
            )
        };
        if error != 0 {
            // SAFETY: as said.
            let step = unsafe { CStr::from_ptr(step) }.to_string_lossy();
            return Err(failed(&step, reason(error)));
        }
        let running = Arc::new(Opened(self.clone()));
        *opened = Arc::downgrade(&running);
        let each = (0..).zip(pools);
        let each = each.map(|(index, pool)| Queue::new(running.clone(), self.number, index, pool));
        Ok(each.collect())
    }

    /// Whether it has a link.
    pub fn is_up(&self) -> bool {
        // SAFETY: the port is there until this is dropped.
        unsafe { ffi::bf_link(self.number) >= 0 }
    }

    /// Whether it was taken away while it was in use.
    pub fn is_removed(&self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::bf_is_removed(self.number) != 0 }
    }

    /// What it has counted since it was opened first; zeros where its driver counts nothing.
    pub fn counters(&self) -> Counters {
        let mut counted = ffi::Counted::default();
        // SAFETY: as above; `counted` is ours.
        let error = unsafe { ffi::bf_count(self.number, &raw mut counted) };
        if error != 0 {
            return Counters::default();
        }
        Counters {
            received: counted.received,
            sent: counted.sent,
            missed: counted.missed,
            errors: counted.errors,
            no_buffer: counted.no_buffer,
            unsent: counted.unsent + self.discarded.load(Ordering::Relaxed),
        }
    }

    /// The pool of a queue, a new one if that which there is does not do.
    fn pool(&self, queue: u16, mtu: u16, count: u32) -> Option<Pool> {
        let mut pools = lock(&self.pools);
        let at = usize::from(queue);
        if let Some(pool) = pools.get(at)
            && pool.mtu >= mtu
            && pool.count >= count
        {
            return Some(*pool);
        }
        // SAFETY: a call without preconditions but that DPDK is started.
        let memory = unsafe { ffi::bf_pool(self.number, count, mtu.into()) };
        let pool = Pool { memory, mtu, count };
        if memory.is_null() {
            return None;
        }
        match pools.get_mut(at) {
            Some(old) => *old = pool,
            None => pools.push(pool),
        }
        Some(pool)
    }
}

fn describe(number: u16) -> Result<ffi::Described, i32> {
    let mut described = ffi::Described {
        queues_least: 0,
        queues_most: 0,
        mac: [0; 6],
        sums: 0,
        mtu: 0,
        driver: [0; 64],
        name: [0; 64],
    };
    // SAFETY: `described` is laid out as the shim has it.
    let error = unsafe { ffi::bf_describe(number, &raw mut described) };
    match error {
        0 => Ok(described),
        error => Err(error),
    }
}

fn text(field: &[c_char; 64]) -> String {
    let bytes = field.iter().map(|byte| *byte as u8);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn reason(error: i32) -> String {
    std::io::Error::from_raw_os_error(error).to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each step leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

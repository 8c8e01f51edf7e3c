//! Which CPUs a test or a benchmark runs on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Those that the calling thread may run on.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("a thread has CPUs");
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Has the calling thread, and what it starts, run on these alone. Panics where it may not.
pub fn stay_on(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).expect("CPUs that this thread may run on");
}

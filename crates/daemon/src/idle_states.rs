//! How deeply the workers' cores may sleep: `--wake-us`.
//!
//! A core that has nothing to do halts, and the longer it may stay so the longer it takes to come
//! back: tens to hundreds of microseconds, in a virtual machine most of all, which the first frame
//! after a quiet time waits for. The kernel takes a bound for that, a core at a time (PM QoS,
//! `power/pm_qos_resume_latency_us` of a CPU in sysfs). It is set while the daemon runs, and put
//! back when it ends; after a kill it stays until the next daemon ends, which takes a bound like
//! its own for what one that was killed has left.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel shows CPUs.
const CPUS: &str = "/sys/devices/system/cpu";

/// What the kernel calls "no bound"; every CPU begins with it.
const NO_BOUND: &str = "0";

/// Bounds that are in force until this goes: where, and what was there before.
#[derive(Debug, Default)]
pub struct Bounds(Vec<(PathBuf, String)>);

impl Bounds {
    /// Bounds how long each of these cores may take to wake, in microseconds; 0 keeps them from
    /// halting at all. The error is a sentence, and then nothing is changed.
    pub fn set(cores: &[usize], wake_us: u32) -> Result<Bounds, String> {
        Self::set_below(Path::new(CPUS), cores, wake_us)
    }

    fn set_below(cpus: &Path, cores: &[usize], wake_us: u32) -> Result<Bounds, String> {
        let mut bounds = Bounds::default();
        let value = match wake_us {
            0 => "n/a".to_owned(),
            bound => bound.to_string(),
        };
        for core in cores {
            let path = cpus.join(format!("cpu{core}/power/pm_qos_resume_latency_us"));
            let failed = |error| format!("--wake-us {wake_us}: {}: {error}", path.display());
            let before = fs::read_to_string(&path).map_err(failed)?;
            fs::write(&path, &value).map_err(failed)?;
            let before = match before.trim() {
                same if same == value => NO_BOUND,
                other => other,
            };
            bounds.0.push((path, before.to_owned()));
        }
        Ok(bounds)
    }
}

impl Drop for Bounds {
    fn drop(&mut self) {
        for (path, before) in &self.0 {
            if let Err(error) = fs::write(path, before) {
                tracing::warn!("{}: {error}", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_have_a_bound_as_long_as_it_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let file = |core: usize| {
            dir.path()
                .join(format!("cpu{core}/power/pm_qos_resume_latency_us"))
        };
        let bounds = || [0, 1, 3].map(|core| fs::read_to_string(file(core)).unwrap());
        for core in [0, 1, 3] {
            fs::create_dir_all(file(core).parent().unwrap()).unwrap();
            fs::write(file(core), "0\n").unwrap();
        }

        let held = Bounds::set_below(dir.path(), &[0, 3], 0).unwrap();
        assert_eq!(bounds(), ["n/a", "0\n", "n/a"]);
        drop(held);
        assert_eq!(bounds(), ["0", "0\n", "0"]);
        fs::write(file(1), "100").unwrap();
        let held = Bounds::set_below(dir.path(), &[1, 3], 20).unwrap();
        assert_eq!(bounds(), ["0", "20", "20"]);
        // What a daemon leaves behind that was killed.
        std::mem::forget(held);
        drop(Bounds::set_below(dir.path(), &[1], 20).unwrap());
        assert_eq!(bounds(), ["0", "0", "20"]);
        fs::write(file(1), "100").unwrap();
        drop(Bounds::set_below(dir.path(), &[1], 20).unwrap());
        assert_eq!(bounds(), ["0", "100", "20"]);

        // There is no core 2: the one before it is as it was.
        let error = Bounds::set_below(dir.path(), &[1, 2], 20).unwrap_err();
        let expected = format!(
            "--wake-us 20: {}: No such file or directory (os error 2)",
            file(2).display()
        );
        assert_eq!(
            (error, bounds()),
            (expected, ["0", "100", "20"].map(str::to_owned))
        );
    }
}

//! Huge pages for as long as a benchmark runs: DPDK's switches want them, and the guests' memory is
//! in them too.

use std::fs;

use crate::peers::PeerError;

const SETTING: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages set aside; dropping it gives back what there was.
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// At least `count` pages of the default size (2 MiB on x86). Fails when the host has not that
    /// much memory in one piece, or does not let us.
    pub fn reserve(count: u64) -> Result<HugePages, PeerError> {
        let before = read()?;
        let pages = HugePages { before };
        if before < count {
            write(count)?;
        }
        match read()? {
            now if now >= count => Ok(pages),
            now => Err(PeerError(format!(
                "{SETTING}: the host sets {now} pages aside, {count} are needed"
            ))),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = write(self.before) {
            eprintln!("{error}");
        }
    }
}

fn read() -> Result<u64, PeerError> {
    let text =
        fs::read_to_string(SETTING).map_err(|error| PeerError(format!("{SETTING}: {error}")))?;
    text.trim()
        .parse()
        .map_err(|error| PeerError(format!("{SETTING}: '{}': {error}", text.trim())))
}

fn write(count: u64) -> Result<(), PeerError> {
    fs::write(SETTING, count.to_string()).map_err(|error| PeerError(format!("{SETTING}: {error}")))
}

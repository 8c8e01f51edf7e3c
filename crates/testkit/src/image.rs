//! What guests boot (`tools/guest-image.sh` makes it under `target/guest`), and with which
//! accelerator.

use crate::qemu::{Guest, Machine};
use crate::{Result, process};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// A guest under KVM is up in well under a second; one that is not after this long hangs.
const KVM_PATIENCE: Duration = Duration::from_secs(8);

/// A kernel, an initramfs, and how this machine runs them.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// What is appended to it for a machine with tools.
    pub tools: PathBuf,
    /// `kvm` or `tcg`.
    pub accelerator: String,
}

impl Image {
    /// The image, made first when it is missing or older than its sources. Asks once per process.
    pub fn ready() -> Result<Self> {
        static IMAGE: OnceLock<Result<Image>> = OnceLock::new();
        IMAGE
            .get_or_init(|| Self::make("target/guest", None))
            .clone()
    }

    /// With the kernel of another release of Debian's ("trixie").
    pub fn of_suite(suite: &str) -> Result<Self> {
        Self::make(&format!("target/guest-{suite}"), Some(suite))
    }

    fn make(folder: &str, suite: Option<&str>) -> Result<Self> {
        // `make check` promises that none boots.
        if std::env::var_os("BUTTERFLY_NO_GUESTS").is_some() {
            return Err(
                "this test boots a guest: name its program under `guests` in tests/Cargo.toml"
                    .to_owned(),
            );
        }
        let root = repository();
        let tool = root.join("tools/guest-image.sh");
        let words = ["bash", path(&tool)?].into_iter().chain(suite);
        process::run(&words.collect::<Vec<_>>())?;
        let guest = root.join(folder);
        let mut image = Self {
            kernel: guest.join("vmlinuz"),
            initramfs: guest.join("initrd.img"),
            tools: guest.join("tools.img"),
            accelerator: "tcg".to_owned(),
        };
        // The answer outlives us: asking costs seconds where KVM hangs.
        let answer = guest.join("accelerator");
        image.accelerator = match std::fs::read_to_string(&answer) {
            Ok(known) => known.trim().to_owned(),
            Err(_) => {
                let found = if image.boots_with_kvm() { "kvm" } else { "tcg" };
                std::fs::write(&answer, format!("{found}\n"))
                    .map_err(|e| format!("cannot write {}: {e}", answer.display()))?;
                found.to_owned()
            }
        };
        Ok(image)
    }

    /// On some machines `/dev/kvm` opens and a stock kernel hangs under it: only a guest that
    /// really boots is proof.
    fn boots_with_kvm(&self) -> bool {
        if std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_err()
        {
            return false;
        }
        let mut image = self.clone();
        image.accelerator = "kvm".to_owned();
        let machine = Machine {
            boot_timeout: KVM_PATIENCE,
            ..Machine::named("kvm-probe")
        };
        Guest::start(&image, &machine).is_ok()
    }
}

/// The top of the source tree.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A path as a word of a command line.
pub(crate) fn path(path: &Path) -> Result<&str> {
    path.to_str()
        .ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

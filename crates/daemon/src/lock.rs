//! One daemon a socket directory: a lock on `<socket-dir>/butterflyd.lock`, which holds the pid.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The lock; the file goes when this is dropped, and the lock with the process in any case.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Makes the directory when missing and takes its lock. The error names the process that has it.
    pub fn take(dir: &Path) -> Result<Lock, String> {
        std::fs::create_dir_all(dir).map_err(|e| format!("the socket directory {}: {e}", dir.display()))?;
        let path = dir.join("butterflyd.lock");
        let failed = |e: std::io::Error| format!("the lock {}: {e}", path.display());
        // The daemon before removes the file it has locked: what was opened may be that one, and then not count.
        for _ in 0..100 {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .open(&path)
                .map_err(failed)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(taken(dir, &mut file));
            }
            let ours = file.metadata().map_err(failed)?;
            if std::fs::metadata(&path)
                .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
            {
                let written = file
                    .set_len(0)
                    .and_then(|()| writeln!(file, "{}", std::process::id()));
                written.map_err(failed)?;
                return Ok(Lock { path, _file: file });
            }
        }
        Err(format!(
            "the lock {} is taken and given back all the time",
            path.display()
        ))
    }
}

fn taken(dir: &Path, file: &mut File) -> String {
    let mut pid = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    let owner = match pid.trim() {
        pid if read.is_ok() && !pid.is_empty() => format!("process {pid}"),
        _ => "another process".to_owned(),
    };
    format!(
        "{owner} runs on the socket directory {} already; stop it first, or give this daemon another with -s",
        dir.display()
    )
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_by_name_and_the_third_may_follow_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made/on/the/way");
        let first = Lock::take(&dir).unwrap();
        let error = Lock::take(&dir).unwrap_err();
        assert!(
            error.starts_with(&format!("process {} runs on", std::process::id())),
            "{error}"
        );
        drop(first);
        assert!(!dir.join("butterflyd.lock").exists());
        Lock::take(&dir).unwrap();
    }

    #[test]
    fn a_file_left_by_a_crash_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("butterflyd.lock"), "4711\n").unwrap();
        let _lock = Lock::take(dir.path()).unwrap();
        let pid = std::fs::read_to_string(dir.path().join("butterflyd.lock")).unwrap();
        assert_eq!(pid, format!("{}\n", std::process::id()));
    }
}

//! The file of the daemon's key (`-k`): who has it is let in over v0, so that it must not be one
//! that everybody can read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use api::encrypted::Key;
use tokio::sync::watch;

use crate::reader::Reader;
use crate::reader::words::Word;

/// Bytes of it that are looked at; a key has 44 digits.
const FILE_MAX: u64 = 64 << 10;

/// The file, whose key the reader goes by.
pub struct KeyFile {
    path: PathBuf,
    reader: Arc<Reader>,
    /// What was read last.
    last: Mutex<Key>,
    /// Says that it has become another one.
    another: watch::Sender<()>,
}

impl KeyFile {
    /// Reads it, for what `reader` speaks with clients from now on. The error is a sentence.
    pub fn read(path: &Path, reader: Arc<Reader>) -> Result<KeyFile, String> {
        let key = load(path)?;
        pass_on(&reader, &key)?;
        Ok(KeyFile {
            path: path.to_owned(),
            reader,
            last: Mutex::new(key),
            another: watch::Sender::new(()),
        })
    }

    /// Reads it again. Where it cannot be used, nothing changes. Both sentences are for people.
    pub fn reload(&self) -> Result<String, String> {
        let new = load(&self.path)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path.display();
        if last.bytes() == new.bytes() {
            return Ok(path.to_string());
        }
        pass_on(&self.reader, &new)?;
        *last = new;
        // Behind that: who came by the new one and is held for one of before connects again.
        self.another.send_replace(());
        Ok(format!(
            "{path}: another key, clients have to connect again"
        ))
    }

    /// What changes when a client that is passed on from now on may have to connect again.
    pub fn another(&self) -> watch::Receiver<()> {
        self.another.subscribe()
    }
}

fn pass_on(reader: &Reader, key: &Key) -> Result<(), String> {
    let set = reader.set(Word::Key, key.bytes(), Vec::new());
    set.map_err(|e| format!("the key of v0 cannot be passed on: {e}"))
}

/// Reads it. The error is a sentence that names the file.
fn load(path: &Path) -> Result<Key, String> {
    let text = sys::private_text::bytes(path, FILE_MAX);
    let text = text.map_err(|why| format!("key file {why}"))?;
    Key::of(path, text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_that_everybody_can_read_is_refused_by_name_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            load(&path)
        };
        for mode in [0o600, 0o640, 0o400] {
            assert_eq!(with_mode(mode).unwrap().bytes(), &[0x42; 32], "{mode:o}");
        }
        let name = path.display();
        for mode in [0o644, 0o604, 0o602, 0o666] {
            let expected = format!(
                "key file {name} can be read by everybody (mode {mode:o}): chmod o= {name}"
            );
            assert_eq!(with_mode(mode).unwrap_err(), expected);
        }
        assert!(load(dir.path()).unwrap_err().contains("is no file"));
    }
}

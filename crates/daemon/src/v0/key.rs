//! The file of the daemon's key (`-k`): who has it is let in over v0, so that it must not be one
//! that everybody can read.

use std::path::Path;

use api::encrypted::Key;

/// Bytes of it that are looked at; a key has 44 digits.
const FILE_MAX: u64 = 64 << 10;

/// Reads it. The error is a sentence that names the file.
pub fn load(path: &Path) -> Result<Key, String> {
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

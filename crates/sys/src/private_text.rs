//! The text of a file that holds a secret.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The first `most` bytes of a file's text. The error is a sentence that names the file: it cannot
/// be read, is a folder or a device, is no text, or can be read or written by everybody.
pub fn read(path: &Path, most: u64) -> Result<String, String> {
    let shown = path.display();
    let failed = |e: std::io::Error| format!("{shown} cannot be read: {e}");
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(format!("{shown} is no file"));
    }
    if meta.mode() & 0o007 != 0 {
        return Err(format!(
            "{shown} can be read by everybody (mode {:o}): chmod o= {shown}",
            meta.mode() & 0o7777
        ));
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

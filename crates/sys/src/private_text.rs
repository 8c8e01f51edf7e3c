//! What is in a file that holds a secret.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The first `most` bytes of a file's text. The error is that of [`bytes`], also where it is no
/// text.
pub fn read(path: &Path, most: u64) -> Result<String, String> {
    let text = String::from_utf8(bytes(path, most)?);
    text.map_err(|e| format!("{} is no text: {}", path.display(), e.utf8_error()))
}

/// The first `most` bytes of a file. The error is a sentence that names the file: it cannot be
/// read, is a folder or a device, or can be read or written by everybody.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, String> {
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
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

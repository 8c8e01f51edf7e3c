//! A file that lines are appended to: the audit file and the flow log's.
//!
//! What a full disk takes is a part of what was to be written. A part of a line is cut off again,
//! so that the next line is one of its own, and what is counted as written is what a reader finds.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::unistd::Uid;

/// A file open for appending.
#[derive(Debug)]
pub struct Lines {
    file: File,
    /// It ends amid a line, which could not be cut off.
    torn: bool,
}

impl Lines {
    /// A file for appending alone, to be read by nobody else, and no link of another's; `what` is
    /// its name in messages.
    pub fn open(path: &Path, what: &str) -> Result<Lines, String> {
        let shown = path.display();
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|e| format!("the {what} {shown} cannot be opened: {e}"))?;
        let meta = file
            .metadata()
            .map_err(|e| format!("the {what} {shown}: {e}"))?;
        let ours = [0, Uid::effective().as_raw()].contains(&meta.uid());
        if !meta.is_file() || !ours || meta.mode() & 0o022 != 0 || meta.nlink() > 1 {
            return Err(format!(
                "the {what} {shown} is not a file of the daemon's user that others cannot write to"
            ));
        }
        Ok(Lines::of(file))
    }

    /// What is open already, whatever it is.
    pub fn of(file: File) -> Lines {
        Lines { file, torn: false }
    }

    /// Appends lines, each with its end, in one call: whoever reads beside us sees whole ones.
    /// Gives how many of them were written, and why not all.
    pub fn append(&mut self, lines: &[u8]) -> (u64, io::Result<()>) {
        if self.torn {
            if let Err(e) = self.file.write_all(b"\n") {
                return (0, Err(e));
            }
            self.torn = false;
        }
        let (len, result) = write(&mut self.file, lines);
        let written = &lines[..len];
        let whole = written.iter().rposition(|byte| *byte == b'\n');
        let rest = len - whole.map_or(0, |at| at + 1);
        if rest > 0 {
            self.torn = !self.cut(rest as u64);
        }
        let ends = written.iter().filter(|byte| **byte == b'\n');
        (ends.count() as u64, result)
    }

    /// Takes away the last bytes that we have written; false where that cannot be.
    fn cut(&mut self, bytes: u64) -> bool {
        // A pipe has no place in it. Where the file does not end there, others write to it as well.
        let (Ok(place), Ok(meta)) = (self.file.stream_position(), self.file.metadata()) else {
            return false;
        };
        let before = place.checked_sub(bytes).filter(|_| place == meta.len());
        before.is_some_and(|len| self.file.set_len(len).is_ok())
    }
}

/// As `write_all`; gives how many bytes were taken, too.
fn write(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut len = 0;
    while len < bytes.len() {
        match file.write(&bytes[len..]) {
            Ok(0) => return (len, Err(ErrorKind::WriteZero.into())),
            Ok(more) => len += more,
            Err(e) if e.kind() == ErrorKind::Interrupted => (),
            Err(e) => return (len, Err(e)),
        }
    }
    (len, Ok(()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::process::Command;

    use super::*;

    /// Names the file to the process in which files may be as large as [`LIMIT`].
    const LIMITED: &str = "BUTTERFLY_TEST_LIMITED_FILE";
    /// Two blocks of a shell's `ulimit`.
    const LIMIT: usize = 1024;

    /// The kernel takes of a write what fits, as on a full disk.
    #[test]
    fn a_full_disk_leaves_whole_lines_and_counts_them() {
        if let Some(path) = std::env::var_os(LIMITED) {
            return in_limited_process(Path::new(&path));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let script = r#"trap "" XFSZ; ulimit -f 2; exec "$0" --exact "$1""#;
        let name = std::thread::current().name().unwrap().to_owned();
        let run = Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(LIMITED, &path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().last(), Some("the next"));
    }

    fn in_limited_process(path: &Path) {
        let mut file = Lines::open(path, "file").unwrap();
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let (written, result) = file.append(&line.repeat(3));
        assert_eq!((written, result.is_ok()), (3, true));
        // There is room for seven and a part of one.
        let (written, result) = file.append(&line.repeat(9));
        assert_eq!((written, result.is_err()), (7, true));
        let text = std::fs::read(path).unwrap();
        assert!(text == line.repeat(LIMIT / 100), "{} bytes", text.len());
        let (written, result) = file.append(b"the next\n");
        assert_eq!((written, result.is_ok()), (1, true));
    }

    /// A pipe that nobody reads takes a part, too, and gives nothing back.
    #[test]
    fn what_cannot_be_cut_off_is_ended_before_the_next_line() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut pipe = Lines::of(File::from(OwnedFd::from(writer)));
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let (written, result) = pipe.append(&line.repeat(100));
        assert!(written < 100 && result.is_err());
        assert_eq!(pipe.append(b"lost\n").0, 0);
        let mut taken = vec![0; 100_000];
        let len = reader.read(&mut taken).unwrap();
        assert_eq!(len as u64 / 1000, written);
        assert_eq!(pipe.append(b"the next\n").0, 1);
        drop(pipe);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "\nthe next\n");
    }

    /// Who has emptied it meanwhile, as `logrotate` with `copytruncate`, finds no hole in it.
    #[test]
    fn a_file_that_others_change_is_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let mut file = Lines::open(&path, "file").unwrap();
        assert_eq!(file.append(b"one\ntwo").0, 1);
        assert_eq!(std::fs::read(&path).unwrap(), b"one\n");
        write(&mut file.file, b"tw").1.unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(!file.cut(2));
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}

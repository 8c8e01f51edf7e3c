//! The file of the flow log: a line of JSON for each record.

use std::path::PathBuf;

use api::v1;
use prost::Message;

use crate::lines::Lines;

/// A file that is appended to.
pub struct LogFile {
    path: PathBuf,
    file: Lines,
    /// The last write has failed, and the log says so.
    failing: bool,
}

impl LogFile {
    /// The error is a sentence.
    pub fn open(path: PathBuf) -> Result<LogFile, String> {
        let file = Lines::open(&path, "flow log")?;
        Ok(LogFile {
            path,
            file,
            failing: false,
        })
    }

    /// What is open already, in the place of the file of this name.
    #[cfg(test)]
    pub fn with(path: PathBuf, file: std::fs::File) -> LogFile {
        LogFile {
            path,
            file: Lines::of(file),
            failing: false,
        }
    }

    /// By its name again; the old one is kept where that fails.
    pub fn reopen(&mut self) -> Result<String, String> {
        self.file = Lines::open(&self.path, "flow log")?;
        Ok(format!("{}: opened anew", self.path.display()))
    }

    /// Appends records in one call; gives how many were lost.
    pub fn write(&mut self, records: &[v1::FlowRecord]) -> u64 {
        let mut lines = String::new();
        for record in records {
            if let Some(line) = api::json::of_v1("FlowRecord", &record.encode_to_vec()) {
                lines.push_str(&line.to_string());
                lines.push('\n');
            }
        }
        let path = self.path.display();
        let (written, result) = self.file.append(lines.as_bytes());
        match result {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("the flow log {path} is written to again");
            }
            Ok(()) => (),
            Err(e) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(
                        "the flow log {path} cannot be written to: {e}; \
                         records are lost until it can"
                    );
                }
            }
        }
        records.len() as u64 - written
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::*;

    /// A pipe that nobody reads takes a part of what is written at once, as a full disk does.
    #[test]
    fn what_a_failed_write_has_written_is_not_lost() {
        let (_reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut log = LogFile::with("pipe".into(), File::from(OwnedFd::from(writer)));
        let record = v1::FlowRecord {
            reason: "x".repeat(1000),
            ..Default::default()
        };
        let lost = log.write(&vec![record.clone(); 100]);
        assert!(
            (30..50).contains(&lost),
            "{lost} of 100, of which 64 KiB fit"
        );
        assert_eq!(log.write(&[record]), 1);
    }
}

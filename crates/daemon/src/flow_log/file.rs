//! The file of the flow log: a line of JSON for each record.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use api::v1;
use prost::Message;

use crate::audit;

/// A file that is appended to.
pub struct LogFile {
    path: PathBuf,
    file: File,
    /// The last write has failed, and the log says so.
    failing: bool,
}

impl LogFile {
    /// The error is a sentence.
    pub fn open(path: PathBuf) -> Result<LogFile, String> {
        let file = audit::open(&path, "flow log")?;
        Ok(LogFile {
            path,
            file,
            failing: false,
        })
    }

    /// By its name again; the old one is kept where that fails.
    pub fn reopen(&mut self) -> Result<String, String> {
        self.file = audit::open(&self.path, "flow log")?;
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
        match self.file.write_all(lines.as_bytes()) {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("the flow log {path} is written to again");
                0
            }
            Ok(()) => 0,
            Err(e) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(
                        "the flow log {path} cannot be written to: {e}; \
                         records are lost until it can"
                    );
                }
                records.len() as u64
            }
        }
    }
}

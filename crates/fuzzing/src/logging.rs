//! Stands in for the daemon's module of this name: a level that is read and thrown away.

use std::str::FromStr;

/// How much would be logged.
pub struct Level;

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Level, String> {
        match text {
            "none" | "error" | "warning" | "info" | "debug" => Ok(Level),
            _ => Err(format!("'{}' is no level", text.escape_debug())),
        }
    }
}

/// Would change the level of the running log.
pub struct LogControl;

impl LogControl {
    pub fn set(&self, _: Level) {}
}

//! Stands in for the daemon's module of this name: the controller behind its lock, in a world of
//! its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use control::Controller;

use crate::logging::LogControl;

/// What the APIs work on.
pub struct App {
    controller: Mutex<Controller>,
    pub log: LogControl,
}

impl App {
    pub fn new(controller: Controller) -> App {
        App {
            controller: Mutex::new(controller),
            log: LogControl,
        }
    }

    pub fn control(&self) -> MutexGuard<'_, Controller> {
        self.controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// No clock here: an input means the same at any time.
pub fn unix_secs() -> u64 {
    1_800_000_000
}

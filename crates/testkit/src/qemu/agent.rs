//! The host's end of the agent's line: who waits for which command, and what came back. The
//! protocol is described in `crates/guest/src/agent.rs`.

use crate::Result;
use crate::process::tail;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a command in a guest came to.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit code; 124 when it ran out of time.
    pub code: i32,
    /// What it printed, standard output and error together.
    pub text: String,
}

/// A command that runs in a guest.
#[derive(Debug)]
pub struct Job {
    agent: Arc<Agent>,
    id: u64,
    deadline: Instant,
    what: String,
    console: PathBuf,
}

impl Job {
    /// The request for a command, for the line, and what waits for its answer.
    pub(super) fn new(
        agent: &Arc<Agent>,
        guest: &str,
        command: &str,
        timeout: Duration,
        console: PathBuf,
    ) -> (String, Self) {
        let id = agent.next_id();
        let hex: String = command.bytes().map(|b| format!("{b:02x}")).collect();
        let job = Self {
            agent: Arc::clone(agent),
            id,
            // The agent ends the command at its time-out; what comes after that is for a guest that
            // is stuck.
            deadline: Instant::now() + timeout + Duration::from_secs(10),
            what: format!("{guest}: `{command}`"),
            console,
        };
        (format!("run {id} {} {hex}\n", timeout.as_millis()), job)
    }

    /// Waits for its end.
    pub fn wait(self) -> Result<Output> {
        let mut state = self.agent.state();
        loop {
            if let Some(output) = state.done.remove(&self.id) {
                return Ok(output);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                let console = std::fs::read(&self.console).unwrap_or_default();
                let console = tail(&String::from_utf8_lossy(&console), 40);
                return Err(format!(
                    "{} was never answered; console:\n{console}",
                    self.what
                ));
            }
            state = self
                .agent
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// What came over the agent's line so far.
#[derive(Debug, Default)]
pub(super) struct Agent {
    state: Mutex<AgentState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AgentState {
    boots: u32,
    closed: bool,
    last_id: u64,
    done: HashMap<u64, Output>,
}

impl Agent {
    /// How often a guest has come up on this line.
    pub(super) fn boots(&self) -> u32 {
        self.state().boots
    }

    fn state(&self) -> MutexGuard<'_, AgentState> {
        // Every change below is one step: what a panicking thread left is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other command has.
    pub(super) fn next_id(&self) -> u64 {
        let mut state = self.state();
        state.last_id += 1;
        state.last_id
    }

    /// Reads the line until it is closed.
    pub(super) fn listen(&self, line: UnixStream) {
        for text in BufReader::new(line)
            .split(b'\n')
            .map_while(std::result::Result::ok)
        {
            let text = String::from_utf8_lossy(&text).into_owned();
            let words: Vec<&str> = text.split_whitespace().collect();
            let mut state = self.state();
            match words[..] {
                ["ready", ..] => state.boots += 1,
                ["done", id, code, hex] => {
                    if let (Ok(id), Ok(code)) = (id.parse(), code.parse()) {
                        state.done.insert(
                            id,
                            Output {
                                code,
                                text: unhex(hex),
                            },
                        );
                    }
                }
                _ => continue, // noise of the line while it opens
            }
            self.changed.notify_all();
        }
        self.state().closed = true;
        self.changed.notify_all();
    }
}

fn unhex(hex: &str) -> String {
    let bytes: Vec<u8> = hex
        .as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

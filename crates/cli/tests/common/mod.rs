//! What the tests of the program share: running it, and daemons that only write down what they are
//! asked.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod daemon;
pub mod grpc;
pub mod zmq;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time a command may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a run of the program gave.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `butterfly -e ENDPOINT LINE`; quotes `'…'` keep blanks together and make empty words.
pub fn butterfly(endpoint: &str, line: &str) -> Ran {
    let mut args = vec!["-e".to_owned(), endpoint.to_owned()];
    args.extend(words(line));
    run(&args)
}

/// Runs the program with these arguments, without an endpoint from the environment.
pub fn run(args: &[String]) -> Ran {
    ran(command(args))
}

/// What a run of this command gave.
pub fn ran(command: Command) -> Ran {
    let Output {
        status,
        stdout,
        stderr,
    } = finish(command);
    let text = |bytes| String::from_utf8(bytes).expect("the program prints UTF-8");
    Ran {
        code: status.code().expect("no signal ended it"),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// The program, ready to be spawned.
pub fn command(args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterfly"));
    command
        .args(args)
        .env_remove("BUTTERFLY_ENDPOINT")
        .stdin(Stdio::null());
    command
}

/// Waits for the end within the patience of a test.
pub fn finish(mut command: Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = child.id();
    let (done, waiting) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = done.send(());
        output
    });
    if waiting.recv_timeout(PATIENCE).is_err() {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        panic!("{command:?} takes longer than {PATIENCE:?}");
    }
    waiter
        .join()
        .expect("the waiter does not panic")
        .expect("the program's output is readable")
}

/// A line as a shell splits it, as far as tests need.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, text) in line.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(text.split_whitespace().map(Into::into)),
            _ => words.push(text.into()),
        }
    }
    words
}

/// Waits for `is` to hold, within the patience of a test.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

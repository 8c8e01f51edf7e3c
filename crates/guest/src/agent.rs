//! Runs commands for the host, over the guest's second serial line.
//!
//! The protocol is lines of text. The host sends `run ID TIMEOUT_MS HEX`; the guest answers `done
//! ID CODE HEX` when the command has ended, in any order: each command has a thread of its own. HEX
//! is the command for `/bin/sh -c`, or what it printed (standard output and error together, the
//! last 256 KiB). A command that outlives its time is killed with its process group and answered
//! with code 124. `ready BOOT_ID` is sent once at the start; a line that does not parse is ignored,
//! since a serial line may carry noise while it opens.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

const OUTPUT_MAX: u64 = 256 * 1024;
const TIMED_OUT: i32 = 124;

/// Answers commands on `device` until it is closed.
pub fn serve(device: &str) -> crate::Outcome {
    let open = |write: bool| {
        File::options()
            .read(!write)
            .write(write)
            .open(device)
            .map_err(|e| format!("cannot open {device}: {e}"))
    };
    let line = BufReader::new(open(false)?);
    let answers = Arc::new(Mutex::new(open(true)?));
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    say(&answers, &format!("ready {}", boot_id.trim()));
    for request in line.lines().map_while(Result::ok) {
        let words: Vec<&str> = request.split_whitespace().collect();
        let ["run", id, timeout_ms, command] = words[..] else {
            continue;
        };
        let (Ok(timeout_ms), Some(command)) = (timeout_ms.parse(), from_hex(command)) else {
            continue;
        };
        let (id, answers) = (id.to_owned(), Arc::clone(&answers));
        std::thread::spawn(move || {
            let (code, output) = run(&id, &command, Duration::from_millis(timeout_ms));
            say(&answers, &format!("done {id} {code} {}", to_hex(&output)));
        });
    }
    Ok("the serial line was closed".to_owned())
}

/// Output goes through a file and not a pipe: a program left in the background then holds nobody
/// up.
fn run(id: &str, command: &[u8], timeout: Duration) -> (i32, Vec<u8>) {
    let path = format!("/run/agent-{id}");
    match run_into(&path, &String::from_utf8_lossy(command), timeout) {
        Ok((code, output)) => {
            let _ = std::fs::remove_file(path);
            (code, output)
        }
        Err(e) => (127, format!("the agent cannot run this: {e}").into_bytes()),
    }
}

fn run_into(path: &str, command: &str, timeout: Duration) -> std::io::Result<(i32, Vec<u8>)> {
    let mut output = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0)
        .spawn()?;
    let deadline = Instant::now() + timeout;
    let code = loop {
        if let Some(status) = child.try_wait()? {
            break status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        if Instant::now() >= deadline {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            child.wait()?;
            break TIMED_OUT;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let len = output.seek(SeekFrom::End(0))?;
    output.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_MAX)))?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes)?;
    Ok((code, bytes))
}

fn say(answers: &Mutex<File>, line: &str) {
    // A poisoned lock means that a thread panicked between two whole lines: the line itself is
    // still good.
    let mut answers = answers
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let _ = answers.write_all(format!("{line}\n").as_bytes());
}

fn to_hex(bytes: &[u8]) -> String {
    // An empty word would vanish from the line; "-" stands for it.
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{TIMED_OUT, from_hex, run_into, to_hex};
    use std::time::{Duration, Instant};

    #[test]
    fn hex_goes_there_and_back() {
        assert_eq!(to_hex(b"\x00\xffa"), "00ff61");
        assert_eq!(from_hex("00ff61").as_deref(), Some(&b"\x00\xffa"[..]));
        assert_eq!(to_hex(b""), "-");
        assert_eq!(from_hex("0g"), None);
    }

    #[test]
    fn what_outlives_its_time_is_ended_with_all_that_it_began() {
        let output = std::env::temp_dir().join(format!("butterfly-agent-{}", std::process::id()));
        let begin = Instant::now();
        let command = "sleep 60 & echo $!; sleep 60";
        let ended = run_into(
            output.to_str().unwrap(),
            command,
            Duration::from_millis(300),
        );
        let _ = std::fs::remove_file(&output);
        let (code, said) = ended.unwrap();
        assert_eq!(code, TIMED_OUT);
        assert!(begin.elapsed() < Duration::from_secs(30));
        let stat = format!("/proc/{}/stat", String::from_utf8(said).unwrap().trim());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{stat} is there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

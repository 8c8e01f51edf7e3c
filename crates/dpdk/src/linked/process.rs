//! What holds for the process: DPDK started once, its log, and the threads that call it.

use std::cell::OnceCell;
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::ffi;
use crate::Error;

static STARTED: AtomicBool = AtomicBool::new(false);
static LOG: OnceLock<fn(&str)> = OnceLock::new();
/// The last lines of a start, of which one says why it failed.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// So many of them.
const SAID_MAX: usize = 4;

/// Starts DPDK with these words, as a program of its own would get them behind its name. Each line
/// that it logs goes to `log`, from any thread.
///
/// # Errors
/// It was started before, or does not take the words.
pub fn start(args: &[String], log: fn(&str)) -> Result<(), Error> {
    if STARTED.swap(true, Ordering::SeqCst) {
        return Err(Error::Again);
    }
    let refused = |why: String| Error::Start {
        args: args.join(" "),
        why,
    };
    let _ = LOG.set(log);
    let words = std::iter::once("butterflyd").chain(args.iter().map(String::as_str));
    let words: Result<Vec<CString>, _> = words.map(CString::new).collect();
    let words = words.map_err(|_| refused("a word has a zero byte".to_owned()))?;
    let thread = std::thread::Builder::new().name("dpdk-start".to_owned());
    let started = thread.spawn(move || {
        // DPDK keeps pointers to the words, and may put others in their places.
        let mut words: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
        words.push(std::ptr::null_mut());
        let words = Box::leak(words.into_boxed_slice());
        // SAFETY: so many strings that end with zero and a null pointer behind them, none of which
        // is ever freed; and it is the first and only call.
        unsafe { ffi::bf_start(words.len() as i32 - 1, words.as_mut_ptr(), log_text) }
    });
    let done = started.map(|thread| thread.join());
    let error = match done {
        Ok(Ok(0)) => return Ok(()),
        Ok(Ok(error)) => std::io::Error::from_raw_os_error(error).to_string(),
        Ok(Err(_)) => "it panicked".to_owned(),
        Err(error) => error.to_string(),
    };
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    Err(refused(match said.is_empty() {
        true => error,
        false => said.join("; "),
    }))
}

/// A piece of DPDK's log, which is a line.
extern "C" fn log_text(text: *const c_char, length: usize) {
    // SAFETY: DPDK's stream hands over so many bytes that it has written.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let text = String::from_utf8_lossy(text);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == SAID_MAX {
            said.remove(0);
        }
        said.push(line.to_owned());
        drop(said);
        if let Some(log) = LOG.get() {
            log(line);
        }
    }
}

/// A thread's number of DPDK's, which it gives back when it ends.
struct Number(bool);

impl Drop for Number {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: it was registered by this thread.
            unsafe { ffi::bf_leave_thread() }
        }
    }
}

/// Registers the calling thread with DPDK, once: with a number it has a cache of each pool of
/// buffers; without one, where none is left, it is slower.
#[inline]
pub(super) fn enter_thread() {
    thread_local! {
        static NUMBER: OnceCell<Number> = const { OnceCell::new() };
    }
    NUMBER.with(|number| {
        number.get_or_init(|| {
            // SAFETY: DPDK is started: there are queues.
            Number(unsafe { ffi::bf_enter_thread() } >= 0)
        });
    });
}

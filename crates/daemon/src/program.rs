//! The program's command line: which of the daemon's processes it asks for, that one until it ends,
//! and what it ends with.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use container::namespace_helper;
use io::post_copy::helper as page_helper;

use crate::logging::LogControl;
use crate::options::{Options, Settings};
use crate::upgrade::Predecessor;
use crate::{held, logging, reader, run};

/// The command line or a file it names is wrong (sysexits would say 64 and 78; clap says 2).
const USAGE: u8 = 2;

/// How long a start that fails takes under systemd at the least. What keeps it from starting may
/// pass, and systemd, which starts it again at once, is not to give it up meanwhile
/// (`StartLimitBurst` in packaging/butterflyd.service).
const START_TAKES: Duration = Duration::from_secs(2);

/// Why the program ends otherwise than it was asked to.
pub enum Failure {
    /// The command line or a file that it names is wrong.
    Usage(String),
    /// A process that has no log could not do its work.
    Process(String),
    /// The daemon could not. It ends so long behind its last words.
    Daemon(LogControl, String, Duration),
}

/// Does what the command line asks for; `first` is the first argument. The daemon itself starts
/// this program with one argument, as the [namespace helper](namespace_helper), as the [page
/// helper](page_helper) and as a [reader]; a person starts the daemon, or the keeper.
///
/// # Errors
/// The program ends for another reason than that it was asked to.
pub fn run_program(first: Option<OsString>) -> Result<(), Failure> {
    let process = |what: &str, ended: Result<(), String>| {
        ended.map_err(|why| Failure::Process(format!("{what}: {why}")))
    };
    match first.as_ref().and_then(|first| first.to_str()) {
        Some(namespace_helper::ARGUMENT) => {
            return process("namespace helper", namespace_helper::serve());
        }
        Some(page_helper::ARGUMENT) => return process("page helper", page_helper::serve()),
        Some(reader::ARGUMENT) => return process("reader", reader::serve()),
        _ => (),
    }
    let options = Options::parse();
    if let Some(text) = options.text_asked_for() {
        print!("{text}");
        return Ok(());
    }
    if let Some((socket, until_idle)) = options.keeper_asked_for() {
        return held::keep(socket, until_idle).map_err(Failure::Process);
    }
    run_daemon(options)
}

fn run_daemon(options: Options) -> Result<(), Failure> {
    let predecessor = options.takes_over().then(Predecessor::at_stdin);
    let predecessor = predecessor.transpose().map_err(Failure::Usage)?;
    let settings = Settings::resolve(options).map_err(|why| {
        if let Some(predecessor) = &predecessor {
            predecessor.refuse(&why);
        }
        Failure::Usage(why)
    })?;
    let log = logging::start(settings.log_level, settings.no_syslog);
    let begun = Instant::now();
    let is_of_systemd = predecessor.is_none() && std::env::var_os("NOTIFY_SOCKET").is_some();
    run::run(settings, log.clone(), predecessor).map_err(|why| {
        let pause = match is_of_systemd {
            true => START_TAKES.saturating_sub(begun.elapsed()),
            false => Duration::ZERO,
        };
        Failure::Daemon(log, why, pause)
    })
}

impl Failure {
    /// Says why, where whoever has started the program looks.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::Usage(why) | Failure::Process(why) => eprintln!("butterflyd: {why}"),
            Failure::Daemon(log, why, pause) => {
                log.last_words(why);
                std::thread::sleep(*pause);
            }
        }
        match self {
            Failure::Usage(_) => ExitCode::from(USAGE),
            Failure::Process(_) | Failure::Daemon(..) => ExitCode::FAILURE,
        }
    }
}

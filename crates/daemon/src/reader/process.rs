//! The process that a reader is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use rustls::ServerConfig;
use sys::handed::bytes_of;
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::runtime::{Builder, Handle};

use super::words::{Heard, Word, hear};
use super::{checks, relay};
use crate::v0::conversation;
use crate::v0::envelope::Envelope;
use crate::v0::zmtp::Room;
use crate::v1::tls::{FILE_MAX, Pem};

/// What the program is started with, as its only argument, to be a reader.
pub const ARGUMENT: &str = "--as-reader";

/// Threads that read, each with connections of its own; nobody can start one more.
const THREADS: usize = 4;

/// Reads what is passed on over standard input, until the daemon is gone. The error is a sentence.
pub fn serve() -> Result<(), String> {
    let told = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    // What ps(1) calls it, which would be the name of a link.
    let _ = rustix::thread::set_name(c"reader");
    // Strangers can have it take memory.
    sys::confine::go_first().map_err(told("/proc/self/oom_score_adj"))?;
    sys::confine::give_up().map_err(told("what it may cannot be given up"))?;
    let mut reader = ReaderProcess {
        threads: Threads::start()?,
        envelope: Envelope::default(),
        room: Room::default(),
        tls: None,
    };
    sys::reading_only::allow_only_reading().map_err(told("system calls cannot be filtered"))?;
    loop {
        match hear(socket) {
            Ok(Some(heard)) => {
                let word = heard.word;
                match reader.take(heard) {
                    // What the daemon takes for granted from now on would not be so.
                    Err(why) if word.is_setting() => return Err(format!("{word:?}: {why}")),
                    // The connection has been given up: its descriptors are closed.
                    Err(_) | Ok(()) => (),
                }
            }
            Ok(None) => return Ok(()),
            Err(e) => return Err(format!("what the daemon says: {e}")),
        }
    }
}

/// The threads' runtimes. Each connection is one thread's, so that a mistake that has one hang is
/// seen, and costs the others nothing meanwhile.
struct Threads {
    all: Vec<Handle>,
    next: usize,
}

impl Threads {
    /// Returns when all of them run: what a thread calls before it does is not among what is
    /// allowed later.
    fn start() -> Result<Threads, String> {
        let told = |e: io::Error| format!("a thread cannot be started: {e}");
        let (sender, runtimes) = mpsc::channel();
        for number in 0..THREADS {
            let sender = sender.clone();
            let run = move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                let handle = runtime.as_ref().map(|runtime| runtime.handle().clone());
                let _ = sender.send(handle.map_err(|e| e.to_string()));
                if let Ok(runtime) = runtime {
                    runtime.block_on(std::future::pending::<()>());
                }
            };
            let thread = std::thread::Builder::new().name(format!("reader{number}"));
            thread.spawn(run).map_err(told)?;
        }
        let all: Result<Vec<Handle>, String> = runtimes.into_iter().take(THREADS).collect();
        Ok(Threads { all: all?, next: 0 })
    }

    /// For a connection of a user who may have many: always the same one, so that he has no more
    /// than that. `None`: the next one.
    fn of(&mut self, user: Option<&str>) -> &Handle {
        let number = match user {
            Some(user) => {
                let mut hasher = DefaultHasher::new();
                user.hash(&mut hasher);
                hasher.finish() as usize
            }
            None => {
                self.next = self.next.wrapping_add(1);
                self.next
            }
        };
        &self.all[number % self.all.len()]
    }

    /// Says a byte when each thread has come to it.
    fn beat(&self, stream: StdStream) {
        let (left, stream) = (AtomicUsize::new(self.all.len()), stream);
        let beat = Arc::new((left, stream));
        for thread in &self.all {
            let beat = beat.clone();
            thread.spawn(async move {
                let (left, stream) = &*beat;
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let mut stream = stream;
                    let _ = stream.write(&[0]);
                }
            });
        }
    }
}

/// The threads, and what connections go by.
struct ReaderProcess {
    threads: Threads,
    envelope: Envelope,
    room: Room,
    tls: Option<Arc<ServerConfig>>,
}

impl ReaderProcess {
    /// Does what the daemon says. The error is the end of a sentence.
    fn take(&mut self, heard: Heard) -> Result<(), String> {
        let Heard {
            word,
            note,
            descriptors,
        } = heard;
        match word {
            Word::Beat => {
                let [stream] = exactly(descriptors)?;
                self.threads.beat(stream.into());
            }
            Word::Key => {
                let key: [u8; 32] = note.try_into().map_err(|_| "no key")?;
                self.envelope = Envelope::new(Some(key.into()));
            }
            Word::Certificates => {
                let [cert, key, ca] = exactly(descriptors)?;
                let pem = Pem {
                    cert: content(cert)?,
                    key: content(key)?,
                    ca: content(ca)?,
                };
                let config = pem.config(["the certificate", "its key", "the authority"])?;
                self.tls = Some(Arc::new(config));
            }
            Word::Tls => {
                let [client, daemon] = exactly(descriptors)?;
                let config = self.tls.as_deref().ok_or("there are no certificates")?;
                let mut config = config.clone();
                config.alpn_protocols = vec![note];
                let thread = self.threads.of(None);
                let _within = thread.enter();
                thread.spawn(relay::relay(tcp(client)?, unix(daemon)?, Arc::new(config)));
            }
            Word::V0Tcp => {
                let [client, daemon] = exactly(descriptors)?;
                let (envelope, room) = (self.envelope.clone(), self.room.clone());
                let thread = self.threads.of(None);
                let _within = thread.enter();
                let (client, daemon) = (tcp(client)?, unix(daemon)?);
                thread.spawn(conversation::converse(client, daemon, envelope, room));
            }
            Word::V0Ipc => {
                let [client, daemon] = exactly(descriptors)?;
                let user = String::from_utf8(note).map_err(|e| e.to_string())?;
                let user = Some(user.as_str()).filter(|user| !user.is_empty());
                let (envelope, room) = (self.envelope.clone(), self.room.of(user));
                let thread = self.threads.of(user);
                let _within = thread.enter();
                let (client, daemon) = (unix(client)?, unix(daemon)?);
                thread.spawn(conversation::converse(client, daemon, envelope, room));
            }
            Word::CheckTcp | Word::CheckUdp => {
                let [server, daemon] = exactly(descriptors)?;
                let thread = self.threads.of(None);
                let _within = thread.enter();
                let server = match word {
                    Word::CheckUdp => checks::Socket::Udp(udp(server)?),
                    _ => checks::Socket::Tcp(tcp(server)?),
                };
                thread.spawn(checks::check(server, unix(daemon)?));
            }
        }
        Ok(())
    }
}

/// As many descriptors as belong to a word.
fn exactly<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT], String> {
    descriptors
        .try_into()
        .map_err(|those: Vec<OwnedFd>| format!("{} descriptors, not {COUNT}", those.len()))
}

/// What is in one of the files of certificates.
fn content(file: OwnedFd) -> Result<Vec<u8>, String> {
    let content = bytes_of(file, FILE_MAX as u64 + 1).map_err(|e| e.to_string())?;
    match content.len() {
        0..=FILE_MAX => Ok(content),
        _ => Err(format!("it has more than {FILE_MAX} bytes")),
    }
}

fn tcp(socket: OwnedFd) -> Result<TcpStream, String> {
    let stream = std::net::TcpStream::from(socket);
    let stream = stream
        .set_nonblocking(true)
        .and_then(|()| TcpStream::from_std(stream));
    stream.map_err(|e| e.to_string())
}

fn udp(socket: OwnedFd) -> Result<UdpSocket, String> {
    let socket = std::net::UdpSocket::from(socket);
    let socket = socket
        .set_nonblocking(true)
        .and_then(|()| UdpSocket::from_std(socket));
    socket.map_err(|e| e.to_string())
}

fn unix(socket: OwnedFd) -> Result<UnixStream, String> {
    let stream = StdStream::from(socket);
    let stream = stream
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(stream));
    stream.map_err(|e| e.to_string())
}

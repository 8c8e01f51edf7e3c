//! Where v0 clients connect: tcp or ipc endpoints in ZeroMQ's spelling, a task for each client.
//!
//! Who is accepted is passed on to the [reader](crate::reader), which speaks with the client, and
//! asks here what it asks.
//!
//! What clients can take is bounded: the places, of which one that is needed is taken from whoever
//! has been silent longest (see [`places`](crate::places)); large messages, received, answered or
//! sent, by zmtp's [`Room`], in the reader and here; requests that are answered at one time; of
//! both one user of this host has the half. Libraries of ZeroMQ connect again by themselves.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixStream, lookup_host};
use tokio::sync::watch;
use tokio::time::timeout;

use super::few::{Few, Taken};
use super::handler::{Answer, Handler};
use super::key::KeyFile;
use super::zmtp::{MESSAGE_MAX, PATIENCE, Room, SMALL};
use crate::access::{Access, Gate, Peer, Who};
use crate::app::App;
use crate::lock;
use crate::places::{ClientPlace, ClientPlaces};
use crate::reader::Reader;
use crate::reader::words::{Kind, SENTENCE_MAX, Word, body, head, receive, send, sentence};
use crate::unix_socket::ApiSocket;

/// Clients connected at one time.
const CLIENTS_MAX: usize = 256;
/// Requests that are answered at one time: one has the controller, the others are decoded or
/// encoded.
const ANSWERED_AT_ONCE: usize = 4;

/// Bound, and not yet serving.
pub struct Listener {
    socket: Socket,
    reader: Arc<Reader>,
    key: Option<Arc<KeyFile>>,
    policy: Policy,
}

enum Socket {
    Tcp(TcpListener),
    Ipc(ApiSocket),
}

/// TCP has no peer that could be asked who it is, not on loopback either: it takes a key, or the
/// user's word for clear text.
#[derive(Clone)]
pub struct Policy {
    pub insecure: bool,
    pub access: Access,
    pub gate: Gate,
}

impl Listener {
    /// Binds to an endpoint, or goes on with the socket that was handed over; `reader` is who
    /// speaks with clients. The error is a sentence that says what to do.
    pub async fn bind(
        endpoint: &str,
        handed: Option<OwnedFd>,
        key: Option<Arc<KeyFile>>,
        policy: Policy,
        reader: Arc<Reader>,
    ) -> Result<Listener, String> {
        let socket = match parse(endpoint).await? {
            Endpoint::Ipc(path) => Socket::Ipc(ApiSocket::at(&path, handed, &policy.access)?),
            Endpoint::Tcp(addresses) => {
                if key.is_none() && !policy.insecure {
                    return Err(format!(
                        "the v0 API would be open in clear text to whoever can connect to \
                         {endpoint}, the users of this host among them: give a key with \
                         -k (encryption_key_path in the INI file), listen on ipc://PATH instead, \
                         or say --insecure-api (insecure-api = true under [security] in the INI \
                         file)"
                    ));
                }
                let listener = listen_by(&addresses, handed).await;
                let listener = listener.map_err(|e| format!("cannot listen on {endpoint}: {e}"))?;
                if key.is_none() {
                    tracing::warn!(
                        "the v0 API is open in clear text on {endpoint}: whoever can connect, the \
                         users of this host among them, may do anything that this daemon can"
                    );
                }
                Socket::Tcp(listener)
            }
        };
        Ok(Listener {
            socket,
            reader,
            key,
            policy,
        })
    }

    /// The socket's path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.socket {
            Socket::Ipc(socket) => Some(socket.path()),
            Socket::Tcp(_) => None,
        }
    }

    /// Another descriptor of its socket.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        match &self.socket {
            Socket::Ipc(socket) => socket.descriptor(),
            Socket::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// Serves until the daemon stops.
    pub async fn serve(mut self, app: Arc<App>) {
        let desk = Desk {
            handler: Handler::new(self.policy.gate.clone(), app.operations.clone()),
            reader: self.reader,
            key: self.key,
            app: app.clone(),
            places: match &self.socket {
                Socket::Ipc(_) => ClientPlaces::local("v0", CLIENTS_MAX),
                Socket::Tcp(_) => ClientPlaces::new("v0", CLIENTS_MAX),
            },
            room: Room::default(),
            turns: Few::new(ANSWERED_AT_ONCE),
        };
        tokio::select! {
            () = app.stopping() => (),
            () = accept(&mut self.socket, &self.policy, &desk) => (),
        }
    }
}

/// Listens, or goes on with the socket that was handed over.
pub async fn listen_by(
    addresses: &[SocketAddr],
    handed: Option<OwnedFd>,
) -> std::io::Result<TcpListener> {
    match handed {
        Some(socket) => TcpListener::from_std(socket.into()),
        None => listen(addresses).await,
    }
}

/// Listens; the port of a daemon that was killed a moment ago is waited for.
async fn listen(addresses: &[SocketAddr]) -> std::io::Result<TcpListener> {
    let start = std::time::Instant::now();
    loop {
        match TcpListener::bind(addresses).await {
            Err(e)
                if e.kind() == std::io::ErrorKind::AddrInUse
                    && start.elapsed() < lock::PATIENCE =>
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            bound => return bound,
        }
    }
}

/// What all clients share. Cheap to clone.
#[derive(Clone)]
struct Desk {
    handler: Handler,
    reader: Arc<Reader>,
    key: Option<Arc<KeyFile>>,
    app: Arc<App>,
    places: ClientPlaces,
    room: Room,
    turns: Few,
}

async fn accept(socket: &mut Socket, policy: &Policy, desk: &Desk) {
    loop {
        let accepted = match socket {
            Socket::Tcp(listener) => listener.accept().await.map(|(stream, peer)| {
                keep_alive(&stream);
                let peer = Peer {
                    who: Who::V0Tcp,
                    address: Some(peer.to_string()),
                };
                admit(
                    stream.into_std().map(OwnedFd::from),
                    Word::V0Tcp,
                    peer,
                    desk,
                );
            }),
            Socket::Ipc(listener) => {
                let accepted = listener.accept("v0", &policy.access, &policy.gate).await;
                accepted.map(|(stream, user)| {
                    let stream = stream.into_std().map(OwnedFd::from);
                    admit(stream, Word::V0Ipc, Peer::local(user), desk);
                })
            }
        };
        if let Err(e) = accepted {
            tracing::warn!("a v0 client could not be accepted: {e}");
            // Out of descriptors, most likely: not to be tried again at once.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

/// Gives the client a place; without one the connection is closed.
fn admit(stream: std::io::Result<OwnedFd>, word: Word, peer: Peer, desk: &Desk) {
    let Some(place) = desk.places.take_for(&peer, desk.handler.has_part(&peer)) else {
        return;
    };
    let desk = desk.clone();
    tokio::spawn(async move {
        let talk = async {
            // Before it is passed on, so that its key is of no later time than this.
            let another_key = desk.key.as_ref().map(|key| key.another());
            let user = peer.user().unwrap_or_default();
            let reader = desk.reader.hand(word, user.as_bytes(), stream?).await?;
            let client = Client::new(&peer, &desk, &place);
            client.converse(reader, another_key).await
        };
        let ended = tokio::select! {
            ended = talk => ended,
            () = place.displaced() => Err(Ended::Displaced),
        };
        if let Err(e) = ended {
            tracing::debug!("v0: the connection of {} ends: {e}", peer.shown());
        }
    });
}

/// A client whose host vanished gives its place back after the kernel's keepalive time.
fn keep_alive(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = stream.set_nodelay(true);
}

/// Returns when it has changed; never where there is nothing.
async fn changes(watched: &mut Option<watch::Receiver<()>>) {
    match watched {
        Some(watched) => drop(watched.changed().await),
        None => std::future::pending().await,
    }
}

/// Waits for a turn to be answered, however long: what is asked is not carried out where the key
/// that it was sealed with is not the daemon's any more by then.
async fn take_turn(
    turns: &Few,
    another_key: &mut Option<watch::Receiver<()>>,
) -> Result<Taken, Ended> {
    tokio::select! {
        biased;
        () = changes(another_key) => Err(Ended::AnotherKey),
        turn = turns.take() => Ok(turn),
    }
}

/// Why a connection ends before the client hangs up.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// What the reader says.
    #[error("{0}")]
    Said(String),
    #[error("the reader says what nobody asked for ({0:?})")]
    Unasked(Kind),
    #[error("a reply was not taken, or no room found for it, in {} s", 2 * PATIENCE.as_secs())]
    Slow,
    #[error("its place was needed for another client")]
    Displaced,
    #[error("the key is another one by now")]
    AnotherKey,
}

/// Who is asked for, with his part of what clients share.
struct Client<'a> {
    peer: &'a Peer,
    desk: &'a Desk,
    place: &'a ClientPlace,
    room: Room,
    turns: Few,
}

impl<'a> Client<'a> {
    fn new(peer: &'a Peer, desk: &'a Desk, place: &'a ClientPlace) -> Client<'a> {
        let user = peer.user();
        Client {
            peer,
            desk,
            place,
            room: desk.room.of(user.as_deref()),
            turns: desk.turns.of(user.as_deref()),
        }
    }

    /// Answers what the reader asks for him, until one of the two has hung up, or the key is
    /// another one.
    async fn converse(
        &self,
        mut reader: UnixStream,
        mut another_key: Option<watch::Receiver<()>>,
    ) -> Result<(), Ended> {
        loop {
            let head = tokio::select! {
                biased;
                // What is asked by then is sealed with the key of before.
                () = changes(&mut another_key) => return Err(Ended::AnotherKey),
                head = head(&mut reader) => head?,
            };
            let Some((kind, len)) = head else {
                return Ok(());
            };
            match kind {
                Kind::Request => self.answer(&mut reader, len, &mut another_key).await?,
                // It was answered by the reader.
                Kind::Sent if len == 0 => match self.place.begin() {
                    true => self.place.end(),
                    false => return Err(Ended::Displaced),
                },
                Kind::Refused => {
                    let why = body(&mut reader, len, SENTENCE_MAX).await?;
                    self.desk.handler.turn_away(self.peer, &sentence(&why));
                }
                Kind::Failed => {
                    let why = body(&mut reader, len, SENTENCE_MAX).await?;
                    return Err(Ended::Said(sentence(&why)));
                }
                kind => return Err(Ended::Unasked(kind)),
            }
        }
    }

    /// Answers a request of so many bytes; returns when the client has the answer.
    async fn answer(
        &self,
        reader: &mut UnixStream,
        len: usize,
        another_key: &mut Option<watch::Receiver<()>>,
    ) -> Result<(), Ended> {
        // What the reader has taken is here a second time.
        let mut room = match len > SMALL {
            true => Some(self.take_room().await?),
            false => None,
        };
        let read = timeout(PATIENCE, body(reader, len, MESSAGE_MAX)).await;
        let request = read.map_err(|_| Ended::Slow)??;
        if !self.place.begin() {
            return Err(Ended::Displaced);
        }
        let turn = take_turn(&self.turns, another_key).await?;
        let (handler, peer) = (self.desk.handler.clone(), self.peer.clone());
        let client_gone = Arc::new(AtomicBool::new(false));
        let gone = client_gone.clone();
        let mut answered =
            tokio::task::spawn_blocking(move || handler.answer(&peer, &request, &gone));
        let mut byte = [0];
        let answer = tokio::select! {
            answer = &mut answered => answer,
            // It says nothing before it has the answer: it has gone, as its client has.
            _ = reader.read(&mut byte) => {
                client_gone.store(true, Ordering::Relaxed);
                let answer = answered.await;
                self.stop_if_asked(answer.as_ref().ok());
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
        };
        // One that panicked is in the log already.
        let answer = answer.ok();
        let (kind, bytes) = match &answer {
            Some(answer) => (Kind::Answer, answer.bytes.as_slice()),
            None => (Kind::Broken, &[][..]),
        };
        // A large reply to a small request waits in its turn for room, so that there are few of
        // them.
        if bytes.len() > SMALL && room.is_none() {
            room = Some(self.take_room().await?);
        }
        drop(turn);
        let sent = timeout(2 * PATIENCE, async {
            send(reader, kind, bytes).await?;
            receive(reader, SENTENCE_MAX).await
        });
        match sent.await.map_err(|_| Ended::Slow)?? {
            Some((Kind::Sent, _)) => (),
            Some((Kind::Failed, why)) => return Err(Ended::Said(sentence(&why))),
            Some((kind, _)) => return Err(Ended::Unasked(kind)),
            None => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        }
        self.stop_if_asked(answer.as_ref());
        if room.take().is_some() {
            // What it took goes back to the system, and does not stay for the next one.
            let _ = tokio::task::spawn_blocking(sys::trim_memory).await;
        }
        self.place.end();
        Ok(())
    }

    fn stop_if_asked(&self, answer: Option<&Answer>) {
        if answer.is_some_and(|answer| answer.quit) {
            tracing::info!("asked to stop through the v0 API");
            self.desk.app.stop();
        }
    }

    async fn take_room(&self) -> Result<Taken, Ended> {
        self.room.take().await.map_err(|_| Ended::Slow)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp(Vec<SocketAddr>),
    Ipc(PathBuf),
}

async fn parse(endpoint: &str) -> Result<Endpoint, String> {
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return match path {
            "" | "*" => Err(format!("the endpoint {endpoint} has no path")),
            path if path.starts_with('@') => Err(format!(
                "the endpoint {endpoint}: give a path in the file system"
            )),
            path => Ok(Endpoint::Ipc(path.into())),
        };
    }
    let refused =
        || format!("the endpoint '{endpoint}' is not tcp://ADDRESS:PORT, ipc://PATH or none");
    let address = endpoint.strip_prefix("tcp://").ok_or_else(refused)?;
    let address = match address.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let found: Vec<SocketAddr> = lookup_host(&address)
        .await
        .map_err(|e| format!("{}: {e}", refused()))?
        .collect();
    match found.is_empty() {
        true => Err(refused()),
        false => Ok(Endpoint::Tcp(found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endpoints() {
        let tcp = |text: &str| Ok(Endpoint::Tcp(vec![text.parse().unwrap()]));
        assert_eq!(parse("tcp://127.0.0.1:9999").await, tcp("127.0.0.1:9999"));
        assert_eq!(parse("tcp://*:1").await, tcp("0.0.0.0:1"));
        assert_eq!(parse("tcp://[::1]:2").await, tcp("[::1]:2"));
        assert_eq!(
            parse("ipc:///run/b.sock").await,
            Ok(Endpoint::Ipc("/run/b.sock".into()))
        );
        for bad in [
            "",
            "tcp://",
            "tcp://127.0.0.1",
            "tcp://127.0.0.1:x",
            "ipc://",
            "ipc://@abstract",
            "udp://1:1",
            "9999",
        ] {
            assert!(parse(bad).await.is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_by_a_key_of_before_gets_none() {
        let turns = Few::new(1);
        let key = watch::Sender::new(());
        let (mut none, mut by_it) = (None, Some(key.subscribe()));
        drop(take_turn(&turns, &mut by_it).await.unwrap());
        let first = take_turn(&turns, &mut none).await.unwrap();
        let waiting = {
            let (turns, mut by_it) = (turns.clone(), by_it.clone());
            tokio::spawn(async move { take_turn(&turns, &mut by_it).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        // Both at one time.
        key.send_replace(());
        drop(first);
        let ended = waiting.await.unwrap();
        assert!(matches!(ended, Err(Ended::AnotherKey)), "{ended:?}");
        let ended = take_turn(&turns, &mut by_it).await;
        assert!(matches!(ended, Err(Ended::AnotherKey)), "{ended:?}");
        // Others, and who came by the new one, do.
        drop(take_turn(&turns, &mut none).await.unwrap());
        let mut by_new = Some(key.subscribe());
        drop(take_turn(&turns, &mut by_new).await.unwrap());
    }

    #[tokio::test]
    async fn clear_text_over_tcp_takes_a_key_or_the_users_word() {
        let policy = |insecure| Policy {
            insecure,
            access: Access::new(None, None).unwrap(),
            gate: Gate::open(),
        };
        let reader = || Reader::new("clients", 0);
        // For its owner alone.
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&key, "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=\n").unwrap();
        for open in [
            "tcp://0.0.0.0:0",
            "tcp://*:0",
            "tcp://[::]:0",
            "tcp://127.0.0.1:0",
            "tcp://[::1]:0",
        ] {
            let error = Listener::bind(open, None, None, policy(false), reader())
                .await
                .err()
                .unwrap();
            for word in ["-k", "--insecure-api", "insecure-api = true", "ipc://"] {
                assert!(error.contains(word), "{error}");
            }
            let bound = Listener::bind(open, None, None, policy(true), reader()).await;
            assert!(bound.is_ok());
            let key = KeyFile::read(key.path(), reader()).unwrap();
            let key = Some(Arc::new(key));
            let bound = Listener::bind(open, None, key, policy(false), reader()).await;
            assert!(bound.is_ok());
        }
    }
}

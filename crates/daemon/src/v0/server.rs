//! Where v0 clients connect: tcp or ipc endpoints in ZeroMQ's spelling, a task for each client.
//!
//! What clients can take is bounded: the places, of which one that is needed is taken from whoever
//! has been silent longest (see [`places`](crate::places)); large messages, received, answered or
//! sent, by zmtp's [`Room`]; requests that are answered at one time; of both one user of this host
//! has the half. Libraries of ZeroMQ connect again by themselves.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::encrypted::Key;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, lookup_host};

use super::few::Few;
use super::handler::Handler;
use super::zmtp::{Connection, Room, SMALL, ZmtpError};
use crate::access::{Access, Gate, Peer, Who};
use crate::app::App;
use crate::lock;
use crate::places::{ClientPlace, ClientPlaces};
use crate::unix_socket::ApiSocket;

/// Clients connected at one time.
const CLIENTS_MAX: usize = 256;
/// Requests that are answered at one time: one has the controller, the others are decoded or
/// encoded.
const ANSWERED_AT_ONCE: usize = 4;

/// Bound, and not yet serving.
pub struct Listener {
    socket: Socket,
    key: Option<Key>,
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
    /// Binds to an endpoint, or goes on with the socket that was handed over. The error is a
    /// sentence that says what to do.
    pub async fn bind(
        endpoint: &str,
        handed: Option<OwnedFd>,
        key: Option<Key>,
        policy: Policy,
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
            handler: Handler::behind(self.policy.gate.clone(), app.operations.clone(), self.key),
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
                admit(stream, peer, desk);
            }),
            Socket::Ipc(listener) => {
                let accepted = listener.accept("v0", &policy.access, &policy.gate).await;
                accepted.map(|(stream, user)| admit(stream, Peer::local(user), desk))
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
fn admit<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, peer: Peer, desk: &Desk) {
    let Some(place) = desk.places.take_for(&peer) else {
        return;
    };
    let desk = desk.clone();
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = converse(stream, &peer, &desk, &place) => ended,
            () = place.displaced() => Err(ZmtpError::Displaced),
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

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: &Peer,
    desk: &Desk,
    place: &ClientPlace,
) -> Result<(), ZmtpError> {
    let key = desk.handler.key().cloned();
    let (room, turns) = (desk.room.of(peer), desk.turns.of(peer));
    let mut connection = Connection::greet(stream, room.clone(), key).await?;
    loop {
        let mut request = match connection.receive().await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(e @ ZmtpError::NotSealed) => {
                desk.handler
                    .turn_away(peer, "it is not sealed with the key");
                return Err(e);
            }
            Err(e) => return Err(e),
        };
        if !place.begin() {
            return Err(ZmtpError::Displaced);
        }
        // One frame is a request; anything else is no `Messages`, and is answered so.
        let frames = std::mem::take(&mut request.body);
        let (answering, peer) = (desk.handler.clone(), peer.clone());
        let turn = turns.take().await;
        let answered = tokio::task::spawn_blocking(move || match frames.as_slice() {
            [frame] => answering.answer_to(&peer, frame),
            _ => answering.answer_to(&peer, &[0xff]),
        });
        // A request that panicked is in the log already.
        let answer = answered
            .await
            .unwrap_or_else(|_| desk.handler.internal_error());
        // A large reply to a small request waits in its turn for room, so that there are few of
        // them.
        if answer.bytes.len() > SMALL && request.room.is_none() {
            request.room = Some(room.take().await?);
        }
        drop(turn);
        connection.reply(&request, &answer.bytes).await?;
        if answer.quit {
            tracing::info!("asked to stop through the v0 API");
            desk.app.stop();
        }
        let was_large = request.room.is_some();
        drop((request, answer));
        if was_large {
            // What it took goes back to the system, and does not stay for the next large one.
            let _ = tokio::task::spawn_blocking(sys::trim_memory).await;
        }
        place.end();
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
    async fn clear_text_over_tcp_takes_a_key_or_the_users_word() {
        let policy = |insecure| Policy {
            insecure,
            access: Access::new(None, None).unwrap(),
            gate: Gate::open(),
        };
        for open in [
            "tcp://0.0.0.0:0",
            "tcp://*:0",
            "tcp://[::]:0",
            "tcp://127.0.0.1:0",
            "tcp://[::1]:0",
        ] {
            let error = Listener::bind(open, None, None, policy(false))
                .await
                .err()
                .unwrap();
            for word in ["-k", "--insecure-api", "insecure-api = true", "ipc://"] {
                assert!(error.contains(word), "{error}");
            }
            assert!(Listener::bind(open, None, None, policy(true)).await.is_ok());
            assert!(
                Listener::bind(open, None, Some(Key::from([1; 32])), policy(false))
                    .await
                    .is_ok()
            );
        }
    }
}

//! Where v1 clients connect: a unix socket, whose peers' credentials are checked, or TCP with
//! mutual TLS.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::v1::balancer_server::BalancerServer;
use api::v1::butterfly_server::ButterflyServer;
use api::v1::router_server::RouterServer;
use tokio::net::{TcpListener, TcpStream, UnixStream, lookup_host};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use super::bounds::{self, Bounded, Guarded, Identified};
use super::service::Service;
use super::tls::{self, Certificates};
use crate::access::{Access, Admitted, Gate, Peer, Who};
use crate::app::App;
use crate::balancer;
use crate::places::{ClientPlace, ClientPlaces};
use crate::reader::{NoClient, Protocol, Secured};
use crate::router;
use crate::unix_socket::ApiSocket;
use crate::v0::server::listen_by;

/// The largest request: a declared configuration of a million bindings with IPv6 addresses.
pub(super) const REQUEST_MAX: usize = 128 << 20;
/// The largest reply, and the largest message of a stream: a configuration at all its limits has
/// room in it. What is larger ends in OUT_OF_RANGE, with its length and this limit.
const REPLY_MAX: usize = 512 << 20;
/// Connections at one time; see [`places`](crate::places) for who makes room.
const CLIENTS_MAX: usize = 256;
/// Requests at one time on one of them, streams that go on among them; the next ones wait.
const STREAMS_MAX: u32 = 128;
/// How long a peer on another host may be silent before it is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Bound, and not yet serving.
pub enum Listener {
    Unix(ApiSocket),
    Tcp {
        listener: TcpListener,
        certificates: Arc<Certificates>,
    },
}

impl Listener {
    /// Binds to `unix:PATH` or `tcp:ADDRESS:PORT`, or goes on with the socket that was handed over.
    /// The error is a sentence that says what to do.
    pub async fn bind(
        endpoint: &str,
        handed: Option<OwnedFd>,
        certificates: Option<&Arc<Certificates>>,
        access: &Access,
    ) -> Result<Listener, String> {
        match endpoint.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                Ok(Listener::Unix(ApiSocket::at(path, handed, access)?))
            }
            Some(("tcp", address)) => {
                let certificates = certificates.cloned().ok_or_else(|| {
                    format!(
                        "--api {endpoint}: TCP is for mutual TLS only, give --tls-cert, --tls-key \
                         and --tls-ca (or use unix:PATH)"
                    )
                })?;
                let address = address.strip_prefix("//").unwrap_or(address);
                let failed = |e: std::io::Error| format!("cannot listen on {endpoint}: {e}");
                let addresses: Vec<SocketAddr> =
                    lookup_host(address).await.map_err(failed)?.collect();
                Ok(Listener::Tcp {
                    listener: listen_by(&addresses, handed).await.map_err(failed)?,
                    certificates,
                })
            }
            _ => Err(format!(
                "--api {endpoint}: not unix:PATH, tcp:ADDRESS:PORT or none"
            )),
        }
    }

    /// The socket's path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Listener::Unix(socket) => Some(socket.path()),
            Listener::Tcp { .. } => None,
        }
    }

    /// Another descriptor of its socket.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        match self {
            Listener::Unix(socket) => socket.descriptor(),
            Listener::Tcp { listener, .. } => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// Serves until the daemon stops, and lets running calls end.
    pub async fn serve(self, app: Arc<App>, access: Access, gate: Gate) {
        let services = services(&app, &gate).await;
        let stopping = app.clone();
        let stopping = async move { stopping.stopping().await };
        let builder = Server::builder().max_concurrent_streams(STREAMS_MAX);
        let served = match self {
            Listener::Unix(socket) => {
                let services = { builder }.add_routes(services);
                let places = ClientPlaces::local("v1", CLIENTS_MAX);
                let clients = local_clients(socket, places, app, access, gate);
                services
                    .serve_with_incoming_shutdown(clients, stopping)
                    .await
            }
            Listener::Tcp {
                listener,
                certificates,
            } => {
                let mut builder = builder.http2_keepalive_interval(Some(KEEPALIVE));
                let services = builder.add_routes(services);
                let places = ClientPlaces::new("v1", CLIENTS_MAX);
                let clients = remote_clients(listener, certificates, places, app, gate);
                services
                    .serve_with_incoming_shutdown(clients, stopping)
                    .await
            }
        };
        if let Err(e) = served {
            tracing::error!("the v1 API ends: {e}");
        }
    }
}

/// All services, each bounded and behind the gate.
pub async fn services(app: &Arc<App>, gate: &Gate) -> Routes {
    let service = ButterflyServer::new(Service::new(app.clone()))
        .max_decoding_message_size(REQUEST_MAX)
        .max_encoding_message_size(REPLY_MAX);
    let balancer = BalancerServer::new(balancer::Service::new(app.clone()))
        .max_decoding_message_size(REQUEST_MAX)
        .max_encoding_message_size(REPLY_MAX);
    let router = RouterServer::new(router::Service::new(app.clone()))
        .max_decoding_message_size(REQUEST_MAX)
        .max_encoding_message_size(REPLY_MAX);
    let health = super::health::service(&app.health).await;
    let health = super::health::Shared::new(health, app.watching_health.clone());
    // The gate is in front of all: what it refuses takes nothing of what others share.
    let budget = bounds::requests();
    let service = Bounded::new(service, budget.clone(), app);
    let balancer = Bounded::new(balancer, budget.clone(), app);
    let router = Bounded::new(router, budget.clone(), app);
    let health = Bounded::new(health, budget, app);
    Routes::new(Admitted::new(service, gate.clone()))
        .add_service(Admitted::new(balancer, gate.clone()))
        .add_service(Admitted::new(router, gate.clone()))
        .add_service(Admitted::new(health, gate.clone()))
}

type Clients<S> = ReceiverStream<std::io::Result<Identified<S>>>;

/// Who may connect and has a place, until the daemon stops; then the socket's file goes.
fn local_clients(
    mut socket: ApiSocket,
    places: ClientPlaces,
    app: Arc<App>,
    access: Access,
    gate: Gate,
) -> Clients<Guarded<UnixStream>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let accept = async {
            loop {
                let (stream, user) = match socket.accept("v1", &access, &gate).await {
                    Ok(accepted) => accepted,
                    Err(e) => {
                        pause(&e).await;
                        continue;
                    }
                };
                // Without a place the connection is closed.
                let peer = Peer::local(user);
                let Some(place) = places.take_for(&peer, gate.has_part(&peer)) else {
                    continue;
                };
                let stream = Guarded::new(stream, place);
                let place = stream.place();
                let client = Identified::new(stream, place, peer, None);
                if sender.send(Ok(client)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = app.stopping() => (),
            () = accept => (),
        }
    });
    ReceiverStream::new(receiver)
}

/// Who has a certificate. A handshake has a place, and a task of its own: who does not go on with
/// it keeps nobody waiting.
fn remote_clients(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    places: ClientPlaces,
    app: Arc<App>,
    gate: Gate,
) -> Clients<Guarded<UnixStream>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let accept = async {
            loop {
                let (stream, address) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(e) => {
                        pause(&e).await;
                        continue;
                    }
                };
                let _ = stream.set_nodelay(true);
                let Some(place) = places.take() else { continue };
                let (sender, certificates) = (sender.clone(), certificates.clone());
                let gate = gate.clone();
                tokio::spawn(async move {
                    match greet(stream, address, place, &certificates, &gate).await {
                        Ok(client) => drop(sender.send(Ok(client)).await),
                        Err(why) => tls::tell(&why, "v1", address, &gate),
                    }
                });
            }
        };
        tokio::select! {
            () = app.stopping() => (),
            () = accept => (),
            () = sender.closed() => (),
        }
    });
    ReceiverStream::new(receiver)
}

async fn greet(
    stream: TcpStream,
    address: SocketAddr,
    place: ClientPlace,
    certificates: &Certificates,
    gate: &Gate,
) -> Result<Identified<Guarded<UnixStream>>, NoClient> {
    let accepted = certificates.accept(stream, place, Protocol::Http2);
    let (Secured { stream, names }, authority) = accepted.await?;
    let place = stream.place();
    let peer = Peer {
        who: Who::Certificate { names },
        address: Some(address.to_string()),
    };
    if !place.is_of(&peer, gate.has_part(&peer)) {
        let why = format!("{} has as many places as may be", peer.shown());
        return Err(std::io::Error::other(why).into());
    }
    Ok(Identified::new(stream, place, peer, Some(authority)))
}

/// Out of descriptors, most likely: not to be tried again at once.
async fn pause(error: &std::io::Error) {
    tracing::warn!("a v1 client could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[cfg(test)]
mod tests {
    use api::decoded::{self, Message};
    use api::v1;
    use control::limits;
    use prost::Message as _;

    use super::*;
    use crate::v1::bounds::{BYTES_AT_ONCE, REPLIES_AT_ONCE};
    use crate::v1::weigh::{DECODED_MAX, DECODED_SMALL_MAX};

    /// What so many elements of a configuration take: bytes on the wire, and memory.
    fn sizes(one: v1::Config, count: usize) -> (usize, usize) {
        const SOME: usize = 1000;
        let one = one.encode_to_vec();
        let kind = Message::named("butterfly.v1.Config").unwrap();
        let memory = decoded::memory(kind, &one.repeat(SOME), usize::MAX).unwrap();
        (one.len() * count, memory * count / SOME)
    }

    /// A configuration with as much of everything as the controller takes, each as large as they
    /// commonly are.
    fn largest() -> [(usize, usize); 5] {
        let address = |n: u16| format!("2001:db8:1234:5678:9abc:def0:1234:{n:x}");
        let mac = "52:54:00:12:34:56".to_owned();
        let nic = v1::Nic {
            id: "3a9a2c1e-5f3b-4f0e-9f55-0a1b2c3d4e5f".into(),
            mac: mac.clone(),
            vni: 1 << 23,
            addresses: (0x1000..0x1008).map(address).collect(),
            security_groups: vec!["3a9a2c1e-5f3b-4f0e-9f55-0a1b2c3d4e5f".into(); 5],
            allowed_address_pairs: vec![v1::AddressPair::default(); 4],
            timeouts: Some(v1::Timeouts::default()),
            limit_in: Some(v1::Limits::default()),
            limit_out: Some(v1::Limits::default()),
            ..Default::default()
        };
        let rule = v1::Rule {
            direction: 1,
            protocol: Some(6),
            r#match: Some(v1::rule::Match::Ports(v1::PortRange {
                start: 30000,
                end: 40000,
            })),
            peer: Some(v1::rule::Peer::Cidr(address(0x1000) + "/128")),
        };
        let group = v1::Group {
            id: "3a9a2c1e-5f3b-4f0e-9f55-0a1b2c3d4e5f".into(),
            rules: vec![rule; limits::RULES_PER_GROUP / 100],
            ..Default::default()
        };
        let network = v1::Network {
            vni: 1 << 23,
            learning: Some(true),
            ..Default::default()
        };
        let host = v1::Endpoint {
            address: address(0x1000),
            name: "host-1234.rack-12.example".into(),
            vnis: (1 << 20..)
                .take(limits::MEMBERSHIPS / limits::HOSTS)
                .collect(),
            ..Default::default()
        };
        let binding = v1::Binding {
            vni: 1 << 23,
            mac,
            addresses: vec![address(0x1000); limits::BINDING_IPS / limits::BINDINGS],
            endpoint: address(0x1000),
        };
        let none = v1::Config::default;
        let (nics, groups) = (vec![nic], vec![group]);
        let (networks, endpoints) = (vec![network], vec![host]);
        let bindings = vec![binding];
        let groups_of_rules = limits::RULES * 100 / limits::RULES_PER_GROUP;
        [
            sizes(v1::Config { nics, ..none() }, limits::NICS),
            sizes(v1::Config { groups, ..none() }, groups_of_rules),
            sizes(v1::Config { networks, ..none() }, limits::VNIS),
            sizes(
                v1::Config {
                    endpoints,
                    ..none()
                },
                limits::HOSTS,
            ),
            sizes(v1::Config { bindings, ..none() }, limits::BINDINGS),
        ]
    }

    #[test]
    fn the_largest_configuration_is_taken_and_given() {
        let parts = largest();
        let wire: usize = parts.iter().map(|(wire, _)| wire).sum();
        let memory: usize = parts.iter().map(|(_, memory)| memory).sum();
        assert!(memory < DECODED_MAX, "{} MiB: {parts:?}", memory >> 20);
        assert!(wire < REPLY_MAX * 2 / 3, "{} MiB: {parts:?}", wire >> 20);
        // A group of 10,000 rules is a hundredth of the million.
        assert!(parts[1].1 / 100 * 4 < DECODED_SMALL_MAX, "{parts:?}");
        // Each kind alone comes in one request, a million bindings among them, but for those that
        // have two long addresses each.
        for (wire, _) in &parts[..4] {
            assert!(*wire < REQUEST_MAX, "{} MiB", wire >> 20);
        }
    }

    #[test]
    fn the_limits_are_those_of_the_docs() {
        let docs = include_str!("../../../../docs/limits.md");
        let (request, reply) = (REQUEST_MAX >> 20, REPLY_MAX >> 20);
        let (decoded, in_work) = (DECODED_MAX >> 20, BYTES_AT_ONCE >> 20);
        let small = DECODED_SMALL_MAX >> 20;
        for row in [
            format!("| a v1 request | {request} MiB: a million bindings |"),
            format!("| a v1 request once it is decoded | {decoded} MiB |"),
            format!(
                "| the same of one that brings no document, bindings or connections | {small} MiB |"
            ),
            format!(
                "| answers of v1 that their clients have not read, bytes above 64 KiB each, of \
                 all | {} MiB |",
                REPLIES_AT_ONCE >> 20
            ),
            format!("| a v1 reply, and each message of a stream | {reply} MiB |"),
            format!(
                "| v1 requests in work, as long as they say they are and decoded, bytes above \
                 64 KiB each, of one socket's clients | {in_work} MiB |"
            ),
            format!(
                "| v1 requests at one time on one connection, streams among them | {STREAMS_MAX} |"
            ),
            format!("v1 clients of one socket | {CLIENTS_MAX} |"),
        ] {
            assert!(docs.contains(&row), "docs/limits.md has no {row:?}");
        }
    }
}

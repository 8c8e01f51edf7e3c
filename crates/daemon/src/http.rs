//! What the daemon serves over plain HTTP, metrics and the page, on sockets of their own: a unix
//! socket, whose peers the kernel names; TCP with mutual TLS, as the API's; or, where that is
//! allowed, TCP in clear text on loopback. What other sites' pages ask without TLS is refused.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tonic::body::Body;

use crate::access::{Access, Gate, Peer, Who};
use crate::app::App;
use crate::places::{ClientPlace, ClientPlaces};
use crate::reader::{Protocol, Secured};
use crate::unix_socket::ApiSocket;
use crate::v0::server::listen_by;
use crate::v1::bounds::{Asking, Guarded, REPLY_TENTHS};
use crate::v1::budget::{Budget, Held};
use crate::v1::reply::Reply;
use crate::v1::tls::{self, Authority, Certificates};

/// Connections of a server at one time; see [`places`](crate::places) for who makes room.
const CLIENTS_MAX: usize = 32;
/// For the head of a request to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// One of the two servers.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// For the log.
    pub name: &'static str,
    /// The option that says where it listens.
    pub option: &'static str,
    /// The option that allows clear text on loopback.
    pub clear: &'static str,
}

/// Bound, and not yet serving.
pub struct Listener {
    served: Served,
    socket: Socket,
}

enum Socket {
    Unix(ApiSocket),
    Tls(TcpListener, Arc<Certificates>),
    /// Loopback alone.
    Clear(TcpListener),
}

/// Who asks. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub place: Arc<ClientPlace>,
    pub origin: Origin,
}

/// How a client came.
#[derive(Clone)]
pub enum Origin {
    Unix(Peer),
    Tls(Peer, Authority),
    /// Over loopback in clear text: anybody on this host, by this address.
    Clear(SocketAddr),
}

/// What answers requests. Cheap to clone.
pub trait Answers: Clone + Send + Sync + 'static {
    /// The whole answer.
    fn answer(
        &self,
        request: Request<Incoming>,
        client: Client,
    ) -> impl Future<Output = Response<Whole>> + Send;
}

/// An answer as a whole.
pub struct Whole {
    bytes: Bytes,
    /// Its memory, where that was counted as it was made.
    held: Option<Held>,
}

impl Whole {
    /// With what is held for it.
    pub fn holding(self, held: Held) -> Whole {
        Whole {
            held: Some(held),
            ..self
        }
    }

    fn body(self) -> Body {
        Body::new(Full::new(self.bytes).map_err(|never| match never {}))
    }
}

impl Listener {
    /// Binds to `unix:PATH` or `tcp:ADDRESS:PORT`, or goes on with the socket that was handed over;
    /// `clear` says whether clear text is allowed. The
    /// error is a sentence that says what to do.
    pub async fn bind(
        served: Served,
        endpoint: &str,
        handed: Option<OwnedFd>,
        certificates: Option<&Arc<Certificates>>,
        clear: bool,
        access: &Access,
    ) -> Result<Listener, String> {
        let Served {
            option,
            clear: allowed,
            ..
        } = served;
        let socket = match endpoint.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                Socket::Unix(ApiSocket::at(path, handed, access)?)
            }
            Some(("tcp", address)) => {
                let address = address.strip_prefix("//").unwrap_or(address);
                let failed = |e: std::io::Error| format!("{option} {endpoint}: {e}");
                let addresses: Vec<SocketAddr> =
                    lookup_host(address).await.map_err(failed)?.collect();
                let local = addresses.iter().all(|address| address.ip().is_loopback());
                match (certificates, clear) {
                    (_, true) if local => {
                        Socket::Clear(listen_by(&addresses, handed).await.map_err(failed)?)
                    }
                    (_, true) => {
                        return Err(format!(
                            "{option} {endpoint}: {allowed} is for loopback addresses alone; leave \
                             it out and give --tls-cert, --tls-key and --tls-ca"
                        ));
                    }
                    (Some(certificates), false) => {
                        let listener = listen_by(&addresses, handed).await.map_err(failed)?;
                        Socket::Tls(listener, certificates.clone())
                    }
                    (None, false) => {
                        return Err(format!(
                            "{option} {endpoint}: TCP is for mutual TLS, give --tls-cert, \
                             --tls-key and --tls-ca (or use unix:PATH, or {allowed} with a \
                             loopback address)"
                        ));
                    }
                }
            }
            _ => {
                return Err(format!(
                    "{option} {endpoint}: not unix:PATH or tcp:ADDRESS:PORT"
                ));
            }
        };
        Ok(Listener { served, socket })
    }

    /// Another descriptor of its socket.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        match &self.socket {
            Socket::Unix(socket) => socket.descriptor(),
            Socket::Tls(listener, _) | Socket::Clear(listener) => {
                listener.as_fd().try_clone_to_owned()
            }
        }
    }

    /// The socket's path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.socket {
            Socket::Unix(socket) => Some(socket.path()),
            _ => None,
        }
    }

    /// Serves until the daemon stops.
    pub async fn serve(mut self, app: Arc<App>, access: Access, gate: Gate, answers: impl Answers) {
        let desk = Desk {
            served: self.served,
            answers,
            replies: app.replies.clone(),
            places: match &self.socket {
                Socket::Unix(_) => ClientPlaces::local(self.served.name, CLIENTS_MAX),
                _ => ClientPlaces::new(self.served.name, CLIENTS_MAX),
            },
        };
        tokio::select! {
            () = app.stopping() => (),
            () = self.accept(&desk, &access, &gate) => (),
        }
    }

    async fn accept(&mut self, desk: &Desk<impl Answers>, access: &Access, gate: &Gate) {
        let name = self.served.name;
        loop {
            let accepted = match &mut self.socket {
                Socket::Unix(socket) => {
                    let accepted = socket.accept(name, access, gate).await;
                    accepted.map(|(stream, user)| {
                        let peer = Peer::local(user);
                        let of_part = gate.has_part(&peer);
                        desk.take(stream, Origin::Unix(peer), of_part);
                    })
                }
                Socket::Clear(listener) => {
                    let accepted = listener.accept().await;
                    accepted
                        .map(|(stream, address)| desk.take(stream, Origin::Clear(address), false))
                }
                Socket::Tls(listener, certificates) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, address)| {
                        let _ = stream.set_nodelay(true);
                        desk.greet(stream, address, certificates.clone(), gate.clone());
                    })
                }
            };
            if let Err(e) = accepted {
                tracing::warn!("a client of the {name} could not be accepted: {e}");
                // Out of descriptors, most likely: not to be tried again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Answers on one connection that is there, as a server's first; `replies` is for what is not read
/// yet.
pub async fn converse<S>(
    served: Served,
    answers: impl Answers,
    replies: Budget,
    stream: S,
    origin: Origin,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = ClientPlaces::new(served.name, CLIENTS_MAX);
    let desk = Desk {
        served,
        answers,
        replies,
        places,
    };
    if let Some(place) = desk.places.take() {
        let stream = Guarded::new(stream, place);
        let place = stream.place();
        desk.converse(stream, Client { place, origin }).await;
    }
}

/// What all connections share. Cheap to clone.
#[derive(Clone)]
struct Desk<A> {
    served: Served,
    answers: A,
    replies: Budget,
    places: ClientPlaces,
}

impl<A: Answers> Desk<A> {
    /// Gives a client a place; without one the connection is closed. `of_part`: it has a part of
    /// the networks.
    fn take<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        origin: Origin,
        of_part: bool,
    ) {
        let place = match &origin {
            Origin::Unix(peer) => self.places.take_for(peer, of_part),
            _ => self.places.take(),
        };
        if let Some(place) = place {
            let stream = Guarded::new(stream, place);
            let place = stream.place();
            tokio::spawn(self.clone().converse(stream, Client { place, origin }));
        }
    }

    /// Gives a client a place, and talks to it once it has shown a certificate.
    fn greet(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        certificates: Arc<Certificates>,
        gate: Gate,
    ) {
        let Some(place) = self.places.take() else {
            return;
        };
        let desk = self.clone();
        tokio::spawn(async move {
            match certificates.accept(stream, place, Protocol::Http1).await {
                Ok((Secured { stream, names }, authority)) => {
                    let place = stream.place();
                    let peer = Peer {
                        who: Who::Certificate { names },
                        address: Some(address.to_string()),
                    };
                    if !place.is_of(&peer, gate.has_part(&peer)) {
                        return;
                    }
                    let origin = Origin::Tls(peer, authority);
                    desk.converse(stream, Client { place, origin }).await;
                }
                Err(why) => tls::tell(&why, desk.served.name, address, &gate),
            }
        });
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        client: Client,
    ) {
        // HTTP/1 alone: one request of a client at a time, so that their number bounds the memory.
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE);
        let name = self.served.name;
        let service = service_fn(move |request| {
            let (desk, client) = (self.clone(), client.clone());
            async move { Ok::<_, Infallible>(desk.answer(request, client).await) }
        });
        if let Err(e) = builder
            .serve_connection(TokioIo::new(stream), service)
            .await
        {
            tracing::debug!("{name}: a connection ends: {e}");
        }
    }

    /// An answer that has its client's place, and is held, until it is given out; what is large is
    /// to be read in time, as answers of v1 are.
    async fn answer(self, request: Request<Incoming>, client: Client) -> Response<Body> {
        let unavailable =
            |why: String| plain(StatusCode::SERVICE_UNAVAILABLE, why).map(Whole::body);
        let Some(asking) = Asking::of(client.place.clone()) else {
            // Somebody else has its place: the connection is about to break off.
            return unavailable("others are served\n".into());
        };
        let held = match &client.origin {
            Origin::Unix(peer) | Origin::Tls(peer, _) => self.replies.begin_of(peer, REPLY_TENTHS),
            Origin::Clear(_) => self.replies.begin_of(&Peer::unknown(), REPLY_TENTHS),
        };
        let answer = match refusal(&request, &client.origin) {
            Some(refused) => refused,
            None => self.answers.answer(request, client).await,
        };
        let (mut head, mut whole) = answer.into_parts();
        let length = HeaderValue::from(whole.bytes.len());
        head.headers.insert(CONTENT_LENGTH, length);
        let held = whole.held.take().unwrap_or(held);
        match Reply::begin(whole.body(), held, None, asking).await {
            Ok(reply) => Response::from_parts(head, Body::new(reply)),
            Err(status) => unavailable(format!("{}\n", status.message())),
        }
    }
}

/// What a request is refused with that was not meant for here, or that its user knows nothing of:
/// without TLS nothing else keeps the pages of other sites out that a browser of this host shows.
fn refusal<B>(request: &Request<B>, origin: &Origin) -> Option<Response<Whole>> {
    if matches!(origin, Origin::Tls(..)) {
        return None;
    }
    if !is_for_this_host(request) {
        let why = "this is for localhost: ask for it by that name\n";
        return Some(plain(StatusCode::MISDIRECTED_REQUEST, why));
    }
    let why = "this is not for the pages of other sites\n";
    is_of_another_site(request).then(|| plain(StatusCode::FORBIDDEN, why))
}

/// Whether a request is for a name that is this host's own wherever it is asked: without a
/// certificate, that is what keeps others' names from being led here (DNS rebinding).
fn is_for_this_host<B>(request: &Request<B>) -> bool {
    let authority = request.uri().authority().map(|given| given.as_str());
    let host = request.headers().get(HOST);
    let host = authority
        .or_else(|| host?.to_str().ok())
        .unwrap_or_default();
    let Ok(authority) = host.parse::<hyper::http::uri::Authority>() else {
        return false;
    };
    let name = authority.host().trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether a browser says that another site's page asks (w3.org/TR/fetch-metadata). A link that its
/// user has followed to here is the user's own.
fn is_of_another_site<B>(request: &Request<B>) -> bool {
    let said = |name: &'static str| {
        let value = request.headers().get(name);
        value.map(|value: &HeaderValue| value.to_str().unwrap_or_default())
    };
    let followed = [said("sec-fetch-mode"), said("sec-fetch-dest")];
    said("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"))
        && followed != [Some("navigate"), Some("document")]
}

/// An answer; `kind` is its media type.
pub fn whole(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Whole> {
    let (bytes, held) = (text.into(), None);
    let mut answer = Response::new(Whole { bytes, held });
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// An answer of plain text.
pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Whole> {
    whole(status, "text/plain; charset=utf-8", text)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::v1::reply;

    const SERVED: Served = Served {
        name: "test",
        option: "--test",
        clear: "--clear",
    };
    const MIB: usize = 1 << 20;

    /// Answers all that is asked with 6 MiB.
    #[derive(Clone)]
    struct Long;

    impl Answers for Long {
        async fn answer(&self, _: Request<Incoming>, _: Client) -> Response<Whole> {
            plain(StatusCode::OK, vec![b'a'; 6 * MIB])
        }
    }

    /// Also where a part of the next request is there already, and nothing more is read.
    #[tokio::test(start_paused = true)]
    async fn who_leaves_an_answer_unread_is_disconnected_and_it_is_held_until_then() {
        for next in ["", "GET"] {
            let replies = Budget::of("answers", 16 * MIB, 0);
            let all_is_free = || replies.begin(None, 10).add(16 * MIB).is_ok();
            let (mut near, far) = tokio::io::duplex(MIB);
            let asked = format!("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n{next}");
            near.write_all(asked.as_bytes()).await.unwrap();
            let origin = Origin::Clear(([127, 0, 0, 1], 1).into());
            let began = Instant::now();
            let served = tokio::spawn(converse(SERVED, Long, replies.clone(), far, origin));
            let mut said = [0; 15];
            near.read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"HTTP/1.1 200 OK");
            assert!(!all_is_free());
            let ended = timeout(reply::PATIENCE * 2, served).await;
            ended
                .unwrap_or_else(|_| panic!("{next:?}: it goes on"))
                .unwrap();
            assert!(began.elapsed() >= reply::PATIENCE);
            assert!(all_is_free());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_its_length_and_a_connection_goes_on_behind_it() {
        let replies = Budget::of("answers", 16 * MIB, 0);
        let (mut near, far) = tokio::io::duplex(MIB);
        let origin = Origin::Clear(([127, 0, 0, 1], 1).into());
        let served = tokio::spawn(converse(SERVED, Long, replies.clone(), far, origin));
        for (method, length) in [("GET", 6 * MIB), ("HEAD", 0), ("GET", 6 * MIB)] {
            let asked = format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            near.write_all(asked.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(near.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(head.contains("content-length: 6291456\r\n"), "{head}");
            near.read_exact(&mut vec![0; length]).await.unwrap();
        }
        drop(near);
        served.await.unwrap();
        assert!(replies.begin(None, 10).add(16 * MIB).is_ok());
    }

    #[test]
    fn a_name_of_somebody_else_s_is_not_ours() {
        let is = |host: &str| {
            let request = Request::get("/").header(HOST, host).body(()).unwrap();
            is_for_this_host(&request)
        };
        for ours in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:80",
            "127.8.0.1",
            "[::1]:9",
        ] {
            assert!(is(ours), "{ours}");
        }
        for other in [
            "",
            "example.com",
            "localhost.example.com",
            "192.0.2.1",
            "[fd00::1]:9",
            ":",
        ] {
            assert!(!is(other), "{other}");
        }
        assert!(!is_for_this_host(&Request::get("/").body(()).unwrap()));
    }

    #[test]
    fn another_site_s_page_asks_nothing_and_a_link_is_followed() {
        let is = |fields: &[(&str, &str)]| {
            let request = fields
                .iter()
                .fold(Request::get("/"), |request, (name, value)| {
                    request.header(*name, *value)
                });
            is_of_another_site(&request.body(()).unwrap())
        };
        let site = "sec-fetch-site";
        for ours in ["same-origin", "none"] {
            assert!(!is(&[(site, ours)]), "{ours}");
        }
        assert!(!is(&[]), "it is no browser");
        let (mode, to) = ("sec-fetch-mode", "sec-fetch-dest");
        for other in ["cross-site", "same-site", ""] {
            assert!(is(&[(site, other)]), "{other}");
            assert!(is(&[(site, other), (mode, "no-cors"), (to, "empty")]));
            let frame = [(site, other), (mode, "navigate"), (to, "iframe")];
            assert!(is(&frame), "{other}");
            let link = [(site, other), (mode, "navigate"), (to, "document")];
            assert!(!is(&link), "{other}");
        }
    }
}

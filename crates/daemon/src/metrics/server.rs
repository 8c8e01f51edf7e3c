//! `/metrics` over HTTP, on the sockets of `--metrics`: a unix socket, whose peers the kernel names;
//! TCP with mutual TLS, as the API's; or, by `--insecure-metrics`, TCP in clear text on loopback.
//! Who asks needs the role view for the whole host.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::Mutex;

use super::encode::{Format, encode};
use super::gather::gather;
use crate::access::needs::METRICS;
use crate::access::{Access, Gate, Peer, Who};
use crate::app::App;
use crate::places::{Place, Places};
use crate::unix_socket::ApiSocket;
use crate::v0::server::listen;
use crate::v1::bounds::Guarded;
use crate::v1::tls::Certificates;

/// Connections at one time; see [`places`](crate::places) for who makes room.
const CLIENTS_MAX: usize = 32;
/// For the head of a request to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bound, and not yet serving.
pub enum Listener {
    Unix(ApiSocket),
    Tls(TcpListener, Arc<Certificates>),
    /// Loopback alone.
    Clear(TcpListener),
}

impl Listener {
    /// Binds to `unix:PATH` or `tcp:ADDRESS:PORT`. The error is a sentence that says what to do.
    pub async fn bind(
        endpoint: &str,
        certificates: Option<&Arc<Certificates>>,
        insecure: bool,
        access: &Access,
    ) -> Result<Listener, String> {
        match endpoint.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                Ok(Listener::Unix(ApiSocket::bind(path, access)?))
            }
            Some(("tcp", address)) => {
                let address = address.strip_prefix("//").unwrap_or(address);
                let failed = |e: std::io::Error| format!("--metrics {endpoint}: {e}");
                let addresses: Vec<SocketAddr> =
                    lookup_host(address).await.map_err(failed)?.collect();
                let local = addresses.iter().all(|address| address.ip().is_loopback());
                match (certificates, insecure) {
                    (_, true) if local => {
                        Ok(Listener::Clear(listen(&addresses).await.map_err(failed)?))
                    }
                    (_, true) => Err(format!(
                        "--metrics {endpoint}: --insecure-metrics is for loopback addresses alone; leave it out and give \
                         --tls-cert, --tls-key and --tls-ca"
                    )),
                    (Some(certificates), false) => {
                        let listener = listen(&addresses).await.map_err(failed)?;
                        Ok(Listener::Tls(listener, certificates.clone()))
                    }
                    (None, false) => Err(format!(
                        "--metrics {endpoint}: TCP is for mutual TLS, give --tls-cert, --tls-key and --tls-ca (or use \
                         unix:PATH, or --insecure-metrics with a loopback address)"
                    )),
                }
            }
            _ => Err(format!(
                "--metrics {endpoint}: not unix:PATH or tcp:ADDRESS:PORT"
            )),
        }
    }

    /// The socket's path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Listener::Unix(socket) => Some(socket.path()),
            _ => None,
        }
    }

    /// Serves until the daemon stops.
    pub async fn serve(self, app: Arc<App>, access: Access, gate: Gate) {
        let desk = Desk {
            app: app.clone(),
            gate: gate.clone(),
            turn: Arc::default(),
            places: Places::new("metrics", CLIENTS_MAX),
        };
        tokio::select! {
            () = app.stopping() => (),
            () = self.accept(&desk, &access, &gate) => (),
        }
    }

    async fn accept(&self, desk: &Desk, access: &Access, gate: &Gate) {
        loop {
            let accepted = match self {
                Listener::Unix(socket) => {
                    let accepted = socket.accept("metrics", access, gate).await;
                    accepted
                        .map(|(stream, user)| desk.take(stream, Client::Known(Peer::local(user))))
                }
                Listener::Clear(listener) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, _)| desk.take(stream, Client::Anybody))
                }
                Listener::Tls(listener, certificates) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, address)| {
                        let _ = stream.set_nodelay(true);
                        desk.greet(stream, address, certificates.clone());
                    })
                }
            };
            if let Err(e) = accepted {
                tracing::warn!("a client of the metrics could not be accepted: {e}");
                // Out of descriptors, most likely: not to be tried again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Who asks.
#[derive(Clone)]
enum Client {
    Known(Peer),
    /// Somebody on this host, where the administrator lets everybody read.
    Anybody,
}

/// What all connections share. Cheap to clone.
#[derive(Clone)]
struct Desk {
    app: Arc<App>,
    gate: Gate,
    /// One page is made at a time.
    turn: Arc<Mutex<()>>,
    places: Places,
}

impl Desk {
    /// Gives a client a place; without one the connection is closed.
    fn take<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S, client: Client) {
        if let Some(place) = self.places.take() {
            let stream = Guarded::new(stream, place);
            let place = stream.place();
            tokio::spawn(self.clone().converse(stream, client, place));
        }
    }

    /// The same, once it has shown a certificate.
    fn greet(
        &self,
        stream: tokio::net::TcpStream,
        address: SocketAddr,
        certificates: Arc<Certificates>,
    ) {
        let Some(place) = self.places.take() else {
            return;
        };
        let desk = self.clone();
        tokio::spawn(async move {
            let stream = Guarded::new(stream, place);
            let place = stream.place();
            match certificates.accept_http(stream).await {
                Ok((stream, names)) => {
                    let peer = Peer {
                        who: Who::Certificate { names },
                        address: Some(address.to_string()),
                    };
                    desk.converse(stream, Client::Known(peer), place).await;
                }
                Err(e) => tracing::debug!("metrics: no TLS with {address}: {e}"),
            }
        });
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        client: Client,
        place: Arc<Place>,
    ) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE);
        let service = service_fn(move |request| {
            let (desk, client, place) = (self.clone(), client.clone(), place.clone());
            async move {
                let began = place.begin();
                let answer = desk.answer(&request, &client).await;
                if began {
                    place.end();
                }
                Ok::<_, Infallible>(answer)
            }
        });
        if let Err(e) = builder
            .serve_connection(TokioIo::new(stream), service)
            .await
        {
            tracing::debug!("metrics: a connection ends: {e}");
        }
    }

    async fn answer(&self, request: &Request<Incoming>, client: &Client) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "GET alone\n");
            refused
                .headers_mut()
                .insert(ALLOW, "GET, HEAD".parse().expect("two words"));
            return refused;
        }
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "there is /metrics\n");
        }
        if let Client::Known(peer) = client
            && let Err(why) = self.gate.admit("metrics", peer, METRICS)
        {
            return plain(StatusCode::FORBIDDEN, format!("{why}\n"));
        }
        let accept = request.headers().get_all(ACCEPT);
        let open = accept.iter().any(|value| {
            value
                .to_str()
                .is_ok_and(|text| text.contains("application/openmetrics-text"))
        });
        let format = if open {
            Format::OpenMetrics
        } else {
            Format::Text
        };
        let _turn = self.turn.lock().await;
        let scrape = match gather(&self.app, self.gate.requests().clone()).await {
            Ok(scrape) => scrape,
            Err(why) => return plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        };
        let Ok(page) = tokio::task::spawn_blocking(move || encode(scrape, format)).await else {
            return plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the page could not be made\n",
            );
        };
        let mut answer = plain(StatusCode::OK, page);
        let kind = match format {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        };
        answer
            .headers_mut()
            .insert(CONTENT_TYPE, kind.parse().expect("a media type"));
        answer
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    answer
}

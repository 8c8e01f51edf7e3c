//! Where v1 clients connect: a unix socket, whose peers' credentials are checked, or TCP with
//! mutual TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::v1::balancer_server::BalancerServer;
use api::v1::butterfly_server::ButterflyServer;
use api::v1::router_server::RouterServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use super::bounds::{Bounded, Budget, Guarded};
use super::service::Service;
use crate::app::App;
use crate::balancer;
use crate::options::Tls;
use crate::places::Places;
use crate::router;
use crate::unix_socket::{Access, ApiSocket};
use crate::v0::server::listen;

/// The largest request: a declared configuration of a million bindings with IPv6 addresses.
const REQUEST_MAX: usize = 128 << 20;
/// Connections at one time; see [`places`](crate::places) for who makes room.
const CLIENTS_MAX: usize = 256;
/// Requests at one time on one of them, streams that go on among them; the next ones wait.
const STREAMS_MAX: u32 = 128;
/// How long a peer on another host may be silent before it is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Bound, and not yet serving.
pub enum Listener {
    Unix {
        socket: ApiSocket,
        access: Access,
    },
    Tcp {
        listener: TcpListener,
        tls: Box<ServerTlsConfig>,
    },
}

impl Listener {
    /// Binds to `unix:PATH` or `tcp:ADDRESS:PORT`. The error is a sentence that says what to do.
    pub async fn bind(endpoint: &str, tls: &Tls, access: Access) -> Result<Listener, String> {
        match endpoint.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                Ok(Listener::Unix {
                    socket: ApiSocket::bind(path, access)?,
                    access,
                })
            }
            Some(("tcp", address)) => {
                let tls = Box::new(mutual_tls(endpoint, tls)?);
                let address = address.strip_prefix("//").unwrap_or(address);
                let failed = |e: std::io::Error| format!("cannot listen on {endpoint}: {e}");
                let addresses: Vec<SocketAddr> =
                    lookup_host(address).await.map_err(failed)?.collect();
                let listener = listen(&addresses).await.map_err(failed)?;
                Ok(Listener::Tcp { listener, tls })
            }
            _ => Err(format!(
                "--api {endpoint}: not unix:PATH, tcp:ADDRESS:PORT or none"
            )),
        }
    }

    /// Serves until the daemon stops, and lets running calls end.
    pub async fn serve(self, app: Arc<App>) {
        let service = ButterflyServer::new(Service::new(app.clone()))
            .max_decoding_message_size(REQUEST_MAX)
            .max_encoding_message_size(usize::MAX);
        let balancer = BalancerServer::new(balancer::Service::new(app.clone()))
            .max_decoding_message_size(REQUEST_MAX)
            .max_encoding_message_size(usize::MAX);
        let router = RouterServer::new(router::Service::new(app.clone()))
            .max_decoding_message_size(REQUEST_MAX)
            .max_encoding_message_size(usize::MAX);
        let budget = Budget::default();
        let service = Bounded::new(service, budget.clone(), app.operations.clone());
        let balancer = Bounded::new(balancer, budget.clone(), app.operations.clone());
        let router = Bounded::new(router, budget, app.operations.clone());
        let stopping = app.clone();
        let stopping = async move { stopping.stopping().await };
        let places = Places::new("v1", CLIENTS_MAX);
        let builder = Server::builder().max_concurrent_streams(STREAMS_MAX);
        let served = match self {
            Listener::Unix { socket, access } => {
                let services = { builder }
                    .add_service(service)
                    .add_service(balancer)
                    .add_service(router);
                let socket = Arc::new(socket);
                let accept = move || {
                    let socket = socket.clone();
                    async move { socket.accept(access).await }
                };
                services
                    .serve_with_incoming_shutdown(clients(accept, places, app), stopping)
                    .await
            }
            Listener::Tcp { listener, tls } => {
                let builder = builder.http2_keepalive_interval(Some(KEEPALIVE));
                match builder.tls_config(*tls) {
                    Ok(mut builder) => {
                        let services = builder
                            .add_service(service)
                            .add_service(balancer)
                            .add_service(router);
                        let listener = Arc::new(listener);
                        let accept = move || {
                            let listener = listener.clone();
                            async move {
                                let (stream, _) = listener.accept().await?;
                                stream.set_nodelay(true)?;
                                Ok(stream)
                            }
                        };
                        services
                            .serve_with_incoming_shutdown(clients(accept, places, app), stopping)
                            .await
                    }
                    Err(e) => Err(e),
                }
            }
        };
        if let Err(e) = served {
            tracing::error!("the v1 API ends: {e}");
        }
    }
}

/// Clients that may connect and have a place, until the daemon stops; then the socket's file goes.
fn clients<S, A>(
    accept: impl Fn() -> A + Send + Sync + 'static,
    places: Places,
    app: Arc<App>,
) -> ReceiverStream<std::io::Result<Guarded<S>>>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
    A: Future<Output = std::io::Result<S>> + Send,
{
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let accept = async {
            loop {
                match accept().await {
                    Ok(stream) => {
                        // Without a place the connection is closed.
                        let Some(place) = places.take() else { continue };
                        if sender.send(Ok(Guarded::new(stream, place))).await.is_err() {
                            return;
                        }
                    }
                    Err(e) => {
                        tracing::warn!("a v1 client could not be accepted: {e}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
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

fn mutual_tls(endpoint: &str, tls: &Tls) -> Result<ServerTlsConfig, String> {
    let (Some(cert), Some(key), Some(ca)) = (&tls.cert, &tls.key, &tls.ca) else {
        return Err(format!(
            "--api {endpoint}: TCP is for mutual TLS only, give --tls-cert, --tls-key and --tls-ca (or use unix:PATH)"
        ));
    };
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| format!("{} cannot be read: {e}", path.display()))
    };
    let config = ServerTlsConfig::new()
        .identity(Identity::from_pem(read(cert)?, read(key)?))
        .client_ca_root(Certificate::from_pem(read(ca)?));
    // Whether the files hold what they should is found out here, not when the first client comes.
    match Server::builder().tls_config(config.clone()) {
        Ok(_) => Ok(config),
        Err(e) => Err(format!(
            "the TLS files {}, {} and {} cannot be used: {}",
            cert.display(),
            key.display(),
            ca.display(),
            with_source(&e)
        )),
    }
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

//! Where v1 clients connect: a unix socket, whose peers' credentials are checked, or TCP with mutual TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use api::v1::balancer_server::BalancerServer;
use api::v1::butterfly_server::ButterflyServer;
use api::v1::router_server::RouterServer;
use tokio::net::{TcpListener, UnixStream, lookup_host};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use super::service::Service;
use crate::app::App;
use crate::balancer;
use crate::options::Tls;
use crate::router;
use crate::unix_socket::{Access, ApiSocket};

/// The largest request: a declared configuration of a million bindings with IPv6 addresses.
const REQUEST_MAX: usize = 128 << 20;

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
                let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(failed)?.collect();
                let listener = TcpListener::bind(addresses.as_slice()).await.map_err(failed)?;
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
        let stopping = app.clone();
        let stopping = async move { stopping.stopping().await };
        let served = match self {
            Listener::Unix { socket, access } => {
                let services = Server::builder()
                    .add_service(service)
                    .add_service(balancer)
                    .add_service(router);
                services
                    .serve_with_incoming_shutdown(clients(socket, access, app), stopping)
                    .await
            }
            Listener::Tcp { listener, tls } => match Server::builder().tls_config(*tls) {
                Ok(mut builder) => {
                    let services = builder
                        .add_service(service)
                        .add_service(balancer)
                        .add_service(router);
                    services
                        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopping)
                        .await
                }
                Err(e) => Err(e),
            },
        };
        if let Err(e) = served {
            tracing::error!("the v1 API ends: {e}");
        }
    }
}

/// Clients that may connect, until the daemon stops; then the socket's file goes.
fn clients(socket: ApiSocket, access: Access, app: Arc<App>) -> ReceiverStream<std::io::Result<UnixStream>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let accept = async {
            loop {
                let accepted = socket.accept(access).await;
                if let Err(e) = &accepted {
                    tracing::warn!("a v1 client could not be accepted: {e}");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                } else if sender.send(accepted).await.is_err() {
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

fn mutual_tls(endpoint: &str, tls: &Tls) -> Result<ServerTlsConfig, String> {
    let (Some(cert), Some(key), Some(ca)) = (&tls.cert, &tls.key, &tls.ca) else {
        return Err(format!(
            "--api {endpoint}: TCP is for mutual TLS only, give --tls-cert, --tls-key and --tls-ca (or use unix:PATH)"
        ));
    };
    let read =
        |path: &Path| std::fs::read(path).map_err(|e| format!("{} cannot be read: {e}", path.display()));
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

//! HTTP and HTTPS: one HTTP/1.1 request on a connection of its own, and the status of its answer.

use std::net::SocketAddr;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::rt::{Read, Write};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls;
use crate::check::Http;

impl Http {
    pub(super) async fn probe(&self, service: SocketAddr, stream: TcpStream) -> Result<(), String> {
        match self.tls {
            false => ask(self, service, stream).await,
            true => {
                let secured = tls::connect(stream, self.host.as_deref(), service.ip()).await?;
                ask(self, service, secured).await
            }
        }
    }

    async fn status<S>(&self, service: SocketAddr, stream: S) -> Result<u16, String>
    where
        S: Read + Write + Unpin + Send,
    {
        let failed = |e: hyper::Error| format!("no HTTP answer: {}", innermost(&e));
        let (mut sender, connection) = http1::handshake(stream).await.map_err(failed)?;
        let request = self.request(service)?;
        // The connection moves the bytes while the request waits for its answer. It may end first:
        // what came is there.
        let mut answer = std::pin::pin!(sender.send_request(request));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            ended = connection => match ended {
                Err(e) => return Err(failed(e)),
                Ok(()) => answer.await,
            },
        };
        Ok(answer.map_err(failed)?.status().as_u16())
    }

    fn request(&self, service: SocketAddr) -> Result<Request<Empty<Bytes>>, String> {
        let host = match &self.host {
            Some(host) => host.clone(),
            None => service.to_string(),
        };
        Request::builder()
            .method(if self.head { Method::HEAD } else { Method::GET })
            .uri(&self.path)
            .header(HOST, host)
            .header(
                USER_AGENT,
                concat!("butterfly-health/", env!("CARGO_PKG_VERSION")),
            )
            .header(CONNECTION, "close")
            .body(Empty::new())
            .map_err(|e| format!("the request cannot be made: {e}"))
    }

    fn is_well(&self, status: u16) -> bool {
        match self.statuses.is_empty() {
            true => (200..400).contains(&status),
            false => self.statuses.contains(&status),
        }
    }
}

/// Makes a check of a server of this service over a connection that is there; over TLS already, if
/// that is wanted.
pub async fn ask<S>(http: &Http, service: SocketAddr, stream: S) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let status = http.status(service, TokioIo::new(stream)).await?;
    match http.is_well(status) {
        true => Ok(()),
        false => Err(format!("HTTP status {status}")),
    }
}

/// The outer errors only say that something went wrong.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<std::io::Error>() {
        Some(error) => super::reason(error),
        None => innermost.to_string(),
    }
}

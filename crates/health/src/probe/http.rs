//! HTTP and HTTPS: one HTTP/1.1 request on a connection of its own, and the status of its answer.

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::rt::{Read, Write};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Path, connect, tls};
use crate::check::{Http, Subject};

impl Http {
    pub(super) async fn probe(&self, subject: &Subject, path: impl Path) -> Result<(), String> {
        let (stream, _hold) = connect(&path).await?;
        match self.tls {
            false => ask(self, subject, stream).await,
            true => {
                let secured =
                    tls::connect(stream, self.host.as_deref(), subject.service.ip()).await?;
                ask(self, subject, secured).await
            }
        }
    }

    async fn status<S>(&self, subject: &Subject, stream: S) -> Result<u16, String>
    where
        S: Read + Write + Unpin + Send,
    {
        let failed = |e: hyper::Error| format!("no HTTP answer: {}", innermost(&e));
        let (mut sender, connection) = http1::handshake(stream).await.map_err(failed)?;
        let request = self.request(subject)?;
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

    fn request(&self, subject: &Subject) -> Result<Request<Empty<Bytes>>, String> {
        let host = match &self.host {
            Some(host) => host.clone(),
            None => subject.service.to_string(),
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

/// Makes a check over a connection that is there; over TLS already, if that is wanted.
pub async fn ask<S>(http: &Http, subject: &Subject, stream: S) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let status = http.status(subject, TokioIo::new(stream)).await?;
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

//! Answers to browsers, on the sockets of `--page`.
//!
//! Files are anybody's who can connect; what they ask for passes the gate as a request of API v1,
//! in the name of who connected. Over loopback in clear text that is whoever has the token. That
//! another site's page in the same browser asks nothing in that name: requests are JSON by their
//! content type, which a form cannot send and a script of another site may not
//! (fetch.spec.whatwg.org, CORS-safelisted request-header); and where there is no TLS, what another
//! site's page asks, or what is asked for by another's name, does not come so far
//! ([`http`](crate::http)).

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use tonic::{Code, Status};

use super::Token;
use super::history::History;
use super::transcode::{self, Transcoder};
use crate::access::needs::HISTORY;
use crate::access::{Gate, Peer, Who};
use crate::http::{Answers, Client, Origin, Served, Whole, plain, whole};
use crate::v1::bounds::Guest;
use crate::v1::budget::Held;

/// How it is called.
pub const SERVED: Served = Served {
    name: "page",
    option: "--page",
    clear: "--page-token",
};

/// The largest request.
const REQUEST_MAX: usize = 1 << 20;
/// For a request's body to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

const FILES: [(&str, &str, &str); 4] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("files/index.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("files/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("files/page.js"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("files/icon.svg")),
];

/// Of every answer: nothing is taken from elsewhere, shown inside of another page, or kept.
const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// What answers. Cheap to clone.
#[derive(Clone)]
pub struct Page {
    services: Transcoder,
    history: History,
    gate: Gate,
    token: Option<Token>,
}

impl Page {
    pub fn new(services: Transcoder, history: History, gate: Gate, token: Option<Token>) -> Page {
        Page {
            services,
            history,
            gate,
            token,
        }
    }

    async fn answer_to(&self, request: Request<Incoming>, client: Client) -> Response<Whole> {
        let path = request.uri().path();
        if let Some((_, kind, text)) = FILES.iter().find(|(file, ..)| *file == path) {
            return match *request.method() {
                Method::GET | Method::HEAD => whole(StatusCode::OK, kind, *text),
                _ => plain(StatusCode::METHOD_NOT_ALLOWED, "GET alone\n"),
            };
        }
        let (peer, authority) = match client.origin {
            Origin::Unix(peer) => (peer, None),
            Origin::Tls(peer, authority) => (peer, Some(authority)),
            Origin::Clear(address) => {
                let given = request.headers().get(AUTHORIZATION);
                let has = |token: &Token| given.is_some_and(|given| token.is_in(given.as_bytes()));
                let mut peer = Peer {
                    address: Some(address.to_string()),
                    ..Peer::unknown()
                };
                if !self.token.as_ref().is_some_and(has) {
                    if given.is_some() {
                        self.gate.turned_away("page", &peer, path, "a wrong token");
                    }
                    return unauthorized();
                }
                peer.who = Who::PageToken;
                (peer, None)
            }
        };
        let guest = Guest::new(client.place, peer, authority);
        let answer = match (request.method(), path) {
            (&Method::GET, "/history") => {
                let told = self.history(&guest, request.uri().query());
                told.map(|json| whole(StatusCode::OK, "application/json", json))
            }
            (&Method::POST, path) if path.starts_with("/api/") => {
                let answer = self.call(request, guest).await;
                answer.map(|(json, held)| {
                    let answer = whole(StatusCode::OK, "application/json", json);
                    answer.map(|whole| whole.holding(held))
                })
            }
            _ => Err(Status::not_found(format!(
                "there is no {} {}",
                request.method(),
                path.escape_debug()
            ))),
        };
        answer.unwrap_or_else(|status| refused(&status))
    }

    /// `/history` is the host's, `/history?NIC` a NIC's.
    fn history(&self, guest: &Guest, nic: Option<&str>) -> Result<Vec<u8>, Status> {
        if guest.is_stale() {
            return Err(Status::unauthenticated("connect again"));
        }
        let admitted = self.gate.admit("page", &guest.peer, HISTORY);
        admitted.map_err(Status::permission_denied)?;
        let told = match nic {
            None => self.history.host(),
            Some(id) => {
                let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
                let told = self.history.nic(&id);
                told.ok_or_else(|| {
                    Status::not_found(format!("nothing is known of a NIC '{}'", id.escape_debug()))
                })?
            }
        };
        Ok(told.to_string().into_bytes())
    }

    async fn call(
        &self,
        request: Request<Incoming>,
        guest: Guest,
    ) -> Result<(Vec<u8>, Held), Status> {
        let kind = request.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Status::invalid_argument(
                "a request is JSON: say so by Content-Type: application/json",
            ));
        }
        let asked = transcode::Method::of(&request.uri().path()["/api".len()..])?;
        // Of who may not ask nothing more is read.
        let caller = self.gate.let_in(Some(&guest), asked.need)?;
        let body = Limited::new(request.into_body(), REQUEST_MAX).collect();
        let body = tokio::time::timeout(PATIENCE, body)
            .await
            .map_err(|_| Status::deadline_exceeded("the request did not arrive"))?
            .map_err(|e| Status::invalid_argument(format!("the request: {e}")))?;
        let body = body.to_bytes();
        self.services.call(asked, body, guest, &caller).await
    }
}

impl Answers for Page {
    async fn answer(&self, request: Request<Incoming>, client: Client) -> Response<Whole> {
        let mut answer = self.answer_to(request, client).await;
        for (name, value) in HEADERS {
            let name = HeaderName::from_static(name);
            answer
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

fn unauthorized() -> Response<Whole> {
    let why = "this page is for who has its token: open it as http://…/#TOKEN";
    let mut answer = refused(&Status::unauthenticated(why));
    let scheme = HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    answer
}

/// The sentence, under the status of HTTP that stands for the code.
fn refused(status: &Status) -> Response<Whole> {
    let code = match status.code() {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let why = json!({ "error": status.message() });
    whole(code, "application/json", why.to_string())
}

//! `/metrics` over HTTP, on the sockets of `--metrics`. Who asks needs the role view for the whole
//! host; by `--insecure-metrics` everybody on this host may.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Mutex;

use super::encode::{Format, encode};
use super::gather::gather;
use crate::access::needs::METRICS;
use crate::access::{Gate, STALE};
use crate::app::App;
use crate::http::{Answers, Client, Origin, Served, Whole, plain, whole};
use crate::router;

/// How it is called.
pub const SERVED: Served = Served {
    name: "metrics",
    option: "--metrics",
    clear: "--insecure-metrics",
};

/// What answers. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    app: Arc<App>,
    gate: Gate,
    /// One page is made at a time.
    turn: Arc<Mutex<()>>,
}

impl Metrics {
    pub fn new(app: Arc<App>, gate: Gate) -> Metrics {
        Metrics {
            app,
            gate,
            turn: Arc::default(),
        }
    }
}

impl Answers for Metrics {
    async fn answer(&self, request: Request<Incoming>, client: Client) -> Response<Whole> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "GET alone\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            return refused;
        }
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "there is /metrics\n");
        }
        if let Origin::Tls(peer, authority) = &client.origin
            && authority.is_stale()
        {
            self.gate
                .turned_away("metrics", peer, METRICS.request, STALE);
            return plain(StatusCode::FORBIDDEN, format!("{STALE}\n"));
        }
        if let Origin::Unix(peer) | Origin::Tls(peer, _) = &client.origin
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
        let (format, kind) = match open {
            true => (
                Format::OpenMetrics,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ),
            false => (Format::Text, "text/plain; version=0.0.4; charset=utf-8"),
        };
        let turn = self.turn.clone().lock_owned().await;
        let router = router::status(&self.app.router).await.ok();
        let (app, requests) = (self.app.clone(), self.gate.requests().clone());
        let make = move || {
            let page = gather(&app, requests, router).map(|scrape| encode(scrape, format));
            // The next one's, also where who asked for this one has hung up meanwhile.
            drop(turn);
            page
        };
        match tokio::task::spawn_blocking(make).await {
            Ok(Ok(page)) => whole(StatusCode::OK, kind, page),
            Ok(Err(why)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            Err(_) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the page could not be made\n",
            ),
        }
    }
}

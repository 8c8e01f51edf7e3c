//! `grpc.health.v1.Health`, as probes of orchestrators and load balancers ask for it: the daemon as
//! a whole (the empty name), and each of its services, all in one state.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use api::v1::balancer_server::SERVICE_NAME as BALANCER;
use api::v1::butterfly_server::SERVICE_NAME as BUTTERFLY;
use api::v1::router_server::SERVICE_NAME as ROUTER;
use http_body::Body as _;
use http_body_util::BodyExt;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::access::Caller;
use crate::shares::Shares;
use crate::watchdog::Health;

/// Bytes of a request, which has a service's name: room is made for them before they come.
const REQUEST_MAX: usize = 4096;

/// The service, which says from now on what `health` says.
pub async fn service(health: &Health) -> HealthServer<impl health_server::Health> {
    let (reporter, server) = health_reporter();
    let mut state = health.watch();
    let now = *state.borrow_and_update();
    report(&reporter, now).await;
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            let now = *state.borrow_and_update();
            report(&reporter, now).await;
        }
    });
    server.max_decoding_message_size(REQUEST_MAX)
}

async fn report(reporter: &HealthReporter, serving: bool) {
    let status = match serving {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    };
    for name in ["", BUTTERFLY, BALANCER, ROUTER] {
        reporter.set_service_status(name, status).await;
    }
}

/// The method whose answer is a stream that goes on for as long as its client likes.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The service with a stated number of streams, each of which keeps its client's connection.
#[derive(Clone)]
pub struct Shared<S> {
    service: S,
    streams: Shares,
}

impl<S> Shared<S> {
    pub fn new(service: S, streams: Shares) -> Shared<S> {
        Shared { service, streams }
    }
}

impl<S: NamedService> NamedService for Shared<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Shared<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != WATCH {
            return Box::pin(self.service.call(request));
        }
        let caller = request.extensions().get::<Caller>();
        // The gate puts it there: without it, nobody has looked at who asks.
        let nobody = || Status::permission_denied("nobody let this request in");
        let share = caller.ok_or_else(nobody);
        let share = match share.and_then(|caller| self.streams.take(caller)) {
            Ok(share) => share,
            Err(refused) => return Box::pin(async move { Ok(refused.into_http()) }),
        };
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // A refusal: it has no body, and is to have none.
            if answer.body().is_end_stream() {
                return Ok(answer);
            }
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    // Given back with the body.
                    let _held = &share;
                    frame
                }))
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use tonic_health::pb::HealthCheckRequest;

    use super::*;

    /// `Watch` of the daemon as a whole, as gRPC sends it.
    fn watch(caller: &Caller) -> http::Request<Body> {
        let message = prost::Message::encode_to_vec(&HealthCheckRequest::default());
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        let bytes = [&[0][..], &len, &message].concat();
        let body = http_body_util::Full::new(tonic::codegen::Bytes::from(bytes));
        let mut request = http::Request::new(Body::new(body));
        *request.uri_mut() = WATCH.parse().unwrap();
        *request.method_mut() = http::Method::POST;
        request.extensions_mut().insert(caller.clone());
        request
    }

    #[tokio::test]
    async fn a_client_watches_no_more_than_its_share() {
        let streams = Shares::new("streams of health", 2, 4);
        let service = service(&Health::default()).await;
        let mut service = Shared::new(service, streams);
        let tenant = |uid| Caller::of_user(uid).of_part(crate::access::part(42..=42));
        let mut held = Vec::new();
        for uid in [60_001, 60_002] {
            let answer = service.call(watch(&tenant(uid))).await.unwrap();
            assert!(!answer.body().is_end_stream());
            held.push(answer);
        }
        // Parts have half of all, and one client its own.
        let refused = |answer: &http::Response<Body>| {
            Status::from_header_map(answer.headers()).map(|status| status.code())
        };
        let answer = service.call(watch(&tenant(60_003))).await.unwrap();
        assert_eq!(refused(&answer), Some(tonic::Code::ResourceExhausted));
        let operator = Caller::of_user(60_004);
        for _ in 0..2 {
            held.push(service.call(watch(&operator)).await.unwrap());
        }
        let answer = service.call(watch(&operator)).await.unwrap();
        assert_eq!(refused(&answer), Some(tonic::Code::ResourceExhausted));
        // It is given back with the answer.
        held.remove(0);
        let answer = service.call(watch(&tenant(60_003))).await.unwrap();
        assert_eq!(refused(&answer), None);
    }
}

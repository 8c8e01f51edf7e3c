//! `grpc.health.v1.Health`, as probes of orchestrators and load balancers ask for it: the daemon as
//! a whole (the empty name), and each of its services, all in one state.

use api::v1::balancer_server::SERVICE_NAME as BALANCER;
use api::v1::butterfly_server::SERVICE_NAME as BUTTERFLY;
use api::v1::router_server::SERVICE_NAME as ROUTER;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

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

//! What happens to services, in the log.

use std::sync::Arc;

use control::EventKind;
use health::Health;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;

/// Says what happens until the daemon stops.
pub async fn log(app: Arc<App>, mut events: Receiver<control::Event>) {
    let follow = async {
        loop {
            match events.recv().await {
                Ok(event) => say(&event.kind),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!("{missed} events were too many at once to be logged");
                }
                Err(RecvError::Closed) => return,
            }
        }
    };
    tokio::select! {
        () = app.stopping() => (),
        () = follow => (),
    }
}

fn say(kind: &EventKind) {
    match kind {
        EventKind::ServiceChanged(key) => tracing::info!("service {key:#} is configured"),
        EventKind::ServiceRemoved(key) => tracing::info!("service {key:#} is deleted"),
        EventKind::ServerHealth {
            key,
            server,
            health: Health::Healthy,
            ..
        } => tracing::info!("service {key:#}: server {server} is healthy"),
        EventKind::ServerHealth {
            key,
            server,
            detail,
            ..
        } => tracing::warn!("service {key:#}: server {server} is not healthy: {detail}"),
        EventKind::InService {
            key,
            in_service: true,
            healthy,
            ..
        } => tracing::info!("service {key:#} is in service, healthy servers: {healthy}"),
        EventKind::InService {
            key,
            healthy,
            min_healthy,
            ..
        } => tracing::warn!(
            "service {key:#} is withdrawn: {healthy} of {min_healthy} healthy servers"
        ),
        EventKind::Address {
            vip,
            announced: true,
        } => tracing::info!("address {vip} is announced"),
        EventKind::Address { vip, .. } => tracing::info!("address {vip} is withdrawn"),
        _ => (),
    }
}

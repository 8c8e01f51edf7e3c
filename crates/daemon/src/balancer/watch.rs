//! The stream of the balancer's events, begun with what is now when that is asked for.

use std::sync::Arc;

use api::v1;
use api::v1::balancer_event::Kind;
use control::model::ServiceKey;
use control::{Event, EventKind};
use tokio::sync::broadcast::Receiver as Subscription;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::task::block_in_place;
use tonic::Status;

use super::{render, status};
use crate::app::App;
use crate::events;
use crate::shares::Share;

/// Ends with the daemon and with the client.
pub fn watch(
    app: Arc<App>,
    share: Share,
    request: v1::WatchBalancerRequest,
) -> Receiver<Result<v1::BalancerEvent, Status>> {
    events::stream(app.clone(), |sender| async move {
        let told = forward(app, request, sender).await;
        drop(share);
        told
    })
}

/// Ends with the reader.
async fn forward(
    app: Arc<App>,
    request: v1::WatchBalancerRequest,
    sender: Sender<Result<v1::BalancerEvent, Status>>,
) -> Option<()> {
    let (snapshot, mut events) = block_in_place(|| begin(&app, request.snapshot));
    for kind in snapshot {
        sender.send(Ok(event(0, kind))).await.ok()?;
    }
    loop {
        if let Some(event) = next(&app, &mut events).await? {
            sender.send(Ok(event)).await.ok()?;
        }
    }
}

/// One lock for both, so that no change falls between the snapshot and the events behind it.
fn begin(app: &App, snapshot: bool) -> (Vec<Kind>, Subscription<Event>) {
    let facts = status::Facts::of(&app.balancer).ok();
    let control = app.control();
    let mut kinds = Vec::new();
    if let Some(facts) = facts.filter(|_| snapshot) {
        let services = control.services().values();
        let status = |service| Kind::ServiceChanged(status::service(&control, service, &facts));
        kinds.extend(services.map(|service| status(service)));
    }
    if snapshot {
        kinds.push(Kind::SnapshotEnd(true));
    }
    (kinds, control.subscribe())
}

/// The next event; `Some(None)` for one whose subject is gone again: its own event follows.
async fn next(app: &App, events: &mut Subscription<Event>) -> Option<Option<v1::BalancerEvent>> {
    match events.recv().await {
        Ok(next) => Some(kind(app, next.kind).map(|kind| event(next.number, kind))),
        Err(RecvError::Lagged(missed)) => Some(Some(event(0, Kind::Lagged(missed)))),
        Err(RecvError::Closed) => None,
    }
}

fn kind(app: &App, kind: EventKind) -> Option<Kind> {
    Some(match kind {
        EventKind::ServiceChanged(key) => Kind::ServiceChanged(changed(app, &key)?),
        EventKind::ServiceRemoved(key) => Kind::ServiceDeleted(render::key(&key)),
        EventKind::ServerHealth {
            key,
            server,
            health,
            detail,
        } => Kind::HealthChanged(v1::HealthChanged {
            key: Some(render::key(&key)),
            server: server.to_string(),
            health: render::health(health).into(),
            detail,
        }),
        EventKind::InService {
            key,
            in_service,
            healthy,
            min_healthy,
        } => Kind::InServiceChanged(v1::InServiceChanged {
            key: Some(render::key(&key)),
            in_service,
            healthy: healthy as u32,
            min_healthy,
        }),
        EventKind::Address { vip, announced } => Kind::AddressChanged(v1::AddressChanged {
            vip: vip.to_string(),
            announced,
        }),
        _ => return None,
    })
}

fn changed(app: &App, key: &ServiceKey) -> Option<v1::ServiceStatus> {
    block_in_place(|| {
        let facts = status::Facts::of(&app.balancer).ok()?;
        let control = app.control();
        let service = control.service(key).ok()?;
        Some(status::service(&control, service, &facts))
    })
}

fn event(sequence: u64, kind: Kind) -> v1::BalancerEvent {
    v1::BalancerEvent {
        time_unix_nanos: events::unix_nanos(),
        sequence,
        kind: Some(kind),
    }
}

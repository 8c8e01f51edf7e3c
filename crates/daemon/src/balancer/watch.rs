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
use crate::access::Caller;
use crate::app::App;
use crate::events;
use crate::shares::Share;
use crate::v1::bounds::REPLY_TENTHS;
use crate::v1::budget::{self, Held};

/// What is there, with what is held for it.
type Made = Result<(Vec<v1::BalancerEvent>, Held), Status>;

/// Ends with the daemon and with the client.
pub fn watch(
    app: Arc<App>,
    caller: Caller,
    share: Share,
    request: v1::WatchBalancerRequest,
) -> Receiver<Result<v1::BalancerEvent, Status>> {
    events::stream(app.clone(), |sender| async move {
        let told = forward(app, caller.unrecorded(), request, sender).await;
        drop(share);
        told
    })
}

/// Ends with the reader.
async fn forward(
    app: Arc<App>,
    caller: Caller,
    request: v1::WatchBalancerRequest,
    sender: Sender<Result<v1::BalancerEvent, Status>>,
) -> Option<()> {
    let held = app.replies.begin(Some(&caller), REPLY_TENTHS);
    let (snapshot, mut subscribed) = block_in_place(|| begin(&app, request.snapshot, held));
    events::tell(snapshot, &sender).await?;
    loop {
        if let Some(event) = next(&app, &mut subscribed).await? {
            sender.send(Ok(event)).await.ok()?;
        }
    }
}

/// One lock for both, so that no change falls between the snapshot and the events behind it.
fn begin(app: &App, snapshot: bool, held: Held) -> (Made, Subscription<Event>) {
    let facts = status::Facts::of(&app.balancer).ok();
    let control = app.control();
    let controller = &*control;
    let services = facts.iter().flat_map(|facts| {
        let services = controller.services().values();
        services
            .map(move |service| Kind::ServiceChanged(status::service(controller, service, facts)))
    });
    let all = services.chain([Kind::SnapshotEnd(true)]);
    let wanted = snapshot.then_some(all).into_iter().flatten();
    let made = budget::collect(wanted.map(|kind| event(0, kind)), budget::memory, held);
    (made, control.subscribe())
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

//! The stream of the router's events, begun with what is now when that is asked for, and its
//! counters every so often.

use std::sync::Arc;
use std::time::Duration;

use api::v1;
use api::v1::router_event::Kind;
use router::messages::Refusal;
use tokio::sync::broadcast::Receiver as Subscription;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;

use super::control::Control;
use super::event::{Event, EventKind};
use super::render;
use super::service::status;
use crate::app::App;
use crate::events;
use crate::shares::Share;

/// Ends with the daemon and with the client.
pub fn watch(
    app: Arc<App>,
    share: Share,
    request: v1::WatchRouterRequest,
) -> Result<Receiver<Result<v1::RouterEvent, Status>>, Refusal> {
    let every = match request.counters_ms {
        0 => None,
        ms @ 10..=86_400_000 => Some(Duration::from_millis(ms.into())),
        ms => {
            let why = "is not within 10 and 86400000";
            return Err(Refusal::Invalid(format!("counters_ms '{ms}' {why}")));
        }
    };
    let control = app.router.clone();
    Ok(events::stream(app, move |sender| async move {
        let told = forward(control, request.snapshot, every, sender).await;
        drop(share);
        told
    }))
}

/// Ends with the reader.
async fn forward(
    control: Arc<Control>,
    snapshot: bool,
    every: Option<Duration>,
    sender: Sender<Result<v1::RouterEvent, Status>>,
) -> Option<()> {
    // In one look, so that no change falls between the snapshot and the events behind it.
    let begin = control.look(move |thread| {
        let members = thread.members().into_iter().map(EventKind::Interface);
        let notes = thread.notes().iter().cloned().map(EventKind::NoteAdded);
        let now: Vec<EventKind> = members.chain(notes).filter(|_| snapshot).collect();
        (now, thread.events.subscribe())
    });
    let (now, mut subscription) = begin.await.ok()?;
    for kind in now {
        let kind = self::kind(&control, kind).await?;
        sender.send(Ok(event(0, kind))).await.ok()?;
    }
    if snapshot {
        sender
            .send(Ok(event(0, Kind::SnapshotEnd(true))))
            .await
            .ok()?;
    }
    let mut ticks = every.map(|every| {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    loop {
        let next = tokio::select! {
            next = next(&control, &mut subscription) => next?,
            () = tick(&mut ticks) => event(0, Kind::Counters(status(&control).await.ok()?)),
        };
        sender.send(Ok(next)).await.ok()?;
    }
}

async fn tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

async fn next(control: &Control, events: &mut Subscription<Event>) -> Option<v1::RouterEvent> {
    match events.recv().await {
        Ok(next) => Some(event(next.sequence, kind(control, next.kind).await?)),
        Err(RecvError::Lagged(missed)) => Some(event(0, Kind::Lagged(missed))),
        Err(RecvError::Closed) => None,
    }
}

async fn kind(control: &Control, kind: EventKind) -> Option<Kind> {
    Some(match kind {
        EventKind::Interface(member) => Kind::Interface(render::member(member)),
        EventKind::Deleted(name) => Kind::InterfaceDeleted(name),
        EventKind::NoteAdded(note) => Kind::NoteAdded(note),
        EventKind::NoteRemoved(note) => Kind::NoteRemoved(note),
        EventKind::Route { route, deleted } => {
            let snapshot = control.mirror().await.ok()?.snapshot();
            Kind::Route(v1::RouteChanged {
                route: Some(router::messages::route(&route, &snapshot)),
                deleted,
            })
        }
        EventKind::Neighbour {
            neighbour,
            interface,
            fast,
            deleted,
        } => Kind::Neighbour(v1::NeighbourChanged {
            neighbour: Some(router::messages::neighbour(&neighbour, interface, fast)),
            deleted,
        }),
        EventKind::Many { routes, neighbours } => Kind::ManyRoutes(v1::RoutesChanged {
            routes: routes as u64,
            neighbours: neighbours as u64,
        }),
    })
}

fn event(sequence: u64, kind: Kind) -> v1::RouterEvent {
    v1::RouterEvent {
        time_unix_nanos: events::unix_nanos(),
        sequence,
        kind: Some(kind),
    }
}

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
use crate::access::Caller;
use crate::app::App;
use crate::events;
use crate::shares::Share;
use crate::v1::bounds::REPLY_TENTHS;
use crate::v1::budget::{self, Held};

/// Ends with the daemon and with the client.
pub fn watch(
    app: Arc<App>,
    caller: &Caller,
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
    let held = app.replies.begin(Some(caller), REPLY_TENTHS);
    Ok(events::stream(app, move |sender| async move {
        let told = forward(control, request.snapshot, held, every, sender).await;
        drop(share);
        told
    }))
}

/// Ends with the reader.
async fn forward(
    control: Arc<Control>,
    snapshot: bool,
    held: Held,
    every: Option<Duration>,
    sender: Sender<Result<v1::RouterEvent, Status>>,
) -> Option<()> {
    // In one look, so that no change falls between the snapshot and the events behind it.
    let begin = control.look(move |thread| {
        let members = thread.members().into_iter();
        let members = members.map(|member| Kind::Interface(render::member(member)));
        let notes = thread.notes().iter().cloned().map(Kind::NoteAdded);
        let all = members.chain(notes).chain([Kind::SnapshotEnd(true)]);
        let wanted = snapshot.then_some(all).into_iter().flatten();
        let made = budget::collect(wanted.map(|kind| event(0, kind)), budget::memory, held);
        (made, thread.events.subscribe())
    });
    let (made, mut subscription) = begin.await.ok()?;
    events::tell(made, &sender).await?;
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

#[cfg(test)]
mod tests {
    use router::Options;
    use tokio::runtime::Handle;
    use tokio::sync::mpsc::channel;
    use tonic::Code;

    use super::*;
    use crate::kernel::Kernel;
    use crate::states::InterfaceStates;
    use crate::v1::budget::Budget;

    /// Of a router without interfaces that is its end alone.
    #[tokio::test]
    async fn what_it_begins_with_is_held_among_answers() {
        let control = Control::start(
            Options::default(),
            None,
            Arc::default(),
            Arc::new(Kernel::new(Handle::current())),
            InterfaceStates::default(),
            None,
        );
        let control = Arc::new(control.unwrap());
        let watch = |bytes| {
            let (sender, receiver) = channel(1);
            let held = Budget::of("answers", bytes, 0).begin(None, 10);
            tokio::spawn(forward(control.clone(), true, held, None, sender));
            receiver
        };
        let mut refused = watch(0);
        let why = refused.recv().await.unwrap().unwrap_err();
        assert_eq!(why.code(), Code::ResourceExhausted, "{why}");
        assert!(refused.recv().await.is_none());
        let mut told = watch(1 << 20);
        let first = told.recv().await.unwrap().unwrap();
        assert_eq!(first.kind, Some(Kind::SnapshotEnd(true)));
    }
}

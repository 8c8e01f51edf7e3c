//! The stream of events: what is now, if asked for, and then every change.

use std::sync::Arc;

use api::v1;
use api::v1::event::Kind;
use control::{Event, EventKind};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tonic::Status;

use super::render;
use crate::app::App;
use crate::events;

/// A stream that lives as long as the reader and the daemon.
pub fn stream(
    app: Arc<App>,
    request: v1::WatchRequest,
) -> mpsc::Receiver<Result<v1::Event, Status>> {
    events::stream(app.clone(), |sender| forward(app, request, sender))
}

type Sender = mpsc::Sender<Result<v1::Event, Status>>;

/// Ends with the reader.
async fn forward(app: Arc<App>, request: v1::WatchRequest, sender: Sender) -> Option<()> {
    // One lock for both, so that no change falls between the snapshot and the events behind it.
    let (snapshot, mut events) = block_in_place(|| {
        let mut control = app.control();
        control.count_request();
        let snapshot = if request.snapshot {
            snapshot(&control)
        } else {
            vec![]
        };
        (snapshot, control.subscribe())
    });
    for event in snapshot {
        sender.send(Ok(event)).await.ok()?;
    }
    loop {
        if let Some(event) = next(&app, &mut events).await? {
            sender.send(Ok(event)).await.ok()?;
        }
    }
}

fn snapshot(control: &control::Controller) -> Vec<v1::Event> {
    let epoch = control.status().epoch;
    let groups = control
        .groups()
        .map(|group| Kind::GroupChanged(render::group(&group)));
    let nics = control
        .nics()
        .map(|status| Kind::NicChanged(render::nic_status(&status)));
    let endpoints = control
        .endpoints()
        .map(|status| Kind::EndpointChanged(render::endpoint_status(&status)));
    let said = control
        .networks_said()
        .map(|options| Kind::NetworkChanged(render::network(options)));
    let bindings = control
        .bindings(None, None)
        .map(|binding| Kind::BindingChanged(render::binding(&binding)));
    let end = std::iter::once(Kind::SnapshotEnd(v1::SnapshotEnd {}));
    groups
        .chain(nics)
        .chain(endpoints)
        .chain(said)
        .chain(bindings)
        .chain(end)
        .map(|kind| event(epoch, 0, kind))
        .collect()
}

/// The next event; `Some(None)` for one whose subject is gone again: its own event follows.
async fn next(app: &App, events: &mut Receiver<Event>) -> Option<Option<v1::Event>> {
    match events.recv().await {
        Ok(next) => {
            let (epoch, sequence) = (next.epoch, next.number);
            Some(kind(app, next.kind).map(|kind| event(epoch, sequence, kind)))
        }
        Err(RecvError::Lagged(missed)) => {
            Some(Some(event(0, 0, Kind::Lagged(v1::Lagged { missed }))))
        }
        Err(RecvError::Closed) => None,
    }
}

fn kind(app: &App, kind: EventKind) -> Option<Kind> {
    Some(match kind {
        EventKind::NicAdded(id) | EventKind::NicChanged(id, _) => {
            let status = block_in_place(|| app.control().nic(&id)).ok()?;
            Kind::NicChanged(render::nic_status(&status))
        }
        EventKind::NicRemoved(id) => Kind::NicDeleted(id.to_string()),
        EventKind::NicState(id, state) => {
            let (state, detail) = render::port_state(&state);
            Kind::PortChanged(v1::PortChanged {
                nic: id.to_string(),
                state: state.into(),
                detail,
            })
        }
        EventKind::GroupAdded(id) | EventKind::GroupChanged(id, _) => {
            let group = block_in_place(|| app.control().group(&id)).ok()?;
            Kind::GroupChanged(render::group(&group))
        }
        EventKind::GroupRemoved(id) => Kind::GroupDeleted(id.to_string()),
        EventKind::EndpointChanged(address) => {
            let status = block_in_place(|| app.control().endpoint(address)).ok()?;
            Kind::EndpointChanged(render::endpoint_status(&status))
        }
        EventKind::EndpointRemoved(address) => Kind::EndpointDeleted(address.to_string()),
        EventKind::NetworkChanged(vni) => {
            let status = block_in_place(|| app.control().network(vni));
            Kind::NetworkChanged(render::network(&status.options))
        }
        EventKind::BindingChanged(key) => {
            let binding = block_in_place(|| app.control().binding(key)).ok()?;
            Kind::BindingChanged(render::binding(&binding))
        }
        EventKind::BindingRemoved(key) => Kind::BindingDeleted(render::binding_key(key)),
        EventKind::BindingsChanged(count) => Kind::BindingsChanged(v1::BindingsChanged {
            count: count as u64,
        }),
        // Told by WatchBalancer and WatchRouter.
        EventKind::ServiceChanged(_)
        | EventKind::ServiceRemoved(_)
        | EventKind::ServerHealth { .. }
        | EventKind::InService { .. }
        | EventKind::Address { .. }
        | EventKind::InterfaceChanged(..)
        | EventKind::InterfaceRemoved(..)
        | EventKind::InterfaceState(..) => return None,
    })
}

fn event(epoch: u64, sequence: u64, kind: Kind) -> v1::Event {
    v1::Event {
        time_unix_nanos: events::unix_nanos(),
        epoch,
        sequence,
        kind: Some(kind),
    }
}

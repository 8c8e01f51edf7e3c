//! The stream of events: what is now, if asked for, and then every change.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::v1;
use api::v1::event::Kind;
use control::model::NicId;
use control::{Event, EventKind};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tonic::Status;

use super::bounds::REPLY_TENTHS;
use super::{budget, render};
use crate::access::{Caller, Permitted};
use crate::app::App;
use crate::events;

/// A stream that lives as long as the reader and the daemon.
pub fn stream(
    app: Arc<App>,
    caller: Caller,
    request: v1::WatchRequest,
) -> Result<mpsc::Receiver<Result<v1::Event, Status>>, Status> {
    let share = app.watching.take(&caller)?;
    Ok(events::stream(app.clone(), |sender| async move {
        let told = forward(app, caller.unrecorded(), request, sender).await;
        drop(share);
        told
    }))
}

type Sender = mpsc::Sender<Result<v1::Event, Status>>;

/// Ends with the reader.
async fn forward(
    app: Arc<App>,
    caller: Caller,
    request: v1::WatchRequest,
    sender: Sender,
) -> Option<()> {
    // One lock for both, so that no change falls between the snapshot and the events behind it.
    let held = app.replies.begin(Some(&caller), REPLY_TENTHS);
    let (snapshot, mut subscribed, mut seen) = block_in_place(|| {
        let mut control = app.control();
        control.count_request();
        let control = Permitted::new(&mut control, &caller);
        let wanted = request.snapshot.then(|| snapshot(&control));
        let snapshot = budget::collect(wanted.into_iter().flatten(), budget::memory, held);
        // Who sees all needs no list of what it sees.
        let seen = match control.sees_all() {
            true => BTreeSet::new(),
            false => control.nic_ids().into_iter().collect(),
        };
        (snapshot, control.subscribe(), seen)
    });
    events::tell(snapshot, &sender).await?;
    loop {
        if let Some(event) = next(&app, &caller, &mut seen, &mut subscribed).await? {
            sender.send(Ok(event)).await.ok()?;
        }
    }
}

fn snapshot(control: &Permitted) -> impl Iterator<Item = v1::Event> {
    let epoch = control.status().epoch;
    let groups = control
        .groups()
        .map(|group| Kind::GroupChanged(render::group(&group)));
    let nics = control
        .nics()
        .map(|status| Kind::NicChanged(render::nic_status(&status)));
    let hosts = control.unlimited().into_iter().flat_map(|all| {
        all.hosts()
            .map(|status| Kind::EndpointChanged(render::host_status(&status)))
    });
    let said = control
        .networks_said()
        .map(|options| Kind::NetworkChanged(render::network(options)));
    let bindings = control.bindings(None, None).into_iter().flatten();
    let bindings = bindings.map(|binding| Kind::BindingChanged(render::binding(&binding)));
    let end = std::iter::once(Kind::SnapshotEnd(v1::SnapshotEnd {}));
    groups
        .chain(nics)
        .chain(hosts)
        .chain(said)
        .chain(bindings)
        .chain(end)
        .map(move |kind| event(epoch, 0, kind))
}

/// The next event; `Some(None)` for one whose subject is gone again: its own event follows; and for
/// one that is not this caller's to see.
async fn next(
    app: &App,
    caller: &Caller,
    seen: &mut BTreeSet<NicId>,
    events: &mut Receiver<Event>,
) -> Option<Option<v1::Event>> {
    match events.recv().await {
        Ok(next) => {
            let (epoch, sequence) = (next.epoch, next.number);
            let kind = block_in_place(|| {
                let mut control = app.control();
                kind(&Permitted::new(&mut control, caller), seen, next.kind)
            });
            Some(kind.map(|kind| event(epoch, sequence, kind)))
        }
        Err(RecvError::Lagged(missed)) => {
            Some(Some(event(0, 0, Kind::Lagged(v1::Lagged { missed }))))
        }
        Err(RecvError::Closed) => None,
    }
}

/// `seen` has the NICs that a caller of a part knows of: one that goes, or comes into another
/// network, can be asked no more whether it was the caller's.
fn kind(control: &Permitted, seen: &mut BTreeSet<NicId>, kind: EventKind) -> Option<Kind> {
    let all = control.sees_all();
    Some(match kind {
        EventKind::NicAdded(id) | EventKind::NicChanged(id) => match control.nic(&id) {
            Ok(status) => {
                if !all {
                    seen.insert(id);
                }
                Kind::NicChanged(render::nic_status(&status))
            }
            Err(_) if seen.remove(&id) => Kind::NicDeleted(id.to_string()),
            Err(_) => return None,
        },
        EventKind::NicRemoved(id) => match all || seen.remove(&id) {
            true => Kind::NicDeleted(id.to_string()),
            false => return None,
        },
        EventKind::NicState(id, state) => {
            // Of one that has gone unheard, another may have the name by now.
            if !all && (!seen.contains(&id) || control.nic(&id).is_err()) {
                return None;
            }
            let (state, detail) = render::port_state(&state);
            Kind::PortChanged(v1::PortChanged {
                nic: id.to_string(),
                state: state.into(),
                detail,
            })
        }
        EventKind::GroupAdded(id) | EventKind::GroupChanged(id) => {
            Kind::GroupChanged(render::group(&*control.group(&id).ok()?))
        }
        EventKind::GroupRemoved(id) => match control.sees_group(&id) {
            true => Kind::GroupDeleted(id.to_string()),
            false => return None,
        },
        EventKind::HostChanged(address) => {
            let status = control.unlimited()?.host(address).ok()?;
            Kind::EndpointChanged(render::host_status(&status))
        }
        EventKind::HostRemoved(address) => {
            control.unlimited()?;
            Kind::EndpointDeleted(address.to_string())
        }
        EventKind::NetworkChanged(vni) => {
            let status = control.network(vni).ok()?;
            Kind::NetworkChanged(render::network(&status.options))
        }
        EventKind::BindingChanged(key) => {
            Kind::BindingChanged(render::binding(&control.binding(key).ok()?))
        }
        EventKind::BindingRemoved(key) => match control.sees_network(key.0) {
            true => Kind::BindingDeleted(render::binding_key(key)),
            false => return None,
        },
        // In whose networks is not known.
        EventKind::BindingsChanged(count) => Kind::BindingsChanged(v1::BindingsChanged {
            count: if all { count as u64 } else { 0 },
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

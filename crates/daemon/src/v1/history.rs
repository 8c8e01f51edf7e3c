//! What the configuration was: revisions, what differs between them, and back to one.

use std::sync::Arc;

use api::v1;
use control::Declared;
use control::model::SocketAccess;
use tonic::Status;

use super::service::refused;
use super::{declare, render};
use crate::access::Permitted;
use crate::app::App;
use crate::stored::Stored;

fn stored(app: &App) -> Result<&Arc<Stored>, Status> {
    app.operations.stored().ok_or_else(|| {
        Status::failed_precondition("the daemon keeps no history: it was started without --store")
    })
}

/// The revisions that are kept, newest first.
pub fn list(
    app: &App,
    request: &v1::ListRevisionsRequest,
) -> Result<v1::ListRevisionsResponse, Status> {
    let limit = match request.limit {
        0 => usize::MAX,
        limit => limit as usize,
    };
    let revisions = stored(app)?.history().map_err(refused)?.into_iter();
    let revisions = revisions.take(limit).map(|revision| v1::Revision {
        number: revision.number,
        time_unix_secs: revision.unix_secs,
        author: revision.author,
        objects: revision.objects,
    });
    Ok(v1::ListRevisionsResponse {
        revisions: revisions.collect(),
    })
}

/// What differs between the states after two revisions.
pub fn diff(
    app: &App,
    control: &mut Permitted,
    request: &v1::DiffRevisionsRequest,
) -> Result<v1::DiffRevisionsResponse, Status> {
    let stored = stored(app)?;
    let to = match request.to {
        0 => stored.newest().map_err(refused)?,
        to => to,
    };
    let settings = control.settings();
    let diff = stored
        .compare(request.from, to, settings)
        .map_err(refused)?;
    Ok(v1::DiffRevisionsResponse {
        changes: render::changes(&diff),
    })
}

/// Whom sockets of NICs were given to after a revision; nobody where it cannot be read.
pub fn given_at(app: &App, revision: u64) -> Vec<SocketAccess> {
    let given = stored(app).map(|stored| stored.sockets_at(revision));
    given.unwrap_or_default()
}

/// Makes the configuration what it was.
pub fn roll_back(
    app: &App,
    control: &mut Permitted,
    request: &v1::RollbackRequest,
) -> Result<v1::ApplyResponse, Status> {
    let stored = stored(app)?;
    let control = control.whole()?;
    let before = control.amounts();
    let diff = stored.roll_back(control, request.revision, request.dry_run);
    let diff = diff.map_err(refused)?;
    let healed = control.heal(Declared::Before, &diff, request.dry_run);
    Ok(declare::answer(&before, &diff, &healed))
}

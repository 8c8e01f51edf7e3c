//! The task that makes the checks that the controller asks for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Probe, Target};
use health::probe::{self, Asks, Made, Means, NotMade};
use health::{Job, Subject};
use tokio::sync::Notify;
use tokio::task::{JoinSet, block_in_place};

use crate::app::App;

/// Makes the sockets of a check, on the way to one server.
pub trait Paths: Send + Sync + 'static {
    type Path: probe::Path;

    /// The way through a service to one of its servers.
    fn path(&self, target: &Target, subject: &Subject) -> Self::Path;
}

/// Makes checks for ever. `due` says that one may be due earlier than was thought.
pub async fn check<P: Paths, A: Asks>(app: Arc<App>, due: Arc<Notify>, means: Means<A>, paths: P) {
    let mut running: JoinSet<(Job<Target>, Result<Made, NotMade>)> = JoinSet::new();
    let mut told = 0;
    loop {
        let changes = app.balancer.changes();
        if changes != std::mem::replace(&mut told, changes) {
            block_in_place(|| app.balancer.hold_health(&app.control().known_health()));
        }
        let (probes, next) = block_in_place(|| {
            let mut control = app.control();
            let probes = control.due_checks();
            let next = control.next_check();
            (probes, next.map(|at| at.saturating_sub(control.now())))
        });
        for Probe { job, kind, subject } in probes {
            let path = paths.path(&job.target, &subject);
            let means = means.clone();
            running.spawn(async move {
                let (within, clock) = (job.timeout, Instant::now);
                let made = probe::run(&kind, &subject, path, within, &means, clock).await;
                (job, made)
            });
        }
        // Nothing due: until something changes.
        let pause = next.unwrap_or(Duration::from_secs(3600));
        tokio::select! {
            () = tokio::time::sleep(pause) => (),
            () = due.notified() => (),
            Some(done) = running.join_next() => match done {
                Ok((job, made)) => take(&app, job, made),
                Err(e) => tracing::error!("a health check panicked: {e}"),
            },
        }
    }
}

fn take(app: &App, job: Job<Target>, made: Result<Made, NotMade>) {
    let taken = block_in_place(|| {
        let mut control = app.control();
        match made {
            Ok(Made { outcome, took }) => control.checked(job, took, outcome),
            Err(NotMade(why)) => {
                tracing::warn!("a health check cannot be made, and will be tried again: {why}");
                control.not_checked(&job, why);
                Ok(())
            }
        }
    });
    if let Err(e) = taken {
        tracing::error!("a change of health is not in force: {e}");
    }
}

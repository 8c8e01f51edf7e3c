//! The registry behind its lock, with a clock, and the task that makes the checks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use health::probe::{self, Subject};
use health::{Job, Programs};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::plane::{Plane, PlaneForwarding};
use super::registry::{Probe, Registry, Target};

/// Makes the sockets of a check, on the way to one server.
pub trait Paths: Send + Sync + 'static {
    type Path: probe::Path;

    /// The way through a service to one of its servers.
    fn path(&self, target: &Target, subject: &Subject) -> Self::Path;
}

/// One for the process.
pub struct Control {
    registry: Mutex<Registry>,
    plane: Arc<dyn Plane>,
    began: Instant,
    /// A check may be due earlier than was thought.
    changed: Notify,
    /// What checks may run.
    programs: Programs,
}

impl Control {
    /// Nothing is configured.
    pub fn new(plane: Arc<dyn Plane>, programs: Programs) -> Control {
        let registry = Registry::new(Box::new(PlaneForwarding(plane.clone())), programs.clone());
        Control {
            registry: Mutex::new(registry),
            plane,
            began: Instant::now(),
            changed: Notify::new(),
            programs,
        }
    }

    /// The registry, for one operation, and the time. It may wait for the kernel: not to be called
    /// on a runtime's thread without `spawn_blocking`.
    pub fn registry(&self) -> (MutexGuard<'_, Registry>, Duration) {
        // An operation stages its changes on a copy, so one that panicked left the registry as it
        // was.
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        (registry, self.began.elapsed())
    }

    /// The checks are looked at again, after an operation that may have changed them.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    pub fn plane(&self) -> &dyn Plane {
        &*self.plane
    }

    /// The time of the events and states.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Makes checks for ever.
    pub async fn check<P: Paths>(self: Arc<Control>, paths: P) {
        let mut running: JoinSet<(Job<Target>, Result<(), String>)> = JoinSet::new();
        loop {
            let (probes, next) = tokio::task::block_in_place(|| {
                let (mut registry, now) = self.registry();
                (registry.checks(now), registry.next_check())
            });
            for Probe { job, kind, subject } in probes {
                let path = paths.path(&job.target, &subject);
                let programs = self.programs.clone();
                running.spawn(async move {
                    let outcome = probe::run(&kind, &subject, path, job.timeout, &programs).await;
                    (job, outcome)
                });
            }
            // Nothing due: until something changes.
            let pause = next.map_or(Duration::from_secs(3600), |at| {
                at.saturating_sub(self.elapsed())
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => (),
                () = self.changed.notified() => (),
                Some(done) = running.join_next() => match done {
                    Ok((job, outcome)) => self.take(job, outcome),
                    Err(e) => tracing::error!("a health check panicked: {e}"),
                },
            }
        }
    }

    fn take(&self, job: Job<Target>, outcome: Result<(), String>) {
        let taken = tokio::task::block_in_place(|| {
            let (mut registry, now) = self.registry();
            registry.checked(now, job, outcome)
        });
        if let Err(e) = taken {
            tracing::error!("a change of health is not in force: {e}");
        }
    }
}

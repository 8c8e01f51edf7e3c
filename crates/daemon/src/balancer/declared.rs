//! The balancer's part of the one declared configuration, for `v1::declare`.

use api::v1;
use api::v1::change::{Action, Subject};
use tonic::Status;

use super::control::Control;
use super::diff::{Change, ChangeKind};
use super::model::Services;
use super::{convert, render};

/// The services that are declared, each of them valid.
pub struct Declared(Services);

/// The services that there were.
#[must_use = "they are lost otherwise"]
pub struct Before(Services);

/// The balancer's part of the configuration as it is.
pub fn config(control: &Control) -> v1::BalancerConfig {
    render::config(control.registry().0.services())
}

impl Declared {
    /// Reads the declared services.
    ///
    /// # Errors
    /// A value is not of the form stated in the `.proto`, or there are too many.
    pub fn read(message: v1::BalancerConfig) -> Result<Declared, Status> {
        Ok(Declared(convert::config(message)?))
    }

    /// What differs from what there is.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn compare(&self, control: &Control) -> Result<Vec<v1::Change>, Status> {
        let (mut registry, now) = control.registry();
        let changes = registry.apply(now, self.0.clone(), true)?;
        Ok(changes.iter().map(change).collect())
    }

    /// Puts the declared services in force; gives what there was.
    ///
    /// # Errors
    /// The data plane refuses them; nothing has changed then.
    pub fn apply(self, control: &Control) -> Result<Before, Status> {
        let before = {
            let (mut registry, now) = control.registry();
            let before = Before(registry.services().clone());
            registry.apply(now, self.0, false)?;
            before
        };
        control.wake();
        Ok(before)
    }
}

impl Before {
    /// Makes the services again what they were. Nothing is to be said to whoever asked: its own
    /// refusal is what counts.
    pub fn give_back(&self, control: &Control) {
        let given = {
            let (mut registry, now) = control.registry();
            registry.apply(now, self.0.clone(), false)
        };
        if let Err(e) = given {
            tracing::error!(
                "the services are not again what they were before a refused apply: {e}"
            );
        }
        control.wake();
    }
}

fn change(change: &Change) -> v1::Change {
    let (action, details) = match &change.kind {
        ChangeKind::Created => (Action::Create, vec![]),
        ChangeKind::Updated(details) => (Action::Update, details.clone()),
        ChangeKind::Deleted => (Action::Delete, vec![]),
    };
    v1::Change {
        action: action.into(),
        subject: Some(Subject::Service(render::key(&change.key))),
        details,
    }
}

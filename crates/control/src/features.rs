//! What the controller is handed for the load balancer, the router and the uplinks: the daemon
//! implements [`Features`] over their programs, tests over memory.

use crate::model::{AccessList, Feature, Mode};
use ::model::Services;
use health::{Check, CheckError};
use std::time::Duration;

/// An interface that a feature was told to work on, as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// How the feature is attached; `None`: it is not, at the moment.
    pub mode: Option<Mode>,
    /// Why it, or a part of it, is not attached.
    pub why: String,
    /// The mode that was asked for; `None`: however it can be.
    pub asked: Option<Mode>,
}

/// The load balancer, the router and the uplinks of this host. Errors are sentences. What is called
/// here may wait for the kernel, and must not wait for the controller.
pub trait Features: Send {
    /// The time, since whenever the implementation likes; it only runs forward.
    fn now(&self) -> Duration;

    /// Finds what of a check this host does not run.
    fn admit(&self, check: &Check) -> Result<(), CheckError>;

    /// A check may be due earlier than was said. Does nothing by default.
    fn checks_changed(&self) {}

    /// Makes the services these, all or nothing.
    fn balance(&mut self, services: &Services) -> Result<(), String>;

    /// Has the router judge packets by this list and no other, from the first one on that it
    /// forwards.
    fn judge(&mut self, acl: Option<&AccessList>) -> Result<(), String>;

    /// Begins to work on an interface, or in another mode; what works on it as asked for is left as
    /// it is. Refused, it is as it was.
    fn take(
        &mut self,
        feature: Feature,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<InterfaceStatus, String>;

    /// Takes the load balancer off an interface that it was told to work on, and puts it there
    /// again as it was asked for. Refused, it is wanted as before, and put there when it can be.
    fn reattach(&mut self, _name: &str) -> Result<InterfaceStatus, String> {
        Err(NONE.into())
    }

    /// How an interface is that the feature was told to work on; `None`: it was not.
    fn interface(&self, feature: Feature, name: &str) -> Result<Option<InterfaceStatus>, String>;

    /// Gives an interface back to the kernel.
    fn give_back(&mut self, feature: Feature, name: &str) -> Result<(), String>;

    /// Undoes what was done to an interface since [`interface`](Features::interface) said this of
    /// it.
    fn restore(
        &mut self,
        feature: Feature,
        name: &str,
        before: Option<InterfaceStatus>,
    ) -> Result<(), String>;
}

/// A host that has none of them.
pub(crate) struct NoFeatures;

const NONE: &str = "there is neither load balancer nor router nor uplink here";

impl Features for NoFeatures {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn admit(&self, _: &Check) -> Result<(), CheckError> {
        Ok(())
    }

    fn balance(&mut self, _: &Services) -> Result<(), String> {
        Err(NONE.into())
    }

    fn judge(&mut self, _: Option<&AccessList>) -> Result<(), String> {
        Err(NONE.into())
    }

    fn take(&mut self, _: Feature, _: &str, _: Option<Mode>) -> Result<InterfaceStatus, String> {
        Err(NONE.into())
    }

    fn interface(&self, _: Feature, _: &str) -> Result<Option<InterfaceStatus>, String> {
        Ok(None)
    }

    fn give_back(&mut self, _: Feature, _: &str) -> Result<(), String> {
        Err(NONE.into())
    }

    fn restore(&mut self, _: Feature, _: &str, _: Option<InterfaceStatus>) -> Result<(), String> {
        Ok(())
    }
}

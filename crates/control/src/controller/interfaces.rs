//! Operations on the interfaces that features work on.

use super::Controller;
use crate::error::Error;
use crate::event::EventKind;
use crate::features::InterfaceStatus;
use crate::model::{Feature, Interface};
use crate::stage::Change;

impl Controller {
    /// The interfaces that a feature is to work on, in the order they were taken.
    pub fn interfaces(&self, feature: Feature) -> &[Interface] {
        let known = self.state.interfaces.get(&feature);
        known.map_or(&[], Vec::as_slice)
    }

    /// Has a feature work on an interface that is there, and again whenever it comes back; or in
    /// another mode. One that is declared already and not attached is tried again.
    pub fn add_interface(
        &mut self,
        feature: Feature,
        interface: Interface,
    ) -> Result<InterfaceStatus, Error> {
        let mut wanted = self.interfaces(feature).to_vec();
        let name = interface.name.clone();
        let mode = match wanted.iter_mut().find(|one| one.name == name) {
            Some(known) => {
                known.mode = interface.mode.or(known.mode);
                known.mode
            }
            None => {
                let mode = interface.mode;
                wanted.push(interface);
                mode
            }
        };
        self.commit(vec![Change::Interfaces(feature, wanted)], false)?;
        let taken = self.features.take(feature, &name, mode);
        taken.map_err(|why| Error::Feature { feature, why })
    }

    /// Takes the load balancer off an interface that is declared, and puts it there again in the
    /// mode that was asked for. Nothing that is declared changes.
    ///
    /// # Errors
    /// [`Error::NotBalanced`]; [`Error::Feature`]: it could not be put there again. It is wanted as
    /// before then, and put there when it can be.
    pub fn reattach_balancer(&mut self, name: &str) -> Result<InterfaceStatus, Error> {
        let feature = Feature::Balancer;
        if self.interfaces(feature).iter().all(|one| one.name != name) {
            return Err(Error::NotBalanced(name.to_owned()));
        }
        let attached = self.features.reattach(name);
        if let Ok(Some(status)) = self.features.interface(feature, name) {
            self.interface_state(feature, status);
        }
        attached.map_err(|why| Error::Feature { feature, why })
    }

    /// Gives an interface back to the kernel for good; whether it was one of the feature's.
    pub fn delete_interface(&mut self, feature: Feature, name: &str) -> Result<bool, Error> {
        let mut wanted = self.interfaces(feature).to_vec();
        wanted.retain(|one| one.name != name);
        let forget = self.forget(|unmade, gone| {
            let mut own = unmade.interfaces.get(&feature).cloned().unwrap_or_default();
            own.retain(|one| one.name == name);
            gone.interfaces.insert(feature, own);
        });
        let changes = vec![Change::Interfaces(feature, wanted), forget];
        let diff = self.commit(changes, false)?;
        Ok(!diff.is_empty())
    }

    /// An interface of a feature was attached, or is not any more: an event, if it is (still) one
    /// that is declared.
    pub fn interface_state(&mut self, feature: Feature, status: InterfaceStatus) {
        let declared = self.interfaces(feature);
        if declared.iter().any(|one| one.name == status.name) {
            self.send_event(EventKind::InterfaceState(feature, status));
        }
    }
}

//! Operations on NICs.

use super::{Controller, NicStatus};
use crate::diff::Diff;
use crate::error::Error;
use crate::model::{Nic, NicId, NicUpdate};
use crate::stage::Change;

impl Controller {
    /// Makes a NIC be as given. The same content again changes nothing and does not touch the
    /// running port. Other content replaces it: the guest's connection is kept unless kind or path
    /// changed, the flows unless MAC, VNI or the connection did.
    pub fn put_nic(&mut self, nic: Nic) -> Result<NicStatus, Error> {
        let id = nic.id.clone();
        self.commit(vec![Change::PutNic(nic)], false)?;
        self.nic(&id)
    }

    /// Replaces the given values of a NIC. Fails with [`Error::NoNic`] when there is none.
    pub fn update_nic(&mut self, id: &NicId, update: NicUpdate) -> Result<NicStatus, Error> {
        let nic = self.entry(id)?.nic.updated(update);
        self.put_nic(nic)
    }

    /// Removes a NIC, its socket and its flows. One that is not there is removed already.
    pub fn delete_nic(&mut self, id: &NicId) -> Result<Diff, Error> {
        self.commit(vec![Change::RemoveNic(id.clone())], false)
    }
}

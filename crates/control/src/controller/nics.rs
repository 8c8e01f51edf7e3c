//! Operations on NICs.

use super::{Controller, NicStatus};
use crate::attach::Declared;
use crate::diff::{self, Diff};
use crate::error::Error;
use crate::model::{Nic, NicId, NicUpdate};
use crate::stage::Change;

impl Controller {
    /// Makes a NIC be as given. If it is so already, nothing changes and the running port is not
    /// touched. Other content replaces it: the guest's connection is kept unless kind or path
    /// changed, the flows unless MAC, VNI or the connection did.
    pub fn put_nic(&mut self, nic: Nic) -> Result<NicStatus, Error> {
        let declared = match self.parts.is_empty() {
            true => Declared::Alone,
            false => Declared::Before,
        };
        self.put(nic, declared)
    }

    fn put(&mut self, nic: Nic, declared: Declared) -> Result<NicStatus, Error> {
        let id = nic.id.clone();
        self.commit_as(declared, vec![Change::PutNic(Box::new(nic))], false)?;
        self.heal_one(&id, declared)?;
        self.nic(&id)
    }

    /// Makes a NIC be as given; the same content again changes nothing. One of that id that has
    /// other values stays as it is: [`Error::NicDiffers`].
    pub fn create_nic(&mut self, nic: Nic) -> Result<NicStatus, Error> {
        if let Ok(entry) = self.entry(&nic.id) {
            let nic = self.settings.normalised(nic.clone())?;
            let fields = diff::nic_fields(&entry.nic, &nic);
            if !fields.is_empty() {
                let fields = fields.iter().map(|field| {
                    let (from, to) = (&field.from, &field.to);
                    format!("{} is '{from}', not '{to}'", field.field)
                });
                let fields = fields.collect::<Vec<_>>().join(", ");
                return Err(Error::NicDiffers(nic.id, fields));
            }
        }
        self.put_nic(nic)
    }

    /// Replaces the given values of a NIC. Fails with [`Error::NoNic`] when there is none.
    pub fn update_nic(&mut self, id: &NicId, update: NicUpdate) -> Result<NicStatus, Error> {
        let nic = self.entry(id)?.nic.updated(update);
        self.put(nic, Declared::Before)
    }

    /// Removes a NIC, its socket and its flows. One that is not there is removed already.
    pub fn delete_nic(&mut self, id: &NicId) -> Result<Diff, Error> {
        let forget = self.forget(|unmade, gone| {
            let nic = unmade.nics.get_key_value(id);
            gone.nics
                .extend(nic.map(|(id, nic)| (id.clone(), nic.clone())));
        });
        self.commit(vec![Change::RemoveNic(id.clone()), forget], false)
    }
}

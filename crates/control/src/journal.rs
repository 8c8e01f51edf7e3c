//! Where every change of what is declared is known, and can be refused, before it is in force and
//! before whoever asked for it is answered: what a store that outlives the process is built upon.

use crate::error::Error;
use crate::model::{
    AccessList, Binding, BindingKey, Config, DeclaredService, Feature, Group, GroupId, Host,
    Interface, NetworkOptions, Nic, NicId, ServiceKey,
};
use std::net::IpAddr;
use std::sync::Arc;
use wire::Vni;

/// Who makes a change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Author {
    /// The daemon itself: its start, its options, its end.
    #[default]
    Daemon,
    /// A client of an API; who it is, as far as that is known.
    Client(Arc<str>),
}

/// A whole change: all that one operation declares anew. There is at least one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Who makes it.
    pub author: Author,
    /// It may change a part of the host alone.
    pub of_part: bool,
    /// Each object that differs, once.
    pub objects: Vec<ObjectChange>,
    /// What was stored and not made before it.
    pub unmade: Arc<Config>,
}

/// What becomes of one object. `None`: it is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BeforeAfter<T> {
    /// As it is.
    pub before: Option<T>,
    /// As it will be.
    pub after: Option<T>,
}

/// One object of the model, by its key, and what becomes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectChange {
    /// A NIC.
    Nic(NicId, BeforeAfter<Arc<Nic>>),
    /// A security group.
    Group(GroupId, BeforeAfter<Arc<Group>>),
    /// Another host. One that bindings alone name is there too.
    Host(IpAddr, BeforeAfter<Arc<Host>>),
    /// What is said of a VNI; there always is something, [`NetworkOptions::new`] if nothing else.
    Network(Vni, BeforeAfter<NetworkOptions>),
    /// A binding.
    Binding(BindingKey, BeforeAfter<Binding>),
    /// A service of the load balancer.
    Service(ServiceKey, BeforeAfter<Arc<DeclaredService>>),
    /// An interface of a feature, by its name.
    Interface(Feature, String, BeforeAfter<Interface>),
    /// What the router judges packets by.
    RouterAcl(BeforeAfter<Arc<AccessList>>),
}

/// Records changes.
pub trait Journal: Send {
    /// Called when the change is checked and all that can be refused has been made ready, and
    /// before it is in force for packets between NICs. An error refuses the whole change, which is
    /// undone. Changes come in the order in which they come into force, one at a time, with the
    /// controller locked.
    ///
    /// A change that was recorded and could not be put in force all the same, since a worker has
    /// ended, is recorded again the other way round.
    fn record(&mut self, change: &Change) -> Result<(), Error>;
}

impl Change {
    /// The change that undoes this one.
    pub fn inverse(mut self) -> Change {
        self.objects.iter_mut().for_each(ObjectChange::invert);
        self
    }
}

impl<T> BeforeAfter<T> {
    pub(crate) fn new(before: Option<T>, after: Option<T>) -> BeforeAfter<T> {
        BeforeAfter { before, after }
    }

    fn invert(&mut self) {
        std::mem::swap(&mut self.before, &mut self.after);
    }
}

impl ObjectChange {
    fn invert(&mut self) {
        match self {
            ObjectChange::Nic(_, change) => change.invert(),
            ObjectChange::Group(_, change) => change.invert(),
            ObjectChange::Host(_, change) => change.invert(),
            ObjectChange::Network(_, change) => change.invert(),
            ObjectChange::Binding(_, change) => change.invert(),
            ObjectChange::Service(_, change) => change.invert(),
            ObjectChange::Interface(_, _, change) => change.invert(),
            ObjectChange::RouterAcl(change) => change.invert(),
        }
    }
}

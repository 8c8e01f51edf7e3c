//! A balancer that runs its program on interfaces itself. One that shares its interfaces with other
//! features leaves that to whoever holds their [`xdp::Interfaces`], with [`AttachedInterface`]s of
//! his own.

use netlink::Snapshot;
use sys::handed::{Handed, Items};
use xdp::{Feature, Interfaces, Mode};

use crate::attached_interface::AttachedInterface;
use crate::balancer::{Balancer, Interface};
use crate::error::Error;

impl Balancer {
    /// Where another process's balancer runs, which hands that over
    /// ([`keep_points`](Self::keep_points)): an interface that is attached to there has the mode
    /// that it had, and packets are the other's until this one [takes over](Self::take_over).
    /// Before any interface is attached to.
    pub fn points_handed(&mut self, points: Items) {
        self.attached = Interfaces::handed(points);
    }

    /// As [`Interfaces::keep_points`], of the interfaces that it runs on itself.
    pub fn keep_points(&mut self, keep: impl Fn(&str, Option<Handed>) + Send + 'static) {
        self.attached.keep_points(keep);
    }

    /// Whether its programs can go on without this process where it runs now.
    ///
    /// # Errors
    /// It runs by a filter of tc (before Linux 6.6), which is this process's alone.
    pub fn can_stay(&self) -> Result<(), Error> {
        Ok(self.attached.hand_over().map(drop)?)
    }

    /// Has its programs in the place of another process's, without a packet in between.
    ///
    /// # Errors
    /// A driver refuses.
    pub fn take_over(&mut self) -> Result<(), Error> {
        Ok(self.attached.take_over()?)
    }

    /// Runs on an interface that is no bond and carries no VLANs, in this mode, or without one in
    /// native mode and where that is refused in generic mode; gives which.
    /// [`Follower::attach`](crate::Follower::attach) knows what all others need, and which of them
    /// are for tc ingress.
    ///
    /// # Errors
    /// There is a program already, ours or another's; no such interface; its index clashes.
    pub fn attach(&mut self, interface: Interface, mode: Option<Mode>) -> Result<Mode, Error> {
        self.set_interface(interface)?;
        match self
            .attached
            .add(interface.ifindex, Feature::Balancer, &self.program, mode)
        {
            Ok((mode, _)) => Ok(mode),
            Err(error) => {
                if self.attached.features(interface.ifindex).is_empty() {
                    self.forget_interface(interface.ifindex)?;
                }
                Err(error.into())
            }
        }
    }

    /// Runs on an interface as a [`AttachedInterface`] says.
    pub(crate) fn take(
        &mut self,
        snapshot: &Snapshot,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<Mode, Error> {
        let members = [(Feature::Balancer, &self.program)];
        let attached = AttachedInterface::take(snapshot, name, &mut self.attached, &members, mode)?;
        let (mode, ifindex) = (attached.mode(), attached.ifindex());
        let known = attached.interfaces().to_vec();
        self.interfaces.push(attached);
        for interface in known {
            if let Err(error) = self.set_interface(interface) {
                self.detach(ifindex)?;
                return Err(error);
            }
        }
        Ok(mode)
    }

    /// Keeps its interfaces as the kernel has their interfaces.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let members = [(Feature::Balancer, &self.program)];
        let mut gone = Vec::new();
        let mut known = Vec::new();
        for attached in &mut self.interfaces {
            gone.extend(attached.interfaces().iter().map(|old| old.ifindex));
            if let Err(error) = attached.follow(snapshot, &mut self.attached, &members) {
                tracing::warn!("interface {}: {error}", attached.ifindex());
            }
            known.extend(attached.interfaces().iter().copied());
        }
        gone.retain(|old| known.iter().all(|now| now.ifindex != *old));
        self.update_interfaces(&gone, &known)
    }

    /// Learns what its interfaces are now; those that are gone first: others may have their
    /// numbers.
    ///
    /// # Errors
    /// As [`set_interface`](Self::set_interface). What can be done is done.
    pub fn update_interfaces(&mut self, gone: &[u32], now: &[Interface]) -> Result<(), Error> {
        let mut done = Ok(());
        for ifindex in gone {
            done = done.and(self.forget_interface(*ifindex));
        }
        for interface in now {
            if !self.known.values().any(|known| known == interface) {
                done = done.and(self.set_interface(*interface));
            }
        }
        done
    }

    /// Leaves an interface's packets alone.
    ///
    /// # Errors
    /// The kernel refuses to write the map.
    pub fn forget(&mut self, attached: &AttachedInterface) -> Result<(), Error> {
        let told: Vec<u32> = attached
            .interfaces()
            .iter()
            .map(|known| known.ifindex)
            .collect();
        self.update_interfaces(&told, &[])?;
        self.forget_below(attached.ifindex())
    }

    /// An interface, and of a bond its ports.
    fn forget_below(&mut self, ifindex: u32) -> Result<(), Error> {
        let its = self
            .known
            .values()
            .filter(|known| known.ifindex == ifindex || known.out == ifindex);
        let its: Vec<u32> = its.map(|known| known.ifindex).collect();
        self.update_interfaces(&its, &[])
    }

    /// Gives an interface back, with a bond its ports.
    ///
    /// # Errors
    /// The kernel refuses to write the map.
    pub fn detach(&mut self, ifindex: u32) -> Result<(), Error> {
        self.attached.remove(ifindex, Feature::Balancer);
        if let Some(at) = self
            .interfaces
            .iter()
            .position(|attached| attached.ifindex() == ifindex)
        {
            let attached = self.interfaces.remove(at);
            self.forget(&attached)?;
            attached.leave(&mut self.attached, &[Feature::Balancer]);
        }
        self.forget_below(ifindex)
    }
}

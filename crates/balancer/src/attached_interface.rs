//! An interface that is balanced on: where the programs run for it ([`xdp::AttachPoint`]), and what
//! the balancer is told of it.

use netlink::Snapshot;
use xdp::{Feature, Interfaces, LinkLayers, Members, Mode, Program};

use crate::balancer::Interface;
use crate::error::Error;
use crate::next_hop::interfaces_of;

/// An interface that programs run on.
#[derive(Debug)]
pub struct AttachedInterface {
    point: xdp::AttachPoint,
    /// What the balancer is told: see [`interfaces`](Self::interfaces).
    known: Vec<Interface>,
}

impl AttachedInterface {
    /// Runs programs on the interface of that name: all of them, or none. Without a mode, native
    /// where all of it can.
    ///
    /// # Errors
    /// There is no Ethernet interface of that name; else as [`xdp::AttachPoint::take`].
    pub fn take(
        snapshot: &Snapshot,
        name: &str,
        programs: &mut Interfaces,
        members: &Members<'_>,
        mode: Option<Mode>,
    ) -> Result<AttachedInterface, Error> {
        let none = || Error::NoInterface {
            name: name.to_owned(),
        };
        let link = snapshot.link_named(name).filter(|link| link.ethernet);
        let ifindex = link.ok_or_else(none)?.index;
        let all = interfaces_of(snapshot, ifindex).ok_or_else(none)?;
        let point =
            xdp::AttachPoint::take(&layers(snapshot, &all, ifindex), programs, members, mode)?;
        let known = known(&point, &all);
        Ok(AttachedInterface { point, known })
    }

    /// Follows the kernel as [`xdp::AttachPoint::follow`] does. [`interfaces`](Self::interfaces)
    /// says others afterwards.
    ///
    /// # Errors
    /// Those of [`xdp::AttachPoint::follow`]. What can be done is done.
    pub fn follow(
        &mut self,
        snapshot: &Snapshot,
        programs: &mut Interfaces,
        members: &Members<'_>,
    ) -> Result<(), Error> {
        let ifindex = self.ifindex();
        let Some(all) = interfaces_of(snapshot, ifindex) else {
            return Ok(());
        };
        let done = self
            .point
            .follow(&layers(snapshot, &all, ifindex), programs, members);
        self.known = known(&self.point, &all);
        Ok(done?)
    }

    /// Runs one more program wherever this one's run.
    ///
    /// # Errors
    /// The chain cannot be changed; nothing has changed then.
    pub fn add(
        &self,
        programs: &mut Interfaces,
        feature: Feature,
        program: &Program,
    ) -> Result<(), Error> {
        Ok(self.point.add(programs, feature, program)?)
    }

    /// Ends a program that [`add`](Self::add) has added.
    pub fn remove(&self, programs: &mut Interfaces, feature: Feature) {
        self.point.remove(programs, feature);
    }

    /// Ends these features: without any others the interface is the kernel's again.
    pub fn leave(self, programs: &mut Interfaces, features: &[Feature]) {
        self.point.leave(programs, features);
    }

    /// The interface that was asked for.
    pub fn ifindex(&self) -> u32 {
        self.point.ifindex()
    }

    /// How its programs run.
    pub fn mode(&self) -> Mode {
        self.point.mode()
    }

    /// What the balancer has to be told
    /// ([`Balancer::set_interface`](crate::Balancer::set_interface)): the interface, and of a bond
    /// the ports that packets name when they come in; those alone where programs run on them.
    pub fn interfaces(&self) -> &[Interface] {
        &self.known
    }
}

/// What an interface lies on; of a bond's ports those that it takes packets from.
fn layers(snapshot: &Snapshot, all: &[Interface], ifindex: u32) -> LinkLayers {
    let ports = all
        .iter()
        .map(|one| one.ifindex)
        .filter(|one| *one != ifindex);
    LinkLayers {
        ifindex,
        ports: snapshot.is_bond(ifindex).then(|| ports.collect()),
        trunks: snapshot.nics_with_vlans(ifindex),
        buffers: snapshot
            .nics_of(ifindex)
            .find_map(|link| xdp::of_buffers(&link.name, link.kind.as_deref())),
    }
}

/// A bond's ports, where programs run on them, are interfaces of their own: what goes out of the
/// bond is for the bond to point.
fn known(point: &xdp::AttachPoint, all: &[Interface]) -> Vec<Interface> {
    let Some(ports) = point.ports() else {
        return all.to_vec();
    };
    let ports = all.iter().filter(|one| ports.contains(&one.ifindex));
    ports
        .map(|port| Interface::new(port.ifindex, port.mac))
        .collect()
}

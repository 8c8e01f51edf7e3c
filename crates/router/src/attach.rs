//! Interfaces taken over and given back: which devices the program runs on for them, and what
//! hinders it there.

use netlink::Snapshot;
use xdp::{AttachPoint, Feature, Interfaces, LinkLayers, Mode};

use crate::error::Error;
use crate::interfaces::{Interface, Run};
use crate::router::Router;

/// A device that the program runs on: of one of our interfaces, or of several VLANs.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) point: AttachPoint,
    trouble: Option<Trouble>,
    /// A frame of its that comes without a VLAN tag may have one.
    may_hide_tags: bool,
    /// What makes its packets the kernel's buffers.
    buffers: Option<String>,
}

/// What has become of a device since it was taken.
#[derive(Debug)]
struct Trouble {
    why: String,
    /// Its frames come without their VLAN tags.
    blind: bool,
}

impl Router {
    /// Takes over an interface's forwarding. The tables are in step with the last snapshot before
    /// the first packet.
    ///
    /// # Errors
    /// There is no such interface, it is no Ethernet, belongs to a bridge, bond or VRF, has
    /// another's XDP program, or hides VLAN tags; or a table cannot be written. It is not the
    /// router's then.
    pub fn add(
        &mut self,
        name: &str,
        attached: &mut Interfaces,
        mode: Option<Mode>,
    ) -> Result<(), Error> {
        let refuse = |why: &str| Error::Interface {
            name: name.to_owned(),
            why: why.to_owned(),
        };
        let mut interface = Interface::new(name, &self.snapshot)?;
        if self.interfaces.contains_key(&interface.ifindex) {
            return Err(refuse("it is the router's already"));
        }
        let slot = self.slot_for(&interface)?;
        interface.slot = slot.ok_or_else(|| refuse("there is room for 1024 interfaces only"))?;
        let sharing = self
            .interfaces
            .values()
            .find(|other| other.device == interface.device);
        interface.port = sharing.map_or(interface.slot, |other| other.port);
        let first = sharing.is_none();
        if first {
            self.ports.set(&interface.port, &interface.device)?;
            let layers = layers(&self.snapshot, interface.device);
            let members = [(Feature::Router, &self.program)];
            let point = AttachPoint::take(&layers, attached, &members, mode);
            let point = point.map_err(|error| Error::of_interface(name, error))?;
            let device = Device {
                may_hide_tags: may_hide_tags(&self.snapshot, &layers, &point),
                point,
                trouble: None,
                buffers: layers.buffers,
            };
            self.devices.insert(interface.device, device);
        }
        let ifindex = interface.ifindex;
        self.interfaces.insert(ifindex, interface);
        self.order.push(ifindex);
        self.report_slots();
        let written = self.stand_behind(attached);
        // Rules may name it; hops may leave by it.
        let done = self.update_all().and(written);
        if done.is_err() {
            // What hinders the one hinders the other, too.
            let _ = self.remove(name, attached);
        }
        done
    }

    /// Gives an interface back to the kernel. False if it was not the router's.
    ///
    /// # Errors
    /// A table cannot be written. It is the kernel's all the same.
    pub fn remove(&mut self, name: &str, attached: &mut Interfaces) -> Result<bool, Error> {
        let Some(interface) = self.interface_named(name).cloned() else {
            return Ok(false);
        };
        self.interfaces.remove(&interface.ifindex);
        self.order.retain(|ifindex| *ifindex != interface.ifindex);
        self.report_slots();
        let mut done = self.update_all();
        done = done.and(
            self.egresses
                .remove(&interface.ifindex)
                .map(drop)
                .map_err(Error::from),
        );
        let mut others = self.interfaces.values();
        if !others.any(|other| other.device == interface.device) {
            if let Some(device) = self.devices.remove(&interface.device) {
                device.point.leave(attached, &[Feature::Router]);
            }
            done = done.and(
                self.ports
                    .remove(&interface.port)
                    .map(drop)
                    .map_err(Error::from),
            );
            done = done.and(self.stand_behind(attached));
            done = done.and(self.update_all());
        }
        done.map(|()| true)
    }

    /// Where one device runs the program at tc, the others do so too, behind XDP: what leaves by
    /// that device can be sent from there alone.
    fn stand_behind(&mut self, attached: &mut Interfaces) -> Result<(), Error> {
        self.at_tc = self
            .devices
            .values()
            .any(|device| device.point.mode().is_tc());
        for device in self.devices.values_mut() {
            let done =
                device
                    .point
                    .set_behind(attached, Feature::Router, &self.program, self.at_tc);
            if let Err(error) = done {
                device.trouble = Some(Trouble {
                    why: error.to_string(),
                    blind: false,
                });
            }
        }
        self.write_egresses()
    }

    /// What makes packets of an interface buffers of the kernel's: a kind of interface, or a
    /// driver.
    pub fn buffers_of(&self, name: &str) -> Option<&str> {
        self.devices
            .get(&self.interface_named(name)?.device)?
            .buffers
            .as_deref()
    }

    /// How the program runs for an interface.
    pub(crate) fn run_of(&self, interface: &Interface) -> Run {
        let device = self.devices.get(&interface.device);
        Run {
            xdp: device.is_some_and(|device| !device.point.mode().is_tc()),
            buffers: device.is_some_and(|device| device.buffers.is_some()),
        }
    }

    /// Interfaces came, went or changed, and the router is in step with that: bonds have other
    /// ports perhaps, and NICs VLANs. What cannot be had is in the report; packets that cannot be
    /// told to be one interface's stay the kernel's.
    pub fn follow(&mut self, attached: &mut Interfaces) -> Result<(), Error> {
        let members = [(Feature::Router, &self.program)];
        for (index, device) in &mut self.devices {
            // One that is gone is given back by the code that took it.
            if !self.snapshot.links.contains_key(index) {
                continue;
            }
            let layers = layers(&self.snapshot, *index);
            device.may_hide_tags = may_hide_tags(&self.snapshot, &layers, &device.point);
            device.buffers.clone_from(&layers.buffers);
            let followed = device.point.follow(&layers, attached, &members);
            device.trouble = followed.err().map(|error| Trouble {
                why: error.to_string(),
                blind: matches!(error, xdp::Error::Tags { .. }),
            });
        }
        let written = self.stand_behind(attached);
        self.settle().and(written)
    }

    /// What hinders the router on the interface that was added under this name, or on its device.
    pub fn trouble_of(&self, name: &str) -> Option<String> {
        let interface = self.interface_named(name)?;
        let of_device = || {
            let trouble = self.devices.get(&interface.device)?.trouble.as_ref();
            trouble.map(|trouble| trouble.why.clone())
        };
        interface.taken(&self.snapshot).or_else(of_device)
    }

    /// Why all packets of an interface are the kernel's, and none is looked at: they are another
    /// one's, or it cannot be told which are this interface's, since frames of its device come
    /// without their VLAN tags, or may do so and the interface is the one without.
    pub(crate) fn left_out(&self, interface: &Interface) -> Option<String> {
        let device = self.devices.get(&interface.device);
        let trouble = device.and_then(|device| device.trouble.as_ref());
        let blind = self.may_hide_tags(interface) || trouble.is_some_and(|trouble| trouble.blind);
        let hidden = || blind.then(|| "VLAN tags of its packets may be hidden".to_owned());
        interface.taken(&self.snapshot).or_else(hidden)
    }

    /// It is the interface without a tag of a device whose frames may have one that is not seen.
    pub(crate) fn may_hide_tags(&self, interface: &Interface) -> bool {
        let device = self.devices.get(&interface.device);
        interface.tags.is_empty() && device.is_some_and(|device| device.may_hide_tags)
    }
}

/// Whoever sends to a veth may hand VLAN tags over beside the frame (`txvlan`), and this end cannot
/// forbid it; XDP does not see them.
fn may_hide_tags(snapshot: &Snapshot, layers: &LinkLayers, point: &AttachPoint) -> bool {
    if point.mode().is_tc() {
        return false;
    }
    let links = layers
        .trunks
        .iter()
        .filter_map(|nic| snapshot.links.get(nic));
    links.into_iter().any(|link| link.is("veth"))
}

/// What a device lies on.
fn layers(snapshot: &Snapshot, device: u32) -> LinkLayers {
    let ports = || snapshot.ports_of(device).map(|port| port.index).collect();
    LinkLayers {
        ifindex: device,
        ports: snapshot.is_bond(device).then(ports),
        trunks: snapshot.nics_with_vlans(device),
        buffers: snapshot
            .nics_of(device)
            .find_map(|link| xdp::of_buffers(&link.name, link.kind.as_deref())),
    }
}

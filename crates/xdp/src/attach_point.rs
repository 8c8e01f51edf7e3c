//! Where programs run for one interface, so that they see its frames as they came by the wire.
//!
//! That is the interface itself, but for a bond without native XDP: the kernel takes VLAN tags out
//! of a frame on its way from the port to the bond, and merges packets (GRO) at a port that has no
//! program, so that generic XDP on the bond would see packets that nobody sent. There the programs
//! run on each port. In native mode the kernel runs a bond's program in the drivers of its ports
//! itself. A NIC that takes tags out is asked to leave them in, as long as VLANs are on it.
//!
//! Owned by who was given the interface: the load balancer and the router. What it lies on, they
//! say ([`LinkLayers`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attach::Mode;
use crate::chain::{Feature, Interfaces};
use crate::error::Error;
use crate::program::Program;
use crate::tags::Tags;

/// Programs that run together on an interface.
pub type Members<'a> = [(Feature, &'a Program)];

/// What the kernel says of an interface and what it lies on. Interfaces by their indices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkLayers {
    /// The interface.
    pub ifindex: u32,
    /// The ports of a bond that matter; `None`: it is no bond.
    pub ports: Option<BTreeSet<u32>>,
    /// NICs whose frames have VLAN tags that the kernel knows of: the interface, or a bond's ports,
    /// or none.
    pub trunks: BTreeSet<u32>,
    /// What makes its packets buffers of the kernel's ([`of_buffers`](crate::of_buffers)): its
    /// kind, or that of a bond's port.
    pub buffers: Option<String>,
}

/// An interface that programs run on. Dropped without [`leave`](Self::leave), the programs stay.
#[derive(Debug)]
pub struct AttachPoint {
    ifindex: u32,
    mode: Mode,
    /// Where a bond's programs run, if not on itself.
    ports: Option<BTreeSet<u32>>,
    /// Programs that run at tc ingress too, for packets that their parts in XDP pass.
    behind: BTreeSet<Feature>,
    /// NICs that leave VLAN tags in frames.
    tags: BTreeMap<u32, Arc<Tags>>,
}

impl AttachPoint {
    /// Runs programs on an interface: all of them, or none. Without a mode, at tc ingress if its
    /// packets are the kernel's buffers, and else native where all of it can.
    ///
    /// # Errors
    /// It has somebody else's program or, at tc ingress, filter; its driver refuses the mode; it
    /// takes VLAN tags out of frames and cannot be kept from it; it is a bond with VLANs, on which
    /// another feature runs in generic mode.
    pub fn take(
        layers: &LinkLayers,
        programs: &mut Interfaces,
        members: &Members<'_>,
        mode: Option<Mode>,
    ) -> Result<AttachPoint, Error> {
        let ifindex = layers.ifindex;
        let mut point = AttachPoint {
            ifindex,
            mode: Mode::Generic,
            ports: None,
            behind: BTreeSet::new(),
            tags: BTreeMap::new(),
        };
        let have_tc = members.iter().all(|(_, program)| program.has_tc());
        if mode == Some(Mode::Tc) || mode.is_none() && have_tc && layers.buffers.is_some() {
            match run(programs, [ifindex], members, Some(Mode::Tc)) {
                Ok(_) => {
                    point.mode = Mode::Tc;
                    return Ok(point);
                }
                Err(error @ Error::TcOccupied { .. }) => return Err(error),
                Err(error) if mode.is_some() => return Err(error),
                // A kernel without tcx, and without what filters need: XDP, as far as that goes.
                Err(error) => tracing::info!("interface {ifindex} has no tc for programs: {error}"),
            }
        }
        point.keep_tags(layers, programs)?;
        // Who is on a bond already has it, in whatever mode.
        let there = programs.features_in_xdp(ifindex).first().copied();
        match (&layers.ports, there) {
            (Some(ports), None) => {
                let native = match mode {
                    Some(Mode::Generic) => None,
                    _ => Some(run(programs, [ifindex], members, Some(Mode::Native))),
                };
                match native {
                    Some(Ok(_)) => point.mode = Mode::Native,
                    Some(Err(error)) if mode == Some(Mode::Native) => return Err(error),
                    _ => {
                        run(
                            programs,
                            ports.iter().copied(),
                            members,
                            Some(Mode::Generic),
                        )?;
                        point.ports = Some(ports.clone());
                    }
                }
            }
            (Some(_), Some(feature))
                if programs.mode(ifindex) == Some(Mode::Generic) && !layers.trunks.is_empty() =>
            {
                return Err(Error::BondTaken { ifindex, feature });
            }
            _ => point.mode = run(programs, [ifindex], members, mode)?.unwrap_or(Mode::Generic),
        }
        Ok(point)
    }

    /// Takes ports that have come to a bond and lets go of those that have left it; asks NICs to
    /// leave VLAN tags in as soon as there are VLANs on them.
    ///
    /// # Errors
    /// A NIC takes VLAN tags out and cannot be kept from it ([`Error::Tags`]), or a port has
    /// somebody else's program. What can be done is done.
    pub fn follow(
        &mut self,
        layers: &LinkLayers,
        programs: &mut Interfaces,
        members: &Members<'_>,
    ) -> Result<(), Error> {
        if self.mode.is_tc() {
            return Ok(());
        }
        let kept = self.keep_tags(layers, programs);
        let (Some(had), Some(has)) = (&mut self.ports, &layers.ports) else {
            return kept;
        };
        let gone: BTreeSet<u32> = had.difference(has).copied().collect();
        let features: Vec<Feature> = members.iter().map(|(feature, _)| *feature).collect();
        stop(programs, &gone, &features);
        had.retain(|port| has.contains(port));
        let mut taken = Ok(());
        for port in has.difference(&had.clone()) {
            match run(programs, [*port], members, Some(Mode::Generic)) {
                Ok(_) => drop(had.insert(*port)),
                Err(error) => taken = Err(error),
            }
        }
        kept.and(taken)
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
        let mode = self.mode.is_tc().then_some(Mode::Tc);
        run(programs, self.devices(), &[(feature, program)], mode).map(drop)
    }

    /// Ends a feature wherever this one's run; others go on.
    pub fn remove(&self, programs: &mut Interfaces, feature: Feature) {
        stop(programs, &self.devices(), &[feature]);
    }

    /// Whether a program also runs at tc ingress of an interface where it runs in XDP. Packets that
    /// its part in XDP passes, the other sees: it can send them to interfaces that take no frames.
    ///
    /// # Errors
    /// Those of [`take`](Self::take); the program has no part for tc. Nothing has changed then.
    pub fn set_behind(
        &mut self,
        programs: &mut Interfaces,
        feature: Feature,
        program: &Program,
        behind: bool,
    ) -> Result<(), Error> {
        if self.mode.is_tc() || self.behind.contains(&feature) == behind {
            return Ok(());
        }
        if behind {
            programs.add(self.ifindex, feature, program, Some(Mode::Tc))?;
            self.behind.insert(feature);
        } else {
            programs.remove_from_tc(self.ifindex, feature);
            self.behind.remove(&feature);
        }
        Ok(())
    }

    /// Ends these features: without any others the interface is the kernel's again, and its NICs
    /// are set as they were.
    pub fn leave(self, programs: &mut Interfaces, features: &[Feature]) {
        stop(programs, &self.devices(), features);
        stop(programs, &BTreeSet::from([self.ifindex]), features);
    }

    /// The interface that was asked for.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// How its programs run; those that also run behind XDP ([`set_behind`](Self::set_behind)), in
    /// XDP.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// A bond's programs run on these ports and not on the bond.
    pub fn ports(&self) -> Option<&BTreeSet<u32>> {
        self.ports.as_ref()
    }

    fn devices(&self) -> BTreeSet<u32> {
        self.ports
            .clone()
            .unwrap_or_else(|| BTreeSet::from([self.ifindex]))
    }

    fn keep_tags(&mut self, layers: &LinkLayers, programs: &mut Interfaces) -> Result<(), Error> {
        self.tags.retain(|nic, _| layers.trunks.contains(nic));
        for nic in &layers.trunks {
            if !self.tags.contains_key(nic) {
                self.tags.insert(*nic, programs.keep_tags(*nic)?);
            }
        }
        Ok(())
    }
}

/// All programs on all devices, or none on any; gives the mode in force.
fn run(
    programs: &mut Interfaces,
    devices: impl IntoIterator<Item = u32>,
    members: &Members<'_>,
    mode: Option<Mode>,
) -> Result<Option<Mode>, Error> {
    let mut in_force = None;
    let mut done = BTreeSet::new();
    for device in devices {
        for (feature, program) in members {
            match programs.add(device, *feature, program, mode) {
                Ok((mode, _)) => in_force = Some(mode),
                Err(error) => {
                    done.iter()
                        .for_each(|(device, feature)| programs.remove(*device, *feature));
                    return Err(error);
                }
            }
            done.insert((device, *feature));
        }
    }
    Ok(in_force)
}

fn stop(programs: &mut Interfaces, devices: &BTreeSet<u32>, features: &[Feature]) {
    for device in devices {
        features
            .iter()
            .for_each(|feature| programs.remove(*device, *feature));
    }
}

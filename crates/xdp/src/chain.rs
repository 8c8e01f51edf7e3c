//! Which features run on which interface, and the chain of their programs.
//!
//! There is one chain for all interfaces: each feature's program hands on to the next feature that runs anywhere. A
//! program therefore meets packets of interfaces that are not its own, and asks its own map of interfaces. What is attached
//! to an interface is the program of the first feature there.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::attach::{Attachment, Mode, attach};
use crate::error::Error;
use crate::program::Program;
use crate::table::failed;
use crate::tags::Tags;

/// What runs on an interface, in the order in which the chain goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// VXLAN to our endpoint address: the virtual switch.
    Uplink,
    /// Service addresses.
    Balancer,
    /// Answers to the load balancer's health checks.
    Probe,
    /// Transit packets.
    Router,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::Uplink => "uplink",
            Feature::Balancer => "load balancer",
            Feature::Probe => "health check",
            Feature::Router => "router",
        })
    }
}

/// The interfaces that this process runs programs on. Dropped: all of them are the kernel's again.
#[derive(Debug, Default)]
pub struct Interfaces {
    programs: BTreeMap<Feature, Member>,
    attached: BTreeMap<u32, Attached>,
    /// Held by those who need them: a NIC that several features share is set back when the last one leaves it.
    tags: BTreeMap<u32, Weak<Tags>>,
}

/// A program as a member of the chain.
#[derive(Debug)]
struct Member {
    program: OwnedFd,
    chain: MapHandle,
}

#[derive(Debug)]
struct Attached {
    features: Vec<Feature>,
    attachment: Attachment,
}

impl Interfaces {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a feature on an interface. All interfaces of a feature run one program: a second `program` of the feature
    /// takes the place of the first everywhere. `mode` is for an interface that nothing of ours runs on yet; one that has a
    /// program keeps its mode. Gives the mode in force, and why it is generic when native was tried.
    ///
    /// # Errors
    /// As [`attach`], and when the feature runs there already. Nothing has changed then.
    pub fn add(
        &mut self,
        ifindex: u32,
        feature: Feature,
        program: &Program,
        mode: Option<Mode>,
    ) -> Result<(Mode, Option<&str>), Error> {
        if self.features(ifindex).contains(&feature) {
            return Err(Error::Twice { ifindex, feature });
        }
        let member = Member::new(program)?;
        match self.attached.get_mut(&ifindex) {
            None => {
                let attachment = attach(member.program.as_fd(), ifindex, mode)?;
                let features = vec![feature];
                self.attached.insert(ifindex, Attached { features, attachment });
            }
            Some(attached) => {
                if attached.features.first().is_some_and(|first| feature < *first) {
                    attached.attachment.replace(member.program.as_fd())?;
                }
                attached.features.push(feature);
                attached.features.sort_unstable();
            }
        }
        self.programs.insert(feature, member);
        if let Err(error) = self.link_up() {
            // The chain is as it was but for the newcomer, which leaves.
            self.remove(ifindex, feature);
            return Err(error);
        }
        let attachment = &self.attached[&ifindex].attachment;
        Ok((attachment.mode(), attachment.why_generic()))
    }

    /// Ends a feature on an interface; the last one gives the interface back.
    pub fn remove(&mut self, ifindex: u32, feature: Feature) {
        let Some(attached) = self.attached.get_mut(&ifindex) else {
            return;
        };
        attached.features.retain(|had| *had != feature);
        match attached.features.first() {
            None => {
                self.attached.remove(&ifindex);
            }
            Some(first) => {
                let program = self.programs[first].program.as_fd();
                // An interface that is gone refuses; it has no packets either.
                let _ = attached.attachment.replace(program);
            }
        }
        let used = |feature: &Feature| self.attached.values().any(|a| a.features.contains(feature));
        self.programs.retain(|feature, _| used(feature));
        let _ = self.link_up();
    }

    /// What runs on an interface, in order.
    pub fn features(&self, ifindex: u32) -> &[Feature] {
        self.attached
            .get(&ifindex)
            .map_or(&[], |attached| &attached.features)
    }

    /// The mode of an interface that something runs on.
    pub fn mode(&self, ifindex: u32) -> Option<Mode> {
        self.attached
            .get(&ifindex)
            .map(|attached| attached.attachment.mode())
    }

    /// Has a NIC leave VLAN tags in frames for as long as somebody holds what this gives.
    ///
    /// # Errors
    /// [`Error::Tags`]: it cannot be had.
    pub(crate) fn keep_tags(&mut self, nic: u32) -> Result<Arc<Tags>, Error> {
        self.tags.retain(|_, kept| kept.strong_count() > 0);
        if let Some(kept) = self.tags.get(&nic).and_then(Weak::upgrade) {
            return Ok(kept);
        }
        let kept = Arc::new(Tags::keep(nic)?);
        self.tags.insert(nic, Arc::downgrade(&kept));
        Ok(kept)
    }

    /// Lets every program hand on to the one behind it: the last one first, so that no packet takes a way that ends early.
    fn link_up(&self) -> Result<(), Error> {
        let mut next: Option<&Member> = None;
        for member in self.programs.values().rev() {
            member.hand_on_to(next)?;
            next = Some(member);
        }
        Ok(())
    }
}

impl Member {
    fn new(program: &Program) -> Result<Self, Error> {
        let chain = program.map("chain")?;
        let fd = program.as_fd().try_clone_to_owned();
        let program = fd.map_err(|source| failed(&chain, source.into()))?;
        Ok(Member { program, chain })
    }

    fn hand_on_to(&self, next: Option<&Member>) -> Result<(), Error> {
        let slot = 0u32.to_ne_bytes();
        let done = match next {
            Some(next) => {
                let fd = next.program.as_raw_fd().to_ne_bytes();
                self.chain.update(&slot, &fd, MapFlags::ANY)
            }
            None => match self.chain.delete(&slot) {
                Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
                other => other,
            },
        };
        done.map_err(|source| failed(&self.chain, source))
    }
}

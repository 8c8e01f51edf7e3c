//! Which features run on which interface, and the chain of their programs.
//!
//! There is one chain for all interfaces, in XDP and at tc ingress one each: each feature's program
//! hands on to the next feature that runs anywhere. A program therefore meets packets of interfaces
//! that are not its own, and asks its own map of interfaces. What is attached to an interface is
//! the program of the first feature there. An interface may have both: what its XDP programs pass
//! comes to tc.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sys::handed::{Handed, Items};

use crate::attach::{Attachment, Mode, attach_fd};
use crate::error::Error;
use crate::program::{CHAIN, Program};
use crate::table::failed;
use crate::tags::Tags;

/// What runs on an interface, in the order in which the chain goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// VXLAN to our endpoint address: the virtual switch.
    Uplink,
    /// VXLAN for containers, of flows that the virtual switch has let pass: at tc ingress alone.
    Arrival,
    /// Service addresses.
    Balancer,
    /// Answers to the load balancer's health checks.
    Probe,
    /// Transit packets.
    Router,
}

impl Feature {
    /// Its program does what it is for when nobody is there who has loaded it; the uplink's, as
    /// long as somebody has its sockets.
    fn goes_on_alone(self) -> bool {
        matches!(self, Feature::Uplink | Feature::Balancer | Feature::Router)
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::Uplink => "uplink",
            Feature::Arrival => "containers' flows",
            Feature::Balancer => "load balancer",
            Feature::Probe => "health check",
            Feature::Router => "router",
        })
    }
}

/// Where programs run on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hook {
    Xdp,
    Tc,
}

/// The interfaces that this process runs programs on. Dropped: all of them are the kernel's again.
#[derive(Debug, Default)]
pub struct Interfaces {
    programs: BTreeMap<(Hook, Feature), Member>,
    attached: BTreeMap<(u32, Hook), Attached>,
    /// Held by those who need them: a NIC that several features share is set back when the last one
    /// leaves it.
    tags: BTreeMap<u32, Weak<Tags>>,
    /// Points that another process hands over, and that no feature runs at yet.
    handed: BTreeMap<(u32, Hook), Attachment>,
    /// Features that another process has had run on an interface, by their names, as far as it has
    /// said so.
    handed_features: BTreeMap<u32, BTreeSet<String>>,
    /// NICs that another process has had leave VLAN tags in.
    handed_tags: BTreeSet<u32>,
    keep: Option<Keep>,
    /// Points and chains that it has been told of, by name.
    kept: BTreeSet<String>,
}

/// Who has points [outlive](Interfaces::keep_points) this process.
struct Keep(Box<KeepPoint>);
type KeepPoint = dyn Fn(&str, Option<Handed>) + Send;

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keep")
    }
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
    /// No features on any interface.
    pub fn new() -> Self {
        Self::default()
    }

    /// Interfaces that another process runs programs on and [hands over](Self::hand_over). Features
    /// that are [added](Self::add) there have the modes that they had; packets are the other's
    /// until this one [takes over](Self::take_over).
    pub fn handed(items: Items) -> Self {
        let mut interfaces = Self::default();
        for (name, item) in items {
            let Some((place, ifindex)) = name.split_once(' ') else {
                continue;
            };
            let Ok(ifindex) = ifindex.parse() else {
                continue;
            };
            let hook = match place {
                "xdp" => Hook::Xdp,
                "tc" => Hook::Tc,
                "tags" => {
                    interfaces.handed_tags.insert(ifindex);
                    continue;
                }
                "features" => {
                    let names = String::from_utf8_lossy(&item.note);
                    let names = names.lines().map(str::to_owned).collect();
                    interfaces.handed_features.insert(ifindex, names);
                    continue;
                }
                _ => continue,
            };
            if let Some(point) = Attachment::handed(ifindex, item) {
                interfaces.handed.insert((ifindex, hook), point);
            }
        }
        interfaces
    }

    /// Has `keep` told of each point that an uplink, the load balancer or the router comes to run
    /// at, by its name and as it is [handed over](Self::hand_over), and with `None` of each that
    /// all of these leave; and likewise of the maps that the programs there find each other by. Who
    /// has all of them meanwhile has the programs go on when this process is killed. Not of those
    /// that are there already; and where another process's programs run on, not before this one
    /// [takes over](Self::take_over): until then those are to be kept. A point at tc without a link
    /// of its own (a kernel before 6.6) cannot outlive us.
    pub fn keep_points(&mut self, keep: impl Fn(&str, Option<Handed>) + Send + 'static) {
        self.keep = Some(Keep(Box::new(keep)));
    }

    /// Whether somebody [has](Self::keep_points) what is of this name.
    pub fn is_kept(&self, name: &str) -> bool {
        self.kept.contains(name)
    }

    /// Says that features have come to a point or gone, and who is in the chain.
    fn report_point(&mut self, ifindex: u32, hook: Hook) {
        if self.keep.is_none() || self.waits() {
            return;
        }
        let goes_on = self.attached.get(&(ifindex, hook)).filter(|attached| {
            let mut features = attached.features.iter();
            features.any(|feature| feature.goes_on_alone())
        });
        let point = goes_on.map(|attached| attached.attachment.hand_over());
        match point.transpose() {
            Ok(point) => self.report(hook.name(ifindex), point),
            // It ends with us.
            Err(_) => return,
        }
        let here = |(at, _): &(Hook, Feature)| *at == hook;
        let mut members = self.programs.keys().filter(|member| here(member));
        let any = members.any(|(_, feature)| feature.goes_on_alone());
        let chains = self.programs.iter().filter(|(key, _)| any && here(key));
        let chains = chains.map(|((_, feature), member)| {
            let fd = member.chain.as_fd().try_clone_to_owned();
            (hook.chain_name(*feature), fd.ok())
        });
        let chains: BTreeMap<String, Option<OwnedFd>> = chains.collect();
        let start = hook.chain_start();
        let known = self.kept.iter().filter(|name| name.starts_with(&start));
        let gone = known.filter(|name| !chains.contains_key(*name)).cloned();
        for name in gone.collect::<Vec<_>>() {
            self.report(name, None);
        }
        for (name, fd) in chains {
            let fds = fd.into_iter().collect();
            if !self.kept.contains(&name) {
                let note = Vec::new();
                self.report(name, Some(Handed { note, fds }));
            }
        }
    }

    /// Whether programs of another process are to be [taken over](Self::take_over).
    fn waits(&self) -> bool {
        let mut attached = self.attached.values();
        !self.handed.is_empty() || attached.any(|attached| attached.attachment.waits())
    }

    /// Whether a program of another process runs on an interface, in whose place one of this
    /// process's is to be [put](Self::take_over).
    pub fn waits_at(&self, ifindex: u32) -> bool {
        [Hook::Xdp, Hook::Tc].into_iter().any(|hook| {
            let at = (ifindex, hook);
            let attached = self.attached.get(&at);
            self.handed.contains_key(&at)
                || attached.is_some_and(|attached| attached.attachment.waits())
        })
    }

    /// Whether a feature ran on an interface of the process that has handed it over. `None`: that
    /// process, of a version of before, has not said what ran there.
    pub fn was_handed(&self, ifindex: u32, feature: Feature) -> Option<bool> {
        let had = self.handed_features.get(&ifindex)?;
        Some(had.contains(&feature.to_string()))
    }

    fn report(&mut self, name: String, item: Option<Handed>) {
        let Some(Keep(keep)) = &self.keep else { return };
        if item.is_some() {
            keep(&name, item);
            self.kept.insert(name);
        } else if self.kept.remove(&name) {
            keep(&name, None);
        }
    }

    /// All points, and what runs at them, for a process that is to run its programs there.
    ///
    /// # Errors
    /// One cannot be handed over.
    pub fn hand_over(&self) -> Result<Items, Error> {
        let mut items = Items::new();
        for ((ifindex, hook), attached) in &self.attached {
            items.insert(hook.name(*ifindex), attached.attachment.hand_over()?);
            let features = self.features(*ifindex).into_iter();
            let names: Vec<String> = features.map(|feature| feature.to_string()).collect();
            let names = Handed {
                note: names.join("\n").into_bytes(),
                fds: Vec::new(),
            };
            items.insert(format!("features {ifindex}"), names);
        }
        let kept = self.tags.iter().filter(|(_, kept)| {
            let kept = kept.upgrade();
            kept.is_some_and(|kept| kept.taken_out_before())
        });
        items.extend(kept.map(|(nic, _)| (format!("tags {nic}"), Handed::default())));
        Ok(items)
    }

    /// Puts the programs of this process into all points, in the place of another's; no packet
    /// passes between them without one. For whoever was [handed](Self::handed) them, and for
    /// whoever has [handed them over](Self::hand_over) to a process that does not go on.
    ///
    /// # Errors
    /// A driver refuses.
    pub fn take_over(&mut self) -> Result<(), Error> {
        for ((_, hook), attached) in &mut self.attached {
            if let Some(first) = attached.features.first() {
                let member = &self.programs[&(*hook, *first)];
                attached.attachment.take_over(member.program.as_fd())?;
            }
        }
        // What nobody has asked for goes with the process that had it.
        self.handed.clear();
        let points: Vec<(u32, Hook)> = self.attached.keys().copied().collect();
        for (ifindex, hook) in points {
            self.report_point(ifindex, hook);
        }
        Ok(())
    }

    /// Runs a feature on an interface. All interfaces of a feature run one program: a second
    /// `program` of the feature takes the point of the first everywhere. [`Mode::Tc`] runs the
    /// program's part for tc ingress, besides what may run in XDP there. Else `mode` is for an
    /// interface that nothing of ours runs on in XDP yet; one that has a program keeps its mode.
    /// Gives the mode in force, and why it is generic when native was tried.
    ///
    /// # Errors
    /// Those of [`attach`]; the feature runs there already, or has no part for tc. Nothing has
    /// changed then.
    pub fn add(
        &mut self,
        ifindex: u32,
        feature: Feature,
        program: &Program,
        mode: Option<Mode>,
    ) -> Result<(Mode, Option<&str>), Error> {
        let hook = Hook::of(mode);
        if self.features_at(ifindex, hook).contains(&feature) {
            return Err(Error::Twice { ifindex, feature });
        }
        let program = match hook {
            Hook::Xdp => program.xdp()?,
            Hook::Tc => program.tc()?,
        };
        let member = Member::new(program)?;
        match self.attached.get_mut(&(ifindex, hook)) {
            None => {
                let attachment = match self.handed.remove(&(ifindex, hook)) {
                    Some(handed) => handed,
                    None => attach_fd(member.program.as_fd(), ifindex, mode)?,
                };
                let features = vec![feature];
                let attached = Attached {
                    features,
                    attachment,
                };
                self.attached.insert((ifindex, hook), attached);
            }
            Some(attached) => {
                if attached
                    .features
                    .first()
                    .is_some_and(|first| feature < *first)
                {
                    attached.attachment.replace(member.program.as_fd())?;
                }
                attached.features.push(feature);
                attached.features.sort_unstable();
            }
        }
        self.programs.insert((hook, feature), member);
        // It may be another program, with a map of its own.
        self.kept.remove(&hook.chain_name(feature));
        if let Err(error) = self.link_up(hook) {
            // The chain is as it was but for the newcomer, which leaves.
            self.remove_at(ifindex, feature, hook);
            return Err(error);
        }
        self.report_point(ifindex, hook);
        let attachment = &self.attached[&(ifindex, hook)].attachment;
        Ok((attachment.mode(), attachment.why_generic()))
    }

    /// Ends a feature on an interface, in XDP and at tc; the last one gives the interface back.
    pub fn remove(&mut self, ifindex: u32, feature: Feature) {
        self.remove_at(ifindex, feature, Hook::Xdp);
        self.remove_at(ifindex, feature, Hook::Tc);
    }

    /// Ends a feature's part at tc ingress of an interface; what it does there in XDP goes on.
    pub fn remove_from_tc(&mut self, ifindex: u32, feature: Feature) {
        self.remove_at(ifindex, feature, Hook::Tc);
    }

    fn remove_at(&mut self, ifindex: u32, feature: Feature, hook: Hook) {
        let Some(attached) = self.attached.get_mut(&(ifindex, hook)) else {
            return;
        };
        attached.features.retain(|had| *had != feature);
        match attached.features.first() {
            None => {
                self.attached.remove(&(ifindex, hook));
            }
            Some(first) => {
                let program = self.programs[&(hook, *first)].program.as_fd();
                // An interface that is gone refuses; it has no packets either.
                let _ = attached.attachment.replace(program);
            }
        }
        let used = |(hook, feature): &(Hook, Feature)| {
            let mut there = self.attached.iter().filter(|((_, at), _)| at == hook);
            there.any(|(_, attached)| attached.features.contains(feature))
        };
        self.programs.retain(|member, _| used(member));
        let _ = self.link_up(hook);
        self.report_point(ifindex, hook);
    }

    /// What runs on an interface, in order.
    pub fn features(&self, ifindex: u32) -> Vec<Feature> {
        let mut features = self.features_at(ifindex, Hook::Xdp).to_vec();
        features.extend(self.features_at(ifindex, Hook::Tc));
        features.sort_unstable();
        features.dedup();
        features
    }

    /// What runs in XDP there, in order.
    pub(crate) fn features_in_xdp(&self, ifindex: u32) -> &[Feature] {
        self.features_at(ifindex, Hook::Xdp)
    }

    fn features_at(&self, ifindex: u32, hook: Hook) -> &[Feature] {
        self.attached
            .get(&(ifindex, hook))
            .map_or(&[], |attached| &attached.features)
    }

    /// The mode of an interface that something runs on: XDP's, where something runs in XDP.
    pub fn mode(&self, ifindex: u32) -> Option<Mode> {
        let at = |hook| self.attached.get(&(ifindex, hook));
        let attached = at(Hook::Xdp).or_else(|| at(Hook::Tc))?;
        Some(attached.attachment.mode())
    }

    /// Has a NIC leave VLAN tags in frames for as long as somebody holds what this gives.
    ///
    /// # Errors
    /// [`Error::Tags`]: it cannot be had.
    pub fn keep_tags(&mut self, nic: u32) -> Result<Arc<Tags>, Error> {
        self.tags.retain(|_, kept| kept.strong_count() > 0);
        if let Some(kept) = self.tags.get(&nic).and_then(Weak::upgrade) {
            return Ok(kept);
        }
        let kept = match self.handed_tags.remove(&nic) {
            true => Tags::handed(nic),
            false => Tags::keep(nic)?,
        };
        let kept = Arc::new(kept);
        self.tags.insert(nic, Arc::downgrade(&kept));
        Ok(kept)
    }

    /// Lets every program hand on to the one behind it: the last one first, so that no packet takes
    /// a way that ends early.
    fn link_up(&self, hook: Hook) -> Result<(), Error> {
        let mut next: Option<&Member> = None;
        let chain = self
            .programs
            .iter()
            .rev()
            .filter(|((at, _), _)| *at == hook);
        for (_, member) in chain {
            member.hand_on_to(next)?;
            next = Some(member);
        }
        Ok(())
    }
}

impl Hook {
    /// What a point is called where it is handed over.
    fn name(self, ifindex: u32) -> String {
        match self {
            Hook::Xdp => format!("xdp {ifindex}"),
            Hook::Tc => format!("tc {ifindex}"),
        }
    }

    /// What the map by which a feature's program finds the next one is called where it is kept.
    fn chain_name(self, feature: Feature) -> String {
        format!("{}{feature}", self.chain_start())
    }

    /// What all names of such maps begin with.
    fn chain_start(self) -> String {
        let at = match self {
            Hook::Xdp => "xdp",
            Hook::Tc => "tc",
        };
        format!("chain {at} ")
    }

    fn of(mode: Option<Mode>) -> Hook {
        match mode {
            Some(Mode::Tc) => Hook::Tc,
            _ => Hook::Xdp,
        }
    }
}

impl Member {
    fn new(program: &Program) -> Result<Self, Error> {
        let chain = program.map(CHAIN)?;
        let fd = program.fd()?.try_clone_to_owned();
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

//! All the pairs of a daemon, and the TAP devices of its VMMs: made, changed, looked after.
//!
//! Each is kept as what is wanted of it; what there is of it follows from that, and may be nothing
//! for a time. The pair's host end carries an alias that names the daemon and the NIC, so that one
//! which a daemon that was killed has left is known again: it is taken over as it is, with whatever
//! the container has added to it, or removed.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io::tap::MachineTap;
use netlink::change::{Changes, Device, NewPair, PairKind};
use wire::Mac;

use crate::cables::{Cables, FlowMaps};
use crate::machine_tap;
use crate::namespace::{self, Namespace};
use crate::namespace_helper::{Asker, Failure, Inside, NamespaceHelper, Route};
use crate::pace::Pace;

/// Who may open a VMM's TAP device, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The user.
    pub uid: Option<u32>,
    /// Whose group.
    pub gid: Option<u32>,
    /// It has several queues.
    pub multi_queue: bool,
}

/// What a container's interface is to be, or a VMM's TAP device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// It is a TAP device that this VMM opens; then what is said of a container below is empty.
    pub machine: Option<Machine>,
    /// The container's network namespace, as [`namespace::path_of`] takes it.
    pub namespace: String,
    /// The interface's name there.
    pub name: String,
    /// The name of the pair's end on the host, or of the VMM's TAP device.
    pub near: String,
    /// The name of the TAP device that the switch reads.
    pub tap: String,
    /// The alias of the host's end: the daemon's and the NIC's.
    pub alias: String,
    /// The interface's MAC address.
    pub mac: Mac,
    /// Its MTU.
    pub mtu: u16,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(std::net::IpAddr, u8)>,
    /// Routes by it.
    pub routes: Vec<Route>,
    /// It has a carrier.
    pub up: bool,
}

/// How pairs are made.
#[derive(Clone, Copy, Debug)]
pub struct PairSettings {
    /// What of.
    pub kind: PairKind,
    /// Flows that the program between them and the switch has room for, to forward them itself.
    pub flows: u32,
}

/// How one is.
pub type State = Result<(), Broken>;

/// Why there is no interface in the container: a sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// Its namespace is not there.
    #[error("{0}")]
    Missing(String),
    /// The host's side keeps it from being made.
    #[error("{0}")]
    Refused(String),
    /// What is in its namespace, or in its place, keeps it from being made there or from being as
    /// it is wanted: that is in the container's hands.
    #[error("{0}")]
    Hindered(String),
    /// The namespace helper has not said how it is.
    #[error("{0}")]
    Silent(String),
    /// It is there, and no VMM has it open.
    #[error("no VMM has opened it")]
    Unopened,
}

/// The pairs, by a number of the caller's.
#[derive(Debug)]
pub struct Veths {
    helper: Asker,
    pairs: PairSettings,
    /// The program, from the first pair on.
    cables: Option<Cables>,
    /// See [`Veths::new`].
    borrowed: Option<Arc<AtomicBool>>,
    all: BTreeMap<u32, Veth>,
}

#[derive(Debug)]
struct Veth {
    wanted: Wanted,
    /// The index of the TAP device.
    tap: u32,
    /// The index of the host's end, while there is a pair; of a VMM's TAP device.
    near: Option<u32>,
    /// What the pair is made of; one that is taken over may be of another kind than new ones.
    pair: PairKind,
    /// What was wanted before and could not be changed to what is wanted now; empty: it is as it
    /// is wanted.
    left: Vec<Wanted>,
    /// When it may be made again, or be taken for open.
    pace: Pace,
    /// Why there is none, or nobody behind it, or why it is not as it is wanted.
    broken: Option<Broken>,
}

/// So many changes may fail one after the other; with one more the interface is made anew. What is
/// to go by all of them fits into one request to the helper.
const LEFT_MAX: usize = 2;

impl Veths {
    /// None yet. While `borrowed` is true pairs are another process's, and none is removed.
    pub fn new(
        helper: &NamespaceHelper,
        pairs: PairSettings,
        borrowed: Option<Arc<AtomicBool>>,
    ) -> Veths {
        Veths {
            helper: helper.asker(),
            pairs,
            cables: None,
            borrowed,
            all: BTreeMap::new(),
        }
    }

    fn is_borrowed(&self) -> bool {
        let borrowed = self.borrowed.as_ref();
        borrowed.is_some_and(|borrowed| borrowed.load(Ordering::SeqCst))
    }

    /// Has the program on all interfaces that are there, in the place of another process's.
    pub fn join_again(&mut self) {
        let all = std::mem::take(&mut self.all);
        let is_gone = |near| {
            let found = Changes::new().and_then(|mut changes| changes.by_index(near));
            matches!(found, Ok(None))
        };
        for veth in all.values() {
            if let Some(near) = veth.near
                && let Err(e) = self.join(near, veth)
                // The next look finds that out.
                && !is_gone(near)
            {
                tracing::error!("interface {}: {e}", veth.wanted.near);
            }
        }
        self.all = all;
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// When they are to be looked at next, if no news comes before: after `again` since the last
    /// look where one has no interface in its container, or one that is not as it is wanted, and
    /// when one may be made, or be taken for open, that went too often.
    pub fn next_look(&self, last: Instant, again: Duration) -> Option<Instant> {
        let now = Instant::now();
        let next = |veth: &Veth| {
            let rest = veth.pace.rests_until(now).filter(|_| veth.broken.is_some());
            let is_broken = veth.near.is_none() || !veth.left.is_empty();
            rest.or_else(|| is_broken.then(|| last + again))
        };
        self.all.values().filter_map(next).min()
    }

    /// Whether an interface of that index is the host's end of one.
    pub fn has_near(&self, index: u32) -> bool {
        self.all.values().any(|veth| veth.near == Some(index))
    }

    /// All of them.
    pub fn keys(&self) -> Vec<u32> {
        self.all.keys().copied().collect()
    }

    /// The index of the host's end of one, while there is a pair, or a TAP device that its VMM has
    /// open.
    pub fn near(&self, key: u32) -> Option<u32> {
        let veth = self.all.get(&key)?;
        veth.near.filter(|_| veth.broken.is_none())
    }

    /// Whether an interface of that index is a VMM's TAP device of which something may be new.
    pub fn has_machine(&self, index: u32) -> bool {
        let now = Instant::now();
        let is_it = |veth: &Veth| {
            let is_machine = veth.near == Some(index) && veth.wanted.machine.is_some();
            is_machine && veth.pace.rests_until(now).is_none()
        };
        self.all.values().any(is_it)
    }

    /// The name of the host's end of one.
    pub fn name(&self, key: u32) -> Option<&str> {
        Some(&self.all.get(&key)?.wanted.near)
    }

    /// The program's maps of flows; none before the first pair, and where it forwards none. The
    /// error is a sentence.
    pub fn flow_maps(&self) -> Option<Result<FlowMaps, String>> {
        self.cables.as_ref()?.flow_maps()
    }

    /// Makes one whose TAP device is there, and down. A namespace that is not there is no error: it
    /// is waited for, as the state says. Unless somebody has `asked` for it now, who has the whole
    /// host and whose word is good for today's processes, that of a process is taken only where the
    /// interface is already.
    ///
    /// # Errors
    /// A sentence: the host's side keeps it from being made, and nothing of it is left. What cannot
    /// be made in the place of another process is broken, as it may have been there; and so is what
    /// the container keeps from being made, which is tried again.
    pub fn open(&mut self, key: u32, wanted: Wanted, asked: bool) -> Result<State, String> {
        let mut veth = Veth {
            tap: behind(&wanted)?,
            wanted,
            near: None,
            pair: self.pairs.kind,
            left: Vec::new(),
            pace: Pace::default(),
            broken: None,
        };
        let state = self.make(&mut veth, asked);
        match state {
            Err(Broken::Refused(why)) if !self.is_borrowed() => return Err(why),
            _ => (),
        }
        if veth.near.is_none() {
            self.part(&veth);
        }
        veth.broken = state.clone().err();
        self.all.insert(key, veth);
        Ok(state)
    }

    /// Makes one be otherwise. What the container itself has added stays, unless the interface goes
    /// elsewhere or has another name. As to who has `asked`, see [`Veths::open`].
    pub fn change(&mut self, key: u32, wanted: Wanted, asked: bool) -> State {
        let Some(mut veth) = self.all.remove(&key) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut veth.wanted, wanted);
        let stays = |wanted: &Wanted| {
            let Wanted {
                machine,
                namespace,
                name,
                ..
            } = wanted.clone();
            (machine, namespace, name)
        };
        let stays = stays(&before) == stays(&veth.wanted);
        let has_room = veth.left.len() < LEFT_MAX;
        let meant = asked || is_where_meant(&veth);
        let state = match veth.near {
            // What could not be made anew stays, and is told to be otherwise.
            Some(_) if stays && (has_room || !meant) => {
                if has_room {
                    veth.left.push(before);
                }
                let done = self.adjust(&mut veth);
                done.and_then(|()| self.is_open(&veth))
            }
            _ => {
                self.unmake(&mut veth);
                self.make(&mut veth, meant)
            }
        };
        veth.broken = state.clone().err();
        self.all.insert(key, veth);
        state
    }

    /// Forgets one: from now on nothing passes. What is left to be removed is the caller's, its TAP
    /// device and the pair, of which this is the index of the host's end.
    pub fn close(&mut self, key: u32) -> Option<u32> {
        let veth = self.all.remove(&key)?;
        if let Some(cables) = &self.cables {
            veth.near.into_iter().for_each(|near| cables.forget(near));
            cables.forget(veth.tap);
        }
        veth.near
    }

    /// Looks whether one is there, and tries to make it if not. `None`: there is none of this
    /// number. As to who has `asked`, see [`Veths::open`].
    pub fn heal(&mut self, key: u32, asked: bool) -> Option<State> {
        let mut veth = self.all.remove(&key)?;
        veth.pace.hurry();
        let behind = self.look(&mut veth);
        let state = match veth.near {
            Some(_) => veth.broken.take().map_or(Ok(()), Err),
            None => behind.and_then(|()| self.make(&mut veth, asked)),
        };
        veth.broken = state.clone().err();
        self.all.insert(key, veth);
        Some(state)
    }

    /// Looks at one, and tries again to make it if it is not there; its state, if that is another
    /// one now. One whose namespace is that of a process stays as it is: its number may be a
    /// stranger's by now.
    pub fn check(&mut self, key: u32) -> Option<State> {
        let mut veth = self.all.remove(&key)?;
        let before = veth.broken.clone();
        let behind = self.look(&mut veth);
        if veth.near.is_none() && veth.pace.rests_until(Instant::now()).is_none() {
            // Without the switch's device a pair would be made and unmade each time.
            veth.broken = behind.and_then(|()| self.make(&mut veth, false)).err();
        }
        let state = veth.broken.clone().map_or(Ok(()), Err);
        let is_news = veth.broken != before;
        self.all.insert(key, veth);
        is_news.then_some(state)
    }

    /// Finds out whether the pair is still there, and the switch's TAP device, which is what is
    /// returned; whether a VMM has its own open.
    fn look(&mut self, veth: &mut Veth) -> State {
        // Who cannot be asked has not said no.
        let Ok(mut changes) = Changes::new() else {
            return Ok(());
        };
        let behind = self.look_behind(veth, &mut changes);
        let Some(near) = veth.near else {
            return behind;
        };
        let Ok(found) = changes.by_index(near) else {
            return behind;
        };
        if found.is_some_and(|device| device.kind == veth.kind()) {
            let joined = behind.clone().and_then(|()| self.is_joined(near, veth));
            let adjusted = joined.and_then(|()| self.adjust(veth));
            let state = adjusted.and_then(|()| self.is_open(veth));
            if veth.broken.is_none() && state == Err(Broken::Unopened) {
                veth.pace.gone(Instant::now());
            }
            veth.broken = state.err();
            return behind;
        }
        if let Some(cables) = &self.cables {
            cables.forget(near);
        }
        veth.near = None;
        veth.pace.gone(Instant::now());
        veth.left.clear();
        if behind.is_ok() {
            self.part(veth);
        }
        let wanted = &veth.wanted;
        let why = match wanted.machine {
            Some(_) => format!("TAP interface {} is gone", wanted.near),
            None => {
                let shown = format!("{} ({})", wanted.namespace, wanted.name);
                format!("the interface in network namespace {shown} is gone")
            }
        };
        veth.broken = Some(Broken::Missing(why));
        behind
    }

    /// Finds out whether the switch's TAP device is still there. Another one of its name, which was
    /// made when it had been deleted, is joined in its place.
    fn look_behind(&mut self, veth: &mut Veth, changes: &mut Changes) -> State {
        let wanted = &veth.wanted;
        let found = changes.by_name(&wanted.tap);
        // Who cannot be asked has not said no.
        let same = found.map(|found| found.is_some_and(|device| device.index == veth.tap));
        if same.unwrap_or(true) {
            return Ok(());
        }
        let tap = behind(wanted).map_err(Broken::Missing)?;
        if let Some(cables) = &self.cables {
            cables.forget(veth.tap);
        }
        let before = std::mem::replace(&mut veth.tap, tap);
        let Some(near) = veth.near else {
            self.part(veth);
            return Ok(());
        };
        if let Err(e) = self.join(near, veth) {
            // To be tried again.
            veth.tap = before;
            let name = &veth.wanted.tap;
            return Err(Broken::Refused(format!("TAP interface '{name}': {e}")));
        }
        Ok(())
    }

    /// Has the program at a pair of netkit that has lost it: kernels before 2026 let any process of
    /// the host's network namespace take it away. What the container sends is dropped then.
    fn is_joined(&mut self, near: u32, veth: &Veth) -> State {
        let is_netkit = veth.pair() == Some(PairKind::Netkit);
        if !is_netkit || xdp::is_at_sender(near).unwrap_or(false) {
            return Ok(());
        }
        let name = &veth.wanted.near;
        let joined = self.join(near, veth);
        joined.map_err(|e| Broken::Refused(format!("interface {name}: {e}")))
    }

    /// Whether a VMM has its TAP device open. The switch's is up for as long, so that what is for
    /// nobody is dropped where drops are counted. One that was closed again and again is not taken
    /// for open at once. Of a container there is no question.
    fn is_open(&self, veth: &Veth) -> State {
        let (Some(_), Some(near)) = (veth.wanted.machine, veth.near) else {
            return Ok(());
        };
        let open = Changes::new().and_then(|mut changes| {
            let device = changes.by_index(near)?;
            let rests = veth.pace.rests_until(Instant::now()).is_some();
            let open = !rests && device.is_some_and(|device| device.carrier);
            changes.set_up(veth.tap, open)?;
            Ok(open)
        });
        match open {
            Ok(true) => Ok(()),
            Ok(false) => Err(Broken::Unopened),
            Err(e) => Err(Broken::Missing(format!(
                "TAP interface {}: {e}",
                veth.wanted.near
            ))),
        }
    }

    /// A TAP device for a VMM: one that is left of before, which the VMM may have open all the
    /// time, or a new one.
    fn make_for(&mut self, machine: Machine, veth: &mut Veth) -> State {
        let wanted = &veth.wanted;
        let shown = &wanted.near;
        let refused =
            |e: &dyn std::fmt::Display| Broken::Refused(format!("interface {shown}: {e}"));
        let mut changes = Changes::new().map_err(|e| refused(&e))?;
        let there = changes.by_name(shown).map_err(|e| refused(&e))?;
        if let Some(device) = &there
            && (device.kind != veth.kind() || device.alias != wanted.alias)
        {
            let why = format!("'{shown}' cannot be made: an interface of that name exists");
            return Err(Broken::Refused(why));
        }
        let tap = MachineTap {
            name: shown.clone(),
            uid: machine.uid,
            gid: machine.gid,
            multi_queue: machine.multi_queue,
        };
        // What another process has made is left to its VMM as it is.
        let stays = |device: &Device| device.carrier || self.is_borrowed();
        if !there.as_ref().is_some_and(stays) {
            machine_tap::make(&mut changes, &tap, there.as_ref()).map_err(Broken::Refused)?;
        }
        let made = changes.by_name(shown).map_err(|e| refused(&e))?;
        let near = made.ok_or_else(|| refused(&"it is gone already"))?.index;
        veth.near = Some(near);
        let mut furnish = || {
            changes.leave_unaddressed(near);
            changes.set_alias(near, &wanted.alias)?;
            changes.set_mtu(near, wanted.mtu)
        };
        let furnished = furnish().map_err(|e| refused(&e));
        let joined = furnished.and_then(|()| {
            self.join(near, veth).map_err(|e| refused(&e))?;
            let up = Changes::new().and_then(|mut changes| changes.set_up(near, veth.wanted.up));
            up.map_err(|e| refused(&e))
        });
        match joined {
            Ok(()) => self.is_open(veth),
            Err(why) => {
                self.unmake(veth);
                Err(why)
            }
        }
    }

    fn make(&mut self, veth: &mut Veth, asked: bool) -> State {
        let made = match veth.wanted.machine {
            Some(machine) => self.make_for(machine, veth),
            None => self.make_pair(veth, asked),
        };
        match &made {
            // What is not there yet costs nothing to look for.
            Ok(()) | Err(Broken::Missing(_) | Broken::Unopened) => (),
            Err(_) => veth.pace.failed(Instant::now()),
        }
        made
    }

    /// A pair: one that is left of before, which stays as it is unless who has `asked` cannot have
    /// it as it is wanted; or a new one.
    fn make_pair(&mut self, veth: &mut Veth, asked: bool) -> State {
        let refused = |e: &dyn std::fmt::Display| Broken::Refused(e.to_string());
        let namespace = Namespace::open(&veth.wanted.namespace).map_err(|e| match e {
            namespace::Error::Missing(_) => Broken::Missing(e.to_string()),
            namespace::Error::Refused(..) => Broken::Hindered(e.to_string()),
        })?;
        let mut changes = Changes::new().map_err(|e| refused(&e))?;
        let left = left_of_before(&mut changes, &veth.wanted)?;
        let near = left.as_ref().map(|(near, _)| near);
        let is_borrowed = near.is_some() && self.is_borrowed();
        if !(asked || is_borrowed || is_meant(&mut changes, &namespace, near)) {
            return Err(Broken::Missing(format!(
                "network namespace {} is that of a process, whose number may be another's by now: \
                 the same `nic add` or `apply` makes the interface there",
                namespace.shown()
            )));
        }
        if let Some((near, kind)) = left {
            let is_in = is_far_in(&mut changes, &near, &namespace);
            if is_in || is_borrowed {
                let at = match is_in {
                    true => Ok(&namespace),
                    false => Err(elsewhere(&near, &namespace)),
                };
                let taken = self.take_over(&mut changes, veth, &near, kind, at);
                match taken {
                    Err(Broken::Hindered(_)) if asked && !is_borrowed => self.unmake(veth),
                    taken => return taken,
                }
            } else {
                changes.remove(near.index).map_err(|e| refused(&e))?;
            }
        }
        let near = self.new_pair(&mut changes, &namespace, &veth.wanted)?;
        (veth.near, veth.pair) = (Some(near.index), self.pairs.kind);
        let made = self.furnish(&mut changes, veth, &near, Ok(&namespace));
        if made.is_err() {
            self.unmake(veth);
        }
        made
    }

    /// Takes over a pair, whose other end is at this namespace, or elsewhere. What hinders it from
    /// being as it is wanted is no reason to remove it: that is tried again, as a change that has
    /// failed.
    fn take_over(
        &mut self,
        changes: &mut Changes,
        veth: &mut Veth,
        near: &Device,
        kind: PairKind,
        at: Result<&Namespace, Broken>,
    ) -> State {
        (veth.near, veth.pair) = (Some(near.index), kind);
        let taken = self.furnish(changes, veth, near, at);
        match &taken {
            Ok(()) => (),
            Err(Broken::Hindered(_) | Broken::Silent(_)) => veth.left = vec![veth.wanted.clone()],
            Err(_) => self.unmake(veth),
        }
        taken
    }

    /// A new pair: its end on the host.
    fn new_pair(
        &mut self,
        changes: &mut Changes,
        namespace: &Namespace,
        wanted: &Wanted,
    ) -> Result<Device, Broken> {
        let near = &wanted.near;
        let pair = NewPair {
            kind: self.pairs.kind,
            near,
            far: &wanted.name,
            far_mac: wanted.mac,
            mtu: wanted.mtu,
            namespace: std::os::fd::AsFd::as_fd(namespace.fd()),
        };
        changes.make_pair(&pair).map_err(|e| {
            let at = namespace.shown();
            let name = &wanted.name;
            let kind = self.pairs.kind.name();
            let why = format!("{kind} pair '{near}' and '{name}' in network namespace {at}: {e}");
            // On the host there was none of that name.
            match is_name_taken(&e) {
                true => Broken::Hindered(why),
                false => Broken::Refused(why),
            }
        })?;
        let made = changes.by_name(near);
        let made = made.map_err(|e| Broken::Refused(format!("interface {near}: {e}")))?;
        made.ok_or_else(|| Broken::Hindered(format!("interface {near}: it is gone already")))
    }

    /// All that is to be done to a pair: the program on it before anything passes.
    fn furnish(
        &mut self,
        changes: &mut Changes,
        veth: &Veth,
        near: &Device,
        at: Result<&Namespace, Broken>,
    ) -> State {
        let done = self.furnish_here(changes, veth, near.index);
        let done = done.and_then(|()| {
            let there = at.and_then(|at| self.set_up(at, &inside(&veth.wanted, near.far)));
            let up = changes.set_up(near.index, veth.wanted.up);
            up.map_err(|e| Broken::Refused(format!("interface {}: {e}", veth.wanted.near)))?;
            there
        });
        match done {
            // The container may remove it at any moment.
            Err(Broken::Refused(why)) if matches!(changes.by_index(near.index), Ok(None)) => {
                Err(Broken::Hindered(why))
            }
            done => done,
        }
    }

    /// What of it is the host's. It is up then: routes need an interface with a carrier.
    fn furnish_here(&mut self, changes: &mut Changes, veth: &Veth, near: u32) -> State {
        let wanted = &veth.wanted;
        let shown = &wanted.near;
        let refused =
            |e: &dyn std::fmt::Display| Broken::Refused(format!("interface {shown}: {e}"));
        changes.leave_unaddressed(near);
        let alias = &wanted.alias;
        changes.set_alias(near, alias).map_err(|e| refused(&e))?;
        self.join(near, veth).map_err(|e| refused(&e))?;
        changes.set_up(near, true).map_err(|e| refused(&e))
    }

    /// Has the interface in a namespace be so.
    fn set_up(&mut self, namespace: &Namespace, inside: &Inside) -> State {
        self.helper.set_up(namespace, inside).map_err(|e| {
            let why = format!("network namespace {}: {e}", namespace.shown());
            match e {
                Failure::Silent(_) => Broken::Silent(why),
                Failure::Refused(_) => Broken::Hindered(why),
            }
        })
    }

    /// Has what comes in by either end go out by the other. The switch's device is up from then on;
    /// that of a VMM while it has its own open ([`Veths::is_open`]).
    fn join(&mut self, near: u32, veth: &Veth) -> Result<(), String> {
        let pair = veth.pair();
        let cables = self.cables().map_err(|e| e.to_string())?;
        let joined = cables.join(near, veth.tap, veth.wanted.mac, pair);
        joined.map_err(|e| e.to_string())?;
        if pair.is_some() {
            let up = Changes::new().and_then(|mut changes| changes.set_up(veth.tap, true));
            up.map_err(|e| format!("TAP interface '{}': {e}", veth.wanted.tap))?;
        }
        Ok(())
    }

    /// There is no other end: the switch's device is down, so that the switch drops and counts what
    /// it has for it. It has the program too, which drops: whoever else sets it up has it lead into
    /// the host's own stack otherwise.
    fn part(&mut self, veth: &Veth) {
        let tap = veth.tap;
        let parted = Changes::new().and_then(|mut changes| changes.set_up(tap, false));
        let kept = self.cables().and_then(|cables| cables.close(tap));
        let why = [
            parted.err().map(|e| e.to_string()),
            kept.err().map(|e| e.to_string()),
        ];
        for why in why.into_iter().flatten() {
            tracing::warn!("TAP interface '{}': {why}", veth.wanted.tap);
        }
    }

    fn cables(&mut self) -> Result<&Cables, xdp::Error> {
        Ok(match &mut self.cables {
            Some(cables) => cables,
            none => none.insert(Cables::load(self.pairs.flows)?),
        })
    }

    /// Has an interface that stays be as it is wanted, where it is not.
    fn adjust(&mut self, veth: &mut Veth) -> State {
        let Some(near) = veth.near.filter(|_| !veth.left.is_empty()) else {
            return Ok(());
        };
        self.adjust_to_wanted(veth, near)?;
        veth.left.clear();
        Ok(())
    }

    fn adjust_to_wanted(&mut self, veth: &Veth, near: u32) -> State {
        let (wanted, left) = (&veth.wanted, &veth.left);
        let shown = &wanted.near;
        let refused =
            |e: &dyn std::fmt::Display| Broken::Refused(format!("interface {shown}: {e}"));
        let mut changes = Changes::new().map_err(|e| refused(&e))?;
        if left.iter().any(|before| wanted.mtu != before.mtu) {
            changes.set_mtu(near, wanted.mtu).map_err(|e| refused(&e))?;
        }
        if left.iter().any(|before| wanted.mac != before.mac) {
            self.join(near, veth).map_err(|e| refused(&e))?;
        }
        changes.set_up(near, wanted.up).map_err(|e| refused(&e))?;
        if wanted.machine.is_some() {
            return Ok(());
        }
        let namespace = Namespace::open(&wanted.namespace);
        let namespace = namespace.map_err(|e| Broken::Missing(e.to_string()))?;
        let device = changes.by_index(near).map_err(|e| refused(&e))?;
        let device = device.ok_or_else(|| refused(&"it is gone"))?;
        if !is_far_in(&mut changes, &device, &namespace) {
            return Err(elsewhere(&device, &namespace));
        }
        let mut inside = inside(wanted, device.far);
        inside.addresses_gone = gone(left.iter().map(|one| &one.addresses), &wanted.addresses);
        inside.routes_gone = gone(left.iter().map(|one| &one.routes), &wanted.routes);
        if !wanted.up {
            // The kernel has put them to sleep, and takes no new ones.
            inside.routes.clear();
        }
        self.set_up(&namespace, &inside)
    }

    fn unmake(&mut self, veth: &mut Veth) {
        let Some(near) = veth.near.take() else { return };
        veth.left.clear();
        if self.is_borrowed() {
            return;
        }
        if let Some(cables) = &self.cables {
            cables.forget(near);
        }
        self.part(veth);
        if let Err(e) = Changes::new().and_then(|mut changes| changes.remove(near)) {
            tracing::warn!("interface {} stays: {e}", veth.wanted.near);
        }
    }
}

impl Veth {
    /// What the pair is made of; `None`: it is a VMM's TAP device.
    fn pair(&self) -> Option<PairKind> {
        match self.wanted.machine {
            Some(_) => None,
            None => Some(self.pair),
        }
    }

    /// The kernel's word for the interface on the host.
    fn kind(&self) -> &'static str {
        self.pair().map_or("tun", PairKind::name)
    }
}

/// The index of the TAP device behind one, which stays down: see [`Veths::join`].
fn behind(wanted: &Wanted) -> Result<u32, String> {
    let mut changes = Changes::new().map_err(|e| e.to_string())?;
    let tap = changes.by_name(&wanted.tap).map_err(|e| e.to_string())?;
    let tap = tap.ok_or_else(|| format!("TAP interface '{}' is not there", wanted.tap))?;
    changes.leave_unaddressed(tap.index);
    Ok(tap.index)
}

/// The pair's end on the host that is left of before, and what the pair is made of; `None`: there
/// is none. Somebody else's interface of that name is refused.
fn left_of_before(
    changes: &mut Changes,
    wanted: &Wanted,
) -> Result<Option<(Device, PairKind)>, Broken> {
    let near = &wanted.near;
    let found = changes.by_name(near);
    let found = found.map_err(|e| Broken::Refused(format!("interface {near}: {e}")))?;
    let Some(found) = found else { return Ok(None) };
    match PairKind::of(&found.kind).filter(|_| found.alias == wanted.alias) {
        Some(kind) => Ok(Some((found, kind))),
        None => {
            let why = format!("'{near}' cannot be made: an interface of that name exists");
            Err(Broken::Refused(why))
        }
    }
}

/// A pair whose other end is not in the namespace that is named.
fn elsewhere(near: &Device, namespace: &Namespace) -> Broken {
    let (near, at) = (&near.name, namespace.shown());
    let why = format!("network namespace {at} is not the one that its other end is in");
    Broken::Hindered(format!("interface {near}: {why}"))
}

/// Whether an interface of that name was there already.
fn is_name_taken(error: &netlink::Error) -> bool {
    match error {
        netlink::Error::Refused { source, .. } => source.kind() == ErrorKind::AlreadyExists,
        _ => false,
    }
}

/// Whether the namespace that is named is the one that was meant: that of a process, whose number
/// may be another's by now, is for as long as the pair leads to it.
fn is_meant(changes: &mut Changes, namespace: &Namespace, near: Option<&Device>) -> bool {
    !namespace.is_by_process() || near.is_some_and(|near| is_far_in(changes, near, namespace))
}

/// Whether one may be made anew with nobody asking for it.
fn is_where_meant(veth: &Veth) -> bool {
    if veth.wanted.machine.is_some() {
        return true;
    }
    let (Ok(namespace), Ok(mut changes)) =
        (Namespace::open(&veth.wanted.namespace), Changes::new())
    else {
        return false;
    };
    let near = veth.near.and_then(|near| changes.by_index(near).ok()?);
    is_meant(&mut changes, &namespace, near.as_ref())
}

/// Whether a pair leads to this namespace. Where the kernel does not say it does not.
fn is_far_in(changes: &mut Changes, near: &Device, namespace: &Namespace) -> bool {
    let fd = std::os::fd::AsFd::as_fd(namespace.fd());
    changes.is_far_in(near, fd).unwrap_or(false)
}

fn inside(wanted: &Wanted, index: Option<u32>) -> Inside {
    Inside {
        name: wanted.name.clone(),
        index,
        mac: wanted.mac.0,
        mtu: wanted.mtu,
        addresses: wanted.addresses.clone(),
        routes: wanted.routes.clone(),
        addresses_gone: Vec::new(),
        routes_gone: Vec::new(),
    }
}

/// What was and is not to be, each once.
fn gone<'a, T: PartialEq + Clone + 'a>(
    before: impl Iterator<Item = &'a Vec<T>>,
    now: &[T],
) -> Vec<T> {
    let mut gone = Vec::new();
    for one in before.flatten() {
        if !now.contains(one) && !gone.contains(one) {
            gone.push(one.clone());
        }
    }
    gone
}

//! NICs of kind veth and of kind vm-tap: the model's words into those of the crate `container`, and
//! a thread that hears when a container's namespace has gone, makes its interface again when it is
//! back, hears when a VMM opens its TAP device and when it closes that, and leaves the state where
//! the controller finds it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use container::namespace_helper::Route;
use container::{Broken, Machine, PairSettings, Veths, Wanted};
use control::model::{Nic, NicKind};
use control::{Declared, NicState, OpenRequest};
use dataplane::{PortSlot, Switch};
use ipnet::IpNet;
use netlink::change::{Departures, LinkNews};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::arrivals::Arrivals;
use crate::states::PortStates;
use crate::{kernel_flows, namespaces};

/// How often what is broken is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Namespaces that go together, as those of a pod's containers, are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);

/// The name of the TAP device behind a pair whose end on the host has this name: `bt-` and 12
/// digits made of it (FNV-1a).
pub fn tap_name(near: &str) -> String {
    let hash = near.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("bt-{:012x}", hash & 0xffff_ffff_ffff)
}

/// All of them.
pub struct VethNics {
    shared: Arc<Shared>,
    pairs: PairSettings,
    /// What pairs of this daemon are known by, when it has been killed and started again.
    daemon: String,
    /// See [`VethNics::new`].
    apart: Option<Arc<AtomicBool>>,
    /// From the first one on.
    thread: Option<JoinHandle<()>>,
}

/// What a process is handed that this one gives way to.
pub struct VethHandle(Arc<Shared>);

impl VethHandle {
    /// From now on another process looks after them. Returns when none is looked at.
    pub fn stand_still(&self) {
        self.0.lock().still = true;
    }

    /// That process did not take over, or this one has taken its place: this one's program is at
    /// all interfaces, and they are looked at.
    pub fn go_on(&self) {
        let mut watched = self.0.lock();
        watched.still = false;
        watched.due = true;
        if let Some(veths) = &mut watched.veths {
            veths.join_again();
        }
        watched.ring();
    }
}

struct Shared {
    /// Who has it has the state next: whoever has it often lets others have it in between.
    next: Mutex<()>,
    state: Mutex<Watched>,
    states: PortStates,
    switch: Arc<Switch>,
    arrivals: Arc<Arrivals>,
}

#[derive(Default)]
struct Watched {
    veths: Option<Veths>,
    /// The switch has been told of the program that forwards flows.
    forwards: bool,
    /// Another process looks after them: of two that make the same interface, the program of the
    /// one that has given way may be the last one there.
    still: bool,
    /// All are to be looked at, whatever was heard of them.
    due: bool,
    /// Wakes the thread: something is to be tried again, or the end has come.
    bell: Option<OwnedFd>,
    ended: bool,
}

impl VethNics {
    /// None yet, of the daemon that has this folder of sockets for its own. `arrivals` is for flows
    /// from other hosts. While `apart` is true, pairs are another daemon's and stay; where it is
    /// there they are looked after from [`VethHandle::go_on`] on.
    pub fn new(
        states: PortStates,
        switch: Arc<Switch>,
        daemon: String,
        pairs: PairSettings,
        apart: Option<Arc<AtomicBool>>,
        arrivals: Arc<Arrivals>,
    ) -> VethNics {
        let shared = Shared {
            next: Mutex::default(),
            state: Mutex::new(Watched {
                still: apart.is_some(),
                ..Watched::default()
            }),
            states,
            switch,
            arrivals,
        };
        VethNics {
            shared: Arc::new(shared),
            pairs,
            daemon,
            apart,
            thread: None,
        }
    }

    /// For what a process is handed that this one gives way to.
    pub fn handle(&self) -> VethHandle {
        VethHandle(self.shared.clone())
    }

    /// Makes the container's interface, or the VMM's; the switch's TAP device is there. Of what is
    /// refused there may be something: whoever has asked closes it.
    pub fn open(&mut self, request: &OpenRequest<'_>) -> Result<NicState, String> {
        self.start()?;
        let mut watched = self.shared.lock();
        let Some(veths) = &mut watched.veths else {
            return Err("nobody watches containers' interfaces".into());
        };
        let wanted = wanted(request, &self.daemon);
        let state = veths.open(request.slot.0, wanted, is_asked(request))?;
        if let Err(why @ (Broken::Hindered(_) | Broken::Silent(_))) = &state
            && request.declared == Declared::Alone
        {
            return Err(why.to_string());
        }
        self.shared.update_switch(&mut watched, request.slot.0);
        watched.ring();
        Ok(told(state))
    }

    /// What the controller wants of it has changed.
    pub fn change(&mut self, request: &OpenRequest<'_>) {
        let mut watched = self.shared.lock();
        let Some(veths) = &mut watched.veths else {
            return;
        };
        let wanted = wanted(request, &self.daemon);
        let state = veths.change(request.slot.0, wanted, is_asked(request));
        if let Err(why) = &state
            && *why != Broken::Unopened
        {
            tracing::warn!("NIC '{}' is not as declared: {why}", request.nic.id);
        }
        self.shared.states.leave(request.slot.0, told(state));
        self.shared.update_switch(&mut watched, request.slot.0);
        watched.ring();
    }

    /// Looks at it, and tries again to make it. `None`: there is none.
    pub fn heal(&mut self, request: &OpenRequest<'_>) -> Option<NicState> {
        let slot = request.slot;
        let mut watched = self.shared.lock();
        let veths = watched.veths.as_mut()?;
        let state = veths.heal(slot.0, is_asked(request))?;
        self.shared.update_switch(&mut watched, slot.0);
        drop(watched);
        let state = told(state);
        self.shared.states.leave(slot.0, state.clone());
        Some(state)
    }

    /// The name of the host's end of one, if there is one or was.
    pub fn name(&self, slot: PortSlot) -> Option<String> {
        let watched = self.shared.lock();
        watched.veths.as_ref()?.name(slot.0).map(str::to_owned)
    }

    /// Nothing passes any more by the container's interface. The index of its end on the host,
    /// which is to be removed.
    pub fn close(&mut self, slot: PortSlot) -> Option<u32> {
        let mut watched = self.shared.lock();
        let near = watched.veths.as_mut().and_then(|veths| veths.close(slot.0));
        self.shared.update_switch(&mut watched, slot.0);
        near
    }

    fn start(&mut self) -> Result<(), String> {
        if self.thread.is_some() {
            return Ok(());
        }
        let helper = namespaces::helper()?;
        let departures = Departures::listen().map_err(|e| e.to_string())?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|e| format!("an eventfd cannot be made: {e}"))?;
        let rung = bell
            .try_clone()
            .map_err(|e| format!("an eventfd cannot be made: {e}"))?;
        {
            let mut watched = self.shared.lock();
            watched.veths = Some(Veths::new(&helper, self.pairs, self.apart.clone()));
            watched.bell = Some(bell);
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("containers".into());
        let thread = thread.spawn(move || shared.watch(departures, &rung));
        self.thread = Some(thread.map_err(|e| format!("a thread cannot be started: {e}"))?);
        Ok(())
    }
}

impl Drop for VethNics {
    fn drop(&mut self) {
        {
            let mut watched = self.shared.lock();
            watched.ended = true;
            watched.ring();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the switch which device a NIC has, that the program is at which forwards flows.
    fn update_switch(&self, watched: &mut Watched, slot: u32) {
        let Some(veths) = &watched.veths else { return };
        if !watched.forwards
            && let Some(maps) = veths.flow_maps()
        {
            let begun =
                maps.and_then(|maps| kernel_flows::begin(&self.switch, &self.arrivals, maps));
            if let Err(why) = begun {
                tracing::warn!("the kernel forwards no flows of containers itself: {why}");
            }
            watched.forwards = true;
        }
        let device = veths.near(slot).unwrap_or_default();
        // A worker that is gone: the daemon is stopping.
        let _ = self.switch.set_kernel_device(PortSlot(slot), device);
    }

    fn watch(&self, mut departures: Departures, bell: &OwnedFd) {
        let mut last = Instant::now();
        loop {
            let next = {
                let watched = self.lock();
                if watched.ended {
                    return;
                }
                let veths = watched.veths.as_ref().filter(|_| !watched.still);
                veths.and_then(|veths| veths.next_look(last, AGAIN))
            };
            let timeout = next.map(|next| {
                let wait = next.saturating_duration_since(Instant::now());
                Timespec::try_from(wait).unwrap_or_default()
            });
            let mut fds = [
                PollFd::from_borrowed_fd(departures.fd(), PollFlags::IN),
                PollFd::new(bell, PollFlags::IN),
            ];
            // Interrupted or not, what there is to see is looked at.
            let _ = poll(&mut fds, timeout.as_ref());
            let heard = !fds[0].revents().is_empty();
            let _ = rustix::io::read(bell, &mut [0; 8]);
            // Not only where nothing else came: somebody may see to it that something does.
            let is_due = next.is_some_and(|next| next <= Instant::now());
            if heard {
                std::thread::sleep(TOGETHER);
            }
            let news = departures.take();
            let keys = {
                let mut watched = self.lock();
                if watched.still {
                    continue;
                }
                let is_due = std::mem::take(&mut watched.due) || is_due;
                let Some(veths) = &watched.veths else {
                    continue;
                };
                let ours = news.is_none_or(|LinkNews { gone, changed }| {
                    gone.into_iter().any(|index| veths.has_near(index))
                        || changed.into_iter().any(|index| veths.has_machine(index))
                });
                if !(ours || is_due) {
                    continue;
                }
                veths.keys()
            };
            last = Instant::now();
            keys.into_iter().for_each(|slot| self.check(slot));
        }
    }

    /// Looks at one. Each may take seconds, by its container's doing: whoever asks for something
    /// meanwhile has its turn between two of them.
    fn check(&self, slot: u32) {
        let mut watched = self.lock();
        if watched.ended || watched.still {
            return;
        }
        let news = watched.veths.as_mut().and_then(|veths| veths.check(slot));
        // A pair may have been made anew without any news, and have another device.
        self.update_switch(&mut watched, slot);
        let Some(state) = news else { return };
        if let Err(why) = &state
            && *why != Broken::Unopened
        {
            tracing::info!("a container's NIC is broken: {why}");
        }
        // Under the lock, so that it is not left for a slot that is closed meanwhile.
        self.states.leave(slot, told(state));
    }
}

impl Watched {
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}

fn told(state: Result<(), Broken>) -> NicState {
    match state {
        Ok(()) => NicState::Up,
        Err(Broken::Unopened) => NicState::Down,
        Err(why) => NicState::Broken(why.to_string()),
    }
}

/// Somebody asks for it now, who may choose any namespace: a process's number is meant as it is by
/// now.
fn is_asked(request: &OpenRequest<'_>) -> bool {
    request.declared != Declared::Before
}

/// Bytes of an interface's alias at the most (IFALIASZ, less the zero).
const ALIAS_MAX: usize = 255;

fn wanted(request: &OpenRequest<'_>, daemon: &str) -> Wanted {
    let nic: &Nic = request.nic;
    let mut alias = format!("butterfly NIC {} of {daemon}", nic.id);
    alias.truncate(alias.floor_char_boundary(ALIAS_MAX));
    let mut wanted = Wanted {
        machine: None,
        namespace: String::new(),
        name: String::new(),
        near: request.path.to_owned(),
        tap: tap_name(request.path),
        alias,
        mac: nic.mac,
        mtu: super::mtu(request),
        routes: Vec::new(),
        addresses: Vec::new(),
        up: !nic.link_down,
    };
    match &nic.kind {
        NicKind::Veth(veth) => {
            let addresses = veth.addresses(nic);
            let nets = addresses.iter();
            let nets: Vec<IpNet> = nets
                .filter_map(|(ip, prefix)| IpNet::new(*ip, *prefix).ok())
                .collect();
            let routes = veth.all_routes().into_iter().map(|route| Route {
                to: (route.to.network(), route.to.prefix_len()),
                via: route.via,
                // A link-local router is on the link by its nature.
                onlink: route.via.is_some_and(|via| {
                    let local = matches!(via, IpAddr::V6(v6) if v6.is_unicast_link_local());
                    !local && !nets.iter().any(|net| net.contains(&via))
                }),
            });
            wanted.namespace = veth.netns.clone();
            wanted.name = veth.ifname.clone();
            wanted.routes = routes.collect();
            wanted.addresses = addresses;
        }
        NicKind::VmTap(tap) => {
            wanted.machine = Some(Machine {
                uid: tap.uid,
                gid: tap.gid,
                multi_queue: tap.multi_queue,
            });
        }
        NicKind::VhostUser | NicKind::Tap | NicKind::Bench(_) => {}
    }
    wanted
}

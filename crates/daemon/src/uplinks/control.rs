//! Which interfaces are uplinks by name: said at the start, by requests, by the store. Until there
//! is one, or an address of ours towards other hosts, nothing of it runs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use control::InterfaceStatus;
use dataplane::QueueId;
use netlink::Mirror;
use sys::handed::{Handed, Items, name_of_kind};
use tokio::runtime::Handle;
use tokio::sync::watch;
use uplink::{DpdkUplink, Fact, Options, UplinkSettings};
use xdp::Interfaces;

use super::{Broken, Uplinks};
use crate::arrivals::Arrivals;
use crate::held::Held;
use crate::kernel::Kernel;
use crate::lock;
use crate::start_gate::StartGate;

/// For the interfaces that are there at the start to be joined.
const JOINED_WITHIN: Duration = Duration::from_secs(1);

/// What uplinks are made with.
pub struct Setup {
    /// Those of the start.
    pub settings: UplinkSettings,
    pub options: Options,
    /// The device that DPDK drives, if there is one: its name is among the interfaces.
    pub dpdk: Option<Arc<DpdkUplink>>,
    pub interfaces: Arc<Mutex<Interfaces>>,
    pub arrivals: Arc<Arrivals>,
    pub kernel: Arc<Kernel>,
    /// Where ports wait for the workers while the daemon starts.
    pub gate: Arc<StartGate>,
    /// The daemon was told to lead nowhere, by the device that it was given.
    pub alone: bool,
    /// What another daemon hands over, whose place this one is to take.
    pub handed: Items,
    /// That daemon goes on should this one not take over.
    pub apart: Arc<AtomicBool>,
    /// Who has sockets outlive this daemon, if anybody does.
    pub held: Option<Arc<Held>>,
    /// What a daemon that has ended had held is taken up.
    pub takes_left: bool,
}

/// The uplinks of a host, whether there are any or not.
pub struct Control {
    setup: Setup,
    /// Until they begin: what they begin with.
    before: Mutex<Option<Before>>,
    /// What sockets are held as, if they are.
    kind: Option<String>,
    uplinks: OnceLock<Uplinks>,
    begun: watch::Sender<bool>,
    named: Mutex<Named>,
}

/// What uplinks begin with.
struct Before {
    broken: Broken,
    /// Of a daemon that gives way.
    handed: Items,
    /// Of one that has ended.
    left: Items,
}

/// What is changed together.
#[derive(Default)]
struct Named {
    /// In the order they were named.
    interfaces: Vec<String>,
    /// Those that no other daemon of this host may have meanwhile.
    held: BTreeMap<String, Option<lock::Uplink>>,
}

impl Named {
    /// Two daemons on one uplink would take each other's frames. Interfaces that are not there yet
    /// are anybody's.
    fn hold(&mut self, facts: &[Fact]) -> Result<(), String> {
        let there = facts.iter().filter(|fact| fact.ifindex != 0 && !fact.tap);
        for Fact { interface, .. } in there {
            if !self.held.contains_key(interface) {
                let taken = lock::Uplink::take(interface)?;
                self.held.insert(interface.clone(), taken);
            }
        }
        Ok(())
    }
}

/// What kind such a name is of among what is handed over.
const LOCK: &str = "lock";

fn lock_of(interface: &str) -> String {
    format!("{LOCK} {interface}")
}

impl Control {
    /// Joins what is named, or has our address; in vain where none is there yet: then they are
    /// joined when they come.
    ///
    /// # Errors
    /// A sentence: another daemon has one of them, or the kernel's tables cannot be read.
    pub async fn start(mut setup: Setup, broken: Broken) -> Result<Control, String> {
        let handed = std::mem::take(&mut setup.handed);
        let kind = setup.held.as_ref().map(|_| held_kind()).transpose();
        let kind = kind.unwrap_or_else(|e| {
            tracing::error!("sockets of uplinks go with this daemon: {e}");
            None
        });
        let left = match (&setup.held, &kind) {
            (Some(held), Some(kind)) if setup.takes_left => held.left_items(kind),
            _ => Items::new(),
        };
        let (locks, handed): (Items, Items) = handed
            .into_iter()
            .partition(|(name, _)| name.starts_with(&lock_of("")));
        // Before any is joined, which may take its time.
        let mut held = BTreeMap::new();
        for (name, handed) in locks {
            if let (Some(interface), Some([socket])) = (name_of_kind(LOCK, &name), handed.take()) {
                let lock = lock::Uplink::handed(interface, socket)?;
                held.insert(interface.to_owned(), Some(lock));
            }
        }
        let settings = &setup.settings;
        let wanted = !settings.addresses.is_empty() || !settings.interfaces.is_empty();
        let named = Named {
            interfaces: settings.interfaces.clone(),
            held,
        };
        let control = Control {
            before: Mutex::new(Some(Before {
                broken,
                handed,
                left,
            })),
            kind,
            uplinks: OnceLock::new(),
            begun: watch::Sender::new(false),
            named: Mutex::new(named),
            setup,
        };
        if wanted && !control.setup.alone {
            let mut facts = control.begin(control.setup.kernel.mirror().await?).watch();
            let there = facts.wait_for(|facts| !facts.is_empty());
            let _ = tokio::time::timeout(JOINED_WITHIN, there).await;
            let facts = facts.borrow().clone();
            let held = control.named().hold(&facts);
            if let Err(why) = held {
                control.stop();
                return Err(why);
            }
        }
        Ok(control)
    }

    /// The uplinks, if there ever were any.
    pub fn running(&self) -> Option<&Uplinks> {
        self.uplinks.get()
    }

    /// Returns when there are any.
    pub async fn begun(&self) {
        // The sender is ours.
        let _ = self.begun.subscribe().wait_for(|begun| *begun).await;
    }

    /// Takes those for this daemon alone that come after the start, or came too late for it. Where
    /// another daemon has one, that is said: both are joined by it by then.
    pub async fn hold_those_that_come(self: Arc<Self>) {
        self.begun().await;
        let Some(mut facts) = self.running().map(Uplinks::watch) else {
            return;
        };
        let mut said = Ok(());
        loop {
            facts.mark_unchanged();
            let control = self.clone();
            let hold = move || {
                let mut named = control.named();
                // As they are now: one that was left meanwhile is not held again.
                let there = control.running().map(Uplinks::facts);
                there.map_or(Ok(()), |there| named.hold(&there))
            };
            if let Ok(held) = tokio::task::spawn_blocking(hold).await
                && held != said
            {
                if let Err(why) = &held {
                    tracing::error!("{why}");
                }
                said = held;
            }
            if facts.changed().await.is_err() {
                return;
            }
        }
    }

    /// Joins this host by an interface, now or when it comes. To be called where the kernel may be
    /// waited for.
    ///
    /// # Errors
    /// A sentence: another daemon has it, or this one was told to lead nowhere.
    pub fn add(&self, name: &str) -> Result<InterfaceStatus, String> {
        if self.setup.alone {
            return Err(format!(
                "interface {name}: this daemon was started with a device that leads nowhere \
                 (--dpdk-args), and joins no other host"
            ));
        }
        let mut named = self.named();
        let uplinks = match self.running() {
            Some(uplinks) => uplinks,
            None => self.begin(Handle::current().block_on(self.setup.kernel.mirror())?),
        };
        if !named.interfaces.iter().any(|known| known == name) {
            named.interfaces.push(name.to_owned());
            let facts = uplinks.name(&named.interfaces);
            if let Err(why) = named.hold(&facts) {
                self.take_out(&mut named, name);
                return Err(why);
            }
        }
        Ok(status(uplinks, name))
    }

    /// Leaves an interface to the kernel, unless it has an address of ours; one that is not named
    /// is left already.
    pub fn delete(&self, name: &str) {
        self.take_out(&mut self.named(), name);
    }

    /// How an interface is that is named.
    pub fn interface(&self, name: &str) -> Option<InterfaceStatus> {
        let is_named = self.named().interfaces.iter().any(|known| known == name);
        is_named
            .then(|| self.running())
            .flatten()
            .map(|uplinks| status(uplinks, name))
    }

    /// The start is over: what a daemon before has left of interfaces that are none of ours goes.
    pub fn forget_left(&self) {
        if let Some(uplinks) = self.running() {
            uplinks.forget_left();
        } else if let (Some(held), Some(kind)) = (&self.setup.held, &self.kind) {
            let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            before.iter_mut().for_each(|before| before.left.clear());
            held.release_items(kind);
        }
    }

    /// All interfaces are the kernel's alone again. Waits for the workers: not for a runtime's
    /// thread.
    pub fn stop(&self) {
        if let Some(uplinks) = self.running() {
            uplinks.stop();
        }
    }

    /// Stands still, and gives what the next daemon goes on by. The error is a sentence.
    pub fn hand_over(&self) -> Result<Items, String> {
        let Some(uplinks) = self.running() else {
            return Ok(Items::new());
        };
        let failed = |e: std::io::Error| format!("uplinks cannot be handed over: {e}");
        let mut items = uplinks.hand_over().map_err(failed)?;
        for (name, held) in &self.named().held {
            if let Some(held) = held {
                let fds = vec![held.hand_over().map_err(failed)?];
                let note = Vec::new();
                items.insert(lock_of(name), Handed { note, fds });
            }
        }
        Ok(items)
    }

    /// That daemon does not.
    pub fn go_on(&self) {
        if let Some(uplinks) = self.running() {
            uplinks.go_on();
        }
    }

    /// The workers' queues of uplinks.
    pub fn queues(&self) -> Vec<QueueId> {
        self.running().map(Uplinks::queues).unwrap_or_default()
    }

    fn take_out(&self, named: &mut Named, name: &str) {
        let before = named.interfaces.len();
        named.interfaces.retain(|known| known != name);
        if let (Some(uplinks), true) = (self.running(), named.interfaces.len() < before) {
            let facts = uplinks.name(&named.interfaces);
            let is_there = |name: &str| facts.iter().any(|fact| fact.interface == name);
            named.held.retain(|name, _| is_there(name));
        }
    }

    fn begin(&self, kernel: Arc<Mirror>) -> &Uplinks {
        let uplinks = self.uplinks.get_or_init(|| {
            let before = self.before.lock();
            let before = before.unwrap_or_else(PoisonError::into_inner).take();
            let Before {
                broken,
                handed,
                left,
            } = before.unwrap_or_else(|| Before {
                broken: super::breaks().1,
                handed: Items::new(),
                left: Items::new(),
            });
            let Setup {
                settings,
                options,
                interfaces,
                arrivals,
                gate,
                dpdk,
                apart,
                held,
                ..
            } = &self.setup;
            let held = held.clone().zip(self.kind.clone());
            Uplinks::start(
                settings.clone(),
                *options,
                interfaces.clone(),
                gate.clone(),
                kernel,
                broken,
                |engine| {
                    let engine = engine.with_dpdk(dpdk.clone());
                    let engine = engine.with_arrivals(arrivals.clone());
                    let engine = engine.with_handed(handed, apart.clone());
                    let Some((held, kind)) = held else {
                        return engine;
                    };
                    let hold = move |name: &str, socket| match socket {
                        Some(socket) => held.hold_item(&kind, name, &socket),
                        None => held.release_item(&kind, name),
                    };
                    engine.hold_sockets(hold).with_left(left)
                },
            )
        });
        self.begun.send_replace(true);
        uplinks
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        // Each step leaves it whole.
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the names begin with that sockets of uplinks are held by.
const HELD: &str = "uplink@";

/// Whether it is an uplink's socket that is held by this name, and so memory that others have a
/// hand in.
pub fn is_of_others(name: &str) -> bool {
    let held = name.strip_prefix(HELD);
    let item = held.and_then(|held| Some(held.split_once(' ')?.1));
    item.is_some_and(|item| !uplink::is_tap_name(item))
}

/// What kind they are held as: they are of interfaces of this network namespace, which have other
/// numbers elsewhere.
fn held_kind() -> std::io::Result<String> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?;
    Ok(format!("{HELD}{}", namespace.ino()))
}

fn status(uplinks: &Uplinks, name: &str) -> InterfaceStatus {
    let why = match uplinks.of_interface(name) {
        None => format!("there is no interface '{name}'"),
        Some(fact) if fact.joined => String::new(),
        Some(fact) => fact.why,
    };
    InterfaceStatus {
        name: name.to_owned(),
        mode: None,
        why,
        asked: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_device_is_no_memory_of_others() {
        for (name, is) in [
            ("uplink@4026531840 queue 3 0", true),
            ("uplink@4026531840 packet 3", true),
            ("uplink@4026531840 tap butterfly0", false),
            ("tap:uplink@1 queue", false),
            ("vhost:uplink@1 queue", false),
        ] {
            assert_eq!(is_of_others(name), is, "{name}");
        }
    }
}

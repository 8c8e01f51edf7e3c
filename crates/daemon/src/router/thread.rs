//! The router's thread: keeps the router in step with the kernel, its interfaces as they are
//! wanted, and answers commands between two changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::InterfaceStatus;
use control::model::Feature;
use netlink::{Mirror, Snapshot};
use router::acl::List;
use router::messages::Refusal;
use router::{AclReport, Change, Options, Report, Router, Service};
use tokio::sync::{mpsc, oneshot};
use xdp::{Interfaces, Mode};

use super::counting::Counting;
use super::event::{EventKind, Events};
use crate::states::InterfaceStates;
use crate::tracked_interfaces::{Driver, Member, TrackedInterfaces};

/// The thread's name.
pub const NAME: &str = "router";
/// Changes of the kernel's that are told one by one; of more at once the numbers are.
const TOLD: usize = 64;

/// What can be asked of the thread.
pub enum Command {
    Add {
        name: String,
        mode: Option<Mode>,
        mirror: Arc<Mirror>,
        answer: oneshot::Sender<Result<Member, Refusal>>,
    },
    Delete {
        name: String,
        answer: oneshot::Sender<Result<bool, Refusal>>,
    },
    Restore {
        name: String,
        before: Option<InterfaceStatus>,
        mirror: Arc<Mirror>,
        answer: oneshot::Sender<Result<(), Refusal>>,
    },
    SetAcl {
        list: Option<List>,
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// See [`RouterThread::settle`].
    Settle {
        answer: oneshot::Sender<()>,
    },
    /// See [`TrackedInterfaces::stand_still`].
    StandStill {
        answer: oneshot::Sender<()>,
    },
    /// See [`RouterThread::go_on`].
    GoOn {
        answer: oneshot::Sender<()>,
    },
    Look(Box<dyn FnOnce(&RouterThread) + Send>),
    Stop,
}

pub struct RouterThread {
    options: Options,
    /// What packets are judged by, besides nftables' rules.
    acl: Option<List>,
    attached: Arc<Mutex<Interfaces>>,
    tracked: TrackedInterfaces,
    /// Where changes are told.
    states: InterfaceStates,
    counting: Counting,
    /// While there are members.
    running: Option<Service>,
    notes: Vec<String>,
    pub events: Events,
}

impl RouterThread {
    /// Without interfaces.
    pub fn new(
        options: Options,
        acl: Option<List>,
        attached: Arc<Mutex<Interfaces>>,
        states: InterfaceStates,
        counting: Counting,
    ) -> RouterThread {
        RouterThread {
            states,
            counting,
            options,
            acl,
            attached,
            tracked: TrackedInterfaces::default(),
            running: None,
            notes: Vec::new(),
            events: Events::default(),
        }
    }

    /// Until it is told to stop.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    // The start was refused: what is held is for the next one.
                    None => return,
                    Some(Command::Stop) => break,
                    Some(command) => self.execute(command).await,
                },
                change = next(&mut self.running) => self.take(change).await,
            }
        }
        if let Some(service) = &mut self.running {
            service.router.leave_slots();
        }
        self.give_up();
    }

    /// Its programs are in force: lets go of what a daemon before has left, and of all where there
    /// is no router.
    fn settle(&mut self) {
        let running = self.running.as_mut();
        self.counting
            .settle(running.map(|service| &mut service.router));
    }

    /// Its interfaces, in the order they were given.
    pub fn members(&self) -> Vec<Member> {
        self.tracked.members().to_vec()
    }

    /// One of them.
    pub fn status(&self, name: &str) -> Option<InterfaceStatus> {
        self.tracked.status(name)
    }

    /// The router, if it has an interface.
    pub fn router(&self) -> Option<&Router> {
        self.running.as_ref().map(|service| &service.router)
    }

    /// All that is counted, and what is in the way.
    pub fn report(&self) -> Result<Report, Refusal> {
        match &self.running {
            None => Ok(Report::default()),
            Some(service) => service.router.report().map_err(unavailable),
        }
    }

    /// The access list in use, and what it has counted.
    pub fn acl_report(&self) -> Option<AclReport> {
        self.router()?.acl_report()
    }

    /// Why something is left to the kernel.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    async fn execute(&mut self, command: Command) {
        // Whoever asked may have gone: what is done is done.
        match command {
            Command::Add {
                name,
                mode,
                mirror,
                answer,
            } => {
                let _ = answer.send(self.add(name, mode, mirror).await);
            }
            Command::Delete { name, answer } => {
                let _ = answer.send(Ok(self.delete(&name)));
            }
            Command::Restore {
                name,
                before,
                mirror,
                answer,
            } => {
                let _ = answer.send(self.restore(name, before, mirror).await);
            }
            Command::SetAcl { list, answer } => {
                let _ = answer.send(self.set_acl(list));
            }
            Command::Settle { answer } => {
                self.settle();
                let _ = answer.send(());
            }
            Command::StandStill { answer } => {
                self.tracked.stand_still();
                let _ = answer.send(());
            }
            Command::GoOn { answer } => {
                self.go_on().await;
                let _ = answer.send(());
            }
            Command::Look(look) => look(self),
            Command::Stop => {}
        }
    }

    async fn add(
        &mut self,
        name: String,
        mode: Option<Mode>,
        mirror: Arc<Mirror>,
    ) -> Result<Member, Refusal> {
        let service = self.service(mirror).await?;
        let mut driver = self.driver(service);
        let wanted = self.tracked.want(&name, mode, &mut driver).await;
        if !self.tracked.members().is_empty() {
            self.running = Some(driver.service);
        }
        let (member, new) = wanted.map_err(Refusal::Unavailable)?;
        if new {
            self.events.send(EventKind::Interface(member.clone()));
            self.send_notes();
        }
        Ok(member)
    }

    fn delete(&mut self, name: &str) -> bool {
        let given_back = match self.running.take() {
            Some(service) => {
                let mut driver = self.driver(service);
                let given_back = self.tracked.give_back(name, &mut driver);
                self.running = (!self.tracked.members().is_empty()).then_some(driver.service);
                given_back
            }
            // The router has ended: nothing is attached.
            None => self.tracked.give_back(name, &mut NoRouter),
        };
        if given_back {
            if self.running.is_none() {
                self.settle();
            }
            self.events.send(EventKind::Deleted(name.to_owned()));
            self.send_notes();
        }
        given_back
    }

    async fn restore(
        &mut self,
        name: String,
        before: Option<InterfaceStatus>,
        mirror: Arc<Mirror>,
    ) -> Result<(), Refusal> {
        let service = self.service(mirror).await?;
        let mut driver = self.driver(service);
        let restored = self.tracked.restore(&name, before, &mut driver).await;
        self.running = (!self.tracked.members().is_empty()).then_some(driver.service);
        self.events.send(match self.tracked.member(&name) {
            Some(member) => EventKind::Interface(member.clone()),
            None => EventKind::Deleted(name),
        });
        self.send_notes();
        restored.map_err(Refusal::Unavailable)
    }

    fn set_acl(&mut self, list: Option<List>) -> Result<(), String> {
        if let Some(service) = &mut self.running {
            let set = service.router.set_acl(list.clone());
            set.map_err(|error| error.to_string())?;
        }
        self.acl = list;
        self.send_notes();
        Ok(())
    }

    /// The router, taken out; a new one where none runs.
    async fn service(&mut self, mirror: Arc<Mirror>) -> Result<Service, Refusal> {
        match self.running.take() {
            Some(service) => Ok(service),
            None => {
                let router = self.counting.router(&self.options).map_err(unavailable)?;
                let mut service = Service::with(mirror, router).await.map_err(unavailable)?;
                service.watch().map_err(unavailable)?;
                let held = self.counting.hold(&mut service.router);
                held.map_err(unavailable)?;
                // Before the first packet.
                let set = service.router.set_acl(self.acl.clone());
                set.map_err(unavailable)?;
                Ok(service)
            }
        }
    }

    fn driver(&self, service: Service) -> RouterDriver {
        RouterDriver {
            service,
            attached: self.attached.clone(),
        }
    }

    /// What fails ends nothing: it is said once, and tried again until it works.
    async fn take(&mut self, change: Change) {
        let Some(mut service) = self.running.take() else {
            return;
        };
        let before = service.router.snapshot().clone();
        let changed = service.take(change).await;
        if self.follow(service).await || changed {
            self.send_changes(&before);
            self.send_notes();
        }
    }

    /// Interfaces are this process's to take: those that came or went meanwhile are followed.
    async fn go_on(&mut self) {
        self.tracked.go_on();
        if let Some(mut service) = self.running.take() {
            service.look_again();
            self.follow(service).await;
            self.send_notes();
        }
    }

    /// The end of a turn: interfaces are followed, unless they are another process's to take.
    /// Whether the router is behind the kernel now and was not, or the other way round.
    async fn follow(&mut self, mut service: Service) -> bool {
        let was_behind = service.router.behind().is_some();
        let mut links = false;
        if self.tracked.is_still() {
            service.follow_later();
        } else {
            links = service.follow(&mut lock(&self.attached));
        }
        let behind = service.router.behind();
        let told = behind.is_some() != was_behind;
        if let Some(why) = behind.filter(|_| told) {
            tracing::error!("the router is behind the kernel, and tries again: {why}");
        }
        let mut driver = self.driver(service);
        if links || told {
            let members = self.tracked.follow(&mut driver).await;
            self.send_members(members);
        }
        self.running = Some(driver.service);
        told
    }

    /// Interfaces that are other than before.
    fn send_members(&mut self, members: Vec<Member>) {
        for member in members {
            let whose = (Feature::Router, member.name.clone());
            self.states.leave(whose, member.status());
            self.events.send(EventKind::Interface(member));
        }
    }

    /// What the kernel's tables have now that they had not before.
    fn send_changes(&mut self, before: &Snapshot) {
        let Some(service) = &self.running else {
            return;
        };
        if !self.events.are_watched() {
            return;
        }
        let difference = service.router.difference(before, TOLD);
        let kinds = super::event::of(difference, service.router.snapshot());
        kinds.into_iter().for_each(|kind| self.events.send(kind));
    }

    fn send_notes(&mut self) {
        let now = self.report().map(|report| report.notes).unwrap_or_default();
        let before = std::mem::replace(&mut self.notes, now);
        let gone = before.iter().filter(|note| !self.notes.contains(note));
        let come = self.notes.iter().filter(|note| !before.contains(note));
        let gone = gone.cloned().map(EventKind::NoteRemoved);
        let come = come.cloned().map(EventKind::NoteAdded);
        let kinds: Vec<EventKind> = gone.chain(come).collect();
        kinds.into_iter().for_each(|kind| self.events.send(kind));
    }

    /// The kernel has its interfaces back; who asks is told so.
    fn give_up(&mut self) {
        let mut driver = self.running.take().map(|service| self.driver(service));
        let leave = |name: &str| driver.as_mut().map_or((), |driver| driver.leave(name));
        self.tracked
            .give_up("the router has ended, see the daemon's log", leave);
    }
}

/// The router, and the programs that it shares interfaces with.
struct RouterDriver {
    service: Service,
    attached: Arc<Mutex<Interfaces>>,
}

impl Driver for RouterDriver {
    fn find(&self, name: &str) -> Option<u32> {
        let snapshot = self.service.snapshot();
        snapshot.link_named(name).map(|link| link.index)
    }

    async fn take(&mut self, name: &str, mode: Option<Mode>) -> Result<Mode, String> {
        let taken = self
            .service
            .take_over(name, &mut lock(&self.attached), mode);
        taken.map_err(|error| error.to_string())?;
        if let Err(error) = self.service.read_devices().await {
            self.leave(name);
            return Err(error.to_string());
        }
        let router = &self.service.router;
        let device = router.interface_named(name).map(|own| own.device);
        let attached = device.and_then(|device| router.mode_of(device));
        attached.ok_or_else(|| format!("interface {name}: it has just gone"))
    }

    /// The router has followed before.
    fn keep(&mut self, name: &str) -> Result<(), String> {
        let router = &self.service.router;
        let behind = || router.behind().map(str::to_owned);
        router.trouble_of(name).or_else(behind).map_or(Ok(()), Err)
    }

    fn leave(&mut self, name: &str) {
        if let Err(error) = self.service.router.remove(name, &mut lock(&self.attached)) {
            tracing::warn!("interface {name}: {error}");
        }
    }
}

/// Where no router runs, there is nothing to do.
struct NoRouter;

impl Driver for NoRouter {
    fn find(&self, _: &str) -> Option<u32> {
        None
    }

    async fn take(&mut self, name: &str, _: Option<Mode>) -> Result<Mode, String> {
        Err(format!("interface {name}: the router does not run"))
    }

    fn leave(&mut self, _: &str) {}
}

fn lock(attached: &Mutex<Interfaces>) -> MutexGuard<'_, Interfaces> {
    // Each operation on it is a whole: what a panicking thread left is usable.
    attached.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next change of what runs; for ever if nothing does.
async fn next(running: &mut Option<Service>) -> Change {
    match running {
        Some(service) => service.next().await,
        None => std::future::pending().await,
    }
}

fn unavailable(error: router::Error) -> Refusal {
    Refusal::Unavailable(error.to_string())
}

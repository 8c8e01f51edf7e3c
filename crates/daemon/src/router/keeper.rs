//! The router's thread: keeps the router in step with the kernel, its interfaces as they are wanted, and answers
//! commands between two changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netlink::{Kinds, Mirror, Snapshot};
use router::{Change, Options, Report, Router, Service};
use tokio::sync::{mpsc, oneshot};
use xdp::{Interfaces, Mode};

use super::event::{EventKind, Events};
use super::refusal::Refusal;

/// The thread's name.
pub const NAME: &str = "router";
/// Changes of the kernel's that are told one by one; of more at once the numbers are.
const TOLD: usize = 64;

/// An interface that was given to the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// How it is attached; `None`: it is not, at the moment.
    pub mode: Option<Mode>,
    /// Why it is not attached.
    pub why: String,
    /// As it was asked for.
    pub asked: Option<Mode>,
}

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
    Look(Box<dyn FnOnce(&Keeper) + Send>),
    Stop,
}

pub struct Keeper {
    options: Options,
    attached: Arc<Mutex<Interfaces>>,
    members: Vec<Member>,
    /// While there are members.
    running: Option<Service>,
    notes: Vec<String>,
    pub events: Events,
}

impl Keeper {
    /// Without interfaces.
    pub fn new(options: Options, attached: Arc<Mutex<Interfaces>>) -> Keeper {
        Keeper {
            options,
            attached,
            members: Vec::new(),
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
                    None | Some(Command::Stop) => break,
                    Some(command) => self.obey(command).await,
                },
                change = next(&mut self.running) => self.take(change).await,
            }
        }
        self.give_up();
    }

    /// Its interfaces, in the order they were given.
    pub fn members(&self) -> Vec<Member> {
        self.members.clone()
    }

    /// The router, if it has an interface.
    pub fn router(&self) -> Option<&Router> {
        self.running.as_ref().map(|service| &service.router)
    }

    /// All that is counted, and what is in the way.
    pub fn report(&self) -> Result<Report, Refusal> {
        match &self.running {
            None => Ok(Report::default()),
            Some(service) => service.router.report(&self.lock()).map_err(unavailable),
        }
    }

    /// Why something is left to the kernel.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    async fn obey(&mut self, command: Command) {
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
        let known = self.members.iter().position(|member| member.name == name);
        if let Some(member) = known.map(|at| &self.members[at])
            && member.mode.is_some()
            && mode.is_none_or(|mode| Some(mode) == member.mode)
        {
            return Ok(member.clone());
        }
        let mut service = match self.running.take() {
            Some(service) => service,
            None => Service::over(mirror, &self.options).await.map_err(unavailable)?,
        };
        // The program is attached anew to change its mode; refused, it is put back as it was.
        let old = known.and_then(|at| self.members[at].mode);
        if known.is_some() {
            self.release(&mut service, &name);
        }
        let mut added = self.take_over(&mut service, &name, mode).await;
        if let (Err(why), Some(old)) = (&added, old) {
            let why = why.clone();
            if self.take_over(&mut service, &name, Some(old)).await.is_ok() {
                added = Err(why);
            }
        }
        if added.is_ok() || !self.members.is_empty() {
            self.running = Some(service);
        }
        let member = Member {
            mode: Some(added?),
            why: String::new(),
            asked: mode,
            name,
        };
        match known {
            Some(at) => self.members[at] = member.clone(),
            None => self.members.push(member.clone()),
        }
        self.events.send(EventKind::Interface(member.clone()));
        self.tell_notes();
        Ok(member)
    }

    fn delete(&mut self, name: &str) -> bool {
        let Some(at) = self.members.iter().position(|member| member.name == name) else {
            return false;
        };
        if let Some(mut service) = self.running.take() {
            self.release(&mut service, name);
            self.running = (self.members.len() > 1).then_some(service);
        }
        self.members.remove(at);
        self.events.send(EventKind::Deleted(name.to_owned()));
        self.tell_notes();
        true
    }

    /// Lets the router have an interface; the mode in force.
    async fn take_over(
        &self,
        service: &mut Service,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<Mode, Refusal> {
        service
            .take_over(name, &mut self.lock(), mode)
            .map_err(unavailable)?;
        if let Err(error) = service.read_devices().await {
            self.release(service, name);
            return Err(unavailable(error));
        }
        let device = service.router.interface_named(name).map(|own| own.device);
        let attached = device.and_then(|device| self.lock().mode(device));
        attached.ok_or_else(|| Refusal::Unavailable(format!("interface {name}: it has just gone")))
    }

    /// Gives an interface back that the router may have.
    fn release(&self, service: &mut Service, name: &str) {
        if let Err(error) = service.router.remove(name, &mut self.lock()) {
            tracing::warn!("interface {name}: {error}");
        }
    }

    async fn take(&mut self, change: Result<Change, router::Error>) {
        if let Err(error) = self.try_take(change).await {
            tracing::error!("the router ends, and the kernel forwards: {error}");
            self.give_up();
        }
    }

    async fn try_take(&mut self, change: Result<Change, router::Error>) -> Result<(), router::Error> {
        let Some(mut service) = self.running.take() else {
            return Ok(());
        };
        let before = service.router.snapshot().clone();
        let links = matches!(&change, Ok(Change::Kernel(_, kinds)) if kinds.any(Kinds::LINKS));
        let changed = match change {
            Ok(change) => service.take(change).await,
            Err(error) => Err(error),
        };
        if links {
            self.follow_links(&mut service).await;
        }
        self.running = Some(service);
        if changed? {
            self.tell_changes(&before);
            self.tell_notes();
        }
        Ok(())
    }

    /// Interfaces go and come back under their names.
    async fn follow_links(&mut self, service: &mut Service) {
        for at in 0..self.members.len() {
            let Member {
                name, asked, mode, ..
            } = self.members[at].clone();
            let link = service.router.snapshot().link_named(&name).map(|link| link.index);
            let own = service.router.interface_named(&name).map(|own| own.ifindex);
            if own.is_some() && own == link {
                continue;
            }
            if own.is_some() {
                self.release(service, &name);
            }
            let taken = match link {
                Some(_) => self.take_over(service, &name, asked).await,
                None => Err(Refusal::Unavailable("it has gone".into())),
            };
            let member = Member {
                name,
                asked,
                mode: taken.as_ref().ok().copied(),
                why: taken.err().map_or_else(String::new, |why| why.to_string()),
            };
            if mode.is_some() || member != self.members[at] {
                self.members[at] = member.clone();
                self.events.send(EventKind::Interface(member));
            }
        }
    }

    /// What the kernel's tables have now that they had not before.
    fn tell_changes(&mut self, before: &Snapshot) {
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

    fn tell_notes(&mut self) {
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
        if let Some(mut service) = self.running.take() {
            for member in &self.members {
                self.release(&mut service, &member.name);
            }
        }
        for member in &mut self.members {
            member.mode = None;
            member.why = "the router has ended, see the daemon's log".into();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Interfaces> {
        // Each operation on it is a whole: what a panicking thread left is usable.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next change of what runs; for ever if nothing does.
async fn next(running: &mut Option<Service>) -> Result<Change, router::Error> {
    match running {
        Some(service) => service.next().await,
        None => std::future::pending().await,
    }
}

fn unavailable(error: router::Error) -> Refusal {
    Refusal::Unavailable(error.to_string())
}

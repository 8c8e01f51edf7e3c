//! The face of the router's thread: what can be asked of it, from anywhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use control::InterfaceStatus;
use netlink::Mirror;
use router::Options;
use router::acl::List;
use router::messages::Refusal;
use tokio::sync::{mpsc, oneshot};
use xdp::{Interfaces, Mode};

use super::counting::Counting;
use super::thread::{Command, NAME, RouterThread};
use crate::held::Held;
use crate::kernel::Kernel;
use crate::states::InterfaceStates;
use crate::tracked_interfaces::Member;

/// Commands that wait; who has more waits with them.
const QUEUE: usize = 16;

/// What a status says of the router.
#[derive(Default)]
pub struct Summary {
    /// All interfaces, in one line.
    pub line: String,
    /// Those that are wanted and not attached, a sentence each.
    pub warnings: Vec<String>,
}

/// One for the process.
pub struct Control {
    commands: mpsc::Sender<Command>,
    kernel: Arc<Kernel>,
    attached: Arc<Mutex<Interfaces>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Starts the thread; the router has no interface yet, and will go by `acl`. What becomes of
    /// its interfaces is left in `states`, and what they count is held in `held`. The error is a
    /// sentence.
    pub fn start(
        options: Options,
        acl: Option<List>,
        attached: Arc<Mutex<Interfaces>>,
        kernel: Arc<Kernel>,
        states: InterfaceStates,
        held: Option<Arc<Held>>,
    ) -> Result<Control, String> {
        let failed = |e: std::io::Error| format!("the router's thread cannot be started: {e}");
        let (commands, queue) = mpsc::channel(QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let counting = Counting::new(held);
        let router = RouterThread::new(options, acl, attached.clone(), states, counting);
        let thread = std::thread::Builder::new().name(NAME.into());
        let thread = thread
            .spawn(move || runtime.block_on(router.run(queue)))
            .map_err(failed)?;
        Ok(Control {
            commands,
            kernel,
            attached,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Takes an interface over.
    pub async fn add(&self, name: String, mode: Option<Mode>) -> Result<Member, Refusal> {
        let mirror = self.mirror().await?;
        self.ask(|answer| Command::Add {
            name,
            mode,
            mirror,
            answer,
        })
        .await?
    }

    /// Gives an interface back; whether it was one.
    pub async fn delete(&self, name: String) -> Result<bool, Refusal> {
        self.ask(|answer| Command::Delete { name, answer }).await?
    }

    /// Makes an interface what it was when that was said of it.
    pub async fn restore(
        &self,
        name: String,
        before: Option<InterfaceStatus>,
    ) -> Result<(), Refusal> {
        let mirror = self.mirror().await?;
        self.ask(|answer| Command::Restore {
            name,
            before,
            mirror,
            answer,
        })
        .await?
    }

    /// Has packets judged by this access list from now on, or by none. The error is a sentence, and
    /// nothing has changed then. Waits: not for a runtime's thread.
    pub fn set_acl(&self, list: Option<List>) -> Result<(), String> {
        let gone = || "the router has stopped with the daemon".to_owned();
        let (answer, answered) = oneshot::channel();
        let command = Command::SetAcl { list, answer };
        self.commands.blocking_send(command).map_err(|_| gone())?;
        answered.blocking_recv().map_err(|_| gone())?
    }

    /// Its programs are in force: lets go of what a daemon before has left.
    pub async fn settle(&self) -> Result<(), Refusal> {
        self.ask(|answer| Command::Settle { answer }).await
    }

    /// From now on interfaces that come are another process's to take. Those that go, too, are
    /// followed only when this one [goes on](Self::go_on).
    pub async fn stand_still(&self) -> Result<(), Refusal> {
        self.ask(|answer| Command::StandStill { answer }).await
    }

    /// They are this process's to take: those that came or went meanwhile are followed at once.
    pub async fn go_on(&self) -> Result<(), Refusal> {
        self.ask(|answer| Command::GoOn { answer }).await
    }

    /// Looks at the router between two changes.
    pub async fn look<T: Send + 'static>(
        &self,
        at: impl FnOnce(&RouterThread) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let looking = |answer: oneshot::Sender<T>| -> Command {
            Command::Look(Box::new(move |router| {
                // Who asked may have gone.
                let _ = answer.send(at(router));
            }))
        };
        self.ask(looking).await
    }

    /// What a status says of it.
    pub async fn summary(&self) -> Summary {
        let members = self.look(|router| router.members()).await;
        let members = members.unwrap_or_default();
        let lacking = members.iter().filter(|member| member.mode.is_none());
        let warnings = lacking
            .map(|Member { name, why, .. }| format!("the router is not attached to {name}: {why}"));
        let warnings = warnings.collect();
        let describe = |member: Member| match member.mode {
            Some(mode) if member.why.is_empty() => format!("{}: {}", member.name, mode.words()),
            Some(mode) => format!("{}: {} ({})", member.name, mode.words(), member.why),
            None => format!("{}: not attached ({})", member.name, member.why),
        };
        let lines: Vec<String> = members.into_iter().map(describe).collect();
        Summary {
            line: lines.join("; "),
            warnings,
        }
    }

    /// What the kernel knows.
    pub async fn mirror(&self) -> Result<Arc<Mirror>, Refusal> {
        self.kernel.mirror().await.map_err(Refusal::Unavailable)
    }

    /// The interfaces that programs of ours run on.
    pub fn attached(&self) -> &Mutex<Interfaces> {
        &self.attached
    }

    /// All interfaces are the kernel's again. Waits: not for a runtime's thread.
    pub fn stop(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Fails if the thread has ended already.
        let _ = self.commands.blocking_send(Command::Stop);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the router's thread panicked");
        }
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Refusal> {
        let gone = || Refusal::Unavailable("the router has stopped with the daemon".into());
        let (answer, answered) = oneshot::channel();
        self.commands
            .send(command(answer))
            .await
            .map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

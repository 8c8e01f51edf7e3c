//! Announcing addresses by BGP: which of them, and by which metric. `crates/bgp` speaks, and
//! [`sessions`] looks whether anybody hears it.

mod sessions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgp::{Pipes, Routes, Settings, Speaker};
use control::{Controller, Event, Part};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::app::App;

pub use sessions::Sessions;

/// Before a speaker that has ended is started again, and before what failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The speaker, if it runs. Who has the lock alone tells it something, starts another one, or hands
/// it to the next daemon.
pub type Shared = Arc<Mutex<Option<Speaker>>>;

/// An announcer that runs beside the rest of the daemon.
pub struct Announcer {
    speaker: Shared,
    stop: watch::Sender<()>,
    stop_within: Duration,
    task: JoinHandle<()>,
}

impl Announcer {
    /// Starts a speaker by these settings, with a folder for it in `socket_dir`.
    pub async fn start(
        app: Arc<App>,
        settings: Settings,
        socket_dir: &Path,
    ) -> Result<Announcer, String> {
        let folder = folder(socket_dir);
        let speaker = Speaker::start(settings.clone(), &folder).await;
        let speaker = speaker.map_err(|e| e.to_string())?;
        for neighbour in &settings.neighbours {
            let (address, asn) = (neighbour.address, neighbour.asn);
            tracing::info!("service addresses are announced to {address} (AS {asn}) by BGP");
        }
        let speaker = Arc::new(Mutex::new(Some(speaker)));
        Ok(Announcer::over(app, settings, folder, speaker, None))
    }

    /// Goes on with the speaker of the daemon before, or starts one beside the rest of the daemon
    /// where that one had none.
    pub fn go_on(
        app: Arc<App>,
        settings: Settings,
        socket_dir: &Path,
        pipes: Option<Pipes>,
    ) -> Announcer {
        Announcer::over(app, settings, folder(socket_dir), Shared::default(), pipes)
    }

    fn over(
        app: Arc<App>,
        settings: Settings,
        folder: PathBuf,
        speaker: Shared,
        pipes: Option<Pipes>,
    ) -> Announcer {
        let (stop, stopped) = watch::channel(());
        let stop_within = Speaker::stop_within(&settings);
        let shared = speaker.clone();
        let task = tokio::spawn(async move {
            if let Some(pipes) = pipes {
                let adopted = Speaker::adopt(settings.clone(), &folder, pipes).await;
                match adopted {
                    Ok(speaker) => *shared.lock().await = Some(speaker),
                    Err(error) => tracing::error!("BGP: {error}"),
                }
            }
            let looking = sessions::watch(app.clone(), shared.clone(), settings.clone());
            let speaker = tokio::select! {
                // It has the speaker first.
                biased;
                speaker = announce(app, settings, shared, folder, stopped) => speaker,
                () = looking => None,
            };
            // Nobody looks any more: sessions that are closed are not missed.
            if let Some(speaker) = speaker {
                speaker.stop().await;
            }
        });
        Announcer {
            speaker,
            stop,
            stop_within,
            task,
        }
    }

    /// For an upgrade.
    pub fn speaker(&self) -> Shared {
        self.speaker.clone()
    }

    /// How long [`stop`](Self::stop) takes at the most.
    pub fn stop_within(&self) -> Duration {
        self.stop_within
    }

    /// Withdraws all addresses and closes the sessions: nobody will balance them any more.
    pub async fn stop(self) {
        self.stop.send_replace(());
        let abort = self.task.abort_handle();
        match tokio::time::timeout(self.stop_within, self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("BGP: {error}"),
            // What it has is let go of with it, and BIRD ends.
            Err(_) => {
                abort.abort();
                let within = self.stop_within.as_secs();
                tracing::error!("BGP: addresses are not withdrawn in {within} s");
            }
        }
    }
}

fn folder(socket_dir: &Path) -> PathBuf {
    socket_dir.join("bgp")
}

/// Keeps what is announced the same as what is in service, until `stop` says so. Gives the speaker,
/// which is to be stopped.
async fn announce(
    app: Arc<App>,
    settings: Settings,
    shared: Shared,
    folder: PathBuf,
    mut stop: watch::Receiver<()>,
) -> Option<Speaker> {
    let mut events = app.control().subscribe();
    // What was announced by another daemon is what that one knew.
    let mut announced = None;
    loop {
        // Another daemon that takes this one's place has it, for a moment or for good.
        let mut speaker = shared.lock().await;
        if speaker.is_none() {
            match Speaker::start(settings.clone(), &folder).await {
                Ok(new) => *speaker = Some(new),
                Err(error) => tracing::error!("BGP: {error}"),
            }
        }
        let wanted = tokio::task::block_in_place(|| routes(&app.control(), &settings));
        if let Some(speaker) = &*speaker
            && announced.as_ref() != Some(&wanted)
        {
            match speaker.announce(&wanted).await {
                Ok(()) => announced = Some(wanted),
                Err(error) => {
                    tracing::error!("BGP: {error}");
                    announced = None;
                }
            }
        }
        let behind = speaker.is_none() || announced.is_none();
        let end = speaker.as_ref().map(Speaker::ended);
        drop(speaker);
        let ended = async {
            match end {
                Some(end) => end.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Whatever happened, and however much of it was missed: what counts is how it is now.
            closed = of_services(&mut events) => if closed { break },
            // There is one change, and its sender's end means the same.
            _ = stop.changed() => break,
            () = tokio::time::sleep(PAUSE), if behind => {}
            how = ended => {
                tracing::error!("BGP: BIRD has ended ({how}) and is started again");
                *shared.lock().await = None;
                announced = None;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    shared.lock().await.take()
}

/// Waits for an event of services, or for ones that were missed; true when there will be none.
async fn of_services(events: &mut Receiver<Event>) -> bool {
    loop {
        match events.recv().await {
            Ok(event) if event.kind.part() != Part::Services => (),
            Err(RecvError::Closed) => return true,
            _ => return false,
        }
    }
}

/// The addresses in service, each with the metric of its services' servers.
fn routes(control: &Controller, settings: &Settings) -> Routes {
    let metric = |vip| {
        let services = control.services().values();
        let ill: usize = services
            .filter(|service| service.key.vip() == vip)
            .map(|service| service.servers.len() - control.standing(service).healthy)
            .sum();
        let ill = u32::try_from(ill).unwrap_or(u32::MAX);
        settings
            .med
            .saturating_add(settings.med_per_server.saturating_mul(ill))
    };
    let addresses = control.announced_addresses().into_iter();
    addresses.map(|vip| (vip, metric(vip))).collect()
}

//! Announcing addresses by BGP: which of them, and by which metric. `crates/bgp` speaks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgp::{Routes, Settings, Speaker};
use control::{Controller, Event, Part};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::App;

/// Before a speaker that has ended is started again, and before what failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// An announcer that runs beside the rest of the daemon.
pub struct Announcer {
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Announcer {
    /// Starts a speaker by the settings in `file`, with a folder for it in `socket_dir`.
    pub async fn start(app: Arc<App>, file: &Path, socket_dir: &Path) -> Result<Announcer, String> {
        let settings = Settings::load(file).map_err(|e| e.to_string())?;
        let folder = socket_dir.join("bgp");
        let speaker = Speaker::start(settings.clone(), &folder)
            .await
            .map_err(|e| e.to_string())?;
        for neighbour in &settings.neighbours {
            let (address, asn) = (neighbour.address, neighbour.asn);
            tracing::info!("service addresses are announced to {address} (AS {asn}) by BGP");
        }
        let (stop, stopped) = watch::channel(());
        let task = tokio::spawn(announce(app, settings, speaker, folder, stopped));
        Ok(Announcer { stop, task })
    }

    /// Withdraws all addresses and closes the sessions: nobody will balance them any more.
    pub async fn stop(self) {
        self.stop.send_replace(());
        if let Err(error) = self.task.await {
            tracing::error!("BGP: {error}");
        }
    }
}

/// Keeps what is announced the same as what is in service, until `stop` says so.
async fn announce(
    app: Arc<App>,
    settings: Settings,
    speaker: Speaker,
    folder: PathBuf,
    mut stop: watch::Receiver<()>,
) {
    let mut events = app.control().subscribe();
    let mut speaker = Some(speaker);
    let mut announced = Some(Routes::new());
    loop {
        if speaker.is_none() {
            match Speaker::start(settings.clone(), &folder).await {
                Ok(new) => speaker = Some(new),
                Err(error) => tracing::error!("BGP: {error}"),
            }
        }
        let wanted = tokio::task::block_in_place(|| routes(&app.control(), &settings));
        if let Some(speaker) = &speaker
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
        let ended = async {
            match &mut speaker {
                Some(speaker) => speaker.ended().await,
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
                speaker = None;
                announced = None;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    if let Some(speaker) = speaker {
        speaker.stop().await;
    }
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

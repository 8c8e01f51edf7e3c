//! Announcing addresses: a program of the operator's is run when an address comes into service or
//! goes out of it. What it does, a route that a routing daemon redistributes, a call to a router,
//! is its own affair; packaging/balance-hook is one for FRR and BIRD.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use control::EventKind;
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;

/// One that takes longer is ended, and the next one run.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps what is announced the same as what is in service, for ever.
pub async fn announce(app: Arc<App>, program: &Path) {
    let (mut events, mut wanted) = {
        let control = app.control();
        (control.subscribe(), control.announced_addresses())
    };
    let mut announced = BTreeSet::new();
    loop {
        for vip in announced.difference(&wanted) {
            run(program, "withdraw", *vip).await;
        }
        for vip in wanted.difference(&announced) {
            run(program, "announce", *vip).await;
        }
        announced = wanted;
        // Whatever happened, and however much of it was missed: what counts is how it is now.
        loop {
            match events.recv().await {
                Ok(event) if !matches!(event.kind, EventKind::Address { .. }) => (),
                Err(RecvError::Closed) => return,
                _ => break,
            }
        }
        wanted = tokio::task::block_in_place(|| app.control().announced_addresses());
    }
}

/// Withdraws all that is announced: nobody will balance it any more.
pub async fn withdraw(app: &App, program: &Path) {
    let announced = tokio::task::block_in_place(|| app.control().announced_addresses());
    for vip in announced {
        run(program, "withdraw", vip).await;
    }
}

async fn run(program: &Path, what: &str, vip: IpAddr) {
    let shown = program.display();
    let mut command = tokio::process::Command::new(program);
    command
        .arg(what)
        .arg(vip.to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, async { command.output().await }).await;
    match ended {
        Ok(Ok(output)) if output.status.success() => tracing::debug!("{shown} {what} {vip}"),
        Ok(Ok(output)) => tracing::error!(
            "{shown} {what} {vip} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Ok(Err(e)) => tracing::error!("{shown} {what} {vip} cannot be run: {e}"),
        Err(_) => {
            tracing::error!("{shown} {what} {vip} took longer than {PATIENCE:?} and was ended")
        }
    }
}

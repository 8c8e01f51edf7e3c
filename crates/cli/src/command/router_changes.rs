//! `--watch` of `route show` and `neigh`: after what there is, what changes of it, as it happens.

use api::v1::router_event::Kind;
use api::v1::{RouterEvent, WatchRouterRequest};
use clap::Args;
use tonic::Streaming;

use super::events::EventArgs;
use super::router_watch::line;
use crate::client::V1;
use crate::error::Error;
use crate::output::Output;

/// `--watch` and `--count`.
#[derive(Args, Debug, Default)]
pub struct Changes {
    /// Go on with changes of these as they happen, until interrupted; with --json each is a line
    /// with a RouterEvent
    #[arg(short, long)]
    watch: bool,
    /// With --watch: end after so many changes
    #[arg(short = 'n', long, value_name = "CHANGES", requires = "watch")]
    count: Option<u64>,
}

impl Changes {
    /// All that happens from now on; `None` without `--watch`.
    pub async fn begin(&self, v1: &mut V1) -> Result<Option<Streaming<RouterEvent>>, Error> {
        if !self.watch {
            return Ok(None);
        }
        // The end of the snapshot says that the daemon listens.
        let request = WatchRouterRequest {
            snapshot: true,
            counters_ms: 0,
        };
        let mut events = v1.watch_router(request).await?;
        while let Some(event) = v1.next_in_time(&mut events).await? {
            if let Some(Kind::SnapshotEnd(_)) = event.kind {
                break;
            }
        }
        Ok(Some(events))
    }

    /// Prints those that were asked for, and when the daemon had to leave some out.
    pub async fn print(
        &self,
        v1: &V1,
        out: &mut Output,
        events: Streaming<RouterEvent>,
        asked_for: impl Fn(&Kind) -> bool,
    ) -> Result<(), Error> {
        let matters = |event: &RouterEvent| match &event.kind {
            Some(Kind::Lagged(_)) => true,
            Some(kind) => asked_for(kind),
            None => false,
        };
        let args = EventArgs {
            snapshot: false,
            count: self.count,
        };
        let line = |event: &RouterEvent| matters(event).then(|| line(event));
        args.print(v1, out, events, "RouterEvent", line).await
    }
}

//! A stream of the daemon's events, one a line: what `watch`, `service watch` and `router watch`
//! share.

use clap::Args;
use prost::Message;
use tonic::Streaming;

use crate::client::V1;
use crate::error::Error;
use crate::json;
use crate::output::Output;

/// How much of a stream is printed.
#[derive(Args, Debug)]
pub struct EventArgs {
    /// Begin with what is now
    #[arg(short, long)]
    pub snapshot: bool,
    /// End after so many events
    #[arg(short = 'n', long, value_name = "EVENTS")]
    pub count: Option<u64>,
}

impl EventArgs {
    /// Prints events as they come, each as `line` says it or as the message `name` in JSON, until
    /// the stream ends or there were enough. Those without a line are left out.
    pub async fn print<E: Message + Default>(
        &self,
        v1: &V1,
        out: &mut Output,
        mut events: Streaming<E>,
        name: &str,
        mut line: impl FnMut(&E) -> Option<String>,
    ) -> Result<(), Error> {
        let mut left = self.count;
        while left != Some(0) {
            let Some(event) = v1.next(&mut events).await? else {
                break;
            };
            let Some(line) = line(&event) else {
                continue;
            };
            match out.json {
                true => out.value_line(&json::full(name, &event))?,
                false => out.text(&line)?,
            }
            out.flush()?;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }
}

/// Nanoseconds of Unix time as seconds with six decimals.
pub fn time(unix_nanos: u64) -> String {
    format!(
        "{}.{:06}",
        unix_nanos / 1_000_000_000,
        unix_nanos % 1_000_000_000 / 1000
    )
}

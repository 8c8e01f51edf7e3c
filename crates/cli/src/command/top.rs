//! `butterfly top`: what moves on this host, live.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use super::repeat::seconds;
use crate::client::Client;
use crate::error::Error;
use crate::output::Table;
use crate::session::Session;
use crate::top::screen;
use crate::top::views::{Order, Rows, Sample, View};

const EXAMPLES: &str = "\
Keys: 1..6 or Tab another view, s another column to sort by, r the other way round, / a filter
(Enter ends it, Escape clears it), arrows and Page keys to move, p to pause, q to quit. A filter
keeps rows that have the text in any column. --once prints one view after one interval and ends;
with --json its rows as objects.

Examples:
  butterfly top
  butterfly top --view drops --interval 5
  butterfly top --once --view workers
  butterfly --json top --once --view flows --sort BYTES/s --lines 10";

/// `top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// What to begin with
    #[arg(long, value_name = "VIEW", default_value = "nics", ignore_case = true)]
    view: View,
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// The column to sort by, by its heading [default: the one that moves most]
    #[arg(short, long, value_name = "COLUMN")]
    sort: Option<String>,
    /// The other way round
    #[arg(short, long)]
    reverse: bool,
    /// Only rows that have this text
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// With --once: so many rows at most
    #[arg(short = 'n', long, value_name = "ROWS", requires = "once")]
    lines: Option<usize>,
}

impl TopArgs {
    /// Shows until a key ends it, or prints once.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let order = Order::new(self.view, self.sort.as_deref(), self.reverse);
        let order = order.map_err(Error::Usage)?;
        if self.once {
            return self.once(order, session).await;
        }
        if session.out.json || !std::io::stdout().is_terminal() {
            let why = "top needs a terminal; `top --once` prints, also as JSON";
            return Err(Error::Usage(why.into()));
        }
        let client = session.client().await?;
        client.only_v1("top")?;
        screen::run(client, self.view, order, self.filter, self.interval).await
    }

    async fn once(self, order: Order, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?;
        client.only_v1("top")?;
        let rows = measured(client, self.view, self.interval).await?;
        let rows = rows.shown(&order, &self.filter);
        let rows = &rows[..rows.len().min(self.lines.unwrap_or(usize::MAX))];
        let columns = self.view.columns();
        if session.out.json {
            let object = |row: &Vec<_>| -> Value {
                let fields = columns.iter().zip(row);
                fields
                    .map(|(column, cell): (_, &crate::top::views::Cell)| {
                        (column.trim_start_matches('>').to_owned(), cell.value())
                    })
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            return session.out.value(&rows.iter().map(object).collect());
        }
        let mut table = Table::new(columns);
        for row in rows {
            table.cells(row.iter().map(|cell| cell.text().to_owned()).collect());
        }
        session.out.table(&table)
    }
}

/// What moved within an interval.
async fn measured(client: &mut Client, view: View, interval: Duration) -> Result<Rows, Error> {
    let began = Instant::now();
    let before = Sample::take(client, view).await?;
    tokio::time::sleep(interval).await;
    let now = Sample::take(client, view).await?;
    Ok(now.since(&before, began.elapsed()))
}

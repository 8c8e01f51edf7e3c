//! What `switch` and `overlay` are told.

use std::path::PathBuf;

/// A comparison in rounds, of which only a part may be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Fewer sizes, rounds and seconds: under five minutes.
    #[arg(long)]
    pub quick: bool,
    /// The core of the switch; who sends and receives runs on the other.
    #[arg(long, default_value_t = 0)]
    pub core: usize,
    /// Measure only the entrants whose names contain one of these.
    #[arg(long)]
    pub only: Vec<String>,
    /// Measure only the rows whose names begin with one of these.
    #[arg(long)]
    pub row: Vec<String>,
    /// Rounds, for fewer or more than usual.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Where the data and the tables of each regime are written, as NAME-near.tsv and NAME-near.md.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

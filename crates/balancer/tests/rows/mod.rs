//! Packet in, whole packet and verdict out: the load balancer's program under BPF_PROG_TEST_RUN,
//! row by row.
//!
//! What should come out is built by `wire::build`, which shares no code with the program. Needs no
//! interface and no network. `tests/rows.rs` plays the trials, `benches/rows.rs` times every packet
//! of them.

/// A module's trials, by the names of their functions: one that is not among them is dead code.
macro_rules! trials {
    ($($trial:ident),+ $(,)?) => {
        pub const TRIALS: &[super::Trial] = &[$((stringify!($trial), $trial)),+];
    };
}

mod answers;
mod encapsulation;
mod errors;
mod flows;
mod fragments;
mod hostile;
pub mod player;
mod ports;
mod reach;
pub mod stage;
mod watch;

#[allow(
    unused_imports,
    reason = "the benchmark, which has these rows too, has no Go"
)]
pub use flows::both_libraries_choose_alike;

/// Its name and what it does. It panics where a row is not as it should be.
pub type Trial = (&'static str, fn());

/// All trials, their modules' names in front of theirs.
pub fn all() -> impl Iterator<Item = (String, fn())> {
    let modules = [
        ("answers", answers::TRIALS),
        ("encapsulation", encapsulation::TRIALS),
        ("errors", errors::TRIALS),
        ("flows", flows::TRIALS),
        ("fragments", fragments::TRIALS),
        ("hostile", hostile::TRIALS),
        ("ports", ports::TRIALS),
        ("reach", reach::TRIALS),
        ("watch", watch::TRIALS),
    ];
    modules.into_iter().flat_map(|(module, trials)| {
        let named = move |(name, body): &Trial| (format!("{module}::{name}"), *body);
        trials.iter().map(named)
    })
}

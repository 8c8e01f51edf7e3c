//! What is measured, how long, how often: the rows of the table and what it takes to fill them.

use std::time::Duration;

use crate::exchange::Kind;
use crate::flood::Flood;
use crate::load::Load;
use crate::peers::Setup;
use crate::results::{self, Row as _};

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// Frames a second.
    Rate(Load),
    /// That of [`MANY`] flows, of what one flow has in the same pass from a sender that does the
    /// same for each frame.
    OfOne,
    /// Exchanges a second, begun and ended.
    Exchanges(Kind),
    /// Connections a second under 10,000 rules.
    ManyRules,
    /// The rate of an established stream while a third guest floods, of what it is otherwise; half
    /// the core is its fair share.
    Flood(Flood),
    /// The 99th percentile of an established flow's round trips meanwhile, of what it is otherwise.
    FloodedRoundTrip(Flood),
    /// Seconds of a round trip of which `per_mille` are shorter: alone, or beside 80 % of the
    /// switch's own rate.
    RoundTrip { loaded: bool, per_mille: u16 },
    /// Percent of a core while nothing is sent.
    IdleCpu,
    /// Seconds from guest to guest of the first frame after 20 ms: the median, or the longest.
    FirstFrame { longest: bool },
}

/// Which shares of the round trips are reported.
pub const PER_MILLE: [u16; 3] = [500, 990, 999];

impl results::Row for Row {
    fn name(self) -> String {
        let quantile = |per_mille| match per_mille {
            500 => "p50",
            990 => "p99",
            _ => "p99.9",
        };
        match self {
            Row::Rate(load) => load.name(),
            Row::OfOne => format!("{}_of_one", MANY.name()),
            Row::Exchanges(Kind::Connection) => "connections".to_owned(),
            Row::Exchanges(Kind::Transaction) => "udp_transactions".to_owned(),
            Row::ManyRules => "connections_10000_rules".to_owned(),
            Row::Flood(flood) => flood.name().to_owned(),
            Row::FloodedRoundTrip(flood) => format!("{}_p99", flood.name()),
            Row::RoundTrip { loaded, per_mille } => {
                let load = if loaded { "load80" } else { "alone" };
                format!("rtt_{load}_{}", quantile(per_mille))
            }
            Row::IdleCpu => "idle_cpu".to_owned(),
            Row::FirstFrame { longest: false } => "first_frame_p50".to_owned(),
            Row::FirstFrame { longest: true } => "first_frame_max".to_owned(),
        }
    }

    fn unit(self) -> (&'static str, f64) {
        match self {
            Row::Rate(_) => ("Mframes/s", 1e-6),
            Row::OfOne => ("of one flow's rate", 1.0),
            Row::Flood(_) => ("of the rate alone", 1.0),
            Row::FloodedRoundTrip(_) => ("times a quiet switch's", 1.0),
            Row::Exchanges(_) | Row::ManyRules => ("M/s", 1e-6),
            Row::RoundTrip { .. } | Row::FirstFrame { .. } => ("us", 1e6),
            Row::IdleCpu => ("% of a core", 1.0),
        }
    }
}

/// What is done with a running switch; some give several rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// [`Row::Rate`].
    Rate(Load),
    /// [`Row::Exchanges`].
    Exchanges(Kind),
    /// [`Row::ManyRules`].
    ManyRules,
    /// [`Row::Flood`].
    Flood(Flood),
    /// The round trips with one frame in flight.
    Alone,
    /// The round trips at 80 % of what this switch did with 64 bytes in this round.
    Loaded,
    /// [`Row::IdleCpu`] and [`Row::FirstFrame`].
    Idle,
}

impl Test {
    /// The rows it fills.
    pub fn rows(self) -> Vec<Row> {
        let round_trips = |loaded| PER_MILLE.map(|per_mille| Row::RoundTrip { loaded, per_mille });
        match self {
            Test::Rate(MANY) => vec![Row::Rate(MANY), Row::OfOne],
            Test::Rate(load) => vec![Row::Rate(load)],
            Test::Exchanges(kind) => vec![Row::Exchanges(kind)],
            Test::ManyRules => vec![Row::ManyRules],
            Test::Flood(flood) => vec![Row::Flood(flood), Row::FloodedRoundTrip(flood)],
            Test::Alone => round_trips(false).to_vec(),
            Test::Loaded => round_trips(true).to_vec(),
            Test::Idle => vec![
                Row::IdleCpu,
                Row::FirstFrame { longest: false },
                Row::FirstFrame { longest: true },
            ],
        }
    }

    /// What the switches are set up for.
    pub fn setup(self) -> Setup {
        match self {
            Test::Rate(Load::Tso) => Setup::Large,
            Test::ManyRules => Setup::ManyRules,
            Test::Flood(Flood::Large) => Setup::LargeFlood,
            Test::Flood(Flood::Broadcasts) => Setup::Crowd,
            Test::Flood(Flood::LargeBroadcasts) => Setup::LargeCrowd,
            Test::Flood(_) => Setup::Flood,
            _ => Setup::Small,
        }
    }
}

/// A run.
pub struct Plan {
    /// In this order, for all switches.
    pub tests: Vec<Test>,
    /// Each switch is started once a round.
    pub rounds: usize,
    /// Windows that each switch has in a test of a round.
    passes: usize,
    /// Windows that each switch has in a round's [`Test::Idle`]; they are long.
    idle_passes: usize,
    /// One window.
    pub window: Duration,
    /// What is watched idly.
    pub idle: Duration,
    /// Frames after a quiet time, in a window.
    pub first_frames: usize,
    /// No round is begun that would not end within it.
    pub budget: Duration,
}

/// 64 bytes, one flow: what 80 % is of.
pub const BASE: Load = Load::Udp {
    frame_len: 64,
    flows: 1,
};

/// The load of many flows that is compared with one flow.
pub const MANY: Load = Load::Udp {
    frame_len: 64,
    flows: 1_000_000,
};

impl Plan {
    /// The whole plan, or a short one; `only`: the tests whose rows have a name that begins with
    /// one of these.
    pub fn new(quick: bool, only: &[String]) -> Plan {
        let (sizes, flows): (&[usize], &[u32]) = if quick {
            (&[64, 1518], &[1_000])
        } else {
            (&[64, 256, 512, 1024, 1518], &[1_000, 10_000])
        };
        let sized = |&frame_len| {
            Test::Rate(Load::Udp {
                frame_len,
                flows: 1,
            })
        };
        let many = |&flows| {
            Test::Rate(Load::Udp {
                frame_len: 64,
                flows,
            })
        };
        // Idle first: connections that have ended are forgotten later, which is some work.
        let mut tests = vec![Test::Idle];
        tests.extend(sizes.iter().map(sized));
        tests.extend([Kind::Connection, Kind::Transaction].map(Test::Exchanges));
        tests.extend([Test::Alone, Test::Loaded]);
        tests.extend(flows.iter().map(many));
        tests.extend([Test::Rate(MANY), Test::Rate(Load::Tso), Test::ManyRules]);
        // Those of frames that are known are left to `neighbours`, unless they are asked for.
        let floods: &[Flood] = if only.is_empty() {
            &Flood::UNKNOWN
        } else {
            &Flood::ALL
        };
        tests.extend(floods.iter().copied().map(Test::Flood));
        let chosen = |row: Row| {
            only.iter()
                .any(|start| row.name().starts_with(start.as_str()))
        };
        tests.retain(|test| only.is_empty() || test.rows().into_iter().any(chosen));
        let milliseconds =
            |quickly, fully| Duration::from_millis(if quick { quickly } else { fully });
        Plan {
            tests,
            rounds: if quick { 2 } else { 7 },
            passes: if quick { 8 } else { 15 },
            idle_passes: if quick { 1 } else { 2 },
            window: milliseconds(60, 80),
            idle: milliseconds(500, 1000),
            first_frames: if quick { 10 } else { 30 },
            budget: milliseconds(240_000, 1_500_000),
        }
    }

    /// Floods alone, all of them.
    pub fn of_floods(quick: bool) -> Plan {
        Plan {
            tests: Flood::ALL.map(Test::Flood).to_vec(),
            rounds: if quick { 1 } else { 4 },
            ..Plan::new(quick, &[])
        }
    }

    /// Windows that each switch has in this test.
    pub fn passes(&self, test: Test) -> usize {
        if test == Test::Idle {
            self.idle_passes
        } else {
            self.passes
        }
    }

    /// All rows, in order.
    pub fn rows(&self) -> Vec<Row> {
        self.tests.iter().flat_map(|test| test.rows()).collect()
    }
}

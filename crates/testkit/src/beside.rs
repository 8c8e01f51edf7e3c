//! Rows of benchmarks by sockets: streams, datagrams and round trips over one path, by several who
//! take it over in turn, in one run.

use std::net::IpAddr;
use std::time::Duration;

use crate::Result;
use crate::netns::Namespace;
use crate::results::Results;
use crate::traffic::{self, Station};

const TIME: Duration = Duration::from_millis(1000);
const TRIPS: usize = 5000;

/// Where packets go from and to.
#[derive(Debug)]
pub struct Ends<'a> {
    /// Who sends.
    pub from: &'a Namespace,
    /// Who takes it.
    pub station: &'a Station,
    /// By which address: of IPv4, of IPv6.
    pub to: [IpAddr; 2],
}

/// Its name, its part of the ratios' names, its unit, and how one sample is taken.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Ends<'_>) -> Result<f64>,
);

const ROWS: [Row; 4] = [
    ("TCP stream", "tcp", "Gbit/s", |ends| {
        Ok(traffic::stream_rate(ends.from, ends.to[0], TIME)? / 1e9)
    }),
    ("TCP stream, IPv6", "tcp6", "Gbit/s", |ends| {
        Ok(traffic::stream_rate(ends.from, ends.to[1], TIME)? / 1e9)
    }),
    ("UDP of 64 bytes", "udp", "kpackets/s", |ends| {
        Ok(traffic::datagram_rate(ends.from, ends.station, ends.to[0], 64, TIME)? / 1e3)
    }),
    ("TCP round trip", "round_trip", "ns", |ends| {
        traffic::stream_round_trip(ends.from, ends.to[0], TRIPS)
    }),
];

/// One who forwards: sets himself up, has a round measured, and takes himself away.
pub type Turn<'a> = &'a mut (dyn FnMut(&mut (dyn FnMut() + Send)) + 'a);

/// All rows by all of `turns`, each with his name; a round before the first finds nothing warm and
/// does not count. The ratios are those of the last to each of the others, as
/// `sockets_ROW_to_NAME`.
pub fn measure(
    results: &mut Results,
    rounds: usize,
    ends: &Ends<'_>,
    turns: &mut [(&'static str, Turn<'_>)],
) -> Result<()> {
    let mut samples = ROWS.map(|_| vec![Vec::new(); turns.len()]);
    let mut failure = None;
    for round in 0..=rounds {
        for (who, (name, turn)) in turns.iter_mut().enumerate() {
            turn(&mut || {
                for ((what, _, _, once), samples) in ROWS.iter().zip(&mut samples) {
                    match once(ends) {
                        Ok(sample) if round > 0 => samples[who].push(sample),
                        Ok(_) => {}
                        Err(why) => {
                            failure = Some(format!("{what} by the {name}: {why}"));
                            return;
                        }
                    }
                }
            });
            if let Some(why) = failure.take() {
                return Err(why);
            }
        }
    }
    for ((what, short, unit, _), samples) in ROWS.into_iter().zip(samples) {
        if let Some((last, others)) = samples.split_last() {
            for ((name, _), other) in turns.iter().zip(others) {
                results.ratio_by_round(&format!("sockets_{short}_to_{name}"), last, other);
            }
        }
        for ((name, _), samples) in turns.iter().zip(samples) {
            results.add(&format!("{what}, sockets"), name, unit, samples);
        }
    }
    Ok(())
}

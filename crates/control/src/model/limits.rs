//! What a NIC may send and be sent in a second: bounds and defaults.

use std::fmt::Write;

use super::Nic;
use crate::error::Error;

pub use dataplane::limits::{Limit, Limits};

/// No rate and no burst is above this: a terabyte a second has room in it.
const LARGEST: u64 = 10_000_000_000_000;

/// Bits a second at least: a frame of 1,500 bytes takes 12 seconds.
const BITS_MIN: u64 = 1000;

/// What a part of a second carries, as the default burst of bits and packets: 50 ms.
const BURST_PART: u64 = 20;

/// Default bursts are not below this: two of the largest frames, and a batch of packets.
const BURST_BYTES_MIN: u64 = 128 << 10;
const BURST_PACKETS_MIN: u64 = 64;

/// Limits with a burst for those whose is 0.
pub fn with_bursts(limits: Limits) -> Limits {
    let or = |limit: Option<Limit>, default: fn(u64) -> u64| {
        limit.map(|Limit { rate, burst }| Limit {
            rate,
            burst: if burst == 0 { default(rate) } else { burst },
        })
    };
    Limits {
        bits: or(limits.bits, |rate| {
            (rate / 8 / BURST_PART).max(BURST_BYTES_MIN)
        }),
        packets: or(limits.packets, |rate| {
            (rate / BURST_PART).max(BURST_PACKETS_MIN)
        }),
        connections: or(limits.connections, |rate| rate),
        floods: or(limits.floods, |rate| rate),
    }
}

/// The limits of one direction by their names.
fn named(limits: &Limits) -> [(&'static str, Option<Limit>); 4] {
    [
        ("bits", limits.bits),
        ("packets", limits.packets),
        ("connections", limits.connections),
        ("floods", limits.floods),
    ]
}

/// In a line, for what has changed: `bits 100000000 burst 625000`.
pub(crate) fn text(limits: &Limits) -> String {
    let mut text = String::new();
    for (name, limit) in named(limits) {
        if let Some(Limit { rate, burst }) = limit {
            let comma = if text.is_empty() { "" } else { ", " };
            // A string takes whatever is written to it.
            let _ = write!(text, "{comma}{name} {rate} burst {burst}");
        }
    }
    text
}

impl Nic {
    /// The bounds of its limits.
    pub(super) fn limits_in_bounds(&self) -> Result<(), Error> {
        for (field, limits) in [("limit out", &self.limit_out), ("limit in", &self.limit_in)] {
            for (name, limit) in named(limits) {
                let Some(Limit { rate, burst }) = limit else {
                    continue;
                };
                let least = if name == "bits" { BITS_MIN } else { 1 };
                let refuse = |value: u64, what: &str| {
                    let value = format!("{name} {value}");
                    Err(Error::value(&self.owner(), field, &value, what))
                };
                if rate < least {
                    return refuse(rate, &format!("a second is below the smallest, {least}"));
                }
                if rate > LARGEST {
                    return refuse(rate, "a second is above the largest, 10^13");
                }
                if burst == 0 || burst > LARGEST {
                    return refuse(burst, "is a burst that is not within 1 and 10^13");
                }
            }
        }
        Ok(())
    }
}

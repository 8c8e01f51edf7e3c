//! Cycles of what stateful switches die of: connections and questions that are over at once, and
//! floods, beside a sender that has no part in them. Like [`crate::path`], which calls this: guests
//! and switch take turns on one core.
//!
//! The table has room for [`MAX_FLOWS`] flows only, so that each connection also ends the oldest:
//! what a switch does that is full of them. Datagrams that were answered are not given up while
//! they are young, so that theirs has room for all.

use dataplane::PortSlot;
use io::frame::BATCH;
use io::port::Port;
use sys::cycles;
use wire::offload::Offload;

use crate::exchange::{Exchange, Kind};
use crate::flood::Flood;
use crate::guest::Guest;
use crate::load::{self, Load, Turns};
use crate::path::{self, Switch};
use crate::peers::PeerError;
use crate::report::{Ratios, Samples};

/// Flows that the table of the data plane has room for.
const MAX_FLOWS: u32 = 1 << 16;

/// Blocks of exchanges in a window.
const WINDOW: u32 = 16;

/// Turns of a window of a flood: a few milliseconds.
const TURNS: u32 = 512;

/// Runs all that is asked for and prints a line each.
pub fn run(
    quick: bool,
    chosen: impl Fn(&str) -> bool,
    ratios: &mut Ratios,
) -> Result<(), PeerError> {
    let windows = if quick { 100 } else { 600 };
    let exchanges = [
        ("connections", Kind::Connection, crate::RULES),
        ("connections_10_rules", Kind::Connection, 10),
        ("connections_10000_rules", Kind::Connection, 10_000),
        ("udp_transactions", Kind::Transaction, crate::RULES),
        ("udp_transactions_10_rules", Kind::Transaction, 10),
        ("udp_transactions_10000_rules", Kind::Transaction, 10_000),
    ];
    for (name, kind, rules) in exchanges {
        if chosen(name) {
            let steps = exchange(kind, rules, windows)?;
            report(name, &steps, ratios);
        }
    }
    for flood in Flood::UNKNOWN {
        let name = flood.name();
        if chosen(name) {
            let shares = share(flood, windows / 5)?;
            println!(
                "{name:<29} the stream has {:.3} [{:.3}] of its rate alone: least, median",
                shares.quantile(0.0),
                shares.median()
            );
            ratios.push(format!("{name}_share"), shares.median());
        }
    }
    Ok(())
}

/// Cycles of each step of an exchange.
fn exchange(kind: Kind, rules: u16, windows: usize) -> Result<Vec<Samples>, PeerError> {
    let load = Load::Udp {
        frame_len: 64,
        flows: 1,
    };
    let mut guests = [path::guest(load)?, path::guest(load)?];
    let ports = vec![
        (PortSlot(0).into(), guests[0].port()?),
        (PortSlot(1).into(), guests[1].port()?),
    ];
    let max_flows = match kind {
        Kind::Connection => MAX_FLOWS,
        Kind::Transaction => path::MAX_FLOWS,
    };
    let mut switch = Switch::new(ports, max_flows, path::snapshot(rules)?)?;
    let exchange = Exchange::new(kind)?;
    for guest in &mut guests {
        guest.prepare(&exchange.frame(0, 0), &Offload::default());
    }
    let mut samples = vec![Samples::default(); exchange.len()];
    let mut number = 0;
    // The table is full before the first window.
    let settle = (2 * MAX_FLOWS / (WINDOW * BATCH as u32)) as usize;
    for window in 0..settle + windows {
        let mut spent = vec![0; exchange.len()];
        for _ in 0..WINDOW {
            for (step, spent) in spent.iter_mut().enumerate() {
                let from = exchange.speaker(step);
                let mut next = number;
                guests[from].send(BATCH as u16, |write| {
                    write(0, &exchange.frame(step, next));
                    next += 1;
                });
                *spent += switch.deliver(|| guests[1 - from].receive().into())?;
            }
            number += BATCH as u32;
        }
        if window >= settle {
            for (samples, spent) in samples.iter_mut().zip(spent) {
                samples.push(spent as f64 / f64::from(WINDOW * BATCH as u32));
            }
        }
    }
    Ok(samples)
}

fn report(name: &str, steps: &[Samples], ratios: &mut Ratios) {
    let sum = |share: f64| steps.iter().map(|step| step.quantile(share)).sum::<f64>();
    print!("{name:<29} {:>6.0} [{:>6.0}]  ", sum(0.0), sum(0.5));
    for step in steps {
        print!(" {:.0} [{:.0}]", step.quantile(0.0), step.median());
    }
    println!();
    ratios.push(format!("{name}_cycles"), sum(0.0));
}

/// What an established stream from guest 0 to guest 1 has while guest 2 floods guest 3, of what it
/// has alone, in windows by turns.
fn share(flood: Flood, windows: usize) -> Result<Samples, PeerError> {
    let load = Load::Udp {
        frame_len: 64,
        flows: 1,
    };
    let guest = || path::guest(load);
    let mut guests = [guest()?, guest()?, guest()?, guest()?];
    let port = |guests: &[Guest; 4], slot: usize| -> Result<_, PeerError> {
        let port: Port = guests[slot].port()?;
        Ok((PortSlot(slot as u32).into(), port))
    };
    let ports: Result<Vec<_>, _> = (0..4).map(|slot| port(&guests, slot)).collect();
    let mut switch = Switch::new(ports?, MAX_FLOWS, path::snapshot_of(4, crate::RULES)?)?;
    guests[0].prepare(&load::datagram(0, load.frame_bytes())?, &Offload::default());
    guests[1].prepare(&load::datagram(1, load.frame_bytes())?, &Offload::default());
    flood.prepare(&mut guests[2])?;
    for from in [0, 1] {
        guests[from].send(1, |_| ());
        switch.turn();
        guests[1 - from].receive();
    }
    let mut turns = Turns::of(load);
    let mut random = 1u64;
    let mut shares = Samples::default();
    for _ in 0..windows {
        let mut rates = [0.0; 2];
        for (flooded, rate) in rates.iter_mut().enumerate() {
            let (mut spent, mut arrived) = (0u64, 0u64);
            for _ in 0..TURNS {
                guests[0].send(2 * BATCH as u16, |write| turns.next(write));
                if flooded == 1 {
                    guests[2].send(2 * BATCH as u16, |write| flood.vary(&mut random, write));
                }
                spent += switch.turn();
                guests[3].receive();
                arrived += u64::from(guests[1].receive());
            }
            *rate = arrived as f64 / spent as f64;
            // What guest 2 still has in its ring.
            let start = cycles::now();
            while cycles::now() - start < 3_000_000 {
                switch.turn();
                guests[3].receive();
                guests[1].receive();
            }
        }
        shares.push(rates[1] / rates[0]);
    }
    Ok(shares)
}

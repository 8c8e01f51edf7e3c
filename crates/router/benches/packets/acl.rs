//! What an access list costs a frame, by the number of its rules: live frames as in `live.rs`, of
//! which each takes another rule of the list, without a list, with one, and through the kernel with
//! the same rules in nftables.

use std::net::IpAddr;

use butterfly_router::Options;
use butterfly_router::acl::{List, Rule, Side};
use ipnet::IpNet;
use testkit::netns::Namespace;
use testkit::results::Results;
use xdp::{Program, Scatter, objects};

use crate::lab::{destinations, frame, inside, load, namespace, prefixes};
use crate::live::Cable;
use crate::ours::Ours;

/// Rules of the lists.
const RULES: [usize; 3] = [10, 100, 10_000];
const ROUTES: usize = 10_000;
/// A few, whose part of the lists stays in the caches, and as many as do not.
const DESTINATIONS: [usize; 2] = [64, 8192];
const FRAMES: u32 = 1 << 17;
/// Of the kernel, whose rules are looked at one after the other.
const KERNELS_FRAMES: u32 = 1 << 13;

/// Each family in turn.
pub fn measure(results: &mut Results, rounds: usize) {
    println!("access lists, live frames of 64 bytes: ns a frame");
    for v6 in [false, true] {
        for count in DESTINATIONS {
            family(results, v6, count, rounds);
        }
    }
}

fn family(results: &mut Results, v6: bool, count: usize, rounds: usize) {
    let namespace = namespace();
    let prefixes = prefixes(v6, ROUTES);
    load(&namespace, &prefixes);
    let family = if v6 { "v6" } else { "v4" };
    inside(&namespace, async || {
        let pass = Program::load("pass", objects::PASS, |_| Ok(())).expect("the program loads");
        let scatter = Scatter::new(count as u32).expect("the program loads");
        let cable = Cable::new(&namespace, &[&scatter]);
        let frame = frame(v6, 60);
        let to = destinations(&prefixes, count);
        scatter.set_frame(&frame, &to, 0).expect("there is room");
        let mut router = Ours::start(&Options::default()).await;
        let lists = RULES.map(|count| list(&prefixes, count));
        // Without a list, and with each.
        let (mut ours, mut kernel) = ([const { Vec::new() }; 4], [const { Vec::new() }; 4]);
        for round in 0..=rounds {
            for at in 0..=RULES.len() {
                let list = at.checked_sub(1).map(|at| &lists[at]);
                to_kernel(&namespace, None);
                router
                    .service
                    .router
                    .set_acl(list.cloned())
                    .expect("it fits");
                let program = router.service.router.program();
                scatter.hand_on_to(program).expect("one of XDP");
                // Another list ends what is known of flows; all come to be known again first.
                cable.once(&scatter, &frame, 2 * FRAMES);
                let fast = cable.once(&scatter, &frame, FRAMES);
                to_kernel(&namespace, list);
                scatter.hand_on_to(&pass).expect("one of XDP");
                let slow = cable.once(&scatter, &frame, KERNELS_FRAMES);
                if round > 0 {
                    ours[at].push(fast);
                    kernel[at].push(slow);
                }
            }
        }
        let ratio = format!("acl_{family}_{count}_destinations_10000_to_10");
        results.ratio_by_round(&ratio, &ours[3], &ours[1]);
        for (at, (ours, kernel)) in ours.into_iter().zip(kernel).enumerate() {
            let what = match at.checked_sub(1) {
                None => format!("acl {family} {count} destinations no list"),
                Some(at) => format!("acl {family} {count} destinations {} rules", RULES[at]),
            };
            results.add(&what, "router", "ns", ours);
            results.add(&what, "nftables", "ns", kernel);
        }
    });
}

/// So many rules: one for each of the first prefixes, with ports, and the last for all others.
fn list(prefixes: &[(IpAddr, u8)], count: usize) -> List {
    let rule = |(address, len): &(IpAddr, u8)| Rule {
        allows: true,
        protocol: Some(17),
        source: Side {
            prefix: None,
            ports: Some((1000, 1999)),
        },
        destination: Side {
            prefix: Some(IpNet::new(*address, *len).expect("a prefix").trunc()),
            ports: Some((2000, 2000)),
        },
        ..Rule::default()
    };
    let mut rules: Vec<Rule> = prefixes.iter().take(count - 1).map(rule).collect();
    rules.push(Rule {
        allows: true,
        ..Rule::default()
    });
    List {
        rules,
        default_allows: false,
    }
}

/// Gives the kernel a list in place of another, or none.
fn to_kernel(namespace: &Namespace, list: Option<&List>) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let rules = list.map(List::to_nftables).unwrap_or_default();
    std::fs::write(file.path(), format!("flush ruleset\n{rules}")).expect("a file");
    let load = format!("nft -f {}", file.path().display());
    namespace.ok(&load).expect("nftables takes it");
}

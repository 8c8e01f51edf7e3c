//! What programs on two hosts see of the router between them, beside the kernel's own forwarding,
//! and beside a cable between the two hosts, which is as fast as their sockets can be: over veths
//! with the offloads that the kernel gives them, so that a stream comes in packets of up to 64 KiB
//! with checksums that are only begun.

use butterfly_router::Options;
use testkit::beside::{self, Ends};
use testkit::results::Results;
use testkit::routed_hosts::{RoutedHosts, WEST};
use testkit::traffic::Station;

use crate::lab::inside;
use crate::ours::Ours;

/// By the kernel, without a router and by us in turn.
pub fn measure(results: &mut Results, rounds: usize) {
    let hosts = RoutedHosts::with_default_offloads("east", "west").expect("the kernel forwards");
    let station = Station::new(&hosts.west).expect("a station");
    let ends = Ends {
        from: &hosts.east,
        station: &station,
        to: WEST.map(|address| address.parse().expect("an address")),
    };
    let mut kernel = |round: &mut (dyn FnMut() + Send)| round();
    let mut cable = |round: &mut (dyn FnMut() + Send)| {
        hosts.without_router(round).expect("a cable");
    };
    let mut ours = |round: &mut (dyn FnMut() + Send)| {
        inside(&hosts.router, async || {
            // As it chooses: on a veth at tc.
            let names = ["east", "west"];
            let router = Ours::start_on(names, [None, None], &Options::default()).await;
            round();
            drop(router);
        });
    };
    let measured = beside::measure(
        results,
        rounds,
        &ends,
        &mut [
            ("kernel", &mut kernel),
            ("cable", &mut cable),
            ("router", &mut ours),
        ],
    );
    measured.expect("sockets reach each other");
}

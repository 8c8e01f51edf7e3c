//! The router between two hosts with sockets, on veths as they come: with checksums that are only
//! begun, and segments that nobody has cut.

use std::sync::mpsc;

use crate::lab::SMALL;
use crate::ours::Ours;
use butterfly_router::Report;
use butterfly_router::layout::Counter;
use testkit::routed_hosts::{RoutedHosts, WEST};
use testkit::{PATIENCE, wait_for};
use tokio::sync::oneshot;
use xdp::Mode;

/// Runs the router on `east0` and `west0` while something happens, and gives its report at the end.
pub fn routed(hosts: &RoutedHosts, modes: [Option<Mode>; 2], meanwhile: impl FnOnce()) -> Report {
    let (ready, is_ready) = mpsc::channel();
    let (stop, mut stopped) = oneshot::channel::<()>();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut ours = Ours::start_on(["east0", "west0"], modes, &SMALL).await;
            ready.send(()).expect("somebody waits");
            loop {
                tokio::select! {
                    _ = ours.service.step(&mut ours.attached) => {}
                    _ = &mut stopped => return ours.report(),
                }
            }
        })
    };
    std::thread::scope(|scope| {
        let router = scope.spawn(|| hosts.router.inside(run).expect("the router's namespace"));
        is_ready.recv().expect("it starts");
        meanwhile();
        stop.send(()).expect("it runs");
        router.join().expect("it ends well")
    })
}

/// With veths as they come: without GRO they take no frames from XDP.
pub fn hosts() -> RoutedHosts {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    for host in [&hosts.east, &hosts.west] {
        host.ok("ethtool -K eth0 gro off").expect("ethtool");
    }
    hosts
}

/// TCP both ways and UDP of both families: each has to have passed some.
fn talk(hosts: &RoutedHosts) {
    let _server = hosts.west.start("iperf3", "iperf3 -s").expect("iperf3");
    let listens =
        "for i in $(seq 100); do ss -ltn | grep -q :5201 && exit 0; sleep 0.05; done; exit 1";
    hosts.west.ok(listens).expect("it listens");
    for address in WEST {
        for options in ["", "-R", "-u -b 20M -l 64", "-u -b 20M -l 1400 -R"] {
            let command = format!("iperf3 -c {address} -t 1 -J --connect-timeout 3000 {options}");
            // The server takes one client at a time, and may not be done with the one before.
            let said = wait_for("iperf3 to be taken", PATIENCE, || {
                let said = hosts.east.ok(&format!("timeout 20 {command} || true"))?;
                let said: serde_json::Value =
                    serde_json::from_str(&said).map_err(|e| format!("{e}: {said}"))?;
                Ok(said["error"].is_null().then_some(said))
            })
            .expect(&command);
            let sums = &said["end"];
            let sum = if options.contains("-u") {
                &sums["sum"]
            } else {
                &sums["sum_received"]
            };
            let rate = sum["bits_per_second"].as_f64().expect("a rate");
            let lost = sum["lost_percent"].as_f64().unwrap_or(0.0);
            println!("{command}: {:.0} Mbit/s, {lost} % lost", rate / 1e6);
            // What is sent broken does not come at all; on a busy machine iperf3 sends little.
            assert!(rate > 2e5 && lost < 50.0, "{command}: {sum}");
        }
    }
}

pub fn all(report: &Report, counter: Counter) -> u64 {
    report.interfaces.iter().map(|one| one.total(counter)).sum()
}

#[test]
fn whole_segments_and_begun_checksums_are_forwarded_at_tc() {
    let hosts = hosts();
    let report = routed(&hosts, [None, None], || talk(&hosts));
    let places = report.interfaces.iter().map(|one| one.place.as_str());
    assert_eq!(places.collect::<Vec<_>>(), ["at tc ingress (veth)"; 2]);
    let forwarded = all(&report, Counter::Forwarded);
    let bytes = all(&report, Counter::ForwardedBytes);
    assert!(
        bytes / forwarded > 2000,
        "segments stay whole: {bytes} bytes in {forwarded}"
    );
    let left = [
        Counter::TooBig,
        Counter::Beyond,
        Counter::Begun,
        Counter::Elsewhere,
    ];
    assert_eq!(
        left.map(|reason| all(&report, reason)),
        [0; 4],
        "{report:?}"
    );
    assert_eq!(forwarded, all(&report, Counter::Sent));
}

/// The program in XDP cannot send to a veth without GRO, nor finish a checksum: what it passes the
/// one at tc, or the kernel, sends on.
#[test]
fn nothing_is_sent_broken_where_xdp_meets_tc() {
    for modes in [
        [Mode::Native, Mode::Tc],
        [Mode::Tc, Mode::Native],
        [Mode::Generic, Mode::Tc],
        [Mode::Native, Mode::Native],
        [Mode::Generic, Mode::Generic],
    ] {
        let hosts = hosts();
        println!("{modes:?}");
        let report = routed(&hosts, modes.map(Some), || talk(&hosts));
        if modes.contains(&Mode::Tc) {
            assert!(all(&report, Counter::Forwarded) > 1000, "{report:?}");
        }
    }
}

/// With GRO a veth takes frames from XDP; a checksum that is only begun would be sent as it is.
#[test]
fn a_begun_checksum_is_left_to_the_kernel_in_xdp() {
    for mode in [Mode::Native, Mode::Generic] {
        let hosts = RoutedHosts::new().expect("the kernel forwards");
        let report = routed(&hosts, [Some(mode); 2], || talk(&hosts));
        assert!(all(&report, Counter::Begun) > 100, "{report:?}");
        let note = "packets from east0 whose checksums are only begun are left to the kernel: it \
                    is a veth, and the program runs in XDP";
        assert!(
            report.notes.contains(&note.to_owned()),
            "{:?}",
            report.notes
        );
    }
}

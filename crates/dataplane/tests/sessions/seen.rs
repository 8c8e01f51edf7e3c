//! What a worker does can be seen while it works: its load, and the ports that it has.

use std::time::Duration;

use dataplane::report::PortReport;

use crate::lab::*;
use wire::parse::protocol::UDP;

#[test]
fn time_is_busy_from_a_turn_with_frames_to_the_next() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    let before = lab.sim.load();
    lab.queue(a, udp(a, b, Family::V4, 1, 2), Default::default());
    assert_eq!(lab.sim.turn().frames, 1);
    lab.sim.let_pass(Duration::from_micros(3));
    assert_eq!(lab.sim.turn().frames, 0);
    // Turns that find nothing are awake and not busy.
    lab.sim.let_pass(Duration::from_micros(500));
    lab.sim.turn();
    let load = lab.sim.load();
    assert_eq!(load.at_ns - before.at_ns, 503_000);
    assert_eq!(load.busy_ns - before.busy_ns, 3_000);
    assert_eq!(
        (
            load.turns - before.turns,
            load.busy_turns - before.busy_turns
        ),
        (3, 1)
    );
    assert_eq!(
        (
            load.frames - before.frames,
            load.batches[0] - before.batches[0]
        ),
        (1, 1)
    );
    assert_eq!(lab.received(b).len(), 1);
}

#[test]
fn a_worker_tells_which_ports_it_has_and_one_nic_s_rings() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    lab.passes(a, b, udp(a, b, Family::V4, 1, 2));
    lab.sim.let_pass(Duration::from_micros(70));
    let quiet = |nic: Nic, quiet_us: u64| PortReport {
        slot: nic.slot,
        pair: 0,
        polled: true,
        quiet_ns: quiet_us * 1000,
        info: None,
    };
    // B has sent nothing since it came, at the same moment.
    let mut all = lab.sim.ports(None);
    all.iter_mut().for_each(|port| port.polled = true);
    assert_eq!(all, [quiet(a, 70), quiet(b, 70)]);
    let one = lab.sim.ports(Some(b.slot));
    let info = one[0].info.clone().expect("one NIC's rings");
    assert_eq!(one.len(), 1);
    assert_eq!(
        (
            info.kind,
            info.up,
            info.frames_received,
            info.frames_transmitted
        ),
        ("memory", true, 0, 1)
    );
    // A quiet port is not polled any more; it is there all the same.
    lab.wait(1);
    assert_eq!(
        lab.sim
            .ports(Some(a.slot))
            .iter()
            .map(|port| port.polled)
            .collect::<Vec<_>>(),
        [false]
    );
    lab.sim.detach(a.slot);
    assert_eq!(lab.sim.ports(Some(a.slot)), []);
    assert_eq!(lab.sim.ports(None).len(), 1);
}

//! The largest overlay, alone in its process so that what it takes can be read off: a million MACs
//! of 350,000 VNIs on 10,667 hosts, one address each. It comes in one step, is asked for, one more
//! is refused, and it goes in one step.

mod common;

use butterfly_control::model::{Binding, Config};
use butterfly_control::{Controller, HostSettings, limits};
use common::{Nowhere, resident};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::{Mac, Vni};

/// What docs/limits.md states, in MiB, for all of it.
const STATED_MIB: usize = 400;
const MIB: usize = 1 << 20;

#[test]
fn a_million_bindings_take_what_the_documentation_says() {
    let stated = format!("{STATED_MIB} MiB");
    assert!(
        include_str!("../../../docs/limits.md").contains(&stated),
        "{stated}"
    );
    let snapshots = Arc::new(Nowhere::default());
    let mut controller = Controller::new(
        HostSettings::default(),
        Box::new(Nowhere::default()),
        snapshots.clone(),
    );
    let empty = controller.config();

    let before = resident() / MIB;
    controller.put_bindings(million().collect()).unwrap();
    let taken = resident() / MIB - before;
    println!("a million bindings take {taken} MiB");
    // Memory that the operation itself needed and has not been given back by the allocator is
    // counted, too.
    assert!(taken <= STATED_MIB, "{taken} MiB");
    let status = controller.status();
    assert_eq!(
        (status.bindings, status.vnis, status.hosts),
        (limits::BINDINGS, limits::VNIS, limits::HOSTS)
    );

    let vni = Vni::new(7).unwrap();
    assert_eq!(controller.network(vni).bindings, 3);
    let known = controller.hosts().next().unwrap().host.address;
    let one_more = Binding::new(vni, Mac([2, 1, 0, 0, 0, 0]), known);
    let error = controller
        .put_bindings(vec![one_more])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the daemon would have 1000001 bindings, the limit is 1000000"
    );

    controller.apply(Config::default(), false).unwrap();
    assert_eq!(controller.config(), empty);
    // Nobody here is in any of these networks: what is compiled is who may send at all.
    assert!(snapshots.0.load(Ordering::Relaxed) <= 2);
}

/// MAC n is in VNI n % 350,000, at host n % 10,667.
fn million() -> impl Iterator<Item = Binding> {
    (0..limits::BINDINGS).map(|n| {
        let [a, b, c, d] = (n as u32).to_be_bytes();
        let vni = Vni::new((n % limits::VNIS) as u32).unwrap();
        let host = IpAddr::from((0x0a00_0001 + (n % limits::HOSTS) as u32).to_be_bytes());
        Binding {
            ips: [IpAddr::from([42, b, c, d])].into(),
            ..Binding::new(vni, Mac([2, 0, a, b, c, d]), host)
        }
    })
}

//! What one host, one VNI and one binding take, alone in their process so that it can be read
//! off.

mod common;

use butterfly_control::model::{Binding, Config, Host, Membership};
use butterfly_control::{Controller, HostSettings, limits};
use common::{Nowhere, resident};
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Mac, Vni};

/// Bytes at the most, as docs/limits.md states them.
const STATED: [(&str, usize); 3] = [("host", 1024), ("VNI", 256), ("binding", 384)];

/// Of each but hosts a fifth of what there may be: enough to tell.
const VNIS: usize = limits::VNIS / 5;
const BINDINGS: usize = limits::BINDINGS / 5;

#[test]
fn a_host_a_vni_and_a_binding_take_what_the_documentation_says() {
    let mut controller = Controller::new(
        HostSettings::default(),
        Box::new(Nowhere::default()),
        Arc::new(Nowhere::default()),
    );
    let mut taken = Vec::new();
    let mut measure = |count: usize, what: &mut dyn FnMut()| {
        let before = resident();
        what();
        taken.push((resident() - before) / count);
    };

    let config = Config {
        hosts: (0..limits::HOSTS)
            .map(|n| (host(n), Host::new(host(n))))
            .collect(),
        ..Config::default()
    };
    measure(limits::HOSTS, &mut || {
        controller.apply(config.clone(), false).unwrap();
    });
    let everywhere = Host {
        vnis: Membership::Listed((0..VNIS).map(vni).collect()),
        ..Host::new(host(0))
    };
    measure(VNIS, &mut || {
        controller.put_host(everywhere.clone()).unwrap();
    });
    measure(BINDINGS, &mut || {
        let bindings = (0..BINDINGS).map(binding).collect();
        controller.put_bindings(bindings).unwrap();
    });

    let document = include_str!("../../../docs/limits.md");
    for ((name, stated), taken) in STATED.into_iter().zip(taken) {
        println!("{name}: {taken} bytes");
        let row = format!("| {name} | {stated} |");
        assert!(
            document.contains(&row),
            "docs/limits.md does not say '{row}'"
        );
        // Nor is it far from the truth.
        assert!(
            (stated / 8..=stated).contains(&taken),
            "{name}: {taken} bytes and not {stated}"
        );
    }
}

fn host(n: usize) -> IpAddr {
    IpAddr::from((0x0a00_0001 + n as u32).to_be_bytes())
}

fn vni(n: usize) -> Vni {
    Vni::new(n as u32).unwrap()
}

/// MAC n, with an address, is in VNI n % 70,000, at the one host that is in all of them.
fn binding(n: usize) -> Binding {
    let [a, b, c, d] = (n as u32).to_be_bytes();
    Binding {
        ips: [IpAddr::from([42, b, c, d])].into(),
        ..Binding::new(vni(n % VNIS), Mac([2, 0, a, b, c, d]), host(0))
    }
}

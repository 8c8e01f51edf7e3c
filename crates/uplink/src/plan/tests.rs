//! Plans for tables of the kernel that are written down here.

use netlink::{Address, Vlan};

use super::*;

/// `eth0`, `eth1`, `eth1.7` on it, `bond0` and `lo`; 192.0.2.1 on eth0, 198.51.100.1 and fe80::1 on
/// eth1.7, 203.0.113.1 on lo.
fn kernel() -> Snapshot {
    let mut kernel = Snapshot::default();
    let mut link = |index: u32, name: &str, change: &dyn Fn(&mut Link)| {
        let mut link = Link {
            index,
            name: name.to_owned(),
            mac: None,
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            no_arp: false,
            ethernet: true,
            kind: None,
            vlan: None,
            master: None,
            held_back: false,
            rx_queues: 1,
            tx_queues: 1,
            xdp_program: None,
        };
        change(&mut link);
        kernel.links.insert(index, Arc::new(link));
    };
    link(1, "lo", &|link| {
        (link.loopback, link.ethernet) = (true, false)
    });
    link(2, "eth0", &|_| ());
    link(3, "eth1", &|_| ());
    link(4, "eth1.7", &|link| {
        link.kind = Some("vlan".to_owned());
        link.vlan = Some(Vlan {
            parent: 3,
            id: 7,
            protocol: 0x8100,
            maps_priorities: false,
        });
    });
    link(5, "bond0", &|link| link.kind = Some("bond".to_owned()));
    link(6, "wg0", &|link| link.ethernet = false);
    for (ifindex, ip, scope) in [
        (1, "203.0.113.1", 0),
        (2, "192.0.2.1", 0),
        (4, "198.51.100.1", 0),
        (4, "fe80::1", 253),
        (6, "10.0.0.1", 0),
    ] {
        let ip: IpAddr = ip.parse().unwrap();
        let address = Address {
            ifindex,
            ip,
            prefix_len: 24,
            peer: None,
            broadcast: None,
            scope,
            flags: 0,
            label: String::new(),
        };
        kernel.addresses.insert((ifindex, ip), Arc::new(address));
    }
    kernel
}

/// The uplinks (`name: addresses`, or `name! why`), and the endpoints.
fn planned(interfaces: &[&str], addresses: &[&str]) -> (Vec<String>, String) {
    let settings = UplinkSettings {
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        by_address: interfaces.is_empty(),
        tap: None,
    };
    let plan = plan(&settings, &kernel());
    let show = |wanted: &Wanted| match &wanted.link {
        Ok(link) => {
            assert_eq!(link.name, wanted.name);
            let addresses: Vec<String> = wanted.addresses.iter().map(IpAddr::to_string).collect();
            format!("{}: {}", wanted.name, addresses.join(" "))
        }
        Err(why) => format!("{}! {why}", wanted.name),
    };
    let endpoints: Vec<String> = plan
        .endpoints
        .iter()
        .map(|(ip, vlan)| format!("{ip}/{vlan}"))
        .collect();
    (plan.uplinks.iter().map(show).collect(), endpoints.join(" "))
}

#[test]
fn the_interface_that_has_the_address() {
    let is = |uplinks: &[&str], endpoints: &str| {
        (
            uplinks.iter().map(|s| (*s).to_owned()).collect(),
            endpoints.to_owned(),
        )
    };
    assert_eq!(
        planned(&[], &["192.0.2.1"]),
        is(&["eth0: 192.0.2.1"], "192.0.2.1/0")
    );
    assert_eq!(
        planned(&[], &["198.51.100.1"]),
        is(&["eth1: 198.51.100.1"], "198.51.100.1/7")
    );
    assert_eq!(planned(&[], &["192.0.2.9"]), is(&[], ""));
    assert_eq!(planned(&[], &[]), is(&[], ""));
    assert_eq!(
        planned(&[], &["192.0.2.1", "198.51.100.1"]),
        is(
            &["eth0: 192.0.2.1", "eth1: 198.51.100.1"],
            "192.0.2.1/0 198.51.100.1/7"
        )
    );
    let (uplinks, _) = planned(&[], &["203.0.113.1"]);
    assert!(
        uplinks[0].starts_with("lo! 'lo' is a loopback: name the interfaces"),
        "{uplinks:?}"
    );
    let (uplinks, _) = planned(&[], &["10.0.0.1"]);
    assert_eq!(uplinks, ["wg0! 'wg0' is not an Ethernet interface"]);
}

#[test]
fn the_interfaces_that_are_named() {
    let (uplinks, endpoints) = planned(&["eth0", "eth1", "eth0", "eth9"], &["203.0.113.1"]);
    let expected = [
        "eth0: 203.0.113.1",
        "eth1: 203.0.113.1",
        "eth9! there is no interface 'eth9'",
    ];
    assert_eq!(
        (uplinks.as_slice(), endpoints.as_str()),
        (
            &expected.map(str::to_owned)[..],
            "203.0.113.1/0 203.0.113.1/7"
        ),
        "an address of the loopback comes in the VLANs of the uplinks too"
    );
    // A VLAN subinterface is reached by the one below it; without addresses given it is its own
    // that count.
    let (uplinks, endpoints) = planned(&["eth1.7"], &[]);
    assert_eq!(
        (uplinks.join(""), endpoints.as_str()),
        ("eth1: 198.51.100.1".to_owned(), "198.51.100.1/7")
    );
    let (uplinks, endpoints) = planned(&["eth0"], &["192.0.2.9"]);
    assert_eq!(
        (uplinks.join(""), endpoints.as_str()),
        ("eth0: ".to_owned(), "")
    );
}

#[test]
fn one_that_is_named_beside_those_that_have_the_addresses() {
    let planned = |named: &str, address: &str| {
        let settings = UplinkSettings {
            addresses: vec![address.parse().unwrap()],
            interfaces: vec![named.to_owned()],
            by_address: true,
            tap: Some("butterfly0".to_owned()),
        };
        let plan = plan(&settings, &kernel());
        let names: Vec<String> = plan.uplinks.into_iter().map(|one| one.name).collect();
        (names.join(" "), plan.nowhere)
    };
    assert_eq!(
        planned("eth1", "192.0.2.1"),
        ("eth1 eth0".to_owned(), false)
    );
    assert_eq!(
        planned("eth1", "203.0.113.1"),
        ("eth1".to_owned(), false),
        "the loopback has the address, and is no way out"
    );
    assert_eq!(planned("eth1", "192.0.2.9"), ("eth1".to_owned(), false));
}

/// The NICs of each uplink that are to leave tags in.
fn trunks(kernel: &Snapshot, interfaces: &[&str], address: &str) -> Vec<Vec<u32>> {
    let settings = UplinkSettings {
        addresses: vec![address.parse().unwrap()],
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        by_address: false,
        tap: None,
    };
    let uplinks = plan(&settings, kernel).uplinks.into_iter();
    uplinks
        .map(|wanted| wanted.trunks.into_iter().collect())
        .collect()
}

/// Whoever has the addresses.
#[test]
fn which_uplinks_have_vlans_is_known() {
    let found = trunks(&kernel(), &["eth0", "eth1", "gone0"], "192.0.2.1");
    assert_eq!(found, [vec![], vec![3], vec![]]);
    // An address in a VLAN that may come in by any of them.
    let found = trunks(&kernel(), &["eth0", "eth1"], "203.0.113.1");
    assert_eq!(found, [[2], [3]]);
}

/// The kernel has VLANs on a bond, and its ports take the tags out, whichever of them are named.
#[test]
fn ports_of_a_bond_with_vlans_are_to_leave_tags_in() {
    let mut kernel = kernel();
    let mut change = |index: u32, change: &dyn Fn(&mut Link)| {
        let mut link = Link::clone(&kernel.links[&index]);
        change(&mut link);
        kernel.links.insert(index, Arc::new(link));
    };
    for port in [2, 3] {
        change(port, &|link| link.master = Some(5));
    }
    // eth1.7 is on the bond now.
    change(4, &|link| link.vlan.as_mut().unwrap().parent = 5);
    let found = trunks(&kernel, &["eth0", "eth1"], "192.0.2.1");
    assert_eq!(found, [[2], [3]]);
    assert_eq!(trunks(&kernel, &["bond0"], "192.0.2.1"), [[2, 3]]);
    // By an address of ours in a VLAN.
    assert_eq!(trunks(&kernel, &["bond0"], "198.51.100.1"), [[2, 3]]);
}

#[test]
fn a_bond_is_for_generic_mode() {
    let settings = UplinkSettings {
        addresses: Vec::new(),
        interfaces: vec!["bond0".to_owned(), "eth0".to_owned()],
        by_address: false,
        tap: None,
    };
    let generic: Vec<bool> = plan(&settings, &kernel())
        .uplinks
        .iter()
        .map(|wanted| wanted.only_generic.is_some())
        .collect();
    assert_eq!(generic, [true, false]);
}

#[test]
fn what_is_on_our_own_tap_device_is_nowhere() {
    let nowhere = |interfaces: &[&str], address: &str, tap: &str| {
        let settings = UplinkSettings {
            addresses: vec![address.parse().unwrap()],
            interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
            by_address: interfaces.is_empty(),
            tap: Some(tap.to_owned()),
        };
        plan(&settings, &kernel()).nowhere
    };
    assert!(!nowhere(&[], "192.0.2.1", "butterfly0"));
    assert!(nowhere(&[], "192.0.2.99", "butterfly0"));
    assert!(
        nowhere(&[], "192.0.2.1", "eth0"),
        "the device's own, as somebody else set it up"
    );
    assert!(
        !nowhere(&["gone0"], "192.0.2.99", "butterfly0"),
        "it was said which"
    );
}

//! The interfaces that carry our frames.

use std::collections::BTreeSet;
use std::fs;

use api::{shell, v1};
use netlink::{Link, Mirror, Snapshot};
use sys::bpf::TcSide;
use sys::ethtool;
use xdp::occupants;

use super::{Daemon, Findings, Level, Program};

/// Outer IPv4 or IPv6, UDP, VXLAN and the inner Ethernet header (RFC 7348, section 5).
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;

/// Drivers that run XDP programs themselves, and those whose sockets need no copy (the kernel's
/// drivers that have ndo_bpf, and XDP_SETUP_XSK_POOL). Which kernel each came with differs: what
/// the daemon says of an uplink counts.
const NATIVE: &[&str] = &[
    "bnxt_en",
    "bonding",
    "ena",
    "fsl_dpaa2_eth",
    "fsl_enetc",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "rvu_nicpf",
    "sfc",
    "stmmac",
    "tsnep",
    "tun",
    "veth",
    "virtio_net",
    "vmxnet3",
];
const ZERO_COPY: &[&str] = &[
    "gve",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "mlx5_core",
    "nfp",
    "stmmac",
    "tsnep",
];

/// What our frames use, and how they are carried.
pub async fn examine(
    daemon: &Daemon,
    named: &[String],
    findings: &mut Findings,
) -> Result<(), String> {
    let mirror = Mirror::start().await;
    let mirror = mirror.map_err(|e| format!("the kernel's interfaces cannot be read: {e}"))?;
    let snapshot = mirror.snapshot();
    for name in wanted(daemon, named, &snapshot)? {
        let link = snapshot.links.values().find(|link| link.name == name);
        let Some(link) = link else {
            findings.add(
                "interface",
                Level::Problem,
                &name,
                "it is not there, and the daemon is to use it".into(),
                "ip link; it is taken when it comes, under this name",
            );
            continue;
        };
        state(link, findings);
        mtu(link, daemon, &snapshot, findings);
        offloads(link, findings);
        occupied(link, findings);
        attached(link, daemon, findings);
        driver(link, daemon, findings);
        sysctls(link, daemon, findings);
    }
    Ok(())
}

/// The interfaces to look at.
fn wanted(
    daemon: &Daemon,
    named: &[String],
    snapshot: &Snapshot,
) -> Result<BTreeSet<String>, String> {
    if !named.is_empty() {
        let there = |name: &String| snapshot.links.values().any(|link| link.name == *name);
        return match named.iter().find(|name| !there(name)) {
            Some(name) => Err(format!("there is no interface '{name}'")),
            None => Ok(named.iter().cloned().collect()),
        };
    }
    let used = daemon.uplinks.iter().map(|uplink| uplink.interface.clone());
    let used = used.chain(daemon.programs.iter().map(|one| one.interface.clone()));
    let mut all: BTreeSet<String> = used.collect();
    if daemon.silent.is_some() {
        let hardware = snapshot.links.values();
        let hardware = hardware
            .filter(|link| link.up && link.ethernet && !link.loopback && link.kind.is_none());
        all.extend(hardware.map(|link| link.name.clone()));
    }
    Ok(all)
}

fn state(link: &Link, findings: &mut Findings) {
    let (what, remedy) = match (link.up, link.carrier) {
        (true, true) => return findings.ok("interface", &link.name, "up, with a carrier".into()),
        (false, _) => (
            "it is down",
            format!("ip link set {} up", shell::word(&link.name)),
        ),
        (true, false) => (
            "it has no carrier",
            "look at the cable, and at the other end's port".into(),
        ),
    };
    findings.add("interface", Level::Problem, &link.name, what.into(), remedy);
}

/// From the NICs to the wire.
fn mtu(link: &Link, daemon: &Daemon, snapshot: &Snapshot, findings: &mut Findings) {
    let name = &link.name;
    // A VLAN's frames go by the interface below, a bond's by its ports.
    let lower = link.vlan.as_ref().map(|vlan| vlan.parent);
    let below = snapshot.links.values().filter(|other| {
        Some(other.index) == lower || other.master == Some(link.index) && link.is("bond")
    });
    for other in below.filter(|other| other.mtu < link.mtu) {
        findings.add(
            "mtu_below",
            Level::Problem,
            name,
            format!(
                "its MTU is {}, and {}, which carries its frames, has {}",
                link.mtu, other.name, other.mtu
            ),
            format!("ip link set {} mtu {}", shell::word(&other.name), link.mtu),
        );
    }
    let Some(uplink) = daemon
        .uplinks
        .iter()
        .find(|uplink| uplink.interface == *name)
    else {
        return findings.ok("mtu", name, format!("MTU {}", link.mtu));
    };
    let is_v6 = uplink.addresses.iter().any(|address| address.contains(':'));
    let overhead = if is_v6 { OVERHEAD_V6 } else { OVERHEAD_V4 };
    let room = link.mtu.saturating_sub(overhead);
    let too_large = daemon.nics.iter().filter(|nic| nic.mtu > room);
    let ids: Vec<&str> = too_large
        .filter_map(|nic| Some(nic.nic.as_ref()?.id.as_str()))
        .collect();
    let largest = daemon.nics.iter().map(|nic| nic.mtu).max().unwrap_or(0);
    match ids.first() {
        None => findings.ok(
            "mtu",
            name,
            format!("MTU {}, which carries packets of {room} bytes", link.mtu),
        ),
        Some(first) => findings.add(
            "mtu",
            Level::Warning,
            name,
            format!(
                "its MTU is {}: with {overhead} bytes of VXLAN it carries packets of {room}, and \
                 {} NICs (as {first}) have an MTU of up to {largest}",
                link.mtu,
                ids.len()
            ),
            format!(
                "ip link set {} mtu {}, and the network's ports likewise; or nic-mtu = {room}",
                shell::word(name),
                largest + overhead
            ),
        ),
    }
}

/// What the device does to frames before a program sees them.
fn offloads(link: &Link, findings: &mut Findings) {
    let name = link.name.as_str();
    if ethtool::merges_segments(name) == Some(true) {
        findings.add(
            "lro",
            Level::Warning,
            name,
            "it merges TCP segments (LRO): what is forwarded is too large for the next link, and \
             XDP in the driver is refused"
                .into(),
            format!("ethtool -K {} lro off", shell::word(name)),
        );
    } else {
        findings.ok("lro", name, "segments are not merged by the device".into());
    }
    if ethtool::strips_vlan_tags(name) == Some(true) && !link.is("veth") {
        findings.add(
            "rx_vlan",
            Level::Note,
            name,
            "it takes VLAN tags out of what it receives, which programs then do not see; the \
             daemon turns that off where it uses VLANs"
                .into(),
            format!("ethtool -K {} rxvlan off", shell::word(name)),
        );
    }
    if ethtool::vouches_for_checksums(name) == Some(false) {
        findings.add(
            "rx_checksum",
            Level::Warning,
            name,
            "it does not check the checksums of what it receives: the processor does".into(),
            format!("ethtool -K {} rx on", shell::word(name)),
        );
    }
}

/// Who else looks at its frames.
fn occupied(link: &Link, findings: &mut Findings) {
    let name = &link.name;
    let shown = shell::word(name);
    match link.xdp_program {
        Some(id) if !occupants::is_ours(id) => findings.add(
            "foreign_xdp",
            Level::Problem,
            name,
            format!(
                "program {id} ({}) is attached in XDP, and is not ours: ours cannot be",
                occupants::program(id).name
            ),
            format!(
                "bpftool prog show id {id} says whose it is; ip link set {shown} xdp off \
                 detaches it"
            ),
        ),
        Some(id) => findings.ok("foreign_xdp", name, format!("program {id} in XDP is ours")),
        None => findings.ok("foreign_xdp", name, "no program in XDP".into()),
    }
    for (side, word) in [(TcSide::Ingress, "ingress"), (TcSide::Egress, "egress")] {
        let Ok(all) = occupants::of(link.index, side) else {
            continue;
        };
        let foreign = all
            .iter()
            .filter(|one| !one.id.is_some_and(occupants::is_ours));
        for one in foreign {
            let program = one
                .id
                .map_or(String::new(), |id| format!(" (program {id})"));
            let level = if word == "ingress" {
                Level::Warning
            } else {
                Level::Note
            };
            findings.add(
                "foreign_tc",
                level,
                name,
                format!(
                    "{}{program} is at tc {word}, and is not ours: what it takes we do not \
                     see, nor it what we take",
                    one.name
                ),
                format!("tc filter show dev {shown} {word}; bpftool net show dev {shown}"),
            );
        }
    }
}

/// How our programs run on it.
fn attached(link: &Link, daemon: &Daemon, findings: &mut Findings) {
    let name = &link.name;
    let ours = daemon.programs.iter().filter(|one| one.interface == *name);
    for Program { of, mode, why, .. } in ours {
        let is_attached = *mode != v1::XdpMode::Unspecified;
        if !is_attached || !why.is_empty() {
            let lacks = match is_attached {
                true => "does not do all that it should",
                false => "is not attached",
            };
            let why = match why.as_str() {
                "" => String::new(),
                why => format!(": {why}"),
            };
            findings.add(
                "xdp_mode",
                Level::Problem,
                name,
                format!("the {of}'s program {lacks}{why}"),
                "mend what is named, and give it the interface anew; with --mode tc where the \
                 driver is in the way",
            );
        }
        if *mode == v1::XdpMode::Generic {
            let driver = ethtool::driver(name).unwrap_or_default();
            findings.add(
                "xdp_mode",
                Level::Warning,
                name,
                format!("the {of}'s program runs behind the driver ({driver}), not in it"),
                "a driver with native XDP; ethtool -L fewer queues, or a smaller MTU, where it \
                 asks for that",
            );
        }
    }
}

/// How fast frames come to us.
fn driver(link: &Link, daemon: &Daemon, findings: &mut Findings) {
    let name = &link.name;
    let driver = ethtool::driver(name).unwrap_or_default();
    if let Some(uplink) = daemon
        .uplinks
        .iter()
        .find(|uplink| uplink.interface == *name)
    {
        match uplink.why.as_str() {
            "" => findings.ok("uplink_mode", name, uplink.mode.clone()),
            why if uplink.joined => findings.add(
                "uplink_mode",
                Level::Note,
                name,
                format!("it is joined by {}, not better: {why}", uplink.mode),
                "docs/uplink.md: the modes, and what each takes",
            ),
            why => findings.add(
                "uplink_mode",
                Level::Problem,
                name,
                format!("it is not joined: {why}"),
                "docs/uplink.md: the modes, and what each takes",
            ),
        }
        return;
    }
    let (native, copies) = (
        NATIVE.contains(&driver.as_str()),
        !ZERO_COPY.contains(&driver.as_str()),
    );
    match (native, copies) {
        _ if driver.is_empty() => findings.ok("driver", name, "its driver has no name".into()),
        (true, false) => findings.ok("driver", name, format!("{driver}: native XDP, zero copy")),
        (true, true) => findings.ok(
            "driver",
            name,
            format!("{driver}: native XDP; frames are copied once more"),
        ),
        (false, _) => findings.add(
            "driver",
            Level::Note,
            name,
            format!("{driver} is not known to run XDP programs itself: ours run behind it"),
            "a device whose driver does, for more than about a million packets a second",
        ),
    }
}

fn sysctls(link: &Link, daemon: &Daemon, findings: &mut Findings) {
    let name = &link.name;
    let shown = shell::word(name);
    let read = |path: String| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    // A dot in a name is a slash for sysctl(8).
    let routed = daemon.programs.iter().any(|one| one.interface == *name);
    for (family, key) in [("ipv4", "ipv4"), ("ipv6", "ipv6")] {
        let forwards = read(format!("/proc/sys/net/{family}/conf/{name}/forwarding"));
        if routed && forwards == Some(0) {
            findings.add(
                "forwarding",
                Level::Note,
                name,
                format!(
                    "{family} is not forwarded from it (net.{key}.conf.{name}.forwarding is 0)"
                ),
                format!("sysctl -w net/{key}/conf/{shown}/forwarding=1, if the router is to"),
            );
        }
    }
    let own = read(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    let all = read("/proc/sys/net/ipv4/conf/all/rp_filter".into()).unwrap_or(0);
    match own.max(all) {
        1 => findings.add(
            "rp_filter",
            Level::Warning,
            name,
            "net.ipv4.conf.*.rp_filter is 1 (strict): packets whose way back is another interface \
             are dropped, as with several uplinks or direct server return"
                .into(),
            format!("sysctl -w net/ipv4/conf/all/rp_filter=2 net/ipv4/conf/{shown}/rp_filter=2"),
        ),
        _ => findings.ok(
            "rp_filter",
            name,
            "sources are not filtered strictly".into(),
        ),
    }
}

//! Every tunnel over a VLAN: clients in one, the server that takes them off in another.

use butterfly_tests::lab::check;
use butterfly_tests::tunnels::{SERVER, TUNNELS};
use serde_json::{Value, json};
use testkit::Result;

use crate::stage::Pair;
use crate::world;

const HOST: &str = "set -e
    sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
    net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    for vlan in 10 20; do ip link add link eth0 name v$vlan type vlan id $vlan
    ip link set v$vlan up; done
    ip addr add 10.0.10.3/24 dev v10 && ip addr add fd10::3/64 dev v10
    ip addr add 10.1.2.3/24 dev v20 && ip addr add fd01::3/64 dev v20";

/// The server's VLAN interface is its `eth0`.
const HOSTS: &str = "
    for vlan in 10 20; do ip link add link eth0 name v$vlan type vlan id $vlan; done
    host client v10 10.0.10.1 10.0.10.3
    two_families fd10::1 v10 fd10::3
    space server v20
    $in ip link set v20 down && $in ip link set v20 name eth0 && $in ip link set eth0 up";

/// Four tunnels, over IPv4 and IPv6, with IPv4 and IPv6 inside: checks and downloads through each,
/// and Linux counts them where they come out.
pub fn every_tunnel_over_a_vlan(pair: &mut Pair) -> Result<()> {
    pair.host.ok(HOST)?;
    pair.world.ok(&format!(
        "{}; {HOSTS}; {SERVER}; $in ip route add default via 10.1.2.3; \
         $in ip -6 route add default via fd01::3",
        world::FUNCTIONS
    ))?;
    pair.balance(
        &["eth0"],
        "native",
        &services(),
        &"1".repeat(2 * TUNNELS.len()),
    )?;
    let before = counted(pair)?;
    let vips = "for n in $(seq 8); do for vip in 192.168.101.$n [fd99::$n]; do";
    let pages = pair.world.ok(&format!(
        "{vips} nsenter -t $(cat /run/client) -n timeout 20 wget -q -O - http://$vip/ || \
         echo nothing from $vip; done; done"
    ))?;
    check(
        pages == "served\n".repeat(2 * TUNNELS.len()),
        &format!("each is served: {pages}"),
    )?;
    let now = counted(pair)?;
    for ((device, old), (_, new)) in before.iter().zip(&now) {
        // By each of these come two services at least, and of each connection SYN, ACK, request,
        // FIN.
        check(
            new - old >= 8,
            &format!("{} packets came out of {device}", new - old),
        )?;
    }
    pair.give_back()
}

fn services() -> String {
    let mut services = Vec::new();
    for (n, tunnel) in (1..).zip(&TUNNELS) {
        let kind = tunnel.options.split(' ').next().unwrap_or_default();
        for (vip, port) in [
            (format!("192.168.101.{n}"), 5555),
            (format!("fd99::{n}"), 5556),
        ] {
            let mut service = json!({
                "key": { "vip": vip, "port": 80, "protocol": 6 },
                "encapsulation": format!("ENCAPSULATION_{}", kind.to_uppercase()),
                "check": { "http": {}, "intervalMs": 5000, "timeoutMs": 5000 },
                "servers": [{ "address": tunnel.server }],
            });
            // The port says what is inside.
            if kind == "fou" {
                service["tunnelPort"] = Value::from(port);
            }
            services.push(service);
        }
    }
    json!({ "balancer": { "services": services } }).to_string()
}

/// Packets that came out of each of the server's tunnels.
fn counted(pair: &Pair) -> Result<Vec<(&'static str, u64)>> {
    let text = pair
        .world
        .ok("nsenter -t $(cat /run/server) -n cat /proc/net/dev")?;
    let of = |device: &'static str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
        let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        packets
            .map(|packets| (device, packets))
            .ok_or_else(|| format!("no {device} in {text}"))
    };
    ["tunl0", "sit0", "gre0", "six", "gre6"]
        .into_iter()
        .map(of)
        .collect()
}

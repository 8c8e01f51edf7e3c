//! Every tunnel to a server, and how Linux takes it off: modules that this
//! machine's kernel lacks, so the server is a guest, or a namespace in one.

/// A tunnel to the server.
pub struct Tunnel {
    /// The options on the command line; `%` is the port that the server listens on for what is
    /// inside.
    pub options: &'static str,
    /// Its address.
    pub server: &'static str,
    /// The server's devices that packets come out of: those of IPv4, those of IPv6.
    pub devices: [&'static str; 2],
}

const V4: &str = "10.1.2.10";
const V6: &str = "fd01::10";

/// All of them, over IPv4 and IPv6.
pub const TUNNELS: [Tunnel; 8] = [
    Tunnel {
        options: "ipip",
        server: V4,
        devices: ["tunl0", "sit0"],
    },
    Tunnel {
        options: "gre",
        server: V4,
        devices: ["gre0", "gre0"],
    },
    Tunnel {
        options: "fou --tunnel-port %",
        server: V4,
        devices: ["tunl0", "sit0"],
    },
    Tunnel {
        options: "gue",
        server: V4,
        devices: ["tunl0", "sit0"],
    },
    Tunnel {
        options: "ipip",
        server: V6,
        devices: ["six", "six"],
    },
    Tunnel {
        options: "gre",
        server: V6,
        devices: ["gre6", "gre6"],
    },
    Tunnel {
        options: "fou --tunnel-port %",
        server: V6,
        devices: ["six", "six"],
    },
    Tunnel {
        options: "gue",
        server: V6,
        devices: ["six", "six"],
    },
];

/// What the server sets up in a guest, its `eth0` being on the balancer's network: Linux's tunnels,
/// and its addresses. `$in` enters the server's namespace, if it is in one.
pub const SERVER: &str = "set -e
    for module in ipip sit ip_gre ip6_tunnel ip6_gre fou fou6; do modprobe $module; done
    $in ip addr add 10.1.2.10/24 dev eth0 && $in ip addr add fd01::10/64 dev eth0 nodad
    $in sysctl -q -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
    for n in 1 2 3 4 5 6 7 8; do $in ip addr add 192.168.101.$n dev lo
    $in ip addr add fd99::$n dev lo; done
    for device in tunl0 sit0 gre0; do $in ip link set $device up; done
    $in ip link add six type ip6tnl mode any local fd01::10 remote fd01::3 && $in ip link set six up
    $in ip link add gre6 type ip6gre local fd01::10 remote fd01::3 && $in ip link set gre6 up
    $in ip fou add port 5555 ipproto 4 && $in ip fou add port 5556 ipproto 41 &&
    $in ip fou add port 6080 gue
    $in ip fou add port 5555 ipproto 4 -6 && $in ip fou add port 5556 ipproto 41 -6 &&
    $in ip fou add port 6080 gue -6
    mkdir -p /www && echo served >/www/index.html && $in httpd -h /www";

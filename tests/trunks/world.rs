//! What runs in the two guests, as shell.

/// On the balancer's host, for a trunk in `$trunk` that is up: VLANs 10 and 20, and 31 in 30 (or in
/// `$within`); the host's own addresses.
pub const HOST: &str = "set -e
    sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
    net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    ip addr add 10.0.0.3/24 dev $trunk
    ip link add link $trunk name v10 type vlan id 10 && ip link set v10 up
    ip link add link $trunk name v20 type vlan id 20 && ip link set v20 up
    ip link add link $trunk name v30 type vlan id 30 && ip link set v30 up
    ip link add link ${within:-v30} name v31 type vlan id 31 && ip link set v31 up
    ip addr add 10.0.10.3/24 dev v10 && ip addr add fd10::3/64 dev v10
    ip addr add 10.0.20.3/24 dev v20 && ip addr add fd20::3/64 dev v20
    ip addr add 10.0.31.3/24 dev v31
    ip route add 10.0.50.0/24 via 10.0.20.10";

/// The host without a trunk: clients on eth0, servers on eth1 without tags and on eth2 with.
pub const HOST_OF_SEVERAL: &str = "set -e
    sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
    net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    ip addr add 10.0.10.3/24 dev eth0 && ip addr add fd10::3/64 dev eth0
    ip addr add 10.0.0.3/24 dev eth1
    ip link add link eth2 name v20 type vlan id 20 && ip link set v20 up
    ip link add link eth2 name v30 type vlan id 30 && ip link set v30 up
    ip link add link v30 name v31 type vlan id 31 && ip link set v31 up
    ip addr add 10.0.20.3/24 dev v20 && ip addr add fd20::3/64 dev v20
    ip addr add 10.0.31.3/24 dev v31
    ip route add 10.0.50.0/24 via 10.0.20.10";

/// In the other guest, functions: `space NAME DEVICE` makes a namespace with a device, whose
/// holder's id is in /run/NAME, `host NAME DEVICE ADDRESS GATEWAY` one with an address; `serve NAME
/// VIP…` has the last one serve its name, take large uploads and echo UDP and SCTP at these
/// addresses.
pub const FUNCTIONS: &str = "set -e
    space() {
        unshare --net sleep 1000000 >/dev/null 2>&1 &
        echo $! >/run/$1
        until [ \"$(readlink /proc/$!/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]
        do sleep 0.05; done
        ip link set $2 netns $!
        in=\"nsenter -t $! -n\"
        $in sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
        $in ip link set lo up && $in ip link set $2 up
    }
    host() {
        space $1 $2
        $in ip addr add $3/24 dev $2 && $in ip route add default via $4
    }
    serve() {
        name=$1; shift
        for setting in arp_ignore=1 arp_announce=2 rp_filter=0
        do $in sysctl -q -w net.ipv4.conf.all.$setting; done
        for vip in $*; do $in ip addr add $vip dev lo; done
        mkdir -p /www/$name && echo $name >/www/$name/index.html && $in httpd -h /www/$name
        for role in 'tcp-sink 81' 'udp-serve 9' 'sctp-serve 9'
        do $in guest $role >/dev/null 2>&1 & done
    }
    two_families() {
        $in ip addr add $1/64 dev $2 nodad && $in ip route add default via $3
    }";

/// The hosts, on devices `$client` (of VLAN 10), `$once` (20) and `$twice` (30 and in it 31), and
/// this guest's root itself, which has an address on `$bare`. A server of layer 3 is behind the one
/// of VLAN 20, whose datagrams come from the service's address.
pub const HOSTS: &str = "
    host client $client 10.0.10.1 10.0.10.3
    two_families fd10::1 $client fd10::3
    host once $once 10.0.20.10 10.0.20.3
    two_families fd20::10 $once fd20::3
    serve once 192.168.101.1 192.168.101.3 192.168.101.4 fd99::1
    $in ip route add 10.0.10.0/24 via 10.0.20.3 src 192.168.101.4
    $in sysctl -q -w net.ipv4.ip_forward=1
    near=$(cat /run/once)
    ip link add to-far type veth peer name far0
    ip link set to-far netns $near
    $in ip addr add 10.0.50.1/24 dev to-far && $in ip link set to-far up
    modprobe ipip
    host far far0 10.0.50.10 10.0.50.1
    $in sysctl -q -w net.ipv4.conf.default.rp_filter=0
    $in ip link set tunl0 up
    serve far 192.168.101.2
    host twice $twice 10.0.31.10 10.0.31.3
    serve twice 192.168.101.1 192.168.101.3
    in=
    ip addr add 10.0.0.10/24 dev $bare && ip route add default via 10.0.0.3
    serve bare 192.168.101.1";

/// What a trial left, on the balancer's host.
pub const RESET_HOST: &str = "killall -9 butterflyd 2>/dev/null; rm -rf /run/bf
    for link in v31 v30 v20 v10; do ip link del $link 2>/dev/null; done
    ip link del lag 2>/dev/null
    for nic in eth0 eth1 eth2 eth3; do ip link set $nic up; ip addr flush dev $nic scope global
    done; true";

/// And in the other guest: devices go with their namespaces.
pub const RESET_WORLD: &str = "killall -9 httpd guest 2>/dev/null
    for name in client once twice far server; do
        if [ -e /run/$name ]; then kill -9 $(cat /run/$name); rm /run/$name; fi
    done
    ip addr flush dev lo scope global
    for link in v10 v20 v30 v31; do ip link del $link 2>/dev/null; done
    ip link del lag 2>/dev/null; ip link del br0 2>/dev/null
    for nic in eth0 eth1 eth2 eth3; do ip link set $nic up; ip addr flush dev $nic scope global
    done; true";

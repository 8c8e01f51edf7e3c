//! Ways that packets come and go by: IPv6, a bridge, fragments, and what routers on the way say.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use butterfly_tests::lab::check;
use butterfly_tests::lan::take_vip;
use butterfly_tests::web::Connections;
use testkit::netns::Namespace;
use testkit::traffic::{self, Station};
use testkit::{PATIENCE, Result, wait_for};

use crate::stage::{SERVICE, Stage, VIP};

/// The service for clients of IPv6.
pub fn services_of_ipv6(stage: &mut Stage) -> Result<()> {
    const VIP6: &str = "fd99::1";
    let give = |host: &Namespace, address: &str| {
        host.ok(&format!("ip addr add {address}/64 dev eth0 nodad"))
            .map(drop)
    };
    give(&stage.client, "fd01::1")?;
    give(&stage.balancer, "fd01::3")?;
    stage
        .client
        .ok(&format!("ip route add {VIP6} via fd01::3"))?;
    for (index, server) in stage.servers.iter().enumerate() {
        give(&server.host, &format!("fd01::1{index}"))?;
        take_vip(&server.host, VIP6)?;
    }
    stage.set_services(&format!(
        "service add [{VIP6}]:80 --server fd01::10 fd01::11 fd01::12 --check http --check-interval \
         5000 --check-timeout 5000"
    ))?;
    stage.healths_of_become(&format!("[{VIP6}]:80"), &["HEALTHY"; 3])?;
    let to: SocketAddr = format!("[{VIP6}]:80").parse().map_err(|e| format!("{e}"))?;
    let mut connections = Connections::open(&stage.client, to, 300)?;
    check(
        (0..3).all(|n| connections.to(&format!("s{n}")) > 50),
        "all servers have their share",
    )?;
    stage.set_services(&format!("service server add [{VIP6}]:80 fd01::13"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server joined: {e}"))?;
    check(
        stage
            .client
            .succeeds(&format!("ping -q -c 1 -W 5 {VIP6}"))?,
        "echo is answered",
    )?;
    // Where a packet goes is told by a server's MAC address, whichever family it was found by.
    stage.set_services(&format!("service server del [{VIP6}]:80 fd01::12"))?;
    connections.give_up("s2");
    stage.set_services(&format!("service server add [{VIP6}]:80 10.1.2.12"))?;
    stage.healths_of_become(&format!("[{VIP6}]:80"), &["HEALTHY"; 4])?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server took the other family: {e}"))?;
    let connections = Connections::open(&stage.client, to, 300)?;
    check(connections.to("s2") > 30, "it has its share")
}

/// What programs send on interfaces as the kernel makes them: streams in packets of up to 64 KiB,
/// datagrams, in both families and through the balancer in one direction, each byte compared by the
/// server.
pub fn sockets_on_interfaces_as_they_are(stage: &mut Stage) -> Result<()> {
    const VIP6: &str = "fd99::1";
    const BYTES: u64 = 20_000_000;
    let give = |host: &Namespace, address: &str| {
        host.ok(&format!("ip addr add {address}/64 dev eth0 nodad"))
            .map(drop)
    };
    give(&stage.client, "fd01::1")?;
    give(&stage.balancer, "fd01::3")?;
    stage
        .client
        .ok(&format!("ip route add {VIP6} via fd01::3"))?;
    let mut stations = Vec::new();
    for (index, server) in stage.servers.iter().enumerate() {
        give(&server.host, &format!("fd01::1{index}"))?;
        take_vip(&server.host, VIP6)?;
        let vips = [VIP, VIP6].map(|vip| vip.parse().map_err(|e| format!("{vip}: {e}")));
        let vips = vips.into_iter().collect::<Result<Vec<IpAddr>>>()?;
        stations.push(Station::on(&server.host, &vips)?);
    }
    for (vip, servers) in [(VIP, "10.1.2.10 10.1.2.11"), (VIP6, "fd01::10 fd01::11")] {
        let address: IpAddr = vip.parse().map_err(|e| format!("{vip}: {e}"))?;
        let service =
            |port: u16, protocol: &str| format!("{}/{protocol}", SocketAddr::from((address, port)));
        for port in [traffic::UPLOAD, traffic::DOWNLOAD] {
            stage.set_services(&format!(
                "service add {} --server {servers}",
                service(port, "tcp")
            ))?;
        }
        stage.set_services(&format!(
            "service add {} --server {servers}",
            service(traffic::ECHO, "udp")
        ))?;
        for _ in 0..4 {
            traffic::upload(&stage.client, address, BYTES)?;
            traffic::download(&stage.client, address, BYTES)?;
            traffic::echoes(&stage.client, address, &[0, 1, 64, 1400, 9000])?;
        }
        let both = ["10.1.2.10", "10.1.2.11"].map(|server| {
            let server = match address {
                IpAddr::V4(_) => server.to_owned(),
                IpAddr::V6(_) => server.replace("10.1.2.", "fd01::"),
            };
            stage.counter_of(&service(traffic::UPLOAD, "tcp"), &server, "bytes")
        });
        let bytes: u64 = both.into_iter().sum::<Result<u64>>()?;
        check(
            bytes > 4 * BYTES,
            &format!("all of it came by the balancer: {bytes} bytes"),
        )?;
    }
    Ok(())
}

/// The balancer's host has its address on a bridge, and the interface is a port of that.
pub fn a_balancer_behind_a_bridge(stage: &mut Stage) -> Result<()> {
    stage.balancer.ok(
        "ip addr del 10.1.2.3/24 dev eth0 && ip link add br0 address 02:00:00:00:00:b0 type bridge \
         && \
         ip link set eth0 master br0 && ip link set br0 up && ip addr add 10.1.2.3/24 dev br0",
    )?;
    stage.client.ok("ip neigh flush dev eth0")?;
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
    ))?;
    let connections = stage.open(100)?;
    check(
        connections.to("s0") > 20 && connections.to("s1") > 20,
        "both servers have their share",
    )?;
    let way = stage
        .daemon
        .json(&format!("service server list {SERVICE}"))?;
    check(
        way[0]["interface"] == "eth0",
        &format!("by the bridge's port: {way}"),
    )?;
    check(
        stage.client.succeeds("ping -q -c 1 -W 5 10.1.2.3")?,
        "the bridge is the kernel's",
    )
}

/// Datagrams in fragments come whole to one server, however many servers there are.
pub fn datagrams_in_fragments(stage: &mut Stage) -> Result<()> {
    const LEN: usize = 4000;
    let sockets = stage
        .servers
        .iter()
        .map(|server| bind(&server.host, &format!("{VIP}:5353")));
    let sockets = sockets.collect::<Result<Vec<_>>>()?;
    for socket in sockets {
        // They end with the test's process.
        std::thread::spawn(move || {
            let mut buffer = [0; 2 * LEN];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&len.to_be_bytes(), from);
            }
        });
    }
    stage.set_services(&format!(
        "service add {VIP}:5353/udp --server 10.1.2.10 10.1.2.11 10.1.2.12 10.1.2.13"
    ))?;
    for round in 0..20 {
        let client = bind(&stage.client, "10.1.2.1:0")?;
        client
            .set_read_timeout(Some(PATIENCE))
            .map_err(|e| e.to_string())?;
        let sent = client.send_to(&[0x5a; LEN], format!("{VIP}:5353"));
        sent.map_err(|e| format!("datagram {round}: {e}"))?;
        let mut answer = [0; 8];
        let received = client.recv(&mut answer);
        received.map_err(|e| format!("the answer to datagram {round}: {e}"))?;
        check(
            usize::from_be_bytes(answer) == LEN,
            &format!("datagram {round} came whole"),
        )?;
    }
    let counters = (0..4).map(|n| {
        stage.counter_of(
            &format!("{VIP}:5353/udp"),
            &format!("10.1.2.1{n}"),
            "packets",
        )
    });
    let packets = counters.sum::<Result<u64>>()?;
    check(
        packets == 20 * 3,
        &format!("each in three fragments: {packets}"),
    )
}

/// A link behind the client's router takes less than the servers send: the router tells the
/// service's address, and the server of each flow has to hear it.
pub fn errors_reach_the_server_of_their_flow(stage: &mut Stage) -> Result<()> {
    let far = Namespace::new()?;
    let router = &stage.client;
    router.ok(&format!(
        "ip link add to-far type veth peer name eth0 netns {}",
        far.pid()
    ))?;
    far.ok(
        "ethtool -K eth0 tx off >/dev/null && ip addr add 10.9.0.2/24 dev eth0 && \
         ip link set eth0 up && ip route add default via 10.9.0.1",
    )?;
    // The far end knows nothing of it: it offers segments that do not fit.
    router.ok(
        "ip addr add 10.9.0.1/24 dev to-far && ip link set to-far mtu 1280 up && \
         sysctl -q -w net.ipv4.ip_forward=1",
    )?;
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let page = dir.path().join("index.html");
    std::fs::write(&page, [b'x'; 100_000]).map_err(|e| format!("{}: {e}", page.display()))?;
    let mut serving = Vec::new();
    for server in &stage.servers {
        server.host.ok("ip route add 10.9.0.0/24 via 10.1.2.1")?;
        let command = format!("busybox httpd -f -p 81 -h {}", dir.path().display());
        serving.push(server.host.start("httpd", &command)?);
        wait_for("a web server to listen", PATIENCE, || {
            Ok(server
                .host
                .ok("ss -Htln 'sport = 81'")
                .is_ok_and(|text| !text.is_empty())
                .then_some(()))
        })?;
    }
    stage.set_services(&format!(
        "service add {VIP}:81 --server 10.1.2.10 10.1.2.11 10.1.2.12 10.1.2.13"
    ))?;
    for round in 0..16 {
        let got = far.ok(&format!(
            "timeout 20 busybox wget -q -O - http://{VIP}:81/ | wc -c"
        ))?;
        check(
            got.trim() == "100000",
            &format!("download {round} has {got} bytes"),
        )?;
    }
    for (index, server) in stage.servers.iter().enumerate() {
        if stage.counter_of(&format!("{VIP}:81"), &format!("10.1.2.1{index}"), "flows")? > 0 {
            let route = server
                .host
                .ok(&format!("ip route get 10.9.0.2 from {VIP}"))?;
            check(
                route.contains("mtu 1280"),
                &format!("{} has heard of it: {route}", server.name),
            )?;
        }
    }
    Ok(())
}

fn bind(host: &Namespace, address: &str) -> Result<UdpSocket> {
    let socket = host.inside(|| UdpSocket::bind(address))?;
    socket.map_err(|e| format!("bind {address}: {e}"))
}

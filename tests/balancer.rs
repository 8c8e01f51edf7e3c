//! The load balancer among real kernels: clients, the balancer's host and servers are namespaces on one Ethernet; the
//! daemon runs in the balancer's, the servers speak HTTP and answer the clients themselves.

use std::net::SocketAddr;
use std::time::Duration;

use butterfly_tests::Daemon;
use butterfly_tests::daemon::{number, program};
use butterfly_tests::lab::check;
use butterfly_tests::lan::{Lan, take_vip};
use butterfly_tests::web::{Connections, Web, many_descriptors, serve_if_asked};
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::netns::Namespace;
use testkit::{Result, wait_for};

const VIP: &str = "192.168.101.1";
const SERVICE: &str = "192.168.101.1:80";

/// One trial.
type Session = fn(&mut Stage) -> Result<()>;

fn main() {
    if let Err(why) = serve_if_asked() {
        eprintln!("{why}");
        std::process::exit(1);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Session); 5] = [
        ("flows_are_spread_and_counted", flows_are_spread_and_counted),
        (
            "ten_thousand_connections_survive",
            ten_thousand_connections_survive,
        ),
        ("health_is_asked_through_the_vip", health_is_asked_through_the_vip),
        (
            "the_interface_stays_the_kernel_s",
            the_interface_stays_the_kernel_s,
        ),
        (
            "one_command_balances_without_a_daemon",
            one_command_balances_without_a_daemon,
        ),
    ];
    let trials = trials.map(|(name, body)| {
        Trial::test(name, move || {
            let mut stage = Stage::start()?;
            body(&mut stage).map_err(|e| Failed::from(format!("{e}\n{}", stage.dump())))
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// A client 10.1.2.1, the balancer 10.1.2.3 with its daemon, servers 10.1.2.10 and up. All servers have the VIP.
struct Stage {
    client: Namespace,
    balancer: Namespace,
    servers: Vec<Server>,
    daemon: Daemon,
    _lan: Lan,
}

struct Server {
    name: String,
    address: String,
    host: Namespace,
    web: Option<Web>,
}

impl Stage {
    fn start() -> Result<Self> {
        many_descriptors()?;
        let lan = Lan::new()?;
        let client = lan.host("client", &["10.1.2.1/24"])?;
        client.ok(&format!("ip route add {VIP} via 10.1.2.3"))?;
        let balancer = lan.host("balancer", &["10.1.2.3/24"])?;
        let server = |index: usize| -> Result<Server> {
            let (name, address) = (format!("s{index}"), format!("10.1.2.1{index}"));
            let host = lan.host(&name, &[&format!("{address}/24")])?;
            take_vip(&host, VIP)?;
            let web = Some(Web::serve(&host, 80, &name)?);
            Ok(Server {
                name,
                address,
                host,
                web,
            })
        };
        let servers = (0..4).map(server).collect::<Result<Vec<_>>>()?;
        let daemon = Daemon::start_on(Some(balancer.pid()), &[])?;
        daemon.cli("service interface add eth0 --mode generic")?;
        Ok(Self {
            client,
            balancer,
            servers,
            daemon,
            _lan: lan,
        })
    }

    fn open(&self, count: usize) -> Result<Connections> {
        let to: SocketAddr = (VIP.parse::<std::net::Ipv4Addr>().map_err(|e| e.to_string())?, 80).into();
        Connections::open(&self.client, to, count)
    }

    /// A number of a server of the service, by its name in the API.
    fn counter(&self, address: &str, name: &str) -> Result<u64> {
        let servers = self.daemon.json(&format!("service server list {SERVICE}"))?;
        let all = servers.as_array().ok_or("no list of servers")?;
        let one = all.iter().find(|one| one["server"]["address"] == address);
        one.and_then(|one| number(&one["counters"][name]))
            .ok_or_else(|| format!("no {name} of {address} in {servers}"))
    }

    fn healths(&self) -> Result<Vec<String>> {
        let servers = self.daemon.json(&format!("service server list {SERVICE}"))?;
        let health =
            |one: &serde_json::Value| one["health"].as_str().unwrap_or_default().replace("HEALTH_", "");
        Ok(servers.as_array().ok_or("no list")?.iter().map(health).collect())
    }

    fn healths_become(&self, expected: &[&str]) -> Result<()> {
        let what = format!("the servers' healths to be {expected:?}");
        wait_for(&what, Duration::from_secs(15), || {
            Ok((self.healths()? == expected).then_some(()))
        })
    }

    fn dump(&self) -> String {
        let mut text = String::new();
        for line in ["service show", "service stats", "service interface list"] {
            text += &format!(
                "--- butterfly {line}\n{}\n",
                self.daemon.cli(line).unwrap_or_else(|e| e)
            );
        }
        text + &self.daemon.dump()
    }
}

fn flows_are_spread_and_counted(stage: &mut Stage) -> Result<()> {
    stage
        .daemon
        .cli(&format!("service add {SERVICE} --server 10.1.2.10 10.1.2.11*3"))?;
    let connections = stage.open(400)?;
    let (light, heavy) = (connections.to("s0"), connections.to("s1"));
    check(light + heavy == 400, "both servers are all there is")?;
    check(
        (60..140).contains(&light),
        &format!("{light} of 400 go to the server of weight 1 in 4"),
    )?;
    check(
        stage.counter("10.1.2.10", "flows")? == light as u64,
        "flows of the first are exact",
    )?;
    check(
        stage.counter("10.1.2.11", "flows")? == heavy as u64,
        "flows of the second are exact",
    )?;
    // SYN, ACK, request, ACK of the answer.
    let packets = stage.counter("10.1.2.10", "packets")?;
    check(
        packets >= 3 * light as u64,
        &format!("{packets} packets of {light} flows"),
    )?;
    drop(connections);
    // Sticky: one client, one server.
    stage.daemon.cli(&format!("service set {SERVICE} --sticky"))?;
    let connections = stage.open(50)?;
    check(
        connections.to("s0") == 50 || connections.to("s1") == 50,
        "a client of a sticky service has one server",
    )
}

fn ten_thousand_connections_survive(stage: &mut Stage) -> Result<()> {
    stage.daemon.cli(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 10.1.2.12"
    ))?;
    let mut connections = stage.open(10_000)?;
    for server in &stage.servers[..3] {
        let flows = connections.to(&server.name);
        check(
            (2_500..4_200).contains(&flows),
            &format!("{flows} flows to {}", server.name),
        )?;
        check(
            stage.counter(&server.address, "flows")? == flows as u64,
            &format!("flows of {} are counted exactly", server.name),
        )?;
    }
    // One joins.
    stage
        .daemon
        .cli(&format!("service server add {SERVICE} 10.1.2.13"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server joined: {e}"))?;
    check(stage.open(400)?.to("s3") > 50, "the newcomer gets its share")?;
    // One drains: it keeps its flows and gets no new ones.
    stage
        .daemon
        .cli(&format!("service server drain {SERVICE} 10.1.2.10"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server began to drain: {e}"))?;
    check(
        stage.open(400)?.to("s0") == 0,
        "a draining server gets no new flows",
    )?;
    // One dies: the flows of the others do not notice.
    stage.servers[1].host.ok("ip link set eth0 down")?;
    stage.servers[1].web = None;
    stage
        .daemon
        .cli(&format!("service server set {SERVICE} 10.1.2.11 --state down"))?;
    connections.give_up("s1");
    connections
        .ask_all()
        .map_err(|e| format!("after a server died: {e}"))?;
    check(stage.open(400)?.to("s1") == 0, "a dead server gets no flows")?;
    // It is taken out, with the one that drains; what is left goes on.
    stage
        .daemon
        .cli(&format!("service server del {SERVICE} 10.1.2.11"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server was deleted: {e}"))?;
    check(
        connections.len() > 5_000,
        &format!("{} connections are left", connections.len()),
    )
}

fn health_is_asked_through_the_vip(stage: &mut Stage) -> Result<()> {
    // The third server works, but has not got the address.
    stage.servers[2]
        .host
        .ok(&format!("ip addr del {VIP}/32 dev lo"))?;
    stage.daemon.cli(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 10.1.2.12 --min-healthy 2 \
         --check http --check-path / --check-interval 200 --check-timeout 150 --rise 2 --fall 2"
    ))?;
    stage.healths_become(&["HEALTHY", "HEALTHY", "UNHEALTHY"])?;
    check(
        stage.open(100)?.to("s2") == 0,
        "a server that is not healthy gets no flows",
    )?;
    // It gets the address.
    take_vip(&stage.servers[2].host, VIP)?;
    stage.healths_become(&["HEALTHY", "HEALTHY", "HEALTHY"])?;
    check(stage.open(200)?.to("s2") > 20, "it gets its share")?;
    // Two servers stop: below its minimum the service is withdrawn.
    stage.servers[0].web = None;
    stage.servers[1].web = None;
    stage.healths_become(&["UNHEALTHY", "UNHEALTHY", "HEALTHY"])?;
    let show = stage.daemon.cli(&format!("service show {SERVICE}"))?;
    check(
        show.contains("withdrawn"),
        &format!("the service is withdrawn:\n{show}"),
    )?;
    check(
        show.contains("connection refused"),
        &format!("the reason is said:\n{show}"),
    )?;
    // Other checks, against what is there.
    for kind in ["tcp", "command --check-command /bin/true"] {
        stage
            .daemon
            .cli(&format!("service set {SERVICE} --check {kind}"))?;
        let expected = if kind == "tcp" { "UNHEALTHY" } else { "HEALTHY" };
        stage.healths_become(&[expected, expected, "HEALTHY"])?;
    }
    Ok(())
}

fn the_interface_stays_the_kernel_s(stage: &mut Stage) -> Result<()> {
    stage
        .daemon
        .cli(&format!("service add {SERVICE} --server 10.1.2.10"))?;
    let web = Web::serve(&stage.balancer, 8080, "kernel")?;
    let _connections = stage.open(10)?;
    let own: SocketAddr = "10.1.2.3:8080".parse().map_err(|e| format!("{e}"))?;
    let kernel = Connections::open(&stage.client, own, 10)?;
    check(kernel.to("kernel") == 10, "the kernel has the same interface")?;
    check(
        stage.client.succeeds("ping -q -c 1 -W 1 10.1.2.3")?,
        "and answers pings on it",
    )?;
    drop(web);
    let xdp = |stage: &Stage| -> Result<bool> { Ok(stage.balancer.ok("ip link show eth0")?.contains("xdp")) };
    check(xdp(stage)?, "a program is attached")?;
    stage.daemon.cli("service interface del eth0")?;
    check(!xdp(stage)?, "the interface is given back when it is asked for")?;
    stage.daemon.cli("service interface add eth0 --mode generic")?;
    stage.daemon.kill_and_restart()?;
    check(!xdp(stage)?, "and when the daemon is killed")
}

fn one_command_balances_without_a_daemon(stage: &mut Stage) -> Result<()> {
    stage.daemon.cli("service interface del eth0")?;
    let attached =
        |stage: &Stage| -> Result<bool> { Ok(stage.balancer.ok("ip link show eth0")?.contains("xdp")) };
    check(!attached(stage)?, "the interface is the kernel's")?;
    let command = format!(
        "{} balance eth0 10.1.2.3 {VIP} 10.1.2.10 10.1.2.11 --mode generic",
        program("butterfly")
    );
    let mut balance = stage.balancer.start("balance", &command)?;
    wait_for("butterfly balance to begin", Duration::from_secs(10), || {
        Ok(balance.log().contains("Ctrl-C").then_some(()))
    })?;
    let mut connections = stage.open(100)?;
    connections.ask_all()?;
    let (one, other) = (connections.to("s0"), connections.to("s1"));
    check(
        one + other == 100 && one > 20 && other > 20,
        "both servers have their share",
    )?;
    // SYN, ACK and a request of each at least.
    wait_for("the table to show the flows", Duration::from_secs(10), || {
        let log = balance.log();
        let all = log.lines().rev().find(|line| line.starts_with("all "));
        let packets = all.and_then(|line| line.split_whitespace().nth(5)?.parse::<u64>().ok());
        Ok(packets.filter(|packets| *packets >= 300))
    })?;
    let ended = balance.terminate(Duration::from_secs(5))?;
    check(ended.success(), "it ends when asked to")?;
    check(!attached(stage)?, "and gives the interface back")?;
    let mut balance = stage.balancer.start("balance", &command)?;
    wait_for("a program on the interface", Duration::from_secs(10), || {
        Ok(attached(stage)?.then_some(()))
    })?;
    balance.kill();
    check(!attached(stage)?, "also when it is killed")
}

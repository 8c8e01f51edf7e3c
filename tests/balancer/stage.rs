//! What the trials play on: a client, the balancer's host and servers, each a namespace on one
//! Ethernet.

use std::net::SocketAddr;

use butterfly_tests::Daemon;
use butterfly_tests::daemon::number;
use butterfly_tests::lab::check;
use butterfly_tests::lan::{Lan, take_vip};
use butterfly_tests::web::{Connections, Web, many_descriptors};
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_for};

/// What clients know.
pub const VIP: &str = "192.168.101.1";
/// The service at the VIP.
pub const SERVICE: &str = "192.168.101.1:80";

/// A client 10.1.2.1, the balancer 10.1.2.3 with its daemon, servers 10.1.2.10 and up. All servers
/// have the VIP.
pub struct Stage {
    pub client: Namespace,
    pub balancer: Namespace,
    pub servers: Vec<Server>,
    pub daemon: Daemon,
    pub lan: Lan,
    /// Of the balancer's interface: `native`, `generic`, or `tc`, which is what it chooses itself.
    pub mode: &'static str,
    takes: Option<(xdp::Program, xdp::Attachment)>,
}

/// A host that serves.
pub struct Server {
    pub name: String,
    pub address: String,
    pub host: Namespace,
    pub web: Option<Web>,
}

impl Stage {
    /// All of it, with the balancer's `eth0` balanced on in this mode.
    pub fn start(mode: &'static str) -> Result<Self> {
        many_descriptors()?;
        let lan = match mode {
            "tc" => Lan::with_default_offloads()?,
            _ => Lan::new()?,
        };
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
        let native = mode == "native";
        let takes = native.then(|| lan.take_from_xdp("balancer")).transpose()?;
        let daemon = balancing(Daemon::start_on(Some(balancer.pid()), &[])?, mode)?;
        Ok(Self {
            client,
            balancer,
            servers,
            daemon,
            lan,
            mode,
            takes,
        })
    }

    /// Whether the other end of the balancer's interface takes what a program in the driver sends.
    pub fn let_take(&mut self, does: bool) -> Result<()> {
        // First the one goes.
        self.takes = None;
        let takes = does.then(|| self.lan.take_from_xdp("balancer"));
        self.takes = takes.transpose()?;
        Ok(())
    }

    /// The daemon anew, with these options.
    pub fn restart(&mut self, options: &[&str]) -> Result<()> {
        self.daemon.stop()?;
        let daemon = Daemon::start_on(Some(self.balancer.pid()), options)?;
        self.daemon = balancing(daemon, self.mode)?;
        Ok(())
    }

    /// As [`Stage::restart`], by a user that has little, as the systemd service does.
    pub fn restart_unprivileged(&mut self, options: &[&str]) -> Result<()> {
        self.daemon.stop()?;
        let daemon = Daemon::start_unprivileged(Some(self.balancer.pid()), options)?;
        self.daemon = balancing(daemon, self.mode)?;
        Ok(())
    }

    /// Connections of the client to the service.
    pub fn open(&self, count: usize) -> Result<Connections> {
        Connections::open(&self.client, service()?, count)
    }

    /// More of them.
    pub fn open_more(&self, connections: &mut Connections, count: usize) -> Result<()> {
        connections.open_more(&self.client, service()?, count)
    }

    /// Tells the daemon something of services, and waits until it knows the way to all their
    /// servers: those that are not reached yet get no flows.
    pub fn set_services(&self, line: &str) -> Result<()> {
        self.daemon.cli(line)?;
        self.servers_are_reached()
    }

    /// Waits until all servers can be reached.
    pub fn servers_are_reached(&self) -> Result<()> {
        wait_for("all servers to be reached", PATIENCE, || {
            let services = self.daemon.json("service show")?;
            let services = services.as_array().ok_or("no list of services")?;
            let mut servers = services
                .iter()
                .flat_map(|service| service["servers"].as_array().into_iter().flatten());
            Ok(servers
                .all(|server| server["interface"] != "")
                .then_some(()))
        })
    }

    /// A number of a server of [`SERVICE`], by its name in the API.
    pub fn counter(&self, address: &str, name: &str) -> Result<u64> {
        self.counter_of(SERVICE, address, name)
    }

    /// A number of a server of any service, by its name in the API.
    pub fn counter_of(&self, service: &str, address: &str, name: &str) -> Result<u64> {
        let servers = self
            .daemon
            .json(&format!("service server list {service}"))?;
        let all = servers.as_array().ok_or("no list of servers")?;
        let one = all.iter().find(|one| one["server"]["address"] == address);
        one.and_then(|one| number(&one["counters"][name]))
            .ok_or_else(|| format!("no {name} of {address} in {servers}"))
    }

    fn healths(&self, service: &str) -> Result<Vec<String>> {
        let servers = self
            .daemon
            .json(&format!("service server list {service}"))?;
        let health = |one: &serde_json::Value| {
            one["health"]
                .as_str()
                .unwrap_or_default()
                .replace("HEALTH_", "")
        };
        Ok(servers
            .as_array()
            .ok_or("no list")?
            .iter()
            .map(health)
            .collect())
    }

    /// Waits for what checks find.
    pub fn healths_become(&self, expected: &[&str]) -> Result<()> {
        self.healths_of_become(SERVICE, expected)
    }

    /// Waits for what checks of this service's servers find.
    pub fn healths_of_become(&self, service: &str, expected: &[&str]) -> Result<()> {
        let what = format!("the servers' healths to be {expected:?}");
        wait_for(&what, PATIENCE, || {
            Ok((self.healths(service)? == expected).then_some(()))
        })
    }

    /// All that explains a failure.
    pub fn dump(&self) -> String {
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

/// Where clients connect to.
pub fn service() -> Result<SocketAddr> {
    SERVICE.parse().map_err(|e| format!("{SERVICE}: {e}"))
}

/// A daemon on a host, which balances on its `eth0`.
pub fn balancing(daemon: Daemon, mode: &str) -> Result<Daemon> {
    let chosen = match mode {
        "tc" => String::new(),
        mode => format!("--mode {mode}"),
    };
    let said = daemon.cli(&format!("service interface add eth0 {chosen}"))?;
    check(said.contains(mode), &format!("it is said how: {said}"))?;
    Ok(daemon)
}

//! Two guests on four cables, and what is asked of any trunk between them.

use butterfly_tests::cables;
use butterfly_tests::daemon::number;
use butterfly_tests::lab::{check, says, soon};
use butterfly_tests::trials::Stage;
use serde_json::json;
use testkit::Result;
use testkit::qemu::Guest;

use crate::world;

/// The balancer's host and the guest that is everybody else. eth0 to eth2 are virtio; the host's
/// eth3 is VMware's vmxnet3.
pub struct Pair {
    pub host: Guest,
    pub world: Guest,
    interfaces: Vec<String>,
    _cables: tempfile::TempDir,
}

/// What lies between them.
pub struct Trunk {
    /// What is balanced on, on the host.
    interfaces: Vec<&'static str>,
    /// Makes it there, its addresses and VLANs too.
    host: String,
    /// Makes it at the other end, and the devices of the hosts.
    world: String,
}

impl Trunk {
    /// One cable.
    pub fn nic(nic: &'static str) -> Self {
        Trunk {
            interfaces: vec![nic],
            host: format!("trunk={nic}; {}", world::HOST),
            world: vlans_on(nic),
        }
    }

    /// One cable to VMware's NIC, with one tag at the most: of two QEMU's model of it makes
    /// nonsense.
    pub fn vmware() -> Self {
        let nic = "eth3";
        Trunk {
            interfaces: vec![nic],
            host: format!("trunk={nic}; within={nic}; {}", world::HOST),
            world: format!("within={nic}; {}", vlans_on(nic)),
        }
    }

    /// A bond of which one port works at a time; at the other end is a bridge.
    pub fn backup() -> Self {
        Trunk {
            interfaces: vec!["lag"],
            host: format!("{}; trunk=lag; {}", bond("active-backup"), world::HOST),
            world: format!(
                "ip link add br0 type bridge; for nic in eth1 eth2; \
                 do ip link set $nic master br0; done; ip link set br0 up; {}",
                vlans_on("br0")
            ),
        }
    }

    /// A bond of which both do.
    pub fn lacp() -> Self {
        let bond = bond("802.3ad lacp_rate fast xmit_hash_policy layer3+4");
        Trunk {
            interfaces: vec!["lag"],
            host: format!("{bond}; trunk=lag; {}", world::HOST),
            world: format!("{bond}; {}", vlans_on("lag")),
        }
    }

    /// Three cables: clients, servers without tags, servers with.
    pub fn several() -> Self {
        Trunk {
            interfaces: vec!["eth0", "eth1", "eth2"],
            host: world::HOST_OF_SEVERAL.to_owned(),
            world: "ip link add link eth2 name v20 type vlan id 20
                ip link add link eth2 name v30 type vlan id 30 && ip link set v30 up
                ip link add link v30 name v31 type vlan id 31
                client=eth0 once=v20 twice=v31 bare=eth1"
                .to_owned(),
        }
    }
}

fn vlans_on(trunk: &str) -> String {
    format!(
        "ip link add link {trunk} name v10 type vlan id 10
         ip link add link {trunk} name v20 type vlan id 20
         ip link add link {trunk} name v30 type vlan id 30; ip link set v30 up
         ip link add link ${{within:-v30}} name v31 type vlan id 31
         client=v10 once=v20 twice=v31 bare={trunk}"
    )
}

fn bond(mode: &str) -> String {
    format!(
        "ip link add lag type bond mode {mode} miimon 50
         for nic in eth1 eth2; do
             ethtool -s $nic speed 1000 duplex full; ip link set $nic down
             ip link set $nic master lag
         done
         ip link set lag up"
    )
}

/// The services: layer 2 to three servers, layer 3 to one behind a router, layer 2 for the untagged
/// host's own requests, uploads, IPv6, all ports of UDP and SCTP. One document, since a program
/// takes its time to start in a guest without KVM.
fn services() -> String {
    let service = |vip: &str, port: u16, tunnel: &str, servers: &[&str]| {
        let kind = if port == 80 { "http" } else { "tcp" };
        json!({
            "key": { "vip": vip, "port": port, "protocol": 6 },
            "encapsulation": tunnel,
            "check": { kind: {}, "intervalMs": 5000, "timeoutMs": 5000 },
            "servers": servers.iter()
                .map(|address| json!({ "address": address })).collect::<Vec<_>>(),
        })
    };
    let all_ports = |protocol: u8| {
        json!({
            "key": { "vip": "192.168.101.4", "protocol": protocol, "allPorts": true },
            "servers": [{ "address": "10.0.20.10" }],
        })
    };
    let services = [
        service(
            "192.168.101.1",
            80,
            "ENCAPSULATION_L2",
            &["10.0.20.10", "10.0.31.10", "10.0.0.10"],
        ),
        service("192.168.101.1", 81, "ENCAPSULATION_L2", &["10.0.20.10"]),
        service("192.168.101.2", 80, "ENCAPSULATION_IPIP", &["10.0.50.10"]),
        service(
            "192.168.101.3",
            80,
            "ENCAPSULATION_L2",
            &["10.0.20.10", "10.0.31.10"],
        ),
        service("fd99::1", 80, "ENCAPSULATION_L2", &["fd20::10"]),
        all_ports(UDP),
        all_ports(SCTP),
    ];
    json!({ "balancer": { "services": services } }).to_string()
}

const UDP: u8 = 17;
const SCTP: u8 = 132;

impl Pair {
    /// `butterfly` on the host.
    pub fn butterfly(&self, line: &str) -> Result<String> {
        self.host
            .ok(&format!("butterfly -e unix:/run/bf/api.sock {line}"))
    }

    /// All that a trunk that does not change has to do.
    pub fn play(&mut self, trunk: &Trunk, mode: &str) -> Result<()> {
        self.set_up(trunk, mode)?;
        self.each_serves(&format!("in {mode} mode"))?;
        self.give_back()
    }

    /// Makes the trunk, the hosts and the services, and waits until all checks through the
    /// services' addresses succeed.
    pub fn set_up(&mut self, trunk: &Trunk, mode: &str) -> Result<()> {
        self.host.ok(&trunk.host)?;
        self.world.ok(&format!(
            "{}; {}; {}",
            world::FUNCTIONS,
            trunk.world,
            world::HOSTS
        ))?;
        for server in ["10.0.0.10", "10.0.20.10", "10.0.31.10", "10.0.50.10"] {
            soon(&self.host, &format!("ping -q -c 1 -W 1 {server}"))
                .map_err(|e| format!("the kernel itself: {e}"))?;
        }
        self.balance(&trunk.interfaces, mode, &services(), "3112111")
    }

    /// Starts the daemon with this configuration on these interfaces, and waits until checks
    /// through the services' addresses have found so many healthy servers of each service, in the
    /// order of addresses and ports.
    pub fn balance(
        &mut self,
        interfaces: &[&str],
        mode: &str,
        document: &str,
        healthy: &str,
    ) -> Result<()> {
        self.interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
        self.host.ok("mkdir -p /run/bf; : >/run/log
             butterflyd --no-syslog -s /run/bf --api unix:/run/bf/api.sock >/run/log 2>&1 &")?;
        says(&self.host, "/run/log", "is ready")?;
        for interface in interfaces {
            self.butterfly(&format!("service interface add {interface} --mode {mode}"))?;
        }
        self.host
            .ok(&format!("echo '{document}' >/run/services.json"))?;
        self.butterfly("apply /run/services.json")?;
        let found = "butterfly -e unix:/run/bf/api.sock --json service show | grep -o \
                     '\"healthy\": *[0-9]*' | tr -dc '0-9'";
        soon(&self.host, &format!("test $({found}) = {healthy}"))
            .map_err(|e| format!("not all servers are healthy: {e}"))
    }

    /// Clients with tags and without reach servers with one tag, two and none, on layer 2 and on
    /// layer 3, in both families; all counted as flows of the balancer's.
    pub fn each_serves(&self, when: &str) -> Result<()> {
        let before = self.flows()?;
        let client = "nsenter -t $(cat /run/client) -n";
        let rows = [
            (client, "192.168.101.1", &["once", "twice", "bare"][..]),
            (client, "192.168.101.2", &["far"][..]),
            ("", "192.168.101.3", &["once", "twice"][..]),
            (client, "[fd99::1]", &["once"][..]),
        ];
        // The upload, datagrams from one port, and an association.
        let mut opened = 3;
        for (who, vip, servers) in rows {
            let enough: Vec<_> = servers
                .iter()
                .map(|name| format!("grep -q {name} /run/pages"))
                .collect();
            // Chance decides which server a connection gets; of this many none is left out but once
            // in ten million times.
            let pages = self
                .world
                .ok(&format!(
                    ": >/run/pages; for i in $(seq 40); do {who} timeout 20 wget -q -O - \
                     http://{vip}/ >>/run/pages || exit 1; {} && break; done; cat /run/pages",
                    enough.join(" && ")
                ))
                .map_err(|e| format!("{when}, {vip}: {e}"))?;
            let all = servers
                .iter()
                .all(|name| pages.lines().any(|page| page == *name));
            check(
                all && pages.lines().all(|page| servers.contains(&page)),
                &format!("{when}, every server of {vip} serves: {pages}"),
            )?;
            opened += pages.lines().count() as u64;
        }
        // Segments as long as they get, from the client to a server.
        self.world
            .ok(&format!(
                "{client} guest tcp-put 192.168.101.1 81 300000 25"
            ))
            .map_err(|e| format!("{when}, an upload: {e}"))?;
        self.world
            .ok(&format!(
                "{client} guest udp-ping 192.168.101.4 9 3 1000 && \
                 {client} guest sctp-ping 192.168.101.4 9 3 20"
            ))
            .map_err(|e| format!("{when}, UDP and SCTP: {e}"))?;
        let flows = self.flows()? - before;
        // Datagrams from a port that chance has used before are of that flow.
        check(
            (opened - 1..=opened).contains(&flows),
            &format!("{when}, {flows} flows are counted for {opened} connections"),
        )
    }

    /// All that were counted.
    fn flows(&self) -> Result<u64> {
        let text = self.butterfly("--json service stats")?;
        let said: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("service stats said {text}: {e}"))?;
        let services = said["services"]
            .as_array()
            .ok_or_else(|| format!("no services in {said}"))?;
        let flows = services
            .iter()
            .map(|service| number(&service["counters"]["flows"]));
        Ok(flows.flatten().sum())
    }

    /// A cable is pulled: both ends see it.
    pub fn unplug(&self, nic: &str) -> Result<()> {
        self.world.ok(&format!("ip link set {nic} down"))?;
        self.host.ok(&format!("ip link set {nic} down")).map(drop)
    }

    /// And put back.
    pub fn plug(&self, nic: &str) -> Result<()> {
        self.host.ok(&format!("ip link set {nic} up"))?;
        self.world.ok(&format!("ip link set {nic} up")).map(drop)
    }

    /// Waits until the bond's packets go by this port, in both directions.
    pub fn goes_by(&self, nic: &str) -> Result<()> {
        soon(&self.host, "ping -q -c 1 -W 1 10.0.0.10")
            .and_then(|()| soon(&self.host, "ping -q -c 1 -W 1 10.0.20.10"))
            .map_err(|e| format!("by {nic}: {e}"))
    }

    /// The interfaces are the kernel's again, down to their settings.
    pub fn give_back(&self) -> Result<()> {
        for interface in &self.interfaces {
            self.butterfly(&format!("service interface del {interface}"))?;
        }
        // The pair of interfaces that checks are sent by keeps its own.
        let links = self.host.ok("ip -o link show | grep -v bfc")?;
        check(
            !links.contains("xdp"),
            &format!("no program is left:\n{links}"),
        )
    }
}

impl Stage for Pair {
    fn start(_: &[&str]) -> Result<Self> {
        let (host, world, cables) = cables::start("world")?;
        host.ok(
            "modprobe vmxnet3 && sysctl -qw net.ipv6.conf.default.accept_dad=0 && \
             ip link set eth3 up",
        )?;
        world.ok("modprobe veth; mkdir -p /run /www")?;
        Ok(Self {
            host,
            world,
            interfaces: Vec::new(),
            _cables: cables,
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.host.ok(world::RESET_HOST)?;
        self.world.ok(world::RESET_WORLD).map(drop)
    }

    fn is_running(&mut self) -> bool {
        true
    }

    fn dump(&self) -> String {
        let of = |guest: &Guest| {
            let said = guest.ok(
                "ip -s -d addr; ip route; ip neigh; cat /proc/net/bonding/lag
                 for what in show stats 'interface list'
                 do butterfly -e unix:/run/bf/api.sock service $what; done
                 tail -n 50 /run/log; true",
            );
            format!("=== {}\n{}", guest.name(), said.unwrap_or_else(|e| e))
        };
        of(&self.host) + &of(&self.world)
    }
}

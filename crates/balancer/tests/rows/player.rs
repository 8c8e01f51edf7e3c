//! The balancer that the rows play on: the Rust library's, or the Go library's (`go/balancer`),
//! which a small program of its module drives, a line of JSON an operation. Both have the same
//! rows to pass.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use butterfly_balancer as library;
use butterfly_balancer::{
    Counters, Flow, FlowState, Hop, Interface, Options, Protocol, Reason, Server, ServerCounters,
    ServiceKey, Services, State, Tunnel, Tuple,
};
use serde_json::{Value, json};
use wire::Mac;
use xdp::{Mode, Run, Verdict};

type Done<T> = Result<T, Box<dyn std::error::Error>>;

thread_local! {
    /// Whether this thread's rows are of the Go library.
    static IN_GO: Cell<bool> = const { Cell::new(false) };
}

/// Plays rows on the Go library.
#[allow(
    dead_code,
    reason = "the benchmark, which has these rows too, has no Go"
)]
pub fn in_go(play: impl FnOnce()) {
    IN_GO.set(true);
    play();
    IN_GO.set(false);
}

/// A balancer of either library, with the methods of the Rust one.
pub enum Balancer {
    Rust(Box<library::Balancer>),
    Go(Peer),
}

impl Balancer {
    pub fn new(options: &Options) -> Done<Self> {
        if !IN_GO.get() {
            let own = library::Balancer::new(options)?;
            return Ok(Balancer::Rust(Box::new(own)));
        }
        let address = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
        let peer = Peer::start()?;
        peer.ask(json!({"Op": "new", "Options": {
            "MaxFlows": options.max_flows,
            "MaxServices": options.max_services,
            "MaxDestinations": options.max_servers,
            "IdleSecs": options.idle.as_secs(),
            "SettleSecs": options.settle.as_secs(),
            "RememberAll": options.remember_all,
            "Seed": options.seed,
            "Source4": address(options.source_v4.map(IpAddr::V4)),
            "Source6": address(options.source_v6.map(IpAddr::V6)),
        }}))?;
        Ok(Balancer::Go(peer))
    }

    pub fn set_interface(&mut self, interface: Interface) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.set_interface(interface)?),
            Balancer::Go(peer) => peer.send(json!({"Op": "link", "Ifindex": interface.ifindex,
                "Out": interface.out, "MAC": interface.mac.0})),
        }
    }

    pub fn forget_interface(&mut self, ifindex: u32) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.forget_interface(ifindex)?),
            Balancer::Go(peer) => peer.send(json!({"Op": "forget", "Ifindex": ifindex})),
        }
    }

    #[allow(
        dead_code,
        reason = "the benchmark, which has these rows too, attaches nothing"
    )]
    pub fn attach(&mut self, interface: Interface, mode: Option<Mode>) -> Done<Mode> {
        const MODES: [Option<Mode>; 4] = [
            None,
            Some(Mode::Native),
            Some(Mode::Generic),
            Some(Mode::Tc),
        ];
        match self {
            Balancer::Rust(own) => Ok(own.attach(interface, mode)?),
            Balancer::Go(peer) => {
                let asked = MODES.iter().position(|one| *one == mode);
                let said =
                    peer.ask(json!({"Op": "attach", "Ifindex": interface.ifindex, "Mode": asked}))?;
                let mode = said["Mode"].as_u64().and_then(|at| MODES.get(at as usize));
                Ok(mode.copied().flatten().ok_or("attached in no mode")?)
            }
        }
    }

    pub fn set_hops(&mut self, hops: BTreeMap<IpAddr, Hop>) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.set_hops(hops)?),
            Balancer::Go(peer) => {
                let said = hops.iter().map(|(to, hop)| (to.to_string(), hop_said(hop)));
                let said: serde_json::Map<String, Value> = said.collect();
                peer.send(json!({"Op": "hops", "Hops": said}))?;
                peer.hops = hops;
                Ok(())
            }
        }
    }

    pub fn hops(&self) -> &BTreeMap<IpAddr, Hop> {
        match self {
            Balancer::Rust(own) => own.hops(),
            Balancer::Go(peer) => &peer.hops,
        }
    }

    pub fn apply(&mut self, services: Services) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.apply(services)?),
            Balancer::Go(peer) => {
                let all: Vec<Value> = services
                    .iter()
                    .map(|service| {
                        let servers: Vec<Value> = service.servers().map(server_said).collect();
                        let its = service_said(&service.key(), service.sticky);
                        json!({"Service": its, "Destinations": servers})
                    })
                    .collect();
                peer.send(json!({"Op": "config", "Config": {"Services": all}}))
            }
        }
    }

    pub fn set_server(&mut self, key: ServiceKey, server: Server) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.set_server(key, server)?),
            Balancer::Go(peer) => peer.send(json!({"Op": "update destination",
                "Service": service_said(&key, false), "Destination": server_said(&server)})),
        }
    }

    pub fn remove_server(&mut self, key: ServiceKey, address: IpAddr) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.remove_server(key, address)?),
            Balancer::Go(peer) => peer.send(json!({"Op": "remove destination",
                "Service": service_said(&key, false),
                "Destination": {"Address": address.to_string()}})),
        }
    }

    pub fn remove_service(&mut self, key: ServiceKey) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.remove_service(key)?),
            Balancer::Go(peer) => {
                peer.send(json!({"Op": "remove service", "Service": service_said(&key, false)}))
            }
        }
    }

    pub fn settle(&mut self) -> Done<()> {
        match self {
            Balancer::Rust(own) => Ok(own.settle()?),
            Balancer::Go(peer) => peer.send(json!({"Op": "settle"})),
        }
    }

    pub fn is_settled(&self) -> bool {
        match self {
            Balancer::Rust(own) => own.is_settled(),
            Balancer::Go(peer) => {
                let said = peer
                    .ask(json!({"Op": "counters"}))
                    .expect("maps can be read");
                said["Settled"] == true
            }
        }
    }

    pub fn counters(&self) -> Done<Counters> {
        let peer = match self {
            Balancer::Rust(own) => return Ok(own.counters()?),
            Balancer::Go(peer) => peer,
        };
        let said = peer.ask(json!({"Op": "counters"}))?;
        let mut counters = Counters::default();
        for reason in Reason::ALL {
            let count = number(&said["Reasons"], reason.name())?;
            counters.reasons.insert(reason, count);
        }
        for server in list(&said["Servers"]) {
            let owner = (key_of(&server["Service"])?, ip_of(&server["Destination"])?);
            let stats = &server["Stats"];
            let its = ServerCounters {
                packets: number(stats, "Packets")?,
                bytes: number(stats, "Octets")?,
                flows: number(stats, "Flows")?,
                ended: number(stats, "Ended")?,
            };
            counters.servers.insert(owner, its);
        }
        Ok(counters)
    }

    pub fn live_flows(&self) -> Done<BTreeMap<(ServiceKey, IpAddr), u64>> {
        let peer = match self {
            Balancer::Rust(own) => return Ok(own.live_flows()?),
            Balancer::Go(peer) => peer,
        };
        let said = peer.ask(json!({"Op": "live"}))?;
        let mut live = BTreeMap::new();
        for one in list(&said["Live"]) {
            let owner = (key_of(&one["Service"])?, ip_of(&one["Destination"])?);
            live.insert(owner, number(one, "Flows")?);
        }
        Ok(live)
    }

    pub fn flows(&self, limit: usize) -> Done<Vec<Flow>> {
        let peer = match self {
            Balancer::Rust(own) => return Ok(own.flows(limit)?),
            Balancer::Go(peer) => peer,
        };
        let said = peer.ask(json!({"Op": "flows", "Limit": limit}))?;
        let flows = list(&said["Flows"]).map(|flow| {
            let its = &flow["Tuple"];
            Ok(Flow {
                tuple: Tuple {
                    client: ip_of(&its["Client"])?,
                    client_port: number(its, "ClientPort")? as u16,
                    vip: ip_of(&its["Address"])?,
                    port: number(its, "Port")? as u16,
                    protocol: protocol_of(its)?,
                },
                service: key_of(&flow["Service"])?,
                server: ip_of(&flow["Destination"])?,
                state: state_of(flow)?,
                age: Duration::from_nanos(number(flow, "Age")?),
                idle: Duration::from_nanos(number(flow, "Idle")?),
            })
        });
        flows.collect()
    }

    pub fn explain(&self, tuple: &Tuple) -> Done<Option<(IpAddr, Option<FlowState>)>> {
        let peer = match self {
            Balancer::Rust(own) => return Ok(own.explain(tuple)?),
            Balancer::Go(peer) => peer,
        };
        let said = peer.ask(json!({"Op": "explain", "Tuple": {
            "Client": tuple.client.to_string(),
            "ClientPort": tuple.client_port,
            "Address": tuple.vip.to_string(),
            "Port": tuple.port,
            "Protocol": tuple.protocol.number(),
        }}))?;
        let found = &said["Explain"];
        if found.is_null() {
            return Ok(None);
        }
        let state = match found["Remembered"] == true {
            true => Some(state_of(found)?),
            false => None,
        };
        Ok(Some((ip_of(&found["Destination"])?, state)))
    }

    /// One packet into the program, by the loopback.
    pub fn run(&self, frame: &[u8], at_tc: bool) -> Done<Run> {
        let peer = match self {
            Balancer::Rust(own) => {
                let program = match at_tc {
                    true => own.program().tc().expect("it is for both places"),
                    false => own.program(),
                };
                return Ok(xdp::run(program, frame, 0, 1)?);
            }
            Balancer::Go(peer) => peer,
        };
        // Native and TC, as the Go library numbers them.
        let mode = if at_tc { 3 } else { 1 };
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let cpus = testkit::cpus::allowed();
        let said = peer.ask(json!({"Op": "run", "Mode": mode, "Frame": hex, "CPUs": cpus}))?;
        let verdict = said["Verdict"].as_u64().unwrap_or_default() as u32;
        let hex = said["Frame"].as_str().unwrap_or_default();
        let bytes = (0..hex.len()).step_by(2);
        let frame: Result<Vec<u8>, _> = bytes
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16))
            .collect();
        Ok(Run {
            verdict: match (at_tc, verdict as i32) {
                (false, _) => verdict.into(),
                (true, -1 | 0) => Verdict::Pass,
                (true, 2) => Verdict::Drop,
                (true, 7) => Verdict::Redirect,
                (true, _) => Verdict::Unknown(verdict),
            },
            frame: frame?,
            took: Duration::ZERO,
        })
    }
}

fn hop_said(hop: &Hop) -> Value {
    let Mac(source) = hop.source_mac;
    let vlan = |at: usize| hop.vlans.get(at).copied().unwrap_or_default();
    json!({
        "Ifindex": hop.ifindex,
        "SourceMAC": source,
        "MAC": hop.mac.0,
        "VLANs": [vlan(0), vlan(1)],
        "MTU": hop.mtu,
        "Direct": hop.direct,
        "Source": hop.source.map(|ip| ip.to_string()).unwrap_or_default(),
    })
}

fn service_said(key: &ServiceKey, sticky: bool) -> Value {
    json!({
        "Address": key.vip().to_string(),
        "Protocol": key.protocol().number(),
        "Port": key.port().map_or(0, NonZeroU16::get),
        "Sticky": sticky,
    })
}

fn server_said(server: &Server) -> Value {
    let (encapsulation, port) = match server.tunnel {
        Tunnel::None => (0, 0),
        Tunnel::Ipip => (1, 0),
        Tunnel::Gre => (2, 0),
        Tunnel::Fou { port } => (3, port.get()),
        Tunnel::Gue { port } => (4, port.get()),
    };
    let state = match server.state {
        State::Up => 0,
        State::Draining => 1,
        State::Down => 2,
    };
    json!({
        "Address": server.address().to_string(),
        "Weight": server.weight.get(),
        "State": state,
        "Encapsulation": encapsulation,
        "TunnelPort": port,
    })
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(of: &Value, name: &str) -> Done<u64> {
    Ok(of[name]
        .as_u64()
        .ok_or_else(|| format!("{of} has no {name}"))?)
}

fn ip_of(value: &Value) -> Done<IpAddr> {
    Ok(value.as_str().ok_or("no address")?.parse()?)
}

fn protocol_of(value: &Value) -> Done<Protocol> {
    let known = Protocol::from_number(number(value, "Protocol")? as u8);
    Ok(known.ok_or("no protocol that is balanced")?)
}

fn key_of(value: &Value) -> Done<ServiceKey> {
    let port = NonZeroU16::new(number(value, "Port")? as u16);
    Ok(ServiceKey::new(
        ip_of(&value["Address"])?,
        protocol_of(value)?,
        port,
    )?)
}

fn state_of(value: &Value) -> Done<FlowState> {
    const STATES: [FlowState; 3] = [FlowState::New, FlowState::Established, FlowState::Closed];
    let state = STATES.get(number(value, "State")? as usize);
    Ok(*state.ok_or("no state of a flow")?)
}

/// The program that drives the Go library, of one balancer.
pub struct Peer {
    child: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
    /// What it was told last.
    hops: BTreeMap<IpAddr, Hop>,
}

/// Where the Go library is.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../go/balancer");

/// The oldest Go that its go.mod names.
const OLDEST: u32 = 24;

/// What a Go command is, if one is here that is young enough; else a line that says so.
#[allow(
    dead_code,
    reason = "the benchmark, which has these rows too, has no Go"
)]
pub fn is_here() -> bool {
    let is_here = go().is_some();
    if !is_here {
        eprintln!("skipped: there is no Go 1.{OLDEST} or newer here, which go/balancer needs");
    }
    is_here
}

fn go() -> Option<&'static str> {
    let young = |go: &&str| {
        let said = Command::new(go).args(["env", "GOVERSION"]).output().ok()?;
        let said = String::from_utf8(said.stdout).ok()?;
        let minor = said.trim().strip_prefix("go1.")?.split('.').next()?;
        minor.parse::<u32>().ok().filter(|minor| *minor >= OLDEST)
    };
    let places = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"];
    places.into_iter().find(|go| young(go).is_some())
}

/// The program, built once.
fn built() -> &'static Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Result<PathBuf, String> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-balancer-rows");
    let out = Command::new(go().ok_or("there is no Go here")?)
        .args(["build", "-o"])
        .arg(&program)
        .arg("./internal/rows")
        // No C, and no module that is not here already.
        .envs([
            ("CGO_ENABLED", "0"),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
        ])
        .current_dir(MODULE)
        .output()
        .map_err(|error| error.to_string())?;
    match out.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

impl Peer {
    fn start() -> Done<Self> {
        let program = built().as_ref().map_err(String::as_str)?;
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or("no pipes")?;
        Ok(Peer {
            child,
            pipes: RefCell::new((stdin, BufReader::new(stdout))),
            hops: BTreeMap::new(),
        })
    }

    fn ask(&self, request: Value) -> Done<Value> {
        let (stdin, stdout) = &mut *self.pipes.borrow_mut();
        stdin.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line)?;
        match said["Error"].as_str() {
            Some(error) => Err(format!("{}: {error}", request["Op"]).into()),
            None => Ok(said),
        }
    }

    fn send(&self, request: Value) -> Done<()> {
        self.ask(request).map(drop)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input, too, but then its programs may still be there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! OVS-DPDK from the distribution, in a network namespace of its own so that its devices are seen
//! by nobody, or in one that is a host with an uplink ([`host`]).
//!
//! Its ports connect to the guests' sockets (`dpdkvhostuserclient`): ports that listen
//! (`dpdkvhostuser`) never offer checksum or segmentation offload, whatever `userspace-tso-enable`
//! says, so that a guest could not send 64 KiB.

pub mod host;
mod pipeline;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use pipeline::Pipeline;
use rustix::process::Signal;

use super::process::{PeerError, Process, run, wait_for};
use super::{Listens, Running, Setup};

const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Frames of 1518 bytes fit with the headers of a tunnel.
const MTU: u16 = 1600;
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// The guests of a setup. Large frames: with segmentation offload, which OVS warns is slower for
/// small ones.
pub fn start(
    dir: &Path,
    core: usize,
    setup: Setup,
    pipeline: Pipeline,
) -> Result<Running, PeerError> {
    let server = Server::launch(dir, Some(core), setup.is_large(), None)?;
    server.add_bridge("br0", "")?;
    for guest in 0..setup.guests() {
        server.add_guest("br0", guest)?;
    }
    let names: Vec<String> = (0..setup.guests())
        .map(|guest| format!("p{guest}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ports: Vec<(&str, u16)> = names.iter().copied().zip(1..).collect();
    server.wait_for_ports(&ports)?;
    if pipeline != Pipeline::Normal {
        server.add_flows("br0", &pipeline::flows(pipeline, setup)?)?;
    }
    Ok(server.running(&names, pipeline != Pipeline::Normal))
}

/// Two TAP devices in the network namespace of process `holder`, under the rules of two guests: the
/// switch and its database. They are there before this returns, to be moved into containers; the
/// switch goes on with them by their descriptors. Its ports of DPDK's `net_tap` would be polled by
/// a core, but Linux 6.18 starts none of those; these it waits for. With segmentation offload: of
/// small frames it forwards no fewer with it.
pub fn start_taps(dir: &Path, holder: u32) -> Result<Vec<Process>, PeerError> {
    let server = Server::launch(dir, None, true, Some(holder))?;
    server.add_bridge(BRIDGE, "fail_mode=secure")?;
    for index in 0..Setup::Small.guests() {
        let (name, number) = (tap(index), index + 1);
        server.vsctl(&format!(
            "add-port {BRIDGE} {name} -- set Interface {name} type=tap ofport_request={number}"
        ))?;
    }
    server.wait_for_ports(&[(&tap(0), 1), (&tap(1), 2)])?;
    server.add_flows(
        BRIDGE,
        &pipeline::flows(Pipeline::ZonePerGuest, Setup::Small)?,
    )?;
    Ok(server.processes)
}

/// The name of a device of [`start_taps`].
pub fn tap(index: usize) -> String {
    format!("p{index}")
}

/// Two guests of a bridge with rules, whose switch is ended and started again over the same
/// database. Frames that no rule has allowed pass at no moment (`fail_mode=secure`); the rules are
/// said anew as soon as the switch takes them, as its controller would.
pub struct Lasting {
    server: Server,
    rules: String,
}

impl Lasting {
    /// Starts it; the guests have to listen on their [`sockets`](Lasting::sockets) before.
    pub fn start(dir: &Path, core: usize) -> Result<Lasting, PeerError> {
        let server = Server::launch(dir, Some(core), false, None)?;
        let rules = pipeline::flows(Pipeline::ZonePerGuest, Setup::Small)?;
        server.add_bridge(BRIDGE, "fail_mode=secure")?;
        for guest in 0..Setup::Small.guests() {
            server.add_guest(BRIDGE, guest)?;
        }
        server.wait_for_ports(&[("p0", 1), ("p1", 2)])?;
        server.add_flows(BRIDGE, &rules)?;
        Ok(Lasting { server, rules })
    }

    /// Where guests listen.
    pub fn sockets(dir: &Path) -> Vec<PathBuf> {
        let of = |guest| dir.join(format!("p{guest}"));
        (0..Setup::Small.guests()).map(of).collect()
    }

    /// Ends the switch by this signal, and starts it again.
    pub fn ended_and_started(&mut self, signal: Signal) -> Result<(), PeerError> {
        self.server.processes.remove(0).end(signal)?;
        // What one that was killed has left would be taken for the next one's.
        let management = self.server.dir.join(format!("{BRIDGE}.mgmt"));
        let _ = std::fs::remove_file(&management);
        let switch = self.server.switch()?;
        self.server.processes.insert(0, switch);
        wait_for(&[&management], &self.server.log())?;
        self.server.add_flows(BRIDGE, &self.rules)
    }
}

/// Of [`Lasting`] and [`start_taps`].
const BRIDGE: &str = "br0";

/// A database and a switch without bridges.
struct Server {
    dir: PathBuf,
    /// Whose network namespace the switch runs in.
    holder: Option<u32>,
    /// The switch first: that is how they are ended.
    processes: Vec<Process>,
}

impl Server {
    /// Starts both, in the network namespace of process `holder` or in a new one; on `core`, or
    /// wherever the kernel lets them run, and then with little memory, for ports that are none of
    /// DPDK's.
    fn launch(
        dir: &Path,
        core: Option<usize>,
        large: bool,
        holder: Option<u32>,
    ) -> Result<Server, PeerError> {
        let mut server = Server {
            dir: dir.to_owned(),
            holder,
            processes: Vec::new(),
        };
        run(server
            .command("ovsdb-tool")
            .args(["create", &server.path("conf.db"), SCHEMA]))?;
        let db_log = dir.join("ovsdb.log");
        let mut command = at_home(Process::command("ovsdb-server"), dir);
        command.arg(server.path("conf.db")).args([
            format!("--remote=p{}", server.database()),
            format!("--unixctl={}", server.path("ovsdb.ctl")),
            format!("--pidfile={}", server.path("ovsdb.pid")),
        ]);
        let db = Process::start(&mut command, &db_log)?;
        wait_for(&[&dir.join("db.sock")], &db_log)?;
        server.vsctl("init")?;
        let memory = if core.is_some() { 512 } else { 64 };
        if let Some(core) = core {
            let mask = format!("0x{:x}", 1u64 << core);
            server.vsctl(&format!(
                "set Open_vSwitch . other_config:pmd-cpu-mask={mask} \
                 other_config:dpdk-lcore-mask={mask}"
            ))?;
        }
        run(server
            .command("ovs-vsctl")
            .args([
                &format!("--db={}", server.database()),
                "--no-wait",
                "set",
                "Open_vSwitch",
                ".",
            ])
            .args([
                "other_config:dpdk-init=true",
                &format!("other_config:dpdk-socket-mem={memory}"),
                &format!("other_config:userspace-tso-enable={large}"),
                "other_config:dpdk-extra=--no-pci --in-memory --file-prefix=butterfly-bench-ovs",
            ]))?;
        server.processes = vec![server.switch()?, db];
        Ok(server)
    }

    /// Starts the switch.
    fn switch(&self) -> Result<Process, PeerError> {
        let mut command = match self.holder {
            None => Process::command("unshare"),
            Some(_) => Process::command_in(self.holder, VSWITCHD),
        };
        if self.holder.is_none() {
            command.args(["--net", VSWITCHD]);
        }
        let mut command = at_home(command, &self.dir);
        command
            .arg(self.database())
            .arg(format!("--unixctl={}", self.path("vs.ctl")))
            .arg(format!("--pidfile={}", self.path("vs.pid")));
        Process::start(&mut command, &self.log())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("vswitchd.log")
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn database(&self) -> String {
        format!("unix:{}", self.path("db.sock"))
    }

    fn command(&self, program: &str) -> Command {
        at_home(Command::new(program), &self.dir)
    }

    /// Changes the database; does not wait for the switch.
    fn vsctl(&self, args: &str) -> Result<(), PeerError> {
        let mut command = self.command("ovs-vsctl");
        command.args([
            &format!("--db={}", self.database()),
            "--timeout=20",
            "--no-wait",
        ]);
        run(command.args(args.split_whitespace())).map(drop)
    }

    /// Adds a bridge in user space, with more settings of its own, and waits for it.
    fn add_bridge(&self, name: &str, settings: &str) -> Result<(), PeerError> {
        self.vsctl(&format!(
            "add-br {name} -- set bridge {name} datapath_type=netdev {settings}"
        ))?;
        let management = self.dir.join(format!("{name}.mgmt"));
        wait_for(&[&management], &self.log())
    }

    /// Adds port `p{index}` for a guest: OpenFlow port `index` + 1.
    fn add_guest(&self, bridge: &str, index: usize) -> Result<(), PeerError> {
        let socket = self.path(&format!("p{index}"));
        self.vsctl(&format!(
            "add-port {bridge} p{index} -- set Interface p{index} type=dpdkvhostuserclient \
             options:vhost-server-path={socket} mtu_request={MTU} ofport_request={}",
            index + 1
        ))
    }

    /// Waits until ports have these numbers: they are made by another thread than the bridge.
    fn wait_for_ports(&self, ports: &[(&str, u16)]) -> Result<(), PeerError> {
        let mut command = self.command("ovs-vsctl");
        command.args([&format!("--db={}", self.database()), "--timeout=20"]);
        for (name, number) in ports {
            command.args([
                "--",
                "wait-until",
                "Interface",
                name,
                &format!("ofport={number}"),
            ]);
        }
        run(&mut command).map(drop).map_err(|error| {
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            let errors: Vec<&str> = log.lines().filter(|line| line.contains("|ERR|")).collect();
            PeerError(format!("{error}; {}", errors.join(" | ")))
        })
    }

    fn add_flows(&self, bridge: &str, flows: &str) -> Result<(), PeerError> {
        std::fs::write(self.dir.join("flows"), flows)
            .map_err(|error| PeerError(format!("flows: {error}")))?;
        let management = format!("unix:{}", self.path(&format!("{bridge}.mgmt")));
        let mut command = self.command("ovs-ofctl");
        command.args([
            "-O",
            "OpenFlow13",
            "add-flows",
            &management,
            &self.path("flows"),
        ]);
        run(&mut command).map(drop)
    }

    fn appctl(&self, args: &[&str]) -> Result<(), PeerError> {
        appctl(&self.dir, args)
    }

    /// Ready for its guests. `tracks`: it is to forget connections before each measurement, since
    /// its limit is 3,000,000 and a zone per guest counts each twice.
    fn running(self, sockets: &[&str], tracks: bool) -> Running {
        let dir = self.dir;
        let sockets = sockets.iter().map(|name| dir.join(name)).collect();
        let forget = move || appctl(&dir, &["dpctl/flush-conntrack"]);
        Running {
            sockets,
            listens: Listens::Vmm,
            forget: tracks.then(|| -> Box<dyn Fn() -> Result<(), PeerError>> { Box::new(forget) }),
            processes: self.processes,
        }
    }
}

/// A command that keeps everything OVS writes below `dir`.
fn at_home(mut command: Command, dir: &Path) -> Command {
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, dir);
    }
    command
}

fn appctl(dir: &Path, args: &[&str]) -> Result<(), PeerError> {
    let mut command = at_home(Command::new("ovs-appctl"), dir);
    run(command.arg("-t").arg(dir.join("vs.ctl")).args(args)).map(drop)
}

//! Podman runs containers whose network is `butterfly-cni`: a runtime that is nothing of ours, from
//! Debian, with crun. What containers need of the machine is asked for first: a cgroup file system.

use std::path::Path;

use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use butterfly_tests::{Daemon, program};
use serde_json::{Value, json};
use testkit::process;
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_each(trials![containers_talk_as_their_groups_allow])
}

/// A Podman that knows one network, `pods`, and keeps all that is its own in a folder.
struct Podman {
    dir: tempfile::TempDir,
}

impl Podman {
    /// `None`, and why on standard error, where this machine runs no containers.
    fn new(daemon: &Daemon) -> Result<Option<Podman>> {
        // This test's /sys is new: the machine's cgroups are not in it.
        let cgroups = "/sys/fs/cgroup";
        if let Err(why) = process::run(&["mount", "-t", "cgroup2", "cgroup2", cgroups]) {
            eprintln!("skipped: crun needs a cgroup file system: {why}");
            return Ok(None);
        }
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let podman = Podman { dir };
        let own = program("butterfly-cni");
        let folder = Path::new(&own).parent().unwrap_or(Path::new("/"));
        std::fs::create_dir(podman.path("networks")).map_err(|e| e.to_string())?;
        let settings = format!(
            "[network]
             network_backend = \"cni\"
             network_config_dir = \"{}\"
             cni_plugin_dirs = [\"{}\"]
             [engine]
             runtime = \"crun\"
             cgroup_manager = \"cgroupfs\"
             events_logger = \"file\"",
            podman.path("networks"),
            folder.display(),
        );
        podman.write("containers.conf", &settings)?;
        let plugin = json!({
            "type": "butterfly-cni", "socket": daemon.endpoint(), "vni": 42, "groups": ["pods"],
            "ipam": {
                "type": "butterfly", "dataDir": podman.path("leases"),
                "ranges": [[{"subnet": "10.4.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        });
        // What this Podman's library knows: not 1.1.0.
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]});
        podman.write("networks/pods.conflist", &list.to_string())?;
        if let Err(why) = podman.run("network ls") {
            eprintln!("skipped: there is no Podman: tools/setup.sh installs it: {why}");
            return Ok(None);
        }
        Ok(Some(podman))
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        std::fs::write(self.path(name), text).map_err(|e| format!("{name}: {e}"))
    }

    /// `podman …`, in a shell; what it says.
    fn run(&self, words: &str) -> Result<String> {
        let (conf, root, run, tmp) = (
            self.path("containers.conf"),
            self.path("storage"),
            self.path("run"),
            self.path("tmp"),
        );
        let line = format!(
            "CONTAINERS_CONF={conf} podman --root {root} --runroot {run} --tmpdir {tmp} \
             --storage-driver vfs {words}"
        );
        process::run(&["sh", "-c", &line])
    }

    /// Runs a container of busybox that only waits. Gives its address, as Podman knows it.
    fn start(&self, name: &str) -> Result<String> {
        let root = self.path(&format!("root-{name}"));
        let folders = ["bin", "dev", "etc", "proc", "sys", "tmp"];
        for folder in folders {
            let folder = format!("{root}/{folder}");
            std::fs::create_dir_all(&folder).map_err(|e| format!("{folder}: {e}"))?;
        }
        let copy = format!("cp $(command -v busybox) {root}/bin/ && ln -s busybox {root}/bin/sh");
        process::run(&["sh", "-c", &copy])?;
        // More than the machine may grant is what Podman asks for by itself.
        let limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024";
        self.run(&format!(
            "run --detach --name {name} --network pods {limits} --cap-add NET_RAW \
             --cgroups disabled --rootfs {root} /bin/busybox sleep 600"
        ))?;
        let seen = self.run(&format!("inspect {name}"))?;
        let seen: Value = serde_json::from_str(&seen).map_err(|e| format!("{e}: {seen}"))?;
        let address = &seen[0]["NetworkSettings"]["Networks"]["pods"]["IPAddress"];
        let address = address.as_str().map(str::to_owned);
        address.ok_or_else(|| format!("Podman knows no address of {name}: {seen}"))
    }

    fn within(&self, name: &str, command: &str) -> Result<String> {
        self.run(&format!("exec {name} /bin/busybox {command}"))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.run("rm --all --force --time 0");
        let _ = process::run(&["umount", "/sys/fs/cgroup"]);
    }
}

fn containers_talk_as_their_groups_allow() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    daemon.cli("sg add pods + sg rule add pods --ip-proto icmp --sg-members pods")?;
    daemon.cli("sg rule add pods --ip-proto tcp --port 80 --sg-members pods")?;
    let Some(podman) = Podman::new(&daemon)? else {
        return Ok(());
    };
    let (one, two) = (podman.start("one")?, podman.start("two")?);
    let nics = |count: usize| -> Result<()> {
        let listed = daemon.cli("nic list")?;
        let there = listed.split_whitespace().count();
        check(there == count, &format!("{count} NICs: {listed}"))
    };
    nics(2)?;
    let inside = podman.within("one", "ip -o addr show dev eth0")?;
    check(
        inside.contains(&format!("{one}/24")),
        &format!("one has {one}: {inside}"),
    )?;
    podman.within("one", &format!("ping -c 2 -W 5 {two}"))?;
    // The port that a rule allows, and one that none does.
    for port in [80, 81] {
        podman.run(&format!(
            "exec --detach two /bin/busybox httpd -p {port} -h /etc"
        ))?;
    }
    let get = |port: u16| podman.within("one", &format!("nc -w 2 {two} {port} -e true"));
    wait_for("the port that is open", PATIENCE, || Ok(get(80).ok()))?;
    check(get(81).is_err(), "the other one is shut")?;
    // One that ends gives all back; the others stay.
    podman.run("rm --force --time 0 two")?;
    nics(1)?;
    let three = podman.start("three")?;
    podman.within("one", &format!("ping -c 2 -W 5 {three}"))?;
    podman.run("rm --all --force --time 0")?;
    nics(0)
}

//! The Go library (`go/balancer`): its own tests, and its programs among real kernels. The packets'
//! rows are in `crates/balancer/tests/rows.rs`, for both libraries.

use std::net::SocketAddr;
use std::path::PathBuf;

use butterfly_tests::lab::check;
use butterfly_tests::lan::{Lan, take_vip};
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use butterfly_tests::web::{Connections, Web, serve_if_asked};
use testkit::image::repository;
use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::{PATIENCE, Result, process, wait_for};

const VIP: &str = "192.168.101.1";
/// The oldest Go that its go.mod names: 1.24.
const OLDEST: u32 = 24;

fn main() {
    // This very program is the servers', too.
    if let Err(error) = serve_if_asked() {
        panic!("{error}");
    }
    run_each(trials![
        the_library_passes_its_own_tests,
        the_sample_balances_without_daemon_and_compiler,
        the_other_sample_asks_who_works,
        another_module_can_use_it,
    ])
}

fn the_library_passes_its_own_tests() -> Result<()> {
    let Some(go) = Go::find() else { return Ok(()) };
    let program = go.path("own-tests");
    go.run(&["test", "-c", "-o", &program, "."])?;
    let host = Namespace::new()?;
    let module = repository().join("go/balancer").display().to_string();
    let command = format!("env -C {module} BUTTERFLY_TEST_NAMESPACE=1 {program} -test.v");
    let said = host.ok(&command)?;
    check(
        !said.contains("--- SKIP"),
        &format!("nothing is skipped: {said}"),
    )
}

/// No daemon runs, and nothing is in PATH: no clang, no `ip`.
fn the_sample_balances_without_daemon_and_compiler() -> Result<()> {
    let Some(go) = Go::find() else { return Ok(()) };
    let stage = Stage::start()?;
    let mut sample = stage.play(&go, "balance")?;
    let mut connections = stage.open_to_both(&sample)?;
    connections.ask_all()?;
    wait_for("counters of both servers", PATIENCE, || {
        let log = sample.log();
        let counted = |server: &str| {
            let its = log
                .lines()
                .rfind(|line| line.starts_with(&format!("{server}: ")));
            its.is_some_and(|line| !line.contains(": 0 flows"))
        };
        Ok((counted("10.1.2.10") && counted("10.1.2.11")).then_some(()))
    })?;
    sample.signal("INT")?;
    check(sample.wait(PATIENCE)?.success(), "Ctrl-C ends it")?;
    check(
        connections.ask_all().is_err(),
        "and the interface is given back",
    )
}

/// A server that stops answering gets nothing any more, and its share again when it is back.
fn the_other_sample_asks_who_works() -> Result<()> {
    let Some(go) = Go::find() else { return Ok(()) };
    let mut stage = Stage::start()?;
    let mut sample = stage.play(&go, "healthy")?;
    drop(stage.open_to_both(&sample)?);
    stage.servers[0].1 = None;
    let says = |what: &str| {
        wait_for(what, PATIENCE, || {
            Ok(sample.log().contains(what).then_some(()))
        })
    };
    says("10.1.2.10: healthy false")?;
    let connections = stage.open(20)?;
    check(connections.to("s1") == 20, "all go to the one that is left")?;
    drop(connections);
    stage.servers[0].1 = Some(Web::serve(&stage.servers[0].0, 80, "s0")?);
    says("10.1.2.10: healthy true")?;
    drop(stage.open_to_both(&sample)?);
    sample.signal("TERM")?;
    check(sample.wait(PATIENCE)?.success(), "SIGTERM ends it")
}

/// What somebody else's program needs: the module and Go. No C compiler, and no file of ours but
/// those that the module has.
fn another_module_can_use_it() -> Result<()> {
    let Some(go) = Go::find() else { return Ok(()) };
    let copy = go.dir.path().join("copy");
    let module = repository().join("go/balancer").display().to_string();
    let copied = copy.display().to_string();
    process::run(&["cp", "-r", &module, &copied])?;
    let own = go.dir.path().join("own");
    std::fs::create_dir(&own).map_err(|e| format!("{}: {e}", own.display()))?;
    let write = |name: &str, text: &str| {
        std::fs::write(own.join(name), text).map_err(|e| format!("{name}: {e}"))
    };
    let read =
        |name: &str| std::fs::read_to_string(copy.join(name)).map_err(|e| format!("{name}: {e}"));
    // As `go mod tidy` makes it, which would ask the network.
    let needs = read("go.mod")?;
    let needs = needs.split_once("go 1.24.0").ok_or("no line go 1.24.0")?.1;
    write(
        "go.mod",
        &format!(
            "module example.com/own\n\ngo 1.24.0\n{needs}\nrequire butterfly/go/balancer v0.0.0\n\n\
             replace butterfly/go/balancer => ../copy\n"
        ),
    )?;
    write("go.sum", &read("go.sum")?)?;
    write(
        "main.go",
        "package main\n\nimport (\n\t\"fmt\"\n\n\t\"butterfly/go/balancer\"\n)\n\n\
         func main() {\n\t_, err := balancer.New(balancer.Options{MaxFlows: 5})\n\
         \tfmt.Println(err)\n}\n",
    )?;
    let folder = own.display().to_string();
    let program = go.path("own-program");
    go.run_in(&folder, &["build", "-o", &program, "."])?;
    let said = process::run(&["env", "-i", &program])?;
    check(
        said.contains("MaxFlows is 5, which is not within 1024 to 67108864"),
        &format!("it says: {said}"),
    )
}

/// A client 10.1.2.1, the balancer 10.1.2.3, and servers that have the VIP.
struct Stage {
    client: Namespace,
    balancer: Namespace,
    servers: Vec<(Namespace, Option<Web>)>,
    _lan: Lan,
}

impl Stage {
    fn start() -> Result<Self> {
        let lan = Lan::with_default_offloads()?;
        let client = lan.host("client", &["10.1.2.1/24"])?;
        client.ok(&format!("ip route add {VIP} via 10.1.2.3"))?;
        let balancer = lan.host("balancer", &["10.1.2.3/24"])?;
        let server = |index: usize| {
            let host = lan.host(&format!("s{index}"), &[&format!("10.1.2.1{index}/24")])?;
            take_vip(&host, VIP)?;
            let web = Web::serve(&host, 80, &format!("s{index}"))?;
            Ok((host, Some(web)))
        };
        Ok(Stage {
            client,
            balancer,
            servers: (0..2).map(server).collect::<Result<_>>()?,
            _lan: lan,
        })
    }

    /// A program of the module's `cmd/` on the balancer's host.
    fn play(&self, go: &Go, name: &str) -> Result<Process> {
        let program = go.path(name);
        go.run(&["build", "-o", &program, &format!("./cmd/{name}")])?;
        // The one has the words of xvs's sample.
        let own = if name == "balance" { "10.1.2.3 " } else { "" };
        let words = format!("{program} eth0 {own}{VIP} 10.1.2.10 10.1.2.11");
        let command = format!("env -i PATH=/nonexistent {words}");
        let sample = self.balancer.start(name, &command)?;
        wait_for("the sample to balance", PATIENCE, || {
            Ok(sample.log().contains("balancing").then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", sample.log()))?;
        Ok(sample)
    }

    fn open(&self, count: usize) -> Result<Connections> {
        let service: SocketAddr = format!("{VIP}:80").parse().map_err(|e| format!("{e}"))?;
        Connections::open(&self.client, service, count)
    }

    /// Connections to each server: one has its share as soon as it has answered.
    fn open_to_both(&self, sample: &Process) -> Result<Connections> {
        wait_for("both servers to have flows", PATIENCE, || {
            let connections = self.open(40)?;
            let both = connections.to("s0") > 0 && connections.to("s1") > 0;
            Ok(both.then_some(connections))
        })
        .map_err(|e| format!("{e}\n{}", sample.log()))
    }
}

/// A Go command that is young enough, and where what it makes goes.
struct Go {
    command: &'static str,
    dir: tempfile::TempDir,
}

impl Go {
    fn find() -> Option<Self> {
        let young = |go: &&str| {
            let said = process::run(&["env", "GOTOOLCHAIN=local", go, "env", "GOVERSION"]).ok()?;
            let minor = said.trim().strip_prefix("go1.")?.split('.').next()?;
            minor.parse::<u32>().ok().filter(|minor| *minor >= OLDEST)
        };
        let places = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"];
        let command = places.into_iter().find(|go| young(go).is_some());
        if command.is_none() {
            eprintln!("skipped: there is no Go 1.{OLDEST} or newer here, which go/balancer needs");
        }
        let dir = tempfile::tempdir().ok()?;
        command.map(|command| Go { command, dir })
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.dir.path().join(name);
        path.display().to_string()
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let module = repository().join("go/balancer").display().to_string();
        self.run_in(&module, words)
    }

    /// Without C, and with no module that is not here already.
    fn run_in(&self, folder: &str, words: &[&str]) -> Result<String> {
        let mut all = vec!["env", "-C", folder, "CGO_ENABLED=0", "GOTOOLCHAIN=local"];
        all.extend(["GOPROXY=off", "GOFLAGS=", self.command]);
        all.extend(words);
        process::run(&all)
    }
}

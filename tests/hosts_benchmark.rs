//! The benchmark of hosts, `bench/hosts/hosts.py`: over network namespaces, and from a third place
//! over ssh, with containers of its own and with guests that are there already.

use butterfly_tests::lab::check;
use butterfly_tests::program;
use butterfly_tests::trials;
use libtest_mimic::{Arguments, Failed, Trial};
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;
use testkit::image::repository;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, wait_for};

/// What is measured, besides one round of a second a test.
struct Cells {
    firewall: &'static str,
    tso: &'static str,
    pairs: &'static [usize],
    sizes: &'static [usize],
}

/// Over ssh: everything once.
const SHORT: Cells = Cells {
    firewall: "on",
    tso: "on",
    pairs: &[1],
    sizes: &[512],
};
/// Over namespaces: with [`SHORT`] each number of pairs and each size of the page's tables, and
/// groups and segmentation in every combination. All cells would take five minutes.
const OVER_NAMESPACES: [Cells; 2] = [
    Cells {
        firewall: "on",
        tso: "off",
        pairs: &[1, 6],
        sizes: &[128, 1024],
    },
    Cells {
        firewall: "off",
        tso: "both",
        pairs: &[4],
        sizes: &[512, 1518],
    },
];
const WITHIN: Duration = Duration::from_secs(240);

type Body = fn() -> Result<()>;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Body); 3] = trials![
        two_namespaces_are_measured,
        hosts_and_guests_are_measured_over_ssh,
        what_cannot_be_is_refused,
    ];
    let trials = trials.map(|(name, body)| {
        let run = move || body().map_err(Failed::from);
        Trial::test(name, run)
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn two_namespaces_are_measured() -> Result<()> {
    let folder = said(tempfile::tempdir())?;
    for cells in &OVER_NAMESPACES {
        let measured = benchmark(cells, &["--namespaces"], folder.path())?;
        let rules = ["open", "rules"][usize::from(cells.firewall == "on")];
        for place in ["same", "two"] {
            for tso in ["no_tso", "tso"] {
                let is_asked = cells.tso == "both" || (cells.tso == "on") == (tso == "tso");
                if is_asked {
                    every_figure_of(&measured, &format!("{place}_{rules}_{tso}"))?;
                }
            }
            for (pairs, size) in cells.of_the_matrix() {
                let name = format!("{place}_{rules}_{pairs}x{size}");
                let frames = figure(&measured, &format!("{name}_pps"))?;
                check(frames > 100.0, &format!("{name}: {frames} frames a second"))?;
                let bits = figure(&measured, &format!("{name}_bps"))?;
                let of_frames = frames * size as f64 * 8.0;
                check(
                    (bits / of_frames - 1.0).abs() < 0.01,
                    &format!("{name}: {bits} bits a second, {of_frames} by frames"),
                )?;
            }
        }
    }
    nothing_is_left()
}

fn hosts_and_guests_are_measured_over_ssh() -> Result<()> {
    let hosts = Hosts::start()?;
    let config = hosts.folder.path().join("ssh-config");
    let config = config.display().to_string();
    let over_ssh = |options: &[&str]| {
        let options = [options, &["--ssh-config", &config]].concat();
        benchmark(&SHORT, &options, hosts.folder.path())
    };
    let measured = over_ssh(&[
        "--ssh",
        "root@host-1",
        "--ssh",
        "root@host-2",
        "--address",
        "192.0.2.1",
        "--address",
        "192.0.2.2",
    ])?;
    every_figure_of(&measured, "two_rules_tso")?;
    // Whoever answers over ssh is a guest here.
    let file = hosts.folder.path().join("guests");
    let pair = "# on two hosts\ntwo root@host-1 192.0.2.1 eth1  root@host-2 192.0.2.2 eth1\n";
    said(std::fs::write(&file, pair))?;
    let measured = over_ssh(&["--guests", &file.display().to_string()])?;
    every_figure_of(&measured, "two_given_tso")?;
    nothing_is_left()
}

fn what_cannot_be_is_refused() -> Result<()> {
    let folder = said(tempfile::tempdir())?;
    let file = folder.path().join("guests");
    said(std::fs::write(&file, "\ntwo root@a 10.0.0.1\n"))?;
    let file = file.display().to_string();
    for (options, sentence) in [
        (
            vec!["--ssh", "root@a"],
            "--ssh is to be given twice, not 1 times".to_owned(),
        ),
        (
            vec![],
            "give --namespaces, or --ssh twice, or --guests FILE".to_owned(),
        ),
        (
            vec!["--namespaces", "--sizes", "40"],
            "--sizes: 40 is not from 47 to 9018".to_owned(),
        ),
        (
            vec!["--namespaces", "--pairs", "0"],
            "--pairs: 0 is not from 1 to 60".to_owned(),
        ),
        (
            vec!["--guests", &file],
            format!("{file}:2: want `same|two SSH ADDRESS IFACE"),
        ),
    ] {
        let script = repository()
            .join("bench/hosts/hosts.py")
            .display()
            .to_string();
        let words = [vec![script.as_str()], options.clone()].concat();
        let output = process::output(&words)?;
        let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
        check(!output.status.success(), &format!("{options:?} is refused"))?;
        check(
            refusal.contains(&sentence),
            &format!("{options:?}: {refusal}"),
        )?;
    }
    nothing_is_left()
}

/// Two hosts, as namespaces, with a cable between them and an ssh server in each. This place is a
/// third one, which reaches both.
struct Hosts {
    folder: tempfile::TempDir,
    servers: Vec<Process>,
}

impl Hosts {
    fn start() -> Result<Hosts> {
        let folder = said(tempfile::tempdir())?;
        let at = |name: &str| folder.path().join(name).display().to_string();
        process::run(&[
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-f",
            &at("key"),
        ])?;
        process::run(&["dropbearkey", "-t", "ed25519", "-f", &at("host-key")])?;
        // The servers know a root whose home is here.
        said(std::fs::create_dir(folder.path().join(".ssh")))?;
        let allowed = folder.path().join(".ssh/authorized_keys");
        said(std::fs::copy(folder.path().join("key.pub"), allowed))?;
        let passwd = said(std::fs::read_to_string("/etc/passwd"))?;
        let home = folder.path().display();
        let passwd = passwd.lines().map(|line| match line.starts_with("root:") {
            true => format!("root:x:0:0:root:{home}:/bin/sh\n"),
            false => format!("{line}\n"),
        });
        let passwd: String = passwd.collect();
        said(std::fs::write(folder.path().join("passwd"), passwd))?;
        let mut config = format!(
            "IdentityFile {}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n\
             LogLevel ERROR\n",
            at("key")
        );
        let mut hosts = Hosts {
            folder,
            servers: Vec::new(),
        };
        let cable = "ip link add eth1 mtu 1600 netns bf-ssh-1 type veth \
                     peer name eth1 mtu 1600 netns bf-ssh-2";
        let mut script = String::from("set -e\n");
        for number in 1..=2 {
            let (name, here) = (format!("bf-ssh-{number}"), format!("bf-to-{number}"));
            let (near, far) = (number * 4 + 1, number * 4 + 2);
            script += &format!(
                "ip netns add {name}\n\
                 ip link add {here} type veth peer name mgmt netns {name}\n\
                 ip addr add 198.51.100.{near}/30 dev {here}; ip link set {here} up\n\
                 ip -n {name} addr add 198.51.100.{far}/30 dev mgmt\n\
                 ip -n {name} link set mgmt up; ip -n {name} link set lo up\n"
            );
            config += &format!("Host host-{number}\nHostName 198.51.100.{far}\n");
        }
        script += cable;
        for number in 1..=2 {
            script += &format!(
                "\nip -n bf-ssh-{number} addr add 192.0.2.{number}/24 dev eth1\n\
                 ip -n bf-ssh-{number} link set eth1 up\n"
            );
        }
        said(std::fs::write(
            hosts.folder.path().join("ssh-config"),
            config,
        ))?;
        process::run(&["sh", "-c", &script])?;
        for number in 1..=2 {
            let home = hosts.folder.path().display();
            let server = format!(
                "chmod 700 {home} {home}/.ssh; mount --bind {home}/passwd /etc/passwd; \
                 exec dropbear -F -E -s -r {home}/host-key -p 22 -P {home}/pid-{number}"
            );
            let namespace = format!("bf-ssh-{number}");
            let words = ["ip", "netns", "exec", &namespace, "sh", "-c", &server];
            let log = hosts.folder.path().join(format!("ssh-{number}.log"));
            hosts
                .servers
                .push(Process::start("dropbear", &words, &log)?);
            let config = hosts.folder.path().join("ssh-config").display().to_string();
            let destination = format!("root@host-{number}");
            wait_for("ssh to answer", PATIENCE, || {
                let tried = process::output(&["ssh", "-F", &config, &destination, "--", "true"])?;
                Ok(tried.status.success().then_some(()))
            })
            .map_err(|e| format!("{e}\n{}", hosts.servers[number - 1].log()))?;
        }
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.servers.clear();
        for number in 1..=2 {
            let _ = process::output(&["ip", "netns", "del", &format!("bf-ssh-{number}")]);
        }
    }
}

impl Cells {
    /// Pairs at once and bytes of a frame.
    fn of_the_matrix(&self) -> impl Iterator<Item = (usize, usize)> {
        let of = |pairs: &'static usize| self.sizes.iter().map(|size| (*pairs, *size));
        self.pairs.iter().flat_map(of)
    }

    fn options(&self) -> Vec<String> {
        let list = |numbers: &[usize]| {
            let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
            words.join(",")
        };
        let (pairs, sizes) = (list(self.pairs), list(self.sizes));
        let (firewall, tso) = (self.firewall, self.tso);
        format!("--quick --firewall {firewall} --tso {tso} --pairs {pairs} --sizes {sizes}")
            .split(' ')
            .map(str::to_owned)
            .collect()
    }
}

/// What the benchmark says, whose programs are those that were built.
fn benchmark(cells: &Cells, options: &[&str], folder: &Path) -> Result<String> {
    let script = repository()
        .join("bench/hosts/hosts.py")
        .display()
        .to_string();
    let programs = program("butterflyd");
    let programs = programs.trim_end_matches("butterflyd");
    let cells = cells.options();
    let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
    let words = [&[&*script, "--programs", programs], &cells[..], options].concat();
    process::run_within(&words, WITHIN, &folder.join("hosts.log"))
}

/// What a run ends with has a figure of that name.
fn figure(measured: &str, name: &str) -> Result<f64> {
    let pairs = measured.lines().last().unwrap_or_default().split(' ');
    let mut value = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let value = value
        .next_back()
        .ok_or_else(|| format!("no {name} in\n{measured}"))?;
    said(value.parse())
}

fn every_figure_of(measured: &str, place: &str) -> Result<()> {
    for name in [
        "ping_mean_us",
        "qperf_tcp_lat_us",
        "qperf_udp_lat_us",
        "qperf_tcp_bw_bps",
        "iperf_tcp_bps",
        "iperf_udp_bps",
    ] {
        let value = figure(measured, &format!("{place}_{name}"))?;
        check(value > 1.0, &format!("{place}_{name} is {value}"))?;
    }
    Ok(())
}

/// Neither a namespace nor a folder.
fn nothing_is_left() -> Result<()> {
    let namespaces = process::run(&["ip", "netns", "list"])?;
    let ours = |name: &str| name.starts_with("bf-bench") || name.starts_with("bf-host");
    check(
        !namespaces.lines().any(ours),
        &format!("no namespace is left: {namespaces}"),
    )?;
    let entries = said(std::fs::read_dir("/tmp"))?;
    let left = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let left: Vec<String> = left
        .filter(|name| name.starts_with("butterfly-hosts-"))
        .collect();
    check(left.is_empty(), &format!("no folder is left: {left:?}"))
}

/// The error as a sentence.
fn said<T, E: Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| error.to_string())
}

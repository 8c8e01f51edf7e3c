//! `--metrics` as users meet it: curl, promtool and a Prometheus of Debian's. What these tools are
//! installed by is tools/setup.sh.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use api::v1;
use common::certificates::TlsFolder;
use common::{Daemon, PATIENCE, free_port, within};
use serde_json::Value;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn output(words: &[&str], input: &str) -> Output {
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{} (tools/setup.sh installs it): {e}", words[0]));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // Whoever needs no input may have ended before it came.
    let _ = writer.join();
    output
}

fn succeed(words: &[&str], input: &str) -> String {
    let output = output(words, input);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}{complained}");
    said
}

/// A NIC inside the daemon that pings another one.
fn bench(id: &str, mac: &str, ip: &str, bench: v1::Bench) -> v1::Nic {
    v1::Nic {
        id: id.into(),
        mac: mac.into(),
        vni: 7,
        addresses: vec![ip.into()],
        kind: v1::NicKind::Bench.into(),
        bench: Some(bench),
        bypass_filtering: true,
        ..Default::default()
    }
}

/// Traffic between two NICs, and a group with a rule.
async fn populate(daemon: &Daemon) {
    let mut client = daemon.v1().await;
    let receiver = v1::Bench {
        role: v1::bench::Role::IcmpReceiver.into(),
        ..Default::default()
    };
    let sender = v1::Bench {
        role: v1::bench::Role::IcmpSender.into(),
        target_ip: "10.0.0.2".into(),
        target_mac: "02:00:00:00:00:02".into(),
    };
    for nic in [
        bench("echo", "02:00:00:00:00:02", "10.0.0.2", receiver),
        bench("pinger", "02:00:00:00:00:01", "10.0.0.1", sender),
    ] {
        let put = v1::PutNicRequest {
            nic: Some(nic),
            ..Default::default()
        };
        within(client.put_nic(put)).await.unwrap();
    }
    let rule = v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(6),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange {
            start: 443,
            end: 443,
        })),
        peer: Some(v1::rule::Peer::Cidr("2001:db8::/32".into())),
    };
    let add = v1::RuleRequest {
        group: "we\"b\\s".into(),
        rule: Some(rule),
        brief: false,
    };
    within(client.add_rule(add)).await.unwrap();
    // Refused, and counted as that.
    let missing = v1::GetNicRequest { id: "none".into() };
    within(client.get_nic(missing)).await.unwrap_err();
}

fn curl(socket: &Path, more: &[&str]) -> String {
    let socket = socket.to_str().unwrap();
    let words = ["curl", "-sS", "--max-time", "10", "--unix-socket", socket];
    succeed(&[&words, more, &["http://localhost/metrics"]].concat(), "")
}

/// A value of the page, by the whole of its series' name.
fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.and_then(|value| value.trim().parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_passes_promtool_and_is_what_the_docs_say() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics.sock");
    let daemon = Daemon::start(&["--metrics", &format!("unix:{}", socket.display())]);
    populate(&daemon).await;
    let text = curl(&socket, &[]);
    let checked = output(&["promtool", "check", "metrics"], &text);
    assert!(
        checked.status.success() && checked.stderr.is_empty(),
        "promtool: {}",
        String::from_utf8_lossy(&checked.stderr)
    );

    let named: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|rest| rest.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(named, documented(), "docs/metrics.md and the page differ");

    let frames = |page: &str, nic| {
        value(
            page,
            &format!("butterfly_nic_frames_total{{nic=\"{nic}\",direction=\"egress\"}}"),
        )
    };
    assert!(frames(&text, "echo").is_some());
    let deadline = Instant::now() + PATIENCE;
    while frames(&curl(&socket, &[]), "pinger") <= frames(&text, "pinger") {
        assert!(Instant::now() < deadline, "nothing is counted:\n{text}");
    }
    for (series, expected) in [
        ("butterfly_nics ", 2.0),
        (
            "butterfly_nic_info{nic=\"echo\",vni=\"7\",kind=\"bench\"} ",
            1.0,
        ),
        ("butterfly_nic_up{nic=\"echo\"} ", 1.0),
        (
            "butterfly_api_requests_total{api=\"v1\",request=\"PutNic\",result=\"ok\"} ",
            2.0,
        ),
        (
            "butterfly_api_requests_total{api=\"v1\",request=\"GetNic\",result=\"NOT_FOUND\"} ",
            1.0,
        ),
        (
            "butterfly_api_request_duration_seconds_count{api=\"v1\",request=\"PutNic\"} ",
            2.0,
        ),
        (
            "butterfly_metrics_left_out{family=\"butterfly_rule\"} ",
            0.0,
        ),
        (
            "butterfly_dropped_frames_total{direction=\"egress\",reason=\"truncated\"} ",
            0.0,
        ),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}");
    }
    // What may be in an id cannot break out of its label.
    assert!(
        text.contains("butterfly_rule_flows_total{group=\"we\\\"b\\\\s\",rule="),
        "{text}"
    );

    let open = curl(
        &socket,
        &["-H", "Accept: application/openmetrics-text; version=1.0.0"],
    );
    assert!(open.ends_with("# EOF\n"));
    for line in [
        "# TYPE butterfly_nic_bytes counter",
        "# UNIT butterfly_nic_bytes bytes",
    ] {
        assert!(open.lines().any(|own| own == line), "{line}");
    }
    let head = curl(
        &socket,
        &["-I", "-H", "Accept: application/openmetrics-text"],
    );
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    let status = |more: &[&str], path: &str| {
        let words = [
            "curl",
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--unix-socket",
        ];
        let url = format!("http://localhost{path}");
        succeed(
            &[&words[..], &[socket.to_str().unwrap()], more, &[&url]].concat(),
            "",
        )
    };
    assert_eq!(status(&[], "/"), "404");
    assert_eq!(status(&["-X", "POST"], "/metrics"), "405");
}

/// The metrics that docs/metrics.md lists.
fn documented() -> BTreeSet<String> {
    let page = std::fs::read_to_string(format!("{REPOSITORY}/docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.map(|row| row.split('`').next().unwrap().to_owned());
    names.collect()
}

#[test]
fn clear_text_is_for_loopback_and_tcp_takes_certificates() {
    for (args, expected) in [
        (
            &["--metrics", "tcp:127.0.0.1:0"][..],
            "give --tls-cert, --tls-key and --tls-ca",
        ),
        (
            &["--metrics", "tcp:0.0.0.0:0", "--insecure-metrics"],
            "--insecure-metrics is for loopback addresses alone",
        ),
        (
            &["--metrics", "9417"],
            "--metrics 9417: not unix:PATH or tcp:ADDRESS:PORT",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        let ended = common::run(&[&["--no-syslog", "--api", "none", "-s", folder], args].concat());
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains(expected), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_role_for_the_whole_host_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics.sock");
    let access = dir.path().join("access.toml");
    let grant = "[[grant]]\nrole = \"view\"\nusers = [\"nobody\"]\nnetworks = [\"7\"]\n";
    std::fs::write(&access, grant).unwrap();
    std::fs::set_permissions(&access, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let _daemon = Daemon::start(&[
        "--metrics",
        &format!("unix:{}", socket.display()),
        "--access",
        access.to_str().unwrap(),
    ]);
    let as_nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let words = [
        "curl",
        "-sS",
        "--max-time",
        "10",
        "--unix-socket",
        socket.to_str().unwrap(),
    ];
    let said = succeed(
        &[&as_nobody[..], &words, &["http://localhost/metrics"]].concat(),
        "",
    );
    assert!(said.starts_with("metrics is for the whole host"), "{said}");
    assert!(curl(&socket, &[]).contains("butterfly_nics 0"));
}

/// The host's names are those of the page's test.
#[tokio::test(flavor = "multi_thread")]
async fn over_loopback_no_other_site_s_page_reads_them() {
    let port = free_port();
    let metrics = format!("tcp:127.0.0.1:{port}");
    let _daemon = Daemon::start(&["--metrics", &metrics, "--insecure-metrics"]);
    let url = format!("http://127.0.0.1:{port}/metrics");
    let words = [
        "curl",
        "-sS",
        "--max-time",
        "10",
        "-w",
        "%{http_code}",
        "-H",
    ];
    for (field, code) in [
        ("Host: evil.example", "421"),
        ("Host: 192.0.2.1", "421"),
        ("Host:", "421"),
        ("Host: localhost", "200"),
        ("Sec-Fetch-Site: cross-site", "403"),
        ("Sec-Fetch-Site: none", "200"),
    ] {
        let said = succeed(&[&words[..], &[field, &url]].concat(), "");
        assert!(said.ends_with(code), "{field}: {said}");
        assert_eq!(said.contains("butterfly_nics"), code == "200", "{field}");
    }
}

/// A process that does not outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_over_tls_and_over_loopback() {
    let files = TlsFolder::new();
    let (tls, clear, own) = (free_port(), free_port(), free_port());
    let metrics = format!("tcp:127.0.0.1:{tls}");
    let certified = Daemon::start(&[&["--metrics", &metrics][..], &files.options()].concat());
    let open = Daemon::start(&[
        "--metrics",
        &format!("tcp:127.0.0.1:{clear}"),
        "--insecure-metrics",
    ]);
    populate(&certified).await;
    populate(&open).await;
    // Without a certificate nobody gets in.
    let bare = ["curl", "-sS", "-k", "--max-time", "10"];
    let url = format!("https://127.0.0.1:{tls}/metrics");
    assert!(!output(&[&bare[..], &[&url]].concat(), "").status.success());

    let (client, client_key) = files.client("prometheus");
    let ca = files.ca();
    let rules = format!("{REPOSITORY}/packaging/prometheus/butterfly.rules.yml");
    let config = files.write(
        "prometheus.yml",
        &format!(
            "global: {{scrape_interval: 200ms}}\nrule_files: [\"{rules}\"]\nscrape_configs:\n\
             - job_name: butterfly\n  scheme: https\n  tls_config:\n    ca_file: {ca}\n    \
             cert_file: {client}\n    key_file: {client_key}\n    server_name: butterfly.test\n  \
             static_configs: [{{targets: [\"127.0.0.1:{tls}\"]}}]\n\
             - job_name: loopback\n  static_configs: [{{targets: [\"127.0.0.1:{clear}\"]}}]\n"
        ),
    );
    succeed(&["promtool", "check", "config", &config], "");
    let log = std::fs::File::create(files.path("log")).unwrap();
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={config}"))
        .arg(format!(
            "--storage.tsdb.path={}",
            files.path("data").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{own}"))
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("prometheus (tools/setup.sh installs it)");
    let _prometheus = Ended(prometheus);
    let ask = |query: &str| -> Vec<Value> {
        let url = format!("http://127.0.0.1:{own}/api/v1/query");
        let query = format!("query={query}");
        let words = [
            "curl",
            "-sS",
            "--max-time",
            "10",
            "-G",
            &url,
            "--data-urlencode",
            &query,
        ];
        let said = String::from_utf8_lossy(&output(&words, "").stdout).into_owned();
        let parsed: Value = serde_json::from_str(&said).unwrap_or_default();
        parsed["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    for (query, series) in [
        ("up == 1", 2),
        (
            "rate(butterfly_nic_frames_total{nic=\"pinger\",direction=\"egress\"}[5s]) > 0",
            2,
        ),
        ("rate(butterfly_worker_busy_seconds_total[5s]) > 0", 2),
        (
            "butterfly_nic_frames_total * on (job, nic) group_left (vni) \
             butterfly_nic_info{vni=\"7\"}",
            8,
        ),
        (
            "histogram_quantile(0.9, \
             butterfly_api_request_duration_seconds_bucket{request=\"PutNic\"})",
            2,
        ),
        ("process_resident_memory_bytes{job=\"butterfly\"} > 1e6", 1),
    ] {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = ask(query);
            if found.len() == series {
                break;
            }
            let log = std::fs::read_to_string(files.path("log")).unwrap();
            assert!(Instant::now() < deadline, "{query}: {found:?}\n{log}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The names of metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let words = expression.split(word);
    words.filter(|word| word.starts_with("butterfly_") || word.starts_with("process_"))
}

#[test]
fn rules_and_dashboard_ask_for_what_is_there() {
    let folder = format!("{REPOSITORY}/packaging");
    let rules = format!("{folder}/prometheus/butterfly.rules.yml");
    succeed(&["promtool", "check", "rules", &rules], "");
    let tests = format!("{folder}/prometheus/butterfly.test.yml");
    succeed(&["promtool", "test", "rules", &tests], "");

    let text = std::fs::read_to_string(format!("{folder}/grafana/butterfly.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().cloned());
    let expressions: Vec<String> = targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(expressions.len() > 15);
    // promtool reads expressions in rules alone; variables are Grafana's.
    let mut recorded = String::from("groups:\n- name: dashboard\n  rules:\n");
    for (number, expression) in expressions.iter().enumerate() {
        let plain = expression
            .replace("$__rate_interval", "5m")
            .replace("$instance", ".*");
        recorded += &format!("  - record: r{number}\n    expr: {}\n", Value::from(plain));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dashboard.yml");
    std::fs::write(&path, recorded).unwrap();
    succeed(&["promtool", "check", "rules", path.to_str().unwrap()], "");

    let mut known = documented();
    for histogram in [
        "butterfly_worker_batch_frames",
        "butterfly_api_request_duration_seconds",
    ] {
        for suffix in ["bucket", "sum", "count"] {
            known.insert(format!("{histogram}_{suffix}"));
        }
    }
    let mut asked = expressions;
    let rules = std::fs::read_to_string(rules).unwrap();
    let rules = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    asked.extend(rules.map(str::to_owned));
    let reasons = std::fs::read_to_string(format!("{REPOSITORY}/docs/drops.md")).unwrap();
    for expression in &asked {
        for name in names(expression) {
            assert!(known.contains(name), "{name} of {expression} is no metric");
        }
        for list in expression.split("reason=~\"").skip(1) {
            for reason in list.split('"').next().unwrap().split('|') {
                assert!(
                    reasons.contains(&format!("| `{reason}` |")),
                    "{reason} is no reason"
                );
            }
        }
    }
}

/// 16,000 NICs in one page, with frames between two of them: how long it takes, and what the worker
/// did meanwhile. `cargo test --release -p butterfly-daemon --test metrics -- --ignored
/// --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, which takes an optimised build"]
async fn a_scrape_of_16000_nics() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics.sock");
    let daemon = Daemon::start(&["--metrics", &format!("unix:{}", socket.display())]);
    let mut client = daemon.v1().await;
    let receiver = v1::Bench {
        role: v1::bench::Role::IcmpReceiver.into(),
        ..Default::default()
    };
    let nic = |number: u32| {
        let mac = format!("02:00:00:01:{:02x}:{:02x}", number >> 8, number & 0xff);
        let ip = format!("10.1.{}.{}", number >> 8, number & 0xff);
        bench(
            &format!("vnic-{number:08}-of-this-host"),
            &mac,
            &ip,
            receiver.clone(),
        )
    };
    let config = v1::Config {
        nics: (0..15_998).map(nic).collect(),
        ..Default::default()
    };
    let apply = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    client.apply(apply).await.unwrap();
    populate(&daemon).await;
    let turns = async |client: &mut api::v1::butterfly_client::ButterflyClient<_>| {
        let list = client
            .list_workers(v1::ListWorkersRequest {})
            .await
            .unwrap();
        list.into_inner().workers[0].clone()
    };
    for round in 0..5 {
        let before = turns(&mut client).await;
        let began = Instant::now();
        let page = curl(&socket, &["-H", "Accept: application/openmetrics-text"]);
        let took = began.elapsed();
        let after = turns(&mut client).await;
        println!(
            "scrape={round} ms={:.1} megabytes={:.1} series={} frames={} frames_per_ms={:.1}",
            took.as_secs_f64() * 1e3,
            page.len() as f64 / 1e6,
            page.lines().filter(|line| !line.starts_with('#')).count(),
            after.frames - before.frames,
            (after.frames - before.frames) as f64 * 1e6 / (after.time_ns - before.time_ns) as f64,
        );
    }
}

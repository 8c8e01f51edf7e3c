//! `--page` as a browser asks it, by curl; tools/test-page.py is a real one.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use api::v1;
use common::certificates::TlsFolder;
use common::{Daemon, PATIENCE, run, within};
use serde_json::{Value, json};
use testkit::wait_for;

const TOKEN: &str = "the-token-of-this-test";
const API: &str = "/api/butterfly.v1.Butterfly";

/// An answer: its code, its head, and its body.
struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// What was refused, and why.
    fn refusal(&self) -> (u16, String) {
        (self.code, self.json()["error"].as_str().unwrap().to_owned())
    }
}

fn curl(words: &[&str]) -> Answer {
    let ran = Command::new("curl")
        .args(["-sS", "--max-time", "10", "-D", "/dev/stderr"])
        .args(words)
        .output()
        .unwrap();
    let head = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{words:?}: {head}");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Answer {
        code: code.unwrap_or_else(|| panic!("{head}")),
        body: String::from_utf8(ran.stdout).unwrap(),
        head,
    }
}

const JSON: [&str; 2] = ["-H", "Content-Type: application/json"];

struct Page {
    daemon: Daemon,
    unix: String,
    port: u16,
}

impl Page {
    fn start(more: &[&str]) -> Page {
        let (dir, v0) = common::folder();
        let token = dir.path().join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let unix = dir.path().join("page.sock").display().to_string();
        let port = common::free_port();
        let (socket, tcp) = (format!("unix:{unix}"), format!("tcp:127.0.0.1:{port}"));
        let token = token.display().to_string();
        let words = ["--page", &socket, "--page", &tcp, "--page-token", &token];
        let daemon = Daemon::start_in(dir, v0, &[&words, more].concat());
        Page { daemon, unix, port }
    }

    /// Asks over the unix socket, as root.
    fn unix(&self, words: &[&str], path: &str) -> Answer {
        let url = format!("http://localhost{path}");
        curl(&[&["--unix-socket", &self.unix], words, &[&url]].concat())
    }

    fn call(&self, method: &str, request: &str) -> Answer {
        let words = [&JSON[..], &["-d", request]].concat();
        self.unix(&words, &format!("{API}/{method}"))
    }

    /// Asks over loopback in clear text.
    fn tcp(&self, words: &[&str], path: &str) -> Answer {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        curl(&[words, &[&url]].concat())
    }
}

async fn put(daemon: &Daemon, id: &str, mac: &str) {
    let nic = v1::Nic {
        id: id.into(),
        mac: mac.into(),
        vni: 7,
        ..Default::default()
    };
    let put = v1::PutNicRequest {
        nic: Some(nic),
        ..Default::default()
    };
    within(daemon.v1().await.put_nic(put)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_are_there_and_the_api_in_json() {
    let page = Page::start(&[]);
    put(&page.daemon, "a", "02:00:00:00:00:01").await;
    for (path, kind, part) in [
        ("/", "text/html", "<title>Butterfly</title>"),
        ("/page.js", "text/javascript", "ListNics"),
        ("/page.css", "text/css", "prefers-color-scheme"),
        ("/icon.svg", "image/svg+xml", "<svg"),
    ] {
        let answer = page.unix(&[], path);
        assert_eq!(answer.code, 200, "{path}");
        assert!(answer.body.contains(part), "{path}");
        let head = answer.head.to_lowercase();
        for line in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'none'; script-src 'self'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.contains(line), "{path}: {line} is not in {head}");
        }
    }
    assert_eq!(page.unix(&["-X", "DELETE"], "/").code, 405);

    // A message, a list by one message, a list by a stream.
    let nic = page.call("GetNic", r#"{"id": "a"}"#).json();
    assert_eq!(nic["nic"]["mac"], "02:00:00:00:00:01");
    assert_eq!(nic["state"], "PORT_STATE_DOWN");
    assert_eq!(page.call("ListNics", "").json()["nics"][0], nic);
    let networks = page.call("ListNetworks", "{}").json();
    assert_eq!(networks["list"][0]["network"], json!({"vni": 7}));
    assert_eq!(networks["more"], false);
    assert_eq!(
        page.call("ListFlows", r#"{"most": 10}"#).json(),
        json!({"list": [], "more": false})
    );
    let path = "/api/butterfly.v1.Balancer/ListServices";
    let services = page.unix(&[&JSON[..], &["-d", "{}"]].concat(), path);
    assert_eq!((services.code, services.json()), (200, json!({})));

    // Root may change what is declared, as by gRPC; it is in the audit log likewise.
    let put = page.call("PutGroup", r#"{"group": {"id": "made"}}"#);
    assert_eq!(put.json()["id"], "made");
    let log = std::fs::read_to_string(page.daemon.dir.path().join("log")).unwrap();
    assert!(
        log.contains(r#""request":"PutGroup","result":"ok""#)
            && log.contains(r#""arguments":{"group":{"id":"made"}}"#),
        "{log}"
    );
    assert_eq!(log.matches(r#""request":"PutGroup""#).count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let page = Page::start(&[]);
    for (method, request, code, why) in [
        ("GetNic", r#"{"id": "none"}"#, 404, "there is no NIC 'none'"),
        ("GetNic", r#"{"name": "a"}"#, 400, "name"),
        ("GetNic", r#"{"id": 1}"#, 400, "the request: "),
        ("GetNic", "[", 400, "the request: "),
        ("GetTrace", "{}", 400, ""),
        ("Watch", "{}", 501, "Watch is a stream: use gRPC"),
        ("CaptureFrames", "{}", 501, "CaptureFrames is a stream"),
        (
            "None",
            "{}",
            501,
            "there is no method /butterfly.v1.Butterfly/None",
        ),
    ] {
        let (was, said) = page.call(method, request).refusal();
        assert_eq!(was, code, "{method} {request}: {said}");
        assert!(said.contains(why), "{method} {request}: {said}");
    }
    let long = format!("@{}", page.daemon.dir.path().join("long").display());
    std::fs::write(&long[1..], vec![b' '; (1 << 20) + 1]).unwrap();
    let words = [&JSON[..], &["-H", "Expect:", "--data-binary", &long]].concat();
    let (code, why) = page.unix(&words, &format!("{API}/ListNics")).refusal();
    assert_eq!(
        (code, why.as_str()),
        (400, "the request: length limit exceeded")
    );
    for path in ["/none", "/api/", "/api/x", "/page.js/", "/../page.js"] {
        let answer = page.unix(&["--path-as-is"], path);
        assert_eq!(answer.code, 404, "{path}");
    }
    let (code, why) = page.unix(&[], "/history?no%20ne").refusal();
    assert_eq!(
        (code, why.as_str()),
        (404, "nothing is known of a NIC 'no ne'")
    );
    // It goes on answering.
    assert_eq!(page.call("ListNics", "{}").code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_has_the_token_looks_and_nobody_else_s_page_asks() {
    let page = Page::start(&[]);
    let nics = format!("{API}/ListNics");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let has = ["-H", bearer.as_str()];
    let other = ["-H", "Authorization: Bearer the-token-of-another"];
    let ask = ["-d", "{}"];
    let refusal = |words: &[&[&str]], path: &str| page.tcp(&words.concat(), path).refusal();

    assert_eq!(
        page.tcp(&[], "/page.js").code,
        200,
        "the files are no secret"
    );
    assert_eq!(page.tcp(&[&has, &JSON[..], &ask].concat(), &nics).code, 200);
    assert_eq!(page.tcp(&has, "/history").code, 200);
    for who in [&[][..], &other[..]] {
        let (code, why) = refusal(&[who, &JSON, &ask], &nics);
        assert_eq!(code, 401);
        assert!(why.contains("for who has its token"), "{why}");
        assert_eq!(refusal(&[who], "/history").0, 401);
    }
    let log = std::fs::read_to_string(page.daemon.dir.path().join("log")).unwrap();
    assert!(
        log.contains(r#""result":"refused","why":"a wrong token""#),
        "{log}"
    );
    // A form of another site's, and a name of somebody else's that leads here.
    assert_eq!(refusal(&[&has, &ask], &nics).0, 400);
    let form = ["-H", "Content-Type: text/plain"];
    assert_eq!(refusal(&[&has, &form, &ask], &nics).0, 400);
    for host in ["Host: evil.example", "Host: 192.0.2.1", "Host:"] {
        let words = [&has[..], &JSON, &ask, &["-H", host]].concat();
        assert_eq!(page.tcp(&words, &nics).code, 421, "{host}");
        assert_eq!(page.unix(&words, &nics).code, 421, "{host}");
    }
    let site = ["-H", "Sec-Fetch-Site: same-site"];
    let words = [&has[..], &JSON, &ask, &site].concat();
    assert_eq!(page.tcp(&words, &nics).code, 403);
    // To change anything takes a grant.
    let put = ["-d", r#"{"group": {"id": "made"}}"#];
    let (code, why) = refusal(&[&has, &JSON, &put], &format!("{API}/PutGroup"));
    assert_eq!(code, 403);
    assert!(
        why.contains("PutGroup takes the role operate, and a client with the page token has view"),
        "{why}"
    );
    assert_eq!(page.call("ListGroups", "{}").json(), json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_token_is_in_force_when_its_file_was_read_again() {
    let page = Page::start(&[]);
    let (file, another) = (page.daemon.path("token"), "the-token-of-another");
    let code = |token: &str| {
        let bearer = format!("Authorization: Bearer {token}");
        page.tcp(&["-H", &bearer], "/history").code
    };
    let mut admin = page.daemon.v1().await;
    std::fs::write(&file, "short").unwrap();
    let refused = within(admin.reload(v1::ReloadRequest {}))
        .await
        .unwrap_err();
    let why = "has 5 characters, not 16 to 256";
    assert!(refused.message().contains(why), "{refused}");
    assert_eq!((code(TOKEN), code(another)), (200, 401));
    std::fs::write(&file, another).unwrap();
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    assert_eq!((code(TOKEN), code(another)), (401, 200));
}

/// A request that never ends.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_ask_is_refused_before_the_request_is_read() {
    let page = Page::start(&[]);
    let mut stream = TcpStream::connect(("127.0.0.1", page.port)).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let head = format!(
        "POST {API}/PutGroup HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut answer).unwrap();
    assert_eq!(answer, "HTTP/1.1 403 Forbidden\r\n");
    let log = std::fs::read_to_string(page.daemon.dir.path().join("log")).unwrap();
    assert_eq!(log.matches(r#""request":"PutGroup""#).count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_allows_the_token_more_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let access = dir.path().join("access.toml");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let put = [
        "-H",
        &bearer,
        "-H",
        JSON[1],
        "-d",
        r#"{"group": {"id": "made"}}"#,
    ];
    for (file, code) in [
        ("[[grant]]\nrole = \"operate\"\npage_token = true\n", 200),
        ("[[grant]]\nrole = \"view\"\nusers = [\"root\"]\n", 403),
    ] {
        std::fs::write(&access, file).unwrap();
        let page = Page::start(&["--access", access.to_str().unwrap()]);
        let answer = page.tcp(&put, &format!("{API}/PutGroup"));
        assert_eq!(answer.code, code, "{file}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_it_is_for_who_has_a_certificate() {
    let tls = TlsFolder::new();
    let (client, client_key) = tls.client("browser");
    let port = common::free_port();
    let tcp = format!("tcp:127.0.0.1:{port}");
    let daemon = Daemon::start(&[&["--page", &tcp][..], &tls.options()].concat());
    let name = format!("butterfly.test:{port}");
    let to = format!("{name}:127.0.0.1");
    let url = format!("https://{name}{API}/ListNics");
    let own = ["--cert", client.as_str(), "--key", client_key.as_str()];
    let words = [
        "--cacert",
        tls.ca(),
        "--resolve",
        &to,
        JSON[0],
        JSON[1],
        "-d",
        "{}",
    ];
    let answer = curl(&[&words[..], &own, &[&url]].concat());
    assert_eq!((answer.code, answer.json()), (200, json!({})));
    let without = Command::new("curl")
        .args(words)
        .args(["-sS", "--max-time", "10", &url])
        .output();
    assert!(
        !without.unwrap().status.success(),
        "nobody is let in without a certificate"
    );
    wait_for("a record of that", PATIENCE, || {
        let log = daemon.log();
        let record = log.lines().find(|line| line.contains(r#""api":"page""#));
        let is_told = |line: &str| line.contains("peer sent no certificates");
        Ok(record.filter(|line| is_told(line)).map(drop))
    })
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_hour_is_told() {
    let page = Page::start(&[]);
    let bench = |id: &str, last, bench| v1::Nic {
        id: id.into(),
        mac: format!("02:00:00:00:00:0{last}"),
        vni: 7,
        addresses: vec![format!("10.0.0.{last}")],
        kind: v1::NicKind::Bench.into(),
        bench: Some(bench),
        bypass_filtering: true,
        ..Default::default()
    };
    let sender = v1::Bench {
        role: v1::bench::Role::IcmpSender.into(),
        target_ip: "10.0.0.2".into(),
        target_mac: "02:00:00:00:00:02".into(),
    };
    let receiver = v1::Bench {
        role: v1::bench::Role::IcmpReceiver.into(),
        ..Default::default()
    };
    let mut client = page.daemon.v1().await;
    for nic in [bench("echo", 2, receiver), bench("pinger", 1, sender)] {
        let put = v1::PutNicRequest {
            nic: Some(nic),
            ..Default::default()
        };
        within(client.put_nic(put)).await.unwrap();
    }
    // The second sample, after ten seconds, is the first rate.
    let deadline = Instant::now() + Duration::from_secs(60);
    let told = loop {
        let told = page.unix(&[], "/history").json();
        if told["at"].as_array().is_some_and(|at| !at.is_empty()) {
            break told;
        }
        assert!(Instant::now() < deadline, "no rate after a minute: {told}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(told["step_secs"], 10);
    let first = |name: &str| told[name][0].as_f64().unwrap();
    for name in [
        "egress_frames",
        "ingress_frames",
        "egress_bytes",
        "ingress_bytes",
        "busy",
    ] {
        assert!(first(name) > 0.0, "{name}: {told}");
    }
    assert!(first("busy") <= 1.0 && first("egress_bytes") > first("egress_frames") * 14.0);
}

#[test]
fn what_cannot_be_served_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let open = dir.path().join("open");
    std::fs::write(&open, TOKEN).unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (token, open) = (token.to_str().unwrap(), open.to_str().unwrap());
    for (words, why) in [
        (
            &["--page", "tcp:127.0.0.1:0"][..],
            "or --page-token with a loopback address",
        ),
        (
            &["--page", "tcp:0.0.0.0:0", "--page-token", token],
            "--page-token is for loopback addresses alone",
        ),
        (
            &["--page", "http://localhost"],
            "not unix:PATH or tcp:ADDRESS:PORT",
        ),
        (
            &["--page", "tcp:127.0.0.1:0", "--page-token", open],
            "can be read by everybody (mode 644)",
        ),
        (
            &["--page", "tcp:127.0.0.1:0", "--page-token", "/nonexistent"],
            "/nonexistent cannot be read",
        ),
    ] {
        let socket_dir = dir.path().to_str().unwrap();
        let ran = run(&[&["--no-syslog", "-s", socket_dir, "--api", "none"], words].concat());
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(
            !ran.status.success() && said.contains(why),
            "{words:?}: {said}"
        );
    }
}

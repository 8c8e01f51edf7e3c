//! Who may use the APIs: credentials on the unix sockets, certificates on v1's TCP.

mod common;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use common::certificates::{Authority, TlsFolder};
use common::{Daemon, PATIENCE, within};
use serde_json::json;
use testkit::netns::Namespace;
use testkit::wait_for;
use tonic::transport::Endpoint;

/// The user that owns nothing.
const NOBODY: u32 = 65534;

#[tokio::test]
async fn other_users_are_turned_away_from_the_unix_socket() {
    let daemon = Daemon::start(&[]);
    // v0 speaks first; whoever connects to v1 does.
    let http = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for (name, hello) in [("v1.sock", &http[..]), ("v0.sock", b"")] {
        let socket = daemon.path(name);
        let meta = std::fs::metadata(&socket).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{name}");
        if meta.uid() != 0 {
            eprintln!("skipped: another user's client takes root to be started");
            return;
        }
        // Even where the file system lets everybody in, the daemon does not.
        std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
        let script = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
s.connect(sys.argv[1])
try:
    s.sendall(bytes.fromhex(sys.argv[2]))
    print(len(s.recv(100)))
except (ConnectionResetError, BrokenPipeError):
    print(0)
";
        let hello: String = hello.iter().map(|byte| format!("{byte:02x}")).collect();
        let greet = |uid| {
            let mut python = Command::new("/usr/bin/python3");
            python
                .args(["-c", script])
                .arg(&socket)
                .arg(&hello)
                .current_dir("/")
                .uid(uid)
                .gid(uid);
            python.output()
        };
        let Ok(root) = greet(0) else {
            eprintln!("skipped: there is no /usr/bin/python3");
            return;
        };
        assert_ne!(root.stdout, b"0\n", "{name}: root is heard: {root:?}");
        assert_eq!(greet(NOBODY).unwrap().stdout, b"0\n", "{name}");
        let said = format!("turned away uid 65534 on {}", socket.display());
        assert!(daemon.log().contains(&said), "{}", daemon.log());
    }
}

/// What a local user could take the host with: nothing listens on TCP unless it is asked for.
#[test]
fn nothing_listens_on_tcp_by_default() {
    let namespace = Namespace::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let daemon = namespace
        .inside(|| Daemon::start_in(dir, "none".into(), &[]))
        .unwrap();
    let table =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/net/{name}", daemon.pid())).unwrap();
    for name in ["tcp", "tcp6"] {
        assert_eq!(table(name).lines().count(), 1, "{}", table(name));
    }
    let refused = namespace
        .inside(|| TcpStream::connect("127.0.0.1:9999").map(drop).unwrap_err())
        .unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_group_can_be_let_in() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: giving a socket to a group takes root");
        return;
    }
    let daemon = Daemon::start(&["--api-group", "nogroup"]);
    let meta = std::fs::metadata(daemon.path("v1.sock")).unwrap();
    assert_eq!(
        (meta.permissions().mode() & 0o777, meta.gid()),
        (0o660, 65534)
    );
}

async fn status(
    port: u16,
    tls: &TlsFolder,
    identity: Option<(String, String)>,
) -> Result<v1::Status, String> {
    let channel = tls.connect(port, identity).await;
    let channel = channel.map_err(|e| e.to_string())?;
    let answer =
        within(ButterflyClient::new(channel).get_status(v1::GetStatusRequest::default())).await;
    answer
        .map(|answer| answer.into_inner())
        .map_err(|e| e.to_string())
}

#[tokio::test]
async fn tcp_is_for_clients_with_a_certificate_by_our_authority() {
    let (tls, theirs) = (TlsFolder::new(), Authority::new());
    let port = common::free_port();
    let api = format!("tcp:127.0.0.1:{port}");
    let audit = tls.path("audit.json");
    let options = ["--api", &api, "--audit", audit.to_str().unwrap()];
    let daemon = Daemon::start(&[&options[..], &tls.options()].concat());

    assert_eq!(
        status(port, &tls, Some(tls.authority.sign()))
            .await
            .unwrap()
            .pid,
        daemon.pid()
    );
    // A probe, which says nothing.
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert!(
        status(port, &tls, Some(theirs.sign())).await.is_err(),
        "signed by another authority"
    );
    let expired = tls.authority.sign_until("butterfly.test", 2020);
    assert!(
        status(port, &tls, Some(expired)).await.is_err(),
        "a certificate that has expired"
    );
    assert!(status(port, &tls, None).await.is_err(), "no certificate");
    let clear = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    if let Ok(channel) = within(clear.connect()).await {
        assert!(
            within(ButterflyClient::new(channel).get_status(v1::GetStatusRequest::default()))
                .await
                .is_err(),
            "clear text"
        );
    }
    let turned_away = [
        "BadSignature",
        "expired",
        "peer sent no certificates",
        "corrupt message",
    ];
    wait_for("records of who was turned away", PATIENCE, || {
        let text = std::fs::read_to_string(&audit).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        for line in &lines {
            assert_eq!(
                (&line["api"], &line["request"]),
                (&json!("v1"), &json!("connect"))
            );
            assert_eq!(line["result"], "refused");
            assert!(line["address"].as_str().unwrap().starts_with("127.0.0.1:"));
            let why = line["why"].as_str().unwrap();
            assert!(turned_away.iter().any(|known| why.contains(known)), "{why}");
        }
        let is_there = |known: &str| text.contains(known);
        Ok(turned_away.into_iter().all(is_there).then_some(()))
    })
    .unwrap();
    // The unix socket goes on serving beside it.
    within(
        daemon
            .v1()
            .await
            .get_status(v1::GetStatusRequest::default()),
    )
    .await
    .unwrap();

    let broken = tls.write("broken.pem", "not a certificate");
    let socket_dir = tls.path("sockets");
    let args = [
        "--no-syslog",
        "-e",
        "none",
        "--api",
        "tcp:127.0.0.1:0",
        "-s",
        socket_dir.to_str().unwrap(),
    ];
    let mut files = tls.options();
    files[1] = &broken;
    let output = common::run(&[&args[..], &files].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("broken.pem")
    );
    assert_eq!(common::files(&socket_dir), Vec::<String>::new());
}

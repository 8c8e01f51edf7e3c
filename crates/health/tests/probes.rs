//! Each check against servers on loopback: well, wrong in every way, silent, not there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use butterfly_health as health;
use health::probe::{Direct, Fault, Here, Means, NotMade, Path, Transport, run};
use health::{Command, Dns, Http, Kind, Programs, Subject};
use sys::socket_owner::{Protocol, SocketOwners};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const TIMEOUT: Duration = Duration::from_millis(2000);
const SHORT: Duration = Duration::from_millis(100);

async fn check(kind: Kind, at: SocketAddr) -> Result<(), String> {
    within(TIMEOUT, kind, at, "tcp").await
}

async fn within(
    timeout: Duration,
    kind: Kind,
    at: SocketAddr,
    protocol: &'static str,
) -> Result<(), String> {
    run(
        &kind,
        &subject(at, protocol),
        Direct(at),
        timeout,
        &means(Programs::default()),
        Instant::now,
    )
    .await
    .expect("it is asked here")
    .outcome
}

fn means(programs: Programs) -> Means<Here> {
    Means {
        programs,
        asks: Here,
    }
}

fn subject(at: SocketAddr, protocol: &'static str) -> Subject {
    Subject {
        service: at,
        protocol,
        server: IpAddr::V4(Ipv4Addr::new(10, 1, 2, 10)),
    }
}

/// Answers every connection with `answer` once something has come, and gives what came.
async fn serve(
    answer: &'static [u8],
) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let len = stream.read(&mut request).await.unwrap_or(0);
            let _ = sender.send(String::from_utf8_lossy(&request[..len]).into_owned());
            let _ = stream.write_all(answer).await;
        }
    });
    (at, receiver)
}

/// An address that nobody listens at, a moment ago at least.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

#[tokio::test]
async fn tcp_connects() {
    let (at, _) = serve(b"").await;
    assert_eq!(check(Kind::Tcp, at).await, Ok(()));
    let refused = check(Kind::Tcp, nobody().await).await;
    assert_eq!(refused, Err("no TCP connection: connection refused".into()));
}

#[tokio::test]
async fn http_asks_as_it_is_told() {
    let (at, mut requests) = serve(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let http = Http {
        head: true,
        path: "/healthz?deep=1".into(),
        host: Some("www.example.org".into()),
        ..Http::default()
    };
    assert_eq!(check(Kind::Http(http), at).await, Ok(()));
    let request = requests.recv().await.unwrap();
    assert!(
        request.starts_with("HEAD /healthz?deep=1 HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains("host: www.example.org\r\n"), "{request}");
    assert_eq!(check(Kind::Http(Http::default()), at).await, Ok(()));
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {at}\r\n")), "{request}");
}

#[tokio::test]
async fn http_statuses_that_are_well() {
    let (at, _requests) = serve(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await;
    let refused = check(Kind::Http(Http::default()), at).await;
    assert_eq!(refused, Err("HTTP status 503".into()));
    let wanted = Http {
        statuses: vec![200, 503],
        ..Http::default()
    };
    assert_eq!(check(Kind::Http(wanted), at).await, Ok(()));
}

#[tokio::test]
async fn http_without_an_answer() {
    let http = || Kind::Http(Http::default());
    let (at, _requests) = serve(b"220 smtp.example.org ESMTP\r\n").await;
    let said = check(http(), at).await.unwrap_err();
    assert!(said.starts_with("no HTTP answer: "), "{said}");
    let (at, _requests) = serve(b"").await;
    let said = check(http(), at).await.unwrap_err();
    assert!(said.starts_with("no HTTP answer: "), "{said}");
    // Accepted by the kernel and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let said = within(SHORT, http(), silent.local_addr().unwrap(), "tcp").await;
    assert_eq!(said, Err("no answer within 100 ms".into()));
}

#[tokio::test]
async fn https_takes_any_certificate() {
    let key = rcgen::generate_simple_self_signed(vec!["www.example.org".into()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = vec![0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    });
    for host in [None, Some("another.example.org".to_owned())] {
        let https = Http {
            tls: true,
            host,
            ..Http::default()
        };
        assert_eq!(check(Kind::Http(https), at).await, Ok(()));
    }
    let (plain, _requests) = serve(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let https = Http {
        tls: true,
        ..Http::default()
    };
    let said = check(Kind::Http(https), plain).await.unwrap_err();
    assert!(said.starts_with("no TLS: "), "{said}");
}

/// An answer to a query: its id and question, and this code.
fn dns_answer(query: &[u8], code: u8) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer[2] |= 0x80;
    answer[3] = code;
    answer
}

#[tokio::test]
async fn dns_over_udp() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    let (sender, mut queries) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut query = vec![0; 512];
        for code in [0, 3, 2, 5] {
            let (len, from) = server.recv_from(&mut query).await.unwrap();
            sender.send(query[..len].to_vec()).unwrap();
            server
                .send_to(&dns_answer(&query[..len], code), from)
                .await
                .unwrap();
        }
    });
    let dns = || {
        Kind::Dns(Dns {
            name: "www.example.org".into(),
            record: "AAAA".into(),
            tcp: false,
        })
    };
    assert_eq!(check(dns(), at).await, Ok(()));
    // Question: the name in labels, type 28, class IN (RFC 1035, section 4.1.2).
    let query = queries.recv().await.unwrap();
    assert_eq!(&query[12..], b"\x03www\x07example\x03org\0\0\x1c\0\x01");
    assert_eq!(check(dns(), at).await, Ok(()), "no such name is an answer");
    for sentence in ["DNS answer 2: ", "DNS answer 5: "] {
        let said = check(dns(), at).await.unwrap_err();
        assert!(said.starts_with(sentence), "{said}");
    }
    let said = within(SHORT, dns(), at, "udp").await.unwrap_err();
    assert!(
        said.contains("100 ms") || said.contains("refused"),
        "{said}"
    );
}

/// A stranger's datagrams seem to be the server's: they are no answer, neither good nor bad.
#[tokio::test]
async fn dns_over_udp_passes_over_what_answers_another_query() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    tokio::spawn(async move {
        let mut query = vec![0; 512];
        for answers in [true, false] {
            let (len, from) = server.recv_from(&mut query).await.unwrap();
            let query = &query[..len];
            let failure = dns_answer(query, 2);
            let changed = |at: usize, bits: u8| {
                let mut other = dns_answer(query, 0);
                other[at] ^= bits;
                other
            };
            let strays = [
                b"junk".to_vec(),
                changed(0, 1),
                changed(2, 0x80),
                // Another question: its type, and two of it.
                changed(len - 3, 1),
                changed(5, 3),
                failure[..len - 1].to_vec(),
                Vec::new(),
            ];
            for stray in strays {
                server.send_to(&stray, from).await.unwrap();
            }
            if answers {
                server.send_to(&dns_answer(query, 0), from).await.unwrap();
            }
        }
    });
    let dns = || Kind::Dns(Dns::default());
    assert_eq!(check(dns(), at).await, Ok(()));
    let said = within(SHORT, dns(), at, "udp").await;
    assert_eq!(said, Err("no answer within 100 ms".into()));
}

#[tokio::test]
async fn dns_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for foreign in [false, true] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let len = stream.read_u16().await.unwrap();
            let mut query = vec![0; len.into()];
            stream.read_exact(&mut query).await.unwrap();
            let mut answer = dns_answer(&query, 0);
            if foreign {
                answer[0] ^= 1;
            }
            stream.write_u16(answer.len() as u16).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    let dns = || {
        Kind::Dns(Dns {
            tcp: true,
            ..Dns::default()
        })
    };
    assert_eq!(check(dns(), at).await, Ok(()));
    assert_eq!(
        check(dns(), at).await,
        Err("the answer is that to another query".into())
    );
}

/// A folder with the shells in it, as an administrator would put programs there.
struct Shells {
    dir: tempfile::TempDir,
}

impl Shells {
    fn new() -> Shells {
        let dir = tempfile::tempdir().unwrap();
        // For nobody to pass.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for shell in ["sh", "bash"] {
            std::fs::copy(format!("/bin/{shell}"), dir.path().join(shell)).unwrap();
        }
        Shells { dir }
    }

    fn run(&self, shell: &str, script: &str) -> Kind {
        let program = self.dir.path().join(shell).display().to_string();
        Kind::Command(Command(vec![program, "-c".into(), script.into()]))
    }

    async fn within(
        &self,
        timeout: Duration,
        kind: Kind,
        at: SocketAddr,
        protocol: &'static str,
    ) -> Result<(), String> {
        let programs = Programs::of(self.dir.path()).unwrap();
        let outcome = run(
            &kind,
            &subject(at, protocol),
            Direct(at),
            timeout,
            &means(programs),
            Instant::now,
        )
        .await
        .expect("it is asked here")
        .outcome;
        outcome.map_err(|said| said.replace(&format!("{}/", self.dir.path().display()), ""))
    }

    async fn sh(&self, script: &str, at: SocketAddr) -> Result<(), String> {
        self.within(TIMEOUT, self.run("sh", script), at, "tcp")
            .await
    }
}

#[tokio::test]
async fn a_command_s_code_and_words() {
    let (shells, at) = (Shells::new(), nobody().await);
    assert_eq!(shells.sh("exit 0", at).await, Ok(()));
    assert_eq!(
        shells
            .sh(
                "echo out; printf 'no license\\033[2J\\n' >&2; echo more >&2; exit 3",
                at
            )
            .await,
        Err("sh ended with exit status: 3 no license\\u{1b}[2J".into())
    );
    let none = Kind::Command(Command(vec!["/no/such/program".into()]));
    assert_eq!(
        shells.within(TIMEOUT, none, at, "tcp").await,
        Err("/no/such/program cannot be run: No such file or directory (os error 2)".into())
    );
    let said = shells
        .within(SHORT, shells.run("sh", "sleep 60"), at, "tcp")
        .await;
    assert_eq!(said, Err("no answer within 100 ms".into()));
}

/// The attack: whoever may declare a service has a program of his choice run, as root.
#[tokio::test]
async fn a_command_is_one_of_the_administrator_s_and_runs_as_nobody() {
    let (shells, at) = (Shells::new(), nobody().await);
    let shell = |script: &str| {
        Kind::Command(Command(
            ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        ))
    };
    let said = check(shell("exit 0"), at).await.unwrap_err();
    assert!(
        said.starts_with("/bin/sh is not run: this daemon runs no programs"),
        "{said}"
    );
    let said = shells
        .within(TIMEOUT, shell("exit 0"), at, "tcp")
        .await
        .unwrap_err();
    assert!(said.starts_with("/bin/sh is not in "), "{said}");
    // Nothing of the daemon's is to be had: its user, its privileges, its environment, a folder
    // that it is in.
    let own = rustix::process::geteuid().as_raw();
    let user = if own == 0 { 65_534 } else { own };
    let script = format!(
        "[ \"$(id -u)\" = {user} ] || exit 2; \
         grep -q '^NoNewPrivs:.1' /proc/self/status || exit 3; \
         grep -q '^CapEff:.0*$' /proc/self/status || exit 4; \
         [ -z \"$CARGO_MANIFEST_DIR\" ] || exit 5; \
         [ \"$(pwd)\" = / ] || exit 6"
    );
    assert_eq!(shells.sh(&script, at).await, Ok(()));
    if own == 0 {
        let said = shells
            .sh("cat /etc/shadow > /dev/null", at)
            .await
            .unwrap_err();
        assert!(said.contains("Permission denied"), "{said}");
    }
}

/// What a program has started ends with the check, whether it ran out of time or left it behind.
#[tokio::test]
async fn nothing_of_a_command_outlives_its_check() {
    let (shells, at) = (Shells::new(), nobody().await);
    // The whole process list is asked: a name that is one of a kind.
    let seconds = format!("86{:05}", std::process::id() % 100_000);
    let running = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines
            .filter(|line| line.starts_with(format!("sleep\0{seconds}").as_bytes()))
            .count()
    };
    let behind = format!("sleep {seconds} > /dev/null 2>&1 & exit 0");
    assert_eq!(shells.sh(&behind, at).await, Ok(()));
    let slow = shells.run("sh", &format!("sleep {seconds} & sleep {seconds}"));
    assert!(shells.within(SHORT, slow, at, "tcp").await.is_err());
    for _ in 0..200 {
        if running() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} processes are left", running());
}

#[tokio::test]
async fn a_command_knows_whom_it_checks() {
    let (shells, at) = (Shells::new(), nobody().await);
    let script = format!(
        "[ \"$BUTTERFLY_VIP $BUTTERFLY_PORT $BUTTERFLY_PROTOCOL $BUTTERFLY_SERVER\" = '127.0.0.1 \
         {} tcp 10.1.2.10' ]",
        at.port()
    );
    assert_eq!(shells.sh(&script, at).await, Ok(()));
}

#[tokio::test]
async fn a_command_reaches_the_server_by_the_relay() {
    let (at, mut requests) = serve(b"hello\n").await;
    // bash's own way to make a TCP connection: nothing else has to be installed.
    let script = "exec 3<>/dev/tcp/${BUTTERFLY_CHECK_ADDRESS%:*}/${BUTTERFLY_CHECK_ADDRESS#*:}; \
                  echo hi >&3; read answer <&3; [ \"$answer\" = hello ]";
    let shells = Shells::new();
    let bash = |script: &str| shells.run("bash", script);
    assert_eq!(
        shells.within(TIMEOUT, bash(script), at, "tcp").await,
        Ok(())
    );
    assert_eq!(requests.recv().await.as_deref(), Some("hi\n"));
    let said = shells
        .within(TIMEOUT, bash(script), nobody().await, "tcp")
        .await;
    assert!(said.is_err(), "the server is not there");

    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    tokio::spawn(async move {
        let mut query = [0; 64];
        let (len, from) = server.recv_from(&mut query).await.unwrap();
        server.send_to(&query[..len], from).await.unwrap();
    });
    // bash reads byte by byte, and a datagram is read whole or lost.
    let script = "exec 3<>/dev/udp/${BUTTERFLY_CHECK_ADDRESS%:*}/${BUTTERFLY_CHECK_ADDRESS#*:}; \
                  echo hello >&3; answer=$(dd bs=64 count=1 <&3 2>/dev/null); \
                  [ \"$answer\" = hello ]";
    assert_eq!(
        shells.within(TIMEOUT, bash(script), at, "udp").await,
        Ok(())
    );
}

/// Whether a program's user is another one than ours, and the kernel tells.
fn strangers_are_known() -> bool {
    let own = rustix::process::geteuid();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let owners = SocketOwners::new().unwrap();
    let anybody = "0.0.0.0:0".parse().unwrap();
    let told = owners.of(Protocol::Udp, socket.local_addr().unwrap(), anybody);
    let known = own.is_root() && told.unwrap().is_some();
    if !known {
        eprintln!("skipped: we are not root, or the kernel does not tell whose a socket is");
    }
    known
}

/// The attack: whoever is on this host speaks to the relay, and has the server's answer.
#[tokio::test]
async fn a_stranger_s_datagram_is_not_the_command_s() {
    if !strangers_are_known() {
        return;
    }
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    let script = "exec 3<>/dev/udp/${BUTTERFLY_CHECK_ADDRESS%:*}/${BUTTERFLY_CHECK_ADDRESS#*:}; \
                  echo $BUTTERFLY_CHECK_ADDRESS >&3; \
                  answer=$(dd bs=64 count=1 <&3 2>/dev/null); [ \"$answer\" = hello ]";
    let shells = Shells::new();
    let check = shells.within(TIMEOUT, shells.run("bash", script), at, "udp");
    let server = async {
        let mut query = [0; 64];
        let (len, relay) = server.recv_from(&mut query).await.unwrap();
        let address = std::str::from_utf8(&query[..len]).unwrap().trim();
        let address: SocketAddr = address.parse().unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for _ in 0..16 {
            stranger.send_to(b"stranger", address).await.unwrap();
        }
        let more = tokio::time::timeout(SHORT, server.recv_from(&mut query)).await;
        assert!(more.is_err(), "it was passed on");
        server.send_to(b"hello\n", relay).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(check, server);
    assert_eq!(outcome, Ok(()));
}

/// The same over TCP: each connection would have one of the sockets that all checks share.
#[tokio::test]
async fn a_stranger_s_connections_take_no_turn() {
    if !strangers_are_known() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let path = Few::turns(listener.local_addr().unwrap(), 2);
    let script = "exec 3<>/dev/tcp/${BUTTERFLY_CHECK_ADDRESS%:*}/${BUTTERFLY_CHECK_ADDRESS#*:}; \
                  echo $BUTTERFLY_CHECK_ADDRESS >&3; read answer <&3; [ \"$answer\" = hello ]";
    let words = ["/bin/bash", "-c", script].map(str::to_owned).to_vec();
    let kind = Kind::Command(Command(words));
    let check = path.clone().check(&kind, TIMEOUT);
    let server = async {
        let (mut program, _) = listener.accept().await.unwrap();
        let mut said = [0; 64];
        let len = program.read(&mut said).await.unwrap();
        let address = std::str::from_utf8(&said[..len]).unwrap().trim();
        let address: SocketAddr = address.parse().unwrap();
        for _ in 0..64 {
            let mut stranger = TcpStream::connect(address).await.unwrap();
            let end = tokio::time::timeout(TIMEOUT, stranger.read(&mut said)).await;
            assert_eq!(end.expect("it is hung up on").unwrap_or(0), 0);
        }
        let other = path.clone().check(&Kind::Tcp, TIMEOUT).await;
        assert_eq!(other.unwrap().outcome, Ok(()), "another check has a turn");
        program.write_all(b"hello\n").await.unwrap();
    };
    let (made, ()) = tokio::join!(check, server);
    assert_eq!(made.unwrap().outcome, Ok(()));
}

/// A host that can make so many sockets at a time, and then none but in error.
#[derive(Clone)]
struct Few {
    to: Direct,
    turns: Arc<Semaphore>,
    broken: bool,
    hindered: bool,
}

impl Few {
    fn turns(to: SocketAddr, turns: usize) -> Few {
        Few {
            to: Direct(to),
            turns: Arc::new(Semaphore::new(turns)),
            broken: false,
            hindered: false,
        }
    }

    async fn check(self, kind: &Kind, timeout: Duration) -> Result<health::probe::Made, NotMade> {
        let shells = Programs::of(std::path::Path::new("/bin")).unwrap();
        let subject = subject(self.to.0, "tcp");
        run(kind, &subject, self, timeout, &means(shells), Instant::now).await
    }
}

impl Path for Few {
    type Turn = OwnedSemaphorePermit;
    type Hold = OwnedSemaphorePermit;

    async fn turn(&self, _transport: Transport) -> Result<OwnedSemaphorePermit, NotMade> {
        Ok(self.turns.clone().acquire_owned().await.unwrap())
    }

    async fn tcp(
        &self,
        turn: OwnedSemaphorePermit,
    ) -> Result<(TcpStream, OwnedSemaphorePermit), Fault> {
        match self.broken {
            true => Err(NotMade("no descriptor".into()).into()),
            false => Ok((self.to.tcp(()).await?.0, turn)),
        }
    }

    async fn udp(
        &self,
        turn: OwnedSemaphorePermit,
    ) -> Result<(UdpSocket, OwnedSemaphorePermit), Fault> {
        match self.broken {
            true => Err(NotMade("no descriptor".into()).into()),
            false => Ok((self.to.udp(()).await?.0, turn)),
        }
    }

    fn hindrance(&self) -> Option<NotMade> {
        self.hindered.then(|| NotMade("the way was down".into()))
    }
}

/// bash has so many connections at a time, and is well if each is answered.
fn connects(times: usize) -> Kind {
    let connect = |fd: usize| {
        format!(
            "exec {fd}<>/dev/tcp/${{BUTTERFLY_CHECK_ADDRESS%:*}}/${{BUTTERFLY_CHECK_ADDRESS#*:}}; \
             echo hi >&{fd}; read answer <&{fd}; [ \"$answer\" = hello ] || exit 1; "
        )
    };
    let script: String = (3..3 + times).map(connect).collect();
    Kind::Command(Command(vec!["/bin/bash".into(), "-c".into(), script]))
}

/// The time of a check that waits for its turn is not its server's.
#[tokio::test]
async fn a_check_waits_for_its_turn_and_then_begins() {
    let (at, _requests) = serve(b"hello\n").await;
    for kind in [Kind::Tcp, connects(1)] {
        let path = Few::turns(at, 1);
        let others = path.turn(Transport::Tcp).await.unwrap();
        let free = async {
            tokio::time::sleep(TIMEOUT).await;
            drop(others);
        };
        let half = TIMEOUT / 2;
        let (made, ()) = tokio::join!(path.check(&kind, half), free);
        let made = made.unwrap();
        assert_eq!(made.outcome, Ok(()), "{kind:?}");
        assert!(made.took < half, "{:?}", made.took);
    }
}

/// Nothing is said of a server that this host could not ask.
#[tokio::test]
async fn what_this_host_lacks_is_not_the_server_s_failure() {
    let (at, _requests) = serve(b"hello\n").await;
    let dns = Kind::Dns(Dns::default());
    for kind in [Kind::Tcp, Kind::Http(Http::default()), dns, connects(1)] {
        let path = Few {
            broken: true,
            ..Few::turns(at, 1)
        };
        let made = path.check(&kind, TIMEOUT).await;
        assert_eq!(made, Err(NotMade("no descriptor".into())), "{kind:?}");
    }
    // A program's second connection, which waits for the first one's turn.
    let path = Few::turns(at, 1);
    let made = path.check(&connects(2), SHORT * 5).await;
    assert!(made.is_err(), "{made:?}");
    let made = Few::turns(at, 2).check(&connects(2), TIMEOUT).await;
    assert_eq!(made.unwrap().outcome, Ok(()));
    // However many are free, one check does not have them all.
    let made = Few::turns(at, 100).check(&connects(17), TIMEOUT).await;
    assert!(made.is_err(), "{made:?}");
}

/// The way to the server was none for a while: who fails then, at once or for want of an answer, is
/// not known to be ill, and who answers is well.
#[tokio::test]
async fn what_fails_on_a_way_that_was_down_is_not_the_server_s_failure() {
    let (at, _requests) = serve(b"hello\n").await;
    let hindered = |to, hindered| Few {
        hindered,
        ..Few::turns(to, 1)
    };
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (silent, nobody) = (silent.local_addr().unwrap(), nobody().await);
    let http = Kind::Http(Http::default());
    for (kind, to) in [
        (&Kind::Tcp, nobody),
        (&http, silent),
        (&connects(1), nobody),
    ] {
        let made = hindered(to, false).check(kind, SHORT * 5).await;
        assert!(made.is_ok_and(|made| made.outcome.is_err()), "{kind:?}");
        let made = hindered(to, true).check(kind, SHORT * 5).await;
        assert_eq!(made, Err(NotMade("the way was down".into())), "{kind:?}");
    }
    let made = hindered(at, true).check(&Kind::Tcp, TIMEOUT).await;
    assert_eq!(made.unwrap().outcome, Ok(()));
}

//! Clients that do not keep to ZeroMQ's protocol: none of them may stop the daemon, or another
//! client.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use api::encrypted::{Key, decrypt, encrypt};
use api::strict::{MESSAGES_MAX, VALUES_MAX};
use api::v0::{Encrypted, message_v0 as v0};
use api::v1;
use api::v1::event::Kind;
use common::{Daemon, PATIENCE, to_create, within};
use prost::Message as _;

const LIST: &str = "messages { revision: 0 message_0 { request { nic_list: true } } }";
const EMPTY: &str = "\
messages {
  revision: 6
  message_0 {
    response {
      status {
        status: true
      }
    }
  }
}
";

fn connect(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.v0.strip_prefix("tcp://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A greeting and READY of a REQ socket.
fn greeted(daemon: &Daemon) -> TcpStream {
    let mut stream = connect(daemon);
    let mut hello = [0u8; 64];
    (hello[0], hello[9], hello[10]) = (0xff, 0x7f, 3);
    hello[12..16].copy_from_slice(b"NULL");
    stream.write_all(&hello).unwrap();
    stream
        .write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REQ")
        .unwrap();
    stream.read_exact(&mut hello).unwrap();
    stream
}

/// True when the daemon has closed the connection.
fn closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn whatever_a_client_sends_the_next_one_is_served() {
    let daemon = Daemon::start_tcp(&[]);
    let mut bystander = daemon.v0().await;
    assert_eq!(bystander.ask_text(LIST).await, EMPTY);

    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        &[0; 200],
        &[0xff; 200],
    ] {
        let mut stream = connect(&daemon);
        stream.write_all(bytes).unwrap();
        assert!(closed(stream));
    }
    for frame in [
        &b"\x02\x7f\xff\xff\xff\xff\xff\xff\xff"[..], // 2^63 - 1 bytes to come
        b"\x02\x00\x00\x01\x00\x00\x00\x00\x00",      // a terabyte
        b"\xff\xff",                                  // reserved flags
        b"\x01\x00\x06\x00\x00\x00\x00\x00\x00\x00\x01a", // a command in a message
    ] {
        let mut stream = greeted(&daemon);
        stream.write_all(frame).unwrap();
        assert!(closed(stream), "{frame:?}");
    }
    // One that stops in the middle, one that never reads, one that hangs up in between: they wait
    // for themselves.
    let mut half = greeted(&daemon);
    half.write_all(b"\x01\x00\x00\x7fhalf").unwrap();
    let mut deaf = greeted(&daemon);
    for _ in 0..1000 {
        deaf.write_all(b"\x01\x00\x00\x03bad").unwrap();
    }
    let mut gone = greeted(&daemon);
    gone.write_all(b"\x01\x00\x00\x03bad").unwrap();
    gone.shutdown(Shutdown::Both).unwrap();

    assert_eq!(bystander.ask_text(LIST).await, EMPTY);
    assert_eq!(daemon.v0().await.ask_text(LIST).await, EMPTY);
}

/// v0-contract.md 3.
#[tokio::test]
async fn a_request_of_several_frames_is_answered_with_a_parse_error() {
    let daemon = Daemon::start_tcp(&[]);
    let mut stream = greeted(&daemon);
    let mut ready = [0; 2];
    stream.read_exact(&mut ready).unwrap();
    let mut rest = vec![0; usize::from(ready[1])];
    stream.read_exact(&mut rest).unwrap();
    stream.write_all(b"\x01\x00\x01\x01a\x00\x01b").unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"\x01\x00\x00\x06\x08\x06\x12\x02\x08\x00");
}

#[tokio::test]
async fn a_thousand_clients_one_after_the_other_and_many_at_once() {
    let daemon = Daemon::start_tcp(&[]);
    for _ in 0..1000 {
        drop(greeted(&daemon));
    }
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(daemon.v0().await);
    }
    for client in &mut clients {
        assert_eq!(client.ask_text(LIST).await, EMPTY);
    }
}

/// Memory of the daemon and its readers, bytes.
fn resident(daemon: &Daemon) -> usize {
    daemon.memory("VmRSS:")
}

#[tokio::test]
async fn silent_clients_keep_no_place_from_those_that_ask() {
    let daemon = Daemon::start_tcp(&[]);
    let mut bystander = daemon.v0().await;
    assert_eq!(bystander.ask_text(LIST).await, EMPTY);
    // More than there are places, half of them greeted.
    let mut silent = Vec::new();
    for _ in 0..150 {
        silent.push(connect(&daemon));
        silent.push(greeted(&daemon));
    }
    assert_eq!(daemon.v0().await.ask_text(LIST).await, EMPTY);
    assert_eq!(
        bystander.ask_text(LIST).await,
        EMPTY,
        "who was answered keeps its place"
    );
    assert!(closed(silent.swap_remove(0)), "the first of them made room");
    let said = daemon
        .log()
        .matches("v0 clients: all 256 places are taken")
        .count();
    assert_eq!(said, 1, "{}", daemon.log());
}

#[tokio::test]
async fn silent_v1_clients_keep_no_place_from_those_that_ask() {
    let daemon = Daemon::start(&[]);
    let mut bystander = daemon.v1().await;
    let watched = bystander.watch(v1::WatchRequest { snapshot: true }).await;
    let mut events = watched.unwrap().into_inner();
    events.message().await.unwrap().unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(UnixStream::connect(daemon.path("v1.sock")).unwrap());
    }
    let status = daemon
        .v1()
        .await
        .get_status(v1::GetStatusRequest::default())
        .await;
    assert_eq!(status.unwrap().into_inner().pid, daemon.pid());
    // The stream goes on.
    let group = v1::Group {
        id: "web".into(),
        ..Default::default()
    };
    let put = v1::PutGroupRequest { group: Some(group) };
    daemon.v1().await.put_group(put).await.unwrap();
    within(events.message()).await.unwrap().unwrap();
    let said = daemon
        .log()
        .matches("v1 clients: all 256 places are taken")
        .count();
    assert_eq!(said, 1, "{}", daemon.log());
}

#[tokio::test]
async fn large_messages_that_do_not_end_take_little_memory_and_keep_nobody_waiting() {
    let daemon = Daemon::start_tcp(&[]);
    let mut bystander = daemon.v0().await;
    assert_eq!(bystander.ask_text(LIST).await, EMPTY);
    let before = resident(&daemon);
    // 100 clients that would have the daemon take 15 MiB each: four of them get so far.
    let part = vec![7; 15 << 20];
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut stream = greeted(&daemon);
        stream.set_nonblocking(true).unwrap();
        stream
            .write_all(b"\x01\x00\x02\x00\x00\x00\x00\x00\xf0\x01\x00")
            .unwrap();
        clients.push((stream, 0));
    }
    for _ in 0..100 {
        for (stream, sent) in &mut clients {
            while let Ok(bytes) = stream.write(&part[*sent..]) {
                *sent += bytes;
                if bytes == 0 {
                    break;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bystander.ask_text(LIST).await, EMPTY);
    assert_eq!(daemon.v0().await.ask_text(LIST).await, EMPTY);
    assert!(
        clients.iter().any(|(_, sent)| *sent == part.len()),
        "none got far"
    );
    let taken = resident(&daemon).saturating_sub(before);
    assert!(taken < 200 << 20, "{} MiB", taken >> 20);
    println!(
        "100 large messages that do not end take {} MiB",
        taken >> 20
    );
}

/// How much of what a large request took may stay.
const STAYS: usize = 24 << 20;

/// What the daemon took for what is done meanwhile was a lot, and goes back to the system. One at a
/// time: each keeps a processor busy, and a daemon waits for a request only so long.
async fn goes_back<T>(daemon: &Daemon, done: impl Future<Output = T>) -> T {
    static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _one = ONE.lock().await;
    let before = resident(daemon);
    let highest = most(daemon);
    let answer = done.await;
    let took = most(daemon).saturating_sub(highest);
    assert!(took > 3 * STAYS, "it took {} MiB alone", took >> 20);
    let deadline = Instant::now() + PATIENCE;
    let kept = loop {
        let kept = resident(daemon).saturating_sub(before);
        if kept < STAYS || Instant::now() > deadline {
            break kept;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("{} MiB of {} stay", kept >> 20, took >> 20);
    assert!(kept < STAYS, "{} MiB of {} stay", kept >> 20, took >> 20);
    answer
}

/// As many messages as one frame may have, with nearly as many values: groups without a name, each
/// of which is decoded, and refused.
fn fullest_frame() -> Vec<u8> {
    let rule = v0::Rule {
        protocol: 6,
        ..Default::default()
    };
    let group = v0::Sg {
        rule: vec![rule; VALUES_MAX / MESSAGES_MAX - 4],
        ..Default::default()
    };
    let request = v0::Request {
        sg_add: Some(group),
        ..Default::default()
    };
    let message = api::v0::Message {
        message_0: Some(api::v0::MessageV0 {
            request: Some(request),
            ..Default::default()
        }),
        ..Default::default()
    };
    let one = api::v0::Messages {
        messages: vec![message],
        encrypted: None,
    };
    one.encode_to_vec().repeat(MESSAGES_MAX)
}

/// How long its answer may take: without optimizations it is some seconds' work of a processor,
/// beside other tests.
const FULLEST: Duration = Duration::from_secs(120);

/// Each message of a reply to [`fullest_frame`].
fn all_are_refused(reply: &[u8]) {
    let reply = api::v0::Messages::decode(reply).unwrap();
    assert_eq!(reply.messages.len(), MESSAGES_MAX);
    for message in reply.messages {
        let response = message.message_0.unwrap().response.unwrap();
        assert!(!response.status.status);
        assert_eq!(message.error, None);
    }
}

#[tokio::test]
async fn memory_goes_back_after_the_fullest_frame_of_v0() {
    let daemon = Daemon::start_tcp(&[]);
    let mut client = daemon.v0().await;
    client.patience = FULLEST;
    assert_eq!(client.ask_text(LIST).await, EMPTY);
    let reply = goes_back(&daemon, client.ask(fullest_frame())).await;
    all_are_refused(&reply);
    assert_eq!(client.ask_text(LIST).await, EMPTY);
}

#[tokio::test]
async fn memory_goes_back_after_the_fullest_sealed_frame_of_v0() {
    let (dir, v0) = common::folder();
    let path = dir.path().join("key");
    common::private(&path, "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=");
    let key = Key::from([0x42; 32]);
    let daemon = Daemon::start_in(dir, v0, &["-k", path.to_str().unwrap()]);
    let mut client = daemon.v0().await;
    client.patience = FULLEST;
    let encrypted = Encrypted {
        aes256cbc_sha512: Some(encrypt(&key, &fullest_frame())),
        error: None,
    };
    let request = api::v0::Messages {
        messages: vec![],
        encrypted: Some(encrypted),
    };
    let reply = goes_back(&daemon, client.ask(request.encode_to_vec())).await;
    let reply = api::v0::Messages::decode(&*reply).unwrap();
    let sealed = reply.encrypted.unwrap().aes256cbc_sha512.unwrap();
    all_are_refused(&decrypt(&key, &sealed).unwrap());
}

/// As large as a document may be once it is decoded, but for a tenth.
#[tokio::test]
async fn memory_goes_back_after_the_largest_document_of_v1() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await.max_encoding_message_size(128 << 20);
    // Without an id: all are decoded, and the first one is refused.
    let nic = v1::Nic {
        mac: "52:54:00:00:00:01".into(),
        addresses: vec!["10.0.0.1".into(), "2001:db8::1".into()],
        security_groups: vec!["web".into(), "db".into()],
        ..Default::default()
    };
    let config = v1::Config {
        nics: vec![nic; 500_000],
        ..Default::default()
    };
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    let refused = goes_back(&daemon, client.apply(request)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
}

/// The memory of the daemon and its readers, each at its highest, bytes.
fn most(daemon: &Daemon) -> usize {
    daemon.memory("VmHWM:")
}

/// A message of any kind whose fields of these numbers are messages, as bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Raw {
    #[prost(bytes = "vec", tag = "1")]
    first: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    second: Vec<u8>,
}

/// 4 MiB of empty NICs took 1.3 GiB and six seconds; a request may have 128 MiB.
#[tokio::test]
async fn empty_messages_of_v1_are_refused_before_they_take_memory() {
    let daemon = Daemon::start(&[]);
    let mut bystander = daemon.v1().await;
    let status = bystander.get_status(v1::GetStatusRequest::default()).await;
    status.unwrap();
    let config = |bytes: Vec<u8>| Raw {
        first: bytes,
        ..Default::default()
    };
    let filter = |bytes: Vec<u8>| Raw {
        second: bytes,
        ..Default::default()
    };
    for (method, request, limit) in [
        ("Apply", config([0x0a, 0].repeat(2 << 20)), 1 << 30),
        ("Apply", config([0x0a, 0].repeat(32 << 20)), 1 << 30),
        ("ListFlows", filter([0x1a, 0].repeat(32 << 20)), 64 << 20),
    ] {
        let before = most(&daemon);
        let started = Instant::now();
        let mut grpc = tonic::client::Grpc::new(daemon.channel().await);
        grpc.ready().await.unwrap();
        let path = format!("/butterfly.v1.Butterfly/{method}").parse().unwrap();
        let codec = tonic_prost::ProstCodec::<Raw, Raw>::default();
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
        let refused = answer.unwrap_err();
        let more = most(&daemon).saturating_sub(before);
        let took = started.elapsed();
        println!("{method}: {} MiB more, {took:?}: {refused}", more >> 20);
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
        let why = refused.message();
        let allowed = format!("once decoded, {limit} are allowed");
        assert!(why.ends_with(&allowed), "{why}");
        assert!(more < 64 << 20, "{} MiB more", more >> 20);
        assert!(took < Duration::from_secs(10), "{took:?}");
        let status = bystander.get_status(v1::GetStatusRequest::default()).await;
        status.unwrap();
    }
}

/// Has so many groups that to look at all of them takes a while.
async fn declare_groups(daemon: &Daemon) {
    let groups = (0..4_000).map(|group| v1::Group {
        id: format!("group-{group}"),
        ..Default::default()
    });
    let config = v1::Config {
        groups: groups.collect(),
        ..Default::default()
    };
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    daemon.v1().await.apply(request).await.unwrap();
}

fn threads(daemon: &Daemon) -> usize {
    let folder = format!("/proc/{}/task", daemon.pid());
    std::fs::read_dir(folder).unwrap().count()
}

/// Each takes a while, and would have a thread: all that there may be, and those of the API, which
/// take a free one when they wait themselves, would stand still.
#[tokio::test]
async fn thousands_of_requests_at_one_time_take_few_threads() {
    let daemon = Daemon::start(&[]);
    declare_groups(&daemon).await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = daemon.v1().await;
        for _ in 0..100 {
            let mut client = client.clone();
            asking.spawn(async move {
                let all = client.get_status(v1::GetStatusRequest::default()).await;
                all.map(|status| status.into_inner().groups)
            });
        }
    }
    let (mut most, mut answered) = (0, 0);
    while !asking.is_empty() {
        most = most.max(threads(&daemon));
        let next = tokio::time::timeout(Duration::from_millis(5), asking.join_next());
        if let Ok(Some(answer)) = next.await {
            assert_eq!(answer.unwrap().unwrap(), 4_000);
            answered += 1;
        }
    }
    assert_eq!(answered, 2_000);
    println!("{most} threads at the most");
    assert!(most < 128, "{most} threads");
}

/// One of many of a group.
fn rule(port: u32) -> v1::Rule {
    v1::Rule {
        direction: 1,
        protocol: Some(6),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange {
            start: port,
            end: port,
        })),
        peer: Some(v1::rule::Peer::Cidr("2001:db8::/32".into())),
    }
}

/// An event may be a group with all of its rules.
#[tokio::test]
async fn events_that_are_not_read_take_little_memory() {
    const CHANGES: u64 = 80;
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let group = v1::Group {
        id: "large".into(),
        rules: (1..=10_000).map(rule).collect(),
        ..Default::default()
    };
    let put = v1::PutGroupRequest { group: Some(group) };
    client.put_group(put).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut watcher = daemon.v1().await.max_decoding_message_size(64 << 20);
        let request = v1::WatchRequest { snapshot: true };
        let mut stream = watcher.watch(request).await.unwrap().into_inner();
        // Behind that it hears of every change.
        let is_end = |event: &v1::Event| matches!(event.kind, Some(Kind::SnapshotEnd(_)));
        while !is_end(&within(stream.message()).await.unwrap().unwrap()) {}
        streams.push((stream, watcher));
    }
    let before = resident(&daemon);
    for member in 1..=CHANGES {
        let member = v1::MemberRequest {
            group: "large".into(),
            member: format!("10.0.0.{member}"),
            brief: true,
        };
        client.add_member(member).await.unwrap();
    }
    // Each has made as many of them by then as it makes ahead of its reader.
    client
        .get_status(v1::GetStatusRequest::default())
        .await
        .unwrap();
    let taken = resident(&daemon).saturating_sub(before);
    println!("{} MiB for {CHANGES} events and 4 readers", taken >> 20);
    assert!(taken < 128 << 20, "{} MiB", taken >> 20);
    for (mut stream, _watcher) in streams {
        for _ in 0..CHANGES {
            within(stream.message()).await.unwrap().unwrap();
        }
    }
}

/// Each would go on with a thread of its own when its client is gone.
#[tokio::test]
async fn who_asks_for_metrics_and_hangs_up_takes_few_threads() {
    ask_and_hang_up(
        "--metrics",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    .await;
}

#[tokio::test]
async fn who_asks_the_page_and_hangs_up_takes_few_threads() {
    let request = "POST /api/butterfly.v1.Butterfly/GetConfig HTTP/1.1\r\nHost: localhost\r\n\
                   Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    ask_and_hang_up("--page", request).await;
}

/// Thousands of times, on the socket of an option.
async fn ask_and_hang_up(option: &str, request: &str) {
    let (dir, v0) = common::folder();
    let socket = dir.path().join("asked.sock");
    let daemon = Daemon::start_in(dir, v0, &[option, &format!("unix:{}", socket.display())]);
    declare_groups(&daemon).await;
    let mut bystander = daemon.v1().await;
    let mut most = 0;
    for asked in 0..3_000 {
        let mut client = UnixStream::connect(&socket).unwrap();
        // Who finds no place is turned away, and may be so before this is said.
        let _ = client.write_all(request.as_bytes());
        drop(client);
        if asked % 50 == 0 {
            most = most.max(threads(&daemon));
            let status = within(bystander.get_status(v1::GetStatusRequest::default())).await;
            assert_eq!(status.unwrap().into_inner().groups, 4_000);
        }
    }
    most = most.max(threads(&daemon));
    println!("{most} threads at the most");
    assert!(most < 128, "{most} threads");
}

/// One field that no request has.
#[derive(Clone, PartialEq, prost::Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "1000")]
    unknown: Vec<u8>,
}

/// docs/limits.md, "a v1 request".
#[tokio::test]
async fn a_request_of_v1_that_is_too_long_is_refused_before_it_is_read() {
    let daemon = Daemon::start(&[]);
    let before = most(&daemon);
    let largest = "134217728 bytes";
    for (method, mib, limit) in [
        ("butterfly.v1.Butterfly/Apply", 129, largest),
        ("butterfly.v1.Butterfly/GetStatus", 129, largest),
        ("butterfly.v1.Balancer/ListServices", 129, largest),
        ("butterfly.v1.Router/ListRoutes", 129, largest),
        ("grpc.health.v1.Health/Check", 1, "4096 bytes"),
    ] {
        let refused = ask_unknown(&daemon, method, mib).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
        assert!(refused.message().contains(limit), "{refused}");
        let more = most(&daemon).saturating_sub(before);
        assert!(more < 16 << 20, "{method}: {} MiB more", more >> 20);
    }
    ask_unknown(&daemon, "butterfly.v1.Butterfly/GetStatus", 127)
        .await
        .unwrap();
}

/// Asks with so many MiB that mean nothing.
async fn ask_unknown(daemon: &Daemon, method: &str, mib: usize) -> Result<(), tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(daemon.channel().await);
    grpc.ready().await.unwrap();
    let request = Unknown {
        unknown: vec![0; mib << 20],
    };
    let path = format!("/{method}").parse().unwrap();
    let codec = tonic_prost::ProstCodec::<Unknown, Unknown>::default();
    within(grpc.unary(tonic::Request::new(request), path, codec))
        .await
        .map(drop)
}

/// A NIC's connections come as bytes inside the request, and are messages as well.
#[tokio::test]
async fn empty_connections_of_a_nic_are_refused_before_they_take_memory() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    client.put_nic(to_create("vm1")).await.unwrap();
    let before = most(&daemon);
    let import = v1::ImportNicRequest {
        id: "vm1".into(),
        state: [0x22, 0].repeat(4 << 20),
    };
    let refused = client.import_nic(import).await.unwrap_err();
    let more = most(&daemon).saturating_sub(before);
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    let why = refused.message();
    assert!(
        why.contains("once decoded, 1073741824 are allowed"),
        "{why}"
    );
    assert!(more < 64 << 20, "{} MiB more", more >> 20);
}

/// Most of what may be decoded for one request; meanwhile a call hangs that has the controller,
/// which whoever decodes could else have for as long.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_nic_are_decoded_while_others_are_answered() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    client.put_nic(to_create("vm1")).await.unwrap();
    let hang = daemon.will_hang("api", "bind");
    let mut hanging = daemon.v1().await;
    let mut other = to_create("vm2");
    other.nic.as_mut().unwrap().mac = "52:54:00:00:00:02".into();
    let hangs = tokio::spawn(async move { hanging.put_nic(other).await });
    // Who needs the controller is not answered any more.
    let is_answered = async || {
        let mut bystander = daemon.v1().await;
        let status = bystander.get_status(v1::GetStatusRequest::default());
        let status = tokio::time::timeout(Duration::from_secs(1), status).await;
        status.map(|status| status.unwrap()).is_ok()
    };
    within(async { while is_answered().await {} }).await;
    let import = v1::ImportNicRequest {
        id: "vm1".into(),
        state: [0x22, 0].repeat(1 << 20),
    };
    let refused = within(client.import_nic(import)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    let why = refused.message();
    assert!(why.contains("has version 0"), "{why}");
    assert!(!hangs.is_finished());
    drop(hang);
    within(hangs).await.unwrap().unwrap();
}

/// 16,000 NICs in groups of 10,000 rules come in one request.
#[tokio::test]
async fn a_large_document_is_not_refused() {
    let daemon = Daemon::start(&[]);
    let groups = (0..16).map(|group| v1::Group {
        id: format!("group-{group}"),
        rules: (1..=10_000).map(rule).collect(),
        ..Default::default()
    });
    let nics = (0..16_000u32).map(|nic| v1::Nic {
        id: format!("3a9a2c1e-5f3b-4f0e-9f55-{nic:012}"),
        mac: format!("52:54:00:00:{:02x}:{:02x}", nic >> 8, nic & 255),
        vni: 1,
        addresses: vec![format!("10.1.{}.{}", nic >> 8, nic & 255)],
        security_groups: vec![format!("group-{}", nic % 16)],
        kind: v1::NicKind::VhostUser as i32,
        ..Default::default()
    });
    let config = v1::Config {
        nics: nics.collect(),
        groups: groups.collect(),
        ..Default::default()
    };
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: true,
    };
    let mut client = daemon.v1().await.max_decoding_message_size(64 << 20);
    let answer = client.apply(request).await.unwrap();
    assert_eq!(answer.into_inner().changes.len(), 16_016);
}

/// ZeroMQ as most clients have it: libzmq. Needs Python's binding; BUTTERFLY_PYTHON names an
/// interpreter that has it.
/// v0-contract.md 1.
#[tokio::test]
async fn libzmq_is_a_client() {
    let python = std::env::var("BUTTERFLY_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = std::process::Command::new(&python)
        .args(["-c", "import zmq"])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped: {python} has no module zmq");
        return;
    }
    let script = "
import sys, zmq
for kind in (zmq.REQ, zmq.DEALER):
    socket = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, 10000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 50)
    socket.connect(sys.argv[1])
    for request in (bytes.fromhex(sys.argv[2]), bytes([255]) * 100000):
        if kind == zmq.DEALER:
            socket.send_multipart([b'id', b'', request])
            print(b'/'.join(socket.recv_multipart()).hex())
        else:
            socket.send(request)
            print(socket.recv().hex())
    # Longer than heartbeats take: they must have been answered.
    zmq.Poller().poll(200)
    if kind == zmq.REQ:
        socket.send(bytes.fromhex(sys.argv[2]))
        print(socket.recv().hex())
";
    let request = "0a0808001a040a022001";
    let (listed, parse_error) = ("0a0a08001a0612040a020801", "080012020800");
    for daemon in [Daemon::start(&[]), Daemon::start_tcp(&[])] {
        let output = std::process::Command::new(&python)
            .args(["-c", script, &daemon.v0, request])
            .output()
            .unwrap();
        let (out, errors) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        let dealer = |hex: &str| format!("69642f2f{hex}");
        let expected = [
            listed.into(),
            parse_error.into(),
            listed.into(),
            dealer(listed),
            dealer(parse_error),
        ]
        .join("\n")
            + "\n";
        assert_eq!(out, expected, "{errors}");
    }
}

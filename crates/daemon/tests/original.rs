//! What users of the original see over API v0 beside requests and answers, which are in
//! `golden/original.txt`: traces, ping times, counters, and that no frame takes memory that is not
//! wanted. `docs/v0.md` has the rows.

mod common;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use api::v0::Messages;
use common::{Daemon, PATIENCE, boot};
use prost::Message;
use testkit::ring_driver::Shape;
use wire::offload::Offload;
use wire::{Mac, build};

fn request(text: &str) -> String {
    format!("messages {{ revision: 6 message_0 {{ request {{ {text} }} }} }}")
}

async fn ok(daemon: &Daemon, text: &str) -> String {
    let answer = daemon.v0().await.ask_text(&request(text)).await;
    assert!(answer.contains("status: true"), "{text}: {answer}");
    answer
}

async fn wait_for<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = seen() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// D7: two bench NICs, one of which pings the other.
#[tokio::test]
async fn a_bench_nic_prints_ping_times() {
    let daemon = Daemon::start(&[]);
    let rule =
        r#"rule { direction: INBOUND protocol: 1 cidr { address: "0.0.0.0" mask_size: 0 } }"#;
    ok(&daemon, &format!(r#"sg_add {{ id: "ping" {rule} }}"#)).await;
    let nic = |id: &str, last: u8, more: &str| {
        let who = format!(r#"id: "{id}" mac: "52:54:00:12:34:0{last}" vni: 7 ip: "42.0.0.{last}""#);
        format!(r#"nic_add {{ {who} security_group: "ping" type: BENCH {more} }}"#)
    };
    ok(&daemon, &nic("b", 2, r#"btype: "ICMP_RCV_LIKE""#)).await;
    let sender = r#"btype: "ICMP_SND_LIKE" dip: "42.0.0.2" dmac: "52:54:00:12:34:02""#;
    let answer = ok(&daemon, &nic("a", 1, sender)).await;
    assert!(answer.contains(r#"path: "(nil)""#), "{answer}");
    let line = wait_for("a line on stdout", || {
        let text = std::fs::read_to_string(daemon.path("out")).unwrap();
        text.lines()
            .find(|line| line.ends_with(" ms"))
            .map(str::to_owned)
    })
    .await;
    assert!(
        line.starts_with("64 bytes from 42.0.0.2: icmp_seq="),
        "{line}"
    );
    assert!(line.contains(" time="), "{line}");
}

/// D6 and D8: a guest sends a frame while it is traced, and another after it was switched off and
/// on again.
/// v0-contract.md 36.
#[tokio::test]
async fn a_trace_goes_on_in_its_file_and_bytes_are_counted_from_the_switch_s_side() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let file = dir.path().join("a.pcap");
    // Relative to the folder of traces.
    let relative = file.strip_prefix("/tmp").unwrap().display().to_string();
    for (id, last) in [("a", 1), ("b", 2)] {
        let nic =
            format!(r#"id: "{id}" mac: "52:54:00:12:34:0{last}" vni: 7 bypass_filtering: true"#);
        ok(&daemon, &format!("nic_add {{ {nic} }}")).await;
    }
    let ((_vmm, mut a), (_other, _b)) = (boot(&daemon, "a"), boot(&daemon, "b"));
    let mac = |last| Mac([0x52, 0x54, 0, 0x12, 0x34, last]);
    let frame = build::frame(mac(1), mac(2))
        .ip(Ipv4Addr::new(42, 0, 0, 1), Ipv4Addr::new(42, 0, 0, 2))
        .udp(1, 2)
        .build();
    let mut head = Vec::new();
    wire::pcap::header(&mut head);
    let mut length = head.len();
    for round in 1..=2u16 {
        let on = format!(r#"id: "a" packet_trace: true packet_trace_path: "{relative}""#);
        ok(&daemon, &format!("nic_update {{ {on} }}")).await;
        assert!(a.send(&frame, Offload::default(), &Shape::whole()));
        a.transmitq.publish();
        let taken = || (a.transmitq.used_index() == round).then_some(());
        wait_for("the frame to be taken", taken).await;
        ok(&daemon, r#"nic_update { id: "a" packet_trace: false }"#).await;
        length += 16 + frame.len();
        let long_enough = |bytes: &Vec<u8>| bytes.len() >= length;
        let written = || std::fs::read(&file).ok().filter(long_enough);
        let written = wait_for("the frame in the file", written).await;
        assert_eq!(written.len(), length, "nothing is written at \"off\"");
        assert!(written.starts_with(&head) && written.ends_with(&frame));
    }
    let answer = ok(&daemon, r#"nic_details: "a""#).await;
    let path = format!("packet_trace_path: \"{relative}\"");
    assert!(answer.contains(&path), "{answer}");
    let stats = ok(&daemon, r#"nic_stats: "a""#).await;
    let bytes = format!("in: {}\n", 2 * frame.len());
    assert!(
        stats.contains(&bytes) && stats.contains("out: 0\n"),
        "{stats}"
    );

    let outside = r#"nic_update { id: "a" packet_trace: true packet_trace_path: "/root/a.pcap" }"#;
    let refused = daemon.v0().await.ask_text(&request(outside)).await;
    let why = "'/root/a.pcap' is not a file beneath /tmp, the folder of traces (trace-dir in the \
               settings, --trace-dir)";
    let refused = refused.replace("\\'", "'");
    assert!(refused.contains(why), "{refused}");
    assert!(refused.contains("status: false"), "{refused}");
}

/// 4 MB of empty messages took 1.9 GB and six seconds, with a key, too.
#[tokio::test]
async fn a_frame_of_two_million_messages_takes_no_memory() {
    let (dir, v0) = common::folder();
    let key = dir.path().join("key");
    common::private(&key, "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=\n");
    let with_key = Daemon::start_in(dir, v0, &["-k", key.to_str().unwrap()]);
    for daemon in [Daemon::start(&[]), with_key] {
        // Whoever reads has to be there.
        daemon.v0().await;
        let before = daemon.memory("VmRSS:");
        let started = Instant::now();
        for bytes in [
            [0x0a, 0].repeat(2_000_000),
            [0x0a, 2, 0x08, 6].repeat(1_000_000),
        ] {
            // With a key it is not even received: it begins as nothing that the key has sealed.
            let answer = daemon.v0().await.ask_or_end(bytes).await;
            assert!(answer.is_none_or(|answer| answer.len() < 200));
        }
        let took = started.elapsed();
        let more = daemon.memory("VmHWM:").saturating_sub(before);
        eprintln!("{} KiB more, {took:?}", more >> 10);
        assert!(more < 64 << 20, "{} MiB more", more >> 20);
        assert!(took < Duration::from_secs(5), "it took {took:?}");
    }
}

/// A frame of as many as are allowed is answered whole; what is too many is said.
/// v0-contract.md 15.
#[tokio::test]
async fn as_many_messages_as_a_frame_may_have() {
    let daemon = Daemon::start(&[]);
    let list = api::text_format::parse(&request("nic_list: true"))
        .unwrap()
        .messages;
    let frame = |count| Messages {
        messages: list.iter().cycle().take(count).cloned().collect(),
        encrypted: None,
    };
    let most = api::strict::MESSAGES_MAX;
    let mut client = daemon.v0().await;
    let answer = client.ask(frame(most).encode_to_vec()).await;
    let answer = Messages::decode(answer.as_slice()).unwrap();
    assert_eq!(answer.messages.len(), most);
    let answer = client.ask(frame(most + 1).encode_to_vec()).await;
    let answer = api::text_format::print(&Messages::decode(answer.as_slice()).unwrap());
    assert!(answer.contains("code: REJECTED"), "{answer}");
    let why = "one frame has more than 16384 messages: send several";
    assert!(answer.contains(why), "{answer}");
}

/// v0-contract.md 16. What is behind a full reply is not carried out, and says so.
#[tokio::test]
async fn a_full_reply_ends_what_is_carried_out() {
    const EACH: usize = 2000;
    const REQUESTS: usize = 2000;
    let daemon = Daemon::start(&[]);
    let member = |n: usize| format!(r#"member: "2001:db8::{:x}:{:x}""#, n >> 8, n & 0xff);
    let members: Vec<String> = (0x100..0x100 + EACH).map(member).collect();
    ok(
        &daemon,
        &format!(r#"sg_add {{ id: "large" {} }}"#, members.join(" ")),
    )
    .await;
    let details = request(r#"sg_details: "large""#).repeat(REQUESTS);
    let frame = format!("{details} {}", request(r#"sg_del: "large""#));
    let frame = api::text_format::parse(&frame).unwrap();
    let answer = daemon.v0().await.ask(frame.encode_to_vec()).await;
    assert!(answer.len() < 34 << 20, "{} bytes", answer.len());
    let answer = Messages::decode(answer.as_slice()).unwrap();
    assert_eq!(answer.messages.len(), REQUESTS + 1, "one for one");
    let status = |message: &api::v0::Message| {
        let response = message.message_0.as_ref()?.response.clone()?;
        Some(response.status)
    };
    let first_left = answer
        .messages
        .iter()
        .position(|message| status(message).is_some_and(|status| !status.status));
    let first_left = first_left.expect("not all have room");
    assert!(first_left > REQUESTS / 4, "{first_left}");
    for message in &answer.messages[first_left..] {
        let status = status(message).unwrap();
        let why = status.error.and_then(|error| error.description);
        let why = why.unwrap_or_default();
        assert!(
            why.starts_with("not carried out: the answers before it are over"),
            "{why}"
        );
    }
    let left = ok(&daemon, "sg_list: true").await;
    assert!(left.contains("large"), "it was not deleted: {left}");
}

/// v0-contract.md 46.
#[tokio::test]
async fn a_rule_for_anybody_of_v1_is_listed_and_deleted_with_neither() {
    let daemon = Daemon::start(&[]);
    let rule = api::v1::RuleRequest {
        group: "g".into(),
        rule: Some(api::v1::Rule {
            direction: api::v1::Direction::Ingress.into(),
            protocol: Some(47),
            ..Default::default()
        }),
        brief: true,
    };
    daemon.v1().await.add_rule(rule).await.unwrap();
    let listed = ok(&daemon, r#"sg_rule_list: "g""#).await;
    assert!(listed.contains("protocol: 47"), "{listed}");
    assert!(
        !listed.contains("cidr") && !listed.contains("security_group"),
        "{listed}"
    );
    let delete = r#"sg_rule_del { sg_id: "g" rule { direction: INBOUND protocol: 47 } }"#;
    ok(&daemon, delete).await;
    let listed = ok(&daemon, r#"sg_rule_list: "g""#).await;
    assert!(!listed.contains("protocol: 47"), "{listed}");
}

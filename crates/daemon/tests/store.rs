//! What is declared outlives the daemon: real daemons are killed and started again.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::v1::balancer_client::BalancerClient;
use api::v1::butterfly_client::ButterflyClient;
use api::v1::{self, change::Subject};
use common::{Daemon, PATIENCE, within};
use prost::Message;
use rand::Rng;
use store::{Keep, Kind, Put, Signed, Store};
use testkit::ring_driver::Shape;
use tonic::Code;
use tonic::transport::Channel;

type Client = ButterflyClient<Channel>;

fn nic(id: &str, last: u32) -> v1::Nic {
    v1::Nic {
        id: id.into(),
        mac: format!("52:54:00:12:{:02x}:{:02x}", last / 256, last % 256),
        vni: 1337,
        addresses: vec![format!("42.0.{}.{}", last / 250, last % 250 + 1)],
        security_groups: vec!["web".into()],
        ..Default::default()
    }
}

/// NICs of all kinds and with every value, groups with every kind of rule, other hosts, services.
fn everything() -> v1::Config {
    let rule = |direction: v1::Direction, protocol, of, peer| v1::Rule {
        direction: direction.into(),
        protocol,
        r#match: of,
        peer,
    };
    let ports = |start, end| Some(v1::rule::Match::Ports(v1::PortRange { start, end }));
    let icmp = v1::IcmpMatch {
        r#type: Some(8),
        code: Some(0),
    };
    let (ingress, egress) = (v1::Direction::Ingress, v1::Direction::Egress);
    let web = v1::Group {
        id: "web".into(),
        members: vec!["10.9.9.9".into(), "2001:db8::9".into()],
        rules: vec![
            rule(
                ingress,
                Some(6),
                ports(80, 443),
                Some(v1::rule::Peer::Cidr("0.0.0.0/0".into())),
            ),
            rule(
                ingress,
                Some(1),
                Some(v1::rule::Match::Icmp(icmp)),
                Some(v1::rule::Peer::Group("web".into())),
            ),
            rule(egress, None, None, None),
        ],
        removal: v1::Removal::Drain.into(),
        allow_midstream: true,
        silent_midstream: true,
    };
    let full = v1::Nic {
        anti_spoof: Some(false),
        allowed_address_pairs: vec![v1::AddressPair {
            net: "42.1.0.0/16".into(),
            mac: "52:54:00:99:00:01".into(),
        }],
        bypass_filtering: true,
        timeouts: Some(v1::Timeouts {
            tcp_established_secs: 100,
            udp_secs: 40,
            udp_stream_secs: 100,
        }),
        allow_dhcp_server: true,
        allow_router_advertisements: true,
        learn_macs: true,
        link_down: true,
        mtu: 1400,
        sflow_rate: Some(0),
        socket_mode: "600".into(),
        ..nic("full", 1)
    };
    let bench = v1::Nic {
        kind: v1::NicKind::Bench.into(),
        bench: Some(v1::Bench {
            role: v1::bench::Role::IcmpReceiver.into(),
            ..Default::default()
        }),
        ..nic("bench", 3)
    };
    let tap = v1::Nic {
        kind: v1::NicKind::Tap.into(),
        path: "bfstore0".into(),
        ..nic("tap", 4)
    };
    let sniffer = v1::Nic {
        sniff_target: "full".into(),
        sniff_vni: Some(1337),
        ..nic("sniffer", 5)
    };
    let service = v1::Service {
        key: Some(v1::ServiceKey {
            vip: "198.51.100.1".into(),
            protocol: 6,
            port: 443,
            ..Default::default()
        }),
        servers: vec![v1::Server {
            address: "10.0.0.7".into(),
            weight: Some(3),
            ..Default::default()
        }],
        ..Default::default()
    };
    v1::Config {
        nics: vec![full, nic("plain", 2), bench, tap, sniffer],
        groups: vec![web],
        endpoints: vec![v1::Endpoint {
            address: "192.0.2.7".into(),
            name: "other".into(),
            vnis: vec![1337],
            ..Default::default()
        }],
        networks: vec![v1::Network {
            vni: 1337,
            routers: vec!["192.0.2.7".into()],
            ..Default::default()
        }],
        bindings: vec![v1::Binding {
            vni: 1337,
            mac: "52:54:00:77:00:01".into(),
            endpoint: "192.0.2.7".into(),
            addresses: vec!["42.0.7.7".into()],
        }],
        balancer: Some(v1::BalancerConfig {
            services: vec![service],
            interfaces: None,
        }),
        router: None,
        uplinks: Some(v1::UplinkConfig {
            interfaces: vec!["bf-eth9".into()],
        }),
    }
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn args(&self) -> [&str; 2] {
        ["--store", self.path()]
    }
}

async fn config(client: &mut Client) -> v1::Config {
    within(client.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap()
        .into_inner()
}

async fn apply(client: &mut Client, config: v1::Config) {
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    within(client.apply(request)).await.unwrap();
}

async fn put(client: &mut Client, nic: v1::Nic) -> Result<(), tonic::Status> {
    let put = within(client.put_nic(v1::PutNicRequest {
        nic: Some(nic),
        create_only: false,
    }));
    put.await.map(drop)
}

async fn history(client: &mut Client) -> Vec<v1::Revision> {
    let request = v1::ListRevisionsRequest { limit: 0 };
    let answer = within(client.list_revisions(request)).await.unwrap();
    answer.into_inner().revisions
}

fn ids(config: &v1::Config) -> Vec<&str> {
    config.nics.iter().map(|nic| nic.id.as_str()).collect()
}

#[tokio::test]
async fn all_that_is_declared_is_there_after_a_kill() {
    let store = Folder::new();
    let daemon = Daemon::start(&store.args());
    let mut client = daemon.v1().await;
    apply(&mut client, everything()).await;
    // The other ways in: v0, single requests, the balancer's own.
    let mut v0 = daemon.v0().await;
    let add = "messages { revision: 0 message_0 { request { sg_rule_add { sg_id: \"db\" \
               rule { direction: INBOUND protocol: 6 port_start: 5432 port_end: 5432 \
               cidr { address: \"10.0.0.0\" mask_size: 8 } } } } } }";
    let said = v0.ask_text(add).await;
    assert!(said.contains("status: true"), "{said}");
    put(&mut client, nic("late", 9)).await.unwrap();
    let channel = tonic::transport::Endpoint::from_shared(format!(
        "unix://{}",
        daemon.path("v1.sock").display()
    ));
    let mut balancer = BalancerClient::new(within(channel.unwrap().connect()).await.unwrap());
    let server = v1::PutServerRequest {
        key: everything().balancer.unwrap().services[0].key.clone(),
        server: Some(v1::Server {
            address: "10.0.0.8".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    within(balancer.put_server(server)).await.unwrap();
    let request = v1::DeleteNicRequest { id: "plain".into() };
    within(client.delete_nic(request)).await.unwrap();
    let before = config(&mut client).await;
    assert_eq!(ids(&before), ["bench", "full", "late", "sniffer", "tap"]);
    assert_eq!(before.groups.len(), 2);
    assert_eq!(
        before.balancer.as_ref().unwrap().services[0].servers.len(),
        2
    );

    let daemon = daemon.killed_and_started_again(&store.args());
    let mut client = daemon.v1().await;
    assert_eq!(config(&mut client).await, before);
    // Guests find their sockets.
    common::boot(&daemon, "late");
    // An end in order forgets nothing either.
    daemon.signal(rustix::process::Signal::TERM);
    let mut daemon = daemon;
    daemon.wait();
    let (dir, v0) = daemon.ended();
    let daemon = Daemon::start_in(dir, v0, &store.args());
    let mut client = daemon.v1().await;
    assert_eq!(config(&mut client).await, before);
    // And `none` knows of nothing.
    let daemon = daemon.killed_and_started_again(&["--store", "none"]);
    assert_eq!(config(&mut daemon.v1().await).await.nics, []);
}

/// A cable of the test's own.
struct Cable;

impl Cable {
    const ENDS: [&str; 2] = ["bfstore1", "bfstore2"];

    fn lay() -> Option<Cable> {
        let made = Command::new("ip")
            .args(["link", "add", Cable::ENDS[0], "type", "veth"])
            .args(["peer", "name", Cable::ENDS[1]])
            .status();
        made.is_ok_and(|status| status.success()).then_some(Cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["link", "del", Cable::ENDS[0]])
            .status();
    }
}

/// Folders of traces, of before and of now, and what they are in.
fn two_folders() -> (tempfile::TempDir, String, String) {
    let traces = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let folder = traces.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder.display().to_string()
    };
    let (before, now) = (made("before"), made("now"));
    (traces, before, now)
}

/// The folder of traces is another one than when a NIC was declared, as after an upgrade: the log
/// names it and the setting, all other NICs are there, and with the folder of before so is this
/// one.
#[tokio::test]
async fn a_nic_that_is_traced_elsewhere_than_allowed_now_stays_stored_and_is_named() {
    let (store, (_traces, before, now)) = (Folder::new(), two_folders());
    let args = |folder| [&store.args()[..], &["--trace-dir", folder]].concat();
    let daemon = Daemon::start(&args(&before));
    let mut client = daemon.v1().await;
    let path = format!("{before}/traced.pcap");
    let traced = v1::Nic {
        packet_trace: Some(true),
        packet_trace_path: path.clone(),
        security_groups: Vec::new(),
        ..nic("traced", 1)
    };
    let plain = v1::Nic {
        security_groups: Vec::new(),
        ..nic("plain", 2)
    };
    for nic in [traced, plain] {
        put(&mut client, nic).await.unwrap();
    }
    // Each tried by itself, among what is made already, they would take minutes.
    let bindings = (0..20_000).map(|number: u32| v1::Binding {
        vni: 7,
        mac: format!("52:54:01:{:02x}:{:02x}:01", number >> 8, number & 0xff),
        endpoint: "192.0.2.9".into(),
        ..Default::default()
    });
    let request = v1::PutBindingsRequest {
        bindings: bindings.collect(),
    };
    within(client.put_bindings(request)).await.unwrap();

    let daemon = daemon.killed_and_started_again(&args(&now));
    assert_eq!(ids(&config(&mut daemon.v1().await).await), ["plain"]);
    let log = daemon.log();
    let why = format!(
        "this stays stored, and is not made: NIC 'traced': packet trace path '{path}' is not a \
         file beneath {now}, the folder of traces (trace-dir in the settings, --trace-dir)"
    );
    assert!(log.contains(&why), "{log}");
    assert_eq!(log.matches("is not made").count(), 1, "{log}");
    let bindings = config(&mut daemon.v1().await).await.bindings.len();
    assert_eq!(bindings, 20_000);

    let daemon = daemon.killed_and_started_again(&args(&before));
    let made = config(&mut daemon.v1().await).await;
    assert_eq!(ids(&made), ["plain", "traced"]);
}

/// Whoever deletes it, or says what is to be there without it, is told that it goes; and it does
/// not come back when it could be made.
#[tokio::test]
async fn what_could_not_be_made_is_known_and_goes_for_good() {
    let (store, (_traces, before, now)) = (Folder::new(), two_folders());
    let args = |folder| [&store.args()[..], &["--trace-dir", folder]].concat();
    let daemon = Daemon::start(&args(&before));
    let mut client = daemon.v1().await;
    for (id, last) in [("deleted", 1), ("declared", 2), ("left_out", 3)] {
        let traced = v1::Nic {
            packet_trace: Some(true),
            packet_trace_path: format!("{before}/{id}.pcap"),
            security_groups: Vec::new(),
            ..nic(id, last)
        };
        put(&mut client, traced).await.unwrap();
    }
    let daemon = daemon.killed_and_started_again(&args(&now));
    let mut client = daemon.v1().await;
    assert_eq!(ids(&config(&mut client).await), [""; 0]);
    let unmade = async |client: &mut Client| {
        let status = within(client.get_status(v1::GetStatusRequest::default())).await;
        let warnings = status.unwrap().into_inner().warnings.join("\n");
        let listed = within(client.list_nics(v1::ListNicsRequest {})).await;
        let listed = listed.unwrap().into_inner().unmade;
        ["deleted", "declared", "left_out"].map(|id| {
            let is_listed = listed.iter().any(|nic| nic.id == id);
            assert_eq!(warnings.contains(&format!("Nic '{id}'")), is_listed, "{id}");
            is_listed
        })
    };
    assert_eq!(unmade(&mut client).await, [true, true, true]);

    let request = v1::DeleteNicRequest {
        id: "deleted".into(),
    };
    within(client.delete_nic(request)).await.unwrap();
    assert_eq!(unmade(&mut client).await, [false, true, true]);
    let plain = v1::Nic {
        security_groups: Vec::new(),
        ..nic("declared", 2)
    };
    let whole = v1::Config {
        nics: vec![plain],
        ..config(&mut client).await
    };
    for dry_run in [true, false] {
        let request = v1::ApplyRequest {
            config: Some(whole.clone()),
            dry_run,
        };
        let answer = within(client.apply(request)).await.unwrap().into_inner();
        let changes = answer.changes.into_iter();
        let mut changes: Vec<_> = changes.map(|one| (one.action(), one.subject)).collect();
        changes.sort_by_key(|(action, _)| *action as i32);
        let of = |id: &str| Some(v1::change::Subject::Nic(id.to_owned()));
        let create = (v1::change::Action::Create, of("declared"));
        let delete = (v1::change::Action::Delete, of("left_out"));
        assert_eq!(changes, [create, delete]);
    }
    assert_eq!(unmade(&mut client).await, [false; 3]);

    let daemon = daemon.killed_and_started_again(&args(&before));
    let made = config(&mut daemon.v1().await).await;
    assert_eq!(ids(&made), ["declared"]);
    assert!(!daemon.log().contains("is not made"), "{}", daemon.log());
}

#[tokio::test]
async fn interfaces_are_there_after_a_kill_and_those_of_options_are_the_options() {
    let Some(_cable) = Cable::lay() else {
        println!("skipped: no interface can be made");
        return;
    };
    let store = Folder::new();
    let [one, two] = Cable::ENDS;
    let options = [&store.args()[..], &["--router", one]].concat();
    let daemon = Daemon::start(&options);
    let mut client = daemon.v1().await;
    put(&mut client, nic("a", 1)).await.unwrap();
    let routed = |config: &v1::Config| -> Vec<String> {
        let interfaces = config.router.clone().unwrap().interfaces.into_iter();
        interfaces.map(|one| one.name).collect()
    };
    let mut wanted = config(&mut client).await;
    assert_eq!(routed(&wanted), [one]);
    wanted
        .router
        .as_mut()
        .unwrap()
        .interfaces
        .push(v1::RouterInterface {
            name: two.into(),
            ..Default::default()
        });
    apply(&mut client, wanted).await;
    // Back to where only the option's was: it stays.
    let back = v1::RollbackRequest {
        revision: 1,
        dry_run: false,
    };
    within(client.rollback(back)).await.unwrap();
    assert_eq!(routed(&config(&mut client).await), [one]);
    let again = v1::RollbackRequest {
        revision: 2,
        dry_run: false,
    };
    within(client.rollback(again)).await.unwrap();
    let daemon = daemon.killed_and_started_again(&store.args());
    let now = config(&mut daemon.v1().await).await;
    assert_eq!((routed(&now), ids(&now)), (vec![two.to_owned()], vec!["a"]));
    // One that is not there any more is no reason not to start, is not forgotten, and is taken
    // when it comes.
    let killed = daemon.killed();
    drop(_cable);
    let daemon = Daemon::start_in(killed.0, killed.1, &store.args());
    let now = config(&mut daemon.v1().await).await;
    assert_eq!((routed(&now), ids(&now)), (vec![two.to_owned()], vec!["a"]));
    let waits = format!("waiting for the interface {two}");
    assert!(daemon.log().contains(&waits), "{}", daemon.log());
    let _cable = Cable::lay().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut router = daemon.router().await;
    loop {
        let request = v1::ListRouterInterfacesRequest {};
        let listed = within(router.list_router_interfaces(request)).await;
        let listed = listed.unwrap().into_inner().interfaces;
        if listed[0].mode != v1::XdpMode::Unspecified as i32 {
            break;
        }
        assert!(std::time::Instant::now() < until, "{listed:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn history_says_who_changed_what_and_goes_back() {
    let store = Folder::new();
    let daemon = Daemon::start(&store.args());
    let mut client = daemon.v1().await;
    put(&mut client, nic("a", 1)).await.unwrap();
    put(&mut client, nic("b", 2)).await.unwrap();
    let changed = v1::Nic {
        mtu: 1300,
        ..nic("a", 1)
    };
    put(&mut client, changed).await.unwrap();
    // What changes nothing is no revision, and what is refused neither.
    put(&mut client, nic("b", 2)).await.unwrap();
    put(&mut client, nic("c", 2)).await.unwrap_err();
    let daemon = daemon.killed_and_started_again(&store.args());
    let mut client = daemon.v1().await;
    let revisions = history(&mut client).await;
    let numbers: Vec<(u64, u64)> = revisions.iter().map(|it| (it.number, it.objects)).collect();
    assert_eq!(numbers, [(3, 1), (2, 1), (1, 1)]);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(revisions[0].author, format!("uid {uid}"));
    assert!(revisions[0].time_unix_secs > 1_600_000_000);

    let diff = |from, to| v1::DiffRevisionsRequest { from, to };
    let changes = within(client.diff_revisions(diff(1, 0))).await.unwrap();
    let changes = changes.into_inner().changes;
    let subjects: Vec<_> = changes
        .iter()
        .map(|it| it.subject.clone().unwrap())
        .collect();
    assert_eq!(
        subjects,
        [Subject::Nic("a".into()), Subject::Nic("b".into())]
    );
    assert!(changes[0].details[0].contains("1300"), "{changes:?}");

    let back = |revision, dry_run| v1::RollbackRequest { revision, dry_run };
    let planned = within(client.rollback(back(1, true)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(planned.changes.len(), 2);
    let nics = [planned.deleted, planned.before].map(|amounts| amounts.unwrap().nics);
    assert_eq!(nics, [1, 2]);
    assert_eq!(ids(&config(&mut client).await), ["a", "b"]);
    let done = within(client.rollback(back(1, false)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(done, planned);
    let now = config(&mut client).await;
    assert_eq!((ids(&now), now.nics[0].mtu), (vec!["a"], 0));
    assert_eq!(history(&mut client).await[0].number, 4);
    // And forward again: the way back is a change like any other.
    within(client.rollback(back(3, false))).await.unwrap();
    assert_eq!(ids(&config(&mut client).await), ["a", "b"]);

    let refused = within(client.rollback(back(9, false))).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let said = refused.message();
    assert_eq!(said, "there is no revision 9: those from 0 to 5 are kept");
    let daemon = daemon.killed_and_started_again(&[]);
    let mut client = daemon.v1().await;
    let refused = within(client.rollback(back(1, false))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

/// Refused at the start, with a sentence; the file stays as it is.
#[tokio::test]
async fn a_store_in_use_or_of_a_newer_version_or_damaged_is_refused() {
    let store = Folder::new();
    let daemon = Daemon::start(&store.args());
    put(&mut daemon.v1().await, nic("a", 1)).await.unwrap();
    let refused = |args: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let output = common::run(&[&["--no-syslog", "-s", dir, "--api", "none"], args].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused(&store.args());
    assert!(
        said.contains("state.redb is in use by another process"),
        "{said}"
    );
    drop(daemon.killed());

    let open = || Store::open(store.0.path(), Keep::default()).unwrap();
    let write = |value: Option<Vec<u8>>| {
        let signed = Signed {
            author: "a newer version",
            unix_secs: 1,
            of_part: false,
        };
        let put = Put {
            kind: Kind::Nic,
            key: b"b".to_vec(),
            value,
        };
        let store = open();
        store.sync(store.write(signed, &[put]).unwrap()).unwrap();
    };
    let of_today = v1::Config {
        nics: vec![nic("b", 2)],
        ..Default::default()
    };
    // A field of the document that is not known yet.
    write(Some(
        [of_today.encode_to_vec(), vec![0xf8, 0x3f, 7]].concat(),
    ));
    let said = refused(&store.args());
    assert!(
        said.contains("was written by a newer version: of Nic 'b'"),
        "{said}"
    );
    write(Some(b"\xff".to_vec()));
    let said = refused(&store.args());
    assert!(said.contains("is damaged: Nic 'b' is no object"), "{said}");
    write(None);
    let daemon = Daemon::start(&store.args());
    assert_eq!(ids(&config(&mut daemon.v1().await).await), ["a"]);
    drop(daemon.killed());
    std::fs::write(store.0.path().join(store::FILE), "no database").unwrap();
    let said = refused(&store.args());
    assert!(
        said.contains(&format!("{}/state.redb is damaged", store.path())),
        "{said}"
    );
}

/// A disk that nothing can be written to, and a folder that is none: said at the start, and nothing
/// is made.
#[tokio::test]
async fn a_read_only_disk_is_refused_at_the_start_with_its_path() {
    let folder = Folder::new();
    let dir = tempfile::tempdir().unwrap();
    let refused = |script: &str, store: &str| {
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh", folder.path()])
            .arg(env!("CARGO_BIN_EXE_butterflyd"))
            .args(["--no-syslog", "--api", "none", "--store", store, "-s"])
            .arg(dir.path())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM")
            .env_remove("STATE_DIRECTORY")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    };
    let mounts = Command::new("unshare").args(["-m", "true"]).status();
    if !mounts.is_ok_and(|status| status.success()) {
        println!("skipped: no mount namespace can be made");
        return;
    }
    let read_only = "mount -t tmpfs -o ro tmpfs $1 && shift && exec \"$@\"";
    let said = refused(read_only, folder.path());
    assert!(said.contains(folder.path()), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
    // Also one that has a store of before.
    let daemon = Daemon::start(&folder.args());
    put(&mut daemon.v1().await, nic("a", 1)).await.unwrap();
    drop(daemon.killed());
    let read_only = "mount --bind $1 $1 && mount -o remount,bind,ro $1 && shift && exec \"$@\"";
    let said = refused(read_only, folder.path());
    assert!(said.contains(folder.path()), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
    let said = refused("shift && exec \"$@\"", "/proc/self/cmdline");
    assert!(said.contains("/proc/self/cmdline"), "{said}");
}

/// The daemon's store is on a file system of its own, which fills up.
#[tokio::test]
async fn a_full_disk_refuses_a_change_and_nothing_else_changes() {
    let folder = Folder::new();
    let mounts = Command::new("unshare").args(["-m", "true"]).status();
    if !mounts.is_ok_and(|status| status.success()) {
        println!("skipped: no mount namespace can be made");
        return;
    }
    let daemon = Daemon::start_with(
        Daemon::on_tmpfs(folder.path(), "2m"),
        &[&folder.args()[..], &["--store-revisions", "1"]].concat(),
    );
    let mut client = daemon.v1().await;
    put(&mut client, nic("first", 1)).await.unwrap();
    let member = |a: u32, b: u32| format!("10.{}.{a}.{b}", a % 200);
    let big = |id: u32| v1::Group {
        id: format!("group{id}"),
        members: (0..40)
            .flat_map(|a| (0..250).map(move |b| member(a, b)))
            .collect(),
        ..Default::default()
    };
    let mut refused = None;
    for id in 0..60 {
        let request = v1::PutGroupRequest {
            group: Some(big(id)),
        };
        if let Err(status) = client.put_group(request).await {
            refused = Some((id, status));
            break;
        }
    }
    let (id, status) = refused.expect("the disk is never full");
    assert!(
        status.message().contains("state.redb cannot be used"),
        "{status:?}"
    );
    let now = config(&mut client).await;
    assert_eq!(now.groups.len() as u32, id);
    assert_eq!(ids(&now), ["first"]);
    // Guests are served as before.
    common::boot(&daemon, "first");
    // And so is who makes room.
    let request = v1::DeleteGroupRequest {
        id: "group0".into(),
    };
    within(client.delete_group(request)).await.ok();
    assert_eq!(ids(&config(&mut client).await), ["first"]);
}

/// The daemon's store is on a disk that fails while it runs: the kernel takes no more writes to it.
#[tokio::test]
async fn a_disk_that_fails_for_good_refuses_a_change_and_nothing_else_changes() {
    let folder = Folder::new();
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let image = image.path().to_str().unwrap();
    // Mounted and left at once, to see whether that can be had here.
    let script = "mkfs.ext4 -q $1 && mount -o loop $1 $2";
    let words = ["-m", "sh", "-c", script, "sh", image, folder.path()];
    let mounts = Command::new("unshare").args(words).output().unwrap();
    if !mounts.status.success() {
        let why = String::from_utf8_lossy(&mounts.stderr);
        println!("skipped: no disk in a file can be mounted: {}", why.trim());
        return;
    }
    let daemon = Daemon::start_with(Daemon::on_disk(folder.path(), image), &folder.args());
    let mut client = daemon.v1().await;
    put(&mut client, nic("first", 1)).await.unwrap();
    let (_vmm, mut guest) = common::boot(&daemon, "first");
    let before = config(&mut client).await;
    let pid = daemon.pid().to_string();
    let words = [
        "-t",
        &pid,
        "-m",
        "mount",
        "-o",
        "remount,abort",
        folder.path(),
    ];
    // The kernel says that it failed, as it was told to.
    Command::new("nsenter").args(words).output().unwrap();
    let changed = nic("first", 9);
    for refused in [nic("another", 2), changed, nic("another", 3)] {
        let refused = put(&mut client, refused).await.unwrap_err();
        let said = refused.message();
        assert!(said.contains("the change cannot be recorded"), "{said}");
        assert!(said.contains("state.redb"), "{said}");
        assert_eq!(config(&mut client).await, before, "{said}");
    }
    let request = v1::DeleteNicRequest { id: "first".into() };
    within(client.delete_nic(request)).await.unwrap_err();
    assert_eq!(config(&mut client).await, before);
    // A guest is served as before.
    let frame = [0xff; 60];
    assert!(guest.send(&frame, Default::default(), &Shape::whole()));
    guest.transmitq.publish();
    let until = Instant::now() + PATIENCE;
    while guest.reclaim() == 0 {
        assert!(Instant::now() < until, "its frame is not taken");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whatever was answered is there: clients add NICs, each its own, while the daemon is killed;
/// `BUTTERFLY_KILLS` times (`make soak-store`: 1,000).
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_outlives_a_kill_at_any_moment() {
    let store = Folder::new();
    let mut daemon = Daemon::start(&store.args());
    let next = Arc::new(AtomicU32::new(1));
    let mut answered: Vec<String> = Vec::new();
    let kills = std::env::var("BUTTERFLY_KILLS").map_or(8, |kills| kills.parse().unwrap());
    let mut outlived = 0;
    for kill in 0..kills {
        let mut clients = Vec::new();
        let in_round = Arc::new(AtomicU32::new(0));
        for _ in 0..4 {
            let (mut client, next) = (daemon.v1().await, next.clone());
            let in_round = in_round.clone();
            clients.push(tokio::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let id = format!("nic{number}");
                    let put = client.put_nic(v1::PutNicRequest {
                        nic: Some(nic(&id, number)),
                        create_only: false,
                    });
                    match tokio::time::timeout(PATIENCE, put).await {
                        Ok(Ok(_)) => {
                            done.push(id);
                            in_round.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => return done,
                    }
                }
            }));
        }
        // In every other round some have been answered, however slow the disk is.
        let begun = Instant::now();
        while kill % 2 == 0 && in_round.load(Ordering::Relaxed) < 6 {
            assert!(begun.elapsed() < PATIENCE, "nothing is answered");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let while_at_work = Duration::from_millis(rand::rng().random_range(20..200));
        tokio::time::sleep(while_at_work).await;
        daemon = daemon.killed_and_started_again(&store.args());
        let mut round = 0;
        for client in clients {
            let done = client.await.unwrap();
            round += done.len();
            answered.extend(done);
        }
        let there = config(&mut daemon.v1().await).await;
        let there: std::collections::BTreeSet<&str> = ids(&there).into_iter().collect();
        let missing: Vec<_> = answered
            .iter()
            .filter(|id| !there.contains(id.as_str()))
            .collect();
        assert!(
            missing.is_empty(),
            "kill {kill}: of {} {missing:?}",
            answered.len()
        );
        outlived += round;
        if answered.len() > 500 {
            // What is deleted stays deleted, too, and a thousand rounds fit a host.
            apply(&mut daemon.v1().await, v1::Config::default()).await;
            answered.clear();
        }
    }
    println!("{outlived} answered changes outlived {kills} kills");
    assert!(outlived > 20, "{outlived}");
}

/// A client that says that more is to come is not kept waiting for the disk.
#[tokio::test]
async fn a_client_that_goes_on_waits_for_the_disk_once() {
    let store = Folder::new();
    let daemon = Daemon::start(&store.args());
    let mut client = daemon.v1().await;
    let start = Instant::now();
    for number in 0..300 {
        let mut request = tonic::Request::new(v1::PutNicRequest {
            nic: Some(nic(&format!("nic{number}"), number)),
            create_only: false,
        });
        if number < 299 {
            let soon = "soon".parse().unwrap();
            request.metadata_mut().insert("butterfly-durable", soon);
        }
        within(client.put_nic(request)).await.unwrap();
    }
    println!("300 NICs in {} ms", start.elapsed().as_millis());
    let daemon = daemon.killed_and_started_again(&store.args());
    assert_eq!(config(&mut daemon.v1().await).await.nics.len(), 300);
}

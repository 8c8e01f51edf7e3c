//! Who may do what, and the audit log: a viewer, a tenant and the operators of a host, each trying
//! what is not theirs, over both APIs.

#[path = "roles/beyond.rs"]
mod beyond;
mod common;
#[path = "roles/ids.rs"]
mod ids;
#[path = "roles/often.rs"]
mod often;
#[path = "roles/revoked.rs"]
mod revoked;
#[path = "roles/sniffers.rs"]
mod sniffers;
#[path = "roles/underlay.rs"]
mod underlay;

use std::path::{Path, PathBuf};

use api::v1;
use api::v1::balancer_client::BalancerClient;
use api::v1::butterfly_client::ButterflyClient;
use api::v1::router_client::RouterClient;
use common::certificates::{Authority, TlsFolder};
use common::{Daemon, PATIENCE, within};
use prost::Message;
use prost_reflect::DescriptorPool;
use rustix::process::{Signal, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Users that no database knows.
const VIEWER: u32 = 60_001;
const TENANT: u32 = 60_002;
const NOBODY: u32 = 60_003;

const ACCESS: &str = r#"
[[grant]]
role = "view"
certificates = ["viewer.test"]
users = [60001]

[[grant]]
role = "operate"
certificates = ["blue.test"]
users = [60002]
networks = [42, "100-199"]
security_groups = ["blue-*"]

[[grant]]
role = "admin"
certificates = ["admin.test"]
"#;

/// A daemon with the three roles, on a unix socket and on TCP.
struct Host {
    daemon: Daemon,
    files: TlsFolder,
    port: u16,
}

impl Host {
    fn start() -> Host {
        let (files, port) = (TlsFolder::new(), common::free_port());
        let access = files.write("access.toml", ACCESS);
        let audit = files.path("audit.json");
        let api = format!("tcp:127.0.0.1:{port}");
        let options = [
            "--api",
            &api,
            "--access",
            &access,
            "--audit",
            audit.to_str().unwrap(),
            "--trace-dir",
            audit.parent().unwrap().to_str().unwrap(),
        ];
        Host {
            daemon: Daemon::start(&[&options[..], &files.options()].concat()),
            files,
            port,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path(name)
    }

    async fn channel(&self, authority: &Authority, name: &str) -> Channel {
        let identity = authority.sign_for(name);
        self.files.connect(self.port, Some(identity)).await.unwrap()
    }

    /// A client with a certificate of this name.
    async fn by(&self, name: &str) -> ButterflyClient<Channel> {
        ButterflyClient::new(self.channel(&self.files.authority, name).await)
    }

    /// The audit file's lines.
    fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file("audit.json")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Has the daemon read its files again.
    fn hang_up(&self) {
        let before = self.daemon.log().matches("opened anew").count();
        self.daemon.signal(Signal::HUP);
        // A line that is the same within five seconds is said when these are over.
        let deadline = std::time::Instant::now() + PATIENCE;
        // The audit file is opened anew last.
        while self.daemon.log().matches("opened anew").count() == before {
            assert!(
                std::time::Instant::now() < deadline,
                "{}",
                self.daemon.log()
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn write(path: &Path, content: &str) -> String {
    std::fs::write(path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn nic(id: &str, vni: u32, last: u8) -> v1::Nic {
    v1::Nic {
        id: id.into(),
        mac: format!("52:54:00:12:34:{last:02x}"),
        vni,
        addresses: vec![format!("10.0.0.{last}")],
        kind: v1::NicKind::Bench.into(),
        bench: Some(v1::Bench {
            role: v1::bench::Role::IcmpReceiver.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A NIC as a tenant may make it.
fn guest(id: &str, vni: u32, last: u8) -> v1::Nic {
    v1::Nic {
        kind: v1::NicKind::VhostUser.into(),
        bench: None,
        ..nic(id, vni, last)
    }
}

fn mirror_to(address: &str) -> v1::Mirror {
    v1::Mirror {
        address: address.into(),
        port: if address.is_empty() { 0 } else { 9 },
        ..Default::default()
    }
}

fn put(nic: v1::Nic) -> v1::PutNicRequest {
    v1::PutNicRequest {
        nic: Some(nic),
        ..Default::default()
    }
}

fn group(id: &str) -> v1::PutGroupRequest {
    v1::PutGroupRequest {
        group: Some(v1::Group {
            id: id.into(),
            ..Default::default()
        }),
    }
}

#[track_caller]
fn denied<T>(answer: Result<T, Status>, what: &str) {
    let status = answer.err().unwrap_or_else(|| panic!("{what}: let in"));
    assert_eq!(status.code(), Code::PermissionDenied, "{what}: {status}");
    assert!(status.message().contains(what), "'{what}': {status}");
}

/// Every method of every service, by its name alone: nothing of the request is needed to refuse it.
#[tokio::test]
async fn a_viewer_changes_nothing_and_who_has_no_role_sees_nothing() {
    let host = Host::start();
    let pool = DescriptorPool::decode(v1::DESCRIPTORS).unwrap();
    let channels = [
        (
            "viewer.test",
            host.channel(&host.files.authority, "viewer.test").await,
        ),
        (
            "nobody.test",
            host.channel(&host.files.authority, "nobody.test").await,
        ),
        (
            "blue.test",
            host.channel(&host.files.authority, "blue.test").await,
        ),
    ];
    let mut tried = 0;
    for service in pool.services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            let sees = ["List", "Get", "Diff", "Watch"]
                .iter()
                .any(|verb| method.name().starts_with(verb));
            for (name, channel) in &channels {
                let of_host = service.name() != "Butterfly"
                    || [
                        "Apply",
                        "SetLogLevel",
                        "Reload",
                        "Upgrade",
                        "Shutdown",
                        "ListUplinks",
                        "ListWorkers",
                        "ListRevisions",
                        "DiffRevisions",
                        "Rollback",
                    ]
                    .contains(&method.name())
                    || method.name().contains("Endpoint");
                match *name {
                    "viewer.test" if sees => continue,
                    "blue.test" if !of_host => continue,
                    _ => (),
                }
                let mut grpc = tonic::client::Grpc::new(channel.clone());
                within(grpc.ready()).await.unwrap();
                let codec = tonic_prost::ProstCodec::<(), ()>::default();
                let path = path.parse().unwrap();
                let request = tonic::Request::new(tokio_stream::once(()));
                let answer = within(grpc.streaming(request, path, codec)).await;
                denied(answer, method.name());
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
    let mut viewer = host.by("viewer.test").await;
    let status = within(viewer.get_status(v1::GetStatusRequest::default())).await;
    assert!(!status.unwrap().into_inner().graph_dot.is_empty());
    let refused = host.audit();
    assert!(refused.len() >= 100, "{}", refused.len());
    assert!(refused.iter().all(|line| line["result"] == "refused"));
}

#[tokio::test]
async fn a_tenant_sees_and_changes_its_own_networks_and_groups_alone() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    for (id, vni, last) in [("red1", 7, 1), ("blue1", 42, 2)] {
        within(admin.put_nic(put(nic(id, vni, last))))
            .await
            .unwrap();
    }
    let quarantined = v1::Nic {
        security_groups: vec!["quarantine".into(), "blue-web".into()],
        ..nic("blue2", 150, 3)
    };
    within(admin.put_nic(put(quarantined.clone())))
        .await
        .unwrap();
    for id in ["red-web", "blue-web"] {
        within(admin.put_group(group(id))).await.unwrap();
    }
    let endpoint = v1::PutEndpointRequest {
        endpoint: Some(v1::Endpoint {
            address: "192.0.2.1".into(),
            ..Default::default()
        }),
    };
    within(admin.put_endpoint(endpoint)).await.unwrap();
    let binding = |vni, last: u8, endpoint: &str| v1::Binding {
        vni,
        mac: format!("52:54:00:00:00:{last:02x}"),
        addresses: vec![],
        endpoint: endpoint.into(),
    };
    let bind = |binding| v1::PutBindingsRequest {
        bindings: vec![binding],
    };
    within(admin.put_bindings(bind(binding(7, 1, "192.0.2.1"))))
        .await
        .unwrap();

    // What it sees.
    let nics = within(blue.list_nics(v1::ListNicsRequest {}))
        .await
        .unwrap();
    let nics = nics.into_inner().nics;
    let ids: Vec<_> = nics
        .iter()
        .map(|nic| &nic.nic.as_ref().unwrap().id)
        .collect();
    assert_eq!(ids, ["blue1", "blue2"]);
    let groups = within(blue.list_groups(v1::ListGroupsRequest {}))
        .await
        .unwrap();
    let groups = groups.into_inner().groups;
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].id, "blue-web");
    let config = within(blue.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap();
    let config = config.into_inner();
    let (sent, whole) = (format!("{config:?}"), ["\"red", "192.0.2.1"]);
    assert!(whole.iter().all(|theirs| !sent.contains(theirs)), "{sent}");
    assert!(config.balancer.is_none() && config.router.is_none());
    let stats = within(blue.list_nic_stats(v1::ListNicStatsRequest {}))
        .await
        .unwrap();
    assert_eq!(stats.into_inner().nics.len(), 2);
    let drops = v1::ListDropsRequest {
        nic: String::new(),
        all: true,
    };
    let drops = within(blue.list_drops(drops)).await.unwrap().into_inner();
    assert!(drops.drops.iter().all(|drop| drop.nic.starts_with("blue")));
    let status = within(blue.get_status(v1::GetStatusRequest::default()))
        .await
        .unwrap();
    let status = status.into_inner();
    assert_eq!(
        (status.nics, status.groups, status.graph_dot.as_str()),
        (2, 1, "")
    );
    let said = [&status.uplink, &status.router];
    assert!(said.iter().all(|said| said.is_empty()), "{status:?}");
    assert!(status.workers.is_empty() && status.warnings.is_empty());
    let mut networks = within(blue.list_networks(v1::ListNetworksRequest {}))
        .await
        .unwrap()
        .into_inner();
    let mut vnis = vec![];
    while let Some(network) = within(networks.message()).await.unwrap() {
        vnis.push(network.network.unwrap().vni);
    }
    assert_eq!(vnis, [42, 150]);

    // What it asks for by name.
    let of = |id: &str| v1::GetNicRequest { id: id.into() };
    denied(within(blue.get_nic(of("red1"))).await, "NIC 'red1'");
    let nic_of_red = v1::GetNicStatsRequest { id: "red1".into() };
    denied(within(blue.get_nic_stats(nic_of_red)).await, "NIC 'red1'");
    let flows = v1::ListFlowsRequest {
        nic: "red1".into(),
        ..Default::default()
    };
    denied(within(blue.list_flows(flows)).await, "NIC 'red1'");
    let filter = v1::FlowFilter {
        group: "red-web".into(),
        ..Default::default()
    };
    let flows = v1::ListFlowsRequest {
        filter: Some(filter.clone()),
        ..Default::default()
    };
    denied(within(blue.list_flows(flows)).await, "group 'red-web'");
    for (nic, filter) in [("red1", None), ("", Some(filter))] {
        let flows = v1::DeleteFlowsRequest {
            nic: nic.into(),
            filter,
        };
        denied(within(blue.delete_flows(flows)).await, "red");
    }
    let drops = v1::ListDropsRequest {
        nic: "red1".into(),
        all: false,
    };
    denied(within(blue.list_drops(drops)).await, "NIC 'red1'");
    let trace = |from| v1::GetTraceRequest {
        from: Some(from),
        what: Some(v1::get_trace_request::What::Frame(vec![0; 60])),
    };
    let red = trace(v1::get_trace_request::From::Nic("red1".into()));
    denied(within(blue.get_trace(red)).await, "NIC 'red1'");
    let wire = v1::TraceFromHost {
        vni: 42,
        endpoint: "192.0.2.9".into(),
        ..Default::default()
    };
    let wire = trace(v1::get_trace_request::From::Host(wire));
    denied(
        within(blue.get_trace(wire)).await,
        "what is the whole host's",
    );
    let capture = |nic: &str, uplink: &str| {
        let some = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        v1::CaptureFramesRequest {
            nics: some(nic).into_iter().collect(),
            uplinks: some(uplink).into_iter().collect(),
            ..Default::default()
        }
    };
    let red = within(blue.capture_frames(capture("red1", ""))).await;
    denied(red, "NIC 'red1'");
    let wire = within(blue.capture_frames(capture("", "eth0"))).await;
    denied(wire, "what is the whole host's");
    let counters = v1::ListRuleCountersRequest {
        group: "red-web".into(),
    };
    denied(
        within(blue.list_rule_counters(counters)).await,
        "group 'red-web'",
    );
    let network = v1::GetNetworkRequest { vni: 7 };
    denied(within(blue.get_network(network)).await, "VNI 7");
    let key = v1::BindingKey {
        vni: 7,
        mac: "52:54:00:00:00:01".into(),
    };
    denied(within(blue.get_binding(key)).await, "VNI 7");
    let bindings = v1::ListBindingsRequest {
        vni: Some(7),
        ..Default::default()
    };
    denied(within(blue.list_bindings(bindings)).await, "VNI 7");

    // What it would change.
    denied(within(blue.put_nic(put(nic("blue3", 7, 9)))).await, "VNI 7");
    denied(
        within(blue.put_nic(put(nic("red1", 42, 9)))).await,
        "NIC 'red1'",
    );
    let red = v1::DeleteNicRequest { id: "red1".into() };
    denied(within(blue.delete_nic(red)).await, "NIC 'red1'");
    for (what, made) in [
        (
            "group 'red-web'",
            v1::Nic {
                security_groups: vec!["red-web".into()],
                ..nic("blue1", 42, 2)
            },
        ),
        (
            "sniff_target",
            v1::Nic {
                sniff_target: "red1".into(),
                ..nic("spy", 42, 8)
            },
        ),
        (
            "path",
            v1::Nic {
                kind: v1::NicKind::VhostUser.into(),
                bench: None,
                path: "/root/socket".into(),
                ..nic("blue4", 42, 8)
            },
        ),
        (
            "netns",
            v1::Nic {
                kind: v1::NicKind::Veth.into(),
                bench: None,
                veth: Some(v1::Veth {
                    netns: "c1".into(),
                    ..Default::default()
                }),
                ..nic("blue4", 42, 8)
            },
        ),
        (
            "vm_tap",
            v1::Nic {
                kind: v1::NicKind::VmTap.into(),
                bench: None,
                vm_tap: Some(v1::VmTap::default()),
                ..nic("blue4", 42, 8)
            },
        ),
        (
            "packet_trace_path",
            v1::Nic {
                packet_trace_path: "other.pcap".into(),
                ..nic("blue4", 42, 8)
            },
        ),
        (
            "mirror",
            v1::Nic {
                mirror: Some(mirror_to("127.0.0.1")),
                ..nic("blue4", 42, 8)
            },
        ),
        ("type", nic("blue4", 42, 8)),
        (
            "type",
            v1::Nic {
                kind: v1::NicKind::Tap.into(),
                ..guest("blue4", 42, 8)
            },
        ),
        (
            "limit_out",
            v1::Nic {
                limit_out: Some(v1::Limits {
                    bits: Some(v1::Limit {
                        rate: 1 << 40,
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..guest("blue4", 42, 8)
            },
        ),
        (
            "packet_trace",
            v1::Nic {
                packet_trace: Some(true),
                ..guest("blue4", 42, 8)
            },
        ),
        (
            "bypass_filtering",
            v1::Nic {
                bypass_filtering: true,
                ..guest("blue4", 42, 8)
            },
        ),
        // What the host's operators put it in, it stays in.
        (
            "group 'quarantine'",
            v1::Nic {
                security_groups: vec!["blue-web".into()],
                ..nic("blue2", 150, 3)
            },
        ),
    ] {
        denied(within(blue.put_nic(put(made))).await, what);
    }
    let leave = v1::UpdateNicRequest {
        id: "blue2".into(),
        leave_groups: vec!["quarantine".into()],
        ..Default::default()
    };
    denied(within(blue.update_nic(leave)).await, "group 'quarantine'");
    let bypass = v1::UpdateNicRequest {
        id: "blue2".into(),
        bypass_filtering: Some(true),
        ..Default::default()
    };
    denied(within(blue.update_nic(bypass)).await, "bypass_filtering");
    // It would be made anew without.
    let delete = |id: &str| v1::DeleteNicRequest { id: id.into() };
    denied(
        within(blue.delete_nic(delete("blue2"))).await,
        "group 'quarantine'",
    );
    // A mirror is neither set, nor taken away where the operators have set one.
    let mirrored = |address: &str| v1::UpdateNicRequest {
        id: "blue2".into(),
        mirror: Some(mirror_to(address)),
        ..Default::default()
    };
    denied(
        within(blue.update_nic(mirrored("127.0.0.1"))).await,
        "mirror",
    );
    within(admin.update_nic(mirrored("127.0.0.1")))
        .await
        .unwrap();
    denied(within(blue.update_nic(mirrored(""))).await, "mirror");
    // Nor who is sampled.
    let unseen = v1::UpdateNicRequest {
        id: "blue2".into(),
        sflow_rate: Some(v1::SflowRate { frames: Some(0) }),
        ..Default::default()
    };
    denied(within(blue.update_nic(unseen)).await, "sflow_rate");
    // Nor which user of the host is the guest.
    let given = v1::UpdateNicRequest {
        id: "blue2".into(),
        socket_group: Some("0".into()),
        ..Default::default()
    };
    denied(within(blue.update_nic(given)).await, "socket_group");
    within(admin.update_nic(mirrored(""))).await.unwrap();
    denied(
        within(blue.put_group(group("red-web"))).await,
        "group 'red-web'",
    );
    let peer = v1::RuleRequest {
        group: "blue-web".into(),
        rule: Some(v1::Rule {
            direction: v1::Direction::Ingress.into(),
            peer: Some(v1::rule::Peer::Group("red-web".into())),
            ..Default::default()
        }),
        brief: false,
    };
    denied(within(blue.add_rule(peer)).await, "group 'red-web'");
    let red = v1::MemberRequest {
        group: "red-web".into(),
        member: "10.0.0.2".into(),
        brief: false,
    };
    denied(within(blue.add_member(red)).await, "group 'red-web'");
    denied(
        within(blue.put_bindings(bind(binding(7, 2, "192.0.2.1")))).await,
        "VNI 7",
    );
    denied(
        within(blue.put_bindings(bind(binding(42, 2, "192.0.2.9")))).await,
        "host '192.0.2.9'",
    );
    denied(
        within(blue.set_bindings(v1::SetBindingsRequest::default())).await,
        "whole host",
    );
    let network = v1::PutNetworkRequest {
        network: Some(v1::Network {
            vni: 7,
            from_anybody: Some(true),
            ..Default::default()
        }),
    };
    denied(within(blue.put_network(network)).await, "VNI 7");
    // Frames of a guest's own making to whoever has joined a group of the underlay's.
    let network = v1::PutNetworkRequest {
        network: Some(v1::Network {
            vni: 42,
            flood: v1::Flood::Multicast.into(),
            multicast_group: "239.1.1.1".into(),
            ..Default::default()
        }),
    };
    denied(
        within(blue.put_network(network)).await,
        "multicast group 239.1.1.1",
    );

    // What is its own it has.
    within(blue.put_nic(put(guest("blue3", 199, 4))))
        .await
        .unwrap();
    let join = v1::UpdateNicRequest {
        id: "blue2".into(),
        leave_groups: vec!["blue-web".into()],
        join_groups: vec!["blue-db".into()],
        ..Default::default()
    };
    within(blue.update_nic(join)).await.unwrap();
    within(blue.put_group(group("blue-db"))).await.unwrap();
    within(blue.put_bindings(bind(binding(42, 2, "192.0.2.1"))))
        .await
        .unwrap();
    let mirrored = |address: &str| v1::UpdateNicRequest {
        id: "blue3".into(),
        mirror: Some(mirror_to(address)),
        ..Default::default()
    };
    within(admin.update_nic(mirrored("127.0.0.1")))
        .await
        .unwrap();
    denied(within(blue.delete_nic(delete("blue3"))).await, "mirror");
    within(admin.update_nic(mirrored(""))).await.unwrap();
    let traced = |packet_trace| v1::UpdateNicRequest {
        id: "blue3".into(),
        packet_trace: Some(packet_trace),
        ..Default::default()
    };
    within(admin.update_nic(traced(true))).await.unwrap();
    denied(within(blue.update_nic(traced(false))).await, "packet_trace");
    denied(
        within(blue.delete_nic(delete("blue3"))).await,
        "packet_trace",
    );
    within(admin.update_nic(traced(false))).await.unwrap();
    within(blue.delete_nic(delete("blue3"))).await.unwrap();
    within(blue.delete_nic(delete("blue3"))).await.unwrap();

    // Nothing of what was refused has changed anything.
    let config = within(admin.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap();
    let config = config.into_inner();
    let ids: Vec<_> = config.nics.iter().map(|nic| nic.id.as_str()).collect();
    assert_eq!(ids, ["blue1", "blue2", "red1"]);
    let quarantined = &config.nics[1].security_groups;
    assert_eq!(*quarantined, ["quarantine", "blue-db"]);
    assert_eq!(config.endpoints.len(), 1);
}

/// It takes one after the other, by either API, until it is told that there are no more for it.
#[tokio::test]
async fn a_tenant_takes_no_more_of_the_host_than_its_limits_say() {
    let host = Host::start();
    let limited = |limits: &str| {
        let part = "security_groups = [\"blue-*\"]\n";
        ACCESS.replace(part, &format!("{part}limits = {limits}\n"))
    };
    let limits = "{ nics = 3, security_groups = 2, rules = 1, members = 1, bindings = 1 }";
    write(&host.file("access.toml"), &limited(limits));
    host.hang_up();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    #[track_caller]
    fn full<T>(answer: Result<T, Status>, what: &str) {
        let status = answer.err().unwrap_or_else(|| panic!("{what}: let in"));
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let said = format!("the part of the certificate of blue.test would have {what}");
        assert_eq!(status.message(), said);
    }
    // What the operators have put there is in its part, and what is elsewhere is not.
    for (id, vni, last) in [("of-root", 42, 1), ("red", 7, 2)] {
        within(admin.put_nic(put(nic(id, vni, last))))
            .await
            .unwrap();
    }
    for (id, vni, last) in [("b1", 42, 3), ("b2", 150, 4)] {
        within(blue.put_nic(put(guest(id, vni, last))))
            .await
            .unwrap();
    }
    let one_more = || put(guest("b3", 199, 5));
    full(
        within(blue.put_nic(one_more())).await,
        "4 NICs, the limit is 3",
    );
    // As often as it asks, and with the same again nothing is asked for.
    full(
        within(blue.put_nic(one_more())).await,
        "4 NICs, the limit is 3",
    );
    within(blue.put_nic(put(guest("b2", 151, 4))))
        .await
        .unwrap();

    let rule = |group: &str, port| v1::RuleRequest {
        group: group.into(),
        rule: Some(v1::Rule {
            direction: v1::Direction::Ingress.into(),
            protocol: Some(6),
            r#match: Some(v1::rule::Match::Ports(v1::PortRange {
                start: port,
                end: port,
            })),
            ..Default::default()
        }),
        brief: false,
    };
    let member = |group: &str, last: u8| v1::MemberRequest {
        group: group.into(),
        member: format!("10.0.0.{last}"),
        brief: false,
    };
    within(blue.add_rule(rule("blue-a", 1))).await.unwrap();
    within(blue.add_member(member("blue-b", 1))).await.unwrap();
    full(
        within(blue.put_group(group("blue-c"))).await,
        "3 groups, the limit is 2",
    );
    full(
        within(blue.add_member(member("blue-c", 1))).await,
        "3 groups, the limit is 2",
    );
    full(
        within(blue.add_rule(rule("blue-b", 2))).await,
        "2 rules, the limit is 1",
    );
    full(
        within(blue.add_member(member("blue-a", 2))).await,
        "2 members, the limit is 1",
    );
    let many = v1::PutGroupRequest {
        group: Some(v1::Group {
            rules: (2..4).filter_map(|port| rule("", port).rule).collect(),
            ..group("blue-b").group.unwrap()
        }),
    };
    full(
        within(blue.put_group(many)).await,
        "3 rules, the limit is 1",
    );

    let endpoint = v1::PutEndpointRequest {
        endpoint: Some(v1::Endpoint {
            address: "192.0.2.1".into(),
            ..Default::default()
        }),
    };
    within(admin.put_endpoint(endpoint)).await.unwrap();
    let bindings = |lasts: std::ops::Range<u8>| v1::PutBindingsRequest {
        bindings: lasts
            .map(|last| v1::Binding {
                vni: 42,
                mac: format!("52:54:00:00:00:{last:02x}"),
                addresses: vec![],
                endpoint: "192.0.2.1".into(),
            })
            .collect(),
    };
    // None of two that are too many is there.
    full(
        within(blue.put_bindings(bindings(1..3))).await,
        "2 bindings, the limit is 1",
    );
    within(blue.put_bindings(bindings(1..2))).await.unwrap();

    if geteuid().is_root() {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(host.daemon.dir.path(), open).unwrap();
        for (text, what) in [
            (
                r#"nic_add { id: "b3" mac: "52:54:00:12:34:99" vni: 42 }"#,
                "4 NICs",
            ),
            (r#"sg_add { id: "blue-c" }"#, "3 groups"),
        ] {
            let address = host.daemon.v0.clone();
            let answer = as_user(TENANT, async move || {
                let request =
                    format!("messages {{ revision: 6 message_0 {{ request {{ {text} }} }} }}");
                common::connect_v0(&address).await.ask_text(&request).await
            });
            let said = format!("the part of uid {TENANT} would have {what}");
            assert!(answer.contains("status: false"), "{answer}");
            assert!(answer.contains(&said), "{answer}");
        }
    }

    // What is given back can be taken again, and what is granted anew counts at once.
    let gone = v1::DeleteNicRequest { id: "b1".into() };
    within(blue.delete_nic(gone)).await.unwrap();
    within(blue.put_nic(one_more())).await.unwrap();
    full(
        within(blue.put_nic(put(guest("b4", 42, 6)))).await,
        "4 NICs, the limit is 3",
    );
    write(&host.file("access.toml"), &limited("{ nics = 4 }"));
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    within(blue.put_nic(put(guest("b4", 42, 6)))).await.unwrap();
    // The host's own operators are not bound by it, nor are other networks.
    for (id, vni, last) in [("r1", 42, 11), ("r2", 42, 12), ("r3", 7, 13)] {
        within(admin.put_nic(put(nic(id, vni, last))))
            .await
            .unwrap();
    }
    let config = within(admin.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap();
    let config = config.into_inner();
    assert_eq!((config.nics.len(), config.groups.len()), (8, 2));
    assert_eq!(config.bindings.len(), 1);
}

#[tokio::test]
async fn a_state_that_was_made_up_says_nothing_of_other_nics() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    for (id, vni, last) in [("red1", 7, 1), ("red2", 7, 2), ("blue1", 42, 3)] {
        within(admin.put_nic(put(nic(id, vni, last))))
            .await
            .unwrap();
    }
    let end = |nic: &str, last: u8| v1::ExportedEnd {
        nic: nic.into(),
        address: format!("10.0.0.{last}"),
        port: 80,
    };
    let state = |one: &str, other: &str| {
        v1::ExportedConnections {
            version: 1,
            nic: "blue1".into(),
            vni: 42,
            connections: vec![v1::ExportedConnection {
                protocol: 17,
                initiator: Some(end(one, 1)),
                responder: Some(end(other, 2)),
                state: "one_way".into(),
                timeout_secs: 60,
                ..Default::default()
            }],
            counters: None,
        }
        .encode_to_vec()
    };
    let import = |state| v1::ImportNicRequest {
        id: "blue1".into(),
        state,
    };
    let error = within(blue.import_nic(import(state("red1", "red2"))))
        .await
        .unwrap_err();
    assert!(error.message().contains("'red1' and 'red2'"), "{error}");
    // Nobody of another network is its other end.
    let taken = within(blue.import_nic(import(state("blue1", "red2"))))
        .await
        .unwrap();
    assert_eq!(taken.into_inner().flows, 0);
    // A daemon that is older says nothing of counters, one that is newer something besides.
    let with = |counters| {
        let mut state = v1::ExportedConnections {
            counters: Some(counters),
            connections: vec![],
            ..v1::ExportedConnections::decode(&*state("blue1", "red2")).unwrap()
        }
        .encode_to_vec();
        state.extend(b"\x32\x03new");
        state
    };
    let counted = v1::ExportedCounters {
        frames_out: 100,
        bytes_in: 7,
        ..Default::default()
    };
    for _ in 0..2 {
        within(blue.import_nic(import(with(counted.clone()))))
            .await
            .unwrap();
        let asked = v1::GetNicStatsRequest { id: "blue1".into() };
        let stats = within(blue.get_nic_stats(asked)).await.unwrap();
        let stats = stats.into_inner();
        assert_eq!((stats.egress_frames, stats.ingress_bytes), (100, 7));
    }
    let untrue = v1::ExportedCounters {
        kernel_out: 101,
        ..counted
    };
    let error = within(blue.import_nic(import(with(untrue))))
        .await
        .unwrap_err();
    assert!(error.message().contains("counts that cannot be"), "{error}");
}

#[tokio::test]
async fn a_tenant_hears_of_its_own_alone() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    within(admin.put_nic(put(nic("blue0", 42, 9))))
        .await
        .unwrap();
    within(admin.put_nic(put(nic("red0", 7, 8)))).await.unwrap();
    let mut events = within(blue.watch(v1::WatchRequest { snapshot: true }))
        .await
        .unwrap()
        .into_inner();
    let mut heard = vec![];
    while let Some(event) = within(events.message()).await.unwrap() {
        match event.kind.unwrap() {
            v1::event::Kind::SnapshotEnd(_) => break,
            kind => heard.push(kind),
        }
    }
    assert_eq!(heard.len(), 1, "{heard:?}");
    within(admin.put_nic(put(nic("red1", 7, 1)))).await.unwrap();
    within(admin.put_group(group("red-web"))).await.unwrap();
    within(admin.delete_nic(v1::DeleteNicRequest { id: "red1".into() }))
        .await
        .unwrap();
    // It goes into a network of somebody else's: gone, for blue.
    within(admin.put_nic(put(nic("blue0", 7, 9))))
        .await
        .unwrap();
    within(admin.put_nic(put(nic("blue1", 42, 2))))
        .await
        .unwrap();
    within(admin.put_group(group("blue-web"))).await.unwrap();
    within(admin.delete_nic(v1::DeleteNicRequest { id: "blue1".into() }))
        .await
        .unwrap();
    let mut heard = vec![];
    loop {
        let event = within(events.message()).await.unwrap().unwrap();
        let shown = format!("{:?}", event.kind.as_ref().unwrap());
        assert!(!shown.contains("\"red"), "{shown}");
        match event.kind.unwrap() {
            v1::event::Kind::NicDeleted(id) if id == "blue1" => break,
            v1::event::Kind::NicDeleted(id) => heard.push(id),
            v1::event::Kind::GroupChanged(group) => heard.push(group.id),
            _ => (),
        }
    }
    assert_eq!(heard, ["blue0", "blue-web"]);
}

/// Who came by an authority that is not trusted any more.
#[tokio::test]
async fn streams_end_with_the_authority_that_their_reader_came_by() {
    let host = Host::start();
    let mut viewer = host.by("viewer.test").await;
    let watch = v1::WatchRequest { snapshot: true };
    let mut events = within(viewer.watch(watch)).await.unwrap().into_inner();
    within(events.message()).await.unwrap().unwrap();
    let both = [host.files.authority.pem.as_str(), &Authority::new().pem].concat();
    write(&host.file("ca.pem"), &both);
    host.hang_up();
    let mut admin = host.by("admin.test").await;
    within(admin.put_group(group("blue-web"))).await.unwrap();
    let ended = within(events.message()).await.unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
}

/// Who captured what guests say when he might goes on reading when he may not any more.
#[tokio::test]
async fn frames_are_seen_for_as_long_as_one_may() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    let sender = v1::Nic {
        bench: Some(v1::Bench {
            role: v1::bench::Role::IcmpSender.into(),
            target_ip: "10.0.0.2".into(),
            target_mac: "52:54:00:12:34:02".into(),
        }),
        ..nic("sender", 42, 1)
    };
    for nic in [sender, nic("receiver", 42, 2)] {
        let nic = v1::Nic {
            bypass_filtering: true,
            ..nic
        };
        within(admin.put_nic(put(nic))).await.unwrap();
    }
    let capture = v1::CaptureFramesRequest {
        nics: vec!["sender".into()],
        ..Default::default()
    };
    let frames = within(blue.capture_frames(capture)).await.unwrap();
    let mut frames = frames.into_inner();
    let trace = v1::TraceFramesRequest {
        nic: "sender".into(),
        ..Default::default()
    };
    let traced = within(blue.trace_frames(trace)).await.unwrap();
    let mut traced = traced.into_inner();
    within(frames.message()).await.unwrap().unwrap();
    within(traced.message()).await.unwrap().unwrap();

    // Other limits take nothing away of what is seen.
    let networks = "networks = [42, \"100-199\"]\n";
    let limited = ACCESS.replace(networks, &format!("{networks}limits = {{ nics = 9 }}\n"));
    write(&host.file("access.toml"), &limited);
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    for _ in 0..3 {
        within(frames.message()).await.unwrap().unwrap();
        within(traced.message()).await.unwrap().unwrap();
    }
    let elsewhere = ACCESS.replace(networks, "networks = [43]\n");
    write(&host.file("access.toml"), &elsewhere);
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    let ends = async {
        loop {
            if let Err(status) = frames.message().await {
                break status;
            }
        }
    };
    assert_eq!(within(ends).await.code(), Code::PermissionDenied);
    let ends = async {
        loop {
            if let Err(status) = traced.message().await {
                break status;
            }
        }
    };
    assert_eq!(within(ends).await.code(), Code::PermissionDenied);
}

/// What is refused, and what is counted, says nothing of what others have.
#[tokio::test]
async fn neither_refusals_nor_counters_tell_of_others() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    let status = within(admin.get_status(v1::GetStatusRequest::default())).await;
    let folder = status.unwrap().into_inner().socket_dir;
    let secret = v1::Nic {
        path: format!("{folder}/qemu-vhost-blue9"),
        ..guest("red-secret", 7, 1)
    };
    within(admin.put_nic(put(secret))).await.unwrap();
    let refused = within(blue.put_nic(put(guest("blue9", 42, 9))))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().ends_with("is taken"), "{refused}");
    assert!(!refused.message().contains("red"), "{refused}");
    let status = within(blue.get_status(v1::GetStatusRequest::default())).await;
    let status = status.unwrap().into_inner();
    assert_eq!((status.requests, status.nics, status.bindings), (0, 0, 0));

    // More bindings at once than are told one by one.
    let mut events = within(blue.watch(v1::WatchRequest { snapshot: true }))
        .await
        .unwrap()
        .into_inner();
    let endpoint = v1::PutEndpointRequest {
        endpoint: Some(v1::Endpoint {
            address: "192.0.2.1".into(),
            ..Default::default()
        }),
    };
    within(admin.put_endpoint(endpoint)).await.unwrap();
    let bindings = (0..2000_u32).map(|n| v1::Binding {
        vni: 7,
        mac: format!("52:54:00:00:{:02x}:{:02x}", n >> 8, n & 0xff),
        addresses: vec![],
        endpoint: "192.0.2.1".into(),
    });
    let bindings = v1::PutBindingsRequest {
        bindings: bindings.collect(),
    };
    within(admin.put_bindings(bindings)).await.unwrap();
    loop {
        let event = within(events.message()).await.unwrap().unwrap();
        if let v1::event::Kind::BindingsChanged(changed) = event.kind.unwrap() {
            break assert_eq!(changed.count, 0);
        }
    }
}

/// It would change whom the networks of others hear.
#[tokio::test]
async fn a_tenant_declares_neither_the_first_thing_of_networks_nor_takes_the_last() {
    let host = Host::start();
    let (mut blue, mut admin) = (host.by("blue.test").await, host.by("admin.test").await);
    let network = |vni, learning| v1::PutNetworkRequest {
        network: Some(v1::Network {
            vni,
            learning,
            ..Default::default()
        }),
    };
    let (said, unsaid) = (network(42, Some(false)), network(42, None));
    denied(within(blue.put_network(said.clone())).await, "whom all");
    within(admin.put_network(network(7, Some(true))))
        .await
        .unwrap();
    within(blue.put_network(said)).await.unwrap();
    within(admin.put_network(network(7, None))).await.unwrap();
    denied(within(blue.put_network(unsaid.clone())).await, "whom all");
    within(admin.put_network(unsaid)).await.unwrap();
}

#[tokio::test]
async fn what_one_may_do_is_read_again_while_it_runs() {
    let host = Host::start();
    let (mut viewer, mut admin) = (host.by("viewer.test").await, host.by("admin.test").await);
    let ask = |client: &mut ButterflyClient<Channel>| {
        let mut client = client.clone();
        async move { within(client.list_nics(v1::ListNicsRequest {})).await }
    };
    ask(&mut viewer).await.unwrap();
    let mut stream = within(viewer.watch(v1::WatchRequest { snapshot: false }))
        .await
        .unwrap()
        .into_inner();

    // A file that cannot be used changes nothing, and the command says why.
    write(&host.file("access.toml"), "[[grant]]\nrole = \"vieuw\"\n");
    let error = within(admin.reload(v1::ReloadRequest {}))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("vieuw"), "{error}");
    ask(&mut viewer).await.unwrap();

    // Taken away: the connection that is there is refused, its stream ends with the next event.
    write(
        &host.file("access.toml"),
        &ACCESS.replace("viewer.test", "other.test"),
    );
    host.hang_up();
    denied(ask(&mut viewer).await, "ListNics");
    within(admin.put_nic(put(nic("a", 7, 1)))).await.unwrap();
    let ended = within(stream.message()).await.unwrap_err();
    assert_eq!(ended.code(), Code::PermissionDenied);

    // Another authority, and another certificate of the daemon's.
    let theirs = Authority::new();
    host.files.replace_by(&theirs);
    let read = within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    let read = read.into_inner().read;
    assert!(
        read.iter()
            .any(|line| line.contains("ca.pem: another authority")),
        "{read:?}"
    );
    let stale = ask(&mut admin).await.unwrap_err();
    assert_eq!(stale.code(), Code::Unauthenticated, "{stale}");
    let mut new = ButterflyClient::new(host.channel(&theirs, "admin.test").await);
    ask(&mut new).await.unwrap();

    // A pair with a key that everybody can read changes nothing: who comes is met by the one of
    // before, which this authority has signed.
    host.files.replace_by(&Authority::new());
    common::set_mode(&host.file("key.pem"), 0o644);
    let error = within(new.reload(v1::ReloadRequest {})).await.unwrap_err();
    let why = "key.pem can be read by everybody (mode 644): chmod o= ";
    assert!(error.message().contains(why), "{error}");
    write(&host.file("ca.pem"), &theirs.pem);
    let mut again = ButterflyClient::new(host.channel(&theirs, "admin.test").await);
    ask(&mut again).await.unwrap();
    host.files.replace_by(&theirs);

    // Half a pair changes nothing either.
    write(&host.file("key.pem"), &theirs.sign().1);
    assert!(within(new.reload(v1::ReloadRequest {})).await.is_err());
    let mut again = ButterflyClient::new(host.channel(&theirs, "admin.test").await);
    ask(&mut again).await.unwrap();
}

#[tokio::test]
async fn a_socket_that_stays_as_it_was_is_an_error_of_the_reload() {
    let host = Host::start();
    let mut admin = host.by("admin.test").await;
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    let socket = host.daemon.path("v1.sock");
    std::fs::remove_file(&socket).unwrap();
    let other = ACCESS.replace("viewer.test", "other.test");
    write(&host.file("access.toml"), &other);
    let error = within(admin.reload(v1::ReloadRequest {}))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    let why = format!("{} is not given to those who may", socket.display());
    assert!(error.message().contains(&why), "{error}");
    assert!(host.daemon.log().contains(&why), "{}", host.daemon.log());
    // All that could be read is in force.
    let mut other = host.by("other.test").await;
    within(other.list_nics(v1::ListNicsRequest {}))
        .await
        .unwrap();
}

/// Runs something as another user: the kernel tells the daemon of the thread that connects.
fn as_user<T: Send + 'static>(uid: u32, run: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let gid = rustix::process::Gid::from_raw(uid);
        set_thread_res_gid(gid, gid, gid).unwrap();
        let uid = rustix::process::Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run())
    });
    thread.join().unwrap()
}

#[test]
fn users_of_this_host_have_their_roles_over_both_apis() {
    if !geteuid().is_root() {
        eprintln!("skipped: to be another user takes root");
        return;
    }
    let host = Host::start();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(host.daemon.dir.path(), open).unwrap();
    let connect = |uid| {
        let socket = host.daemon.path("v1.sock");
        move || async move {
            let channel = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
            let mut client = match within(channel.connect()).await {
                Ok(channel) => ButterflyClient::new(channel),
                Err(turned_away) => {
                    let turned_away = Status::unavailable(turned_away.to_string());
                    return (Err(turned_away.clone()), Err(turned_away));
                }
            };
            let seen = within(client.list_nics(v1::ListNicsRequest {}))
                .await
                .map(drop);
            let last = (uid - 60_000) as u8;
            let made = within(client.put_nic(put(guest("mine", 42, last))))
                .await
                .map(drop);
            (seen, made)
        }
    };
    let (seen, made) = as_user(VIEWER, connect(VIEWER));
    seen.unwrap();
    denied(
        made,
        "PutNic takes the role operate, and uid 60001 has view",
    );
    let (seen, made) = as_user(TENANT, connect(TENANT));
    seen.unwrap();
    made.unwrap();
    let (seen, made) = as_user(NOBODY, connect(NOBODY));
    assert!(seen.is_err() && made.is_err());

    let v0 = |uid: u32, text: &'static str| {
        let address = host.daemon.v0.clone();
        as_user(uid, move || async move {
            let request =
                format!("messages {{ revision: 6 message_0 {{ request {{ {text} }} }} }}");
            let mut client = common::connect_v0(&address).await;
            client.ask_text(&request).await
        })
    };
    for (uid, text, said) in [
        (VIEWER, r#"nic_list: true"#, "mine"),
        (
            VIEWER,
            r#"nic_del: "mine""#,
            "nic_del takes the role operate",
        ),
        (VIEWER, r#"app_quit: true"#, "app_quit takes the role admin"),
        (
            TENANT,
            r#"app_config { log_level: "debug" }"#,
            "takes the role admin",
        ),
        (
            TENANT,
            r#"nic_add { id: "n" mac: "52:54:00:12:34:99" vni: 7 }"#,
            "VNI 7",
        ),
        (TENANT, r#"sg_add { id: "red" }"#, "has no right to group"),
        (TENANT, r#"nic_del: "mine""#, "status: true"),
    ] {
        let answer = v0(uid, text);
        assert!(answer.contains(said), "{uid} {text}: {answer}");
        assert_eq!(
            answer.contains("status: false"),
            said.contains(' ') && !said.contains("true")
        );
    }
    let lines = host.audit();
    let refused = lines.iter().filter(|line| line["result"] == "refused");
    let mut refused: Vec<_> = refused
        .map(|line| line["request"].as_str().unwrap())
        .collect();
    // How often a client tries to connect is its own affair.
    refused.dedup();
    assert_eq!(
        refused,
        ["PutNic", "connect", "nic_del", "app_quit", "app_config"],
        "{lines:?}"
    );
}

#[tokio::test]
async fn every_change_is_in_the_audit_log_with_what_it_was_before() {
    let host = Host::start();
    let mut blue = host.by("blue.test").await;
    within(blue.put_nic(put(guest("blue1", 42, 2))))
        .await
        .unwrap();
    let update = v1::UpdateNicRequest {
        id: "blue1".into(),
        addresses: Some(v1::AddressList {
            addresses: vec!["10.0.0.77".into()],
        }),
        ..Default::default()
    };
    within(blue.update_nic(update)).await.unwrap();
    within(blue.list_nics(v1::ListNicsRequest {}))
        .await
        .unwrap();
    within(blue.delete_nic(v1::DeleteNicRequest { id: "blue1".into() }))
        .await
        .unwrap();
    let bad = v1::Nic {
        mac: "nonsense".into(),
        ..guest("blue1", 42, 2)
    };
    within(blue.put_nic(put(bad))).await.unwrap_err();
    let add = r#"messages { revision: 6 message_0 { request { sg_add { id: "g" } } } }"#;
    host.daemon.v0().await.ask_text(add).await;
    let huge = v1::Nic {
        id: "x".repeat(100_000),
        ..guest("blue1", 42, 2)
    };
    within(blue.put_nic(put(huge))).await.unwrap_err();

    let lines = host.audit();
    let of = |key: &str| {
        lines
            .iter()
            .map(|line| line[key].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("request"),
        [
            "PutNic",
            "UpdateNic",
            "DeleteNic",
            "PutNic",
            "sg_add",
            "PutNic"
        ]
    );
    assert_eq!(
        of("result"),
        [
            "ok",
            "ok",
            "ok",
            "INVALID_ARGUMENT",
            "ok",
            "INVALID_ARGUMENT"
        ]
    );
    assert_eq!(lines[0]["certificate"], serde_json::json!(["blue.test"]));
    assert!(
        lines[0]["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    assert_eq!(lines[0]["arguments"]["nic"]["id"], "blue1");
    let details = lines[1]["changes"][0]["details"][0].as_str().unwrap();
    assert_eq!(details, "ip: 10.0.0.2 -> 10.0.0.77");
    assert_eq!(lines[2]["removed"][0]["addresses"][0], "10.0.0.77");
    assert!(lines[3]["why"].as_str().unwrap().contains("nonsense"));
    assert_eq!(lines[4]["uid"], geteuid().as_raw());
    assert_eq!(lines[4]["pid"], std::process::id());
    assert_eq!(lines[4]["api"], "v0");
    assert!(lines[5]["arguments"].is_null());
    assert!(lines[5]["arguments_bytes"].as_u64().unwrap() > 100_000);
    // In the log, too.
    assert!(host.daemon.log().contains(r#""request":"UpdateNic""#));

    let rotated = host.file("audit.json.1");
    std::fs::rename(host.file("audit.json"), &rotated).unwrap();
    host.hang_up();
    within(blue.put_group(group("blue-web"))).await.unwrap();
    assert_eq!(host.audit().len(), 1);
    assert_eq!(
        std::fs::read_to_string(&rotated).unwrap().lines().count(),
        lines.len()
    );
}

/// Also what is no change of what is declared.
#[tokio::test]
async fn what_a_request_came_to_is_in_the_audit_log_with_what_was_before() {
    let host = Host::start();
    let mut admin = host.by("admin.test").await;
    within(admin.put_nic(put(nic("a", 7, 1)))).await.unwrap();
    let level = v1::SetLogLevelRequest {
        level: "debug".into(),
    };
    within(admin.set_log_level(level)).await.unwrap();
    let quiet = r#"messages { revision: 6 message_0 { request {
        app_config { log_level: "info" } } } }"#;
    host.daemon.v0().await.ask_text(quiet).await;
    let flows = v1::DeleteFlowsRequest {
        nic: "a".into(),
        filter: None,
    };
    within(admin.delete_flows(flows)).await.unwrap();

    let lines = host.audit();
    let details: Vec<_> = lines
        .iter()
        .map(|line| (line["request"].as_str().unwrap(), line["details"].clone()))
        .collect();
    let said = |text: &str| serde_json::json!([text]);
    assert_eq!(
        details,
        [
            ("PutNic", Value::Null),
            ("SetLogLevel", said("log level: info -> debug")),
            ("app_config", said("log level: debug -> info")),
            ("DeleteFlows", said("connections forgotten: 0")),
        ]
    );
}

/// Once, however it is changed.
#[tokio::test]
async fn services_and_who_changed_them_are_in_the_audit_log() {
    let host = Host::start();
    let channel = host.channel(&host.files.authority, "admin.test").await;
    let mut balancer = BalancerClient::new(channel.clone());
    let mut admin = ButterflyClient::new(channel);
    let key = v1::ServiceKey {
        vip: "192.0.2.10".into(),
        port: 80,
        protocol: 6,
        all_ports: false,
    };
    let put = v1::PutServiceRequest {
        service: Some(v1::Service {
            key: Some(key.clone()),
            ..Default::default()
        }),
        create_only: false,
    };
    within(balancer.put_service(put.clone())).await.unwrap();
    within(balancer.put_service(put)).await.unwrap();
    let delete = v1::DeleteServiceRequest { key: Some(key) };
    let config = within(admin.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap();
    within(balancer.delete_service(delete)).await.unwrap();
    for dry_run in [true, false] {
        let apply = v1::ApplyRequest {
            config: Some(config.get_ref().clone()),
            dry_run,
        };
        within(admin.apply(apply)).await.unwrap();
    }

    let lines = host.audit();
    let changes = lines.iter().map(|line| {
        let changes = line["changes"].as_array().into_iter().flatten();
        let changes: Vec<_> = changes
            .map(|change| {
                assert_eq!(change["service"]["vip"], "192.0.2.10", "{line}");
                change["action"].as_str().unwrap()
            })
            .collect();
        (line["request"].as_str().unwrap(), changes)
    });
    let (create, delete) = ("ACTION_CREATE", "ACTION_DELETE");
    assert_eq!(
        changes.collect::<Vec<_>>(),
        [
            ("PutService", vec![create]),
            ("PutService", vec![]),
            ("DeleteService", vec![delete]),
            ("Apply", vec![]),
            ("Apply", vec![create]),
        ]
    );
    assert_eq!(lines[0]["certificate"], serde_json::json!(["admin.test"]));
}

#[test]
fn a_file_that_cannot_be_used_keeps_the_daemon_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let access = write(
        &dir.path().join("access.toml"),
        "[[grant]]\nrole = \"view\"\n",
    );
    let socket_dir = dir.path().join("sockets");
    let args = [
        "--no-syslog",
        "--api",
        "none",
        "-s",
        socket_dir.to_str().unwrap(),
    ];
    let output = common::run(&[&args[..], &["--access", &access]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("access.toml: grant 1: is for nobody"),
        "{said}"
    );
}

/// Streams that nobody reads, as many as one client can open on its connections.
#[tokio::test]
async fn who_opens_stream_after_stream_takes_none_of_another_s() {
    let host = Host::start();
    let nothing = v1::WatchFlowsRequest::default();
    let mut held = Vec::new();
    let refused = loop {
        let mut viewer = host.by("viewer.test").await;
        match within(viewer.watch_flows(nothing.clone())).await {
            Ok(stream) => held.push((viewer, stream)),
            Err(status) => break status,
        }
        assert!(held.len() < 100, "nobody is refused");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("viewer.test has 8 streams"));
    let mut blue = host.by("blue.test").await;
    within(blue.watch_flows(nothing.clone())).await.unwrap();
    let (mut count, mut streams) = (0, Vec::new());
    let watch = v1::WatchRequest { snapshot: false };
    let mut viewer = host.by("viewer.test").await;
    let refused = loop {
        match within(viewer.watch(watch)).await {
            Ok(stream) => streams.push(stream),
            Err(status) => break status,
        }
        count += 1;
        assert!(count < 100, "nobody is refused");
    };
    assert_eq!((count, refused.code()), (16, Code::ResourceExhausted));
    within(blue.watch(watch)).await.unwrap();
    // Those of the other services count with them.
    let channel = host.channel(&host.files.authority, "viewer.test").await;
    let mut balancer = BalancerClient::new(channel.clone());
    let refused = within(balancer.watch_balancer(v1::WatchBalancerRequest::default())).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    let mut router = RouterClient::new(channel);
    let refused = within(router.watch_router(v1::WatchRouterRequest::default())).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    // A tenant's captures leave the operators some.
    let mut admin = host.by("admin.test").await;
    within(admin.put_nic(put(nic("blue1", 42, 2))))
        .await
        .unwrap();
    let capture = v1::CaptureFramesRequest {
        nics: vec!["blue1".into()],
        ..Default::default()
    };
    let mut captures = Vec::new();
    let refused = loop {
        match within(blue.capture_frames(capture.clone())).await {
            Ok(stream) => captures.push(stream),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(captures.len(), 4);
    within(admin.capture_frames(capture)).await.unwrap();
    // One that ends makes room for the next one.
    drop(held.pop());
    let mut viewer = host.by("viewer.test").await;
    let again = async {
        while viewer.watch_flows(nothing.clone()).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(again).await;
}

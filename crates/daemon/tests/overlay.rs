//! Sessions over API v1 about who is where: other hosts, what is behind them, and how networks
//! reach them.

mod common;

use api::v1::butterfly_client::ButterflyClient;
use api::v1::change::{Action, Subject};
use api::v1::{self, event::Kind};
use common::{Daemon, within};
use tonic::transport::Channel;
use tonic::{Code, Status};

type Client = ButterflyClient<Channel>;

const HOST: &str = "192.168.0.2";

fn binding(vni: u32, last: u8, endpoint: &str) -> v1::Binding {
    v1::Binding {
        vni,
        mac: format!("52:54:00:12:34:{last:02x}"),
        addresses: vec![format!("42.0.0.{last}"), format!("fd00::{last}")],
        endpoint: endpoint.into(),
    }
}

fn key(vni: u32, last: u8) -> v1::BindingKey {
    v1::BindingKey {
        vni,
        mac: format!("52:54:00:12:34:{last:02x}"),
    }
}

async fn put(
    client: &mut Client,
    bindings: Vec<v1::Binding>,
) -> Result<v1::BindingsResponse, Status> {
    let request = v1::PutBindingsRequest { bindings };
    within(client.put_bindings(request))
        .await
        .map(|answer| answer.into_inner())
}

async fn set(
    client: &mut Client,
    request: v1::SetBindingsRequest,
) -> Result<v1::BindingsResponse, Status> {
    within(client.set_bindings(request))
        .await
        .map(|answer| answer.into_inner())
}

async fn list(client: &mut Client, request: v1::ListBindingsRequest) -> Vec<v1::Binding> {
    let mut stream = within(client.list_bindings(request))
        .await
        .unwrap()
        .into_inner();
    let mut all = Vec::new();
    while let Some(one) = within(stream.message()).await.unwrap() {
        all.push(one);
    }
    all
}

async fn networks(client: &mut Client) -> Vec<v1::NetworkStatus> {
    let request = v1::ListNetworksRequest {};
    let mut stream = within(client.list_networks(request))
        .await
        .unwrap()
        .into_inner();
    let mut all = Vec::new();
    while let Some(one) = within(stream.message()).await.unwrap() {
        all.push(one);
    }
    all
}

async fn network(client: &mut Client, vni: u32) -> v1::NetworkStatus {
    let request = v1::GetNetworkRequest { vni };
    within(client.get_network(request))
        .await
        .unwrap()
        .into_inner()
}

async fn endpoints(client: &mut Client) -> Vec<v1::EndpointStatus> {
    let answer = within(client.list_endpoints(v1::ListEndpointsRequest {})).await;
    answer.unwrap().into_inner().endpoints
}

async fn update(
    client: &mut Client,
    request: v1::UpdateEndpointRequest,
) -> Result<v1::EndpointStatus, Status> {
    within(client.update_endpoint(request))
        .await
        .map(|answer| answer.into_inner())
}

/// Deletions sort behind all changes that an answer lists, and more bindings come than go: how many
/// go is said all the same.
#[tokio::test]
async fn what_is_not_listed_of_an_apply_is_counted() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let bindings = |vni: u32, count: u32| {
        let one = move |n: u32| {
            let [_, high, middle, low] = n.to_be_bytes();
            v1::Binding {
                vni,
                mac: format!("52:54:00:{high:02x}:{middle:02x}:{low:02x}"),
                addresses: vec![],
                endpoint: HOST.into(),
            }
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    let apply = |bindings: Vec<v1::Binding>, dry_run| v1::ApplyRequest {
        config: Some(v1::Config {
            bindings,
            ..Default::default()
        }),
        dry_run,
    };
    let behind = bindings(4300, 12);
    within(client.apply(apply(behind, false))).await.unwrap();
    let others = apply(bindings(42, 10_001), true);
    let planned = within(client.apply(others)).await.unwrap().into_inner();
    let is_listed = |change: &v1::Change| change.action() == Action::Delete;
    assert!(!planned.changes.iter().any(is_listed));
    let (deleted, before) = (planned.deleted.unwrap(), planned.before.unwrap());
    assert_eq!((deleted.bindings, before.bindings), (12, 12));
    assert_eq!((deleted.endpoints, before.endpoints), (0, 1));
}

#[tokio::test]
async fn a_host_s_life() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    let request = v1::UpdateEndpointRequest {
        address: "FD00:0::2".into(),
        name: Some("rack 2".into()),
        join_vnis: vec![43, 42, 42],
        ..Default::default()
    };
    let made = update(client, request).await.unwrap();
    let endpoint = v1::Endpoint {
        address: "fd00::2".into(),
        name: "rack 2".into(),
        vnis: vec![42, 43],
        every_vni: false,
    };
    let expected = v1::EndpointStatus {
        endpoint: Some(endpoint.clone()),
        bindings: 0,
    };
    assert_eq!(made, expected);
    put(
        client,
        vec![binding(42, 1, "fd00::2"), binding(42, 2, HOST)],
    )
    .await
    .unwrap();
    let by_binding = v1::EndpointStatus {
        endpoint: Some(v1::Endpoint {
            address: HOST.into(),
            ..Default::default()
        }),
        bindings: 1,
    };
    let with_binding = v1::EndpointStatus {
        bindings: 1,
        ..expected
    };
    assert_eq!(endpoints(client).await, [by_binding, with_binding]);

    let every = v1::UpdateEndpointRequest {
        address: HOST.into(),
        every_vni: Some(true),
        ..Default::default()
    };
    assert!(
        update(client, every)
            .await
            .unwrap()
            .endpoint
            .unwrap()
            .every_vni
    );
    let leave = v1::UpdateEndpointRequest {
        address: HOST.into(),
        leave_vnis: vec![42],
        ..Default::default()
    };
    let refused = update(client, leave).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::InvalidArgument,
            "host '192.168.0.2': VNI '42' cannot be left by a host that is in every VNI"
        )
    );
    let whole = v1::PutEndpointRequest {
        endpoint: Some(v1::Endpoint {
            address: HOST.into(),
            ..Default::default()
        }),
    };
    assert!(
        !within(client.put_endpoint(whole))
            .await
            .unwrap()
            .into_inner()
            .endpoint
            .unwrap()
            .every_vni
    );

    let delete = |with_bindings| v1::DeleteEndpointRequest {
        address: "fd00::2".into(),
        with_bindings,
    };
    let refused = within(client.delete_endpoint(delete(false)))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::FailedPrecondition,
            "host 'fd00::2' has 1 bindings: delete them with it, or first"
        )
    );
    within(client.delete_endpoint(delete(true))).await.unwrap();
    within(client.delete_endpoint(delete(false))).await.unwrap();
    // Nor does it come back to leave a network.
    let leave = v1::UpdateEndpointRequest {
        address: "fd00::2".into(),
        leave_vnis: vec![42],
        ..Default::default()
    };
    let none = v1::EndpointStatus {
        endpoint: Some(v1::Endpoint {
            address: "fd00::2".into(),
            ..Default::default()
        }),
        bindings: 0,
    };
    assert_eq!(update(client, leave).await.unwrap(), none);
    let known = endpoints(client).await;
    assert!(
        known.iter().all(|status| status.endpoint != none.endpoint),
        "{known:?}"
    );
    assert_eq!(
        list(client, v1::ListBindingsRequest::default()).await,
        [binding(42, 2, HOST)]
    );
}

#[tokio::test]
async fn bindings_come_one_by_one_and_as_a_whole_set() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    let counts =
        |response: &v1::BindingsResponse| (response.created, response.updated, response.deleted);
    let all = vec![
        binding(42, 1, HOST),
        binding(42, 2, "fd00::2"),
        binding(43, 1, HOST),
    ];
    let answer = put(client, all.clone()).await.unwrap();
    assert_eq!(counts(&answer), (3, 0, 0));
    assert_eq!(list(client, v1::ListBindingsRequest::default()).await, all);
    let of_vni = v1::ListBindingsRequest {
        vni: Some(42),
        endpoint: HOST.into(),
    };
    assert_eq!(list(client, of_vni).await, all[..1]);
    assert_eq!(
        within(client.get_binding(key(43, 1)))
            .await
            .unwrap()
            .into_inner(),
        all[2]
    );
    let absent = within(client.get_binding(key(43, 9))).await.unwrap_err();
    assert_eq!(
        (absent.code(), absent.message()),
        (
            Code::NotFound,
            "there is no binding of 52:54:00:12:34:09 in VNI 43"
        )
    );

    // A whole VNI in one step: tried, refused, done.
    let moved = v1::SetBindingsRequest {
        bindings: vec![binding(42, 2, HOST), binding(42, 3, HOST)],
        vni: Some(42),
        dry_run: true,
    };
    let shown = set(client, moved.clone()).await.unwrap();
    assert_eq!(counts(&shown), (1, 1, 1));
    let words = |change: &v1::Change| match &change.subject {
        Some(Subject::Binding(key)) => (
            change.action(),
            key.mac[15..].to_owned(),
            change.details.join("; "),
        ),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        shown.changes.iter().map(words).collect::<Vec<_>>(),
        [
            (Action::Delete, "01".to_owned(), String::new()),
            (
                Action::Update,
                "02".to_owned(),
                "host: fd00::2 -> 192.168.0.2".to_owned()
            ),
            (Action::Create, "03".to_owned(), String::new()),
        ]
    );
    for (bad, code, why) in [
        (
            binding(43, 3, HOST),
            Code::InvalidArgument,
            "binding of 52:54:00:12:34:03: VNI '43' is not 42, whose bindings are to be replaced",
        ),
        (
            binding(42, 2, HOST),
            Code::InvalidArgument,
            "binding of 52:54:00:12:34:02 in VNI 42: MAC '52:54:00:12:34:02' is given twice",
        ),
        (
            binding(42, 4, "host"),
            Code::InvalidArgument,
            "binding of 52:54:00:12:34:04 in VNI 42: host 'host' is not an IPv4 or IPv6 address",
        ),
        (
            binding(42, 4, "230.0.0.42"),
            Code::InvalidArgument,
            "binding of 52:54:00:12:34:04 in VNI 42: address '230.0.0.42' is not the address of \
             one host",
        ),
    ] {
        let mut wrong = moved.clone();
        wrong.bindings.push(bad);
        let refused = set(client, wrong).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (code, why));
    }
    assert_eq!(list(client, v1::ListBindingsRequest::default()).await, all);
    let done = set(
        client,
        v1::SetBindingsRequest {
            dry_run: false,
            ..moved.clone()
        },
    )
    .await;
    assert_eq!(done.unwrap(), shown);
    let again = set(
        client,
        v1::SetBindingsRequest {
            dry_run: false,
            ..moved
        },
    )
    .await;
    assert_eq!(again.unwrap(), v1::BindingsResponse::default());

    let request = v1::DeleteBindingsRequest {
        bindings: vec![key(42, 2), key(42, 9)],
    };
    let deleted = within(client.delete_bindings(request))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(counts(&deleted), (0, 0, 1));
    let status = within(client.get_status(v1::GetStatusRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (status.networks, status.remote_endpoints, status.bindings),
        (2, 2, 2)
    );
}

#[tokio::test]
async fn a_network_works_as_was_said_or_as_follows() {
    // An interface that is not there, so that no other is made or taken.
    let daemon = Daemon::start(&["-i", "192.168.0.1", "--uplink", "nowhere0"]);
    let client = &mut daemon.v1().await;
    let as_the_original = v1::NetworkStatus {
        network: Some(v1::Network {
            vni: 1337,
            ..Default::default()
        }),
        learning: true,
        flood: v1::Flood::Multicast.into(),
        multicast_group: "230.0.5.57".into(),
        from_anybody: true,
        any_dhcp_server: true,
        any_router: true,
        ..Default::default()
    };
    assert_eq!(network(client, 1337).await, as_the_original);
    assert!(networks(client).await.is_empty());
    put(client, vec![binding(1337, 1, HOST)]).await.unwrap();
    let bound = v1::NetworkStatus {
        learning: false,
        flood: v1::Flood::HeadEnd.into(),
        multicast_group: String::new(),
        from_anybody: false,
        any_dhcp_server: false,
        any_router: false,
        endpoints: 1,
        bindings: 1,
        ..as_the_original.clone()
    };
    assert_eq!(networks(client).await, vec![bound.clone()]);
    let said = v1::Network {
        vni: 1337,
        learning: Some(true),
        flood: v1::Flood::Multicast.into(),
        multicast_group: "239.1.1.1".into(),
        from_anybody: Some(false),
        dhcp_servers: vec!["10.0.0.1".into(), "fd00::1".into()],
        routers: vec!["fd00::1".into()],
    };
    let request = v1::PutNetworkRequest {
        network: Some(said.clone()),
    };
    let answer = within(client.put_network(request))
        .await
        .unwrap()
        .into_inner();
    let expected = v1::NetworkStatus {
        network: Some(said.clone()),
        learning: true,
        flood: v1::Flood::Multicast.into(),
        multicast_group: "239.1.1.1".into(),
        endpoint_addresses: vec![HOST.into()],
        ..bound
    };
    assert_eq!(answer, expected);
    for (wrong, why) in [
        (
            v1::Network {
                multicast_group: "10.0.0.1".into(),
                ..said.clone()
            },
            "VNI 1337: multicast group '10.0.0.1' is not an IP multicast group (224.0.0.0/4, \
             ff00::/8)",
        ),
        (
            v1::Network {
                flood: v1::Flood::HeadEnd.into(),
                ..said.clone()
            },
            "VNI 1337: multicast group '239.1.1.1' goes with flood MULTICAST alone",
        ),
        (
            v1::Network {
                flood: 9,
                ..said.clone()
            },
            "VNI 1337: flood '9' is no way to flood",
        ),
        (
            v1::Network {
                vni: 1 << 24,
                ..said
            },
            "network: VNI '16777216' is above the largest, 16777215",
        ),
    ] {
        let network = Some(wrong);
        let refused = within(client.put_network(v1::PutNetworkRequest { network }))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::InvalidArgument, why)
        );
    }
    // Who takes the last of it away is told what that does.
    let open = "VXLAN from anybody again";
    let delete = v1::DeleteEndpointRequest {
        address: HOST.into(),
        with_bindings: true,
    };
    within(client.delete_endpoint(delete)).await.unwrap();
    assert!(!network(client, 7).await.from_anybody);
    assert!(!daemon.log().contains(open), "{}", daemon.log());
    let unsaid = v1::PutNetworkRequest {
        network: as_the_original.network.clone(),
    };
    within(client.put_network(unsaid)).await.unwrap();
    assert_eq!(network(client, 1337).await, as_the_original);
    assert!(network(client, 7).await.from_anybody);
    assert!(daemon.log().contains(open), "{}", daemon.log());
    // Over IPv6 the VNI makes another group.
    let daemon = Daemon::start(&["-i", "fd00::1", "--uplink", "nowhere0"]);
    let group = network(&mut daemon.v1().await, 0x0a0b0c)
        .await
        .multicast_group;
    assert_eq!(group, "ff00::a:b0c");
}

#[tokio::test]
async fn the_configuration_holds_it_and_events_tell_of_it() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    let config = v1::Config {
        endpoints: vec![v1::Endpoint {
            address: HOST.into(),
            vnis: vec![42],
            ..Default::default()
        }],
        networks: vec![v1::Network {
            vni: 42,
            learning: Some(false),
            ..Default::default()
        }],
        bindings: vec![binding(42, 1, HOST)],
        balancer: Some(v1::BalancerConfig {
            interfaces: Some(v1::BalancerInterfaces::default()),
            ..Default::default()
        }),
        router: Some(v1::RouterConfig::default()),
        uplinks: Some(v1::UplinkConfig::default()),
        ..Default::default()
    };
    let apply = |config: &v1::Config, dry_run| v1::ApplyRequest {
        config: Some(config.clone()),
        dry_run,
    };
    let shown = within(client.apply(apply(&config, true)))
        .await
        .unwrap()
        .into_inner();
    let done = within(client.apply(apply(&config, false)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (shown == done, done.bindings, done.changes.len()),
        (true, 1, 3)
    );
    let held = within(client.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(held, config);
    for (twice, why) in [
        (
            v1::Config {
                endpoints: vec![config.endpoints[0].clone(); 2],
                ..Default::default()
            },
            "host '192.168.0.2': address '192.168.0.2' is given twice",
        ),
        (
            v1::Config {
                networks: vec![config.networks[0].clone(); 2],
                ..Default::default()
            },
            "VNI 42: VNI '42' is given twice",
        ),
    ] {
        let refused = within(client.apply(apply(&twice, false)))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::InvalidArgument, why)
        );
    }

    let mut events = within(client.watch(v1::WatchRequest { snapshot: true }))
        .await
        .unwrap()
        .into_inner();
    let mut next = async || {
        within(events.message())
            .await
            .unwrap()
            .unwrap()
            .kind
            .unwrap()
    };
    let status = |bindings| v1::EndpointStatus {
        endpoint: Some(config.endpoints[0].clone()),
        bindings,
    };
    assert_eq!(next().await, Kind::EndpointChanged(status(1)));
    assert_eq!(
        next().await,
        Kind::NetworkChanged(config.networks[0].clone())
    );
    assert_eq!(
        next().await,
        Kind::BindingChanged(config.bindings[0].clone())
    );
    assert_eq!(next().await, Kind::SnapshotEnd(v1::SnapshotEnd {}));
    put(client, vec![binding(42, 2, HOST)]).await.unwrap();
    assert_eq!(next().await, Kind::BindingChanged(binding(42, 2, HOST)));
    within(client.apply(apply(&v1::Config::default(), false)))
        .await
        .unwrap();
    assert_eq!(next().await, Kind::EndpointDeleted(HOST.into()));
    let unsaid = v1::Network {
        vni: 42,
        ..Default::default()
    };
    assert_eq!(next().await, Kind::NetworkChanged(unsaid));
    assert_eq!(next().await, Kind::BindingDeleted(key(42, 1)));
    assert_eq!(next().await, Kind::BindingDeleted(key(42, 2)));
}

//! What a tenant is not told of what joins this host to others.

use std::time::{Duration, Instant};

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use rustix::process::geteuid;
use testkit::netns::Namespace;
use tonic::transport::{Channel, Endpoint};

use super::common::{Daemon, PATIENCE, within};
use super::{ACCESS, TENANT, as_user, guest, put, write};

/// To a machine behind another host.
async fn trace(client: &mut ButterflyClient<Channel>) -> v1::Trace {
    let headers = v1::TraceHeaders {
        protocol: 17,
        destination: "10.0.0.9".into(),
        destination_port: 53,
        ..Default::default()
    };
    let asked = v1::GetTraceRequest {
        from: Some(v1::get_trace_request::From::Nic("a".into())),
        what: Some(v1::get_trace_request::What::Headers(headers)),
    };
    within(client.get_trace(asked)).await.unwrap().into_inner()
}

async fn declare(client: &mut ButterflyClient<Channel>) {
    let sender = v1::Nic {
        bypass_filtering: true,
        ..guest("a", 42, 1)
    };
    within(client.put_nic(put(sender))).await.unwrap();
    let endpoint = v1::Endpoint {
        address: "192.0.2.2".into(),
        ..Default::default()
    };
    let endpoint = v1::PutEndpointRequest {
        endpoint: Some(endpoint),
    };
    within(client.put_endpoint(endpoint)).await.unwrap();
    let binding = v1::Binding {
        vni: 42,
        mac: "52:54:00:12:34:09".into(),
        addresses: vec!["10.0.0.9".into()],
        endpoint: "192.0.2.2".into(),
    };
    let bindings = v1::PutBindingsRequest {
        bindings: vec![binding],
    };
    within(client.put_bindings(bindings)).await.unwrap();
}

/// Which interface it is, and whose MACs and addresses are there, is the host's.
#[tokio::test]
async fn what_a_tenant_traces_tells_nothing_of_the_underlay() {
    if !geteuid().is_root() {
        eprintln!("skipped: to be another user takes root");
        return;
    }
    let namespace = Namespace::new().unwrap();
    namespace
        .ok(
            "ip link add up0 type veth peer name far0 && ip addr add 192.0.2.1/24 dev up0 && \
             ip link set up0 up && ip link set far0 up && \
             ip neigh add 192.0.2.2 lladdr 52:54:00:00:00:99 dev up0 nud permanent",
        )
        .unwrap();
    let files = tempfile::tempdir().unwrap();
    let access = write(&files.path().join("access.toml"), ACCESS);
    let options = ["-i", "192.0.2.1", "--uplink-mode", "packet"];
    let options = [&options[..], &["--access", &access]].concat();
    let daemon = namespace.inside(|| Daemon::start(&options)).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(daemon.dir.path(), open).unwrap();
    let mut root = daemon.v1().await;
    declare(&mut root).await;

    // Root is told all of it, once the uplink is there.
    let deadline = Instant::now() + PATIENCE;
    let told = loop {
        let told = trace(&mut root).await;
        let target = told.targets.first();
        if told.passes && target.is_some_and(|target| !target.uplink.is_empty()) {
            break told;
        }
        assert!(Instant::now() < deadline, "{told:?}\n{}", daemon.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let target = &told.targets[0];
    assert_eq!(target.uplink, "up0");
    let next_hop = [0x52, 0x54, 0, 0, 0, 0x99];
    assert_eq!(target.packet[..6], next_hop, "{target:?}");

    let socket = format!("unix://{}", daemon.path("v1.sock").display());
    let told = as_user(TENANT, move || async move {
        let channel = Endpoint::from_shared(socket).unwrap();
        let channel = within(channel.connect()).await.unwrap();
        trace(&mut ButterflyClient::new(channel)).await
    });
    assert!(told.passes, "{told:?}");
    let target = &told.targets[0];
    assert_eq!(
        target.endpoint, "192.0.2.2",
        "it is in the tenant's binding"
    );
    assert_eq!((target.uplink.as_str(), &target.packet[..]), ("", &[][..]));
    let said: Vec<&str> = target.steps.iter().map(|step| step.text.as_str()).collect();
    assert!(said.contains(&"VXLAN to 192.0.2.2"), "{said:?}");
    let all = format!("{told:?}");
    let theirs = ["up0", "192.0.2.1"];
    assert!(theirs.iter().all(|word| !all.contains(word)), "{all}");
}

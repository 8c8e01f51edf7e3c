//! What a tenant's own NICs mean to others: whom a group of the operators' stands for.

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use rustix::process::geteuid;
use tonic::transport::Channel;

use super::common::{self, within};
use super::{Host, TENANT, as_user, denied, guest, put};

async fn addresses(client: &mut ButterflyClient<Channel>, id: &str) -> Vec<String> {
    let asked = v1::GetNicRequest { id: id.into() };
    let status = within(client.get_nic(asked)).await.unwrap();
    status.into_inner().nic.unwrap().addresses
}

fn readdress(id: &str, addresses: &[&str]) -> v1::UpdateNicRequest {
    v1::UpdateNicRequest {
        id: id.into(),
        addresses: Some(v1::AddressList {
            addresses: addresses.iter().map(|ip| (*ip).to_owned()).collect(),
        }),
        ..Default::default()
    }
}

/// A NIC of VNI 42 in a group that is not the tenant's, beside one that is.
fn in_prod() -> v1::Nic {
    v1::Nic {
        security_groups: vec!["blue-web".into(), "prod".into()],
        ..guest("b", 42, 2)
    }
}

/// Whoever trusts the group in another network would trust an address of the tenant's choice.
#[tokio::test]
async fn a_tenant_does_not_say_for_whom_a_group_that_is_not_its_own_stands() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    within(admin.put_nic(put(in_prod()))).await.unwrap();
    let why = "other addresses of NIC 'b', for which group 'prod' stands";
    for other in [&["10.0.0.2", "203.0.113.66"][..], &["203.0.113.66"], &[]] {
        let updated = within(blue.update_nic(readdress("b", other))).await;
        denied(updated, why);
        let other = v1::Nic {
            addresses: other.iter().map(|ip| (*ip).to_owned()).collect(),
            ..in_prod()
        };
        denied(within(blue.put_nic(put(other))).await, why);
    }
    assert_eq!(addresses(&mut admin, "b").await, ["10.0.0.2"]);

    // All else is the tenant's as ever, and so are addresses that its own groups stand for.
    let down = v1::Nic {
        link_down: true,
        ..in_prod()
    };
    within(blue.put_nic(put(down))).await.unwrap();
    let leave = v1::UpdateNicRequest {
        id: "b".into(),
        leave_groups: vec!["prod".into()],
        ..Default::default()
    };
    within(admin.update_nic(leave)).await.unwrap();
    let other = readdress("b", &["10.0.0.2", "10.0.0.3"]);
    within(blue.update_nic(other)).await.unwrap();
    assert_eq!(addresses(&mut blue, "b").await, ["10.0.0.2", "10.0.0.3"]);
}

#[test]
fn nor_does_it_by_api_v0() {
    if !geteuid().is_root() {
        eprintln!("skipped: to be another user takes root");
        return;
    }
    let host = Host::start();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(host.daemon.dir.path(), open).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut admin = host.by("admin.test").await;
        within(admin.put_nic(put(in_prod()))).await.unwrap();
    });
    let address = host.daemon.v0.clone();
    let answer = as_user(TENANT, move || async move {
        let request = r#"messages { revision: 6 message_0 { request { nic_update {
            id: "b" ip: "10.0.0.2" ip: "203.0.113.66" } } } }"#;
        common::connect_v0(&address).await.ask_text(request).await
    });
    assert!(answer.contains("status: false"), "{answer}");
    let why = "has no right to other addresses of NIC";
    assert!(answer.contains(why), "{answer}");
}

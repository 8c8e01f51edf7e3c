//! Ids of NICs. Once its NIC is gone an id is free, and who connects by it is there still.

use api::v1;
use rustix::process::geteuid;

use super::common::{self, within};
use super::{ACCESS, Host, TENANT, as_user, denied, guest, put, write};

/// It would have the guest of whoever had that id before.
#[tokio::test]
async fn a_tenant_makes_no_nic_under_an_id_that_is_not_its_own() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    let networks = "networks = [42, \"100-199\"]\n";
    let bound = ACCESS.replace(networks, &format!("{networks}nics = [\"blue-*\"]\n"));
    write(&host.file("access.toml"), &bound);
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    within(admin.put_nic(put(guest("vm1", 7, 1))))
        .await
        .unwrap();
    let delete = v1::DeleteNicRequest { id: "vm1".into() };
    within(admin.delete_nic(delete)).await.unwrap();
    for create_only in [false, true] {
        let request = v1::PutNicRequest {
            create_only,
            ..put(guest("vm1", 42, 1))
        };
        let made = within(blue.put_nic(request)).await;
        denied(made, "the id 'vm1' for a NIC in VNI 42");
    }
    if geteuid().is_root() {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(host.daemon.dir.path(), open).unwrap();
        let address = host.daemon.v0.clone();
        let answer = as_user(TENANT, move || async move {
            let request = r#"messages { revision: 6 message_0 { request { nic_add {
                id: "vm1" mac: "52:54:00:12:34:01" vni: 42 } } } }"#;
            common::connect_v0(&address).await.ask_text(request).await
        });
        assert!(answer.contains("has no right to the id"), "{answer}");
    }
    // Its own ids it has, and it changes what others have made in its networks, where that is.
    within(blue.put_nic(put(guest("blue-1", 42, 2))))
        .await
        .unwrap();
    within(blue.put_nic(put(guest("blue-1", 150, 2))))
        .await
        .unwrap();
    within(admin.put_nic(put(guest("old", 42, 3))))
        .await
        .unwrap();
    let down = v1::Nic {
        link_down: true,
        ..guest("old", 42, 3)
    };
    within(blue.put_nic(put(down))).await.unwrap();
    let elsewhere = within(blue.put_nic(put(guest("old", 150, 3)))).await;
    denied(elsewhere, "the id 'old' for a NIC in VNI 150");
    let nics = within(admin.list_nics(v1::ListNicsRequest {})).await;
    let nics = nics.unwrap().into_inner().nics;
    let nics = nics.iter().map(|status| status.nic.as_ref().unwrap());
    let nics: Vec<_> = nics.map(|nic| (nic.id.as_str(), nic.vni)).collect();
    assert_eq!(nics, [("blue-1", 150), ("old", 42)]);
}

//! Who hears a copy of a NIC's frames: that goes by the NIC's id, which is free once the NIC is
//! gone.

use api::v1;

use super::common::within;
use super::{Host, denied, guest, put};

/// The operators gave a tenant an analyser of its own NIC.
#[tokio::test]
async fn who_comes_by_a_sniffed_id_in_another_network_is_not_heard() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    let sniffer = |sniff_vni| v1::Nic {
        sniff_target: "web-1".into(),
        sniff_vni,
        ..guest("s", 42, 9)
    };
    let asked = v1::GetNicRequest { id: "s".into() };
    let shown = |status: &v1::NicStatus| {
        let nic = status.nic.as_ref().unwrap();
        (nic.sniff_vni, status.sniff_target_elsewhere)
    };
    within(admin.put_nic(put(guest("web-1", 42, 1))))
        .await
        .unwrap();
    within(admin.put_nic(put(sniffer(None)))).await.unwrap();
    let delete = v1::DeleteNicRequest { id: "web-1".into() };
    within(blue.delete_nic(delete)).await.unwrap();
    let status = within(blue.get_nic(asked.clone())).await.unwrap();
    assert_eq!(shown(status.get_ref()), (Some(42), false));

    within(admin.put_nic(put(guest("web-1", 7, 1))))
        .await
        .unwrap();
    let status = within(blue.get_nic(asked.clone())).await.unwrap();
    assert_eq!(shown(status.get_ref()), (Some(42), true));
    // The tenant says it again, and says what it would rather hear; so do the operators, who say
    // nothing of a network.
    let again = within(blue.put_nic(put(sniffer(None)))).await.unwrap();
    assert_eq!(shown(again.get_ref()), (Some(42), true));
    denied(
        within(blue.put_nic(put(sniffer(Some(7))))).await,
        "the sniff_vni of NIC 's'",
    );
    let again = within(admin.put_nic(put(sniffer(None)))).await.unwrap();
    assert_eq!(shown(again.get_ref()), (Some(42), true));

    // Declared by who has the whole host while the other one is there, it hears that: over API v0
    // it is not said otherwise.
    let add = r#"messages { revision: 6 message_0 { request { nic_add {
        id: "s7" mac: "52:54:00:12:34:77" vni: 42 sniff_target_nic_id: "web-1" } } } }"#;
    let answer = host.daemon.v0().await.ask_text(add).await;
    assert!(answer.contains("status: true"), "{answer}");
    let status = within(admin.get_nic(v1::GetNicRequest { id: "s7".into() })).await;
    assert_eq!(shown(status.unwrap().get_ref()), (Some(7), false));
    let heard = within(admin.put_nic(put(sniffer(Some(7))))).await.unwrap();
    assert_eq!(shown(heard.get_ref()), (Some(7), false));

    // A document in which nothing is said of it leaves it so.
    let config = within(admin.get_config(v1::GetConfigRequest {})).await;
    let mut config = config.unwrap().into_inner();
    config.nics.iter_mut().for_each(|nic| nic.sniff_vni = None);
    let apply = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    let applied = within(admin.apply(apply)).await.unwrap();
    assert!(applied.get_ref().changes.is_empty(), "{applied:?}");
}

//! A change that somebody has begun to ask for and may not make any more when all of it is there.

use api::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::common::within;
use super::{ACCESS, Host, denied, guest, put, write};

/// How often it is tried to have the request let in before its grant goes.
const TRIES: usize = 20;

/// Headers, then the grant goes, then the body.
#[tokio::test]
async fn a_change_that_was_begun_is_not_made_by_who_may_not_any_more() {
    let host = Host::start();
    let mut admin = host.by("admin.test").await;
    let channel = host.channel(&host.files.authority, "blue.test").await;
    let mut blue = v1::butterfly_client::ButterflyClient::new(channel.clone());
    let without = ACCESS.replace("blue.test", "other.test");
    for _ in 0..TRIES {
        write(&host.file("access.toml"), ACCESS);
        within(admin.reload(v1::ReloadRequest {})).await.unwrap();
        let (body, messages) = mpsc::channel::<v1::PutNicRequest>(1);
        let mut grpc = Grpc::new(channel.clone());
        let asked = tokio::spawn(async move {
            grpc.ready().await.unwrap();
            let codec = ProstCodec::<v1::PutNicRequest, v1::NicStatus>::default();
            let path = "/butterfly.v1.Butterfly/PutNic".parse().unwrap();
            let request = Request::new(ReceiverStream::new(messages));
            grpc.client_streaming(request, path, codec).await
        });
        // Its headers are there before these, on the same connection.
        for _ in 0..3 {
            tokio::task::yield_now().await;
            within(blue.list_nics(v1::ListNicsRequest {}))
                .await
                .unwrap();
        }
        write(&host.file("access.toml"), &without);
        within(admin.reload(v1::ReloadRequest {})).await.unwrap();
        // Who was refused at once reads it no more.
        let _ = body.send(put(guest("late", 42, 1))).await;
        drop(body);
        denied(within(asked).await.unwrap(), "blue.test");

        let nics = within(admin.list_nics(v1::ListNicsRequest {})).await;
        assert!(nics.unwrap().into_inner().nics.is_empty());
        let lines = host.audit();
        let asked = |line: &&serde_json::Value| line["request"] == "PutNic";
        let line = lines.iter().rev().find(asked).unwrap();
        assert!(line["changes"].is_null(), "{line}");
        // Otherwise it was refused at its headers, which came after the reload.
        if line["result"] == "PERMISSION_DENIED" {
            let why = line["why"].as_str().unwrap();
            assert!(why.contains("was changed since it asked"), "{line}");
            assert_eq!(line["arguments"]["nic"]["id"], "late");
            return;
        }
        assert_eq!(line["result"], "refused");
    }
    panic!("it was never let in before its grant went");
}

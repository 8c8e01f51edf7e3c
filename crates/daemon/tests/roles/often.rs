//! Who changes its part of the networks all the time.

use std::time::{Duration, Instant};

use api::v1::{CaptureFramesRequest, PutGroupRequest};
use tonic::{Code, Request};

use super::*;

/// Each change has everybody's connections judged anew.
#[tokio::test]
async fn a_tenant_changes_so_much_at_once_and_then_so_much_a_second() {
    let host = Host::start();
    let (mut admin, mut blue) = (host.by("admin.test").await, host.by("blue.test").await);
    within(admin.put_nic(put(nic("own", 42, 1)))).await.unwrap();
    let changed = |member: usize| {
        let mut change = group("blue-web");
        let own = change.group.as_mut().unwrap();
        own.members = vec![format!("10.9.{}.{}", member >> 8, member & 255)];
        let mut request: Request<PutGroupRequest> = Request::new(change);
        let soon = "soon".parse().unwrap();
        request.metadata_mut().insert("butterfly-durable", soon);
        request
    };
    let begun = Instant::now();
    let mut made = 0;
    let refused = loop {
        match within(blue.put_group(changed(made))).await {
            Ok(_) => made += 1,
            Err(refused) => break refused,
        }
        assert!(made < 10_000, "nothing is refused");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("ask again later"), "{refused}");
    let more = begun.elapsed().as_millis() as usize / 100 + 1;
    assert!((4096..=4096 + more).contains(&made), "{made}, {more} more");
    // A capture has those judged anew that the kernel forwards.
    let capture = CaptureFramesRequest {
        nics: vec!["own".into()],
        ..Default::default()
    };
    let captured = within(blue.capture_frames(capture)).await;
    assert_eq!(
        captured.err().map(|e| e.code()),
        Some(Code::ResourceExhausted)
    );
    // It sees what it has, others change what they like, and some time later so does it.
    let status = v1::GetStatusRequest::default();
    within(blue.get_status(status)).await.unwrap();
    for member in 1..30 {
        within(admin.put_group(changed(made + member)))
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    within(blue.put_group(changed(made))).await.unwrap();
}

/// What is there already is no change.
#[tokio::test]
async fn a_tenant_says_the_same_as_often_as_it_likes_and_fills_no_disk() {
    let host = Host::start();
    let mut blue = host.by("blue.test").await;
    for _ in 0..5000 {
        within(blue.put_group(group("blue-web"))).await.unwrap();
    }
    let lines = host.audit();
    assert!((100..200).contains(&lines.len()), "{}", lines.len());
    within(blue.put_group(group("blue-other"))).await.unwrap();
    let last = host.audit().pop().unwrap();
    assert_eq!(last["changes"][0]["group"], "blue-other");
    assert_eq!(last["unsaid"], 5000 - lines.len());
}

//! A daemon of several workers: NICs are spread over them, and frames cross from one to the other.

mod common;

use std::time::Duration;

use api::v1;
use common::{Daemon, boot, within};
use testkit::ring_driver::Shape;
use wire::offload::Offload;

#[tokio::test]
async fn frames_cross_from_worker_to_worker() {
    let daemon = Daemon::start(&["--workers", "3"]);
    let client = &mut daemon.v1().await;
    let mut guests = Vec::new();
    for last in 1..=3u8 {
        let id = format!("n{last}");
        let nic = v1::Nic {
            id: id.clone(),
            mac: format!("52:54:00:12:34:{last:02x}"),
            vni: 1337,
            addresses: vec![format!("42.0.0.{last}")],
            bypass_filtering: true,
            ..Default::default()
        };
        within(client.put_nic(v1::PutNicRequest {
            nic: Some(nic),
            create_only: false,
        }))
        .await
        .unwrap();
        guests.push(boot(&daemon, &id));
    }
    // The second is asleep by now, or it is not: it has to hear of them either way.
    for round in 0..50u8 {
        let mut frame = vec![round; 600];
        frame[..14].copy_from_slice(b"\x52\x54\0\x12\x34\x02\x52\x54\0\x12\x34\x01\x88\xb5");
        let sender = &mut guests[0].1;
        assert!(sender.send(&frame, Offload::default(), &Shape::whole()));
        sender.transmitq.publish();
        let receiver = &mut guests[1].1;
        let arrived = async {
            loop {
                let frames = receiver.receive();
                if !frames.is_empty() {
                    return frames;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let arrived = within(arrived).await;
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].frame, frame);
    }
    let answer = within(client.list_workers(v1::ListWorkersRequest {})).await;
    let workers = answer.unwrap().into_inner().workers;
    let queues: Vec<Vec<&str>> = workers
        .iter()
        .map(|worker| {
            worker
                .queues
                .iter()
                .map(|queue| queue.nic.as_str())
                .collect()
        })
        .collect();
    assert_eq!(queues, [["n1"], ["n2"], ["n3"]]);
    let frames: Vec<_> = workers
        .iter()
        .map(|worker| (worker.frames, worker.handed_over, worker.taken_over))
        .collect();
    assert_eq!(frames, [(50, 50, 0), (0, 0, 50), (0, 0, 0)]);
    assert!(
        workers
            .iter()
            .zip(0..)
            .all(|(worker, index)| worker.index == index && worker.core.is_none())
    );
    let sent = within(client.get_nic_stats(v1::GetNicStatsRequest { id: "n1".into() })).await;
    let received = within(client.get_nic_stats(v1::GetNicStatsRequest { id: "n2".into() })).await;
    let (sent, received) = (sent.unwrap().into_inner(), received.unwrap().into_inner());
    assert_eq!((sent.egress_frames, received.ingress_frames), (50, 50));
}

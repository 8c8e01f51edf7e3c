//! What can be seen of a daemon while it works: rings with a guest's driver on the other side,
//! workers, rates.

mod common;

use std::time::Duration;

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use common::{Daemon, FEATURES, boot, within};
use io::vhost::features::PROTOCOL_FEATURES;
use io::vhost::features::protocol;
use testkit::ring_driver::Shape;
use tonic::Code;
use tonic::transport::Channel;
use wire::offload::Offload;

type Client = ButterflyClient<Channel>;

async fn put(client: &mut Client, id: &str, last: u8, change: impl FnOnce(&mut v1::Nic)) {
    let mut nic = v1::Nic {
        id: id.into(),
        mac: format!("52:54:00:12:34:{last:02x}"),
        vni: 1337,
        addresses: vec![format!("42.0.0.{last}")],
        bypass_filtering: true,
        ..Default::default()
    };
    change(&mut nic);
    within(client.put_nic(v1::PutNicRequest {
        nic: Some(nic),
        create_only: false,
    }))
    .await
    .unwrap();
}

async fn queues(client: &mut Client, id: &str) -> v1::NicQueues {
    within(client.get_nic_queues(v1::GetNicQueuesRequest { id: id.into() }))
        .await
        .unwrap()
        .into_inner()
}

async fn workers(client: &mut Client) -> Vec<v1::WorkerStatus> {
    let answer = within(client.list_workers(v1::ListWorkersRequest {})).await;
    answer.unwrap().into_inner().workers
}

#[tokio::test]
async fn a_guest_s_rings_are_shown_index_by_index() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    put(client, "a", 1, |_| ()).await;
    put(client, "b", 2, |_| ()).await;
    let nobody = v1::NicQueues {
        id: "a".into(),
        pairs: vec![],
        session: None,
    };
    assert_eq!(queues(client, "a").await, nobody, "no guest is connected");
    let absent = within(client.get_nic_queues(v1::GetNicQueuesRequest { id: "z".into() })).await;
    assert_eq!(absent.unwrap_err().code(), Code::NotFound);

    let ((mut vmm, mut a), (_vmm, mut b)) = (boot(&daemon, "a"), boot(&daemon, "b"));
    let offered = b.receiveq.outstanding() as u32;
    let mut frame = vec![0xa5; 100];
    frame[..14].copy_from_slice(b"\x52\x54\0\x12\x34\x02\x52\x54\0\x12\x34\x01\x88\xb5");
    for _ in 0..3 {
        assert!(a.send(&frame, Offload::default(), &Shape::whole()));
    }
    a.transmitq.publish();
    let given_back = async {
        while a.transmitq.used_index() != 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(given_back).await;

    let names = || -> Vec<String> {
        let names = ["MRG_RXBUF", "EVENT_IDX", "PROTOCOL_FEATURES", "VERSION_1"];
        names.map(Into::into).into()
    };
    let ring = |size: u16, offered: u32, taken: u32| v1::Ring {
        size: size.into(),
        packed: false,
        avail_index: offered,
        next_avail: taken,
        used_index: taken,
        waiting: Some(offered - taken),
        features: FEATURES | PROTOCOL_FEATURES,
        feature_names: names(),
        ..Default::default()
    };
    let pair = |from, to, transmitq, receiveq| v1::QueuePair {
        pair: 0,
        worker: 0,
        backend: "vhost-user".into(),
        up: true,
        frames_received: from,
        frames_transmitted: to,
        transmitq: Some(transmitq),
        receiveq: Some(receiveq),
        ..Default::default()
    };
    let (tx, rx) = (a.transmitq.size, a.receiveq.size);
    let session = |sizes: &[u32]| v1::VhostSession {
        features: Some(FEATURES | PROTOCOL_FEATURES),
        feature_names: names(),
        protocol_features: protocol::MQ | protocol::REPLY_ACK | protocol::NET_MTU,
        protocol_feature_names: ["MQ", "REPLY_ACK", "NET_MTU"].map(Into::into).into(),
        // Offered by NET_MTU; the driver did not take it.
        mtu: 1500,
        rings: (0..)
            .zip(sizes)
            .map(|(index, size)| v1::VhostRing {
                index,
                size: *size,
                started: true,
                enabled: true,
                fault: String::new(),
            })
            .collect(),
    };
    let expected = [
        ("a", pair(3, 0, ring(tx, 3, 3), ring(rx, offered, 0))),
        ("b", pair(0, 3, ring(tx, 0, 0), ring(rx, offered, 3))),
    ];
    for (id, expected) in expected {
        let mut seen = queues(client, id).await;
        let pair = &mut seen.pairs[0];
        // When who was woken is the scheduler's affair.
        (pair.polled, pair.quiet_ns, pair.kicks, pair.calls) = (false, 0, 0, 0);
        for ring in [&mut pair.transmitq, &mut pair.receiveq]
            .into_iter()
            .flatten()
        {
            (ring.interrupts_off, ring.calls) = (false, 0);
        }
        assert_eq!(
            seen,
            v1::NicQueues {
                id: id.into(),
                pairs: vec![expected],
                session: Some(session(&[rx.into(), tx.into()])),
            }
        );
    }
    assert_eq!(b.receive().len(), 3);

    // What breaks the protocol is stopped, and the reason is seen where the rings are.
    a.transmitq.write_available_index(1000);
    a.transmitq.notify();
    let broken = async {
        loop {
            match queues(client, "a").await.pairs.pop() {
                Some(pair) if !pair.broken.is_empty() => return pair,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    let broken = within(broken).await;
    assert!(!broken.up, "{broken:?}");
    vmm.stop().unwrap();
    drop(vmm);
    let gone = async {
        while queues(client, "a").await != nobody {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(gone).await;
}

#[tokio::test]
async fn workers_say_what_they_do_with_their_time() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    let bench = |role: v1::bench::Role| v1::Bench {
        role: role.into(),
        target_ip: "42.0.0.2".into(),
        target_mac: "52:54:00:12:34:02".into(),
    };
    for (id, last, role) in [
        ("ping", 1, v1::bench::Role::IcmpSender),
        ("echo", 2, v1::bench::Role::IcmpReceiver),
    ] {
        put(client, id, last, |nic| {
            nic.kind = v1::NicKind::Bench.into();
            nic.bench = Some(bench(role));
        })
        .await;
    }
    let before = workers(client).await;
    let counted = async {
        loop {
            let answer = client.list_nic_stats(v1::ListNicStatsRequest {}).await;
            let answer = answer.unwrap().into_inner();
            if answer.nics.iter().all(|nic| nic.ingress_frames > 1000) {
                return answer;
            }
        }
    };
    let stats = within(counted).await;
    let ids: Vec<_> = stats
        .nics
        .iter()
        .map(|nic| (nic.id.as_str(), nic.flows, nic.ingress_drops))
        .collect();
    assert_eq!(ids, [("echo", 0, 0), ("ping", 0, 0)]);
    let later = within(client.list_nic_stats(v1::ListNicStatsRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert!(later.time_ns > stats.time_ns);

    let all = |workers: &[v1::WorkerStatus], of: fn(&v1::WorkerStatus) -> u64| {
        workers.iter().map(of).sum::<u64>()
    };
    // A worker publishes its own counters and those of its NICs at different moments.
    let told = async {
        loop {
            let now = workers(client).await;
            if all(&now, |worker| worker.frames) > all(&before, |worker| worker.frames) {
                return now;
            }
        }
    };
    let after = within(told).await;
    assert_eq!(after.len(), before.len());
    let sum = |of: fn(&v1::WorkerStatus) -> u64| all(&after, of) - all(&before, of);
    assert!(sum(|worker| worker.busy_turns) > 0 && sum(|worker| worker.busy_ns) > 0);
    assert!(sum(|worker| worker.batches.iter().map(|size| size.batches).sum()) > 0);
    for (now, old) in after.iter().zip(&before) {
        let passed = now.time_ns - old.time_ns;
        assert!(now.busy_ns - old.busy_ns <= passed, "{now:?}\n{old:?}");
        assert_eq!(
            now.batches
                .iter()
                .map(|size| size.up_to)
                .collect::<Vec<_>>(),
            [1, 2, 4, 8, 16, 32, 64]
        );
    }
    let mut owned: Vec<_> = after.iter().flat_map(|worker| &worker.queues).collect();
    owned.sort_by(|a, b| a.nic.cmp(&b.nic));
    let owned: Vec<_> = owned
        .iter()
        .map(|queue| (queue.nic.as_str(), queue.pair))
        .collect();
    assert_eq!(owned, [("echo", 0), ("ping", 0)]);
    let pair = queues(client, "ping").await.pairs.remove(0);
    assert_eq!(
        (pair.backend.as_str(), pair.up, pair.transmitq),
        ("bench", true, None)
    );
    let status = within(client.get_status(v1::GetStatusRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert!(
        status
            .workers
            .iter()
            .all(|worker| worker.queues.is_empty() && worker.time_ns > 0)
    );
}

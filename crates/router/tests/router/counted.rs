//! What the counters say is what somebody counts who holds the wires.

use crate::lab::{SMALL, story};
use crate::ours::Ours;
use crate::packets::to;
use butterfly_router::layout::Counter;

/// Packets of an IP version, and their bytes, as they are on the wire.
fn observed(frames: &[Vec<u8>], version: u8) -> (u64, u64) {
    let of_version = frames.iter().filter(|frame| frame[14] >> 4 == version);
    of_version.fold((0, 0), |(packets, bytes), frame| {
        (packets + 1, bytes + frame.len() as u64 - 14)
    })
}

#[test]
fn counters_agree_with_an_outside_observer() {
    story("", async |namespace, mut lab| {
        let ours = Ours::start(&SMALL).await;
        let by_kernel = || -> u64 {
            let text = namespace
                .ok("nstat -asz IpForwDatagrams Ip6OutForwDatagrams")
                .expect("nstat");
            let counts = text
                .lines()
                .filter_map(|line| line.split_whitespace().nth(1));
            counts.filter_map(|count| count.parse::<u64>().ok()).sum()
        };
        let before = by_kernel();
        let (mut out, mut options) = (Vec::new(), 0);
        for n in 0..600usize {
            let dst = ["203.0.113.7", "2001:db8:f::7", "198.51.100.1"][n % 3];
            let packet = to(dst).udp(1000, 2000).payload(&vec![n as u8; n * 2]);
            // Now and then one for the kernel to forward.
            let packet = if n % 30 == 0 {
                options += 1;
                packet.ip_options(&[1, 1, 1, 0])
            } else {
                packet
            };
            lab.east.send(&packet.build());
            out.extend(lab.west.receive());
        }
        assert_eq!((out.len(), by_kernel() - before), (600, options));
        let report = ours.report();
        let (east, west) = (
            &report.interfaces[0].counters,
            &report.interfaces[1].counters,
        );
        let (with_options, fast): (Vec<_>, Vec<_>) = out
            .into_iter()
            .partition(|frame| frame[14] >> 4 == 4 && frame[14] & 0xf > 5);
        assert_eq!(with_options.len() as u64, options);
        for (family, version) in [(0, 4), (1, 6)] {
            let (packets, bytes) = observed(&fast, version);
            let counted = |counter: Counter| east[family][counter as usize];
            assert_eq!(
                (
                    counted(Counter::Forwarded),
                    counted(Counter::ForwardedBytes)
                ),
                (packets, bytes)
            );
            assert_eq!(west[family][Counter::Sent as usize], packets);
        }
        assert_eq!(east[0][Counter::Options as usize], options);
    });
}

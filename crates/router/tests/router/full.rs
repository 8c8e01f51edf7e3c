//! A table without room: the kernel looks up, and nothing goes astray; with room again, the table
//! does.

use crate::lab::{SMALL, host, story};
use crate::ours::Ours;
use crate::packets::to;
use crate::scale::batch;
use butterfly_router::layout::Counter;

/// More /16 networks with longer prefixes than the small table has lines.
const ROUTES: u32 = 20_000;

fn route(verb: &str, n: u32) -> String {
    let [a, b, c, _] = ((16 << 24) + (n << 16)).to_be_bytes();
    format!("route {verb} {a}.{b}.{c}.0/25 via 10.2.0.{}", 2 + n % 4)
}

#[test]
fn a_full_table_leaves_its_lookups_to_the_kernel_until_there_is_room() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        batch(namespace, (0..ROUTES).map(|n| route("add", n)));
        let note = "IPv4 routes are looked up by the kernel: the table is full";
        ours.until("note", |ours| ours.notes() == [note]).await;
        let mut all_go_right = |ours: &Ours, numbers: std::ops::Range<u32>| {
            for n in numbers.step_by(501) {
                let [a, b, c, _] = ((16 << 24) + (n << 16)).to_be_bytes();
                let before = ours.count(Counter::Forwarded);
                lab.east
                    .send(&to(&format!("{a}.{b}.{c}.1")).udp(1, 2).build());
                let out = lab.west.receive();
                assert_eq!(out.len(), 1, "network {n}");
                assert_eq!(out[0][..6], host(2, 2 + (n % 4) as u8).0, "network {n}");
                assert_eq!(ours.count(Counter::Forwarded), before + 1, "the fast way");
            }
        };
        all_go_right(&ours, 0..ROUTES);
        batch(namespace, (0..ROUTES / 2).map(|n| route("del", n)));
        ours.until("room", |ours| ours.notes().is_empty()).await;
        all_go_right(&ours, ROUTES / 2..ROUTES);
    });
}

//! Sessions on a wire, in virtual time.

use super::*;
use wire::parse;

const OURS: Mac = Mac([2, 0xbf, 192, 0, 2, 1]);
const THEIRS: Mac = Mac([4, 0, 0, 0, 0, 2]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Both families, and one neighbour of each.
const FAMILIES: [(&str, &str); 2] = [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")];

fn table(ours: &str) -> Neighbours {
    Neighbours::new(OURS, &[ip(ours)])
}

/// Who has `target`? Asked by `mac`, who has `sender`.
fn question(mac: Mac, sender: &str, target: &str) -> Vec<u8> {
    match (ip(sender), ip(target)) {
        (IpAddr::V4(sender), IpAddr::V4(target)) => build::arp_request(mac, sender, target),
        (IpAddr::V6(sender), IpAddr::V6(target)) => {
            build::neighbour_solicitation(mac, sender, target)
        }
        mixed => panic!("{mixed:?}"),
    }
}

/// `mac` has `sender`: told to `to`, who has `target`.
fn answer(mac: Mac, sender: &str, to: Mac, target: &str) -> Vec<u8> {
    match (ip(sender), ip(target)) {
        (IpAddr::V4(sender), IpAddr::V4(target)) => build::arp_reply(mac, sender, to, target),
        (IpAddr::V6(sender), IpAddr::V6(target)) => {
            build::neighbour_advertisement(mac, sender, to, target)
        }
        mixed => panic!("{mixed:?}"),
    }
}

fn receive(table: &mut Neighbours, frame: &[u8], now: Instant) -> (Option<Vec<u8>>, bool) {
    let packet = parse::parse(frame, frame.len()).unwrap();
    table.receive(frame, &packet, now)
}

#[test]
fn who_asks_for_us_is_answered_and_nobody_else() {
    for (ours, theirs) in FAMILIES {
        let (table, now) = (&mut table(ours), Instant::now());
        let heard = receive(table, &question(THEIRS, theirs, ours), now);
        assert_eq!(heard, (Some(answer(OURS, ours, THEIRS, theirs)), false));
        let other = if ip(ours).is_ipv4() {
            "192.0.2.9"
        } else {
            "2001:db8::9"
        };
        assert_eq!(
            receive(table, &question(THEIRS, theirs, other), now),
            (None, false)
        );
        assert!(table.known.is_empty(), "who was not looked for is not kept");
    }
    // Somebody is about to take our address.
    let probe = question(THEIRS, "::", "2001:db8::1");
    let (said, _) = receive(&mut table("2001:db8::1"), &probe, Instant::now());
    let to_all = build::neighbour_advertisement(
        OURS,
        "2001:db8::1".parse().unwrap(),
        nd::ALL_NODES_MAC,
        nd::ALL_NODES,
    );
    assert_eq!(said, Some(to_all));
}

#[test]
fn a_neighbour_is_asked_for_found_asked_for_again_and_forgotten() {
    for (ours, theirs) in FAMILIES {
        let (table, start) = (&mut table(ours), Instant::now());
        let at = |secs: f32| start + Duration::from_secs_f32(secs);
        let asked = |(mac, question): (Option<Mac>, Option<Vec<u8>>)| (mac, question.is_some());
        let (mac, frame) = table.find(ip(theirs), at(0.0));
        let expected = question(OURS, ours, theirs);
        assert_eq!((mac, frame), (None, Some(expected)));
        assert_eq!(
            asked(table.find(ip(theirs), at(0.5))),
            (None, false),
            "not too often"
        );
        assert_eq!(asked(table.find(ip(theirs), at(1.5))), (None, true));

        let found = answer(THEIRS, theirs, OURS, ours);
        assert_eq!(receive(table, &found, at(2.0)), (None, true));
        assert_eq!(
            receive(table, &found, at(2.0)),
            (None, false),
            "it was known"
        );
        assert_eq!(
            asked(table.find(ip(theirs), at(10.0))),
            (Some(THEIRS), false)
        );
        assert_eq!(
            asked(table.find(ip(theirs), at(30.0))),
            (Some(THEIRS), true)
        );
        // It has another MAC now, and says so by asking for us.
        let elsewhere = Mac([4, 0, 0, 0, 0, 3]);
        let moved = answer(elsewhere, theirs, OURS, ours);
        assert_eq!(receive(table, &moved, at(31.0)), (None, true));
        assert_eq!(
            asked(table.find(ip(theirs), at(32.0))),
            (Some(elsewhere), false)
        );
        assert_eq!(
            asked(table.find(ip(theirs), at(95.0))),
            (None, true),
            "gone"
        );
        table.forget();
        assert!(table.known.is_empty());
    }
}

#[test]
fn what_no_neighbour_says_changes_nothing() {
    let now = Instant::now();
    let mut table = table("192.0.2.1");
    assert_eq!(
        table.find(ip("2001:db8::2"), now),
        (None, None),
        "of no family of ours"
    );
    table.find(ip("192.0.2.2"), now);
    let group = answer(Mac([1, 0, 0x5e, 0, 0, 1]), "192.0.2.2", OURS, "192.0.2.1");
    assert_eq!(
        receive(&mut table, &group, now),
        (None, false),
        "nobody is a group"
    );
    assert_eq!(table.find(ip("192.0.2.2"), now).0, None);
    for n in 0..MOST as u32 {
        table.find(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), now);
    }
    assert_eq!(table.known.len(), MOST);
    let later = now + FORGET;
    assert!(
        table.find(ip("192.0.2.7"), later).1.is_some(),
        "those that nobody wanted made room"
    );
}

#[test]
fn the_wire_is_told_that_we_come() {
    let both = Neighbours::new(OURS, &[ip("192.0.2.1"), ip("2001:db8::1")]);
    let ours: std::net::Ipv4Addr = "192.0.2.1".parse().unwrap();
    let ours6: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    assert_eq!(
        both.announcements(),
        [
            build::arp_request(OURS, ours, ours),
            build::neighbour_advertisement(OURS, ours6, nd::ALL_NODES_MAC, nd::ALL_NODES),
        ]
    );
}

#[test]
fn only_tunnelled_packets_are_ours() {
    let frame = |port| {
        let frame = build::frame(THEIRS, OURS).ip([192, 0, 2, 2], [192, 0, 2, 1]);
        frame.udp(9, port).payload(&[0; 60]).build()
    };
    let is_ours = |bytes: &[u8]| is_tunnel(&parse::parse(bytes, bytes.len()).unwrap(), 4789);
    assert!(is_ours(&frame(4789)));
    assert!(!is_ours(&frame(53)) && !is_ours(&question(THEIRS, "192.0.2.2", "192.0.2.1")));
}

#[test]
fn what_another_process_knew_is_used_and_asked_for() {
    for (ours, theirs) in FAMILIES {
        let (before, start) = (&mut table(ours), Instant::now());
        let at = |secs: u64| start + Duration::from_secs(secs);
        before.find(ip(theirs), start);
        before.find(ip("192.0.2.7"), start);
        assert_eq!(before.all(start), [], "who has not answered is not known");
        receive(before, &answer(THEIRS, theirs, OURS, ours), at(100));
        assert_eq!(before.all(at(100)), [(ip(theirs), THEIRS)]);
        assert_eq!(before.all(at(160)), [], "nor who is silent for long");
        let next = &mut table(ours);
        let group = (ip("192.0.2.8"), Mac([1, 0, 0x5e, 0, 0, 1]));
        let known = before.all(at(100)).into_iter().chain([group]);
        next.take_up(known, at(101));
        // As long as it is not the daemon it says nothing.
        assert_eq!(next.known(ip(theirs), at(101)), Some(THEIRS));
        assert_eq!(next.known(group.0, at(101)), None);
        assert_eq!(next.known(ip("192.0.2.9"), at(101)), None);
        let asks = Some(question(OURS, ours, theirs));
        assert_eq!(next.find(ip(theirs), at(101)), (Some(THEIRS), asks));
        // It is gone unless it answers.
        assert_eq!(next.find(ip(theirs), at(160)).0, None);
    }
}

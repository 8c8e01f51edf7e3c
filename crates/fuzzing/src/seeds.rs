//! Good inputs for a fuzzer to begin with, made by the code that makes good frames and messages.

mod strangers;

use api::text_format;
use api::v1;
use prost::Message;
use wire::build::{self, Builder};
use wire::offload::Offload;
use wire::parse::TcpFlags;
use wire::{Mac, virtio_net};

/// An input and the target that it is for.
pub type Seed = (&'static str, Vec<u8>);

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// All seeds.
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (frame, offload) in frames() {
        seeds.push(("frames", [&header(&offload)[..], &[0, 0], &frame].concat()));
        seeds.push((
            "round",
            [&[0, 0][..], &header(&offload), &piece(&frame)].concat(),
        ));
        // Split, packed, and both in order.
        for kind in [0, 8, 16, 24] {
            // The op, then what a ring is given: a good chain that is published, and a turn.
            let mut ring = vec![0x41, 6 | kind, 0xf0, 0xff, 11];
            ring.extend(
                [
                    header(&offload).to_vec(),
                    vec![2, 12, 60],
                    piece(&frame),
                    vec![5, 8, 0, 0, 0],
                ]
                .concat(),
            );
            seeds.push(("rings", ring));
            let mut ring = vec![1, 4 | kind, 0, 0, 10];
            ring.extend([header(&offload).to_vec(), piece(&frame), vec![12, 8, 10]].concat());
            ring.extend(
                [
                    header(&offload).to_vec(),
                    piece(&frame),
                    vec![14, 0xff, 1, 1, 3, 8],
                ]
                .concat(),
            );
            seeds.push(("rings", ring));
        }
    }
    // Built by the target itself: TCP, UDP, SCTP, ICMP of both families, fragments, time, another
    // snapshot.
    for choice in (0..=0xff).step_by(8) {
        let built = [
            0,
            3,
            choice | 1,
            50,
            50,
            2,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            1,
            100,
            0,
        ];
        let more = [
            11,
            choice | 5,
            120,
            120,
            0,
            1,
            3,
            13,
            31,
            14,
            1,
            3,
            choice,
            9,
            9,
        ];
        seeds.push(("round", [&built[..], &more].concat()));
    }
    // From the wire and to it: kind, inner frame, what is bent, outer headers.
    for choice in (0..=0xff).step_by(3) {
        let arrives = [2, choice, 1, 80, 0, 2, 100, 0, 0, choice ^ 0x55, 7, 0, 0];
        let leaves = [5, choice & !1 | 2, 0, 0, 80, 0x12, 100, 0, 0];
        seeds.push(("tunnel", [&arrives[..], &leaves, &arrives].concat()));
    }
    seeds.extend(whole().into_iter().map(|seed| ("whole", seed)));
    seeds.extend(kernel().into_iter().map(|seed| ("netlink", seed)));
    seeds.extend(sessions().into_iter().map(|seed| ("session", seed)));
    for text in TEXTS {
        seeds.push(("text", text.as_bytes().to_vec()));
        let messages = text_format::parse(text).expect("a seed that parses");
        for kind in 0..4 {
            let one = if kind < 2 {
                messages.encode_to_vec()
            } else {
                text.as_bytes().to_vec()
            };
            seeds.push(("v0", [&[kind][..], &piece(&one), &piece(&one)].concat()));
        }
    }
    let every: Vec<u8> = TEXTS
        .iter()
        .flat_map(|text| piece(text.as_bytes()))
        .collect();
    seeds.push(("v0", [&[2][..], &every].concat()));
    seeds.extend(answers().into_iter().map(|seed| ("dns", seed)));
    let (small, large) = configs();
    seeds.extend(strangers::all([&small, &large]));
    for config in [&small, &large] {
        // As the target has them: a document, one that is applied to the balancer, a NIC.
        let of_balancer = v1::ApplyBalancerRequest {
            config: config.balancer.clone(),
            ..Default::default()
        };
        let nic = v1::PutNicRequest {
            nic: config.nics.first().cloned(),
            ..Default::default()
        };
        for (which, bytes) in [
            (0, config.encode_to_vec()),
            (1, nic.encode_to_vec()),
            (7, of_balancer.encode_to_vec()),
        ] {
            seeds.push(("decoded", [&[which, 7][..], &bytes].concat()));
        }
    }
    for order in [[&small, &large], [&large, &small], [&large, &large]] {
        seeds.push((
            "v1",
            order
                .iter()
                .flat_map(|config| piece(&config.encode_to_vec()))
                .collect(),
        ));
    }
    seeds
}

/// What a name server says to the query of the target: yes, no such name, and that it refuses.
fn answers() -> Vec<Vec<u8>> {
    let answer = |code: u8| {
        let mut answer = crate::dns::QUERY[..2].to_vec();
        // A response, with recursion; one question and one answer.
        answer.extend([0x81, 0x80 | code, 0, 1, 0, 1, 0, 0, 0, 0]);
        // The question, and the name's address by a pointer to it.
        answer.extend(&crate::dns::QUERY[12..]);
        answer.extend(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x0e\x10\x00\x04\xc0\x00\x02\x01");
        answer
    };
    [0, 3, 5].map(answer).to_vec()
}

/// NICs, groups, hosts and bindings, and frames between them: for each kind of frame and each kind
/// of rule, over both APIs and in both families.
fn whole() -> Vec<Vec<u8>> {
    // A host of the first network, and machines behind it.
    let hosts = [10, 0, 1, 12, 0, 5, 0, 2, 12, 0, 6, 0, 1, 14, 1, 5];
    let mut seeds = Vec::new();
    for choice in 0..64 {
        let (rule, v0, v6) = (choice & 15, (choice & 0x10) << 1, (choice & 0x20) >> 2);
        // Two NICs in both networks' first group, one in another group, one in none.
        let nics = [[v0, 0, 0, 1], [v0, 1, 0, 1], [v0, 2, 0, 2], [v0, 3, 1, 4]];
        let groups = [v0 | 5, 0, 2, rule, 0, rule ^ 1, 2, v0 | 5, 1, 1, 0, 0];
        let mut seed = [&nics.concat()[..], &groups, &hosts].concat();
        for frame in [0x51, 0x52, 0x53, 0xd1, 0xd3, 0x42, 0x50] {
            for to in [1, 2, 5] {
                seed.extend([22, 0, 0, v6 | to, frame, 0]);
            }
            // Its answer, and one from the wire.
            seed.extend([22, 1, 0, v6, frame, 0]);
            seed.extend([17, 0, 0, 5, v6, frame, 0]);
        }
        // A guest that lies, before and after it is healed; then a worker more, a rule for a pair
        // of machines and one less, a member, other addresses and groups, and less of all.
        let frame = [22, 0, 0, v6 | 1, 0x52, 0];
        let after = [
            &[16, 0, rule][..],
            &[15],
            &[31, 0, 1],
            &[v0 | 6, 0, 0, rule, 0x43 | v6 << 2],
            &[v0 | 6, 0, 1, rule, 0],
            &[v0 | 8, 0, v6 | 5],
            &[v0 | 3, 1, 0x1d, 3],
            &[v0 | 9, 0, v6 | 5],
            &[v0 | 7, 0],
            &[v0 | 4, 1],
        ];
        for step in after {
            seed.extend([step, &frame].concat());
        }
        seeds.push(seed);
    }
    seeds
}

/// What a kernel tells when an interface comes, gets an address, a route by two gateways, a rule
/// and a neighbour, each as a body of target `netlink`: the fixed part (rtnetlink(7)) and
/// attributes.
fn kernel() -> Vec<Vec<u8>> {
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let two = 2u32.to_ne_bytes();
    let hop = |last: u8| {
        [
            &[16u8, 0, 0, 0][..],
            &two,
            &attribute(5, &[192, 0, 2, last]),
        ]
        .concat()
    };
    let link = [
        &[0, 0, 1, 0][..],
        &two,
        &0x1_0043u32.to_ne_bytes(),
        &[0; 4],
        &attribute(3, b"eth0\0"),
        &attribute(1, &A.0),
        &attribute(4, &1500u32.to_ne_bytes()),
    ];
    let address = [&[2, 24, 0, 0][..], &two, &attribute(2, &[192, 0, 2, 1])];
    let hops = [hop(3), hop(4)].concat();
    let route = [
        &[2, 24, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0][..],
        &attribute(1, &[198, 51, 100, 0]),
        &attribute(9, &hops),
    ];
    let neighbour = [
        &[2, 0, 0, 0][..],
        &two,
        &[2, 0, 0, 1],
        &attribute(1, &[192, 0, 2, 3]),
        &attribute(2, &B.0),
    ];
    let rule = [
        &[2, 0, 24, 0, 100, 0, 0, 1, 0, 0, 0, 0][..],
        &attribute(2, &[10, 0, 0, 0]),
    ];
    let object = [
        &[2, 0, 0, 0, 0, 0, 0, 0][..],
        &attribute(1, &two),
        &attribute(5, &two),
    ];
    let settings = [
        &[2, 0, 0, 0][..],
        &attribute(1, &two),
        &attribute(2, &[1, 0, 0, 0]),
    ];
    let bodies = [
        link.concat(),
        address.concat(),
        route.concat(),
        neighbour.concat(),
        rule.concat(),
        object.concat(),
        settings.concat(),
    ];
    let told =
        |(choice, body): (usize, &Vec<u8>)| [&[choice as u8, body.len() as u8][..], body].concat();
    let mut seeds: Vec<Vec<u8>> = bodies.iter().enumerate().map(told).collect();
    let all = seeds.concat();
    // Then all of it goes: bit 3.
    let gone = bodies
        .iter()
        .enumerate()
        .map(|(choice, body)| told((choice | 8, body)));
    seeds.push([&all[..], &gone.collect::<Vec<_>>().concat()].concat());
    seeds.push(all);
    seeds
}

fn header(offload: &Offload) -> [u8; 12] {
    virtio_net::encode(offload, 0, 0)
}

fn piece(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat()
}

fn frames() -> Vec<(Vec<u8>, Offload)> {
    let v4 = || build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6_addresses = || {
        ["2001:db8::1", "2001:db8::2"].map(|text| text.parse::<std::net::Ipv6Addr>().expect("one"))
    };
    let v6 = || {
        let [a, b] = v6_addresses();
        build::frame(A, B).ip(a, b)
    };
    let mut out: Vec<(Vec<u8>, Offload)> = Vec::new();
    let mut add = |builder: Builder| out.push(builder.build_with_offload());
    for ip in [v4(), v6()] {
        add(ip
            .clone()
            .tcp(1000, 80, TcpFlags::SYN)
            .tcp_options(&[2, 4, 5, 180]));
        add(ip.clone().udp(1000, 53).payload(b"hello"));
        add(ip.clone().sctp(1000, 80, 7, 1).payload(&[0; 20]));
        add(ip
            .clone()
            .udp(1000, 53)
            .payload(&[7; 300])
            .partial_checksum());
        add(ip
            .clone()
            .tcp(1000, 80, TcpFlags::ACK)
            .payload(&[7; 3000])
            .gso(1000));
        add(ip.clone().udp(1000, 53).payload(&[7; 3000]).gso(1000));
        add(ip.clone().protocol(47).payload(&[0; 40]));
    }
    add(v4().echo_request(1, 2).payload(b"ping"));
    add(v4().ip_options(&[1, 1, 1, 0]).udp(1, 2));
    add(v6().extension(0, &[0; 6]).extension(60, &[0; 14]).udp(1, 2));
    add(v4().tag(5).udp(1, 2));
    let quoted = v4().tcp(80, 1000, TcpFlags::ACK).build()[14..].to_vec();
    add(v4().icmp(3, 4, 1400).payload(&quoted));
    let whole = v4().udp(1000, 53).payload(&[7; 600]).build();
    let whole6 = v6().udp(1000, 53).payload(&[7; 600]).build();
    let [a, b] = v6_addresses();
    let plain = [
        build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        build::arp_reply(A, [10, 0, 0, 1].into(), B, [10, 0, 0, 2].into()),
        build::neighbour_solicitation(A, a, b),
        build::neighbour_advertisement(A, a, B, b),
        build::router_advertisement(A),
        build::dhcp_request(A, 1, 7),
        build::dhcpv6_request(A, 1, 7),
    ];
    let pieces = build::fragments(&whole, 400, 9)
        .into_iter()
        .chain(build::fragments(&whole6, 400, 9));
    out.extend(
        plain
            .into_iter()
            .chain(pieces)
            .map(|frame| (frame, Offload::default())),
    );
    out
}

/// Steps as `session` reads them; the second byte of each is the ring.
fn sessions() -> Vec<Vec<u8>> {
    let set_up = [&[23, 0][..], &[0xff; 8], &[6]].concat();
    let other = [&[0x80 | 23, 0][..], &[0xff; 8], &[5]].concat();
    // A chain of 100 bytes on ring 1, then a turn.
    let chain = [24, 1, 0, 0, 0x80, 100, 0, 0, 0, 0, 0x1e];
    let by_hand = [
        &[15, 0, 0, 15, 0, 1, 3, 0, 0xff, 2, 0][..],
        &[0xff; 8],
        &[
            4, 0, 1, 0, 5, 0, 4, 5, 1, 4, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0x10, 0, 8, 8, 0, 2, 9, 0, 2,
            10, 0, 1,
        ],
        &[
            11, 0, 1, 11, 1, 1, 0x1e, 12, 1, 12, 0, 13, 0, 220, 5, 14, 0, 2, 0, 0, 0, 0, 1, 0, 0,
        ],
    ];
    // All pairs; a pair is switched off and on, a ring stopped, memory replaced, while frames pass.
    let wide = [&[23, 0][..], &[0xff; 8], &[0x80 | 6]].concat();
    let pairs = [
        &wide[..],
        &chain,
        &[
            11, 2, 0, 11, 3, 0, 0x1e, 11, 3, 1, 24, 3, 0, 0, 0x80, 100, 0, 0, 0, 0,
        ],
        &[0x1e, 12, 5, 4, 0, 1, 0, 0x1e, 13, 0, 220, 5, 0x1e, 22, 0],
    ];
    // A channel to the VMM: the link goes and comes, the VMM reads and acknowledges, says nonsense,
    // hangs up; the guest is announced.
    let channel = [
        &set_up[..],
        &[
            25, 0, 0, 26, 0, 26, 0, 26, 0, 27, 0, 7, 27, 0, 7, 28, 0, 6, 0, 2, 25, 0, 0,
        ],
        &[
            26, 0, 27, 0, 1, 3, 1, 2, 3, 25, 0, 0, 26, 0, 27, 0, 0x87, 26, 0,
        ],
        &[14, 0, 2, 0, 0, 0, 0, 1, 0, 0, 25, 0, 0xe2, 0x1e],
    ];
    vec![
        pairs.concat(),
        channel.concat(),
        [&set_up[..], &other, &chain, &chain].concat(),
        // The memory goes while the rings run, then the VMM.
        [&set_up[..], &chain, &[21, 0, 0], &chain, &[22, 0]].concat(),
        by_hand.concat(),
        // A message by its bytes, in two steps.
        [
            &[0, 0, 1, 9, 0, 0, 0][..],
            &[1, 0, 0, 8, 0, 2, 0, 0, 0, 9, 0, 0, 0],
            &[1, 0, 0, 4, 0, 8, 0, 0, 0],
        ]
        .concat(),
    ]
}

const TEXTS: &[&str] = &[
    r#"messages { revision: 0 message_0 { message_id: "7" request { nic_add { id: "vm1"
        mac: "52:54:00:00:00:01" vni: 42 ip: "10.0.0.1" ip: "2001:db8::1" security_group: "web"
        ip_anti_spoof: true type: VHOST_USER_SERVER packet_trace: false } } } }"#,
    r#"messages { revision: 0 message_0 { request { nic_add { id: "vm2" mac: "52:54:00:00:00:02"
        vni: 42 type: BENCH btype: "ICMP_SND_LIKE" dip: "10.0.0.1" dmac: "52:54:00:00:00:01"
        sniff_target_nic_id: "vm1" bypass_filtering: true } } } }"#,
    r#"messages { revision: 0 message_0 { request { nic_update { id: "vm1" ip: ""
        security_group: "db" ip_anti_spoof: false packet_trace: true packet_trace_path: "/tmp/a" }
        } } }"#,
    r#"messages { revision: 0 message_0 { request { sg_add { id: "web" member: "10.0.0.1" rule {
        direction: INBOUND protocol: 6 port_start: 80 port_end: 90 cidr { address: "10.0.0.0"
        mask_size: 8 } } rule { direction: OUTBOUND protocol: -1 security_group: "db" } } } } }"#,
    r#"messages { revision: 0 message_0 { request { sg_rule_add { sg_id: "web" rule {
        direction: INBOUND protocol: 1 cidr { address: "::" mask_size: 0 } } } } } }
      messages { revision: 0 message_0 { request { sg_rule_del { sg_id: "web" rule {
        direction: INBOUND protocol: 1 cidr { address: "::" mask_size: 0 } } } } } }"#,
    r#"messages { revision: 0 message_0 { request { sg_member_add { sg_id: "web"
        member: "10.0.0.9" } } } }
      messages { revision: 0 message_0 { request { sg_member_del { sg_id: "web" member: "10.0.0.9"
        } } } }"#,
    r#"messages { revision: 0 message_0 { request { nic_list: true } } }
      messages { revision: 0 message_0 { request { sg_list: true } } }
      messages { revision: 0 message_0 { request { app_status: true } } }"#,
    r#"messages { revision: 0 message_0 { request { nic_details: "" } } }
      messages { revision: 0 message_0 { request { sg_details: "" } } }
      messages { revision: 0 message_0 { request { nic_stats: "vm1" } } }
      messages { revision: 0 message_0 { request { nic_export: "vm1" } } }"#,
    r#"messages { revision: 0 message_0 { request { sg_rule_list: "web" } } }
      messages { revision: 0 message_0 { request { sg_member_list: "web" } } }
      messages { revision: 0 message_0 { request { app_config { log_level: "info" } } } }
      messages { revision: 0 message_0 { request { app_quit: true } } }"#,
    r#"messages { revision: 0 message_0 { request { nic_del: "vm2" } } }
      messages { revision: 0 message_0 { request { sg_del: "web" } } }
      messages { revision: 1 }"#,
];

fn configs() -> (v1::Config, v1::Config) {
    let nic = |n: u8, kind: v1::NicKind| v1::Nic {
        id: format!("vm{n}"),
        mac: format!("52:54:00:00:00:{n:02x}"),
        vni: 7,
        kind: kind.into(),
        addresses: vec![format!("10.0.0.{n}"), format!("2001:db8::{n}")],
        security_groups: vec!["web".into(), "nobody".into()],
        allowed_address_pairs: vec![v1::AddressPair {
            net: "10.1.0.0/16".into(),
            mac: "52:54:00:00:01:01".into(),
        }],
        timeouts: Some(v1::Timeouts {
            tcp_established_secs: 600,
            udp_secs: 30,
            udp_stream_secs: 60,
        }),
        mtu: 9000,
        ..Default::default()
    };
    let rule = |protocol, matching, peer| v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol,
        r#match: matching,
        peer,
    };
    let ports = v1::rule::Match::Ports(v1::PortRange { start: 80, end: 90 });
    let icmp = v1::rule::Match::Icmp(v1::IcmpMatch {
        r#type: Some(8),
        code: None,
    });
    let web = v1::Group {
        id: "web".into(),
        members: vec!["10.0.0.77".into()],
        rules: vec![
            rule(
                Some(6),
                Some(ports),
                Some(v1::rule::Peer::Cidr("10.0.0.0/8".into())),
            ),
            rule(
                Some(1),
                Some(icmp),
                Some(v1::rule::Peer::Group("web".into())),
            ),
            rule(None, None, None),
        ],
        removal: v1::Removal::Drain.into(),
        allow_midstream: true,
        silent_midstream: true,
    };
    let bench = v1::Nic {
        bench: Some(v1::Bench {
            role: v1::bench::Role::IcmpSender.into(),
            target_ip: "10.0.0.1".into(),
            target_mac: "52:54:00:00:00:01".into(),
        }),
        ..nic(3, v1::NicKind::Bench)
    };
    let sniffer = v1::Nic {
        sniff_target: "vm1".into(),
        ..nic(4, v1::NicKind::Tap)
    };
    let config = |nics, groups| v1::Config {
        nics,
        groups,
        endpoints: vec![v1::Endpoint {
            address: "192.0.2.2".into(),
            vnis: vec![42, 43],
            ..Default::default()
        }],
        networks: vec![v1::Network {
            vni: 42,
            learning: Some(true),
            flood: v1::Flood::Multicast.into(),
            multicast_group: "239.1.1.1".into(),
            from_anybody: Some(true),
            dhcp_servers: vec!["192.0.2.2".into()],
            routers: vec!["192.0.2.3".into()],
        }],
        bindings: vec![v1::Binding {
            vni: 42,
            mac: "52:54:00:00:00:99".into(),
            addresses: vec!["10.0.0.99".into(), "fd00::99".into()],
            endpoint: "192.0.2.3".into(),
        }],
        balancer: None,
        router: None,
        uplinks: Some(v1::UplinkConfig {
            interfaces: vec!["eth1".into()],
        }),
    };
    let small = config(vec![nic(1, v1::NicKind::VhostUser)], vec![]);
    let large = config(
        vec![
            nic(1, v1::NicKind::VhostUser),
            nic(2, v1::NicKind::Tap),
            v1::Nic {
                vm_tap: Some(v1::VmTap {
                    uid: Some(64055),
                    gid: None,
                    multi_queue: true,
                }),
                ..nic(5, v1::NicKind::VmTap)
            },
            bench,
            sniffer,
        ],
        vec![web],
    );
    (small, large)
}

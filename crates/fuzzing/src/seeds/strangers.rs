//! What servers, browsers, administrators and container runtimes say, and what one daemon leaves to
//! the next.

use api::v1::Config;
use daemon::decoders::{config, pack};

use wire::build;
use wire::parse::TcpFlags;

use super::{A, B, Seed, piece};
use crate::cni::VARIABLES;
use crate::filter::CODES;
use crate::page::TOKEN;
use crate::world;
use crate::zmtp::greeting;

pub fn all(configs: [&Config; 2]) -> Vec<Seed> {
    let mut seeds = Vec::new();
    for answer in HTTP {
        for kind in 0..4 {
            seeds.push(("http", [&[kind], answer.as_bytes()].concat()));
        }
    }
    let requests = PAGE.map(|request| request.replace("TOKEN", TOKEN));
    seeds.push(("page", requests.concat().into_bytes()));
    for request in requests {
        seeds.push(("page", request.into_bytes()));
    }
    for text in ACCESS {
        seeds.push(("access", text.as_bytes().to_vec()));
    }
    seeds.extend(clients().into_iter().map(|said| ("zmtp", said)));
    seeds.extend(filters().into_iter().map(|seed| ("filter", seed)));
    for (command, arguments, configuration) in CNI {
        let values = [
            command,
            "c1",
            "/run/netns/c1",
            "eth0",
            arguments,
            "/opt/cni/bin",
        ];
        assert_eq!(values.len(), VARIABLES.len());
        let mut seed: Vec<u8> = values.iter().flat_map(|it| piece(it.as_bytes())).collect();
        seed.extend(configuration.as_bytes());
        seeds.push(("cni", seed));
    }
    // Hold, with descriptors; list; what a client does not say; release; list.
    let say = |files: u8, verb: u8, name: &str, note: &[u8]| {
        let head = [verb, name.len() as u8];
        [
            &[files][..],
            &piece(&[&head[..], name.as_bytes(), note].concat()),
        ]
        .concat()
    };
    let said = [
        say(1, 1, "tap vm1", b"a note"),
        say(3, 1, "session vm2", &[7; 300]),
        say(0, 3, "", b""),
        say(0, 1, "nothing", b""),
        say(1, 4, "", b""),
        say(2, 1, "tap vm1", b"another"),
        say(0, 2, "session vm2", b""),
        say(0, 3, "", b""),
    ];
    seeds.push(("keeper", said.concat()));
    seeds.extend(said.map(|one| ("keeper", one)));
    for declared in configs {
        let control = world::controller();
        let declared = config(declared.clone(), control.settings()).expect("a seed");
        seeds.push(("stored", pack(&declared)));
    }
    seeds
}

/// Of the v0 API: requests of a REQ and a DEALER socket, a ping, what is cut short, too large, or
/// breaks the protocol.
fn clients() -> Vec<Vec<u8>> {
    let says: [&[u8]; 8] = [
        b"\x01\0\0\x05hello",
        b"\x01\x02ab\x01\0\x01\x01c\0\x01d",
        b"\x04\x09\x04PING\0\x0aab",
        b"\x01\0\x02\0\0\0\0\0\0\0\x05hello",
        b"\x01\0\x02\0\0\0\0\0\x02\0\0hello",
        b"\x01\0\x02\0\x01\0\0\0\0\0\0hello",
        b"\x01\0\x04\0",
        b"\xf8\0",
    ];
    let after = |kind: u8| says.map(|said| [&[kind, 3], said].concat());
    let mut seeds = [after(0), after(2)].concat();
    seeds.push([&[0, 1], &says.concat()[..]].concat());
    let whole = greeting();
    for len in [10, 40, 64, 80, whole.len()] {
        seeds.push([&[1, 7], &whole[..len]].concat());
    }
    seeds
}

/// `tcpdump -dd 'tcp port 443 and ip'` of libpcap 1.10 on a frame, and instructions by their
/// numbers.
fn filters() -> Vec<Vec<u8>> {
    let program: [(u16, u8, u8, u32); 13] = [
        (0x28, 0, 0, 0x0c),
        (0x15, 0, 10, 0x800),
        (0x30, 0, 0, 0x17),
        (0x15, 0, 8, 6),
        (0x28, 0, 0, 0x14),
        (0x45, 6, 0, 0x1fff),
        (0xb1, 0, 0, 0x0e),
        (0x48, 0, 0, 0x0e),
        (0x15, 2, 0, 443),
        (0x48, 0, 0, 0x10),
        (0x15, 0, 1, 443),
        (0x06, 0, 0, 0x4_0000),
        (0x06, 0, 0, 0),
    ];
    let mut by_pcap = vec![0x80 | program.len() as u8];
    for (code, jt, jf, k) in program {
        by_pcap.push(0xff);
        by_pcap.extend(code.to_le_bytes());
        by_pcap.extend([jt, jf]);
        by_pcap.extend(k.to_le_bytes());
    }
    let ip = build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2]);
    let frame = ip.tcp(1000, 443, TcpFlags::SYN).build();
    let on = |program: &[u8], part: u16| [program, &part.to_le_bytes(), &frame].concat();
    let mut seeds = vec![on(&by_pcap, 30), on(&by_pcap, 60)];
    // Each instruction between loads of both registers and of memory, and a question whether there
    // is much in A: what it is is not said, but whether it is 0.
    let at = |code| {
        CODES
            .iter()
            .position(|one| *one == code)
            .unwrap_or_default() as u8
    };
    let before = [6, at(0x30), 0, 12, at(0x01), 0, 2, at(0x03), 0, 3];
    for choice in 0..CODES.len() as u8 {
        for much in [1, 0x80, 0xff] {
            let after = [choice, 1, 5, at(0x35), 1, much, at(0x00), 0, 0];
            seeds.push(on(&[&before[..], &after].concat(), 10));
        }
    }
    seeds
}

const HTTP: [&str; 7] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
     2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.0 301 Moved\r\nLocation: /\r\n\r\n<html>",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "SSH-2.0-OpenSSH_9.2p1\r\n",
];

const PAGE: [&str; 8] = [
    "GET / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n",
    "HEAD /page.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "GET /history?vm%201 HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer TOKEN\r\n\r\n",
    "GET /history HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n",
    "POST /api/butterfly.v1.Butterfly/PutNic HTTP/1.1\r\nHost: localhost\r\n\
     Authorization: Bearer TOKEN\r\nContent-Type: application/json\r\nContent-Length: 77\r\n\r\n\
     {\"nic\":{\"id\":\"a\",\"mac\":\"52:54:00:00:00:01\",\"vni\":7,\"addresses\":[\"10.0.0.1\"]}}",
    "POST /api/butterfly.v1.Butterfly/ListFlows HTTP/1.1\r\nHost: localhost\r\n\
     Authorization: Bearer TOKEN\r\nContent-Type: application/json; charset=utf-8\r\n\
     Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "DELETE /api HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\n\r\n",
];

const ACCESS: [&str; 5] = [
    "[[grant]]\nrole = \"view\"\nusers = [\"alice\", 1001]\n",
    "[[grant]]\nrole = \"operate\"\ngroups = [\"ops\"]\nnetworks = [7, \"100-199\"]\n\
     security_groups = [\"blue-*\", \"web\"]\n",
    "[[grant]]\nrole = \"admin\"\ncertificates = [\"blue\"]\npage_token = true\nv0_tcp = true\n",
    "# Two.\n[[grant]]\nrole = \"view\"\ngroups = [2_000]\n\n[[grant]]\nrole = \"operate\"\n\
     users = [0x3e8]\nnetworks = []\n",
    "grant = [{ role = \"admin\", users = [\"bob\"], networks = [1] }]\n",
];

const CNI: [(&str, &str, &str); 6] = [
    (
        "ADD",
        "",
        r#"{"cniVersion":"1.1.0","name":"pods","type":"butterfly-cni","vni":42,"groups":["a"],
            "ipam":{"type":"butterfly","ranges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9"}],
            [{"subnet":"fd00::/64","gateway":"fd00::1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}"#,
    ),
    (
        "ADD",
        "BUTTERFLY_VNI=7;MAC=02:00:00:00:00:01;IP=10.0.0.9/24;K8S_POD=x;IgnoreUnknown=1",
        r#"{"cniVersion":"0.4.0","name":"n","mtu":1400,"dns":{"nameservers":["10.0.0.53"]}}"#,
    ),
    (
        "ADD",
        "",
        r#"{"cniVersion":"1.0.0","name":"n","vni":1,"prevResult":{"interfaces":[{"name":"lo"}],
            "ips":[{"address":"10.1.0.1/24","interface":0}],"routes":[],"dns":{}},
            "runtimeConfig":{"ips":["10.0.0.9/24"],"mac":"02:00:00:00:00:02"}}"#,
    ),
    (
        "ADD",
        "",
        r#"{"cniVersion":"0.2.0","name":"n","vni":1,"ipam":{"type":"host-local","subnet":"x"},
            "args":{"cni":{"ips":["10.0.0.7"]},"butterfly":{"vni":9,"groups":[]}}}"#,
    ),
    (
        "GC",
        "",
        r#"{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[{"containerID":"a",
            "ifname":"eth0"}],"ipam":{"type":""}}"#,
    ),
    ("VERSION", "", r#"{"cniVersion":"1.0.0"}"#),
];

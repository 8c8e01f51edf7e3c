//! A guest for the test of a whole system (`tools/test-packages.py`): a vhost-user frontend with a
//! ring driver, which pings a machine of its network once a second until it is answered.
//!
//! usage: vhost-peer SOCKET MAC ADDRESS TO-MAC TO-ADDRESS SECONDS

use butterfly_tests::peer::Peer;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use testkit::Result;
use wire::{Mac, build};

fn main() -> ExitCode {
    match ping(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(count) => {
            println!("answered after {count} echo requests");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("vhost-peer: {why}");
            ExitCode::FAILURE
        }
    }
}

fn ping(words: &[String]) -> Result<u16> {
    let [socket, mac, address, to_mac, to, seconds] = words else {
        return Err("usage: vhost-peer SOCKET MAC ADDRESS TO-MAC TO-ADDRESS SECONDS".into());
    };
    let wrong = |what: &str| format!("{what} cannot be read");
    let mac: Mac = mac.parse().map_err(|_| wrong(mac))?;
    let to_mac: Mac = to_mac.parse().map_err(|_| wrong(to_mac))?;
    let address: Ipv4Addr = address.parse().map_err(|_| wrong(address))?;
    let to: Ipv4Addr = to.parse().map_err(|_| wrong(to))?;
    let seconds: u16 = seconds.parse().map_err(|_| wrong(seconds))?;
    let mut peer = Peer::connect(Path::new(socket))?;
    for sequence in 1..=seconds {
        let request = build::frame(mac, to_mac)
            .ip(address, to)
            .echo_request(7, sequence)
            .payload(b"as a guest sends it");
        peer.send(&[request.build()])?;
        std::thread::sleep(Duration::from_secs(1));
        for frame in peer.arrived() {
            // Ethernet, IPv4 without options, ICMP: an echo reply to us, or the ARP request for us
            // that comes before it.
            if frame.get(12..14) == Some(&[8, 0]) && frame.get(34) == Some(&0) {
                return Ok(sequence);
            }
            if frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 1]) {
                peer.send(&[arp_reply(mac, address, &frame)])?;
            }
        }
    }
    Err(format!("{to} has not answered {seconds} echo requests"))
}

/// The answer to an ARP request (RFC 826): the request with its two halves exchanged, and ours in
/// the sender's.
fn arp_reply(mac: Mac, address: Ipv4Addr, request: &[u8]) -> Vec<u8> {
    let mut reply = request[6..12].to_vec();
    reply.extend(mac.0);
    reply.extend(&request[12..20]);
    reply.extend([0, 2]);
    reply.extend(mac.0);
    reply.extend(address.octets());
    reply.extend(&request[22..32]);
    reply
}

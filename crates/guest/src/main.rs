//! What runs inside the test guests: an agent that runs commands for the host, and the small
//! network programs that busybox lacks. `tools/guest-image.sh` links it statically and puts it into
//! the initramfs twice: as `/bin/agent` (started by init) and as `/bin/guest` (the programs;
//! `killall guest` ends them all and leaves the agent alone).
//!
//! Every program ends by itself: servers when they are killed, clients after their count or their
//! seconds.

mod agent;
mod fragments;
mod frame;
mod icmp;
mod queues;
mod stream;
mod udp;

use std::process::ExitCode;

/// What a program answers: one line to print, or one sentence that says why not.
type Outcome = Result<String, String>;

const USAGE: &str = "usage:
  guest agent DEVICE                                 run commands that come over a serial line
  guest tcp-serve PORT [BYTES_PER_SEC]               send to everybody who connects, without end
  guest tcp-get ADDR PORT BYTES SECS [PROGRESS]      read until BYTES (0: no bound) or SECS have passed
  guest tcp-sink PORT                                read from everybody who connects, answer with the count
  guest tcp-put ADDR PORT BYTES SECS                 send BYTES, wait for the count
  guest sctp-serve PORT                              echo
  guest sctp-ping ADDR PORT COUNT SECS               send COUNT messages, expect each back
  guest udp-serve PORT                               echo
  guest udp-ping ADDR PORT COUNT SIZE [SOURCE_PORT]  send COUNT datagrams, count the answers
  guest udp-beat ADDR PORT MILLISECONDS SECS         send a datagram each so many milliseconds
  guest queues NIC PAIRS                             use so many pairs of queues, as `ethtool -L NIC combined PAIRS`
  guest icmp-ask ADDR KIND CODE SECS                 send one ICMP message, wait for its answer
  guest frame DEVICE TYPE HEX                        send a frame by a packet socket that says it is of this
                                                     Ethernet type (hexadecimal)
  guest fragments SRC DST PORT KIND                  a datagram to DST:PORT in IPv4 fragments made by hand;
                                                     KIND: whole, later-only, overlap, tiny";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["agent", device] => agent::serve(device),
        ["tcp-serve", port] => stream::serve(stream::Kind::Tcp, port, "0"),
        ["tcp-serve", port, rate] => stream::serve(stream::Kind::Tcp, port, rate),
        ["tcp-get", addr, port, bytes, secs] => stream::fetch(addr, port, bytes, secs, None),
        ["tcp-get", addr, port, bytes, secs, progress] => {
            stream::fetch(addr, port, bytes, secs, Some(progress))
        }
        ["tcp-sink", port] => stream::sink(port),
        ["tcp-put", addr, port, bytes, secs] => stream::put(addr, port, bytes, secs),
        ["sctp-serve", port] => stream::echo(stream::Kind::Sctp, port),
        ["sctp-ping", addr, port, count, secs] => {
            stream::ping(stream::Kind::Sctp, addr, port, count, secs)
        }
        ["udp-serve", port] => udp::echo(port),
        ["udp-ping", addr, port, count, size] => udp::ping(addr, port, count, size, "0"),
        ["udp-ping", addr, port, count, size, source] => udp::ping(addr, port, count, size, source),
        ["udp-beat", addr, port, every, secs] => udp::beat(addr, port, every, secs),
        ["queues", nic, pairs] => queues::set(nic, pairs),
        ["icmp-ask", addr, kind, code, secs] => icmp::ask(addr, kind, code, secs),
        ["frame", device, kind, bytes] => frame::send(device, kind, bytes),
        ["fragments", src, dst, port, kind] => fragments::send(src, dst, port, kind),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

/// A number of the command line.
fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{what} {text:?} is not a number that fits"))
}

/// An address and a port of the command line.
fn endpoint(addr: &str, port: &str) -> Result<std::net::SocketAddr, String> {
    let addr = addr
        .parse()
        .map_err(|_| format!("{addr:?} is not an IP address"))?;
    Ok(std::net::SocketAddr::new(addr, number(port, "port")?))
}

//! UDP: an echo server, a client that counts the answers, and one that sends all the time.

use crate::{Outcome, endpoint, number};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How long a datagram's answer may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sends back what comes.
pub fn echo(port: &str) -> Outcome {
    let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, number(port, "port")?));
    let socket = UdpSocket::bind(local).map_err(|e| format!("cannot bind {local}: {e}"))?;
    println!("listening");
    let mut buffer = vec![0u8; 65536];
    loop {
        let (len, from) = socket
            .recv_from(&mut buffer)
            .map_err(|e| format!("cannot receive: {e}"))?;
        // Whoever cannot be answered (its interface just went down) is passed over.
        let _ = socket.send_to(&buffer[..len], from);
    }
}

/// Sends `count` datagrams of `size` bytes, one at a time, and counts the answers that equal what
/// was sent. No answer at all is a failure.
pub fn ping(addr: &str, port: &str, count: &str, size: &str, source: &str) -> Outcome {
    let to = endpoint(addr, port)?;
    let (count, size): (u32, usize) = (number(count, "count")?, number(size, "size")?);
    let any = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let local = SocketAddr::new(any, number(source, "source port")?);
    let socket = UdpSocket::bind(local).map_err(|e| format!("cannot bind {local}: {e}"))?;
    socket
        .connect(to)
        .and_then(|()| socket.set_read_timeout(Some(PATIENCE)))
        .map_err(|e| format!("cannot use {to}: {e}"))?;
    let mut answers = 0;
    let mut buffer = vec![0u8; 65536];
    for i in 0..count {
        let datagram: Vec<u8> = (0..size).map(|j| (i as usize + j) as u8).collect();
        if socket.send(&datagram).is_err() {
            continue;
        }
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match socket.recv(&mut buffer) {
                Ok(len) if buffer[..len] == datagram => {
                    answers += 1;
                    break;
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    let line = format!("sent={count} answers={answers}");
    if answers == 0 { Err(line) } else { Ok(line) }
}

/// Sends an empty datagram each `every` milliseconds, whatever becomes of it.
pub fn beat(addr: &str, port: &str, every: &str, secs: &str) -> Outcome {
    let to = endpoint(addr, port)?;
    let every = Duration::from_millis(number(every, "milliseconds")?);
    let until = Instant::now() + Duration::from_secs(number(secs, "seconds")?);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let socket = socket.map_err(|e| format!("cannot bind: {e}"))?;
    let mut sent = 0;
    while Instant::now() < until {
        sent += u32::from(socket.send_to(&[], to).is_ok());
        std::thread::sleep(every);
    }
    Ok(format!("sent={sent}"))
}

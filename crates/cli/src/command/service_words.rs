//! Services and servers as they are written on the command line.

use std::net::{IpAddr, Ipv6Addr};

use api::v1;

use crate::words::{SCTP, TCP, UDP, protocol_name};

/// A service as people write it: `192.0.2.1:80`, `[2001:db8::1]:53/udp`, `192.0.2.1:all/tcp`.
pub fn service_key(text: &str) -> Result<v1::ServiceKey, String> {
    let bad = || {
        format!(
            "'{text}' is not ADDRESS:PORT or ADDRESS:PORT/PROTOCOL, as 192.0.2.1:80, \
             [2001:db8::1]:53/udp or 192.0.2.1:all"
        )
    };
    let (place, protocol) = match text.rsplit_once('/') {
        None => (text, TCP),
        Some((place, "tcp")) => (place, TCP),
        Some((place, "udp")) => (place, UDP),
        Some((place, "sctp")) => (place, SCTP),
        Some(_) => return Err(bad()),
    };
    let (address, port) = place.rsplit_once(':').ok_or_else(bad)?;
    let vip: IpAddr = match address
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        Some(v6) => v6.parse::<Ipv6Addr>().map_err(|_| bad())?.into(),
        None => address
            .parse::<std::net::Ipv4Addr>()
            .map_err(|_| bad())?
            .into(),
    };
    let all_ports = matches!(port, "all" | "*");
    let port = match all_ports {
        true => 0,
        false => port
            .parse::<u16>()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(bad)?,
    };
    Ok(v1::ServiceKey {
        vip: vip.to_string(),
        protocol,
        port: port.into(),
        all_ports,
    })
}

/// A service's key as options and output write it.
pub fn key_words(key: &v1::ServiceKey) -> String {
    let address = match key.vip.contains(':') {
        true => format!("[{}]", key.vip),
        false => key.vip.clone(),
    };
    let port = match key.all_ports {
        true => "all".into(),
        false => key.port.to_string(),
    };
    let protocol = if key.protocol == 0 { TCP } else { key.protocol };
    format!("{address}:{port}/{}", protocol_name(Some(protocol)))
}

/// A server as people write it: an address, and its weight behind an asterisk if that is not 1.
pub fn server(text: &str) -> Result<v1::Server, String> {
    let (address, weight) = match text.split_once('*') {
        None => (text, None),
        Some((address, weight)) => {
            let number = weight.parse::<u16>().ok().filter(|weight| *weight != 0);
            let why = || format!("the weight of '{text}' is not a number within 1 and 65535");
            (address, Some(number.ok_or_else(why)?.into()))
        }
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| format!("'{address}' is no IPv4 or IPv6 address"))?;
    Ok(v1::Server {
        address: address.to_string(),
        weight,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_read_and_written_alike() {
        for text in [
            "192.0.2.1:80/tcp",
            "[2001:db8::1]:53/udp",
            "192.0.2.1:all/sctp",
            "[2001:db8::1]:all/tcp",
        ] {
            assert_eq!(key_words(&service_key(text).unwrap()), text);
        }
        assert_eq!(
            key_words(&service_key("192.0.2.1:80").unwrap()),
            "192.0.2.1:80/tcp"
        );
        assert_eq!(
            key_words(&service_key("192.0.2.1:*").unwrap()),
            "192.0.2.1:all/tcp"
        );
    }

    #[test]
    fn what_is_no_service_is_refused() {
        for text in [
            "192.0.2.1",
            "192.0.2.1:0",
            "192.0.2.1:65536",
            "192.0.2.1:80/icmp",
            "2001:db8::1",
            "2001:db8::1:80",
            "host:80",
            "",
        ] {
            let why = service_key(text).unwrap_err();
            assert!(why.starts_with(&format!("'{text}' is not")), "{why}");
        }
    }

    #[test]
    fn a_server_has_a_weight() {
        let weight = |text: &str| server(text).map(|server| (server.address, server.weight));
        assert_eq!(weight("10.0.0.1"), Ok(("10.0.0.1".into(), None)));
        assert_eq!(weight("2001:DB8::1*7"), Ok(("2001:db8::1".into(), Some(7))));
        for text in [
            "10.0.0.1*0",
            "10.0.0.1*65536",
            "10.0.0.1*",
            "x",
            "10.0.0.1:80",
        ] {
            assert!(weight(text).is_err(), "{text}");
        }
    }
}

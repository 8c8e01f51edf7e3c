//! What checks of servers have found out, from one daemon to the next: as JSON.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use control::KnownHealth;
use control::model::{Protocol, ServiceKey};
use health::{Health, State};
use serde::{Deserialize, Serialize};

/// Another one for whatever is changed here.
const VERSION: u32 = 1;
/// Bytes of the sentence of a failed check at the most.
const DETAIL_MAX: usize = 4096;

#[derive(Serialize, Deserialize)]
struct Left {
    version: u32,
    /// Services that all checks of have begun.
    open: Vec<Key>,
    servers: Vec<Server>,
}

#[derive(Serialize, Deserialize)]
struct Key {
    vip: IpAddr,
    protocol: u8,
    /// 0: all.
    port: u16,
}

#[derive(Serialize, Deserialize)]
struct Server {
    service: Key,
    address: IpAddr,
    /// Not there: unknown.
    healthy: Option<bool>,
    /// Times are those of CLOCK_MONOTONIC.
    since: Duration,
    next: Duration,
    took: Duration,
    detail: String,
    against: u32,
}

/// As the next daemon [reads](read) it.
pub fn write(known: &KnownHealth) -> Vec<u8> {
    let servers = known.servers.iter().map(|((key, address), state, next)| {
        let State {
            health,
            since,
            ref detail,
            took,
            against,
        } = *state;
        Server {
            service: Key::of(key),
            address: *address,
            healthy: match health {
                Health::Unknown => None,
                Health::Healthy => Some(true),
                Health::Unhealthy => Some(false),
            },
            since,
            next: *next,
            took,
            detail: detail[..detail.floor_char_boundary(DETAIL_MAX)].to_owned(),
            against,
        }
    });
    let left = Left {
        version: VERSION,
        open: known.open.iter().map(Key::of).collect(),
        servers: servers.collect(),
    };
    // Numbers, addresses and text have a form in JSON.
    serde_json::to_vec(&left).unwrap_or_default()
}

/// What was [written](write). The error is a sentence.
pub fn read(bytes: &[u8]) -> Result<KnownHealth, String> {
    let failed = |why: &dyn std::fmt::Display| {
        format!("what the daemon before knows of servers' health cannot be read: {why}")
    };
    let left: Left = serde_json::from_slice(bytes).map_err(|e| failed(&e))?;
    if left.version != VERSION {
        return Err(failed(&format_args!("it is of version {}", left.version)));
    }
    let server = |server: Server| {
        if server.detail.len() > DETAIL_MAX {
            return Err(failed(&"a sentence is too long"));
        }
        let state = State {
            health: match server.healthy {
                None => Health::Unknown,
                Some(true) => Health::Healthy,
                Some(false) => Health::Unhealthy,
            },
            since: server.since,
            detail: server.detail,
            took: server.took,
            against: server.against,
        };
        let key = server.service.read().map_err(|e| failed(&e))?;
        Ok(((key, server.address), state, server.next))
    };
    let open = left.open.into_iter().map(|key| key.read());
    Ok(KnownHealth {
        open: open.collect::<Result<_, _>>().map_err(|e| failed(&e))?,
        servers: left
            .servers
            .into_iter()
            .map(server)
            .collect::<Result<_, _>>()?,
    })
}

impl Key {
    fn of(key: &ServiceKey) -> Key {
        Key {
            vip: key.vip(),
            protocol: key.protocol().number(),
            port: key.port().map_or(0, NonZeroU16::get),
        }
    }

    fn read(&self) -> Result<ServiceKey, String> {
        let protocol = Protocol::from_number(self.protocol);
        let protocol = protocol.ok_or_else(|| format!("protocol {}", self.protocol))?;
        let key = ServiceKey::new(self.vip, protocol, NonZeroU16::new(self.port));
        key.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let key = |port| {
            let vip = "2001:db8::1".parse().unwrap();
            ServiceKey::new(vip, Protocol::Udp, NonZeroU16::new(port)).unwrap()
        };
        let state = State {
            health: Health::Unhealthy,
            since: Duration::from_nanos(7_000_000_001),
            detail: "connection \"refused\"".into(),
            took: Duration::from_micros(300),
            against: 2,
        };
        let server = |port, last: u8, state: &State| {
            let next = Duration::from_secs(9);
            ((key(port), [10, 0, 0, last].into()), state.clone(), next)
        };
        let unknown = State::new(Duration::ZERO, Health::Unknown);
        let known = KnownHealth {
            open: [key(0), key(53)].into(),
            servers: vec![server(0, 1, &state), server(53, 2, &unknown)],
        };
        let written = write(&known);
        assert_eq!(read(&written).unwrap(), known);
        let text = String::from_utf8(written).unwrap();
        for (from, to, why) in [
            ("}", "", "EOF"),
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"protocol\":17", "\"protocol\":18", "protocol 18"),
            ("\"2001:db8::1\"", "\"::\"", "no single host's"),
            ("\"2001:db8::1\"", "\"everywhere\"", "IP address"),
            ("\"took\":{\"secs\":0", "\"took\":{\"secs\":-1", "-1"),
            ("\"against\":2", "\"against\":4294967296", "4294967296"),
            ("refused", &"refused ".repeat(600), "too long"),
        ] {
            let other = match from {
                "}" => text[..text.len() - 1].to_owned(),
                _ => text.replacen(from, to, 1),
            };
            assert_ne!(other, text);
            let refused = read(other.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{from}: {refused}");
        }
    }
}

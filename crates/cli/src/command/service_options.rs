//! Services and servers as they are written on the command line, and the options that describe a service.

use std::net::{IpAddr, Ipv6Addr};

use api::v1;
use api::v1::health_check::Kind;
use clap::{Args, ValueEnum};

use crate::error::Error;
use crate::words::{SCTP, TCP, UDP, protocol_name};

/// A service as people write it: `192.0.2.1:80`, `[2001:db8::1]:53/udp`, `192.0.2.1:all/tcp`.
pub fn service_key(text: &str) -> Result<v1::ServiceKey, String> {
    let bad = || {
        format!(
            "'{text}' is not ADDRESS:PORT or ADDRESS:PORT/PROTOCOL, as 192.0.2.1:80, [2001:db8::1]:53/udp or 192.0.2.1:all"
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
    let vip: IpAddr = match address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().map_err(|_| bad())?.into(),
        None => address.parse::<std::net::Ipv4Addr>().map_err(|_| bad())?.into(),
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

/// The same back.
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

/// How packets reach the servers.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// To the server's MAC address, as they are
    L2,
    /// IP in IP
    Ipip,
    /// GRE
    Gre,
    /// Foo over UDP
    Fou,
    /// Generic UDP encapsulation
    Gue,
}

impl Encapsulation {
    fn message(self) -> v1::Encapsulation {
        match self {
            Encapsulation::L2 => v1::Encapsulation::L2,
            Encapsulation::Ipip => v1::Encapsulation::Ipip,
            Encapsulation::Gre => v1::Encapsulation::Gre,
            Encapsulation::Fou => v1::Encapsulation::Fou,
            Encapsulation::Gue => v1::Encapsulation::Gue,
        }
    }
}

/// What is asked of a server.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum CheckKind {
    /// A TCP connection
    Tcp,
    /// An HTTP request
    Http,
    /// An HTTP request over TLS, with any certificate
    Https,
    /// A DNS query over UDP
    Dns,
    /// A DNS query over TCP
    DnsTcp,
    /// A program
    Command,
    /// Nothing: all servers are taken for healthy
    None,
}

/// What a service is beside its key and its servers.
#[derive(Args, Debug)]
pub struct ServiceOptions {
    /// How packets reach the servers [default: l2]
    #[arg(long, value_name = "HOW", ignore_case = true)]
    encapsulation: Option<Encapsulation>,
    /// fou, gue: the UDP port that the servers listen on [default: 5555, 6080]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    tunnel_port: Option<u16>,
    /// All flows of a client go to one server
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    sticky: Option<bool>,
    /// With fewer healthy servers the service is withdrawn [default: 1]
    #[arg(long, value_name = "SERVERS")]
    min_healthy: Option<u32>,
    #[command(flatten)]
    check: CheckOptions,
}

/// How the servers' health is found out.
#[derive(Args, Debug)]
#[command(next_help_heading = "Health check")]
struct CheckOptions {
    /// What is asked of each server, through the service's address [default: none]
    #[arg(long, value_name = "KIND", ignore_case = true)]
    check: Option<CheckKind>,
    /// Where to [default: the service's port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    check_port: Option<u16>,
    /// Milliseconds between the beginnings of two checks, 100 to 3600000 [default: 2000]
    #[arg(long, value_name = "MS")]
    check_interval: Option<u32>,
    /// Milliseconds after which a check has failed [default: 1000]
    #[arg(long, value_name = "MS")]
    check_timeout: Option<u32>,
    /// Successes in a row that make a server healthy [default: 2]
    #[arg(long, value_name = "CHECKS")]
    rise: Option<u32>,
    /// Failures in a row that make it unhealthy [default: 3]
    #[arg(long, value_name = "CHECKS")]
    fall: Option<u32>,
    /// http, https: the path [default: /]
    #[arg(long, value_name = "PATH")]
    check_path: Option<String>,
    /// http, https: the host that is asked for [default: the service's address]
    #[arg(long, value_name = "HOST")]
    check_host: Option<String>,
    /// http, https: GET or HEAD [default: GET]
    #[arg(long, value_name = "METHOD")]
    check_method: Option<String>,
    /// http, https: statuses that are well [default: 200 to 399]
    #[arg(long, value_name = "STATUS", num_args = 1.., value_delimiter = ',')]
    check_status: Vec<u32>,
    /// dns, dns-tcp: the name that is asked for [default: .]
    #[arg(long, value_name = "NAME")]
    check_name: Option<String>,
    /// dns, dns-tcp: the record's type [default: A, of the default name NS]
    #[arg(long, value_name = "TYPE")]
    check_type: Option<String>,
    /// command: the program's absolute path and its arguments, separated by blanks
    #[arg(long, value_name = "COMMAND")]
    check_command: Option<String>,
}

impl ServiceOptions {
    /// A new service of these options.
    pub fn service(&self, key: &v1::ServiceKey, servers: Vec<v1::Server>) -> Result<v1::Service, Error> {
        Ok(v1::Service {
            key: Some(key.clone()),
            encapsulation: self
                .encapsulation
                .map_or(v1::Encapsulation::L2, Encapsulation::message)
                .into(),
            tunnel_port: self.tunnel_port.unwrap_or_default().into(),
            sticky: self.sticky.unwrap_or_default(),
            min_healthy: self.min_healthy,
            check: self.check.check(None)?,
            servers,
        })
    }

    /// The change that is asked of a service; `old` is its check.
    pub fn update(
        &self,
        key: &v1::ServiceKey,
        old: Option<v1::HealthCheck>,
    ) -> Result<v1::UpdateServiceRequest, Error> {
        let check = match self.check.is_given() {
            true => self.check.check(old)?,
            false => None,
        };
        Ok(v1::UpdateServiceRequest {
            key: Some(key.clone()),
            encapsulation: self.encapsulation.map(|kind| kind.message().into()),
            tunnel_port: self.tunnel_port.map(u32::from),
            sticky: self.sticky,
            min_healthy: self.min_healthy,
            check,
            no_check: self.check.check == Some(CheckKind::None),
        })
    }

    /// Part of a check is to change, and the rest is the daemon's to say.
    pub fn needs_old_check(&self) -> bool {
        self.check.is_given() && self.check.check != Some(CheckKind::None)
    }
}

impl CheckOptions {
    fn is_given(&self) -> bool {
        self.check.is_some()
            || self.check_port.is_some()
            || [self.check_interval, self.check_timeout, self.rise, self.fall]
                .iter()
                .any(Option::is_some)
            || self.has_details()
    }

    fn has_details(&self) -> bool {
        let texts = [
            &self.check_path,
            &self.check_host,
            &self.check_method,
            &self.check_name,
            &self.check_type,
            &self.check_command,
        ];
        texts.iter().any(|text| text.is_some()) || !self.check_status.is_empty()
    }

    /// The check; what is not given is the old one's, if that does the same.
    fn check(&self, old: Option<v1::HealthCheck>) -> Result<Option<v1::HealthCheck>, Error> {
        let old_kind = old.as_ref().and_then(|old| old.kind.clone());
        let kind = match (self.check, old_kind) {
            (Some(CheckKind::None), _) => return Ok(None),
            (None, None) if self.is_given() => {
                return Err(Error::Usage(
                    "there is no check yet: --check says what is asked (tcp, http, https, dns, dns-tcp, command)".into(),
                ));
            }
            (None, None) => return Ok(None),
            (Some(kind), old) => self.kind(fresh(kind), old)?,
            (None, Some(old)) => self.kind(old.clone(), Some(old))?,
        };
        let old = old.unwrap_or_default();
        Ok(Some(v1::HealthCheck {
            interval_ms: self.check_interval.unwrap_or(old.interval_ms),
            timeout_ms: self.check_timeout.unwrap_or(old.timeout_ms),
            rise: self.rise.unwrap_or(old.rise),
            fall: self.fall.unwrap_or(old.fall),
            port: self.check_port.map_or(old.port, u32::from),
            kind: Some(kind),
        }))
    }

    fn kind(&self, new: Kind, old: Option<Kind>) -> Result<Kind, Error> {
        let stranger = |option: &str, goes_with: &str| {
            Err(Error::Usage(format!("{option} goes with --check {goes_with}")))
        };
        let text = |given: &Option<String>, old: String| given.clone().unwrap_or(old);
        let (is_http, is_dns) = (matches!(new, Kind::Http(_)), matches!(new, Kind::Dns(_)));
        for (given, option) in [
            (self.check_path.is_some(), "--check-path"),
            (self.check_host.is_some(), "--check-host"),
            (self.check_method.is_some(), "--check-method"),
            (!self.check_status.is_empty(), "--check-status"),
        ] {
            if given && !is_http {
                return stranger(option, "http or https");
            }
        }
        for (given, option) in [
            (self.check_name.is_some(), "--check-name"),
            (self.check_type.is_some(), "--check-type"),
        ] {
            if given && !is_dns {
                return stranger(option, "dns or dns-tcp");
            }
        }
        if self.check_command.is_some() && !matches!(new, Kind::Command(_)) {
            return stranger("--check-command", "command");
        }
        Ok(match (new, old) {
            (Kind::Tcp(tcp), _) => Kind::Tcp(tcp),
            (Kind::Http(new), old) => {
                let old = match old {
                    Some(Kind::Http(old)) => old,
                    _ => v1::HttpCheck::default(),
                };
                let statuses = if self.check_status.is_empty() {
                    old.statuses
                } else {
                    self.check_status.clone()
                };
                Kind::Http(v1::HttpCheck {
                    tls: new.tls,
                    method: text(&self.check_method, old.method),
                    path: text(&self.check_path, old.path),
                    host: text(&self.check_host, old.host),
                    statuses,
                })
            }
            (Kind::Dns(new), old) => {
                let old = match old {
                    Some(Kind::Dns(old)) => old,
                    _ => v1::DnsCheck::default(),
                };
                Kind::Dns(v1::DnsCheck {
                    tcp: new.tcp,
                    name: text(&self.check_name, old.name),
                    r#type: text(&self.check_type, old.r#type),
                })
            }
            (Kind::Command(_), old) => match (&self.check_command, old) {
                (Some(line), _) => Kind::Command(v1::CommandCheck {
                    words: line.split_whitespace().map(str::to_owned).collect(),
                }),
                (None, Some(Kind::Command(old))) => Kind::Command(old),
                (None, _) => {
                    return Err(Error::Usage(
                        "--check command needs --check-command, the program".into(),
                    ));
                }
            },
        })
    }
}

/// A check of that kind with nothing said of it. `None` has been dealt with.
fn fresh(kind: CheckKind) -> Kind {
    let http = |tls| {
        Kind::Http(v1::HttpCheck {
            tls,
            ..Default::default()
        })
    };
    let dns = |tcp| {
        Kind::Dns(v1::DnsCheck {
            tcp,
            ..Default::default()
        })
    };
    match kind {
        CheckKind::Tcp | CheckKind::None => Kind::Tcp(v1::TcpCheck {}),
        CheckKind::Http => http(false),
        CheckKind::Https => http(true),
        CheckKind::Dns => dns(false),
        CheckKind::DnsTcp => dns(true),
        CheckKind::Command => Kind::Command(v1::CommandCheck::default()),
    }
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
        for text in ["10.0.0.1*0", "10.0.0.1*65536", "10.0.0.1*", "x", "10.0.0.1:80"] {
            assert!(weight(text).is_err(), "{text}");
        }
    }
}

//! Messages of the API into the model. Whatever is wrong is a sentence that names the field and the
//! value.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use api::v1;
use api::v1::health_check::Kind as ProtoKind;
use health::{Check, Command, Dns, Http, Kind, Policy};

use super::error::Error;
use super::model::{Encapsulation, Key, Protocol, Server, ServerState, Service, Services};

/// Where FOU servers listen unless told otherwise: what Linux's manual pages show.
const FOU_PORT: u16 = 5555;
/// Where GUE servers listen (IANA).
const GUE_PORT: u16 = 6080;

/// A field that the request cannot do without.
pub fn required<T>(field: Option<T>, name: &str) -> Result<T, Error> {
    field.ok_or_else(|| Error::Request(format!("the request has no {name}")))
}

pub fn key(key: &v1::ServiceKey) -> Result<Key, Error> {
    let refuse = |field: &str, value: String, why: &str| Error::value("service", field, value, why);
    let vip =
        address(&key.vip).ok_or_else(|| refuse("vip", key.vip.clone(), "is no IP address"))?;
    let protocol = match key.protocol {
        0 | 6 => Protocol::Tcp,
        17 => Protocol::Udp,
        132 => Protocol::Sctp,
        other => {
            return Err(refuse(
                "protocol",
                other.to_string(),
                "is not 6 (TCP), 17 (UDP) or 132 (SCTP)",
            ));
        }
    };
    let port = match (key.all_ports, key.port) {
        (true, 0) => None,
        (true, port) => return Err(refuse("port", port.to_string(), "contradicts all_ports")),
        (false, port) => Some(
            self::port(port)
                .ok_or_else(|| refuse("port", port.to_string(), "is not within 1 and 65535"))?,
        ),
    };
    Ok(Key {
        vip,
        protocol,
        port,
    })
}

/// A configuration: every service valid, no two of one key.
pub fn config(config: v1::BalancerConfig) -> Result<Services, Error> {
    let mut services = Services::new();
    for message in config.services {
        let service = service(message)?;
        let key = service.key;
        if services.insert(key, service).is_some() {
            return Err(Error::Request(format!("service {key} is there twice")));
        }
    }
    super::model::validate(&services)?;
    Ok(services)
}

pub fn service(message: v1::Service) -> Result<Service, Error> {
    let key = key(&required(message.key, "service.key")?)?;
    let mut servers = BTreeMap::new();
    for message in &message.servers {
        let (address, server) = server(&key, message)?;
        if servers.insert(address, server).is_some() {
            return Err(Error::value(
                owner(&key),
                "server",
                address,
                "is there twice",
            ));
        }
    }
    let service = Service {
        key,
        encapsulation: encapsulation(&key, message.encapsulation, message.tunnel_port)?,
        sticky: message.sticky,
        min_healthy: message.min_healthy.unwrap_or(1),
        check: message
            .check
            .map(|check| self::check(&key, check))
            .transpose()?,
        servers,
    };
    service.validate()?;
    Ok(service)
}

/// A service after an update of its values.
pub fn updated(service: &Service, update: v1::UpdateServiceRequest) -> Result<Service, Error> {
    let key = service.key;
    let mut new = service.clone();
    match (update.encapsulation, update.tunnel_port) {
        (Some(kind), port) => {
            new.encapsulation = encapsulation(&key, kind, port.unwrap_or_default())?
        }
        (None, Some(port)) => {
            let (kind, _) = super::render::encapsulation(service.encapsulation);
            new.encapsulation = encapsulation(&key, kind.into(), port)?;
        }
        (None, None) => (),
    }
    new.sticky = update.sticky.unwrap_or(new.sticky);
    new.min_healthy = update.min_healthy.unwrap_or(new.min_healthy);
    match (update.check, update.no_check) {
        (Some(_), true) => {
            return Err(Error::Request(format!(
                "service {key}: check and no_check contradict each other"
            )));
        }
        (Some(check), false) => new.check = Some(self::check(&key, check)?),
        (None, true) => new.check = None,
        (None, false) => (),
    }
    new.validate()?;
    Ok(new)
}

pub fn server(key: &Key, message: &v1::Server) -> Result<(IpAddr, Server), Error> {
    let address = server_address(key, &message.address)?;
    let server = Server {
        weight: weight(key, address, message.weight.unwrap_or(1))?,
        state: state(key, address, message.state)?,
        check_port: check_port(key, address, message.check_port)?,
    };
    Ok((address, server))
}

/// A server after an update of its values.
pub fn updated_server(
    key: &Key,
    address: IpAddr,
    mut server: Server,
    update: &v1::UpdateServerRequest,
) -> Result<Server, Error> {
    if let Some(weight) = update.weight {
        server.weight = self::weight(key, address, weight)?;
    }
    if let Some(state) = update.state {
        server.state = self::state(key, address, state)?;
    }
    if let Some(port) = update.check_port {
        server.check_port = check_port(key, address, port)?;
    }
    Ok(server)
}

pub fn server_address(key: &Key, text: &str) -> Result<IpAddr, Error> {
    address(text).ok_or_else(|| Error::value(owner(key), "server", text, "is no IP address"))
}

fn owner(key: &Key) -> String {
    format!("service {key}")
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// 1..=65535.
fn port(number: u32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}

/// 0 is none.
fn port_or_none(owner: String, field: &str, number: u32) -> Result<Option<u16>, Error> {
    match number {
        0 => Ok(None),
        _ => match port(number) {
            Some(port) => Ok(Some(port)),
            None => Err(Error::value(
                owner,
                field,
                number,
                "is not within 1 and 65535",
            )),
        },
    }
}

fn encapsulation(key: &Key, number: i32, tunnel_port: u32) -> Result<Encapsulation, Error> {
    let kind = v1::Encapsulation::try_from(number)
        .map_err(|_| Error::value(owner(key), "encapsulation", number, "is not known"))?;
    let port = port_or_none(owner(key), "tunnel_port", tunnel_port)?;
    let plain = match kind {
        v1::Encapsulation::Fou => return Ok(Encapsulation::Fou(port.unwrap_or(FOU_PORT))),
        v1::Encapsulation::Gue => return Ok(Encapsulation::Gue(port.unwrap_or(GUE_PORT))),
        v1::Encapsulation::Unspecified | v1::Encapsulation::L2 => Encapsulation::L2,
        v1::Encapsulation::Ipip => Encapsulation::Ipip,
        v1::Encapsulation::Gre => Encapsulation::Gre,
    };
    match port {
        None => Ok(plain),
        Some(port) => {
            let why = format!("goes with fou and gue, not with {plain}");
            Err(Error::value(owner(key), "tunnel_port", port, why))
        }
    }
}

fn weight(key: &Key, address: IpAddr, weight: u32) -> Result<u16, Error> {
    let fits = u16::try_from(weight).ok().filter(|weight| *weight != 0);
    fits.ok_or_else(|| {
        let owner = format!("service {key}, server {address}");
        Error::value(owner, "weight", weight, "is not within 1 and 65535")
    })
}

fn state(key: &Key, address: IpAddr, number: i32) -> Result<ServerState, Error> {
    match v1::ServerState::try_from(number) {
        Ok(v1::ServerState::Unspecified | v1::ServerState::Up) => Ok(ServerState::Up),
        Ok(v1::ServerState::Draining) => Ok(ServerState::Draining),
        Ok(v1::ServerState::Down) => Ok(ServerState::Down),
        Err(_) => {
            let owner = format!("service {key}, server {address}");
            Err(Error::value(owner, "state", number, "is not known"))
        }
    }
}

fn check_port(key: &Key, address: IpAddr, number: u32) -> Result<Option<u16>, Error> {
    port_or_none(
        format!("service {key}, server {address}"),
        "check_port",
        number,
    )
}

fn check(key: &Key, message: v1::HealthCheck) -> Result<Check, Error> {
    let default = Policy::default();
    let ms = |value: u32, default: Duration| match value {
        0 => default,
        _ => Duration::from_millis(value.into()),
    };
    let count = |value: u32, default: u32| if value == 0 { default } else { value };
    let interval = ms(message.interval_ms, default.interval);
    let check = Check {
        policy: Policy {
            interval,
            timeout: ms(message.timeout_ms, default.timeout.min(interval)),
            rise: count(message.rise, default.rise),
            fall: count(message.fall, default.fall),
        },
        port: port_or_none(owner(key), "check.port", message.port)?,
        kind: kind(key, message.kind)?,
    };
    Ok(check)
}

fn kind(key: &Key, kind: Option<ProtoKind>) -> Result<Kind, Error> {
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(match kind {
        None => {
            let why = "says neither tcp, http, dns nor command";
            return Err(Error::value(owner(key), "check.kind", "", why));
        }
        Some(ProtoKind::Tcp(_)) => Kind::Tcp,
        Some(ProtoKind::Http(http)) => {
            let default = Http::default();
            let head = match http.method.as_str() {
                "" | "GET" => false,
                "HEAD" => true,
                other => {
                    return Err(Error::value(
                        owner(key),
                        "check.http.method",
                        other,
                        "is not GET or HEAD",
                    ));
                }
            };
            let status = |status: &u32| {
                u16::try_from(*status).map_err(|_| {
                    Error::value(
                        owner(key),
                        "check.http.statuses",
                        status,
                        "is not within 100 and 599",
                    )
                })
            };
            Kind::Http(Http {
                tls: http.tls,
                head,
                path: text(http.path).unwrap_or(default.path),
                host: text(http.host),
                statuses: http.statuses.iter().map(status).collect::<Result<_, _>>()?,
            })
        }
        Some(ProtoKind::Dns(dns)) => {
            let default = Dns::default();
            let named = !dns.name.is_empty();
            Kind::Dns(Dns {
                tcp: dns.tcp,
                name: text(dns.name).unwrap_or(default.name),
                record: text(dns.r#type).unwrap_or(if named { "A".into() } else { default.record }),
            })
        }
        Some(ProtoKind::Command(command)) => Kind::Command(Command(command.words)),
    })
}

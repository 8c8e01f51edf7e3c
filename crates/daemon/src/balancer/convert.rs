//! Messages of the API into the model. Whatever is wrong is a sentence that names the field and the
//! value.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use api::v1;
use api::v1::health_check::Kind as ProtoKind;
use control::Error;
use control::model::{
    DeclaredServer, DeclaredService, DeclaredServices, Interface, Protocol, ServiceKey, State,
    Tunnel, Weight, service_key,
};
use health::{Check, Command, Dns, Http, Kind, Policy};

use crate::v1::interface;

/// Where FOU servers listen unless told otherwise: what Linux's manual pages show.
const FOU_PORT: NonZeroU16 = NonZeroU16::new(5555).unwrap();
/// Where GUE servers listen (IANA).
const GUE_PORT: NonZeroU16 = NonZeroU16::new(6080).unwrap();

/// A field that the request cannot do without.
pub fn required<T>(field: Option<T>, name: &str) -> Result<T, Error> {
    field.ok_or_else(|| Error::Invalid(format!("the request has no {name}")))
}

pub fn key(key: &v1::ServiceKey) -> Result<ServiceKey, Error> {
    let refuse =
        |field: &'static str, value: String, why: &str| Error::value("service", field, &value, why);
    let vip =
        address(&key.vip).ok_or_else(|| refuse("vip", key.vip.clone(), "is no IP address"))?;
    let number = match key.protocol {
        0 => Some(Protocol::Tcp),
        number => u8::try_from(number).ok().and_then(Protocol::from_number),
    };
    let protocol = number.ok_or_else(|| {
        let why = "is not 6 (TCP), 17 (UDP) or 132 (SCTP)";
        refuse("protocol", key.protocol.to_string(), why)
    })?;
    let port = match (key.all_ports, key.port) {
        (true, 0) => None,
        (true, port) => return Err(refuse("port", port.to_string(), "contradicts all_ports")),
        (false, port) => Some(
            self::port(port)
                .ok_or_else(|| refuse("port", port.to_string(), "is not within 1 and 65535"))?,
        ),
    };
    service_key(vip, protocol, port)
}

/// A configuration: every service valid, no two of one key; and the interfaces, if they are given.
pub fn config(
    config: v1::BalancerConfig,
) -> Result<(DeclaredServices, Option<Vec<Interface>>), Error> {
    let mut services = DeclaredServices::new();
    for message in config.services {
        let service = service(message)?;
        let key = service.key;
        if services.insert(key, Arc::new(service)).is_some() {
            return Err(Error::Invalid(format!("service {key:#} is there twice")));
        }
    }
    let interfaces = config.interfaces.map(|given| {
        let wanted = |one: &v1::BalancerInterface| interface::wanted(&one.name, one.mode);
        given.interfaces.iter().map(wanted).collect()
    });
    Ok((services, interfaces.transpose()?))
}

pub fn service(message: v1::Service) -> Result<DeclaredService, Error> {
    let key = key(&required(message.key, "service.key")?)?;
    let mut servers = BTreeMap::new();
    for message in &message.servers {
        let (address, server) = server(&key, message)?;
        if servers.insert(address, server).is_some() {
            let why = "is there twice";
            return Err(Error::value(
                &owner(&key),
                "server",
                &address.to_string(),
                why,
            ));
        }
    }
    let service = DeclaredService {
        key,
        tunnel: tunnel(&key, message.encapsulation, message.tunnel_port)?,
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
pub fn updated(
    service: &DeclaredService,
    update: v1::UpdateServiceRequest,
) -> Result<DeclaredService, Error> {
    let key = service.key;
    let mut new = service.clone();
    match (update.encapsulation, update.tunnel_port) {
        (Some(kind), port) => new.tunnel = tunnel(&key, kind, port.unwrap_or_default())?,
        (None, Some(port)) => {
            let (kind, _) = super::render::encapsulation(service.tunnel);
            new.tunnel = tunnel(&key, kind.into(), port)?;
        }
        (None, None) => (),
    }
    new.sticky = update.sticky.unwrap_or(new.sticky);
    new.min_healthy = update.min_healthy.unwrap_or(new.min_healthy);
    match (update.check, update.no_check) {
        (Some(_), true) => {
            return Err(Error::Invalid(format!(
                "service {key:#}: check and no_check contradict each other"
            )));
        }
        (Some(check), false) => new.check = Some(self::check(&key, check)?),
        (None, true) => new.check = None,
        (None, false) => (),
    }
    new.validate()?;
    Ok(new)
}

pub fn server(key: &ServiceKey, message: &v1::Server) -> Result<(IpAddr, DeclaredServer), Error> {
    let address = server_address(key, &message.address)?;
    let server = DeclaredServer {
        weight: weight(key, address, message.weight.unwrap_or(1))?,
        state: state(key, address, message.state)?,
        check_port: check_port(key, address, message.check_port)?,
    };
    Ok((address, server))
}

/// A server after an update of its values.
pub fn updated_server(
    key: &ServiceKey,
    address: IpAddr,
    mut server: DeclaredServer,
    update: &v1::UpdateServerRequest,
) -> Result<DeclaredServer, Error> {
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

pub fn server_address(key: &ServiceKey, text: &str) -> Result<IpAddr, Error> {
    address(text).ok_or_else(|| Error::value(&owner(key), "server", text, "is no IP address"))
}

fn owner(key: &ServiceKey) -> String {
    format!("service {key:#}")
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// 1..=65535.
fn port(number: u32) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

/// 0 is none.
fn port_or_none(
    owner: &str,
    field: &'static str,
    number: u32,
) -> Result<Option<NonZeroU16>, Error> {
    match (number, port(number)) {
        (0, _) => Ok(None),
        (_, Some(port)) => Ok(Some(port)),
        _ => {
            let why = "is not within 1 and 65535";
            Err(Error::value(owner, field, &number.to_string(), why))
        }
    }
}

fn tunnel(key: &ServiceKey, number: i32, tunnel_port: u32) -> Result<Tunnel, Error> {
    let owner = owner(key);
    let kind = v1::Encapsulation::try_from(number)
        .map_err(|_| Error::value(&owner, "encapsulation", &number.to_string(), "is not known"))?;
    let port = port_or_none(&owner, "tunnel_port", tunnel_port)?;
    let plain = match kind {
        v1::Encapsulation::Fou => {
            let port = port.unwrap_or(FOU_PORT);
            return Ok(Tunnel::Fou { port });
        }
        v1::Encapsulation::Gue => {
            let port = port.unwrap_or(GUE_PORT);
            return Ok(Tunnel::Gue { port });
        }
        v1::Encapsulation::Unspecified | v1::Encapsulation::L2 => Tunnel::None,
        v1::Encapsulation::Ipip => Tunnel::Ipip,
        v1::Encapsulation::Gre => Tunnel::Gre,
    };
    match port {
        None => Ok(plain),
        Some(port) => {
            let why = format!("goes with fou and gue, not with {plain}");
            Err(Error::value(&owner, "tunnel_port", &port.to_string(), &why))
        }
    }
}

fn server_owner(key: &ServiceKey, address: IpAddr) -> String {
    format!("service {key:#}, server {address}")
}

fn weight(key: &ServiceKey, address: IpAddr, weight: u32) -> Result<Weight, Error> {
    let fits = u16::try_from(weight).ok();
    let fits = fits.and_then(|weight| Weight::new(weight).ok());
    fits.ok_or_else(|| {
        let why = "is not within 1 and 65535";
        let owner = server_owner(key, address);
        Error::value(&owner, "weight", &weight.to_string(), why)
    })
}

fn state(key: &ServiceKey, address: IpAddr, number: i32) -> Result<State, Error> {
    match v1::ServerState::try_from(number) {
        Ok(v1::ServerState::Unspecified | v1::ServerState::Up) => Ok(State::Up),
        Ok(v1::ServerState::Draining) => Ok(State::Draining),
        Ok(v1::ServerState::Down) => Ok(State::Down),
        Err(_) => {
            let owner = server_owner(key, address);
            Err(Error::value(
                &owner,
                "state",
                &number.to_string(),
                "is not known",
            ))
        }
    }
}

fn check_port(key: &ServiceKey, address: IpAddr, number: u32) -> Result<Option<u16>, Error> {
    let port = port_or_none(&server_owner(key, address), "check_port", number)?;
    Ok(port.map(NonZeroU16::get))
}

fn check(key: &ServiceKey, message: v1::HealthCheck) -> Result<Check, Error> {
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
        port: port_or_none(&owner(key), "check.port", message.port)?.map(NonZeroU16::get),
        kind: kind(key, message.kind)?,
    };
    Ok(check)
}

fn kind(key: &ServiceKey, kind: Option<ProtoKind>) -> Result<Kind, Error> {
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(match kind {
        None => {
            let why = "says neither tcp, http, dns nor command";
            return Err(Error::value(&owner(key), "check.kind", "", why));
        }
        Some(ProtoKind::Tcp(_)) => Kind::Tcp,
        Some(ProtoKind::Http(http)) => {
            let default = Http::default();
            let head = match http.method.as_str() {
                "" | "GET" => false,
                "HEAD" => true,
                other => {
                    let why = "is not GET or HEAD";
                    return Err(Error::value(&owner(key), "check.http.method", other, why));
                }
            };
            let status = |status: &u32| {
                u16::try_from(*status).map_err(|_| {
                    let why = "is not within 100 and 599";
                    let status = status.to_string();
                    Error::value(&owner(key), "check.http.statuses", &status, why)
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

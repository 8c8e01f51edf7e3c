//! What `butterfly balance` is asked to balance: every VIP, protocol and port, each a service of
//! all the servers.

use std::net::IpAddr;
use std::num::NonZeroU16;

use api::v1;
use balancer::{Protocol, Server, Service, ServiceKey, Services, Tunnel, Weight};
use clap::{Args, ValueEnum};

use super::service_options::Encapsulation;
use super::service_words::server;
use crate::error::Error;

/// Services and how packets reach their servers.
#[derive(Args, Debug)]
pub struct ServicesArgs {
    /// The address that clients know
    #[arg(value_name = "VIP")]
    vip: IpAddr,
    /// Servers: ADDRESS, or ADDRESS*WEIGHT
    #[arg(required = true, value_name = "SERVER", value_parser = server)]
    servers: Vec<v1::Server>,
    /// Another VIP, of the same servers; may be repeated
    #[arg(long = "vip", value_name = "VIP")]
    other_vips: Vec<IpAddr>,
    /// The protocol; several: tcp,udp
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PROTOCOL",
        default_value = "tcp",
        ignore_case = true
    )]
    proto: Vec<Proto>,
    /// The port of each VIP, or all; several: 80,443
    #[arg(short, long = "port", value_name = "PORT", default_value = "80", value_delimiter = ',',
        value_parser = port)]
    ports: Vec<Port>,
    /// How packets reach the servers
    #[arg(long, value_name = "HOW", default_value = "l2", ignore_case = true)]
    encapsulation: Encapsulation,
    /// fou, gue: the UDP port that the servers listen on [default: 5555, 6080]
    #[arg(long, value_name = "PORT")]
    tunnel_port: Option<NonZeroU16>,
    /// fou: the same for IPv6 VIPs, whose packets Linux takes by a port of their own [default:
    /// --tunnel-port's]
    #[arg(long, value_name = "PORT")]
    tunnel_port6: Option<NonZeroU16>,
    /// All flows of a client go to one server
    #[arg(short, long)]
    sticky: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Proto {
    Tcp,
    Udp,
    Sctp,
}

impl Proto {
    fn number(self) -> Protocol {
        match self {
            Proto::Tcp => Protocol::Tcp,
            Proto::Udp => Protocol::Udp,
            Proto::Sctp => Protocol::Sctp,
        }
    }
}

/// A port; none: all.
#[derive(Debug, Clone, Copy)]
struct Port(Option<NonZeroU16>);

fn port(text: &str) -> Result<Port, String> {
    match text {
        "all" => Ok(Port(None)),
        number => number
            .parse()
            .map(|port| Port(Some(port)))
            .map_err(|_| "a port is a number within 1 and 65535, or all".into()),
    }
}

impl ServicesArgs {
    /// What it comes to.
    pub fn services(&self) -> Result<Services, Error> {
        let servers = self.servers()?;
        let mut services = Services::new();
        for vip in std::iter::once(self.vip).chain(self.other_vips.iter().copied()) {
            let tunnel = self.tunnel(vip.is_ipv6())?;
            // On layer 2 only servers of the VIP's family fit: frames to the others would be of the
            // other family.
            let fits = |server: &&Server| {
                tunnel != Tunnel::None || server.address().is_ipv4() == vip.is_ipv4()
            };
            let its: Vec<Server> = servers
                .iter()
                .filter(fits)
                .map(|server| server.tunnel(tunnel))
                .collect();
            if its.is_empty() {
                return Err(Error::Usage(format!(
                    "VIP {vip} has no server of its family: give one, or an --encapsulation"
                )));
            }
            for key in self.keys(vip)? {
                let service = its.iter().copied().fold(Service::new(key), Service::with);
                if services.set(service.sticky(self.sticky)).is_some() {
                    return Err(Error::Usage(format!("service {key} is there twice")));
                }
            }
        }
        let idle = servers
            .iter()
            .find(|server| !services.targets().contains(&server.address()));
        match idle {
            Some(idle) => Err(Error::Usage(format!(
                "server {} is of another family than every VIP: give an --encapsulation",
                idle.address()
            ))),
            None => Ok(services),
        }
    }

    fn keys(&self, vip: IpAddr) -> Result<Vec<ServiceKey>, Error> {
        let mut keys = Vec::new();
        for proto in &self.proto {
            for port in &self.ports {
                let key = ServiceKey::new(vip, proto.number(), port.0);
                keys.push(key.map_err(|e| Error::Usage(e.to_string()))?);
            }
        }
        Ok(keys)
    }

    fn servers(&self) -> Result<Vec<Server>, Error> {
        let mut servers: Vec<Server> = Vec::new();
        for given in &self.servers {
            let address: IpAddr = given
                .address
                .parse()
                .expect("parsed as an address with the arguments");
            let weight = u16::try_from(given.weight()).unwrap_or(1).max(1);
            let one = Server::new(address)
                .and_then(|server| Ok(server.weight(Weight::new(weight)?)))
                .map_err(|e| Error::Usage(e.to_string()))?;
            if servers.iter().any(|other| other.address() == address) {
                return Err(Error::Usage(format!("server {address} is there twice")));
            }
            servers.push(one);
        }
        Ok(servers)
    }

    /// To the servers of a VIP, of IPv6 or IPv4.
    fn tunnel(&self, v6: bool) -> Result<Tunnel, Error> {
        const FOU: NonZeroU16 = NonZeroU16::new(5555).unwrap();
        const GUE: NonZeroU16 = NonZeroU16::new(6080).unwrap();
        let strange = match self.encapsulation {
            Encapsulation::Fou => None,
            Encapsulation::Gue => self.tunnel_port6.map(|_| ("--tunnel-port6", "fou")),
            _ => (self.tunnel_port.map(|_| ("--tunnel-port", "fou or gue")))
                .or(self.tunnel_port6.map(|_| ("--tunnel-port6", "fou"))),
        };
        if let Some((option, goes_with)) = strange {
            return Err(Error::Usage(format!(
                "{option} goes with --encapsulation {goes_with}"
            )));
        }
        let own = self.tunnel_port6.filter(|_| v6).or(self.tunnel_port);
        Ok(match self.encapsulation {
            Encapsulation::L2 => Tunnel::None,
            Encapsulation::Ipip => Tunnel::Ipip,
            Encapsulation::Gre => Tunnel::Gre,
            Encapsulation::Fou => Tunnel::Fou {
                port: own.unwrap_or(FOU),
            },
            Encapsulation::Gue => Tunnel::Gue {
                port: own.unwrap_or(GUE),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        services: ServicesArgs,
    }

    /// Services and their servers, one a line.
    fn services(line: &str) -> Result<Vec<String>, String> {
        let words = std::iter::once("balance").chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|e| e.to_string())?;
        let services = line.services.services().map_err(|e| e.to_string())?;
        let words = |service: &Service| {
            let servers = service
                .servers()
                .map(|server| format!(" {}", server.address()));
            format!("{}{}", service.key(), servers.collect::<String>())
        };
        Ok(services.iter().map(words).collect())
    }

    #[test]
    fn every_vip_has_every_port() {
        assert_eq!(
            services("192.0.2.1 10.0.0.1 10.0.0.2*3 --vip 192.0.2.2 -p 80,443").unwrap(),
            [
                "192.0.2.1:80/tcp 10.0.0.1 10.0.0.2",
                "192.0.2.1:443/tcp 10.0.0.1 10.0.0.2",
                "192.0.2.2:80/tcp 10.0.0.1 10.0.0.2",
                "192.0.2.2:443/tcp 10.0.0.1 10.0.0.2",
            ]
        );
        assert_eq!(
            services("192.0.2.1 10.0.0.1").unwrap(),
            ["192.0.2.1:80/tcp 10.0.0.1"]
        );
        assert_eq!(
            services("192.0.2.1 10.0.0.1 --proto udp --proto tcp --port 53").unwrap(),
            ["192.0.2.1:53/tcp 10.0.0.1", "192.0.2.1:53/udp 10.0.0.1"]
        );
    }

    #[test]
    fn neighbours_are_of_their_vip_s_family() {
        assert_eq!(
            services("192.0.2.1 10.0.0.1 fd00::1 --vip 2001:db8::1").unwrap(),
            ["192.0.2.1:80/tcp 10.0.0.1", "[2001:db8::1]:80/tcp fd00::1"]
        );
        for (line, why) in [
            ("192.0.2.1 fd00::1", "VIP 192.0.2.1 has no server"),
            (
                "192.0.2.1 10.0.0.1 fd00::1",
                "server fd00::1 is of another family",
            ),
        ] {
            let said = services(line).unwrap_err();
            assert!(said.starts_with(why), "{said}");
            assert!(
                services(&format!("{line} --encapsulation gre")).is_ok(),
                "{line}"
            );
        }
    }

    #[test]
    fn a_tunnel_s_port_goes_by_the_vip_s_family() {
        let line = "192.0.2.1 10.0.0.1 --vip 2001:db8::1 --encapsulation fou --tunnel-port 9999 \
                    --tunnel-port6 6666";
        let words = std::iter::once("balance").chain(line.split(' '));
        let services = Line::try_parse_from(words).unwrap().services.services();
        let services = services.unwrap();
        let ports: Vec<Tunnel> = services
            .iter()
            .flat_map(|service| {
                service
                    .servers()
                    .map(|server| server.tunnel)
                    .collect::<Vec<_>>()
            })
            .collect();
        let fou = |port| Tunnel::Fou {
            port: NonZeroU16::new(port).unwrap(),
        };
        assert_eq!(ports, [fou(9999), fou(6666)]);
        for options in [
            "--tunnel-port 1",
            "--tunnel-port6 1",
            "--encapsulation gue --tunnel-port6 1",
        ] {
            let said = self::services(&format!("192.0.2.1 10.0.0.1 {options}")).unwrap_err();
            assert!(said.contains("goes with --encapsulation"), "{said}");
        }
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        for line in [
            "192.0.2.1 10.0.0.1 10.0.0.1",
            "192.0.2.1 10.0.0.1 --vip 192.0.2.1",
            "192.0.2.1 10.0.0.1 -p 80 -p 80",
        ] {
            let said = services(line).unwrap_err();
            assert!(said.ends_with("is there twice"), "{said}");
        }
    }
}

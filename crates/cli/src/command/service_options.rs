//! The options that describe a service beside its health check, which is
//! [`super::check_options`]'s.

use api::v1;
use clap::{Args, ValueEnum};

use super::check_options::CheckOptions;
use crate::error::Error;

/// How packets reach the servers.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// To the server's MAC address, as they are (also: none)
    #[value(alias = "none")]
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
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false")]
    sticky: Option<bool>,
    /// With fewer healthy servers the service is withdrawn [default: 1]
    #[arg(long, value_name = "SERVERS")]
    min_healthy: Option<u32>,
    #[command(flatten)]
    check: CheckOptions,
}

impl ServiceOptions {
    /// A new service of these options.
    pub fn service(
        &self,
        key: &v1::ServiceKey,
        servers: Vec<v1::Server>,
    ) -> Result<v1::Service, Error> {
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
            no_check: self.check.is_none(),
        })
    }

    /// Part of a check is to change, and the rest is the daemon's to say.
    pub fn needs_old_check(&self) -> bool {
        self.check.is_given() && !self.check.is_none()
    }
}

//! The options that describe a service's health check: `--check` and what goes with it.

use api::v1;
use api::v1::health_check::Kind;
use clap::{Args, ValueEnum};

use crate::error::Error;

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

/// How the servers' health is found out.
#[derive(Args, Debug)]
#[command(next_help_heading = "Health check")]
pub struct CheckOptions {
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

impl CheckOptions {
    /// Something is said of a check.
    pub fn is_given(&self) -> bool {
        self.check.is_some()
            || self.check_port.is_some()
            || [
                self.check_interval,
                self.check_timeout,
                self.rise,
                self.fall,
            ]
            .iter()
            .any(Option::is_some)
            || self.has_details()
    }

    /// No check is what is asked for.
    pub fn is_none(&self) -> bool {
        self.check == Some(CheckKind::None)
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
    pub fn check(&self, old: Option<v1::HealthCheck>) -> Result<Option<v1::HealthCheck>, Error> {
        let old_kind = old.as_ref().and_then(|old| old.kind.clone());
        let kind = match (self.check, old_kind) {
            (Some(CheckKind::None), _) => return Ok(None),
            (None, None) if self.is_given() => {
                return Err(Error::Usage(
                    "there is no check yet: --check says what is asked (tcp, http, https, dns, \
                     dns-tcp, command)"
                        .into(),
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

    /// `new` with what is given; the rest is the old one's, if that does the same.
    fn kind(&self, new: Kind, old: Option<Kind>) -> Result<Kind, Error> {
        self.refuse_strangers(&new)?;
        let text = |given: &Option<String>, old: String| given.clone().unwrap_or(old);
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

    /// Options that another kind of check has.
    fn refuse_strangers(&self, kind: &Kind) -> Result<(), Error> {
        let http = (matches!(kind, Kind::Http(_)), "http or https");
        let dns = (matches!(kind, Kind::Dns(_)), "dns or dns-tcp");
        let command = (matches!(kind, Kind::Command(_)), "command");
        for (given, option, (fits, goes_with)) in [
            (self.check_path.is_some(), "--check-path", http),
            (self.check_host.is_some(), "--check-host", http),
            (self.check_method.is_some(), "--check-method", http),
            (!self.check_status.is_empty(), "--check-status", http),
            (self.check_name.is_some(), "--check-name", dns),
            (self.check_type.is_some(), "--check-type", dns),
            (self.check_command.is_some(), "--check-command", command),
        ] {
            if given && !fits {
                return Err(Error::Usage(format!(
                    "{option} goes with --check {goes_with}"
                )));
            }
        }
        Ok(())
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

//! What a check is: how often, how many results count, and what is done. Valid by construction:
//! every value here has been through [`Check::validate`] or is a default.

use std::fmt;
use std::time::Duration;

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};

#[cfg(feature = "probe")]
use crate::programs::Programs;

/// When a server is asked, and how many answers in a row count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Between the beginnings of two checks: 100 ms to an hour.
    pub interval: Duration,
    /// A check that takes longer has failed: 10 ms to a minute, not more than the interval.
    pub timeout: Duration,
    /// Successes in a row that make a server healthy: 1 to 100.
    pub rise: u32,
    /// Failures in a row that make it unhealthy: 1 to 100.
    pub fall: u32,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
        }
    }
}

/// A check of a service's servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// When, and how many results count.
    pub policy: Policy,
    /// Where to; `None`: the service's own port.
    pub port: Option<u16>,
    /// What is done.
    pub kind: Kind,
}

/// What a check does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Makes a TCP connection, and resets it.
    Tcp,
    /// Makes an HTTP request.
    Http(Http),
    /// Asks a DNS server.
    Dns(Dns),
    /// Runs a program.
    Command(Command),
}

/// An HTTP request and the answers that are well.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "probe", derive(serde::Serialize, serde::Deserialize))]
pub struct Http {
    /// Over TLS; a certificate by any signer will do.
    pub tls: bool,
    /// HEAD instead of GET.
    pub head: bool,
    /// Path and query; begins with `/`.
    pub path: String,
    /// The Host field and TLS's server name; `None`: the service's address, and no server name.
    pub host: Option<String>,
    /// Statuses that are well; empty: 200 to 399.
    pub statuses: Vec<u16>,
}

impl Default for Http {
    fn default() -> Http {
        Http {
            tls: false,
            head: false,
            path: "/".into(),
            host: None,
            statuses: Vec::new(),
        }
    }
}

/// A DNS query.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "probe", derive(serde::Serialize, serde::Deserialize))]
pub struct Dns {
    /// Over TCP instead of UDP.
    pub tcp: bool,
    /// The name that is asked for.
    pub name: String,
    /// The record's type, as `A` or `TYPE65`.
    pub record: String,
}

impl Default for Dns {
    fn default() -> Dns {
        Dns {
            tcp: false,
            name: ".".into(),
            record: "NS".into(),
        }
    }
}

/// A program with its arguments: the first word is an absolute path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command(pub Vec<String>);

/// What a check is told of the server it asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The service's address and the port of the check.
    pub service: std::net::SocketAddr,
    /// `tcp`, `udp` or `sctp`: the service's protocol.
    pub protocol: &'static str,
    /// The server's address.
    pub server: std::net::IpAddr,
}

/// A value that a check cannot have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckError {
    /// The value's name, as in the API.
    pub field: &'static str,
    /// The value.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
}

impl Check {
    /// Finds what this host does not run: [`validate`](Check::validate) finds the rest.
    #[cfg(feature = "probe")]
    pub fn admit(&self, programs: &Programs) -> Result<(), CheckError> {
        match &self.kind {
            Kind::Command(command) => programs.program(command).map(drop),
            Kind::Tcp | Kind::Http(_) | Kind::Dns(_) => Ok(()),
        }
    }

    /// What its line does not say: a program's arguments, a URL's query.
    pub fn left_out(&self) -> (&[String], Option<&str>) {
        match &self.kind {
            Kind::Command(command) => (command.program_and_arguments().1, None),
            Kind::Http(http) => (&[], http.path_and_query().1),
            Kind::Tcp | Kind::Dns(_) => (&[], None),
        }
    }

    /// Finds what is out of bounds.
    pub fn validate(&self) -> Result<(), CheckError> {
        let Policy {
            interval,
            timeout,
            rise,
            fall,
        } = self.policy;
        within("interval_ms", interval.as_millis(), 100..=3_600_000)?;
        within("timeout_ms", timeout.as_millis(), 10..=60_000)?;
        if timeout > interval {
            let why = format!("is more than the interval of {} ms", interval.as_millis());
            return Err(error("timeout_ms", timeout.as_millis(), why));
        }
        within("rise", rise, 1..=100)?;
        within("fall", fall, 1..=100)?;
        match &self.kind {
            Kind::Tcp => Ok(()),
            Kind::Http(http) => http.validate(),
            Kind::Dns(dns) => dns.validate(),
            Kind::Command(command) => command.validate(),
        }
    }
}

/// In a line, for people: `http GET / every 2000 ms within 1000 ms, rise 2, fall 3`. Without what
/// may be a secret ([`Check::left_out`]), since such lines are logged.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Tcp => f.write_str("tcp")?,
            Kind::Http(http) => {
                let (scheme, method) = (
                    if http.tls { "https" } else { "http" },
                    if http.head { "HEAD" } else { "GET" },
                );
                let (path, query) = http.path_and_query();
                write!(f, "{scheme} {method} {path}")?;
                if query.is_some() {
                    f.write_str("?(left out)")?;
                }
                if let Some(host) = &http.host {
                    write!(f, " host {host}")?;
                }
                if !http.statuses.is_empty() {
                    write!(f, " statuses {:?}", http.statuses)?;
                }
            }
            Kind::Dns(dns) => {
                let transport = if dns.tcp { "tcp" } else { "udp" };
                write!(f, "dns {transport} {} {}", dns.name, dns.record)?;
            }
            Kind::Command(command) => {
                let (program, arguments) = command.program_and_arguments();
                write!(f, "command {program}")?;
                if !arguments.is_empty() {
                    write!(f, " ({} words left out)", arguments.len())?;
                }
            }
        }
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        let Policy {
            interval,
            timeout,
            rise,
            fall,
        } = self.policy;
        let (every, within) = (interval.as_millis(), timeout.as_millis());
        write!(
            f,
            " every {every} ms within {within} ms, rise {rise}, fall {fall}"
        )
    }
}

impl Http {
    fn path_and_query(&self) -> (&str, Option<&str>) {
        match self.path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&self.path, None),
        }
    }

    fn validate(&self) -> Result<(), CheckError> {
        let (path, _) = self.path_and_query();
        if !path.starts_with('/') {
            return Err(error("http.path", path, "does not begin with /"));
        }
        if self.path.parse::<http::Uri>().is_err() {
            return Err(error("http.path", path, "is no path of a URL (RFC 3986)"));
        }
        let host = self.host.as_deref();
        if let Some(host) = host.filter(|host| host.parse::<http::uri::Authority>().is_err()) {
            return Err(error("http.host", host, "is no host name"));
        }
        self.statuses
            .iter()
            .try_for_each(|status| within("http.statuses", *status, 100..=599))
    }
}

impl Dns {
    fn validate(&self) -> Result<(), CheckError> {
        self.question().map(drop)
    }

    /// The query's question, if there is such a name and type.
    pub(crate) fn question(&self) -> Result<Query, CheckError> {
        let name = Name::from_ascii(&self.name)
            .map_err(|e| error("dns.name", &self.name, e.to_string()))?;
        let number = self
            .record
            .strip_prefix("TYPE")
            .unwrap_or(&self.record)
            .parse::<u16>();
        let record = match number {
            Ok(number) => RecordType::from(number),
            Err(_) => self
                .record
                .to_uppercase()
                .parse()
                .map_err(|_| error("dns.type", &self.record, "is no type of a DNS record"))?,
        };
        let mut name = name;
        name.set_fqdn(true);
        Ok(Query::query(name, record))
    }
}

impl Command {
    fn program_and_arguments(&self) -> (&str, &[String]) {
        match self.0.split_first() {
            Some((program, arguments)) => (program, arguments),
            None => ("", &[]),
        }
    }

    fn validate(&self) -> Result<(), CheckError> {
        let (program, _) = self.program_and_arguments();
        if !program.starts_with('/') {
            return Err(error(
                "command.words",
                program,
                "is not the absolute path of a program",
            ));
        }
        within("command.words", self.0.len(), 1..=64)?;
        match self.0.iter().find(|word| word.contains('\0')) {
            Some(word) => Err(error(
                "command.words",
                word.escape_debug(),
                "has a NUL character",
            )),
            None => Ok(()),
        }
    }
}

pub(crate) fn error(
    field: &'static str,
    value: impl ToString,
    why: impl Into<String>,
) -> CheckError {
    CheckError {
        field,
        value: value.to_string(),
        why: why.into(),
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), CheckError> {
    match range.contains(&value) {
        true => Ok(()),
        false => {
            let why = format!("is not within {} and {}", range.start(), range.end());
            Err(error(field, value, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: Kind) -> Check {
        Check {
            policy: Policy::default(),
            port: None,
            kind,
        }
    }

    #[test]
    fn defaults_are_valid() {
        for kind in [
            Kind::Tcp,
            Kind::Http(Http::default()),
            Kind::Dns(Dns::default()),
        ] {
            assert_eq!(check(kind).validate(), Ok(()));
        }
    }

    #[test]
    fn a_check_is_a_line() {
        let http = Http {
            tls: true,
            host: Some("a.b".into()),
            statuses: vec![200],
            ..Http::default()
        };
        assert_eq!(
            check(Kind::Http(http)).to_string(),
            "https GET / host a.b statuses [200] every 2000 ms within 1000 ms, rise 2, fall 3"
        );
    }

    /// Lines are logged, and logs are given away.
    #[test]
    fn a_line_has_neither_arguments_nor_queries() {
        let words = ["/probe", "--password", "hunter2"].map(String::from);
        let line = check(Kind::Command(Command(words.to_vec()))).to_string();
        assert!(
            line.starts_with("command /probe (2 words left out) every "),
            "{line}"
        );
        let path = |path: &str| Http {
            path: path.into(),
            ..Http::default()
        };
        let line = check(Kind::Http(path("/up?key=hunter2"))).to_string();
        assert!(line.starts_with("http GET /up?(left out) every "), "{line}");
        for wrong in ["/a b?key=hunter2", "up?key=hunter2"] {
            let error = check(Kind::Http(path(wrong))).validate().unwrap_err();
            assert!(!error.value.contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let policy = |change: &dyn Fn(&mut Policy)| {
            let mut check = check(Kind::Tcp);
            change(&mut check.policy);
            check.validate()
        };
        let ms = Duration::from_millis;
        let http = |http: Http| check(Kind::Http(http)).validate();
        let dns = |name: &str, record: &str| {
            check(Kind::Dns(Dns {
                name: name.into(),
                record: record.into(),
                tcp: false,
            }))
            .validate()
        };
        let command = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            check(Kind::Command(Command(words))).validate()
        };
        let table = [
            (policy(&|p| p.interval = ms(99)), "interval_ms", "99"),
            (
                policy(&|p| p.interval = ms(3_600_001)),
                "interval_ms",
                "3600001",
            ),
            (policy(&|p| p.timeout = ms(9)), "timeout_ms", "9"),
            (policy(&|p| p.timeout = ms(2001)), "timeout_ms", "2001"),
            (policy(&|p| p.rise = 0), "rise", "0"),
            (policy(&|p| p.fall = 101), "fall", "101"),
            (
                http(Http {
                    path: "status".into(),
                    ..Http::default()
                }),
                "http.path",
                "status",
            ),
            (
                http(Http {
                    path: "/a b".into(),
                    ..Http::default()
                }),
                "http.path",
                "/a b",
            ),
            (
                http(Http {
                    host: Some("a b".into()),
                    ..Http::default()
                }),
                "http.host",
                "a b",
            ),
            (
                http(Http {
                    statuses: vec![200, 99],
                    ..Http::default()
                }),
                "http.statuses",
                "99",
            ),
            (dns("a..b", "A"), "dns.name", "a..b"),
            (dns("a.b", "NONSENSE"), "dns.type", "NONSENSE"),
            (command(&[]), "command.words", ""),
            (command(&["true"]), "command.words", "true"),
            (command(&["/bin/true", "a\0b"]), "command.words", "a\\0b"),
        ];
        for (result, field, value) in table {
            let error = result.unwrap_err();
            assert_eq!(
                (error.field, error.value.as_str()),
                (field, value),
                "{error:?}"
            );
        }
    }
}

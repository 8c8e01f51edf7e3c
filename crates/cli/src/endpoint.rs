//! Where the daemon is, and which API it speaks there: the scheme of the endpoint decides.

use std::fmt;
use std::path::PathBuf;

use crate::error::Error;

/// Where API v1 listens unless told otherwise.
pub const DEFAULT_V1: &str = "unix:/run/butterfly/api.sock";
/// Where API v0 listens unless told otherwise; the default once a key (`-k`) is given, which only
/// v0 has.
pub const DEFAULT_V0: &str = "tcp://127.0.0.1:9999";

/// A parsed endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// API v0 over ZeroMQ: `tcp://HOST:PORT` or `ipc://PATH`, as ZeroMQ writes it.
    ZeroMq(String),
    /// API v1 on a unix socket.
    Unix(PathBuf),
    /// API v1 over TCP with mutual TLS: the authority, `HOST:PORT`.
    Tls(String),
}

impl Endpoint {
    /// Something is where the daemon listens by default.
    pub fn default_is_there() -> bool {
        let path = DEFAULT_V1.trim_start_matches("unix:");
        std::path::Path::new(path).exists()
    }

    /// Reads `unix:PATH` (or an absolute path), `https://HOST:PORT` (or `tcp:HOST:PORT`, as
    /// `butterflyd --api` writes it), `tcp://HOST:PORT`, `ipc://PATH`.
    pub fn parse(text: &str) -> Result<Endpoint, Error> {
        let wrong = |why: &str| Err(Error::Usage(format!("endpoint {text:?}: {why}")));
        if let Some(authority) = text.strip_prefix("tcp://") {
            return match host_port(authority) {
                true => Ok(Endpoint::ZeroMq(text.into())),
                false => wrong("expected tcp://HOST:PORT"),
            };
        }
        if let Some(path) = text.strip_prefix("ipc://") {
            return if path.is_empty() {
                wrong("no path")
            } else {
                Ok(Endpoint::ZeroMq(text.into()))
            };
        }
        let path = text.strip_prefix("unix://").or(text.strip_prefix("unix:"));
        if let Some(path) = path.or(text.starts_with('/').then_some(text)) {
            return if path.is_empty() {
                wrong("no path")
            } else {
                Ok(Endpoint::Unix(path.into()))
            };
        }
        if let Some(authority) = text.strip_prefix("https://").or(text.strip_prefix("tcp:")) {
            let authority = authority.trim_end_matches('/');
            return match host_port(authority) {
                true => Ok(Endpoint::Tls(authority.into())),
                false => wrong("expected https://HOST:PORT"),
            };
        }
        if text.starts_with("http://") {
            return wrong(
                "API v1 over TCP is spoken under TLS only: use https://HOST:PORT with --tls-cert, \
                 --tls-key and --tls-ca",
            );
        }
        wrong(
            "expected unix:PATH or https://HOST:PORT (API v1), tcp://HOST:PORT or ipc://PATH (API \
             v0)",
        )
    }
}

/// `HOST:PORT`, an IPv6 host in brackets.
fn host_port(authority: &str) -> bool {
    let Some((host, port)) = authority.rsplit_once(':') else {
        return false;
    };
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    !host.is_empty() && !bare_v6 && port.parse::<u16>().is_ok_and(|port| port != 0)
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::ZeroMq(text) => f.write_str(text),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tls(authority) => write!(f, "https://{authority}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_chooses_the_api() {
        let unix = |path: &str| Endpoint::Unix(path.into());
        let zmq = |text: &str| Endpoint::ZeroMq(text.into());
        let tls = |text: &str| Endpoint::Tls(text.into());
        for (text, endpoint) in [
            (
                "unix:/run/butterfly/api.sock",
                unix("/run/butterfly/api.sock"),
            ),
            ("unix:///run/api.sock", unix("/run/api.sock")),
            ("unix:api.sock", unix("api.sock")),
            ("/run/api.sock", unix("/run/api.sock")),
            ("tcp://127.0.0.1:9999", zmq("tcp://127.0.0.1:9999")),
            ("tcp://[::1]:9999", zmq("tcp://[::1]:9999")),
            ("ipc:///tmp/b.ipc", zmq("ipc:///tmp/b.ipc")),
            ("https://switch-7:8443", tls("switch-7:8443")),
            ("https://switch-7:8443/", tls("switch-7:8443")),
            ("tcp:switch-7:8443", tls("switch-7:8443")),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap(), endpoint, "{text}");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_name() {
        for text in [
            "",
            "none",
            "localhost:9999",
            "http://h:1",
            "tcp://h",
            "tcp://h:0",
            "tcp://h:99999",
            "tcp://::1:9",
            "ipc://",
            "unix:",
            "https://h",
            "https://:1",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{text}");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}

//! The options that hold for a whole call, before or after any subcommand: where the daemon is, how
//! to talk to it, how to print. [`Global::merge`] joins those of the parts of a chain.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::endpoint::{DEFAULT_V0, DEFAULT_V1, Endpoint};
use crate::error::Error;

/// Names the endpoint when `-e` does not.
pub const ENDPOINT_ENV: &str = "BUTTERFLY_ENDPOINT";
const DEFAULT_TIMEOUT_MS: u64 = 10_000;

/// For a change. Of everything on a busy host it takes a minute or two, and the daemon carries it
/// out whether somebody waits or not. An upgrade ends within 90 seconds
/// (`daemon/src/upgrade/old.rs`).
const CHANGE_TIMEOUT_MS: u64 = 300_000;

/// Options of every command.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The daemon: unix:PATH or https://HOST:PORT (API v1), tcp://HOST:PORT or ipc://PATH (API v0)
    /// [env: BUTTERFLY_ENDPOINT] [default: unix:/run/butterfly/api.sock, with -k
    /// tcp://127.0.0.1:9999]
    #[arg(
        short,
        long,
        global = true,
        value_name = "ENDPOINT",
        verbatim_doc_comment
    )]
    pub endpoint: Option<String>,
    /// Print every request and answer on stderr
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Milliseconds to wait for the connection, and for each answer [default: 10000, and 300000 for
    /// the answer to a change]
    #[arg(short, long, global = true, value_name = "MS",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
    /// API v0: encrypt with the key in this file (32 bytes, base64)
    #[arg(short, long, alias = "k", global = true, value_name = "KEYFILE")]
    pub key: Option<PathBuf>,
    /// https: the client's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// https: the client's private key (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// https: the authority that signed the daemon's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Print data as JSON, fields named as in proto/butterfly/v1/butterfly.proto
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// Joins the options of the next part of a chain into these. They hold for the whole call, so
    /// that one option with two values is refused.
    pub fn merge(self, next: Global) -> Result<Global, Error> {
        Ok(Global {
            endpoint: one("--endpoint", self.endpoint, next.endpoint)?,
            verbose: self.verbose || next.verbose,
            timeout: one("--timeout", self.timeout, next.timeout)?,
            key: one("--key", self.key, next.key)?,
            tls_cert: one("--tls-cert", self.tls_cert, next.tls_cert)?,
            tls_key: one("--tls-key", self.tls_key, next.tls_key)?,
            tls_ca: one("--tls-ca", self.tls_ca, next.tls_ca)?,
            json: self.json || next.json,
        })
    }

    /// The endpoint: `-e`, else `from_env` (the value of [`ENDPOINT_ENV`]), else the default of the
    /// API in use.
    pub fn endpoint(&self, from_env: Option<&str>) -> Result<Endpoint, Error> {
        let default = if self.key.is_some() {
            DEFAULT_V0
        } else {
            DEFAULT_V1
        };
        let from_env = from_env.filter(|text| !text.is_empty());
        let endpoint = Endpoint::parse(self.endpoint.as_deref().or(from_env).unwrap_or(default))?;
        if self.key.is_some() && !matches!(endpoint, Endpoint::ZeroMq(_)) {
            return Err(Error::Usage(format!(
                "--key encrypts API v0 (tcp://, ipc://), and {endpoint} speaks API v1"
            )));
        }
        let tls = self.tls_cert.is_some() || self.tls_key.is_some() || self.tls_ca.is_some();
        if tls && !matches!(endpoint, Endpoint::Tls(_)) {
            return Err(Error::Usage(format!(
                "--tls-cert, --tls-key and --tls-ca go with https://, not with {endpoint}"
            )));
        }
        Ok(endpoint)
    }

    /// Whether somebody has said where the daemon is, or that it speaks v0.
    pub fn names_an_endpoint(&self, from_env: Option<&str>) -> bool {
        let from_env = from_env.is_some_and(|text| !text.is_empty());
        self.endpoint.is_some() || self.key.is_some() || from_env
    }

    /// How long to wait for a connection, or for an answer that changes nothing.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.unwrap_or(DEFAULT_TIMEOUT_MS))
    }

    /// How long to wait for the answer to a change.
    pub fn change_timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.unwrap_or(CHANGE_TIMEOUT_MS))
    }
}

fn one<T: PartialEq>(name: &str, first: Option<T>, second: Option<T>) -> Result<Option<T>, Error> {
    match (&first, &second) {
        (Some(a), Some(b)) if a != b => Err(Error::Usage(format!(
            "{name} holds for the whole call and is given with two values"
        ))),
        _ => Ok(first.or(second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(endpoint: Option<&str>, key: Option<&str>) -> Global {
        Global {
            endpoint: endpoint.map(Into::into),
            key: key.map(Into::into),
            ..Global::default()
        }
    }

    #[test]
    fn option_before_environment_before_default() {
        let name = |global: &Global, env| global.endpoint(env).unwrap().to_string();
        assert_eq!(name(&with(None, None), None), DEFAULT_V1);
        assert_eq!(name(&with(None, None), Some("")), DEFAULT_V1);
        assert_eq!(name(&with(None, None), Some("ipc:///e")), "ipc:///e");
        assert_eq!(
            name(&with(Some("unix:/o"), None), Some("ipc:///e")),
            "unix:/o"
        );
        assert_eq!(name(&with(None, Some("key")), None), DEFAULT_V0);
    }

    #[test]
    fn a_change_may_take_longer_unless_somebody_has_said_for_how_long_to_wait() {
        let millis = |global: Global| {
            [global.timeout(), global.change_timeout()].map(|timeout| timeout.as_millis())
        };
        assert_eq!(millis(Global::default()), [10_000, 300_000]);
        let said = Global {
            timeout: Some(5),
            ..Global::default()
        };
        assert_eq!(millis(said), [5, 5]);
    }

    #[test]
    fn a_key_goes_with_v0_and_certificates_with_https() {
        assert!(with(Some("unix:/o"), Some("key")).endpoint(None).is_err());
        let tls = Global {
            tls_ca: Some("ca".into()),
            ..with(Some("tcp://h:1"), None)
        };
        assert!(tls.endpoint(None).is_err());
    }

    #[test]
    fn one_option_has_one_value_in_a_chain() {
        let same = with(Some("unix:/a"), None)
            .merge(with(Some("unix:/a"), None))
            .unwrap();
        assert_eq!(same.endpoint.as_deref(), Some("unix:/a"));
        assert!(
            with(Some("unix:/a"), None)
                .merge(with(Some("unix:/b"), None))
                .is_err()
        );
    }
}

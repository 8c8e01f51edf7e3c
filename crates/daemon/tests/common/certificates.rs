//! A certificate authority of a test's own, and what a daemon over TLS needs.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair, date_time_ymd,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};

/// A certificate authority, and certificates by it, as PEM files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Certificate and key.
    pub fn sign(&self) -> (String, String) {
        self.sign_for("butterfly.test")
    }

    /// Certificate and key of somebody.
    pub fn sign_for(&self, name: &str) -> (String, String) {
        self.sign_until(name, 4000)
    }

    /// The same, to the beginning of a year.
    pub fn sign_until(&self, name: &str, year: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, &self.issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    }
}

/// A folder with what a daemon needs that is reached over TLS: its certificate, its key, and the
/// authority of its clients.
pub struct TlsFolder {
    pub authority: Authority,
    folder: TempDir,
    cert: String,
    key: String,
    ca: String,
}

impl TlsFolder {
    pub fn new() -> TlsFolder {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name).into_os_string().into_string();
        let [cert, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| path(name).unwrap());
        let made = TlsFolder {
            authority: Authority::new(),
            folder,
            cert,
            key,
            ca,
        };
        made.replace_by(&made.authority);
        made
    }

    /// Another certificate of the daemon's, by this authority, which is its clients' from now on.
    pub fn replace_by(&self, authority: &Authority) {
        let (cert, key) = authority.sign();
        for (file, content) in [(&self.cert, &cert), (&self.ca, &authority.pem)] {
            std::fs::write(file, content).unwrap();
        }
        super::private(self.key.as_ref(), &key);
    }

    /// The daemon's options.
    pub fn options(&self) -> [&str; 6] {
        let [cert, key, ca] = [&self.cert, &self.key, &self.ca].map(String::as_str);
        ["--tls-cert", cert, "--tls-key", key, "--tls-ca", ca]
    }

    /// The authority's file.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file there: its path.
    pub fn write(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// A certificate for this name and its key: the paths of both.
    pub fn client(&self, name: &str) -> (String, String) {
        let (cert, key) = self.authority.sign_for(name);
        let [cert_file, key_file] = ["pem", "key"].map(|end| format!("{name}.{end}"));
        (self.write(&cert_file, &cert), self.write(&key_file, &key))
    }

    /// A connection to the daemon on this port, by who shows this certificate and has its key.
    pub async fn connect(
        &self,
        port: u16,
        identity: Option<(String, String)>,
    ) -> Result<Channel, Error> {
        let ca = std::fs::read(&self.ca).unwrap();
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca))
            .domain_name("butterfly.test");
        if let Some((cert, key)) = identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}"))?;
        super::within(endpoint.tls_config(tls)?.connect()).await
    }
}

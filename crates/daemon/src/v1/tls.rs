//! Mutual TLS: the certificates of `--tls-cert`, `--tls-key` and `--tls-ca`, which can be read
//! again while the daemon runs. The handshake is made by the [reader](crate::reader) with what was
//! read last.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;

use crate::access::{Gate, Peer};
use crate::options::Tls;
use crate::places::ClientPlace;
use crate::reader::words::Word;
use crate::reader::{NoClient, Protocol, Reader, Secured, secure};

/// Bytes of each file at the most.
pub const FILE_MAX: usize = 16 << 20;

/// What clients over TLS are let in by.
pub struct Certificates {
    files: Files,
    reader: Arc<Reader>,
    /// What was read last of the authority of clients.
    last: Mutex<Vec<u8>>,
    /// How often that has become another one.
    authority: Arc<AtomicU64>,
}

struct Files {
    cert: Box<Path>,
    key: Box<Path>,
    ca: Box<Path>,
}

/// What the three files have.
pub struct Pem {
    /// The certificate, with its chain.
    pub cert: Vec<u8>,
    pub key: Vec<u8>,
    /// The authority of clients.
    pub ca: Vec<u8>,
}

/// By which authority a client came.
#[derive(Clone)]
pub struct Authority {
    then: u64,
    now: Arc<AtomicU64>,
}

impl Authority {
    /// Another one has been read since.
    pub fn is_stale(&self) -> bool {
        self.then != self.now.load(Ordering::Acquire)
    }
}

impl Certificates {
    /// Reads the three files; `reader` makes the handshakes. `None` where none is named. The error
    /// is a sentence.
    pub fn new(tls: &Tls, reader: Arc<Reader>) -> Result<Option<Certificates>, String> {
        let (cert, key, ca) = match (&tls.cert, &tls.key, &tls.ca) {
            (Some(cert), Some(key), Some(ca)) => (cert, key, ca),
            _ => return Ok(None),
        };
        let files = Files {
            cert: cert.as_path().into(),
            key: key.as_path().into(),
            ca: ca.as_path().into(),
        };
        let pem = files.load()?;
        let last = Mutex::new(pem.ca.clone());
        pass_on(&reader, pem)?;
        Ok(Some(Certificates {
            files,
            reader,
            last,
            authority: Arc::default(),
        }))
    }

    /// Reads the files again: new connections get what is in them. Where they cannot be used,
    /// nothing changes. Both sentences are for people.
    pub fn reload(&self) -> Result<String, String> {
        let new = self.files.load()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let authority = new.ca.clone();
        let is_another = *last != authority;
        pass_on(&self.reader, new)?;
        *last = authority;
        if is_another {
            // Behind that: who came by the new one and is held for one of before connects again.
            self.authority.fetch_add(1, Ordering::Release);
        }
        let (cert, ca) = (self.files.cert.display(), self.files.ca.display());
        Ok(match is_another {
            true => format!("{cert}, {ca}: another authority, clients have to connect again"),
            false => format!("{cert}, {ca}"),
        })
    }

    /// Has the handshake made with a client that has a place; gives the stream, and by which
    /// authority it came.
    pub async fn accept(
        &self,
        client: TcpStream,
        place: ClientPlace,
        protocol: Protocol,
    ) -> Result<(Secured, Authority), NoClient> {
        // Before it is passed on, so that it is of no later one than it is taken for.
        let authority = Authority {
            then: self.authority.load(Ordering::Acquire),
            now: self.authority.clone(),
        };
        let secured = secure(&self.reader, client, place, protocol).await?;
        Ok((secured, authority))
    }
}

/// Tells of somebody who came to a server from this address and is no client. Who was turned away
/// is in the audit log.
pub fn tell(why: &NoClient, server: &'static str, address: SocketAddr, gate: &Gate) {
    match why {
        NoClient::TurnedAway(why) => {
            let peer = Peer {
                address: Some(address.to_string()),
                ..Peer::unknown()
            };
            gate.turned_away(server, &peer, "connect", why);
        }
        NoClient::Gone(why) => tracing::debug!("{server}: no TLS with {address}: {why}"),
    }
}

fn pass_on(reader: &Reader, pem: Pem) -> Result<(), String> {
    let files = vec![pem.cert, pem.key, pem.ca];
    let set = reader.set(Word::Certificates, &[], files);
    set.map_err(|e| format!("the TLS files cannot be passed on: {e}"))
}

/// What a file has, if that is not too much.
fn within(path: &Path, content: Vec<u8>) -> Result<Vec<u8>, String> {
    match content.len() {
        0..=FILE_MAX => Ok(content),
        _ => Err(format!("{} has more than {FILE_MAX} bytes", path.display())),
    }
}

impl Files {
    /// Reads them, and tries whether they can be used. The key must not be one that everybody can
    /// read: who has it is this daemon to its clients.
    fn load(&self) -> Result<Pem, String> {
        let public = |path: &Path| {
            let content = std::fs::read(path);
            content.map_err(|e| format!("{} cannot be read: {e}", path.display()))
        };
        let key = sys::private_text::bytes(&self.key, FILE_MAX as u64 + 1);
        let key = key.map_err(|why| format!("--tls-key: {why}"))?;
        let pem = Pem {
            cert: within(&self.cert, public(&self.cert)?)?,
            key: within(&self.key, key)?,
            ca: within(&self.ca, public(&self.ca)?)?,
        };
        let names = [&self.cert, &self.key, &self.ca].map(|path| path.display().to_string());
        pem.config(names.each_ref().map(String::as_str))?;
        Ok(pem)
    }
}

impl Pem {
    /// What a server goes by that has these. The error is a sentence, in which the three are called
    /// by `names`.
    pub fn config(&self, names: [&str; 3]) -> Result<ServerConfig, String> {
        let [cert, key, ca] = names;
        let refused = |why: &dyn std::fmt::Display| {
            format!("the TLS files {cert}, {key} and {ca} cannot be used: {why}")
        };
        let certificates = |bytes: &[u8], name: &str| {
            let all: Result<Vec<CertificateDer>, _> =
                CertificateDer::pem_slice_iter(bytes).collect();
            match all {
                Ok(all) if all.is_empty() => Err(refused(&format!("{name} has no certificate"))),
                Ok(all) => Ok(all),
                Err(e) => Err(refused(&format!("{name}: {e}"))),
            }
        };
        let chain = certificates(&self.cert, cert)?;
        let own = PrivateKeyDer::from_pem_slice(&self.key);
        let own = own.map_err(|e| refused(&format!("{key}: {e}")))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca, ca)? {
            let added = roots.add(certificate);
            added.map_err(|e| refused(&format!("{ca}: {e}")))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|e| refused(&e))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| refused(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, own)
            .map_err(|e| refused(&e))?;
        // Who resumes a session shows no certificate: it would be let in long after that has
        // expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

#[cfg(test)]
pub mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::version::{TLS12, TLS13};
    use rustls::{
        ClientConfig, ClientConnection, Connection, HandshakeKind, ServerConnection,
        SupportedProtocolVersion,
    };

    use super::*;

    pub const NAME: &str = "butterfly.test";

    /// A server and a client with certificates by one authority.
    pub fn pair(
        version: &'static SupportedProtocolVersion,
    ) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let cert = params.signed_by(&own, &issuer).unwrap();
        let pem = Pem {
            cert: cert.pem().into_bytes(),
            key: own.serialize_pem().into_bytes(),
            ca: authority.pem().into_bytes(),
        };
        let server = pem.config(["cert", "key", "ca"]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from_pem_slice(&pem.key).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![cert.der().clone()], key)
            .unwrap();
        (Arc::new(server), Arc::new(client))
    }

    /// All that one side has to say by now.
    fn tell(from: &mut Connection, to: &mut Connection) {
        let mut said = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut said).unwrap();
        }
        let mut said = said.as_slice();
        while !said.is_empty() {
            to.read_tls(&mut said).unwrap();
            to.process_new_packets().unwrap();
        }
    }

    #[test]
    fn who_comes_again_shows_its_certificate_again() {
        for version in [&TLS13, &TLS12] {
            let (server, client) = pair(version);
            for _ in 0..3 {
                let name = NAME.try_into().unwrap();
                let near = ClientConnection::new(client.clone(), name).unwrap();
                let far = ServerConnection::new(server.clone()).unwrap();
                let (mut near, mut far) = (Connection::from(near), Connection::from(far));
                // What it could resume by comes behind the handshake.
                while near.wants_write() || far.wants_write() {
                    tell(&mut near, &mut far);
                    tell(&mut far, &mut near);
                }
                assert!(far.peer_certificates().is_some());
                assert_eq!(far.protocol_version(), Some(version.version));
                assert_eq!(far.handshake_kind(), Some(HandshakeKind::Full));
            }
        }
    }
}

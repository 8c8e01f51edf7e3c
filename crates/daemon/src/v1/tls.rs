//! Mutual TLS: the certificates of `--tls-cert`, `--tls-key` and `--tls-ca`, which can be read
//! again while the daemon runs, and the handshake.
//!
//! tonic's own TLS is made once from its files; so the handshake is made here, by the same library,
//! with what was read last.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::access::peer::certificate_names;
use crate::options::Tls;

/// For a handshake to be over.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was read last.
pub struct Certificates {
    files: Files,
    loaded: RwLock<Loaded>,
    /// How often the authority of clients has become another one.
    authority: Arc<AtomicU64>,
}

struct Files {
    cert: Box<Path>,
    key: Box<Path>,
    ca: Box<Path>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    authority: Vec<u8>,
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
    /// Reads the three files. `None` where none is named. The error is a sentence.
    pub fn new(tls: &Tls) -> Result<Option<Certificates>, String> {
        let (cert, key, ca) = match (&tls.cert, &tls.key, &tls.ca) {
            (Some(cert), Some(key), Some(ca)) => (cert, key, ca),
            _ => return Ok(None),
        };
        let files = Files {
            cert: cert.as_path().into(),
            key: key.as_path().into(),
            ca: ca.as_path().into(),
        };
        Ok(Some(Certificates {
            loaded: RwLock::new(files.load()?),
            files,
            authority: Arc::default(),
        }))
    }

    /// Reads the files again: new connections get what is in them. Where they cannot be used,
    /// nothing changes. Both sentences are for people.
    pub fn reload(&self) -> Result<String, String> {
        let new = self.files.load()?;
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let is_another = loaded.authority != new.authority;
        *loaded = new;
        if is_another {
            self.authority.fetch_add(1, Ordering::Release);
        }
        let (cert, ca) = (self.files.cert.display(), self.files.ca.display());
        Ok(match is_another {
            true => format!("{cert}, {ca}: another authority, clients have to connect again"),
            false => format!("{cert}, {ca}"),
        })
    }

    /// Makes the handshake with who speaks plain HTTP/1; gives the stream, and
    /// whose the certificate is, by which authority.
    pub async fn accept_http<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, Vec<String>, Authority), std::io::Error> {
        let (config, authority) = self.now();
        let mut config = (*config).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (stream, names) = handshake(stream, Arc::new(config)).await?;
        Ok((stream, names, authority))
    }

    /// Makes the handshake; gives the stream, and whose the certificate is, by which authority.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, Vec<String>, Authority), std::io::Error> {
        let (config, authority) = self.now();
        let (stream, names) = handshake(stream, config).await?;
        Ok((stream, names, authority))
    }

    /// What was read last.
    fn now(&self) -> (Arc<ServerConfig>, Authority) {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let authority = Authority {
            then: self.authority.load(Ordering::Acquire),
            now: self.authority.clone(),
        };
        (loaded.config.clone(), authority)
    }
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    config: Arc<ServerConfig>,
) -> Result<(TlsStream<S>, Vec<String>), std::io::Error> {
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::time::timeout(PATIENCE, handshake)
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    // The verifier asks for one; without it there is no session.
    let certificate =
        certificate.ok_or_else(|| std::io::Error::other("the client has shown no certificate"))?;
    let names = certificate_names(certificate);
    Ok((stream, names))
}

impl Files {
    fn load(&self) -> Result<Loaded, String> {
        let refused = |why: &dyn std::fmt::Display| {
            format!(
                "the TLS files {}, {} and {} cannot be used: {why}",
                self.cert.display(),
                self.key.display(),
                self.ca.display()
            )
        };
        let read = |path: &Path| {
            std::fs::read(path).map_err(|e| format!("{} cannot be read: {e}", path.display()))
        };
        let certificates = |bytes: &[u8], path: &Path| {
            let all: Result<Vec<CertificateDer>, _> =
                CertificateDer::pem_slice_iter(bytes).collect();
            match all {
                Ok(all) if all.is_empty() => {
                    Err(refused(&format!("{} has no certificate", path.display())))
                }
                Ok(all) => Ok(all),
                Err(e) => Err(refused(&format!("{}: {e}", path.display()))),
            }
        };
        let chain = certificates(&read(&self.cert)?, &self.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|e| refused(&format!("{}: {e}", self.key.display())))?;
        let authority = read(&self.ca)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&authority, &self.ca)? {
            let added = roots.add(certificate);
            added.map_err(|e| refused(&format!("{}: {e}", self.ca.display())))?;
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
            .with_single_cert(chain, key)
            .map_err(|e| refused(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Loaded {
            config: Arc::new(config),
            authority,
        })
    }
}

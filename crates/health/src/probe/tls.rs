//! TLS for checks: any certificate will do. A check asks whether the service answers, and runs
//! inside the network of the operator; that the certificate is the right one is asked by every
//! client, by name and clock.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

static CONFIG: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has the cipher suites of TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    Arc::new(config)
});

/// The handshake; with a server name when there is a host that is one.
pub async fn connect(
    stream: TcpStream,
    host: Option<&str>,
    address: IpAddr,
) -> Result<TlsStream<TcpStream>, String> {
    let name = host.map(|host| host.split(':').next().unwrap_or(host).to_owned());
    let name = match name.and_then(|name| ServerName::try_from(name).ok()) {
        Some(name) => name,
        // An address is not sent as a server name (RFC 6066, section 3).
        None => ServerName::IpAddress(address.into()),
    };
    let connector = TlsConnector::from(CONFIG.clone());
    let secured = connector.connect(name, stream).await;
    secured.map_err(|e| format!("no TLS: {}", super::reason(&e)))
}

/// Takes every certificate, but only from who has its private key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

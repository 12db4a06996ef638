//! TLS of a listener: the server certificate, and the client certificates it accepts.
//!
//! The files are checked every second and read again when they have changed, so that a certificate is renewed without a
//! restart. Invariant: files that cannot be used are logged once, and the previous certificate stays in use. Open
//! connections keep the configuration of their handshake.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};
use webpki::EndEntityCert;

use super::connection::ConnectionIo;
use crate::config::ListenerTlsFiles;
use crate::logging::RateLimitedLog;

/// Maximum time of a handshake: many round trips even on a bad line.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the files are checked.
const FILE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The TLS configuration in use.
pub(crate) struct ListenerTls {
    files: ListenerTlsFiles,
    /// The stamps of the files before they were read for the first time.
    first_stamps: [FileStamp; 3],
    config: ArcSwap<ServerConfig>,
    unknown_name_log: RateLimitedLog,
}

impl ListenerTls {
    /// The configuration in `files`, or why they cannot be used.
    pub(crate) fn open(files: ListenerTlsFiles) -> Result<Self, String> {
        let first_stamps = files.stamps();
        let config = files.read()?;
        let config = ArcSwap::from_pointee(config);
        Ok(ListenerTls { files, first_stamps, config, unknown_name_log: RateLimitedLog::new() })
    }

    /// Performs the TLS handshake.
    pub(crate) async fn accept<I: ConnectionIo>(&self, io: I) -> io::Result<TlsStream<I>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(io)).await;
        let accepted = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        accepted.inspect_err(|error| self.log_unknown_name(error))
    }

    /// Logs that a genuine certificate was rejected for its names: more often a mistake in the settings than an attack.
    fn log_unknown_name(&self, error: &io::Error) {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        let of_names: Error = CertificateError::ApplicationVerificationFailure.into();
        if cause == Some(&of_names)
            && let Some(count) = self.unknown_name_log.count()
        {
            let wanted = self.files.client_names.join(", ");
            warn!(count, wanted, "client certificates rejected, they have none of the names in --grpc-client-san");
        }
    }

    /// Watches the files for as long as this is in use.
    pub(crate) fn watch_files(self: &Arc<Self>) {
        let tls = Arc::downgrade(self);
        let mut seen = self.first_stamps;
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(FILE_POLL_INTERVAL);
            loop {
                tick.tick().await;
                let Some(tls) = tls.upgrade() else { return };
                let now = tls.files.stamps();
                if now != seen {
                    seen = now;
                    tls.reload();
                }
            }
        });
    }

    fn reload(&self) {
        match self.files.read() {
            Ok(config) => {
                self.config.store(Arc::new(config));
                info!(file = %self.files.certificate.display(), "certificate renewed");
            }
            Err(error) => warn!(%error, "bad certificate, the previous one stays in use"),
        }
    }
}

/// The metadata of a file. A replaced file differs in one of these.
type FileStamp = Option<(SystemTime, u64, u64)>;

impl ListenerTlsFiles {
    fn stamps(&self) -> [FileStamp; 3] {
        use std::os::unix::fs::MetadataExt;
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len(), found.ino()))
        };
        let authorities = self.client_authorities.as_deref();
        [stamp(&self.certificate), stamp(&self.key), authorities.and_then(stamp)]
    }

    fn read(&self) -> Result<ServerConfig, String> {
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| bad_file(&self.key, &error))?;
        let file = self.certificate.display();
        let mismatch = |error: Error| format!("the certificate in {file} cannot be used: {error}");
        // ring, as for connections to a store.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(mismatch)?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(file) => builder.with_client_cert_verifier(self.client_verifier(file, provider)?),
        };
        let mut config = builder.with_single_cert(certificates, key).map_err(mismatch)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn client_verifier(
        &self,
        file: &Path,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(file)? {
            roots.add(authority).map_err(|error| bad_file(file, &error))?;
        }
        let genuine = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| bad_file(file, &error))?;
        Ok(if self.client_names.is_empty() {
            genuine
        } else {
            Arc::new(ClientNameVerifier { inner: genuine, names: self.client_names.clone() })
        })
    }
}

/// Reads a file with at least one certificate.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| bad_file(file, &error))?;
    if read.is_empty() {
        return Err(bad_file(file, &"there is no certificate in it; use a PEM file"));
    }
    Ok(read)
}

fn bad_file(file: &Path, reason: &dyn std::fmt::Display) -> String {
    format!("{}: {reason}", file.display())
}

/// Accepts a certificate that `inner` accepts and that has one of `names`. The authority proves that a certificate is
/// genuine; the names limit which genuine ones are accepted.
#[derive(Debug)]
struct ClientNameVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl ClientNameVerifier {
    /// Whether a certificate is for `name`: a host, an address, or a URI as written.
    fn is_for(certificate: &EndEntityCert<'_>, name: &str) -> bool {
        let host = ServerName::try_from(name);
        host.is_ok_and(|host| certificate.verify_is_valid_for_subject_name(&host).is_ok())
            || certificate.valid_uri_names().any(|uri| uri == name)
    }
}

impl ClientCertVerifier for ClientNameVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let bad = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        let certificate = EndEntityCert::try_from(end_entity).map_err(bad)?;
        let matches = self.names.iter().any(|name| Self::is_for(&certificate, name));
        if matches { Ok(verified) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::TestAuthority;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_times_out() {
        let authority = TestAuthority::new();
        let own = authority.sign(&["localhost"]);
        let tls = ListenerTls::open(ListenerTlsFiles {
            certificate: own.certificate,
            key: own.key,
            client_authorities: None,
            client_names: Vec::new(),
        })
        .unwrap();
        let (_silent, server) = tokio::io::duplex(1024);
        let begun = Instant::now();
        let error = tls.accept(server).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= HANDSHAKE_TIMEOUT && begun.elapsed() < 2 * HANDSHAKE_TIMEOUT);
    }
}

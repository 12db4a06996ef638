//! Admits clients by the names in their certificates.
//!
//! The certificate authority proves that a certificate is genuine. The names limit which genuine certificates are
//! accepted. Without names every certificate of the authority is.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use webpki::EndEntityCert;

/// Accepts a certificate that `inner` accepts and that has one of `names`.
#[derive(Debug)]
pub(super) struct ClientNameVerifier {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) names: Vec<String>,
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

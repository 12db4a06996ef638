//! Certificates for tests, from a certificate authority that only they trust.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;

/// Signs certificates. All its files are deleted on drop.
pub struct TestAuthority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, each in a file.
pub struct TestCertificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl TestAuthority {
    /// A new authority.
    pub fn new() -> TestAuthority {
        let folder = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let own = params.self_signed(&key).expect("a certificate");
        fs::write(folder.path().join("ca.pem"), own.pem()).expect("a file");
        let issuer = Issuer::new(params, key);
        TestAuthority { folder, issuer }
    }

    /// The file of its own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for `names`, which are hosts, addresses or URIs.
    pub fn sign(&self, names: &[&str]) -> TestCertificate {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let file = |kind: &str| {
            let name = format!("{}.{kind}.pem", names.join("_").replace('/', "_"));
            self.folder.path().join(name)
        };
        let signed = TestCertificate { certificate: file("cert"), key: file("key") };
        let (uris, hosts) = names.into_iter().partition(|name| name.contains("://"));
        let mut params = CertificateParams::new(hosts).expect("names");
        for uri in Vec::<String>::into_iter(uris) {
            let uri = uri.try_into().expect("a URI is ASCII");
            params.subject_alt_names.push(SanType::URI(uri));
        }
        let made = params.signed_by(&key, &self.issuer).expect("a certificate");
        fs::write(&signed.certificate, made.pem()).expect("a file");
        fs::write(&signed.key, key.serialize_pem()).expect("a file");
        signed
    }
}

impl Default for TestAuthority {
    fn default() -> Self {
        TestAuthority::new()
    }
}

impl TestCertificate {
    /// The server options to present this certificate on `port` and to verify clients by `authority`. Clients
    /// need a certificate of their own unless that option is changed.
    pub fn options(&self, port: u16, authority: &TestAuthority) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &text(&self.certificate),
            "--tls-key-file",
            &text(&self.key),
            "--tls-ca-cert-file",
            &text(&authority.file()),
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

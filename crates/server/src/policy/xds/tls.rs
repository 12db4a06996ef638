//! TLS to a control plane. The files are read for every connection, so that they can be replaced without a restart.

use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::XdsTlsFiles;

/// Connects to the server with `name`, or returns the error text.
pub(super) async fn connect_tls(
    socket: TcpStream,
    files: &XdsTlsFiles,
    name: &str,
) -> Result<TlsStream<TcpStream>, String> {
    let config = config(files)?;
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| format!("`{}` is not a server name", name.escape_default()))?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket);
    connecting.await.map_err(|error| error.to_string())
}

fn config(files: &XdsTlsFiles) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(authorities(files.authorities.as_deref())?);
    let mut config = match &files.client_certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, error))?;
            let made = builder.with_client_auth_cert(chain, secret);
            made.map_err(|error| file_error(certificate, error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = match file {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(found);
    match (roots.is_empty(), file) {
        (false, _) => Ok(roots),
        (true, Some(file)) => Err(file_error(file, "has no certificate; use a PEM file")),
        (true, None) => Err("the system has no trusted authorities; set ca=FILE".to_owned()),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| file_error(file, error))?;
    read.collect::<Result<_, _>>().map_err(|error| file_error(file, error))
}

fn file_error(file: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", file.display())
}

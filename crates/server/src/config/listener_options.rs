//! Options of listeners.

use std::path::PathBuf;
use std::time::Duration;

/// Maximum age of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionAge {
    /// Age at which a connection is shut down gracefully. Each varies by up to a tenth, so that not all reconnect at
    /// once.
    pub(crate) max: Duration,
    /// How long after that requests in flight may take.
    pub(crate) grace: Duration,
}

/// Paths of the certificate files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListenerTlsFiles {
    /// The server certificate, and the intermediate certificates up to the authority.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The authorities of client certificates. Without them every client is accepted.
    pub(crate) client_authorities: Option<PathBuf>,
    /// The names of which a client certificate must have one. Without names every certificate of the authorities is
    /// accepted.
    pub(crate) client_names: Vec<String>,
}

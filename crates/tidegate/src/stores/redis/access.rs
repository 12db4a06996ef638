//! The credentials of a server: login, database, TLS. The address is known only at run time.
//!
//! Passwords and certificates in files are read whenever a client is made, so that they can be replaced without a
//! restart. Nothing here is ever printed.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

use redis::io::tcp::TcpSettings;
use redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates};

use super::error::RedisStoreError;

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum RedisAddress {
    /// A TCP port.
    Tcp { host: String, port: u16 },
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            RedisAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            RedisAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The credentials that a server requires.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) user: Option<String>,
    pub(super) password: RedisPassword,
    pub(super) database: i64,
    /// The certificates, if the connection is encrypted.
    pub(super) tls: Option<Certificates>,
}

/// The source of the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum RedisPassword {
    #[default]
    None,
    Literal(String),
    File(PathBuf),
}

/// Certificate files. The system's defaults replace those that are not given.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Certificates {
    /// The authorities that servers are verified by.
    pub(super) authorities: Option<PathBuf>,
    /// The client certificate and its key.
    pub(super) own: Option<(PathBuf, PathBuf)>,
}

impl Access {
    /// A client for the server at `address`. Reads small files, and only when a connection is made.
    pub(super) fn client(&self, address: &RedisAddress) -> Result<Client, RedisStoreError> {
        let mut login = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.user {
            login = login.set_username(user);
        }
        if let Some(password) = self.password.read()? {
            login = login.set_password(password);
        }
        let info = match (address, &self.tls) {
            (RedisAddress::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (RedisAddress::Tcp { host, port }, None) => ConnectionAddr::Tcp(host.clone(), *port),
            (RedisAddress::Tcp { host, port }, Some(_)) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
        };
        let info = info.into_connection_info();
        let info = info.map_err(|error| RedisStoreError::from_redis(&error, None))?;
        let info = info.set_redis_settings(login).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = match &self.tls {
            None => Client::open(info),
            Some(certificates) => {
                install_crypto_provider();
                Client::build_with_tls(info, certificates.read()?)
            }
        };
        client.map_err(|error| RedisStoreError::needs_operator("bad certificate", &error.to_string(), PEM))
    }

    /// The password, if it is part of the URL. It is removed from any text of a server.
    pub(super) fn secret(&self) -> Option<&str> {
        match &self.password {
            RedisPassword::Literal(password) => Some(password),
            RedisPassword::None | RedisPassword::File(_) => None,
        }
    }
}

const PEM: &str = "give `ca`, `cert` and `key` files in PEM format";

impl RedisPassword {
    fn read(&self) -> Result<Option<String>, RedisStoreError> {
        match self {
            RedisPassword::None => Ok(None),
            RedisPassword::Literal(password) => Ok(Some(password.clone())),
            RedisPassword::File(path) => {
                let text = fs::read_to_string(path);
                let text = text.map_err(|error| unreadable("password_file", &error))?;
                Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
            }
        }
    }
}

impl Certificates {
    fn read(&self) -> Result<TlsCertificates, RedisStoreError> {
        let read = |option: &'static str, path: &Path| fs::read(path).map_err(|error| unreadable(option, &error));
        let authorities = self.authorities.as_deref();
        let own = match &self.own {
            None => None,
            Some((certificate, key)) => {
                Some(ClientTlsConfig { client_cert: read("cert", certificate)?, client_key: read("key", key)? })
            }
        };
        Ok(TlsCertificates { client_tls: own, root_cert: authorities.map(|path| read("ca", path)).transpose()? })
    }
}

/// Omits the path: it may be a password written in the wrong place.
fn unreadable(option: &str, error: &io::Error) -> RedisStoreError {
    let detail = format!("`{option}` ({error})");
    RedisStoreError::needs_operator("unreadable file", &detail, "write a file that can be read")
}

/// The redis crate uses the crypto provider of the process, and panics if there is none. A provider that the program
/// installed before stays.
fn install_crypto_provider() {
    static CHOSEN: Once = Once::new();
    CHOSEN.call_once(|| {
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
    });
}

/// Prints which fields are set, never their values.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("user", &self.user.is_some())
            .field("password", &(self.password != RedisPassword::None))
            .field("database", &self.database)
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

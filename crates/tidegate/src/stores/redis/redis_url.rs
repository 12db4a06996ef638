//! Parses the URL of a store.
//!
//! | URL | store |
//! |---|---|
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one server |
//! | `unix:PATH[?db=DB&user=USER&pass=PASSWORD]` | one server, through its socket |
//! | `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],../NAME[/DB]` | the primary that sentinels know as NAME |
//! | `redis+cluster://[USER:PASSWORD@]HOST[:PORT],..` | a cluster |
//!
//! `rediss` instead of `redis` means TLS. No error repeats any part of a URL but its scheme: any other part may be a
//! password, if only one written in the wrong place.

use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::access::{Access, Certificates, RedisAddress, RedisPassword};
use super::error::RedisStoreError;

/// A parsed URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RedisUrl {
    /// One server.
    SingleServer { address: RedisAddress, access: Access },
    /// The primary that these sentinels know by its name.
    Sentinels {
        addresses: Vec<RedisAddress>,
        name: String,
        /// The credentials of the sentinels.
        sentinels: Access,
        /// The credentials of the servers.
        servers: Access,
    },
    /// A cluster, by the servers to query first.
    Cluster { addresses: Vec<RedisAddress>, access: Access },
}

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl RedisUrl {
    /// Parses a URL. Reads no file that it names.
    pub(super) fn parse(url: &str) -> Result<RedisUrl, RedisStoreError> {
        let socket = url.strip_prefix("redis+unix:");
        if let Some(path) = socket.or_else(|| url.strip_prefix("unix:")) {
            return parse_unix_socket(path);
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad_url(SCHEME))?;
        let (scheme, encrypted) = match scheme.strip_prefix("rediss") {
            Some(rest) => (rest, true),
            None => (scheme.strip_prefix("redis").unwrap_or("?"), false),
        };
        match scheme {
            "" => parse_single_server(&UrlParts::parse(rest, encrypted, SERVER_PORT)?),
            "+sentinel" => parse_sentinels(&UrlParts::parse(rest, encrypted, SENTINEL_PORT)?),
            "+cluster" => parse_cluster(&UrlParts::parse(rest, encrypted, SERVER_PORT)?),
            _ => Err(bad_url(SCHEME)),
        }
    }
}

const SCHEME: &str = "write redis://HOST:PORT, redis+sentinel://HOST,HOST,HOST/NAME, redis+cluster://HOST,HOST or unix:PATH, \
     and rediss instead of redis for TLS";
const HOSTS: &str = "write [USER:PASSWORD@]HOST[:PORT] after `//`, an IPv6 address in brackets, and in a password \
     %40 for @, %2F for /, %3A for :, %23 for #, %3F for ?, %25 for % and %2C for a comma";
const ONE_HOST: &str = "write one HOST; several are for redis+sentinel:// and redis+cluster://";
const DATABASE: &str = "write a number for the database: redis://HOST:PORT/0";
const NAME: &str = "write the name by which the sentinels know the primary: redis+sentinel://HOST,HOST,HOST/NAME[/DB]";
const NO_DATABASE: &str = "write nothing after the hosts: a cluster has no databases";
const OPTIONS: &str = "of the options after `?` write only those there are, each once: `password_file`; with TLS `ca`, `cert`, \
     `key`; with Sentinel `sentinel_user`, `sentinel_pass`; with unix: `db`, `user`, `pass`";
const BOTH: &str = "write `cert` and `key` both, or neither";
const ONE_PASSWORD: &str = "write the password, or `password_file`, not both";
const SOCKET: &str = "write unix:/PATH[?db=DB&user=USER&pass=PASSWORD]";

fn bad_url(cure: &'static str) -> RedisStoreError {
    RedisStoreError::needs_operator("bad address", "", cure)
}

fn parse_single_server(parts: &UrlParts) -> Result<RedisUrl, RedisStoreError> {
    let [address] = parts.hosts.as_slice() else {
        return Err(bad_url(ONE_HOST));
    };
    let access = Access { database: database(parts.path.strip_prefix('/').unwrap_or_default())?, ..parts.access(&[])? };
    let address = address.clone();
    Ok(RedisUrl::SingleServer { address, access })
}

fn parse_sentinels(parts: &UrlParts) -> Result<RedisUrl, RedisStoreError> {
    let access = parts.access(&["sentinel_user", "sentinel_pass"])?;
    let path = parts.path.strip_prefix('/').unwrap_or_default();
    let (name, number) = path.split_once('/').unwrap_or((path, ""));
    // A sentinel takes no other names.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(bad_url(NAME));
    }
    let servers = Access { database: database(number)?, ..access };
    let password = parts.options.get("sentinel_pass").map(str::to_owned);
    let sentinels = Access {
        user: parts.options.get("sentinel_user").map(str::to_owned),
        password: password.map_or(RedisPassword::None, RedisPassword::Literal),
        database: 0,
        tls: servers.tls.clone(),
    };
    Ok(RedisUrl::Sentinels { addresses: parts.hosts.clone(), name: name.to_owned(), sentinels, servers })
}

fn parse_cluster(parts: &UrlParts) -> Result<RedisUrl, RedisStoreError> {
    let access = parts.access(&[])?;
    match parts.path.as_str() {
        "" | "/" => Ok(RedisUrl::Cluster { addresses: parts.hosts.clone(), access }),
        _ => Err(bad_url(NO_DATABASE)),
    }
}

fn parse_unix_socket(path: &str) -> Result<RedisUrl, RedisStoreError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    let url = redis::parse_redis_url(&format!("unix://{path}"));
    let url = url.filter(|url| url.fragment().is_none());
    let url = url.ok_or_else(|| bad_url(SOCKET))?;
    let options = UrlOptions::parse(url.query_pairs());
    options.reject_unknown(&["db", "user", "pass", "password_file"])?;
    let info = url.into_connection_info().map_err(|_| bad_url(SOCKET))?;
    let ConnectionAddr::Unix(path) = info.addr().clone() else {
        return Err(bad_url(SOCKET));
    };
    let access = Access { database: database(options.get("db").unwrap_or_default())?, ..login(&info, &options)? };
    let address = RedisAddress::Unix(path);
    Ok(RedisUrl::SingleServer { address, access })
}

fn database(text: &str) -> Result<i64, RedisStoreError> {
    match text {
        "" => Ok(0),
        text => text.parse::<u32>().map(i64::from).map_err(|_| bad_url(DATABASE)),
    }
}

/// The parts of a URL. The redis crate parses each host as a URL of its own: it handles user names, brackets and
/// percent signs, but only one host.
struct UrlParts {
    login: ConnectionInfo,
    hosts: Vec<RedisAddress>,
    path: String,
    options: UrlOptions,
    encrypted: bool,
}

impl UrlParts {
    fn parse(rest: &str, encrypted: bool, port: u16) -> Result<UrlParts, RedisStoreError> {
        let (hosts, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = match hosts.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), hosts),
        };
        let first = hosts.split(',').next().unwrap_or_default();
        let whole = redis::parse_redis_url(&format!("redis://{user}{first}{tail}"));
        let whole = whole.filter(|url| url.fragment().is_none());
        let mut whole = whole.ok_or_else(|| bad_url(HOSTS))?;
        let (path, options) = (whole.path().to_owned(), UrlOptions::parse(whole.query_pairs()));
        whole.set_path("");
        whole.set_query(None);
        let login = whole.into_connection_info().map_err(|_| bad_url(HOSTS))?;
        let hosts = hosts.split(',').map(|host| parse_host(host, port));
        Ok(UrlParts { login, hosts: hosts.collect::<Result<_, _>>()?, path, options, encrypted })
    }

    /// User, password and certificates. Rejects options that are neither for these nor among `more`.
    fn access(&self, more: &[&str]) -> Result<Access, RedisStoreError> {
        self.options.reject_unknown(&[&["ca", "cert", "key", "password_file"], more].concat())?;
        let file = |name| self.options.get(name).map(PathBuf::from);
        let own = match (file("cert"), file("key")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(bad_url(BOTH)),
        };
        let authorities = file("ca");
        if !self.encrypted && (own.is_some() || authorities.is_some()) {
            return Err(bad_url("write rediss instead of redis for TLS"));
        }
        let certificates = Certificates { authorities, own };
        Ok(Access { tls: self.encrypted.then_some(certificates), ..login(&self.login, &self.options)? })
    }
}

fn parse_host(host: &str, port: u16) -> Result<RedisAddress, RedisStoreError> {
    let url = redis::parse_redis_url(&format!("redis://{host}")).ok_or_else(|| bad_url(HOSTS))?;
    let port = url.port().unwrap_or(port);
    let info = url.into_connection_info().map_err(|_| bad_url(HOSTS))?;
    match info.addr() {
        ConnectionAddr::Tcp(host, _) if port > 0 => Ok(RedisAddress::Tcp { host: host.clone(), port }),
        _ => Err(bad_url(HOSTS)),
    }
}

/// User and password, if there are any.
fn login(info: &ConnectionInfo, options: &UrlOptions) -> Result<Access, RedisStoreError> {
    let settings = info.redis_settings();
    let given = settings.password().map(str::to_owned);
    let password = match (given, options.get("password_file")) {
        (Some(_), Some(_)) => return Err(bad_url(ONE_PASSWORD)),
        (Some(given), None) => RedisPassword::Literal(given),
        (None, Some(path)) => RedisPassword::File(PathBuf::from(path)),
        (None, None) => RedisPassword::None,
    };
    Ok(Access { user: settings.username().map(str::to_owned), password, ..Access::default() })
}

/// The query string, decoded.
struct UrlOptions(Vec<(String, String)>);

impl UrlOptions {
    fn parse<T: Into<String>>(pairs: impl Iterator<Item = (T, T)>) -> Self {
        UrlOptions(pairs.map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// Rejects options that are not `known` or are given twice: none is silently ignored.
    fn reject_unknown(&self, known: &[&str]) -> Result<(), RedisStoreError> {
        let name = |i: usize| self.0[i].0.as_str();
        let fits = |i: usize| known.contains(&name(i)) && (0..i).all(|j| name(j) != name(i));
        if (0..self.0.len()).all(fits) { Ok(()) } else { Err(bad_url(OPTIONS)) }
    }

    fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(known, _)| known == name);
        pair.map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests;

//! Where a store is, read from its URL.
//!
//! | URL | what |
//! |---|---|
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one server |
//! | `unix:PATH[?db=DB&user=USER&pass=PASSWORD]` | one server, through its socket |
//! | `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],../NAME[/DB]` | the primary that sentinels know as NAME |
//! | `redis+cluster://[USER:PASSWORD@]HOST[:PORT],..` | a cluster |
//!
//! `rediss` instead of `redis` is TLS. Nothing of a URL but its scheme is ever repeated: any other part
//! may hold a password, if only one that was written in the wrong place.

use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::access::{Access, Certificates, Password, Place};
use super::fault::Fault;

/// A store's URL, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Address {
    /// One server.
    One { at: Place, access: Access },
    /// The primary that these sentinels know by its name.
    Sentinels {
        at: Vec<Place>,
        name: String,
        /// How the sentinels are entered.
        sentinels: Access,
        /// How the servers are that they tell of.
        servers: Access,
    },
    /// A cluster, by those of its nodes that are asked first.
    Cluster { at: Vec<Place>, access: Access },
}

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Address {
    /// Reads a URL. No file that it names is looked at.
    pub(super) fn read(url: &str) -> Result<Address, Fault> {
        let socket = url.strip_prefix("redis+unix:");
        if let Some(path) = socket.or_else(|| url.strip_prefix("unix:")) {
            return on_socket(path);
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad(SCHEME))?;
        let (scheme, encrypted) = match scheme.strip_prefix("rediss") {
            Some(rest) => (rest, true),
            None => (scheme.strip_prefix("redis").unwrap_or("?"), false),
        };
        match scheme {
            "" => one(&Parts::of(rest, encrypted, SERVER_PORT)?),
            "+sentinel" => by_sentinels(&Parts::of(rest, encrypted, SENTINEL_PORT)?),
            "+cluster" => cluster(&Parts::of(rest, encrypted, SERVER_PORT)?),
            _ => Err(bad(SCHEME)),
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

fn bad(cure: &'static str) -> Fault {
    Fault::of_operator("bad address", "", cure)
}

fn one(parts: &Parts) -> Result<Address, Fault> {
    let [at] = parts.hosts.as_slice() else {
        return Err(bad(ONE_HOST));
    };
    parts
        .options
        .know(&["ca", "cert", "key", "password_file"])?;
    let access = Access {
        database: database(parts.path.strip_prefix('/').unwrap_or_default())?,
        ..parts.access()?
    };
    let at = at.clone();
    Ok(Address::One { at, access })
}

fn by_sentinels(parts: &Parts) -> Result<Address, Fault> {
    let own = ["sentinel_user", "sentinel_pass"];
    let known = ["ca", "cert", "key", "password_file"];
    parts.options.know(&[&known[..], &own[..]].concat())?;
    let path = parts.path.strip_prefix('/').unwrap_or_default();
    let (name, number) = path.split_once('/').unwrap_or((path, ""));
    // A sentinel takes no other names.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(bad(NAME));
    }
    let servers = Access {
        database: database(number)?,
        ..parts.access()?
    };
    let password = parts.options.get("sentinel_pass").map(str::to_owned);
    let sentinels = Access {
        user: parts.options.get("sentinel_user").map(str::to_owned),
        password: password.map_or(Password::None, Password::Given),
        database: 0,
        tls: servers.tls.clone(),
    };
    Ok(Address::Sentinels {
        at: parts.hosts.clone(),
        name: name.to_owned(),
        sentinels,
        servers,
    })
}

fn cluster(parts: &Parts) -> Result<Address, Fault> {
    parts
        .options
        .know(&["ca", "cert", "key", "password_file"])?;
    match parts.path.as_str() {
        "" | "/" => Ok(Address::Cluster {
            at: parts.hosts.clone(),
            access: parts.access()?,
        }),
        _ => Err(bad(NO_DATABASE)),
    }
}

fn on_socket(path: &str) -> Result<Address, Fault> {
    let path = path.strip_prefix("//").unwrap_or(path);
    let url = redis::parse_redis_url(&format!("unix://{path}"));
    let url = url.filter(|url| url.fragment().is_none());
    let url = url.ok_or_else(|| bad(SOCKET))?;
    let options = Options(pairs(url.query_pairs()));
    options.know(&["db", "user", "pass", "password_file"])?;
    let info = url.into_connection_info().map_err(|_| bad(SOCKET))?;
    let ConnectionAddr::Unix(at) = info.addr().clone() else {
        return Err(bad(SOCKET));
    };
    let access = Access {
        database: database(options.get("db").unwrap_or_default())?,
        ..login(&info, &options)?
    };
    let at = Place::Socket(at);
    Ok(Address::One { at, access })
}

fn database(text: &str) -> Result<i64, Fault> {
    match text {
        "" => Ok(0),
        text => text
            .parse::<u32>()
            .map(i64::from)
            .map_err(|_| bad(DATABASE)),
    }
}

/// What stands before, in and after the hosts. Each host is read as a URL of its own by the redis crate,
/// which knows of user names, brackets and percent signs but of one host only.
struct Parts {
    login: ConnectionInfo,
    hosts: Vec<Place>,
    path: String,
    options: Options,
    encrypted: bool,
}

impl Parts {
    fn of(rest: &str, encrypted: bool, port: u16) -> Result<Parts, Fault> {
        let (hosts, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = match hosts.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), hosts),
        };
        let first = hosts.split(',').next().unwrap_or_default();
        let whole = redis::parse_redis_url(&format!("redis://{user}{first}{tail}"));
        let whole = whole.filter(|url| url.fragment().is_none());
        let mut whole = whole.ok_or_else(|| bad(HOSTS))?;
        let (path, options) = (whole.path().to_owned(), Options(pairs(whole.query_pairs())));
        whole.set_path("");
        whole.set_query(None);
        let login = whole.into_connection_info().map_err(|_| bad(HOSTS))?;
        let hosts = hosts.split(',').map(|host| place(host, port));
        Ok(Parts {
            login,
            hosts: hosts.collect::<Result<_, _>>()?,
            path,
            options,
            encrypted,
        })
    }

    fn access(&self) -> Result<Access, Fault> {
        let file = |name| self.options.get(name).map(PathBuf::from);
        let own = match (file("cert"), file("key")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(bad(BOTH)),
        };
        let authorities = file("ca");
        if !self.encrypted && (own.is_some() || authorities.is_some()) {
            return Err(bad("write rediss instead of redis for TLS"));
        }
        let certificates = Certificates { authorities, own };
        Ok(Access {
            tls: self.encrypted.then_some(certificates),
            ..login(&self.login, &self.options)?
        })
    }
}

fn place(host: &str, port: u16) -> Result<Place, Fault> {
    let url = redis::parse_redis_url(&format!("redis://{host}")).ok_or_else(|| bad(HOSTS))?;
    let port = url.port().unwrap_or(port);
    let info = url.into_connection_info().map_err(|_| bad(HOSTS))?;
    match info.addr() {
        ConnectionAddr::Tcp(host, _) if port > 0 => Ok(Place::Port {
            host: host.clone(),
            port,
        }),
        _ => Err(bad(HOSTS)),
    }
}

/// User and password, as far as there are any.
fn login(info: &ConnectionInfo, options: &Options) -> Result<Access, Fault> {
    let settings = info.redis_settings();
    let given = settings.password().map(str::to_owned);
    let password = match (given, options.get("password_file")) {
        (Some(_), Some(_)) => return Err(bad(ONE_PASSWORD)),
        (Some(given), None) => Password::Given(given),
        (None, Some(path)) => Password::InFile(PathBuf::from(path)),
        (None, None) => Password::None,
    };
    Ok(Access {
        user: settings.username().map(str::to_owned),
        password,
        ..Access::default()
    })
}

/// What stands after `?`, decoded.
struct Options(Vec<(String, String)>);

impl Options {
    /// Refuses what is not `known`, and what is given twice: neither is ever silently left out.
    fn know(&self, known: &[&str]) -> Result<(), Fault> {
        let name = |i: usize| self.0[i].0.as_str();
        let fits = |i: usize| known.contains(&name(i)) && (0..i).all(|j| name(j) != name(i));
        match (0..self.0.len()).all(fits) {
            true => Ok(()),
            false => Err(bad(OPTIONS)),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(known, _)| known == name);
        pair.map(|(_, value)| value.as_str())
    }
}

fn pairs<T: Into<String>>(pairs: impl Iterator<Item = (T, T)>) -> Vec<(String, String)> {
    pairs
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests;

//! The store's address from the variables of a Redis. A password only goes into the address.

use super::env_values::EnvValues;
use crate::config::StoreUrl;

/// The warning for an environment without a store.
const IN_MEMORY: &str = "REDIS_URL is not set: counters are in the memory of this node alone, and each node allows \
     the whole limit; set it, or TIDEGATE_STORE";

/// The address of the store. `None`: in memory.
pub(super) fn address(values: &mut EnvValues<'_>) -> Option<StoreUrl> {
    warn_of_ignored(values);
    backend(values);
    let kind = values.text("REDIS_TYPE").unwrap_or_default().to_ascii_lowercase();
    let socket = values.text("REDIS_SOCKET_TYPE");
    let login = RedisLogin::of(values.text("REDIS_AUTH"));
    let sentinel = RedisLogin::of(values.text("REDIS_SENTINEL_AUTH"));
    let tls = StoreTls::of(values);
    let Some(url) = values.text("REDIS_URL") else {
        values.warn(IN_MEMORY);
        return None;
    };
    let list = |url: &str| url.replace("redis://", "");
    let text = match kind.as_str() {
        "single" | "" => match is_socket(socket.as_deref(), &url) {
            Some(true) if tls.enabled => {
                values.reject("REDIS_TLS", "is set, and REDIS_URL is a unix socket; unset one");
                return None;
            }
            Some(true) => socket_address(&url, &login),
            Some(false) => single_address(&url, &login, &tls),
            None => {
                values.reject("REDIS_SOCKET_TYPE", "is unknown; write tcp or unix");
                return None;
            }
        },
        "cluster" => tls.to_url(&format!("+cluster://{}{}", login.userinfo(), list(&url)), &[]),
        "sentinel" => {
            let list = list(&url);
            let Some((name, hosts)) = list.split_once(',') else {
                values.reject(
                    "REDIS_URL",
                    "names no sentinels; write the name of the primary and then their addresses: NAME,HOST:PORT,HOST:PORT",
                );
                return None;
            };
            let rest = format!("+sentinel://{}{hosts}/{name}", login.userinfo());
            tls.to_url(&rest, &sentinel.options("sentinel_user", "sentinel_pass"))
        }
        _ => {
            values.reject("REDIS_TYPE", "is unknown; write single, sentinel or cluster");
            return None;
        }
    };
    Some(StoreUrl::from(text))
}

fn warn_of_ignored(values: &mut EnvValues<'_>) {
    if values.flag("REDIS_PERSECOND") {
        values.warn("REDIS_PERSECOND is ignored: one store counts for all windows");
    }
    if values.flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
        values.warn(
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION is ignored: certificates are always verified; give the store a \
             certificate with its name",
        );
    }
}

fn backend(values: &mut EnvValues<'_>) {
    match values.text("BACKEND_TYPE").as_deref() {
        None | Some("redis") => {}
        Some("memcache") => values.reject(
            "BACKEND_TYPE",
            "is `memcache`, which is not supported; write redis and set REDIS_URL, or set TIDEGATE_STORE",
        ),
        Some(_) => values.reject("BACKEND_TYPE", "is unknown; write redis"),
    }
}

/// Whether a single server is on a unix socket. `None` if the kind is unknown. Without a kind the reference service
/// takes the address for a path, and `HOST:PORT` can never have worked as one.
fn is_socket(kind: Option<&str>, url: &str) -> Option<bool> {
    match kind {
        Some("unix") => Some(true),
        Some("tcp" | "tcp4" | "tcp6") => Some(false),
        Some(_) => None,
        None => Some(url.starts_with(['/', '@', '.'])),
    }
}

fn socket_address(path: &str, login: &RedisLogin) -> String {
    let options = login.options("user", "pass");
    format!("unix:{path}{}", query(&options))
}

/// A single server, by `HOST:PORT` or by a URL that may have a login and a database of its own.
fn single_address(url: &str, login: &RedisLogin, tls: &StoreTls) -> String {
    let (encrypted, rest) = match (url.strip_prefix("redis://"), url.strip_prefix("rediss://")) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => (false, url),
    };
    let own = if rest.contains('@') { String::new() } else { login.userinfo() };
    let tls = StoreTls { enabled: tls.enabled || encrypted, ..tls.clone() };
    tls.to_url(&format!("://{own}{rest}"), &[])
}

/// An optional user and an optional password.
struct RedisLogin {
    user: Option<String>,
    password: Option<String>,
}

impl RedisLogin {
    /// `PASSWORD` or `USER:PASSWORD`.
    fn of(text: Option<String>) -> Self {
        let (user, password) = match text {
            None => (None, None),
            Some(text) => match text.split_once(':') {
                Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
                None => (None, Some(text)),
            },
        };
        let user = user.filter(|user| !user.is_empty());
        RedisLogin { user, password }
    }

    /// In the form before the hosts of an address.
    fn userinfo(&self) -> String {
        let Some(password) = &self.password else {
            return String::new();
        };
        let user = self.user.as_deref().map(percent_encode).unwrap_or_default();
        format!("{user}:{}@", percent_encode(password))
    }

    /// In the form of query options.
    fn options(&self, user: &'static str, password: &'static str) -> Vec<(&'static str, Option<String>)> {
        vec![(user, self.user.clone()), (password, self.password.clone())]
    }
}

/// Whether the connection is encrypted, and the files for it.
#[derive(Clone)]
struct StoreTls {
    enabled: bool,
    files: Vec<(&'static str, Option<String>)>,
}

impl StoreTls {
    fn of(values: &mut EnvValues<'_>) -> Self {
        StoreTls {
            enabled: values.flag("REDIS_TLS"),
            files: vec![
                ("ca", values.text("REDIS_TLS_CACERT")),
                ("cert", values.text("REDIS_TLS_CLIENT_CERT")),
                ("key", values.text("REDIS_TLS_CLIENT_KEY")),
            ],
        }
    }

    fn to_url(&self, rest: &str, more: &[(&'static str, Option<String>)]) -> String {
        let scheme = if self.enabled { "rediss" } else { "redis" };
        let files: &[_] = if self.enabled { &self.files } else { &[] };
        format!("{scheme}{rest}{}", query(&[files, more].concat()))
    }
}

fn query(options: &[(&'static str, Option<String>)]) -> String {
    let given = options.iter().filter_map(|(name, value)| Some(format!("{name}={}", percent_encode(value.as_ref()?))));
    match given.reduce(|all, one| format!("{all}&{one}")) {
        Some(all) => format!("?{all}"),
        None => String::new(),
    }
}

/// Percent-encodes a text for any part of an address.
fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

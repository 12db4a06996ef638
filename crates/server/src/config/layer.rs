//! One layer of settings: from flags and environment, or from a file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidegate_rules::suggest_name;

use super::quantity::{file_millis, file_seconds, millis, seconds};
use super::{ByteSize, ConfigError, EnvoyHeaders, LogFormat, LogLevel, LogSubjects, ResetFormat};
use crate::config::{ControlPlane, ListenAddress, StoreUrl};

/// Declares the settings: each has a type, and is absent from a layer that does not set it.
macro_rules! settings {
    ($($(#[$attribute:meta])* $name:ident: $type:ty,)*) => {
        /// One layer of settings. Flags, `TIDEGATE_*` variables and the file use the same names.
        #[derive(Args, Clone, Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct SettingsLayer {
            $($(#[$attribute])* pub(crate) $name: Option<$type>,)*
        }

        impl SettingsLayer {
            /// This layer's settings, and those of the layer below where this one has none.
            pub(crate) fn merged_over(self, below: SettingsLayer) -> SettingsLayer {
                SettingsLayer { $($name: self.$name.or(below.$name),)* }
            }
        }
    };
}

settings! {
    /// Rules: a YAML file or a folder of YAML files [default: a small built-in set]
    #[arg(long, env = "TIDEGATE_RULES", value_name = "PATH")]
    rules: PathBuf,

    /// Control plane that sends limits of the Envoy protocol, in addition to the rules: xds://HOST:PORT[?node=ID], xdss
    /// for TLS [default: none]
    #[arg(long, env = "TIDEGATE_XDS", value_name = "URL")]
    xds: ControlPlane,

    /// Allow several files or resources of the Envoy protocol to configure one domain
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    merge_domains: bool,

    /// Replace the Envoy reference service: read its environment variables as defaults of the settings
    #[arg(long, env = "TIDEGATE_ENVOY_COMPAT", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    envoy_compat: bool,

    /// Store of the counters: memory, or a Redis or Valkey that nodes share: redis://[USER:PASSWORD@]HOST[:PORT][/DB],
    /// unix:PATH, redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST../NAME[/DB] or
    /// redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST..; rediss for TLS [default: memory]
    #[arg(long, env = "TIDEGATE_STORE", value_name = "STORE", hide_env_values = true)]
    store: StoreUrl,

    /// Exit with 69 if the store cannot be reached at the start, instead of starting without it
    #[arg(long, env = "TIDEGATE_REQUIRE_STORE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    require_store: bool,

    /// Folder for state that survives a restart. With a shared store: the list of nodes and pending charges. With
    /// counters in memory: the counters of rules with `durability: disk`, and the secret. Created if missing; one
    /// folder per node [default: none]
    #[arg(long, alias = "data", env = "TIDEGATE_DATA_DIR", value_name = "DIR")]
    #[serde(alias = "data")]
    data_dir: PathBuf,

    /// Minimum number of nodes that share the store [default: the registered nodes]
    #[arg(long, env = "TIDEGATE_NODES", value_name = "N")]
    nodes: u32,

    /// How long a decision waits for a shared store if its rule sets no budget; a plain number is milliseconds
    /// [default: 25ms]
    #[arg(long, env = "TIDEGATE_STORE_BUDGET", value_name = "DURATION", value_parser = millis)]
    #[serde(deserialize_with = "file_millis")]
    store_budget: Duration,

    /// Difference between the clocks of a shared store and this node that logs a warning; a plain number is
    /// milliseconds [default: 20ms]
    #[arg(long, env = "TIDEGATE_CLOCK_WARN", value_name = "DURATION", value_parser = millis)]
    #[serde(deserialize_with = "file_millis")]
    clock_warn: Duration,

    /// Difference between these clocks that raises an alarm; a plain number is milliseconds [default: 50ms, or
    /// --clock-warn if that is more]
    #[arg(long, env = "TIDEGATE_CLOCK_ALARM", value_name = "DURATION", value_parser = millis)]
    #[serde(deserialize_with = "file_millis")]
    clock_alarm: Duration,

    /// Listener for checks over HTTP: host:port, a port on loopback, :port on every IPv4 address of this machine,
    /// unix:path or off [default: 127.0.0.1:8080]
    #[arg(long, env = "TIDEGATE_HTTP", value_name = "ADDR")]
    http: ListenAddress,

    /// Listener for Envoy over gRPC: host:port, a port, unix:path or off [default: 127.0.0.1:8081]
    #[arg(long, env = "TIDEGATE_GRPC", value_name = "ADDR")]
    grpc: ListenAddress,

    /// Age at which a gRPC connection is closed gracefully, plus or minus a tenth, so that clients find new servers. 0:
    /// never. A plain number is seconds [default: 24h]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_AGE", value_name = "DURATION", value_parser = seconds)]
    #[serde(deserialize_with = "file_seconds")]
    grpc_max_age: Duration,

    /// How long calls in flight on such a connection have to finish; a plain number is seconds [default: 1h]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_AGE_GRACE", value_name = "DURATION", value_parser = seconds)]
    #[serde(deserialize_with = "file_seconds")]
    grpc_max_age_grace: Duration,

    /// Maximum descriptors of a request of Envoy, 1 to 256. A request with more gets an error, and Envoy lets it pass
    /// unless it is configured otherwise [default: 16]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_DESCRIPTORS", value_name = "N")]
    grpc_max_descriptors: usize,

    /// Certificate of `--grpc`, in PEM; the listener then accepts TLS only. Read again when it changes
    #[arg(long, env = "TIDEGATE_GRPC_CERT", value_name = "FILE")]
    grpc_cert: PathBuf,

    /// Key of that certificate, in PEM
    #[arg(long, env = "TIDEGATE_GRPC_KEY", value_name = "FILE")]
    grpc_key: PathBuf,

    /// PEM bundle of CAs: clients of `--grpc` must present a certificate signed by one of them
    #[arg(long, env = "TIDEGATE_GRPC_CLIENT_CA", value_name = "FILE")]
    grpc_client_ca: PathBuf,

    /// Host names or URIs, separated by commas: a client certificate must have one of them
    #[arg(long, env = "TIDEGATE_GRPC_CLIENT_SAN", value_name = "NAME", value_delimiter = ',')]
    #[serde(deserialize_with = "file_names")]
    grpc_client_san: Vec<String>,

    /// Headers that Envoy adds to its responses: the `RateLimit` family and Retry-After (ours), the three headers of
    /// the reference service, or none [default: ours]
    #[arg(long, env = "TIDEGATE_ENVOY_HEADERS", value_enum)]
    envoy_headers: EnvoyHeaders,

    /// Return the descriptors of the request, and the metadata of the rules that allowed it, as dynamic metadata
    #[arg(long, env = "TIDEGATE_ENVOY_METADATA", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    envoy_metadata: bool,

    /// Listener for Redis clients: host:port, a port, unix:path or off [default: off]
    #[arg(long, env = "TIDEGATE_RESP", value_name = "ADDR")]
    resp: ListenAddress,

    /// File with the password that clients of `--resp` must send with AUTH or HELLO [default: none]
    #[arg(long, env = "TIDEGATE_RESP_PASSWORD_FILE", value_name = "FILE")]
    resp_password_file: PathBuf,

    /// Listener for metrics and administration: host:port, a port, unix:path or off [default: 127.0.0.1:8082]
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDR")]
    admin: ListenAddress,

    /// Listener for metrics alone, without authentication: host:port, a port, unix:path or off [default: off]
    #[arg(long, env = "TIDEGATE_METRICS", value_name = "ADDR")]
    metrics: ListenAddress,

    /// Path of the metrics page on `--metrics` [default: /metrics]
    #[arg(long, env = "TIDEGATE_METRICS_PATH", value_name = "PATH")]
    metrics_path: String,

    /// File with the token that clients of `--admin` must send; required beyond loopback
    #[arg(long, env = "TIDEGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: PathBuf,

    /// Host names beside loopback, separated by commas, that requests to `--admin` may have
    #[arg(long, env = "TIDEGATE_ADMIN_HOST", value_name = "NAME", value_delimiter = ',')]
    #[serde(deserialize_with = "file_names")]
    admin_host: Vec<String>,

    /// Run every rule in shadow mode: count denials but deny nothing
    #[arg(long, env = "TIDEGATE_SHADOW", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    shadow: bool,

    /// File with the secret that hashes subjects and seals receipts
    #[arg(long, env = "TIDEGATE_SECRET_FILE", value_name = "FILE")]
    secret_file: PathBuf,

    /// Maximum memory for counters, permits, open reservations and used receipts: bytes, or a number and MiB, GiB, MB
    /// or GB [default: 512MiB]
    #[arg(long, env = "TIDEGATE_MEMORY_CAP", value_name = "SIZE")]
    memory_cap: ByteSize,

    /// Minimum log level; RUST_LOG, if set, takes precedence [default: info]
    #[arg(long, env = "TIDEGATE_LOG_LEVEL", value_enum)]
    log_level: LogLevel,

    /// Format of log lines; auto is text on a terminal, otherwise JSON [default: auto]
    #[arg(long, env = "TIDEGATE_LOG_FORMAT", value_enum)]
    log_format: LogFormat,

    /// How denials in the log show the attributes that a rule counts by; API keys are never shown [default: masked]
    #[arg(long, env = "TIDEGATE_LOG_SUBJECTS", value_enum)]
    log_subjects: LogSubjects,

    /// How long requests in flight have to finish at shutdown; a plain number is seconds [default: 10s]
    #[arg(long, alias = "drain", env = "TIDEGATE_SHUTDOWN_TIMEOUT", value_name = "DURATION", value_parser = seconds)]
    #[serde(deserialize_with = "file_seconds", alias = "drain")]
    shutdown_timeout: Duration,

    /// How long to continue after SIGTERM while /readyz already reports not ready; a plain number is seconds [default:
    /// 1s]
    #[arg(long, env = "TIDEGATE_DRAIN_DELAY", value_name = "DURATION", value_parser = seconds)]
    #[serde(deserialize_with = "file_seconds")]
    drain_delay: Duration,

    /// Unit of X-RateLimit-Reset [default: epoch]
    #[arg(long, alias = "reset", env = "TIDEGATE_RESET_FORMAT", value_enum)]
    #[serde(alias = "reset")]
    reset_format: ResetFormat,

    /// Maximum connections of a listener [default: 4096, or what the limit on open files leaves]
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS", value_name = "N")]
    max_connections: usize,

    /// Maximum connections of one address (IPv6: one /64), no more than half of what all such addresses share: 1,920 of
    /// 4,096. Loopback, unix sockets and trusted proxies have no such limit [default: a quarter of what they share, 960
    /// of 4,096]
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS_PER_PEER", value_name = "N")]
    max_connections_per_peer: usize,

    /// How long a connection may send nothing before it is closed; a plain number is seconds [default: 60s]
    #[arg(long, alias = "idle", env = "TIDEGATE_IDLE_TIMEOUT", value_name = "DURATION", value_parser = seconds)]
    #[serde(deserialize_with = "file_seconds", alias = "idle")]
    idle_timeout: Duration,
}

/// Parses YAML. Errors contain no excerpt: a line beside the faulty one may hold a password.
fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options)
}

/// The text for an error, without the names of functions that the parser advises its callers to use.
fn describe(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::SerdeUnknownField { field, expected, location } => {
            let advice = match suggest_name(field, expected) {
                Some(near) => format!("write `{near}`?"),
                None => "remove it; `tidegate serve --help` lists the settings".to_owned(),
            };
            format!("line {}: `{}` is no setting; {advice}", location.line(), field.escape_debug())
        }
        serde_saphyr::Error::MultipleDocuments { location, .. } => {
            format!("line {}: begins a second document; write all settings in one, without `---`", location.line())
        }
        other => other.to_string(),
    }
}

impl SettingsLayer {
    /// Reads a settings file.
    pub(crate) fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Unreadable { file: file.to_owned(), source })?;
        let malformed = |reason| ConfigError::Malformed { file: file.to_owned(), reason };
        let layer = read_yaml(&text).map_err(|error| malformed(describe(&error)))?;
        // A template whose variable is empty writes this. Treated as "not given", it would open a listener.
        let values: BTreeMap<String, serde_json::Value> = read_yaml(&text).unwrap_or_default();
        let is_empty = |value: &serde_json::Value| value.is_null() || value == "";
        if let Some((name, _)) = values.iter().find(|(_, value)| is_empty(value)) {
            return Err(malformed(format!("`{name}` has no value; write one, or remove the line")));
        }
        Ok(layer)
    }
}

/// Lists of names are a YAML list, or one text with commas as flags and the environment have it.
fn file_names<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<NameList>::deserialize(file)?.map(|list| list.0))
}

struct NameList(Vec<String>);

impl<'de> Deserialize<'de> for NameList {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Self, D::Error> {
        file.deserialize_any(NameListVisitor)
    }
}

struct NameListVisitor;

impl<'de> Visitor<'de> for NameListVisitor {
    type Value = NameList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names with commas between them, or a list of names")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NameList, E> {
        Ok(NameList(text.split(',').map(str::to_owned).collect()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NameList, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = items.next_element()? {
            names.push(name);
        }
        Ok(NameList(names))
    }
}

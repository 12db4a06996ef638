//! One layer of settings: from flags and environment, or from a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::name_list::file_names;
use super::quantity::{file_millis, file_seconds, millis, seconds};
use super::{ByteSize, ConfigError, EnvoyHeaders, LogFormat, LogLevel, LogSubjects, ResetFormat};
use crate::config::listen_address::ListenAddress;
use crate::config::store_choice::StoreUrl;
use crate::policy::xds::ControlPlane;

/// One layer of settings. Flags, `TIDEGATE_*` variables and the file use the same names.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingsLayer {
    /// Rules: a YAML file or a folder of YAML files [default: a small built-in set]
    #[arg(long, env = "TIDEGATE_RULES", value_name = "PATH")]
    pub(crate) rules: Option<PathBuf>,

    /// Control plane that sends limits of the Envoy protocol, in addition to the rules: xds://HOST:PORT[?node=ID], xdss
    /// for TLS [default: none]
    #[arg(long, env = "TIDEGATE_XDS", value_name = "URL")]
    pub(crate) xds: Option<ControlPlane>,

    /// Allow several files or resources of the Envoy protocol to configure one domain
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) merge_domains: Option<bool>,

    /// Replace the Envoy reference service: read its environment variables as defaults of the settings
    #[arg(long, env = "TIDEGATE_ENVOY_COMPAT", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) envoy_compat: Option<bool>,

    /// Store of the counters: memory, or a Redis or Valkey that nodes share: redis://[USER:PASSWORD@]HOST[:PORT][/DB],
    /// unix:PATH, redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST../NAME[/DB] or
    /// redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST..; rediss for TLS [default: memory]
    #[arg(long, env = "TIDEGATE_STORE", value_name = "STORE", hide_env_values = true)]
    pub(crate) store: Option<StoreUrl>,

    /// Exit with 69 if the store cannot be reached at the start, instead of starting without it
    #[arg(long, env = "TIDEGATE_REQUIRE_STORE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) require_store: Option<bool>,

    /// Folder for state that survives a restart. With a shared store: the list of nodes and pending charges. With
    /// counters in memory: the counters of rules with `durability: disk`, and the secret. Created if missing; one
    /// folder per node [default: none]
    #[arg(long, alias = "data", env = "TIDEGATE_DATA_DIR", value_name = "DIR")]
    #[serde(alias = "data")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Minimum number of nodes that share the store [default: the registered nodes]
    #[arg(long, env = "TIDEGATE_NODES", value_name = "N")]
    pub(crate) nodes: Option<u32>,

    /// How long a decision waits for a shared store if its rule sets no budget; a plain number is milliseconds
    /// [default: 25ms]
    #[arg(long, env = "TIDEGATE_STORE_BUDGET", value_name = "DURATION", value_parser = millis)]
    #[serde(default, deserialize_with = "file_millis")]
    pub(crate) store_budget: Option<Duration>,

    /// Difference between the clocks of a shared store and this node that logs a warning; a plain number is
    /// milliseconds [default: 20ms]
    #[arg(long, env = "TIDEGATE_CLOCK_WARN", value_name = "DURATION", value_parser = millis)]
    #[serde(default, deserialize_with = "file_millis")]
    pub(crate) clock_warn: Option<Duration>,

    /// Difference between these clocks that raises an alarm; a plain number is milliseconds [default: 50ms, or
    /// --clock-warn if that is more]
    #[arg(long, env = "TIDEGATE_CLOCK_ALARM", value_name = "DURATION", value_parser = millis)]
    #[serde(default, deserialize_with = "file_millis")]
    pub(crate) clock_alarm: Option<Duration>,

    /// Listener for checks over HTTP: host:port, a port on loopback, :port on every address of this machine, unix:path
    /// or off [default: 127.0.0.1:8080]
    #[arg(long, env = "TIDEGATE_HTTP", value_name = "ADDR")]
    pub(crate) http: Option<ListenAddress>,

    /// Listener for Envoy over gRPC: host:port, a port, unix:path or off [default: 127.0.0.1:8081]
    #[arg(long, env = "TIDEGATE_GRPC", value_name = "ADDR")]
    pub(crate) grpc: Option<ListenAddress>,

    /// Age at which a gRPC connection is closed gracefully, plus or minus a tenth, so that clients find new servers. 0:
    /// never. A plain number is seconds [default: 24h]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_AGE", value_name = "DURATION", value_parser = seconds)]
    #[serde(default, deserialize_with = "file_seconds")]
    pub(crate) grpc_max_age: Option<Duration>,

    /// How long calls in flight on such a connection have to finish; a plain number is seconds [default: 1h]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_AGE_GRACE", value_name = "DURATION", value_parser = seconds)]
    #[serde(default, deserialize_with = "file_seconds")]
    pub(crate) grpc_max_age_grace: Option<Duration>,

    /// Certificate of `--grpc`, in PEM; the listener then accepts TLS only. Read again when it changes
    #[arg(long, env = "TIDEGATE_GRPC_CERT", value_name = "FILE")]
    pub(crate) grpc_cert: Option<PathBuf>,

    /// Key of that certificate, in PEM
    #[arg(long, env = "TIDEGATE_GRPC_KEY", value_name = "FILE")]
    pub(crate) grpc_key: Option<PathBuf>,

    /// PEM bundle of CAs: clients of `--grpc` must present a certificate signed by one of them
    #[arg(long, env = "TIDEGATE_GRPC_CLIENT_CA", value_name = "FILE")]
    pub(crate) grpc_client_ca: Option<PathBuf>,

    /// Host names or URIs, separated by commas: a client certificate must have one of them
    #[arg(long, env = "TIDEGATE_GRPC_CLIENT_SAN", value_name = "NAME", value_delimiter = ',')]
    #[serde(default, deserialize_with = "file_names")]
    pub(crate) grpc_client_san: Option<Vec<String>>,

    /// Headers that Envoy adds to its responses: the `RateLimit` family and Retry-After (ours), the three headers of
    /// the reference service, or none [default: ours]
    #[arg(long, env = "TIDEGATE_ENVOY_HEADERS", value_enum)]
    pub(crate) envoy_headers: Option<EnvoyHeaders>,

    /// Return the descriptors of the request, and the metadata of the rules that allowed it, as dynamic metadata
    #[arg(long, env = "TIDEGATE_ENVOY_METADATA", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) envoy_metadata: Option<bool>,

    /// Listener for Redis clients: host:port, a port, unix:path or off [default: off]
    #[arg(long, env = "TIDEGATE_RESP", value_name = "ADDR")]
    pub(crate) resp: Option<ListenAddress>,

    /// File with the password that clients of `--resp` must send with AUTH or HELLO [default: none]
    #[arg(long, env = "TIDEGATE_RESP_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) resp_password_file: Option<PathBuf>,

    /// Listener for metrics and administration: host:port, a port, unix:path or off [default: 127.0.0.1:8082]
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDR")]
    pub(crate) admin: Option<ListenAddress>,

    /// Listener for metrics alone, without authentication: host:port, a port, unix:path or off [default: off]
    #[arg(long, env = "TIDEGATE_METRICS", value_name = "ADDR")]
    pub(crate) metrics: Option<ListenAddress>,

    /// Path of the metrics page on `--metrics` [default: /metrics]
    #[arg(long, env = "TIDEGATE_METRICS_PATH", value_name = "PATH")]
    pub(crate) metrics_path: Option<String>,

    /// File with the token that clients of `--admin` must send; required beyond loopback
    #[arg(long, env = "TIDEGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// Host names beside loopback, separated by commas, that requests to `--admin` may have
    #[arg(long, env = "TIDEGATE_ADMIN_HOST", value_name = "NAME", value_delimiter = ',')]
    #[serde(default, deserialize_with = "file_names")]
    pub(crate) admin_host: Option<Vec<String>>,

    /// Run every rule in shadow mode: count denials but deny nothing
    #[arg(long, env = "TIDEGATE_SHADOW", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) shadow: Option<bool>,

    /// File with the secret that hashes subjects and seals receipts
    #[arg(long, env = "TIDEGATE_SECRET_FILE", value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,

    /// Maximum memory for counters, permits, open reservations and used receipts: bytes, or a number and MiB, GiB, MB
    /// or GB [default: 512MiB]
    #[arg(long, env = "TIDEGATE_MEMORY_CAP", value_name = "SIZE")]
    pub(crate) memory_cap: Option<ByteSize>,

    /// Minimum log level; RUST_LOG, if set, takes precedence [default: info]
    #[arg(long, env = "TIDEGATE_LOG_LEVEL", value_enum)]
    pub(crate) log_level: Option<LogLevel>,

    /// Format of log lines; auto is text on a terminal, otherwise JSON [default: auto]
    #[arg(long, env = "TIDEGATE_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,

    /// How denials in the log show the attributes that a rule counts by; API keys are never shown [default: masked]
    #[arg(long, env = "TIDEGATE_LOG_SUBJECTS", value_enum)]
    pub(crate) log_subjects: Option<LogSubjects>,

    /// How long requests in flight have to finish at shutdown; a plain number is seconds [default: 10s]
    #[arg(long, alias = "drain", env = "TIDEGATE_SHUTDOWN_TIMEOUT", value_name = "DURATION", value_parser = seconds)]
    #[serde(default, deserialize_with = "file_seconds")]
    #[serde(alias = "drain")]
    pub(crate) shutdown_timeout: Option<Duration>,

    /// How long to continue after SIGTERM while /readyz already reports not ready; a plain number is seconds [default:
    /// 1s]
    #[arg(long, env = "TIDEGATE_DRAIN_DELAY", value_name = "DURATION", value_parser = seconds)]
    #[serde(default, deserialize_with = "file_seconds")]
    pub(crate) drain_delay: Option<Duration>,

    /// Unit of X-RateLimit-Reset [default: epoch]
    #[arg(long, alias = "reset", env = "TIDEGATE_RESET_FORMAT", value_enum)]
    #[serde(alias = "reset")]
    pub(crate) reset_format: Option<ResetFormat>,

    /// Maximum connections of a listener [default: 4096, or what the limit on open files leaves]
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS", value_name = "N")]
    pub(crate) max_connections: Option<usize>,

    /// Maximum connections of one address (IPv6: one /64), no more than half of a listener's. Loopback, unix sockets
    /// and trusted proxies have no such limit [default: a quarter of a listener's]
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS_PER_PEER", value_name = "N")]
    pub(crate) max_connections_per_peer: Option<usize>,

    /// How long a connection may send nothing before it is closed; a plain number is seconds [default: 60s]
    #[arg(long, alias = "idle", env = "TIDEGATE_IDLE_TIMEOUT", value_name = "DURATION", value_parser = seconds)]
    #[serde(default, deserialize_with = "file_seconds")]
    #[serde(alias = "idle")]
    pub(crate) idle_timeout: Option<Duration>,
}

/// Parses YAML. Errors contain no excerpt: a line beside the faulty one may hold a password.
fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options)
}

impl SettingsLayer {
    /// Reads a settings file.
    pub(crate) fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Unreadable { file: file.to_owned(), source })?;
        let malformed = |reason| ConfigError::Malformed { file: file.to_owned(), reason };
        let layer = read_yaml(&text).map_err(|error| malformed(error.to_string()))?;
        // A template whose variable is empty writes this. Treated as "not given", it would open a listener.
        let values: BTreeMap<String, serde_json::Value> = read_yaml(&text).unwrap_or_default();
        let is_empty = |value: &serde_json::Value| value.is_null() || value == "";
        if let Some((name, _)) = values.iter().find(|(_, value)| is_empty(value)) {
            return Err(malformed(format!("`{name}` has no value; write one, or remove the line")));
        }
        Ok(layer)
    }

    /// This layer's settings, and those of the layer below where this one has none.
    pub(crate) fn merged_over(self, below: SettingsLayer) -> SettingsLayer {
        SettingsLayer {
            rules: self.rules.or(below.rules),
            xds: self.xds.or(below.xds),
            merge_domains: self.merge_domains.or(below.merge_domains),
            envoy_compat: self.envoy_compat.or(below.envoy_compat),
            store: self.store.or(below.store),
            require_store: self.require_store.or(below.require_store),
            data_dir: self.data_dir.or(below.data_dir),
            nodes: self.nodes.or(below.nodes),
            store_budget: self.store_budget.or(below.store_budget),
            clock_warn: self.clock_warn.or(below.clock_warn),
            clock_alarm: self.clock_alarm.or(below.clock_alarm),
            http: self.http.or(below.http),
            grpc: self.grpc.or(below.grpc),
            grpc_max_age: self.grpc_max_age.or(below.grpc_max_age),
            grpc_max_age_grace: self.grpc_max_age_grace.or(below.grpc_max_age_grace),
            grpc_cert: self.grpc_cert.or(below.grpc_cert),
            grpc_key: self.grpc_key.or(below.grpc_key),
            grpc_client_ca: self.grpc_client_ca.or(below.grpc_client_ca),
            grpc_client_san: self.grpc_client_san.or(below.grpc_client_san),
            envoy_headers: self.envoy_headers.or(below.envoy_headers),
            envoy_metadata: self.envoy_metadata.or(below.envoy_metadata),
            resp: self.resp.or(below.resp),
            resp_password_file: self.resp_password_file.or(below.resp_password_file),
            admin: self.admin.or(below.admin),
            metrics: self.metrics.or(below.metrics),
            metrics_path: self.metrics_path.or(below.metrics_path),
            admin_token_file: self.admin_token_file.or(below.admin_token_file),
            admin_host: self.admin_host.or(below.admin_host),
            shadow: self.shadow.or(below.shadow),
            secret_file: self.secret_file.or(below.secret_file),
            memory_cap: self.memory_cap.or(below.memory_cap),
            log_level: self.log_level.or(below.log_level),
            log_format: self.log_format.or(below.log_format),
            log_subjects: self.log_subjects.or(below.log_subjects),
            shutdown_timeout: self.shutdown_timeout.or(below.shutdown_timeout),
            drain_delay: self.drain_delay.or(below.drain_delay),
            reset_format: self.reset_format.or(below.reset_format),
            max_connections: self.max_connections.or(below.max_connections),
            max_connections_per_peer: self.max_connections_per_peer.or(below.max_connections_per_peer),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
        }
    }
}

//! What `serve` is told: flags and environment over a file over defaults.
//!
//! Every setting is an `Option` in [`Layer`], whichever layer it comes from; [`Settings`] is what
//! comes out, complete and checked. Unknown names in the file are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use tidegate::Reading;
use tidegate::live::Pick;
use tidegate::resilience::Tolerance;
use tidegate_core::rules::Dialect;
use tidegate_core::store::Abilities;
use tidegate_core::units::Nanos;

use crate::address::Address;
use crate::edges::envoy::{EnvoyOptions, LimitHeaders};
use crate::envoy_compat::BadEnvironment;
use crate::net::tls::Files;
use crate::net::watch::Age;
use crate::store_choice::{NoSuchStore, StoreChoice, StoreUrl};
use crate::xds::ControlPlane;

/// One layer of settings. The same names as flags, as `TIDEGATE_*`, and in the file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layer {
    /// Rules: a YAML file, or a folder of them. Without it a small built-in set runs
    #[arg(long, env = "TIDEGATE_RULES", value_name = "PATH")]
    pub(crate) rules: Option<PathBuf>,

    /// A control plane that sends limits of the Envoy protocol, beside rules from files:
    /// xds://HOST:PORT[?node=ID], xdss for TLS [default: none]
    #[arg(long, env = "TIDEGATE_XDS", value_name = "URL")]
    pub(crate) xds: Option<ControlPlane>,

    /// Let several files or resources of the Envoy protocol speak of one domain
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) merge_domains: Option<bool>,

    /// Be what the Envoy reference service is where it runs: take its environment for settings that are
    /// given nowhere else
    #[arg(long, env = "TIDEGATE_ENVOY_COMPAT", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) envoy_compat: Option<bool>,

    /// Where counters are kept: memory, or for a Redis or Valkey that nodes share
    /// redis://[USER:PASSWORD@]HOST[:PORT][/DB], unix:PATH, or
    /// redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST../NAME[/DB] or
    /// redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST..; rediss for TLS [default: memory]
    #[arg(
        long,
        env = "TIDEGATE_STORE",
        value_name = "STORE",
        hide_env_values = true
    )]
    pub(crate) store: Option<StoreUrl>,

    /// Do not start without the store: end with 69 if it cannot be met
    #[arg(long, env = "TIDEGATE_REQUIRE_STORE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) require_store: Option<bool>,

    /// Folder for what this node keeps over a restart: with a store that nodes share, the list of them;
    /// with counters in memory, those of rules with `durability: disk` and the secret they are named by.
    /// Made if it is not there. One for each node [default: none]
    #[arg(long, env = "TIDEGATE_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// How many nodes share the store, if more than have signed in there [default: those that have]
    #[arg(long, env = "TIDEGATE_NODES", value_name = "N")]
    pub(crate) nodes: Option<u32>,

    /// Milliseconds that a decision waits for a shared store where its rule says nothing [default: 5]
    #[arg(long, env = "TIDEGATE_STORE_BUDGET", value_name = "MS")]
    pub(crate) store_budget: Option<u64>,

    /// Milliseconds between the clocks of a shared store and of this node that are worth a warning
    /// [default: 20]
    #[arg(long, env = "TIDEGATE_CLOCK_WARN", value_name = "MS")]
    pub(crate) clock_warn: Option<u64>,

    /// Milliseconds between them that are worth an alarm [default: 50, or clock-warn if that is more]
    #[arg(long, env = "TIDEGATE_CLOCK_ALARM", value_name = "MS")]
    pub(crate) clock_alarm: Option<u64>,

    /// Where to answer checks: host:port, unix:path or off [default: 127.0.0.1:8080]
    #[arg(long, env = "TIDEGATE_HTTP", value_name = "ADDR")]
    pub(crate) http: Option<Address>,

    /// Where to answer Envoy, by gRPC: host:port, unix:path or off [default: 127.0.0.1:8081]
    #[arg(long, env = "TIDEGATE_GRPC", value_name = "ADDR")]
    pub(crate) grpc: Option<Address>,

    /// Seconds after which a gRPC connection is asked to close, so that clients spread over servers
    /// that came later; up to a tenth more or less. 0: never [default: 86400]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_AGE", value_name = "SECS")]
    pub(crate) grpc_max_age: Option<u64>,

    /// Seconds that its calls in flight have to finish in then [default: 3600]
    #[arg(long, env = "TIDEGATE_GRPC_MAX_AGE_GRACE", value_name = "SECS")]
    pub(crate) grpc_max_age_grace: Option<u64>,

    /// Certificate that `--grpc` shows, in PEM; with it the door is open for TLS only. Read again
    /// when it changes
    #[arg(long, env = "TIDEGATE_GRPC_CERT", value_name = "FILE")]
    pub(crate) grpc_cert: Option<PathBuf>,

    /// Its key, in PEM
    #[arg(long, env = "TIDEGATE_GRPC_KEY", value_name = "FILE")]
    pub(crate) grpc_key: Option<PathBuf>,

    /// Authorities of which clients of `--grpc` must show a certificate, in PEM
    #[arg(long, env = "TIDEGATE_GRPC_CLIENT_CA", value_name = "FILE")]
    pub(crate) grpc_client_ca: Option<PathBuf>,

    /// Names of which such a certificate must have one: host names, or URIs
    #[arg(
        long,
        env = "TIDEGATE_GRPC_CLIENT_SAN",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) grpc_client_san: Option<Vec<String>>,

    /// Which headers Envoy is asked to put on its answers: ours (RateLimit and its kin, Retry-After),
    /// the three of the reference service, or none [default: ours]
    #[arg(long, env = "TIDEGATE_ENVOY_HEADERS", value_enum)]
    pub(crate) envoy_headers: Option<EnvoyHeaders>,

    /// Give Envoy what it asked, and the metadata of its rules, as dynamic metadata
    #[arg(long, env = "TIDEGATE_ENVOY_METADATA", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) envoy_metadata: Option<bool>,

    /// Where to answer Redis clients: host:port, unix:path or off [default: off]
    #[arg(long, env = "TIDEGATE_RESP", value_name = "ADDR")]
    pub(crate) resp: Option<Address>,

    /// File with the password that clients of `--resp` must send with AUTH or HELLO [default: none]
    #[arg(long, env = "TIDEGATE_RESP_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) resp_password_file: Option<PathBuf>,

    /// Where to show metrics and administer: host:port, unix:path or off [default: 127.0.0.1:8082]
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDR")]
    pub(crate) admin: Option<Address>,

    /// Where to show metrics alone, to whoever asks: host:port, unix:path or off [default: off]
    #[arg(long, env = "TIDEGATE_METRICS", value_name = "ADDR")]
    pub(crate) metrics: Option<Address>,

    /// The path of the page there [default: /metrics]
    #[arg(long, env = "TIDEGATE_METRICS_PATH", value_name = "PATH")]
    pub(crate) metrics_path: Option<String>,

    /// File with the token that `--admin` asks for; required beyond loopback
    #[arg(long, env = "TIDEGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// Host names beside loopback that `--admin` may be addressed by
    #[arg(
        long,
        env = "TIDEGATE_ADMIN_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) admin_host: Option<Vec<String>>,

    /// Let every rule only watch: count what it would refuse, refuse nothing
    #[arg(long, env = "TIDEGATE_SHADOW", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) shadow: Option<bool>,

    /// File with the secret under which subjects are hashed and receipts are sealed
    #[arg(long, env = "TIDEGATE_SECRET_FILE", value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,

    /// The most memory counters may take [default: 512MiB]
    #[arg(long, env = "TIDEGATE_MEMORY_CAP", value_name = "SIZE")]
    pub(crate) memory_cap: Option<Size>,

    /// The least that is logged; RUST_LOG says it more finely and wins [default: info]
    #[arg(long, env = "TIDEGATE_LOG_LEVEL", value_enum)]
    pub(crate) log_level: Option<LogLevel>,

    /// How to log; auto is text on a terminal, else JSON [default: auto]
    #[arg(long, env = "TIDEGATE_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,

    /// Seconds that requests in flight have to finish in at the end [default: 10]
    #[arg(long, env = "TIDEGATE_DRAIN", value_name = "SECS")]
    pub(crate) drain: Option<u64>,

    /// Seconds to go on serving after SIGTERM while /readyz already says no [default: 1]
    #[arg(long, env = "TIDEGATE_DRAIN_DELAY", value_name = "SECS")]
    pub(crate) drain_delay: Option<u64>,

    /// What X-RateLimit-Reset counts in [default: epoch]
    #[arg(long, env = "TIDEGATE_RESET", value_enum)]
    pub(crate) reset: Option<Reset>,

    /// Connections at once [default: 4096, or what the limit on open files leaves]
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS", value_name = "N")]
    pub(crate) max_connections: Option<usize>,

    /// Connections at once of one address (IPv6: of one /64). Loopback, unix sockets and trusted
    /// proxies have no such bound [default: 1024]
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS_PER_PEER", value_name = "N")]
    pub(crate) max_connections_per_peer: Option<usize>,

    /// Seconds after which a connection that sends nothing is closed [default: 60]
    #[arg(long, env = "TIDEGATE_IDLE", value_name = "SECS")]
    pub(crate) idle: Option<u64>,
}

/// The forms of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
}

/// The least that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// What needs someone.
    Error,
    /// What may need someone.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// What happens inside.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// As a filter has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// What `X-RateLimit-Reset` counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reset {
    /// Seconds since 1970.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

/// Headers that Envoy is asked to put on its answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EnvoyHeaders {
    /// Those of the other edges.
    #[default]
    Ours,
    /// Those of the reference service.
    Reference,
    /// None.
    Off,
}

/// A number of bytes, written `512MiB`, `1GiB`, `64KiB` or plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Size(pub(crate) u64);

/// Everything `serve` needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rules: RulesFrom,
    pub(crate) merge_domains: bool,
    /// What keeps the counters of descriptors apart from those of others in the same store.
    pub(crate) counter_prefix: Arc<str>,
    pub(crate) store: StoreChoice,
    pub(crate) require_store: bool,
    pub(crate) data: Option<PathBuf>,
    pub(crate) nodes: Option<u32>,
    pub(crate) store_budget: Duration,
    pub(crate) clock: Tolerance,
    pub(crate) http: Address,
    pub(crate) grpc: Address,
    pub(crate) grpc_age: Option<Age>,
    pub(crate) grpc_tls: Option<Files>,
    pub(crate) envoy: EnvoyOptions,
    pub(crate) resp: Address,
    pub(crate) resp_password_file: Option<PathBuf>,
    pub(crate) admin: Address,
    pub(crate) metrics: Address,
    pub(crate) metrics_path: String,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) shadow: bool,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) memory_cap: Size,
    pub(crate) log_level: LogLevel,
    pub(crate) log_format: LogFormat,
    pub(crate) drain: Duration,
    pub(crate) drain_delay: Duration,
    pub(crate) reset: Reset,
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_peer: usize,
    pub(crate) idle: Duration,
}

/// Where rules come from.
#[derive(Clone, Debug)]
pub(crate) struct RulesFrom {
    /// A file, or a folder.
    pub(crate) path: Option<PathBuf>,
    /// Which files of a folder count.
    pub(crate) pick: Pick,
    /// A control plane.
    pub(crate) xds: Option<ControlPlane>,
    /// Whether to start with files that cannot be used, and to decide nothing until they can.
    pub(crate) may_be_bad: bool,
    /// Whether doors open before the control plane has said anything.
    pub(crate) may_be_late: bool,
}

impl Settings {
    /// How rules are read.
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            dialect: Dialect {
                store: self.abilities(),
                merge_domains: self.merge_domains,
                prefix: Arc::clone(&self.counter_prefix),
            },
            pick: self.rules.pick,
            elsewhere: self.rules.xds.is_some(),
        }
    }

    /// What the store can do for rules.
    pub(crate) fn abilities(&self) -> Abilities {
        match (&self.store, &self.data) {
            (StoreChoice::Memory, Some(_)) => Abilities::JOURNAL,
            (store, _) => store.abilities(),
        }
    }
}

/// What the store needs to be of use.
const LEAST_MEMORY: u64 = 16 << 20;

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadConfig {
    /// The file is not there or cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        file: PathBuf,
        source: std::io::Error,
    },
    /// The file does not say what a configuration says.
    #[error("{}: {reason}", file.display())]
    Malformed { file: PathBuf, reason: String },
    /// A store there is no code for.
    #[error(transparent)]
    NoSuchStore(#[from] NoSuchStore),
    /// The environment of the reference service asks for what cannot be done.
    #[error(transparent)]
    Environment(#[from] BadEnvironment),
    /// Nobody could reach it.
    #[error(
        "--http, --grpc, --resp and --admin are all off, so nobody could ask anything; open one of them"
    )]
    NothingOpen,
    /// A certificate without a key, or clients that are to be known by certificates without TLS.
    #[error("{given} needs {missing}; write both, or neither")]
    HalfOfTls {
        given: &'static str,
        missing: &'static str,
    },
    /// An alarm that would come before its warning.
    #[error(
        "--clock-alarm {alarm} is below --clock-warn {warn}, so nobody would be warned; write more"
    )]
    AlarmBeforeWarning { warn: u64, alarm: u64 },
    /// Too little for the tables alone.
    #[error("--memory-cap is below 16MiB, which a few thousand clients would fill; write more")]
    TooLittleMemory,
}

impl BadConfig {
    /// Whether a file is wrong, rather than what was asked for.
    pub(crate) fn is_of_a_file(&self) -> bool {
        matches!(
            self,
            BadConfig::Unreadable { .. } | BadConfig::Malformed { .. }
        )
    }
}

impl Layer {
    /// Reads a file of settings.
    pub(crate) fn read(file: &Path) -> Result<Self, BadConfig> {
        let text = std::fs::read_to_string(file).map_err(|source| BadConfig::Unreadable {
            file: file.to_owned(),
            source,
        })?;
        // No excerpt of the file: a line beside the faulty one may hold a password.
        let told = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(&text, told).map_err(|e| BadConfig::Malformed {
            file: file.to_owned(),
            reason: e.to_string(),
        })
    }

    /// This layer where it says something, else the one below.
    pub(crate) fn over(self, below: Layer) -> Layer {
        Layer {
            rules: self.rules.or(below.rules),
            xds: self.xds.or(below.xds),
            merge_domains: self.merge_domains.or(below.merge_domains),
            envoy_compat: self.envoy_compat.or(below.envoy_compat),
            store: self.store.or(below.store),
            require_store: self.require_store.or(below.require_store),
            data: self.data.or(below.data),
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
            drain: self.drain.or(below.drain),
            drain_delay: self.drain_delay.or(below.drain_delay),
            reset: self.reset.or(below.reset),
            max_connections: self.max_connections.or(below.max_connections),
            max_connections_per_peer: self
                .max_connections_per_peer
                .or(below.max_connections_per_peer),
            idle: self.idle.or(below.idle),
        }
    }

    /// Fills in the defaults. They are the design's; the reasons that are not obvious stand here.
    pub(crate) fn settle(self) -> Result<Settings, BadConfig> {
        let grpc_tls = self.grpc_tls()?;
        let store = StoreChoice::of(self.store)?;
        let memory_cap = self.memory_cap.unwrap_or(Size(512 << 20));
        if memory_cap.0 < LEAST_MEMORY {
            return Err(BadConfig::TooLittleMemory);
        }
        let resp = self.resp.unwrap_or(Address::Off);
        let doors = [&self.http, &self.grpc, &self.admin].map(Option::as_ref);
        let off = |door: Option<&Address>| door == Some(&Address::Off);
        if doors.into_iter().all(off) && off(Some(&resp)) {
            return Err(BadConfig::NothingOpen);
        }
        let clock = tolerance(self.clock_warn, self.clock_alarm)?;
        let loopback = |port: u16| Address::Tcp(format!("127.0.0.1:{port}"));
        Ok(Settings {
            rules: RulesFrom {
                path: self.rules,
                pick: Pick::Rules,
                xds: self.xds,
                may_be_bad: false,
                may_be_late: false,
            },
            merge_domains: self.merge_domains.unwrap_or(false),
            counter_prefix: Arc::default(),
            store,
            require_store: self.require_store.unwrap_or(false),
            data: self.data,
            nodes: self.nodes.filter(|nodes| *nodes > 0),
            // Several round trips within a zone, and nothing a client would notice.
            store_budget: Duration::from_millis(self.store_budget.unwrap_or(5).max(1)),
            clock,
            http: self.http.unwrap_or_else(|| loopback(8080)),
            grpc: self.grpc.unwrap_or_else(|| loopback(8081)),
            grpc_age: age(self.grpc_max_age, self.grpc_max_age_grace),
            grpc_tls,
            envoy: EnvoyOptions {
                headers: self.envoy_headers.unwrap_or_default().names(),
                dynamic_metadata: self.envoy_metadata.unwrap_or(false),
                ..EnvoyOptions::default()
            },
            resp,
            resp_password_file: self.resp_password_file,
            admin: self.admin.unwrap_or_else(|| loopback(8082)),
            metrics: self.metrics.unwrap_or(Address::Off),
            metrics_path: self.metrics_path.unwrap_or_else(|| "/metrics".to_owned()),
            admin_token_file: self.admin_token_file,
            admin_hosts: self.admin_host.unwrap_or_default(),
            shadow: self.shadow.unwrap_or(false),
            secret_file: self.secret_file,
            memory_cap,
            log_level: self.log_level.unwrap_or_default(),
            log_format: self.log_format.unwrap_or_default(),
            drain: Duration::from_secs(self.drain.unwrap_or(10)),
            // A balancer that probes every second has seen /readyz once before the door closes.
            drain_delay: Duration::from_secs(self.drain_delay.unwrap_or(1)),
            reset: self.reset.unwrap_or_default(),
            max_connections: self.max_connections.unwrap_or(4096).max(1),
            // A quarter of the usual number: more than any pool of connections needs, and it takes
            // four to shut the others out.
            max_connections_per_peer: self.max_connections_per_peer.unwrap_or(1024).max(1),
            // Longer than most proxies keep an idle connection, so that they close first.
            idle: Duration::from_secs(self.idle.unwrap_or(60).max(1)),
        })
    }
}

impl Layer {
    /// The files of TLS on the gRPC door, if it is to have any.
    fn grpc_tls(&self) -> Result<Option<Files>, BadConfig> {
        let half = |given, missing| Err(BadConfig::HalfOfTls { given, missing });
        match (&self.grpc_cert, &self.grpc_key) {
            (Some(_), None) => half("--grpc-cert", "--grpc-key"),
            (None, Some(_)) => half("--grpc-key", "--grpc-cert"),
            (None, None) if self.grpc_client_ca.is_some() => {
                half("--grpc-client-ca", "--grpc-cert")
            }
            _ if self.grpc_client_san.is_some() && self.grpc_client_ca.is_none() => {
                half("--grpc-client-san", "--grpc-client-ca")
            }
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(Files {
                certificate: certificate.clone(),
                key: key.clone(),
                client_authorities: self.grpc_client_ca.clone(),
                client_names: self.grpc_client_san.clone().unwrap_or_default(),
            })),
        }
    }
}

/// How old a connection gets, both in seconds. The defaults are the reference service's: long enough
/// to cost nothing, short enough that a fleet that grew is found within a day.
fn age(most: Option<u64>, grace: Option<u64>) -> Option<Age> {
    // A century is as good as any time beyond, and no sum with it wraps.
    let bounded = |secs: u64| Duration::from_secs(secs.min(u32::MAX.into()));
    let most = bounded(most.unwrap_or(86_400));
    (!most.is_zero()).then(|| Age {
        most,
        grace: bounded(grace.unwrap_or(3_600)),
    })
}

/// What clocks may be apart, both in milliseconds.
fn tolerance(warn: Option<u64>, alarm: Option<u64>) -> Result<Tolerance, BadConfig> {
    let warn = warn.unwrap_or(20);
    let alarm = alarm.unwrap_or(warn.max(50));
    if alarm < warn {
        return Err(BadConfig::AlarmBeforeWarning { warn, alarm });
    }
    Ok(Tolerance {
        warn: Nanos::from_millis(warn),
        alarm: Nanos::from_millis(alarm),
    })
}

impl EnvoyHeaders {
    fn names(self) -> LimitHeaders {
        match self {
            EnvoyHeaders::Ours => LimitHeaders::Ours,
            EnvoyHeaders::Reference => LimitHeaders::Three(Box::default()),
            EnvoyHeaders::Off => LimitHeaders::Off,
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "`{}` is no size; write 512MiB, 1GiB or 67108864",
                text.escape_default()
            )
        };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        number.checked_mul(unit).map(Size).ok_or_else(bad)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Layer, BadConfig> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.yaml");
        std::fs::write(&path, text).unwrap();
        Layer::read(&path)
    }

    #[test]
    fn an_upper_layer_wins_where_it_speaks() {
        let flags = Layer {
            drain: Some(3),
            ..Layer::default()
        };
        let below = "drain: 5\nidle: 7\nhttp: off\nmemory_cap: 1GiB\nreset: delta\n\
                     max_connections_per_peer: 9\n";
        let below = file(below).unwrap();
        let settings = flags.over(below).settle().unwrap();
        assert_eq!(settings.drain, Duration::from_secs(3));
        assert_eq!(settings.idle, Duration::from_secs(7));
        assert_eq!(settings.http, Address::Off);
        assert_eq!(settings.max_connections_per_peer, 9);
        assert_eq!(settings.memory_cap, Size(1 << 30));
        assert_eq!(settings.reset, Reset::Delta);
        assert_eq!(settings.admin.to_string(), "127.0.0.1:8082");
    }

    #[test]
    fn a_name_that_is_not_a_setting_is_refused_and_named() {
        let error = file("drian: 5\n").unwrap_err().to_string();
        assert!(error.contains("drian"), "{error}");
    }

    #[test]
    fn a_store_that_is_not_there_yet_is_refused_without_its_password() {
        let store = Some("mongodb://:secret@host".to_owned().into());
        let error = Layer {
            store,
            ..Layer::default()
        }
        .settle()
        .unwrap_err()
        .to_string();
        let told = "store `mongodb` is not there yet; write memory, redis://HOST:PORT, ";
        assert!(error.starts_with(told), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_password_is_never_repeated() {
        let texts = [
            "store: redis://:planted@host\ndrian: 5\n",
            "store: [redis://:planted@host]\n",
        ];
        for text in texts {
            let error = file(text).unwrap_err().to_string();
            assert!(!error.contains("planted"), "{error}");
        }
    }

    #[test]
    fn an_alarm_comes_no_sooner_than_its_warning() {
        assert_eq!(tolerance(None, None).unwrap(), Tolerance::default());
        let loose = tolerance(Some(70), None).unwrap();
        assert_eq!(loose.alarm, Nanos::from_millis(70));
        let error = tolerance(Some(70), Some(60)).unwrap_err().to_string();
        assert!(error.starts_with("--clock-alarm 60 is below"), "{error}");
    }

    #[test]
    fn an_age_of_nothing_is_no_end_and_the_greatest_one_is_borne() {
        assert_eq!(age(Some(0), None), None);
        let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
        let usual = Age {
            most: day,
            grace: hour,
        };
        assert_eq!(age(None, None), Some(usual));
        let greatest = age(Some(u64::MAX), Some(u64::MAX)).unwrap();
        assert!(greatest.most * 300 > day && greatest.grace > day);
    }

    #[test]
    fn sizes_are_read_and_never_wrap() {
        assert_eq!("64KiB".parse(), Ok(Size(65_536)));
        assert_eq!("7".parse(), Ok(Size(7)));
        for text in ["", "MiB", "1MB", "-1", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}

//! Turns layers into settings: fills in defaults, and rejects combinations that do not work.

use std::sync::Arc;
use std::time::Duration;

use tidegate::live::FileFilter;
use tidegate::resilience::ClockTolerance;
use tidegate_core::units::Nanos;

use super::{ByteSize, ConfigError, RulesSource, ServerSettings, SettingsLayer};
use crate::config::envoy_options::{DEFAULT_WAIT, MAX_DESCRIPTORS};
use crate::config::{ConnectionAge, EnvoyOptions, ListenAddress, ListenerTlsFiles, StoreChoice};

/// The minimum with which the store is useful.
const MIN_MEMORY: u64 = 16 << 20;
/// Several round trips within a zone, and too short for a client to notice.
const DEFAULT_BUDGET: Duration = Duration::from_millis(25);
const MIN_BUDGET: Duration = Duration::from_millis(1);
const MIN_IDLE: Duration = Duration::from_secs(1);

impl SettingsLayer {
    /// Fills in the defaults. Reasons that are not obvious are beside them.
    pub(crate) fn resolve(self) -> Result<ServerSettings, ConfigError> {
        let grpc_tls = self.grpc_tls()?;
        self.check_zeros()?;
        let admin_hosts = parse_names("--admin-host", self.admin_host.as_deref())?;
        self.check_listeners()?;
        let envoy = self.envoy_options()?;
        let store = StoreChoice::from_url(self.store.clone())?;
        self.check_shared(&store)?;
        let memory_cap = self.memory_cap.unwrap_or(ByteSize(512 << 20));
        if memory_cap.0 < MIN_MEMORY {
            return Err(ConfigError::TooLittleMemory);
        }
        let resp = self.resp.unwrap_or(ListenAddress::Off);
        let listeners = [&self.http, &self.grpc, &self.admin].map(Option::as_ref);
        let off = |listener: Option<&ListenAddress>| listener == Some(&ListenAddress::Off);
        if listeners.into_iter().all(off) && off(Some(&resp)) {
            return Err(ConfigError::NoListener);
        }
        let clock = clock_tolerance(self.clock_warn, self.clock_alarm)?;
        let loopback = |port: u16| ListenAddress::Tcp(format!("127.0.0.1:{port}"));
        Ok(ServerSettings {
            rules: RulesSource {
                path: self.rules,
                pick: FileFilter::Rules,
                xds: self.xds,
                allow_bad_rules: false,
                allow_late_control_plane: false,
            },
            merge_domains: self.merge_domains.unwrap_or(false),
            counter_prefix: Arc::default(),
            store,
            require_store: self.require_store.unwrap_or(false),
            data_dir: self.data_dir,
            nodes: self.nodes,
            store_budget: self.store_budget.unwrap_or(DEFAULT_BUDGET).max(MIN_BUDGET),
            clock,
            http: self.http.unwrap_or_else(|| loopback(8080)),
            grpc: self.grpc.unwrap_or_else(|| loopback(8081)),
            grpc_age: connection_age(self.grpc_max_age, self.grpc_max_age_grace),
            grpc_tls,
            envoy,
            resp,
            resp_password_file: self.resp_password_file,
            admin: self.admin.unwrap_or_else(|| loopback(8082)),
            metrics: self.metrics.unwrap_or(ListenAddress::Off),
            metrics_path: self.metrics_path.unwrap_or_else(|| "/metrics".to_owned()),
            admin_token_file: self.admin_token_file,
            admin_hosts,
            shadow: self.shadow.unwrap_or(false),
            secret_file: self.secret_file,
            memory_cap,
            log_level: self.log_level.unwrap_or_default(),
            log_format: self.log_format.unwrap_or_default(),
            log_subjects: self.log_subjects.unwrap_or_default(),
            shutdown_timeout: self.shutdown_timeout.unwrap_or(Duration::from_secs(10)),
            // A balancer that probes every second has seen /readyz once before the listener closes.
            drain_delay: self.drain_delay.unwrap_or(Duration::from_secs(1)),
            reset_format: self.reset_format.unwrap_or_default(),
            max_connections: self.max_connections.unwrap_or(4096),
            max_connections_per_peer: self.max_connections_per_peer,
            // Longer than most proxies keep an idle connection open, so that they close it first.
            idle_timeout: self.idle_timeout.unwrap_or(Duration::from_secs(60)).max(MIN_IDLE),
        })
    }
}

impl SettingsLayer {
    /// A 0 does not mean "without a limit" or "not at all".
    fn check_zeros(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("--max-connections", self.max_connections == Some(0)),
            ("--max-connections-per-peer", self.max_connections_per_peer == Some(0)),
            ("--idle-timeout", self.idle_timeout == Some(Duration::ZERO)),
            ("--nodes", self.nodes == Some(0)),
            ("--store-budget", self.store_budget == Some(Duration::ZERO)),
        ];
        match zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((flag, _)) => Err(ConfigError::ZeroSetting { flag }),
            None => Ok(()),
        }
    }

    /// A node of several must not count alone because its store was left out by mistake.
    fn check_shared(&self, store: &StoreChoice) -> Result<(), ConfigError> {
        let needing = [
            ("--require-store", self.require_store == Some(true)),
            ("--nodes", self.nodes.is_some_and(|nodes| nodes > 1)),
        ];
        match (store, needing.into_iter().find(|(_, is_given)| *is_given)) {
            (StoreChoice::Memory, Some((given, _))) => Err(ConfigError::NeedsSharedStore { given }),
            _ => Ok(()),
        }
    }

    /// Rejects settings of a listener that was left out by mistake. A listener that is switched off may have them,
    /// in a file for example.
    fn check_listeners(&self) -> Result<(), ConfigError> {
        let missing = |given, missing| Err(ConfigError::MissingSetting { given, missing });
        if self.resp.is_none() && self.resp_password_file.is_some() {
            return missing("--resp-password-file", "--resp");
        }
        if self.metrics.is_none() && self.metrics_path.is_some() {
            return missing("--metrics-path", "--metrics");
        }
        let is_path = |path: &&String| path.starts_with('/') && !path.contains(['?', '#', ' ', '\t']);
        match self.metrics_path.as_ref().filter(|path| !is_path(path)) {
            Some(path) => Err(ConfigError::InvalidPath { flag: "--metrics-path", found: path.clone() }),
            None => Ok(()),
        }
    }

    fn envoy_options(&self) -> Result<EnvoyOptions, ConfigError> {
        let defaults = EnvoyOptions::default();
        let max_descriptors = self.grpc_max_descriptors.unwrap_or(defaults.max_descriptors);
        if !(1..=MAX_DESCRIPTORS).contains(&max_descriptors) {
            let (flag, max) = ("--grpc-max-descriptors", MAX_DESCRIPTORS);
            return Err(ConfigError::OutOfRange { flag, found: max_descriptors, max });
        }
        Ok(EnvoyOptions {
            max_descriptors,
            headers: self.envoy_headers.unwrap_or_default().limit_headers(),
            dynamic_metadata: self.envoy_metadata.unwrap_or(false),
            // A budget in the settings applies to calls without a deadline, too.
            default_wait: self.store_budget.is_none().then_some(DEFAULT_WAIT),
            ..defaults
        })
    }

    /// The TLS files of the gRPC listener, if it has any.
    fn grpc_tls(&self) -> Result<Option<ListenerTlsFiles>, ConfigError> {
        let missing_half = |given, missing| Err(ConfigError::MissingSetting { given, missing });
        match (&self.grpc_cert, &self.grpc_key) {
            (Some(_), None) => missing_half("--grpc-cert", "--grpc-key"),
            (None, Some(_)) => missing_half("--grpc-key", "--grpc-cert"),
            (None, None) if self.grpc_client_ca.is_some() => missing_half("--grpc-client-ca", "--grpc-cert"),
            _ if self.grpc_client_san.is_some() && self.grpc_client_ca.is_none() => {
                missing_half("--grpc-client-san", "--grpc-client-ca")
            }
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(ListenerTlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_authorities: self.grpc_client_ca.clone(),
                client_names: parse_names("--grpc-client-san", self.grpc_client_san.as_deref())?,
            })),
        }
    }
}

/// The names that `flag` lists, without the blanks around commas. A name that no client can have is an error: it
/// would lock out the client that it is meant for.
fn parse_names(flag: &'static str, listed: Option<&[String]>) -> Result<Vec<String>, ConfigError> {
    // It would not mean that no name is accepted: without names a client may have any.
    if listed.is_some_and(<[String]>::is_empty) {
        return Err(ConfigError::InvalidName { flag, found: "[]".to_owned() });
    }
    let listed = listed.unwrap_or_default().iter();
    let name = |text: &String| {
        let name = text.trim();
        let is_wrong = |c: char| c.is_whitespace() || matches!(c, '*' | ',');
        if name.is_empty() || name.contains(is_wrong) {
            let found = name.escape_debug().to_string();
            return Err(ConfigError::InvalidName { flag, found });
        }
        Ok(name.to_owned())
    };
    listed.map(name).collect()
}

/// The maximum age of a connection. The defaults are the reference service's: long enough to cost nothing, short
/// enough that clients find the new nodes of a fleet within a day.
pub(super) fn connection_age(max: Option<Duration>, grace: Option<Duration>) -> Option<ConnectionAge> {
    // A century is as good as any longer time, and no sum with it wraps.
    let bounded = |age: Duration| age.min(Duration::from_secs(u32::MAX.into()));
    let max = bounded(max.unwrap_or(Duration::from_secs(86_400)));
    (!max.is_zero()).then(|| ConnectionAge { max, grace: bounded(grace.unwrap_or(Duration::from_secs(3_600))) })
}

/// How far clocks may be apart.
pub(super) fn clock_tolerance(warn: Option<Duration>, alarm: Option<Duration>) -> Result<ClockTolerance, ConfigError> {
    let warn = warn.map_or(Nanos::from_millis(20), Nanos::from);
    let alarm = alarm.map_or(warn.max(Nanos::from_millis(50)), Nanos::from);
    if alarm < warn {
        return Err(ConfigError::AlarmBeforeWarning { warn, alarm });
    }
    Ok(ClockTolerance { warn, alarm })
}

//! Every environment variable of the reference service, and its effect here.
//!
//! The only list of them. A variable that is read must be listed as read. The notes about ignored variables and the
//! table in `docs/envoy-compat.md` are made from it.

/// How a variable is supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VariableSupport {
    /// It has the same effect as in the reference service.
    Honoured,
    /// It has a part of that effect.
    Partly,
    /// It is known, and has no effect here.
    Ignored,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EnvoyVariable {
    pub(crate) name: &'static str,
    pub(crate) support: VariableSupport,
    /// Its effect here, or why it has none.
    pub(crate) meaning: &'static str,
}

/// One name or several with blanks between them, and what is true of each.
type VariableRow = (&'static str, VariableSupport, &'static str);

const fn honoured(name: &'static str, meaning: &'static str) -> VariableRow {
    (name, VariableSupport::Honoured, meaning)
}

const fn partly(name: &'static str, meaning: &'static str) -> VariableRow {
    (name, VariableSupport::Partly, meaning)
}

const fn ignored(names: &'static str, meaning: &'static str) -> VariableRow {
    (names, VariableSupport::Ignored, meaning)
}

/// All variables, in the order of the contract.
pub(crate) fn variables() -> impl Iterator<Item = EnvoyVariable> {
    ROWS.iter().flat_map(|&(names, support, meaning)| {
        names.split_ascii_whitespace().map(move |name| EnvoyVariable { name, support, meaning })
    })
}

/// The variable of this name, if the reference service has it.
pub(crate) fn find(name: &str) -> Option<EnvoyVariable> {
    variables().find(|variable| variable.name == name)
}

const POOL: &str = "Tidegate manages its connections to the store";
const ONE_STORE: &str = "there is one store for all windows";
const MEMCACHE: &str = "there is no Memcached store";
const STATSD: &str = "metrics are Prometheus text";
const NAMES: &str = "names are those of the usual mapper";
const TRACING: &str = "there is no tracing";
const START: &str = "the service starts without its store and connects as soon as possible";

const ROWS: &[VariableRow] = &[
    honoured("HOST", "`--http` with `PORT`; default 0.0.0.0"),
    honoured("PORT", "see `HOST`; default 8080"),
    honoured("GRPC_HOST", "`--grpc` with `GRPC_PORT`; default 0.0.0.0"),
    honoured("GRPC_PORT", "see `GRPC_HOST`; default 8081"),
    honoured("GRPC_UDS", "`--grpc unix:PATH`, instead of the port"),
    partly("DEBUG_HOST", "`--admin` with `DEBUG_PORT`; always 127.0.0.1 without `--admin-token-file`"),
    honoured("DEBUG_PORT", "see `DEBUG_HOST`; default 6070"),
    honoured("GRPC_MAX_CONNECTION_AGE", "`--grpc-max-age`"),
    honoured("GRPC_MAX_CONNECTION_AGE_GRACE", "`--grpc-max-age-grace`"),
    honoured("GRPC_SERVER_USE_TLS", "whether the next four apply"),
    honoured("GRPC_SERVER_TLS_CERT", "`--grpc-cert`"),
    honoured("GRPC_SERVER_TLS_KEY", "`--grpc-key`"),
    honoured("GRPC_CLIENT_TLS_CACERT", "`--grpc-client-ca`"),
    honoured("GRPC_CLIENT_TLS_SAN", "`--grpc-client-san`"),
    honoured("CONFIG_TYPE", "`FILE` or `GRPC_XDS_SOTW`"),
    honoured("RUNTIME_ROOT", "`--rules` is ROOT/SUBDIRECTORY/APPDIRECTORY"),
    honoured("RUNTIME_SUBDIRECTORY", "see `RUNTIME_ROOT`"),
    honoured("RUNTIME_APPDIRECTORY", "see `RUNTIME_ROOT`; default `config`"),
    partly("RUNTIME_IGNOREDOTFILES", "whether files `.x` are ignored; names that begin with `..` always are"),
    ignored("RUNTIME_WATCH_ROOT", "both kinds of change are detected"),
    honoured("MERGE_DOMAIN_CONFIG", "whether files may share a domain"),
    honoured("FORCE_START_WITHOUT_INITIAL_CONFIG", "whether to open the listeners before the first xDS response"),
    honoured("CONFIG_GRPC_XDS_SERVER_URL", "`--xds xds://HOST:PORT`"),
    honoured("CONFIG_GRPC_XDS_NODE_ID", "`?node=ID`; default `default`"),
    honoured("CONFIG_GRPC_XDS_NODE_METADATA", "sent with the node"),
    honoured("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "sent with the stream"),
    honoured("CONFIG_GRPC_XDS_SERVER_USE_TLS", "whether the next four apply"),
    honoured("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "authorities to trust"),
    honoured("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "the name to expect"),
    honoured("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "client certificate"),
    honoured("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "its key"),
    ignored("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "one back-off for connecting and subscribing"),
    honoured("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "first wait; default 10s"),
    honoured("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "longest wait; default 60s"),
    ignored("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "waits double"),
    ignored("XDS_CLIENT_BACKOFF_JITTER", "waits always have jitter"),
    honoured("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "default 4 MiB, at most 64 MiB"),
    honoured("SHADOW_MODE", "descriptors may be over limit, the request never is"),
    honoured("QUOTA_MODE", "every descriptor is a quota"),
    honoured("RESPONSE_DYNAMIC_METADATA", "whether responses carry metadata"),
    honoured("NEAR_LIMIT_RATIO", "fraction from which `near_limit` counts; default 0.8"),
    honoured(
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "if set, a denied request charges only the limits that deny it; otherwise all of its limits",
    ),
    honoured("LIMIT_RESPONSE_HEADERS_ENABLED", "whether the next three are sent"),
    honoured("LIMIT_LIMIT_HEADER", "default `RateLimit-Limit`"),
    honoured("LIMIT_REMAINING_HEADER", "default `RateLimit-Remaining`"),
    honoured("LIMIT_RESET_HEADER", "default `RateLimit-Reset`"),
    honoured("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "whether health requires a configuration with a domain"),
    ignored("EXPIRATION_JITTER_MAX_SECONDS", "keys expire once they no longer affect a decision"),
    ignored("LOCAL_CACHE_SIZE_IN_BYTES", "denials are always cached"),
    honoured("CACHE_KEY_PREFIX", "deployments with different prefixes have separate counters in one Redis"),
    partly("BACKEND_TYPE", "`redis`; `memcache` is an error"),
    honoured("REDIS_TYPE", "`single`, `sentinel` or `cluster`"),
    honoured("REDIS_URL", "`--store`; without it, counters are in memory, with a warning"),
    honoured("REDIS_SOCKET_TYPE", "`tcp` or `unix`"),
    honoured("REDIS_AUTH", "[USER:]PASSWORD"),
    honoured("REDIS_SENTINEL_AUTH", "[USER:]PASSWORD"),
    honoured("REDIS_TLS", "`rediss` instead of `redis`"),
    honoured("REDIS_TLS_CACERT", "`?ca=`"),
    honoured("REDIS_TLS_CLIENT_CERT", "`?cert=`"),
    honoured("REDIS_TLS_CLIENT_KEY", "`?key=`"),
    partly("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "ignored with a warning: certificates are always verified"),
    honoured("REDIS_TIMEOUT", "`--store-budget`; default 1 s, and never later than 5 ms before the caller's deadline"),
    ignored(
        "REDIS_POOL_SIZE REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT \
         REDIS_CLUSTER_PIPELINE_PARALLELISM",
        POOL,
    ),
    ignored("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "a node without its store decides from its share and is healthy"),
    ignored("REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME", START),
    partly("REDIS_PERSECOND", "ignored with a warning: there is one store for all windows"),
    ignored(
        "REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_AUTH \
         REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_POOL_SIZE \
         REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT \
         REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
        ONE_STORE,
    ),
    ignored(
        "MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS \
         MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT \
         MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        MEMCACHE,
    ),
    honoured("LOG_LEVEL", "`--log-level`; default info; `RUST_LOG` takes precedence"),
    honoured("LOG_FORMAT", "`--log-format`"),
    ignored("USE_STATSD STATSD_HOST STATSD_PORT USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS", STATSD),
    honoured("USE_PROMETHEUS", "`--metrics`, at `PROMETHEUS_ADDR`"),
    honoured("PROMETHEUS_ADDR", "default 0.0.0.0:9090"),
    honoured("PROMETHEUS_PATH", "`--metrics-path`; default /metrics"),
    ignored("PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", NAMES),
    ignored("STATS_FLUSH_INTERVAL EXTRA_TAGS DISABLE_STATS", STATSD),
    ignored(
        "TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID \
         TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE",
        TRACING,
    ),
];

/// The table in the docs.
#[cfg(test)]
pub(crate) fn markdown() -> String {
    let mut text = "| variable | | here |\n|---|---|---|\n".to_owned();
    for known in variables() {
        let support = match known.support {
            VariableSupport::Honoured => "honoured",
            VariableSupport::Partly => "in part",
            VariableSupport::Ignored => "ignored",
        };
        text += &format!("| `{}` | {support} | {} |\n", known.name, known.meaning);
    }
    text
}

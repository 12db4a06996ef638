//! The effect of each variable of the reference service.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tidegate_rules::envoy::ChargeOnDenial;

use super::table::{self, VariableSupport};
use super::*;
use crate::config::{ControlPlane, LimitHeaders, StoreUrl};

fn read_with(token_file: Option<&Path>, given: &[(&str, &str)]) -> Result<EnvoyCompat, EnvoyCompatError> {
    let lookup = |name: &str| {
        let found = given.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    EnvoyCompat::read(&lookup, token_file)
}

#[track_caller]
fn read(given: &[(&str, &str)]) -> EnvoyCompat {
    read_with(None, given).unwrap_or_else(|error| panic!("{given:?}: {error}"))
}

#[track_caller]
fn check_bad(given: &[(&str, &str)], want: &[&str]) {
    let error = read_with(None, given).unwrap_err().to_string();
    for want in want {
        assert!(error.contains(want), "{given:?}: {error}");
    }
    assert!(!error.contains("planted"), "{error}");
}

/// The addresses of the HTTP, gRPC and admin listeners.
fn addresses(compat: &EnvoyCompat) -> [String; 3] {
    let layer = &compat.layer;
    [&layer.http, &layer.grpc, &layer.admin].map(|address| address.as_ref().unwrap().to_string())
}

#[track_caller]
fn check_store(given: &[(&str, &str)], want: &str) {
    let compat = read(given);
    assert_eq!(compat.layer.store.as_ref().map_or("memory", StoreUrl::expose), want);
    assert!(!format!("{compat:?}").contains("planted"), "{compat:?}");
    assert!(!compat.warnings.concat().contains("planted"));
}

#[test]
fn exactly_the_variables_of_the_table_are_read() {
    let looked_up = RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        looked_up.borrow_mut().insert(name.to_owned());
        None
    };
    EnvoyCompat::read(&lookup, Some(Path::new("token"))).unwrap();
    let every = table::variables().map(|known| known.name.to_owned());
    // Ignored variables are only looked up to log them.
    assert_eq!(looked_up.into_inner(), every.collect::<BTreeSet<_>>());
    let names: BTreeSet<_> = table::variables().map(|known| known.name).collect();
    assert_eq!(names.len(), table::variables().count(), "one line for each");
}

#[test]
fn the_docs_have_the_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/envoy-compat.md");
    let docs = std::fs::read_to_string(file).unwrap();
    let table = table::markdown();
    assert!(docs.contains(&table), "docs/envoy-compat.md should have:\n\n{table}");
}

#[test]
fn ignored_variables_are_reported_by_name() {
    for known in table::variables() {
        let lookup = |name: &str| (name == known.name).then(|| "1".to_owned());
        let Ok(compat) = EnvoyCompat::read(&lookup, None) else {
            assert_ne!(known.support, VariableSupport::Ignored, "{}", known.name);
            continue;
        };
        let ignored: Vec<_> = compat.ignored.iter().map(|variable| variable.name).collect();
        let is_ignored = ignored == [known.name];
        assert_eq!(is_ignored, known.support == VariableSupport::Ignored, "{}", known.name);
    }
}

#[test]
fn an_empty_environment_is_the_reference_with_its_defaults() {
    let compat = read(&[]);
    assert_eq!(addresses(&compat), ["0.0.0.0:8080", "0.0.0.0:8081", "127.0.0.1:6070"]);
    let folder = Path::new("/srv/runtime_data/current/config");
    assert_eq!((compat.layer.rules.as_deref(), compat.dot_files), (Some(folder), true));
    assert!(compat.layer.merge_domains == Some(false) && !compat.start_without_config);
    assert_eq!(compat.counter_prefix, "");
    assert_eq!(compat.envoy.descriptor_options.charge_on_denial, ChargeOnDenial::All);
    assert_eq!((compat.envoy.headers, compat.envoy.near_ratio), (LimitHeaders::Off, Some(0.8)));
    assert!(compat.layer.store.is_none() && compat.warnings.len() == 1 && compat.ignored.is_empty());
}

#[test]
fn listeners_keep_their_addresses() {
    let compat = read(&[
        ("HOST", "127.0.0.1"),
        ("PORT", "1"),
        ("GRPC_HOST", "::1"),
        ("GRPC_PORT", "2"),
        ("DEBUG_HOST", "127.0.0.2"),
        ("DEBUG_PORT", "3"),
        ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "90s"),
    ]);
    assert_eq!(addresses(&compat), ["127.0.0.1:1", "[::1]:2", "127.0.0.2:3"]);
    assert_eq!(compat.layer.grpc_max_age, Some(Duration::from_secs(5400)));
    assert_eq!(compat.layer.grpc_max_age_grace, Some(Duration::from_secs(90)));
    assert_eq!((compat.layer.grpc_cert, compat.layer.metrics), (None, None));
    let compat = read(&[("GRPC_UDS", "/run/rl.sock"), ("GRPC_PORT", "2")]);
    assert_eq!(compat.layer.grpc.unwrap().to_string(), "unix:/run/rl.sock");
    check_bad(&[("PORT", "http"), ("GRPC_PORT", "65536")], &["PORT is `http`", "GRPC_PORT is `65536`"]);
}

#[test]
fn metrics_keep_their_address() {
    let on = ("USE_PROMETHEUS", "true");
    let metrics_url = |given: &[(&str, &str)]| {
        let layer = read(given).layer;
        format!("{}{}", layer.metrics.unwrap(), layer.metrics_path.unwrap())
    };
    assert_eq!(metrics_url(&[on]), "0.0.0.0:9090/metrics");
    let given = [on, ("PROMETHEUS_ADDR", ":7"), ("PROMETHEUS_PATH", "/m")];
    assert_eq!(metrics_url(&given), "0.0.0.0:7/m");
    assert_eq!(metrics_url(&[on, ("PROMETHEUS_ADDR", "127.0.0.1:7")]), "127.0.0.1:7/metrics");
    assert_eq!(read(&given[1..]).layer.metrics, None, "it is not enabled");
    check_bad(&[("PROMETHEUS_ADDR", "7")], &["write [HOST]:PORT"]);
}

/// Tidegate's admin port can change things. That of the reference service is read-only.
#[test]
fn the_admin_port_is_open_to_others_only_with_a_token() {
    let given = [("DEBUG_HOST", "0.0.0.0"), ("DEBUG_PORT", "7")];
    let compat = read(&given);
    assert_eq!(addresses(&compat)[2], "127.0.0.1:7");
    assert!(compat.warnings.concat().contains("--admin-token-file"));
    let compat = read_with(Some(Path::new("token")), &given).unwrap();
    assert_eq!(addresses(&compat)[2], "0.0.0.0:7");
    let compat = read_with(Some(Path::new("token")), &[]).unwrap();
    assert_eq!(addresses(&compat)[2], "0.0.0.0:6070");
}

#[test]
fn tls_files_are_kept() {
    let files = [
        ("GRPC_SERVER_TLS_CERT", "/c"),
        ("GRPC_SERVER_TLS_KEY", "/k"),
        ("GRPC_CLIENT_TLS_CACERT", "/ca"),
        ("GRPC_CLIENT_TLS_SAN", "envoy.example"),
    ];
    let off = read(&files).layer;
    assert_eq!((off.grpc_cert, off.grpc_key, off.grpc_client_ca), (None, None, None), "it is not enabled");
    assert_eq!(off.grpc_client_san, None);
    let on = [&files[..], &[("GRPC_SERVER_USE_TLS", "true")]].concat();
    let layer = read(&on).layer;
    assert_eq!((layer.grpc_cert, layer.grpc_key), (Some("/c".into()), Some("/k".into())));
    assert_eq!(layer.grpc_client_ca, Some("/ca".into()));
    assert_eq!(layer.grpc_client_san, Some(vec!["envoy.example".to_owned()]));
    check_bad(&[("GRPC_SERVER_USE_TLS", "true")], &["GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY"]);
}

#[test]
fn rules_keep_their_folder() {
    let compat = read(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "/ratelimit"),
        ("RUNTIME_APPDIRECTORY", "limits"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("MERGE_DOMAIN_CONFIG", "1"),
        ("CACHE_KEY_PREFIX", "blue:"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "T"),
    ]);
    let folder = Path::new("/data/ratelimit/limits");
    assert_eq!((compat.layer.rules.as_deref(), compat.dot_files), (Some(folder), false));
    assert!(compat.layer.merge_domains == Some(true) && compat.start_without_config);
    assert_eq!(compat.counter_prefix, "blue:");
    check_bad(&[("CONFIG_TYPE", "ETCD")], &["write FILE or GRPC_XDS_SOTW"]);
    check_bad(&[("MERGE_DOMAIN_CONFIG", "yes")], &["MERGE_DOMAIN_CONFIG is `yes`; write true or false"]);
}

#[test]
fn a_control_plane_keeps_its_settings() {
    let given = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "plane:18000"),
        ("CONFIG_GRPC_XDS_NODE_ID", "gate"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "a=1,b=2=3,odd"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:planted,y:1"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "plane.example"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "2s"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "5s"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
    ];
    let compat = read(&given);
    assert!(!format!("{compat:?}").contains("planted"));
    assert_eq!(compat.layer.rules, None);
    let text = "xdss://plane:18000?node=gate&ca=/ca&cert=/c&key=/k&name=plane.example";
    let mut want: ControlPlane = text.parse().unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    want.node.metadata = vec![pair("a", "1"), pair("b", "2=3")];
    want.headers =
        vec![("x-token".parse().unwrap(), "planted".parse().unwrap()), ("y".parse().unwrap(), "1".parse().unwrap())];
    want.backoff.first = Duration::from_secs(2);
    want.backoff.max = Duration::from_secs(5);
    want.set_max_message_bytes(1000);
    assert_eq!(compat.layer.xds, Some(want));
    let usual = read(&given[..1]).layer.xds.unwrap();
    assert_eq!(usual.node.id, "default");
    assert_eq!(usual.backoff.first, Duration::from_secs(10));
    check_bad(&[("CONFIG_GRPC_XDS_SERVER_URL", "plane")], &["write HOST:PORT"]);
    check_bad(&[("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "planted")], &["write NAME:VALUE"]);
}

#[test]
fn response_options_are_kept() {
    let compat = read(&[
        ("SHADOW_MODE", "true"),
        ("QUOTA_MODE", "true"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
        ("NEAR_LIMIT_RATIO", "0.5"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
        ("LIMIT_REMAINING_HEADER", "X-Left"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
    ]);
    let response_options = compat.envoy;
    assert_eq!(response_options.descriptor_options.charge_on_denial, ChargeOnDenial::Violated);
    assert!(
        response_options.descriptor_options.all_quota
            && response_options.descriptor_options.all_shadow
            && compat.layer.envoy_metadata == Some(true)
    );
    assert!(response_options.healthy_when_configured);
    assert_eq!(response_options.near_ratio, Some(0.5));
    let LimitHeaders::Reference(names) = response_options.headers else { panic!("they are enabled") };
    let names = [&names.limit, &names.remaining, &names.reset];
    assert_eq!(names, ["X-Limit", "X-Left", "RateLimit-Reset"]);
    let disabled = read(&[("LIMIT_LIMIT_HEADER", "X-Limit")]).envoy;
    assert_eq!(disabled.headers, LimitHeaders::Off, "they are not enabled");
    check_bad(&[("NEAR_LIMIT_RATIO", "2")], &["between 0 and 1"]);
    check_bad(&[("LIMIT_RESET_HEADER", "a b")], &["the name of a header"]);
}

#[test]
fn the_store_is_the_same_redis() {
    let tcp = ("REDIS_SOCKET_TYPE", "tcp");
    check_store(&[], "memory");
    check_store(&[tcp, ("REDIS_URL", "redis:6379")], "redis://redis:6379");
    check_store(&[("REDIS_URL", "redis:6379")], "redis://redis:6379");
    check_store(&[("REDIS_URL", "/run/r.sock")], "unix:/run/r.sock");
    let auth = ("REDIS_AUTH", "u:plan/ted:x");
    check_store(&[("REDIS_URL", "/run/r.sock"), auth], "unix:/run/r.sock?user=u&pass=plan%2Fted%3Ax");
    check_store(&[tcp, ("REDIS_URL", "r:1"), ("REDIS_AUTH", "p@ss")], "redis://:p%40ss@r:1");
    check_store(&[tcp, ("REDIS_URL", "redis://a:b@r:1/3"), auth], "redis://a:b@r:1/3");
    let tls = [
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/ca"),
        ("REDIS_TLS_CLIENT_CERT", "/c"),
        ("REDIS_TLS_CLIENT_KEY", "/k"),
    ];
    let given = [&tls[..], &[tcp, ("REDIS_URL", "r:1")]].concat();
    check_store(&given, "rediss://r:1?ca=%2Fca&cert=%2Fc&key=%2Fk");
    check_store(&[("REDIS_TLS", "true"), tcp, ("REDIS_URL", "rediss://r:1")], "rediss://r:1");
    let cluster = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "a:1,b:2"), auth];
    check_store(&cluster, "redis+cluster://u:plan%2Fted%3Ax@a:1,b:2");
    let sentinels = [
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", "main,a:1,b:2"),
        ("REDIS_AUTH", "p"),
        ("REDIS_SENTINEL_AUTH", "s:q"),
    ];
    check_store(&sentinels, "redis+sentinel://:p@a:1,b:2/main?sentinel_user=s&sentinel_pass=q");
    let compat = read(&[tcp, ("REDIS_URL", "r:1"), ("REDIS_TIMEOUT", "50ms")]);
    assert_eq!(compat.layer.store_budget, Some(Duration::from_millis(50)));
    let without_timeout = read(&[tcp, ("REDIS_URL", "r:1")]);
    assert_eq!(without_timeout.layer.store_budget, Some(Duration::from_secs(1)));
}

/// The addresses built here are parsed by the store.
#[tokio::test]
async fn every_address_is_accepted_by_the_store() {
    let urls = [
        vec![("REDIS_URL", "r:1"), ("REDIS_AUTH", "u:p@/:,#%?&+ ")],
        vec![("REDIS_URL", "/run/r.sock"), ("REDIS_AUTH", "u:p@/:,#%?&+ ")],
        vec![("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "cluster"), ("REDIS_AUTH", "p,")],
        vec![("REDIS_URL", "m,a:1"), ("REDIS_TYPE", "sentinel"), ("REDIS_SENTINEL_AUTH", "p&")],
    ];
    for given in urls {
        let url = read(&given).layer.store.unwrap();
        let config = tidegate::stores::redis::RedisConfig::new(url.expose());
        let opened = tidegate::stores::redis::Redis::open(&config);
        assert!(opened.is_ok(), "{given:?}: {:?}", opened.err());
    }
}

#[test]
fn an_unsupported_store_is_an_error_with_its_remedy() {
    check_bad(&[("BACKEND_TYPE", "memcache")], &["not supported", "set REDIS_URL"]);
    check_bad(&[("BACKEND_TYPE", "etcd")], &["BACKEND_TYPE is unknown"]);
    check_bad(&[("REDIS_TYPE", "ring"), ("REDIS_URL", "a:1")], &["single, sentinel or cluster"]);
    check_bad(&[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "planted")], &["NAME,HOST:PORT"]);
    check_bad(&[("REDIS_TLS", "1"), ("REDIS_URL", "/r"), ("REDIS_AUTH", "planted")], &["unset one"]);
    check_bad(&[("REDIS_SOCKET_TYPE", "udp"), ("REDIS_URL", "a:1")], &["tcp or unix"]);
}

#[test]
fn ignored_variables_that_matter_cause_a_warning() {
    for name in ["REDIS_PERSECOND", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"] {
        let warnings = read(&[(name, "1"), ("REDIS_URL", "a:1")]).warnings;
        assert!(warnings.len() == 1 && warnings[0].starts_with(name), "{warnings:?}");
    }
}

#[test]
fn log_levels_are_kept() {
    let compat = read(&[("LOG_LEVEL", "WARN"), ("LOG_FORMAT", "JSON")]);
    assert_eq!(compat.layer.log_level, Some(LogLevel::Warn));
    assert_eq!(compat.layer.log_format, Some(LogFormat::Json));
    assert_eq!(read(&[("LOG_FORMAT", "text")]).layer.log_format, Some(LogFormat::Text));
    check_bad(&[("LOG_LEVEL", "loud")], &["LOG_LEVEL is `loud`"]);
}

#[test]
fn all_errors_are_reported_at_once() {
    check_bad(
        &[("PORT", "x"), ("REDIS_TIMEOUT", "soon"), ("BACKEND_TYPE", "memcache")],
        &["PORT", "REDIS_TIMEOUT", "BACKEND_TYPE"],
    );
}

use super::resolve::{clock_tolerance, connection_age};
use super::*;
use tidegate_core::units::Nanos;

fn read_file(text: &str) -> Result<SettingsLayer, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tidegate.yaml");
    std::fs::write(&path, text).unwrap();
    SettingsLayer::read(&path)
}

#[test]
fn an_upper_layer_overrides_the_settings_that_it_has() {
    let flags = SettingsLayer { shutdown_timeout: Some(Duration::from_secs(3)), ..SettingsLayer::default() };
    let below = "shutdown_timeout: 5\nidle_timeout: 7\nhttp: off\nmemory_cap: 1GiB\nreset_format: delta\n\
                 max_connections_per_peer: 9\n";
    let below = read_file(below).unwrap();
    let settings = flags.merged_over(below).resolve().unwrap();
    assert_eq!(settings.shutdown_timeout, Duration::from_secs(3));
    assert_eq!(settings.idle_timeout, Duration::from_secs(7));
    assert_eq!(settings.http, ListenAddress::Off);
    assert_eq!(settings.max_connections_per_peer, Some(9));
    assert_eq!(settings.memory_cap, ByteSize(1 << 30));
    assert_eq!(settings.reset_format, ResetFormat::Delta);
    assert_eq!(settings.admin.to_string(), "127.0.0.1:8082");
}

/// The former names of these settings.
#[test]
fn the_old_names_of_settings_are_read() {
    let old = read_file("drain: 5s\nidle: 7s\nreset: delta\ndata: here\n").unwrap();
    assert_eq!(old.shutdown_timeout, Some(Duration::from_secs(5)));
    assert_eq!(old.idle_timeout, Some(Duration::from_secs(7)));
    assert_eq!(old.reset_format, Some(ResetFormat::Delta));
    assert_eq!(old.data_dir, Some("here".into()));
}

#[test]
fn an_unknown_name_is_rejected_and_shown() {
    let error = read_file("drian: 5\n").unwrap_err().to_string();
    assert!(error.contains("drian"), "{error}");
}

#[test]
fn an_unknown_store_is_rejected_without_showing_its_password() {
    let store = Some("mongodb://:secret@host".to_owned().into());
    let error = SettingsLayer { store, ..SettingsLayer::default() }.resolve().unwrap_err().to_string();
    let want = "store `mongodb` is unknown; write memory, redis://HOST:PORT, ";
    assert!(error.starts_with(want), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn an_error_never_shows_a_password() {
    let texts = ["store: redis://:planted@host\ndrian: 5\n", "store: [redis://:planted@host]\n"];
    for text in texts {
        let error = read_file(text).unwrap_err().to_string();
        assert!(!error.contains("planted"), "{error}");
    }
}

#[test]
fn an_alarm_comes_no_sooner_than_its_warning() {
    assert_eq!(clock_tolerance(None, None).unwrap(), ClockTolerance::default());
    let [sixty, seventy] = [60, 70].map(|millis| Some(Duration::from_millis(millis)));
    let loose = clock_tolerance(seventy, None).unwrap();
    assert_eq!(loose.alarm, Nanos::from_millis(70));
    let error = clock_tolerance(seventy, sixty).unwrap_err().to_string();
    assert!(error.starts_with("--clock-alarm 60ms is below"), "{error}");
}

#[test]
fn an_age_of_zero_means_no_limit_and_the_maximum_does_not_overflow() {
    assert_eq!(connection_age(Some(Duration::ZERO), None), None);
    let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
    let default_age = ConnectionAge { max: day, grace: hour };
    assert_eq!(connection_age(None, None), Some(default_age));
    let greatest = connection_age(Some(Duration::MAX), Some(Duration::MAX)).unwrap();
    assert!(greatest.max * 300 > day && greatest.grace > day);
}

#[test]
fn the_descriptors_of_a_request_are_at_most_256() {
    let resolved = |file: &str| read_file(file).unwrap().resolve().map(|settings| settings.envoy.max_descriptors);
    assert_eq!(resolved("").unwrap(), 16);
    for within in [1, 256] {
        assert_eq!(resolved(&format!("grpc_max_descriptors: {within}\n")).unwrap(), within);
    }
    for beyond in [0, 257] {
        let error = resolved(&format!("grpc_max_descriptors: {beyond}\n")).unwrap_err().to_string();
        assert_eq!(error, format!("--grpc-max-descriptors is {beyond}; write 1 to 256"));
    }
}

/// A template with an empty variable: the store, a password or the rules were treated as not given.
#[test]
fn a_name_without_a_value_is_an_error() {
    for text in ["store:", "rules: ~", "resp_password_file: ''", "http: 8080\nadmin_token_file:"] {
        let error = read_file(text).unwrap_err().to_string();
        assert!(error.contains("has no value"), "{text}: {error}");
    }
    assert!(read_file("").is_ok() && read_file("http: 8080").is_ok());
}

/// The error named a function of the parser, or listed all settings.
#[test]
fn an_error_of_a_file_says_what_to_write() {
    for (text, want) in [
        ("http: 8080\nmemory_capp: 1GiB\n", "line 2: `memory_capp` is no setting; write `memory_cap`?"),
        ("memory-cap: 1GiB\n", "line 1: `memory-cap` is no setting; write `memory_cap`?"),
        ("colour: red\n", "line 1: `colour` is no setting; remove it; `tidegate serve --help` lists the settings"),
        ("http: 8080\n---\nresp: 6379\n", "begins a second document; write all settings in one, without `---`"),
    ] {
        let error = read_file(text).unwrap_err().to_string();
        assert!(error.ends_with(want), "{text}: {error}");
    }
}

#[test]
fn a_switch_is_true_or_false() {
    assert_eq!(read_file("shadow: true").unwrap().shadow, Some(true));
    assert!(read_file("shadow: yes").is_err() && read_file("shadow: 'on'").is_err());
}

/// Rules accepted `5ms` and settings did not: `drain: 5s`, `256MB` and `8080` were rejected.
#[test]
fn a_file_accepts_durations_sizes_and_addresses_with_units() {
    let text = "shutdown_timeout: 5s\ndrain_delay: 250ms\nidle_timeout: 2m\nstore_budget: 40ms\nclock_warn: 30\n\
                grpc_max_age: 2h\ngrpc_max_age_grace: 90\nmemory_cap: 256MB\nhttp: 8080\nresp: :6380\n";
    let settings = read_file(text).unwrap().resolve().unwrap();
    assert_eq!(settings.shutdown_timeout, Duration::from_secs(5));
    assert_eq!(settings.drain_delay, Duration::from_millis(250));
    assert_eq!(settings.idle_timeout, Duration::from_secs(120));
    assert_eq!(settings.store_budget, Duration::from_millis(40));
    assert_eq!(settings.clock.warn, Nanos::from_millis(30));
    let age = settings.grpc_age.unwrap();
    assert_eq!(age.max, Duration::from_secs(7_200));
    assert_eq!(age.grace, Duration::from_secs(90));
    assert_eq!(settings.memory_cap, ByteSize(256_000_000));
    assert_eq!(settings.http.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.resp.to_string(), "0.0.0.0:6380");
    let plain = read_file("memory_cap: 67108864\n").unwrap().resolve().unwrap();
    assert_eq!(plain.memory_cap, ByteSize(64 << 20));
    let error = read_file("shutdown_timeout: 5 parsecs\n").unwrap_err().to_string();
    assert!(error.contains("`5 parsecs` is not a duration"), "{error}");
}

#[test]
fn zero_connections_nodes_or_milliseconds_are_rejected() {
    for name in ["max_connections", "max_connections_per_peer", "idle_timeout", "nodes", "store_budget"] {
        let resolved = read_file(&format!("{name}: 0\n")).unwrap().resolve();
        let message = resolved.err().map(|error| error.to_string());
        let want = format!("--{} is 0,", name.replace('_', "-"));
        assert!(message.is_some_and(|m| m.starts_with(&want)), "{name}");
    }
}

/// Such a node counted in its own memory without a warning.
#[test]
fn one_node_of_several_needs_a_store_that_nodes_share() {
    let error_of = |text: &str| {
        let resolved = read_file(text).unwrap().resolve();
        resolved.err().map(|error| error.to_string())
    };
    for alone in ["require_store: true\n", "nodes: 3\n", "nodes: 3\nstore: memory\n"] {
        let message = error_of(alone).unwrap_or_default();
        assert!(message.contains("name one with --store"), "{alone}{message}");
    }
    for path in ["metrics", "'/m?a=b'", "'/m '"] {
        let message = error_of(&format!("metrics: 127.0.0.1:9090\nmetrics_path: {path}\n")).unwrap_or_default();
        assert!(message.contains("write one such as /metrics"), "{path}: {message}");
    }
    for right in [
        "require_store: false\n",
        "nodes: 1\n",
        "nodes: 3\nrequire_store: true\nstore: redis://127.0.0.1\n",
        "resp: off\nresp_password_file: p\n",
        "metrics: off\nmetrics_path: /m\n",
    ] {
        assert_eq!(error_of(right), None, "{right}");
    }
}

/// With the names `a, b`, a client of the second name was rejected, because its certificate has no ` b`.
#[test]
fn blanks_around_names_are_ignored_and_an_invalid_name_is_an_error() {
    let tls = "grpc_cert: c\ngrpc_key: k\ngrpc_client_ca: a\n";
    let resolved = |names: &str| {
        let text = format!("{tls}grpc_client_san: {names}\nadmin_host: {names}\n");
        read_file(&text).unwrap().resolve()
    };
    for names in [
        "[a.example, ' b.example ', 'spiffe://mesh/b']",
        "a.example, b.example,spiffe://mesh/b",
        "'a.example,b.example, spiffe://mesh/b '",
    ] {
        let settings = resolved(names).unwrap();
        let want = ["a.example", "b.example", "spiffe://mesh/b"];
        assert_eq!(settings.admin_hosts, want);
        assert_eq!(settings.grpc_tls.unwrap().client_names, want);
    }
    assert_eq!(resolved("a.example").unwrap().admin_hosts, ["a.example"]);
    for bad in ["[]", "['']", "[a, ' ']", "['a b']", "['*.example']", "['a,b']", "'a,,b'", "a, b c", "'a, *.b'"] {
        let wrong = resolved(bad).unwrap_err().to_string();
        assert!(wrong.contains("which is no name; write"), "{wrong}");
        let host = read_file(&format!("admin_host: {bad}\n")).unwrap().resolve();
        let wrong = host.unwrap_err().to_string();
        assert!(wrong.starts_with("--admin-host has `"), "{wrong}");
    }
    for bad in ["5", "{ a: b }", "~", "''"] {
        assert!(read_file(&format!("admin_host: {bad}\n")).is_err(), "{bad}");
    }
}

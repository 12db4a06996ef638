//! Encrypted connections to a server, and the errors when it cannot be trusted.

use std::fs;

use tidegate::stores::redis::{Action, RedisConfig, RedisStore, RedisStoreError};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::Counters;
use tidegate_core::subject::RuleName;
use tidegate_testkit::{
    PRIMARY_NAME, RedisProgram, TestAuthority, TestCertificate, TestRedis, TestSentinel, free_port,
};

use crate::{charge, eventually, limit, on_runtime, set, store};

/// A server with a certificate for `names`.
struct TlsServer {
    authority: TestAuthority,
    server: TestRedis,
    port: u16,
}

impl TlsServer {
    fn start(names: &[&str], clients: &str) -> TlsServer {
        let (authority, port) = (TestAuthority::new(), free_port());
        let mut options = authority.sign(names).options(port, &authority);
        options.extend(["--tls-auth-clients".to_owned(), clients.to_owned()]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        TlsServer { server: TestRedis::start(RedisProgram::Redis7, &options), authority, port }
    }

    fn url(&self, host: &str) -> String {
        let ca = self.authority.file();
        format!("rediss://{host}:{}?ca={}", self.port, ca.display())
    }
}

async fn counts(store: &RedisStore) {
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
    let one = set([charge(1, &rule, 0, &limit)]);
    let outcome = store.charge(&one).await.expect("a reply");
    assert!(outcome.admitted);
}

/// The text of the error for a server that cannot be connected to until an operator acts.
async fn connect_error_text(url: &str) -> String {
    let redis_error = connect_error(url).await;
    assert_eq!(redis_error.action(), Action::NeedsOperator, "{redis_error}");
    redis_error.to_string()
}

async fn connect_error(url: &str) -> RedisStoreError {
    let store = RedisStore::open(&RedisConfig::new(url)).expect("an address");
    eventually("an error", async || store.last_error().is_some()).await;
    store.last_error().expect("an error")
}

#[test]
fn a_server_with_a_certificate_of_the_given_authority_is_used() {
    let encrypted = TlsServer::start(&["localhost", "127.0.0.1"], "no");
    on_runtime(async {
        for host in ["localhost", "127.0.0.1"] {
            counts(&store(&encrypted.url(host)).await).await;
        }
        let clients = encrypted.server.run_command(&["CLIENT", "LIST"]);
        assert!(clients.contains(&format!("laddr=127.0.0.1:{}", encrypted.port)));
    });
}

#[test]
fn a_server_with_an_unknown_authority_is_rejected_and_the_option_named() {
    let encrypted = TlsServer::start(&["localhost"], "no");
    on_runtime(async {
        let other = TestAuthority::new();
        let host = format!("rediss://localhost:{}", encrypted.port);
        for url in [host.clone(), format!("{host}?ca={}", other.file().display())] {
            let text = connect_error_text(&url).await;
            assert!(text.contains("`?ca=FILE`"), "{text}");
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_rejected() {
    let encrypted = TlsServer::start(&["elsewhere.example"], "no");
    on_runtime(async {
        let text = connect_error_text(&encrypted.url("localhost")).await;
        assert!(text.contains("a name that its certificate has"), "{text}");
    });
}

#[test]
fn a_server_that_requires_a_client_certificate_receives_one() {
    let encrypted = TlsServer::start(&["localhost"], "yes");
    let own = encrypted.authority.sign(&["client.example"]);
    let with = |TestCertificate { certificate, key }: &TestCertificate| {
        let url = encrypted.url("localhost");
        format!("{url}&cert={}&key={}", certificate.display(), key.display())
    };
    on_runtime(async {
        counts(&store(&with(&own)).await).await;
        let text = connect_error_text(&encrypted.url("localhost")).await;
        assert!(text.contains("`?cert=FILE&key=FILE`"), "{text}");
        let foreign = TestAuthority::new().sign(&["client.example"]);
        // Its files are removed with the authority: opening the store reports that.
        let error = RedisStore::open(&RedisConfig::new(&with(&foreign))).expect_err("no file");
        assert!(error.to_string().contains("`cert`"), "{error}");
    });
}

#[test]
fn a_server_without_tls_is_distinguished_from_one_with() {
    let server = TestRedis::redis7();
    on_runtime(async {
        // It reads the handshake as the beginning of a command, and waits for the rest.
        let error = connect_error(&format!("rediss://127.0.0.1:{}", server.port())).await;
        assert!(error.to_string().contains("write redis://"), "{error}");
    });
}

#[test]
fn an_invalid_certificate_is_rejected_when_the_store_is_opened() {
    let authority = TestAuthority::new();
    let own = authority.sign(&["client.example"]);
    fs::write(authority.file(), "-----BEGIN CERTIFICATE-----\nplanted\n").expect("a file");
    on_runtime(async {
        let ca = authority.file();
        let url = format!("rediss://localhost?ca={}", ca.display());
        let error = RedisStore::open(&RedisConfig::new(&url)).expect_err("no certificate");
        assert!(error.to_string().contains("PEM"), "{error}");
        // A certificate instead of the key.
        let file = own.certificate.display();
        let url = format!("rediss://localhost?cert={file}&key={file}");
        let error = RedisStore::open(&RedisConfig::new(&url)).expect_err("no key");
        assert!(error.to_string().contains("PEM"), "{error}");
    });
}

#[test]
fn sentinels_and_the_server_they_name_are_both_reached_by_tls() {
    let encrypted = TlsServer::start(&["127.0.0.1"], "no");
    let port = free_port();
    let shown = encrypted.authority.sign(&["127.0.0.1"]);
    let mut options = shown.options(port, &encrypted.authority);
    options.extend(["--tls-replication", "yes", "--tls-auth-clients", "no"].map(str::to_owned));
    let _sentinel = TestSentinel::with(RedisProgram::Redis7, encrypted.port, 1, &options);
    on_runtime(async {
        let url = |authority: &TestAuthority| {
            let ca = authority.file();
            format!("rediss+sentinel://127.0.0.1:{port}/{PRIMARY_NAME}?ca={}", ca.display())
        };
        counts(&store(&url(&encrypted.authority)).await).await;
        let other = TestAuthority::new();
        let text = connect_error_text(&url(&other)).await;
        assert!(text.starts_with("sentinel: no TLS"), "{text}");
        assert!(text.contains("`?ca=FILE`"), "{text}");
    });
}

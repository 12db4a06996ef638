//! An encrypted way to the server, and what is said when it cannot be trusted.

use std::fs;

use tidegate::stores::redis::{Action, Fault, RedisConfig, RedisStore};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::Store;
use tidegate_core::subject::RuleName;
use tidegate_parts::{Authority, Certificate, Program, Sentinel, Server, WATCHED, free_port};

use crate::{charge, eventually, limit, on_runtime, set, store};

/// A server with a certificate for `names`.
struct Encrypted {
    authority: Authority,
    server: Server,
    port: u16,
}

impl Encrypted {
    fn start(names: &[&str], clients: &str) -> Encrypted {
        let (authority, port) = (Authority::new(), free_port());
        let mut options = authority.sign(names).options(port, &authority);
        options.extend(["--tls-auth-clients".to_owned(), clients.to_owned()]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Encrypted {
            server: Server::start(Program::Redis7, &options),
            authority,
            port,
        }
    }

    fn url(&self, host: &str) -> String {
        let ca = self.authority.file();
        format!("rediss://{host}:{}?ca={}", self.port, ca.display())
    }
}

async fn counts(store: &RedisStore) {
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
    let one = set([charge(1, &rule, 0, &limit)]);
    let outcome = store.charge(&one).await.expect("an answer");
    assert!(outcome.admitted);
}

/// What is said of a server that is never connected to, until an operator does something.
async fn refused(url: &str) -> String {
    let fault = fault(url).await;
    assert_eq!(fault.action(), Action::AskOperator, "{fault}");
    fault.to_string()
}

async fn fault(url: &str) -> Fault {
    let store = RedisStore::open(&RedisConfig::new(url)).expect("an address");
    eventually("refused", async || store.last_fault().is_some()).await;
    store.last_fault().expect("a fault")
}

#[test]
fn a_server_that_a_given_authority_vouches_for_is_counted_on() {
    let encrypted = Encrypted::start(&["localhost", "127.0.0.1"], "no");
    on_runtime(async {
        for host in ["localhost", "127.0.0.1"] {
            counts(&store(&encrypted.url(host)).await).await;
        }
        let clients = encrypted.server.ask(&["CLIENT", "LIST"]);
        assert!(clients.contains(&format!("laddr=127.0.0.1:{}", encrypted.port)));
    });
}

#[test]
fn a_server_that_nobody_vouches_for_is_refused_and_the_option_named() {
    let encrypted = Encrypted::start(&["localhost"], "no");
    on_runtime(async {
        let other = Authority::new();
        let host = format!("rediss://localhost:{}", encrypted.port);
        for url in [
            host.clone(),
            format!("{host}?ca={}", other.file().display()),
        ] {
            let told = refused(&url).await;
            assert!(told.contains("`?ca=FILE`"), "{told}");
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let encrypted = Encrypted::start(&["elsewhere.example"], "no");
    on_runtime(async {
        let told = refused(&encrypted.url("localhost")).await;
        assert!(told.contains("a name that its certificate has"), "{told}");
    });
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let encrypted = Encrypted::start(&["localhost"], "yes");
    let own = encrypted.authority.sign(&["client.example"]);
    let with = |Certificate { certificate, key }: &Certificate| {
        let url = encrypted.url("localhost");
        format!("{url}&cert={}&key={}", certificate.display(), key.display())
    };
    on_runtime(async {
        counts(&store(&with(&own)).await).await;
        let told = refused(&encrypted.url("localhost")).await;
        assert!(told.contains("`?cert=FILE&key=FILE`"), "{told}");
        let foreign = Authority::new().sign(&["client.example"]);
        // Its files are gone with the authority: that is said when the store is opened.
        let told = RedisStore::open(&RedisConfig::new(&with(&foreign))).expect_err("no file");
        assert!(told.to_string().contains("`cert`"), "{told}");
    });
}

#[test]
fn a_server_without_tls_is_told_from_one_with() {
    let server = Server::redis7();
    on_runtime(async {
        // It takes the beginning for that of a command, and waits for the rest.
        let told = fault(&format!("rediss://127.0.0.1:{}", server.port())).await;
        assert!(told.to_string().contains("write redis://"), "{told}");
    });
}

#[test]
fn what_is_no_certificate_is_refused_when_the_store_is_opened() {
    let authority = Authority::new();
    let own = authority.sign(&["client.example"]);
    fs::write(authority.file(), "-----BEGIN CERTIFICATE-----\nplanted\n").expect("a file");
    on_runtime(async {
        let ca = authority.file();
        let url = format!("rediss://localhost?ca={}", ca.display());
        let told = RedisStore::open(&RedisConfig::new(&url)).expect_err("no certificate");
        assert!(told.to_string().contains("PEM"), "{told}");
        // A certificate where the key should be.
        let file = own.certificate.display();
        let url = format!("rediss://localhost?cert={file}&key={file}");
        let told = RedisStore::open(&RedisConfig::new(&url)).expect_err("no key");
        assert!(told.to_string().contains("PEM"), "{told}");
    });
}

#[test]
fn sentinels_and_the_server_they_tell_of_are_both_reached_by_tls() {
    let encrypted = Encrypted::start(&["127.0.0.1"], "no");
    let port = free_port();
    let shown = encrypted.authority.sign(&["127.0.0.1"]);
    let mut options = shown.options(port, &encrypted.authority);
    options.extend(["--tls-replication", "yes", "--tls-auth-clients", "no"].map(str::to_owned));
    let _sentinel = Sentinel::with(Program::Redis7, encrypted.port, 1, &options);
    on_runtime(async {
        let url = |authority: &Authority| {
            let ca = authority.file();
            format!(
                "rediss+sentinel://127.0.0.1:{port}/{WATCHED}?ca={}",
                ca.display()
            )
        };
        counts(&store(&url(&encrypted.authority)).await).await;
        let other = Authority::new();
        let told = refused(&url(&other)).await;
        assert!(told.starts_with("sentinel: no TLS"), "{told}");
        assert!(told.contains("`?ca=FILE`"), "{told}");
    });
}

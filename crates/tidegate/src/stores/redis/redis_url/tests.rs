//! Every form of a URL, and that no error repeats a possible password.

use super::*;

fn port(host: &str, port: u16) -> RedisAddress {
    let host = host.to_owned();
    RedisAddress::Tcp { host, port }
}

fn read(url: &str) -> RedisUrl {
    RedisUrl::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

#[track_caller]
fn check_one(url: &str, address: RedisAddress, access: Access) {
    assert_eq!(read(url), RedisUrl::SingleServer { address, access }, "{url}");
}

fn login(user: &str, password: &str) -> Access {
    Access {
        user: (!user.is_empty()).then(|| user.to_owned()),
        password: RedisPassword::Literal(password.to_owned()),
        ..Access::default()
    }
}

#[test]
fn one_server() {
    check_one("redis://a", port("a", 6379), Access::default());
    check_one("redis://a/", port("a", 6379), Access::default());
    check_one("redis://[::1]:1", port("::1", 1), Access::default());
    check_one("redis://:p@10.0.0.1:2", port("10.0.0.1", 2), login("", "p"));
    let access = Access { database: 3, ..login("u", "p@/:,#%+") };
    let url = "redis://u:p%40%2F%3A%2C%23%25+@a:7/3";
    check_one(url, port("a", 7), access);
    let access = Access {
        user: Some("u".to_owned()),
        password: RedisPassword::File("/run/pass word".into()),
        ..Access::default()
    };
    let url = "redis://u@a?password_file=/run/pass%20word";
    check_one(url, port("a", 6379), access);
}

#[test]
fn a_socket() {
    let address = || RedisAddress::Unix("/run/r.sock".into());
    check_one("unix:/run/r.sock", address(), Access::default());
    check_one("unix:///run/r.sock", address(), Access::default());
    let access = Access { database: 2, ..login("u", "p&") };
    check_one("unix:/run/r.sock?db=2&user=u&pass=p%26", address(), access);
}

#[test]
fn encrypted() {
    let tls = |certificates| Access { tls: Some(certificates), ..Access::default() };
    let plain = tls(Certificates::default());
    check_one("rediss://a", port("a", 6379), plain.clone());
    let certificates =
        Certificates { authorities: Some("/ca.pem".into()), own: Some(("/c.pem".into(), "/k.pem".into())) };
    let url = "rediss://a?ca=/ca.pem&cert=/c.pem&key=/k.pem";
    check_one(url, port("a", 6379), tls(certificates));
    let RedisUrl::Cluster { access, .. } = read("rediss+cluster://a") else {
        panic!("no cluster");
    };
    assert_eq!(access, plain);
    let RedisUrl::Sentinels { sentinels, servers, .. } = read("rediss+sentinel://a/n") else {
        panic!("no sentinels");
    };
    assert_eq!((sentinels, servers), (plain.clone(), plain));
}

#[test]
fn sentinels() {
    let url = "redis+sentinel://u:p@a,[::1]:7,b:8/main-1.x/4?sentinel_user=s&sentinel_pass=q";
    let found = read(url);
    let want = RedisUrl::Sentinels {
        addresses: vec![port("a", 26379), port("::1", 7), port("b", 8)],
        name: "main-1.x".to_owned(),
        sentinels: login("s", "q"),
        servers: Access { database: 4, ..login("u", "p") },
    };
    assert_eq!(found, want);
}

#[test]
fn a_cluster() {
    let want = RedisUrl::Cluster { addresses: vec![port("a", 6379), port("b", 7)], access: login("", "p") };
    assert_eq!(read("redis+cluster://:p@a,b:7"), want);
    assert_eq!(read("redis+cluster://:p@a,b:7/"), want);
}

#[track_caller]
fn check_bad(url: &str, cure: &str) {
    let error = RedisUrl::parse(url).expect_err(url);
    let text = format!("{error} {error:?}");
    assert!(text.contains(cure), "{url}: {text}");
    assert!(!text.contains("planted"), "{url}: {text}");
}

#[test]
fn the_error_for_a_bad_url_contains_what_to_write() {
    for url in ["", "planted", "http://u:planted@a", "redis+x://planted", "planted://a"] {
        check_bad(url, SCHEME);
    }
    let hosts = [
        "redis://",
        "redis://:planted@",
        "redis://:planted@a:x",
        "redis://:planted@a:0",
        "redis://:planted@0.0.0.0",
        "redis://:planted#@a",
        "redis://:planted%ff@a",
        "redis+cluster://:planted@a,,b",
        "redis+sentinel://:planted@a,b:99999/n",
    ];
    for url in hosts {
        check_bad(url, "IPv6 address in brackets");
    }
    // A password with a slash that is not encoded: the rest of it looks like a path.
    check_bad("redis://u:pa/planted@a", "%2F for /");
    check_bad("redis://:planted@a,b", ONE_HOST);
    check_bad("redis://:planted@a/planted", DATABASE);
    check_bad("redis://:planted@a/-1", DATABASE);
    check_bad("redis+sentinel://:planted@a", NAME);
    check_bad("redis+sentinel://:planted@a/planted%20", NAME);
    check_bad("redis+sentinel://:planted@a/n/planted", DATABASE);
    check_bad("redis+cluster://:planted@a/1", NO_DATABASE);
    check_bad("redis://a?planted=1", OPTIONS);
    check_bad("redis://a?password_file=/a&password_file=/planted", OPTIONS);
    check_bad("redis://a?sentinel_pass=planted", OPTIONS);
    check_bad("rediss://:planted@a?cert=/planted", BOTH);
    check_bad("redis://:planted@a?ca=/planted", "rediss instead of redis");
    check_bad("redis://:planted@a?password_file=/planted", ONE_PASSWORD);
    check_bad("unix:planted", SOCKET);
    check_bad("unix:/a?planted=1", OPTIONS);
    check_bad("unix:/a?db=planted", SOCKET);
}

#[test]
fn a_password_is_never_printed() {
    let urls = [
        "redis://planted:planted@a",
        "unix:/a?user=planted&pass=planted",
        "redis+sentinel://planted:planted@a/n?sentinel_user=planted&sentinel_pass=planted",
        "rediss+cluster://planted:planted@a?cert=/c&key=/planted",
    ];
    for url in urls {
        let text = format!("{:?}", read(url));
        assert!(!text.contains("planted"), "{text}");
    }
}

//! A limiter that a program connects to Redis, with the layers that a node of the service has.

use tidegate::{BuildError, Limiter, RedisCounters, Request, Secret};
use tidegate_testkit::TestRedis;

use super::{eventually, on_runtime};

const RULES: &str = "
version: 1
rules:
  - { name: search, by: user, rate: 3/hour, algorithm: fixed-window }
";

async fn connect(server: &TestRedis, secret: &[u8]) -> Result<Limiter<RedisCounters>, BuildError> {
    let secret = Secret::from_bytes(secret).expect("a secret");
    Limiter::builder().yaml(RULES).secret(secret).connect(&server.url()).await
}

fn ada() -> Request<'static> {
    Request::default().with("user", "ada")
}

#[test]
fn programs_with_one_secret_share_their_counts() {
    on_runtime(async {
        let server = TestRedis::redis7();
        let one = connect(&server, b"0123456789abcdef").await.expect("a store");
        let two = connect(&server, b"0123456789abcdef").await.expect("a store");
        for _ in 0..3 {
            assert!(one.check(ada()).await.expect("a decision").allowed());
        }
        // A late reply is decided by each node for itself, and its charge written later.
        eventually("the count of one is that of the other", async || {
            let decision = two.peek(ada()).await.expect("a decision");
            decision.binding().is_some_and(|limit| limit.reading.figures.remaining == 0)
        })
        .await;
    });
}

#[test]
fn another_secret_or_none_is_an_error() {
    on_runtime(async {
        let server = TestRedis::redis7();
        let _one = connect(&server, b"0123456789abcdef").await.expect("a store");
        let other = connect(&server, b"fedcba9876543210").await;
        assert!(matches!(other, Err(BuildError::Store(_))), "{other:?}");
        let none = Limiter::builder().yaml(RULES).connect(&server.url()).await;
        assert!(matches!(none, Err(BuildError::NoSecret)), "{none:?}");
    });
}

#[test]
fn the_example_counts_in_redis() {
    let server = TestRedis::redis7();
    let test = std::env::current_exe().expect("a path");
    let program = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("examples/redis");
    let output = std::process::Command::new(program).arg(server.url()).output().expect("built with the tests");
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(printed.lines().count(), 4, "{printed}");
}

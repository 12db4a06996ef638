//! The background work of a limiter, on the paused clock of tokio.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{TestLimiter, request};
use tidegate::runtime::TokioRuntime;
use tidegate::units::Nanos;

const RULES: &str = "version: 1\nrules: [{ name: calls, by: user, rate: 10/minute, algorithm: fixed-window }]";
const HOUR: Nanos = Nanos::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn background_work_refunds_what_is_not_settled_and_evicts_what_has_expired() {
    let fixture = TestLimiter::new(RULES);
    let limiter = Arc::new(fixture.limiter);
    limiter.spawn_background(&TokioRuntime::new().unwrap());
    let reserved = limiter.reserve(request("user=ada cost=7"), Duration::from_secs(10)).await.unwrap();
    assert!(reserved.decision.allowed());
    let used =
        async || limiter.view().inspect(request("user=ada")).await.unwrap()[0].inspection.map(|found| found.used);
    assert_eq!(used().await, Some(7));
    fixture.clock.advance(Nanos::from_secs(10));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(used().await.unwrap_or(0), 0, "the estimate is refunded");

    assert!(limiter.check_now(request("user=bob")).allowed());
    assert!(limiter.store().stats().keys > 0);
    fixture.clock.advance(HOUR);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(limiter.store().stats().keys, 0);
}

#[tokio::test(start_paused = true)]
async fn background_work_ends_with_its_limiter() {
    let limiter = Arc::new(TestLimiter::new(RULES).limiter);
    limiter.spawn_background(&TokioRuntime::new().unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let weak = Arc::downgrade(&limiter);
    drop(limiter);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(weak.strong_count(), 0);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

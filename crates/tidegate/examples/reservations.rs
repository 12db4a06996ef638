//! Charges a call to a language model what it used, which is known only afterwards:
//! `cargo run -p tidegate --features rules,tokio --example reservations`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tidegate::runtime::TokioRuntime;
use tidegate::{Actual, Cost, Limiter, Request};

const RULES: &str = "
version: 1
rules:
  - { name: calls, by: user, rate: 60/minute }
  - { name: tokens, by: user, unit: tokens, rate: 10000/hour, algorithm: fixed-window }
";

/// More than any call takes.
const TTL: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Arc::new(Limiter::from_yaml(RULES)?);
    // Refunds the estimates of calls that never settle.
    limiter.spawn_background(&TokioRuntime::new()?);

    for prompt in ["a short question", "a long question", "another long question"] {
        let mut request = Request::default().with("user", "ada");
        request.costs.push(("tokens".into(), Cost::new(4_000)));
        let reserved = limiter.reserve(request, TTL).await?;
        let Some(token) = reserved.token else {
            println!("{prompt}: denied");
            continue;
        };
        let used = call_model(prompt).await;
        let settlement = limiter.settle(&token, &Actual::of("tokens", used)).await?;
        println!("{prompt}: reserved 4000, used {used}, settlement {}", settlement.name());
    }
    Ok(())
}

/// The tokens that the call took.
async fn call_model(prompt: &str) -> u64 {
    if prompt.contains("long") { 5_500 } else { 800 }
}

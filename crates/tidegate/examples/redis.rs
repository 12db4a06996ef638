//! Shares limits with every program that has the same secret, in Redis or Valkey:
//! `cargo run -p tidegate --features redis --example redis -- redis://127.0.0.1:6379`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;
use std::sync::Arc;

use tidegate::runtime::TokioRuntime;
use tidegate::{Limiter, Request, Secret};

const RULES: &str = "
version: 1
rules:
  - { name: search, match: { path: /search }, by: user, rate: 3/minute, on_store_failure: local }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    // Read it from a file that only these programs can read.
    let secret = Secret::from_bytes(b"at least 16 random bytes")?;
    let limiter = Arc::new(Limiter::builder().yaml(RULES).secret(secret).connect(&url).await?);
    limiter.spawn_background(&TokioRuntime::new()?);

    for attempt in 1..=4 {
        let request = Request::default().with("user", "ada").with("path", "/search");
        let decision = limiter.check(request).await?;
        let verdict = if decision.allowed() { "allowed" } else { "denied" };
        println!("attempt {attempt}: {verdict}, decided by {}", decision.source().name());
    }
    // Returns units that this program has drawn in advance, so that others can use them at once.
    limiter.store().drain().await;
    Ok(())
}

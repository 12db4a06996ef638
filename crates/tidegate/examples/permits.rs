//! At most two uploads of a user at a time: `cargo run -p tidegate --features rules,tokio --example permits`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;
use std::sync::Arc;

use tidegate::runtime::TokioRuntime;
use tidegate::{Acquired, Limiter, PermitRenewer, Request};

const RULES: &str = "
version: 1
rules:
  - { name: uploads, by: user, concurrent: 2 }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Arc::new(Limiter::from_yaml(RULES)?);
    // Renews permits while they are held. Those of a program that dies expire.
    let permits = PermitRenewer::new(limiter, TokioRuntime::new()?);

    let mut open = Vec::new();
    for upload in 1..=3 {
        match permits.acquire(Request::default().with("user", "ada")).await? {
            Acquired::Open { permit, .. } => {
                println!("upload {upload}: open");
                open.push(permit);
            }
            Acquired::Full(full) => println!("upload {upload}: {} of {} are open", full.open, full.max_permits),
            _ => println!("upload {upload}: denied"),
        }
    }
    // The end of an upload is the drop of its permit. `release` also waits until others can have it.
    if let Some(done) = open.pop() {
        done.release().await;
    }
    let again = permits.acquire(Request::default().with("user", "ada")).await?;
    println!("after one has ended: {}", if matches!(again, Acquired::Open { .. }) { "open" } else { "denied" });
    Ok(())
}

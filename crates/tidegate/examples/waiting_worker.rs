//! A worker that calls an API at most five times a second and waits instead of failing:
//! `cargo run -p tidegate --features tokio --example waiting_worker`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::time::Instant;

use tidegate::{Quota, Throttle};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tidegate::ThrottleError> {
    let calls = Throttle::new(Quota::per_second(5).burst(2))?;
    let began = Instant::now();
    for job in 1..=6 {
        calls.until_ready("billing-api").await;
        println!("job {job} after {:.1?}", began.elapsed());
    }
    Ok(())
}

//! Five logins a minute for each user, in memory: `cargo run -p tidegate --example throttle`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use tidegate::{Quota, Retry, Throttle, Verdict};

fn main() -> Result<(), tidegate::ThrottleError> {
    let logins = Throttle::new(Quota::per_minute(5))?;
    for attempt in 1..=7 {
        match logins.check("alice") {
            Verdict::Deny { retry: Retry::After(wait) } => {
                println!("attempt {attempt}: denied, come back in {:?}", wait.duration())
            }
            Verdict::Deny { retry: Retry::Never } => println!("attempt {attempt}: denied for good"),
            _ => println!("attempt {attempt}: allowed"),
        }
    }
    println!("bob has {} left", logins.peek("bob").figures.remaining);
    Ok(())
}

//! Decides by a rules file, as the service does:
//! `cargo run -p tidegate --features rules --example rules_file -- examples/rules.yaml`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;

use tidegate::{Limiter, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1);
    let name = name.ok_or("usage: rules_file FILE")?;
    let limiter = Limiter::builder().rules_file(name).build()?;

    for _ in 0..2 {
        let request = Request::default().with("user", "ada").with("path", "/hello").with("method", "GET");
        let decision = limiter.check_now(request);
        let rule = decision.binding().map(|limit| limit.rule.name().to_string());
        let rule = rule.as_deref().unwrap_or("no rule");
        let verdict = if decision.allowed() { "allowed" } else { "denied" };
        println!("{verdict} by {rule}");
    }
    Ok(())
}

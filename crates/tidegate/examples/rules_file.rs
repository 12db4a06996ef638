//! Decides by a rules file, as the service does, and follows its changes:
//! `cargo run -p tidegate --features live --example rules_file -- examples/rules.yaml`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;

use tidegate::{FileState, Limiter, PolicyEvent, PolicyFollower, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("usage: rules_file FILE")?;
    let limiter = Limiter::builder().rules_file(&file).build()?;
    // From now on a change of the file is in force within a second. An invalid file changes nothing.
    let _follower = PolicyFollower::start(&limiter, &file, |event| match event {
        PolicyEvent::Rules(FileState::Current) => println!("the rules of the file are in force"),
        event => println!("{event:?}"),
    })?;

    for _ in 0..2 {
        let request = Request::default().with("user", "ada").with("path", "/hello").with("method", "GET");
        let decision = limiter.check_now(request);
        let rule = decision.binding().map(|limit| limit.rule.name().to_string());
        let rule = rule.as_deref().unwrap_or("no rule");
        match decision.retry_after() {
            None => println!("allowed by {rule}"),
            Some(wait) => println!("denied by {rule}, come back in {} s", wait.as_secs()),
        }
    }
    Ok(())
}

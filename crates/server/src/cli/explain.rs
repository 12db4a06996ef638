//! `tidegate explain`: which rules apply to a request and why, from the files alone.

use std::sync::Arc;

use tidegate::clock::SystemClock;
use tidegate::stores::memory::MemoryStore;
use tidegate::{Limiter, Secret};
use tidegate_core::store::Abilities;

use crate::edges::http::wire::{self, Asked};
use crate::edges::http::{explain, units};
use crate::live;

use super::{Exit, ExplainArgs, Output, complain, say};

pub(super) fn run(args: &ExplainArgs) -> Exit {
    let policy = match live::policy(args.rules.as_deref(), Abilities::UNKNOWN) {
        Ok(policy) => policy,
        Err(faults) => {
            complain(faults);
            return Exit::BadConfig;
        }
    };
    let secret = match Secret::random() {
        Ok(secret) => secret,
        Err(error) => {
            complain(format_args!("no randomness: {error}"));
            return Exit::Failed;
        }
    };
    let body = args.request.body();
    let ask = match wire::asked(body.as_bytes()) {
        Ok(Asked::One(ask)) => ask,
        Ok(Asked::Many(_)) => return Exit::Usage,
        Err(bad) => {
            complain(format_args!("{}: {}", bad.field, bad.reason));
            return Exit::Usage;
        }
    };
    if let Err(bad) = units::known(&policy.rules, &ask.request, "") {
        complain(format_args!("{}: {}", bad.field, bad.reason));
        return Exit::Usage;
    }
    // A limiter that never decides: it knows addresses and keys as the service does.
    let clock = SystemClock::new();
    let limiter = Limiter::new(MemoryStore::new(clock), policy, secret, Arc::new(clock));
    let explanation = limiter.view().explain(ask.request);
    match args.output {
        Output::Json => say(explain::json(&explanation)),
        Output::Text => say(explanation.to_string().trim_end()),
    }
    Exit::Done
}

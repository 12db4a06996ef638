//! `tidegate explain`: shows which rules apply to a request and why, from the files alone.

use tidegate::Limiter;
use tidegate_core::store::Capabilities;

use crate::decider::check_names;
use crate::edges::common::check_body::{CheckBody, parse_check};
use crate::edges::http::explain;
use crate::policy::watcher;

use super::{Exit, ExplainArgs, OutputFormat, print_error, print_line};

pub(super) fn run(args: &ExplainArgs) -> Exit {
    let policy = match watcher::load_policy(args.rules.as_deref(), Capabilities::UNKNOWN) {
        Ok(policy) => policy,
        Err(errors) => {
            print_error(errors);
            return Exit::BadConfig;
        }
    };
    let body = args.request.body();
    let check = match parse_check(body.as_bytes()) {
        Ok(CheckBody::One(check)) => check,
        Ok(CheckBody::Many(_)) => return Exit::Usage,
        Err(bad) => {
            print_error(format_args!("{}: {}", bad.field, bad.reason));
            return Exit::Usage;
        }
    };
    if let Err(bad) = check_names(&policy.rules, &check.request) {
        print_error(format_args!("{}: {}", bad.field, bad.reason));
        return Exit::Usage;
    }
    // This limiter never decides. It resolves addresses and keys as the service does.
    let limiter = match Limiter::builder().policy(policy).build() {
        Ok(limiter) => limiter,
        Err(error) => {
            print_error(error);
            return Exit::Failed;
        }
    };
    let explanation = limiter.view().explain(check.request);
    match args.request.output {
        OutputFormat::Json => print_line(explain::json(&explanation)),
        OutputFormat::Text => print_line(explanation.to_string().trim_end()),
    }
    Exit::Done
}

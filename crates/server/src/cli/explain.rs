//! `tidegate explain`: shows which rules apply to a request and why, from the files alone.

use tidegate::Limiter;
use tidegate_core::store::Capabilities;

use super::{CommandResult, Exit, ExplainArgs, OutputFormat, fails, print_error, print_line};
use crate::decider::{InputError, check_names};
use crate::edges::common::check_body::{CheckBody, parse_check};
use crate::edges::http::explain;
use crate::policy::watcher;

pub(super) fn run(args: &ExplainArgs) -> CommandResult {
    if args.rules.is_none() {
        print_error("no rules are given, so these are the built-in ones; name yours with --rules");
    }
    let policy = watcher::load_policy(args.rules.as_deref(), Capabilities::UNKNOWN).map_err(fails(Exit::BadConfig))?;
    let body = args.request.body();
    let invalid = |bad: InputError| (Exit::Usage, format!("{}: {}", bad.field, bad.reason));
    let CheckBody::One(check) = parse_check(body.as_bytes()).map_err(invalid)? else {
        return Ok(Exit::Usage);
    };
    check_names(&policy.rules, &check.request).map_err(invalid)?;
    // This limiter never decides. It resolves addresses and keys as the service does.
    let limiter = Limiter::builder().policy(policy).build().map_err(fails(Exit::Failed))?;
    let explanation = limiter.view().explain(check.request);
    match args.request.output {
        OutputFormat::Json => print_line(explain::json(&explanation)),
        OutputFormat::Text => print_line(explanation.to_string().trim_end()),
    }
    Ok(Exit::Done)
}

//! `tidegate explain`: which rules apply to a request and why, from the files alone.

use crate::edges::http::explain;
use crate::edges::http::wire::{self, Asked};
use crate::live;

use super::{Exit, ExplainArgs, Output, complain, lint, say};

pub(super) fn run(args: &ExplainArgs) -> Exit {
    let rules = match &args.rules {
        None => live::built_in(),
        Some(path) => match lint::load(path) {
            Ok(rules) => rules,
            Err(faults) => {
                complain(faults);
                return Exit::BadConfig;
            }
        },
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
    let explanation = rules.explain(&ask.request);
    match args.output {
        Output::Json => say(explain::json(&explanation)),
        Output::Text => say(explanation.to_string().trim_end()),
    }
    Exit::Done
}

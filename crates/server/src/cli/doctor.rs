//! `tidegate doctor`: what is wrong with the store, and the cure.
//!
//! Findings go to standard output, one a line as they come, or all at the end as JSON. What takes long
//! is announced on standard error.

use serde_json::json;

use super::{DoctorArgs, Exit, complain, say};
use crate::config::{BadConfig, Layer};
use crate::doctor::{Finding, Order, Reached, examine};
use crate::store_choice::StoreChoice;

pub(super) fn run(args: DoctorArgs) -> Exit {
    let as_json = args.json;
    let order = match order(args) {
        Ok(Some(order)) => order,
        Ok(None) => {
            complain("doctor looks at a store that nodes share; name it with --store");
            return Exit::Usage;
        }
        Err(error) => {
            complain(&error);
            return match error.is_of_a_file() {
                true => Exit::BadConfig,
                false => Exit::Usage,
            };
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(error);
            return Exit::Failed;
        }
    };
    let mut findings = Vec::new();
    let mut tell = |finding: Finding| {
        if !as_json {
            say(finding.line());
        }
        findings.push(finding);
    };
    let wait = |what: &str| complain(format_args!("still looking at {what}"));
    let reached = runtime.block_on(examine(&order, &mut tell, &wait));
    let exit = match reached {
        Reached::No => Exit::Unreachable,
        Reached::Yes if findings.iter().any(Finding::is_failure) => Exit::Failed,
        Reached::Yes => Exit::Done,
    };
    if as_json {
        let findings: Vec<_> = findings.iter().map(Finding::json).collect();
        say(json!({"exit": exit as u8, "findings": findings}));
    }
    exit
}

/// What `serve` would be told, as far as it matters here. None: no store to look at.
fn order(args: DoctorArgs) -> Result<Option<Order>, BadConfig> {
    super::check_environment()?;
    let below = match &args.config {
        Some(file) => Layer::read(file)?,
        None => Layer::default(),
    };
    let own = Layer {
        rules: args.rules,
        store: args.store,
        secret_file: args.secret_file,
        store_budget: args.store_budget,
        clock_warn: args.clock_warn,
        clock_alarm: args.clock_alarm,
        ..Layer::default()
    };
    let settings = own.over(below).settle()?;
    Ok(match settings.store {
        StoreChoice::Memory => None,
        StoreChoice::Redis(store) => Some(Order {
            store,
            rules: settings.rules.path,
            secret_file: settings.secret_file,
            budget: settings.store_budget,
            clock: settings.clock,
        }),
    })
}

//! `tidegate doctor`: reports what is wrong with the store and how to fix it.
//!
//! Findings go to standard output, one per line as they are found, or all at the end as JSON. Slow checks are
//! announced on standard error.

use serde_json::json;

use super::{CommandResult, DoctorArgs, Exit, bad_settings, fails, merged_settings, print_error, print_line};
use crate::config::{SettingsLayer, StoreChoice};
use crate::doctor::{DoctorFinding, Reached, examine};

pub(super) fn run(args: DoctorArgs) -> CommandResult {
    let as_json = args.json;
    // The settings of `serve` that `doctor` needs.
    let own = SettingsLayer {
        rules: args.rules,
        store: args.store,
        secret_file: args.secret_file,
        store_budget: args.store_budget,
        clock_warn: args.clock_warn,
        clock_alarm: args.clock_alarm,
        ..SettingsLayer::default()
    };
    let settings = merged_settings(own, args.config.as_deref()).and_then(SettingsLayer::resolve);
    let settings = settings.map_err(bad_settings)?;
    let StoreChoice::Redis(url) = &settings.store else {
        return Err((Exit::Usage, "doctor looks at a store that nodes share; name it with --store".to_owned()));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fails(Exit::Failed))?;
    let mut findings = Vec::new();
    let mut report = |finding: DoctorFinding| {
        if !as_json {
            print_line(finding.line());
        }
        findings.push(finding);
    };
    let announce = |what: &str| print_error(format_args!("still looking at {what}"));
    let exit = match runtime.block_on(examine(url.expose(), &settings, &mut report, &announce)) {
        Reached::No => Exit::Unreachable,
        Reached::Yes if findings.iter().any(DoctorFinding::is_failure) => Exit::Failed,
        Reached::Yes => Exit::Done,
    };
    if as_json {
        let findings: Vec<_> = findings.iter().map(DoctorFinding::json).collect();
        print_line(json!({"exit": exit as u8, "findings": findings}));
    }
    Ok(exit)
}

//! `tidegate doctor`: reports what is wrong with the store and how to fix it.
//!
//! Findings go to standard output, one per line as they are found, or all at the end as JSON. Slow checks are
//! announced on standard error.

use serde_json::json;

use super::{DoctorArgs, Exit, print_error, print_line};
use crate::config::store_choice::StoreChoice;
use crate::config::{ConfigError, SettingsLayer};
use crate::doctor::{DoctorFinding, DoctorOptions, Reached, examine};

pub(super) fn run(args: DoctorArgs) -> Exit {
    let as_json = args.json;
    let options = match doctor_options(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print_error("doctor looks at a store that nodes share; name it with --store");
            return Exit::Usage;
        }
        Err(error) => {
            print_error(&error);
            return if error.is_file_error() { Exit::BadConfig } else { Exit::Usage };
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(error);
            return Exit::Failed;
        }
    };
    let mut findings = Vec::new();
    let mut report = |finding: DoctorFinding| {
        if !as_json {
            print_line(finding.line());
        }
        findings.push(finding);
    };
    let announce = |what: &str| print_error(format_args!("still looking at {what}"));
    let reached = runtime.block_on(examine(&options, &mut report, &announce));
    let exit = match reached {
        Reached::No => Exit::Unreachable,
        Reached::Yes if findings.iter().any(DoctorFinding::is_failure) => Exit::Failed,
        Reached::Yes => Exit::Done,
    };
    if as_json {
        let findings: Vec<_> = findings.iter().map(DoctorFinding::json).collect();
        print_line(json!({"exit": exit as u8, "findings": findings}));
    }
    exit
}

/// The settings of `serve` that `doctor` needs. None: there is no shared store to examine.
fn doctor_options(args: DoctorArgs) -> Result<Option<DoctorOptions>, ConfigError> {
    super::check_environment()?;
    let below = match &args.config {
        Some(file) => SettingsLayer::read(file)?,
        None => SettingsLayer::default(),
    };
    let own = SettingsLayer {
        rules: args.rules,
        store: args.store,
        secret_file: args.secret_file,
        store_budget: args.store_budget,
        clock_warn: args.clock_warn,
        clock_alarm: args.clock_alarm,
        ..SettingsLayer::default()
    };
    let settings = own.merged_over(below).resolve()?;
    Ok(match settings.store {
        StoreChoice::Memory => None,
        StoreChoice::Redis(store) => Some(DoctorOptions {
            store,
            rules: settings.rules.path,
            secret_file: settings.secret_file,
            budget: settings.store_budget,
            clock: settings.clock,
        }),
    })
}

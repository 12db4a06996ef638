//! The table and goals of the counts.

use bench_report::{Goal, Table, Verdict, figure, ratio};
use bench_subjects::{Governor, LimiterSubject};

use crate::baseline::Baseline;
use crate::subjects::TIDEGATE;

type InstructionCounts = [(String, Option<f64>)];

/// Growth beyond this is a regression. Hash seeds are random, so that counts differ by half a percent
/// or so between runs of the same build; a lost inlining or a second hash costs far more.
const TOLERANCE: f64 = 1.03;

/// Every case, beside governor one by one and beside the recorded count.
pub(crate) fn counts(counted: &InstructionCounts, recorded: &Baseline) -> Table {
    let mut table = Table::new(["1k keys", "instructions", "of governor", "recorded", "change"]);
    let governor = count_of(counted, Governor::NAME);
    for (case, count) in counted {
        let recorded = recorded.of(case);
        let shown = recorded.map_or_else(|| "none".to_owned(), |count| figure(Some(count)));
        let change = ratio(*count, recorded).map(|ratio| format!("{:+.1}%", 100.0 * (ratio - 1.0)));
        let of_governor = figure(ratio(*count, governor));
        let change = change.unwrap_or_default();
        table.row([case.clone(), figure(*count), of_governor, shown, change]);
    }
    table
}

/// Tidegate against its own record.
pub(crate) fn goals(counted: &InstructionCounts, recorded: &Baseline) -> Vec<Goal> {
    [TIDEGATE.to_owned(), format!("{TIDEGATE} by 16")]
        .map(|case| {
            let growth = ratio(count_of(counted, &case), recorded.of(&case));
            Goal::at_most(format!("{case}: of its record"), growth, TOLERANCE)
        })
        .into()
}

/// Whether Tidegate needs more instructions than its record allows.
pub(crate) fn regressed(goals: &[Goal]) -> bool {
    goals.iter().any(|goal| goal.verdict() == Verdict::NotMet)
}

fn count_of(counted: &InstructionCounts, case: &str) -> Option<f64> {
    counted.iter().find(|(name, _)| name == case).and_then(|(_, count)| *count)
}

//! A promised figure, and whether this run met it.

use crate::table::{Table, figure};

/// One goal: a measured figure and its bound.
#[derive(Debug, Clone)]
pub struct Goal {
    what: String,
    measured: Option<f64>,
    bound: Bound,
}

/// Whether a goal was met in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The figure is within its bound.
    Met,
    /// The figure breaks its bound. The page then has the profile that shows why.
    NotMet,
    /// There is no figure, because a subject was not in the run.
    Absent,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

impl Goal {
    /// The figure may reach `bound` but not pass it.
    pub fn at_most(what: impl Into<String>, measured: Option<f64>, bound: f64) -> Self {
        Goal { what: what.into(), measured, bound: Bound::AtMost(bound) }
    }

    /// The figure must stay under `bound`.
    pub fn below(what: impl Into<String>, measured: Option<f64>, bound: f64) -> Self {
        Goal { what: what.into(), measured, bound: Bound::Below(bound) }
    }

    /// The figure must reach `bound`.
    pub fn at_least(what: impl Into<String>, measured: Option<f64>, bound: f64) -> Self {
        Goal { what: what.into(), measured, bound: Bound::AtLeast(bound) }
    }

    /// Whether this run met the goal.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let Some(measured) = self.measured else {
            return Verdict::Absent;
        };
        let held = match self.bound {
            Bound::AtMost(bound) => measured <= bound,
            Bound::Below(bound) => measured < bound,
            Bound::AtLeast(bound) => measured >= bound,
        };
        if held { Verdict::Met } else { Verdict::NotMet }
    }

    fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtMost(bound) => format!("<= {}", figure(Some(bound))),
            Bound::Below(bound) => format!("< {}", figure(Some(bound))),
            Bound::AtLeast(bound) => format!(">= {}", figure(Some(bound))),
        }
    }
}

/// All goals of a page: bound, measured figure and verdict.
#[must_use]
pub fn goals_table(goals: &[Goal]) -> Table {
    let mut table = Table::new(["goal", "bound", "measured", "verdict"]);
    for goal in goals {
        let verdict = match goal.verdict() {
            Verdict::Met => "met",
            Verdict::NotMet => "NOT MET",
            Verdict::Absent => "absent",
        };
        table.row([goal.what.clone(), goal.bound_text(), figure(goal.measured), verdict.into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_may_be_reached_unless_it_is_exclusive() {
        assert_eq!(Goal::at_most("", Some(0.5), 0.5).verdict(), Verdict::Met);
        assert_eq!(Goal::at_least("", Some(1.8), 1.8).verdict(), Verdict::Met);
        assert_eq!(Goal::below("", Some(1.0), 1.0).verdict(), Verdict::NotMet);
    }

    #[test]
    fn without_a_figure_a_goal_is_neither_met_nor_broken() {
        assert_eq!(Goal::at_most("", None, 1.0).verdict(), Verdict::Absent);
    }
}

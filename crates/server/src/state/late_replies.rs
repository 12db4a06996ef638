//! Notices a store that replies, but later than the budget.
//!
//! Lateness is no error, and the breaker does not open for it: without these lines the log is silent while requests are
//! decided by old states. Pure: counts go in, a report comes out.

/// Fewer decisions than this prove nothing: they are judged together with the next ones.
const MIN_DECISIONS: u64 = 20;

/// What was last reported.
#[derive(Debug, Default)]
pub(crate) struct LateReplies {
    late_before: u64,
    exact_before: u64,
    is_late: bool,
}

/// One line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LatenessReport {
    /// At least half of the decisions were made without the reply.
    Late { late: u64, decisions: u64 },
    /// Less than a tenth of them are.
    InTime,
}

impl LateReplies {
    /// Called at intervals with the number of late and of exact decisions since the start.
    pub(crate) fn update(&mut self, late: u64, exact: u64) -> Option<LatenessReport> {
        let since = late.saturating_sub(self.late_before);
        let decisions = since + exact.saturating_sub(self.exact_before);
        if decisions < MIN_DECISIONS {
            return None;
        }
        (self.late_before, self.exact_before) = (late, exact);
        let (most, few) = (2 * since >= decisions, 10 * since < decisions);
        if (self.is_late && few) || (!self.is_late && most) {
            self.is_late = most;
            let report = if most { LatenessReport::Late { late: since, decisions } } else { LatenessReport::InTime };
            return Some(report);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_and_few_decisions_prove_nothing() {
        let mut replies = LateReplies::default();
        assert_eq!(replies.update(0, 1_000), None);
        assert_eq!(replies.update(10, 1_000), None, "too few");
        assert_eq!(replies.update(60, 1_040), Some(LatenessReport::Late { late: 60, decisions: 100 }));
        assert_eq!(replies.update(160, 1_040), None, "as before");
        assert_eq!(replies.update(180, 1_120), None, "a fifth is neither late nor in time");
        assert_eq!(replies.update(180, 1_220), Some(LatenessReport::InTime));
        assert_eq!(replies.update(180, 1_320), None);
    }
}

//! Suppresses the reports of panics that are expected and caught.
//!
//! redb may panic over a damaged file. The journal catches the panic and reports an error. The panic hook runs before
//! the stack unwinds, so without this module the panic and its backtrace would be printed first.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    static REPORTS: RefCell<PanicReports> = const { RefCell::new(PanicReports::Printed) };
}

/// Whether the reports of panics on this thread are printed or withheld.
enum PanicReports {
    Printed,
    Withheld { last: Option<String> },
}

/// Runs work that catches panics and reports them itself. A panic that escapes from `work` is printed.
pub(crate) fn without_panic_reports<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !withhold(info) {
                print(info);
            }
        }));
    });
    REPORTS.set(PanicReports::Withheld { last: None });
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    let reports = REPORTS.replace(PanicReports::Printed);
    done.unwrap_or_else(|payload| {
        if let PanicReports::Withheld { last: Some(report) } = reports {
            eprintln!("{report}");
        }
        panic::resume_unwind(payload)
    })
}

/// Stores the report of a panic, if reports on this thread are withheld. Returns whether it did.
fn withhold(info: &PanicHookInfo<'_>) -> bool {
    REPORTS.with_borrow_mut(|reports| match reports {
        PanicReports::Printed => false,
        PanicReports::Withheld { last } => {
            *last = Some(info.to_string());
            true
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_withheld() -> bool {
        REPORTS.with_borrow(|reports| matches!(reports, PanicReports::Withheld { .. }))
    }

    #[test]
    fn reports_are_withheld_only_during_the_work() {
        let caught = without_panic_reports(|| {
            assert!(is_withheld());
            panic::catch_unwind(|| panic!("on purpose")).is_err()
        });
        assert!(caught && !is_withheld());
    }

    #[test]
    fn a_panic_that_escapes_is_resumed() {
        let left = panic::catch_unwind(|| without_panic_reports(|| panic!("on purpose")));
        let payload = left.unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
        assert!(!is_withheld());
    }
}

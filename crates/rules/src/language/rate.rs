//! Rates of rules: with the options of their rule and its calendar.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Window};
use tidegate_core::rate::{PerWindow, RateError, RateWindow};
use tidegate_core::units::Nanos;

use super::calendar::Calendar;
use super::load_shedding::PriorityCeilings;

/// Options of a limit, apart from the rate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LimitOptions {
    pub(crate) algorithm: Algorithm,
    pub(crate) precision: Precision,
    pub(crate) guard: Nanos,
    pub(crate) stagger: bool,
    pub(crate) max_delay: Option<Nanos>,
    pub(crate) lease_duration: Option<Nanos>,
    pub(crate) ceilings: Option<PriorityCeilings>,
}

/// Compiles a rate with the options of its rule. Days, weeks and months of a fixed window follow the calendar; elsewhere
/// they are durations.
pub(crate) fn compile_rate(rate: &PerWindow, options: LimitOptions, calendar: &Calendar) -> Result<Limit, RateError> {
    let window = match rate.window {
        RateWindow::Duration(span) => Window::Span(span),
        RateWindow::Calendar(unit) if options.algorithm == Algorithm::FixedWindow => calendar.window(unit),
        RateWindow::Calendar(unit) => Window::Span(unit.nominal_length()),
    };
    let spec = Spec {
        algorithm: options.algorithm,
        count: rate.count,
        window,
        burst: rate.burst,
        guard: options.guard,
        // A calendar window is the same for all subjects, in UTC as in any other zone.
        stagger: options.stagger && matches!(rate.window, RateWindow::Duration(_)),
        max_delay: options.max_delay,
        lease_ttl: options.lease_duration,
    };
    rate.compile(&spec, options.precision)
}

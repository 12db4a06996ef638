//! Rates as people write them: `1000/minute burst 200`, `100/5m`, `unlimited`.
//!
//! The count is a whole number (`_` may group digits). The window is a unit (`second`, `minute`,
//! `hour`, `day`, `week`, `month`, or short: `s`, `sec`, `m`, `min`, `h`, `d`, `w`) or a number of
//! them (`5m`, `90s`, `250ms`). `m` is a minute: a month has no short form. A rate that cannot be
//! read is an error, never a silent default.

use std::fmt;

use crate::algorithms::{Algorithm, Limit, Precision, Spec, SpecError};
use crate::units::Nanos;

/// A parsed rate, not yet bound to an algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rate {
    /// Everything passes.
    Unlimited,
    /// A count per window.
    PerWindow(PerWindow),
}

/// A count per window, with an optional burst.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PerWindow {
    /// The units of one window.
    pub count: u64,
    /// Its length.
    pub window: RateWindow,
    /// The capacity of a bucket; `count` if absent.
    pub burst: Option<u64>,
}

/// Why a rate cannot be used: what was found, what is wrong with it and what to write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RateError(String);

impl RateError {
    fn new(found: impl fmt::Display, problem: impl fmt::Display) -> Self {
        RateError(format!("{found}, {problem}"))
    }
}

/// Parses `N/UNIT [burst B]`, `N/DURATION [burst B]` or `unlimited`.
///
/// # Errors
/// If the text is not a rate. The error says what to write.
pub fn parse_rate(text: &str) -> Result<Rate, RateError> {
    let text = text.trim();
    if text == "unlimited" {
        return Ok(Rate::Unlimited);
    }
    let invalid = |problem: &str| RateError::new(format!("rate {}", quoted(text)), problem);
    let Some((count, rest)) = text.split_once('/') else { return Err(invalid(&missing_window_text(text))) };
    let count = parse_count(count.trim()).map_err(|error| match error {
        CountError::TooSmall => invalid(DENIES_ALL),
        CountError::TooLarge => invalid("whose count is more than a counter can hold; write less"),
        CountError::NotWhole => {
            invalid("whose count is not a whole number; write digits only, and 3/2s for 1.5 per second")
        }
    })?;
    let mut words = rest.split_ascii_whitespace();
    let window = parse_window(words.next().unwrap_or("")).map_err(|error| invalid(window_error_text(error)))?;
    let burst = match (words.next(), words.next(), words.next()) {
        (None, ..) => None,
        (Some("burst"), Some(burst), None) => Some(parse_burst(burst)?),
        _ => {
            return Err(invalid("which does not end after its window; write 100/minute or 100/minute burst 20"));
        }
    };
    Ok(Rate::PerWindow(PerWindow { count, window, burst }))
}

impl Rate {
    /// Whether the rate has a burst, which only buckets and queues have.
    pub fn has_burst(&self) -> bool {
        matches!(self, Rate::PerWindow(rate) if rate.burst.is_some())
    }

    /// Compiles the rate for the memory store: with a burst as a token bucket, without one as a sliding window.
    ///
    /// # Errors
    /// If the rate is unlimited or cannot be computed exactly.
    pub fn limit(&self) -> Result<Limit, RateError> {
        let algorithm = if self.has_burst() { Algorithm::TokenBucket } else { Algorithm::SlidingWindow };
        self.limit_with(algorithm)
    }

    /// As [`Rate::limit`], with a chosen algorithm.
    ///
    /// # Errors
    /// As [`Rate::limit`]. A burst for an algorithm without one is an error, and so are weeks and months of a
    /// fixed window: they follow a calendar, which only rules have.
    pub fn limit_with(&self, algorithm: Algorithm) -> Result<Limit, RateError> {
        let Rate::PerWindow(rate) = self else {
            let problem = "which limits nothing; write a rate such as 100/minute";
            return Err(RateError::new("rate `unlimited`", problem));
        };
        let window = match rate.window {
            RateWindow::Calendar(CalendarUnit::Week | CalendarUnit::Month) if algorithm == Algorithm::FixedWindow => {
                let problem = "whose window follows a calendar; write 7d or 30d";
                return Err(RateError::new(format!("rate `{rate}`"), problem));
            }
            RateWindow::Calendar(unit) => unit.nominal_length(),
            RateWindow::Duration(span) => span,
        };
        let spec = Spec { burst: rate.burst, ..Spec::new(algorithm, rate.count, window) };
        rate.compile(&spec, Precision::Memory)
    }
}

impl PerWindow {
    /// Compiles `spec`, which is made of this rate: errors speak of the rate as it is written.
    ///
    /// # Errors
    /// If the limit cannot be computed exactly, or its parameters do not fit each other.
    pub fn compile(&self, spec: &Spec, precision: Precision) -> Result<Limit, RateError> {
        Limit::compile(spec, precision).map_err(|error| self.rate_error(spec, error, precision))
    }

    fn rate_error(&self, spec: &Spec, error: SpecError, precision: Precision) -> RateError {
        let found = format!("rate `{self}`");
        match error {
            SpecError::Zero => RateError::new(found, DENIES_ALL),
            SpecError::BurstOnWindow => RateError::new(
                format!("burst {} with algorithm {}", self.burst.unwrap_or_default(), spec.algorithm),
                "which keeps no burst; remove the burst or write `algorithm: token-bucket`",
            ),
            SpecError::TooMany { max } => {
                RateError::new(found, format!("whose count is above the {max} that a window can hold; write less"))
            }
            SpecError::BurstBelowLeases { least } => RateError::new(
                found,
                format!(
                    "whose burst is too small for leases of 5ms; write burst {least} or more, or `counting: exact`"
                ),
            ),
            SpecError::NotLeasable => RateError::new(
                format!("counting leased with algorithm {}", spec.algorithm),
                "which keeps requests in order and cannot lease units in advance; write \
                 `counting: exact` or another algorithm",
            ),
            SpecError::Inexact => RateError::new(found, inexact_text(spec, precision)),
        }
    }
}

/// Prints the shortest form that parses to the same rate.
impl fmt::Display for PerWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.window)?;
        match self.burst {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        }
    }
}

const DENIES_ALL: &str = "which would deny everything; write 1 or more";

enum CountError {
    TooSmall,
    TooLarge,
    NotWhole,
}

fn parse_count(text: &str) -> Result<u64, CountError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let whole =
        digits.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !whole {
        return Err(CountError::NotWhole);
    }
    let mut digits = digits.bytes().filter(u8::is_ascii_digit);
    let count = digits.try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    match count {
        Some(0) => Err(CountError::TooSmall),
        _ if text.starts_with('-') => Err(CountError::TooSmall),
        Some(count) => Ok(count),
        None => Err(CountError::TooLarge),
    }
}

fn parse_burst(text: &str) -> Result<u64, RateError> {
    let found = || format!("burst {}", text.escape_debug());
    parse_count(text).map_err(|wrong| match wrong {
        CountError::TooSmall => RateError::new(found(), DENIES_ALL),
        CountError::TooLarge => RateError::new(found(), "which is more than a counter can hold; write less"),
        CountError::NotWhole => {
            RateError::new(format!("burst {}", quoted(text)), "which is not a whole number; write digits only")
        }
    })
}

fn missing_window_text(text: &str) -> String {
    let example = match parse_count(text) {
        Ok(count) => format!("{count}/minute"),
        Err(_) => "100/minute".to_owned(),
    };
    format!("which has no window; write {example}, for example, or unlimited")
}

fn window_error_text(error: DurationError) -> &'static str {
    match error {
        DurationError::Unknown => {
            "whose window is unknown; write second, minute, hour, day, week, month, or a duration such as 5m"
        }
        DurationError::Zero => "whose window has no length; write 1s or more",
        DurationError::TooLong => "whose window is longer than can be counted; write less",
        DurationError::Months => "whose months have no calendar; write month, or days such as 90d",
    }
}

/// The error for a rate whose products do not stay exact, with what to write instead.
fn inexact_text(spec: &Spec, precision: Precision) -> String {
    let fits = |burst: u64| {
        let smaller = Spec { burst: Some(burst), ..spec.clone() };
        Limit::compile(&smaller, precision).is_ok()
    };
    if spec.algorithm.takes_burst() && fits(1) {
        let (mut good, mut bad) = (1, spec.burst.unwrap_or(spec.count));
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            *(if fits(middle) { &mut good } else { &mut bad }) = middle;
        }
        return format!("which cannot be computed exactly; write burst {good} or less, or a rounder rate");
    }
    "which cannot be computed exactly; write a shorter window or a smaller count".to_owned()
}

crate::named_enum! {
    /// A unit of the calendar. A week begins on Monday.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum CalendarUnit {
        /// From midnight to midnight.
        Day = "day",
        /// From Monday to Monday.
        Week = "week",
        /// From the first to the first.
        Month = "month",
    }
}

impl CalendarUnit {
    /// Its length where no calendar is followed.
    #[must_use]
    pub const fn nominal_length(self) -> Nanos {
        const DAY_SECS: u64 = 86_400;
        match self {
            CalendarUnit::Day => Nanos::from_secs(DAY_SECS),
            CalendarUnit::Week => Nanos::from_secs(7 * DAY_SECS),
            CalendarUnit::Month => Nanos::from_secs(30 * DAY_SECS),
        }
    }
}

/// The window of a rate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RateWindow {
    /// A length of time.
    Duration(Nanos),
    /// A unit of the calendar, written without a number.
    Calendar(CalendarUnit),
}

/// Why a text is not a duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurationError {
    /// The unit is not known.
    Unknown,
    /// It has no length.
    Zero,
    /// It has more nanoseconds than can be counted.
    TooLong,
    /// A number of months has no fixed length.
    Months,
}

/// Parses a unit (`minute`, `day`) or a number of units (`5m`, `250ms`).
fn parse_window(text: &str) -> Result<RateWindow, DurationError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return match unit {
            "day" | "d" => Ok(RateWindow::Calendar(CalendarUnit::Day)),
            "week" | "w" => Ok(RateWindow::Calendar(CalendarUnit::Week)),
            "month" => Ok(RateWindow::Calendar(CalendarUnit::Month)),
            "ms" => Err(DurationError::Unknown),
            unit => Ok(RateWindow::Duration(Nanos::from_millis(unit_millis(unit).ok_or(DurationError::Unknown)?))),
        };
    }
    if matches!(unit, "month" | "months") {
        return Err(DurationError::Months);
    }
    let millis = unit_millis(unit).ok_or(DurationError::Unknown)?;
    let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
    let nanos =
        number.checked_mul(millis).and_then(|span| span.checked_mul(1_000_000)).ok_or(DurationError::TooLong)?;
    match nanos {
        0 => Err(DurationError::Zero),
        nanos => Ok(RateWindow::Duration(Nanos::new(nanos))),
    }
}

/// Parses a number of units (`250ms`, `5m`), the form of `budget`, `guard` and `max_delay`.
///
/// # Errors
/// If the text is not a number of units, or has no length.
pub fn parse_positive_duration(text: &str) -> Result<Nanos, DurationError> {
    match parse_window(text)? {
        RateWindow::Duration(span) if text.starts_with(|c: char| c.is_ascii_digit()) => Ok(span),
        _ => Err(DurationError::Unknown),
    }
}

/// Parses a duration in the units of rules (`250ms`, `5m`), 0 included: for settings outside rules.
pub fn parse_duration(text: &str) -> Option<Nanos> {
    match parse_positive_duration(text) {
        Err(DurationError::Zero) => Some(Nanos::ZERO),
        span => span.ok(),
    }
}

fn unit_millis(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" | "sec" | "second" | "seconds" => 1_000,
        "m" | "min" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        "w" | "week" | "weeks" => 604_800_000,
        _ => return None,
    })
}

impl fmt::Display for RateWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = match self {
            RateWindow::Calendar(unit) => return f.write_str(unit.name()),
            RateWindow::Duration(span) => span.get() / 1_000_000,
        };
        let units = [
            (604_800_000, "w", "7d"),
            (86_400_000, "d", "1d"),
            (3_600_000, "h", "hour"),
            (60_000, "m", "minute"),
            (1_000, "s", "second"),
            (1, "ms", "1ms"),
        ];
        let fits = units.into_iter().find(|(millis, ..)| span % *millis == 0);
        match fits {
            Some((millis, _, alone)) if millis == span => f.write_str(alone),
            Some((millis, unit, _)) => write!(f, "{}{unit}", span / millis),
            None => write!(f, "{span}ms"),
        }
    }
}

/// A value from the file, fit to be printed: in backquotes, escaped, at most 60 characters.
#[doc(hidden)] // for the crates of this workspace, not a promise
#[must_use]
pub fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut out = String::from("`");
    for (i, c) in text.chars().enumerate() {
        if i == MAX_CHARS {
            out.push_str("...");
            break;
        }
        match c {
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out.push('`');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Result<RateWindow, DurationError>) {
        assert_eq!(parse_window(text), want, "{text}");
        if let Ok(span) = want {
            assert_eq!(parse_window(&span.to_string()), want, "printed: {span}");
        }
    }

    #[test]
    fn units_and_multiples_of_units_are_parsed_and_printed() {
        let secs = |secs| Ok(RateWindow::Duration(Nanos::from_secs(secs)));
        for (text, span) in [("second", 1), ("s", 1), ("min", 60), ("m", 60), ("hour", 3_600)] {
            check(text, secs(span));
        }
        for (text, span) in [("5m", 300), ("90s", 90), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600)] {
            check(text, secs(span));
        }
        check("250ms", Ok(RateWindow::Duration(Nanos::from_millis(250))));
        check("day", Ok(RateWindow::Calendar(CalendarUnit::Day)));
        check("week", Ok(RateWindow::Calendar(CalendarUnit::Week)));
        check("month", Ok(RateWindow::Calendar(CalendarUnit::Month)));
    }

    #[test]
    fn invalid_windows_are_rejected() {
        check("", Err(DurationError::Unknown));
        check("fortnight", Err(DurationError::Unknown));
        check("M", Err(DurationError::Unknown));
        check("5", Err(DurationError::Unknown));
        check("1.5s", Err(DurationError::Unknown));
        check("0s", Err(DurationError::Zero));
        check("3months", Err(DurationError::Months));
        check("99999999999999999999s", Err(DurationError::TooLong));
        check("9999999999999w", Err(DurationError::TooLong));
    }
}

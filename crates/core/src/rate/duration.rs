//! Durations as people write them: `250ms`, `5m`, `2h`, `day`.

use std::fmt;

use crate::units::Nanos;

/// A unit of the calendar. A week begins on Monday.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

impl CalendarUnit {
    /// Its name in a rate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
        }
    }

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
pub(super) fn parse_window(text: &str) -> Result<RateWindow, DurationError> {
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

//! The commands that carry their limit: `CL.THROTTLE` of redis-cell and `THROTTLE` of throttlecrab. Pure.
//!
//! Both are a bucket that fills at `count` per `period` seconds. They differ in the capacity of the bucket, in the
//! order and meaning of the numbers in the reply, and in their error texts. Seconds are rounded up: a client that waits
//! as long as the reply demands is allowed.

use tidegate::KeyAction;
use tidegate_core::algorithms::{Retry, SpecError, Verdict};
use tidegate_core::units::Cost;

use super::limit_cache::ThrottleRate;
use super::reply::{echo, saturating_i64};
use super::wire::Arguments;
use crate::decider::KeyOutcome;

/// The original that a command imitates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ThrottleDialect {
    /// `CL.THROTTLE`
    RedisCell,
    /// `THROTTLE`
    Throttlecrab,
}

/// A parsed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ThrottleRequest {
    /// A charge or a peek under this rate.
    Decide(ThrottleRate, KeyAction),
    /// redis-cell accepts a burst below zero, and then nothing fits: no counter is read.
    NeverFits {
        /// The capacity in the reply.
        limit: i64,
        /// Whether even a peek is denied.
        denied: bool,
    },
}

impl ThrottleDialect {
    /// The name of its counters in metrics. Each dialect has its own: the same numbers mean different capacities, and a
    /// shared counter would be converted at every other call.
    pub(super) const fn family(self) -> &'static str {
        match self {
            ThrottleDialect::RedisCell => "cl.throttle",
            ThrottleDialect::Throttlecrab => "throttle",
        }
    }

    /// Parses the arguments, or returns the error text.
    pub(super) fn parse(self, arguments: &Arguments<'_>) -> Result<ThrottleRequest, String> {
        match self {
            ThrottleDialect::RedisCell => parse_redis_cell(arguments),
            ThrottleDialect::Throttlecrab => parse_throttlecrab(arguments),
        }
    }

    /// The error for a rate that the store cannot count exactly.
    pub(super) fn rate_error(self, error: SpecError) -> String {
        let code = match self {
            ThrottleDialect::RedisCell => "Cell error:",
            ThrottleDialect::Throttlecrab => "ERR",
        };
        format!("{code} {error}; write a smaller burst or a shorter period")
    }

    /// The numbers of the reply.
    pub(super) fn reply_numbers(self, capacity: u64, act: KeyAction, outcome: &KeyOutcome) -> [i64; 5] {
        let figures = outcome.reading.figures;
        // A peek is never denied, not even where nothing remains.
        let admitted = outcome.admitted || act == KeyAction::Peek;
        let retry = match outcome.reading.verdict {
            Verdict::Deny { retry: Retry::After(wait) } if !admitted => Some(saturating_i64(wait.secs_up())),
            _ => None,
        };
        let (limit, remaining) = (saturating_i64(capacity), saturating_i64(figures.remaining));
        let reset = saturating_i64(figures.reset_after.secs_up());
        match self {
            ThrottleDialect::RedisCell => {
                let limited = i64::from(!admitted);
                [limited, limit, remaining, retry.unwrap_or(-1), reset]
            }
            ThrottleDialect::Throttlecrab => {
                let never = if admitted { 0 } else { -1 };
                let allowed = i64::from(admitted);
                [allowed, limit, remaining, reset, retry.unwrap_or(never)]
            }
        }
    }
}

fn parse_redis_cell(arguments: &Arguments<'_>) -> Result<ThrottleRequest, String> {
    if !matches!(arguments.len(), 5 | 6) {
        return Err("Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> \
                    [<quantity>]"
            .to_owned());
    }
    let number = |at: usize| {
        let text = &arguments[at];
        let parse_error = || format!("Cell error: Couldn't parse as integer: {}", echo(text));
        parse_integer(text).ok_or_else(parse_error)
    };
    let (burst, count, period) = (number(2)?, number(3)?, number(4)?);
    let quantity = match arguments.len() {
        6 => number(5)?,
        _ => 1,
    };
    if count == 0 || period == 0 {
        return Err("Cell error: Zero rates are not supported".to_owned());
    }
    let (Ok(count), Ok(period_secs)) = (u64::try_from(count), u64::try_from(period)) else {
        return Err("Cell error: the rate is below 0; write 1 or more".to_owned());
    };
    let Ok(quantity) = u64::try_from(quantity) else {
        return Err("Cell error: the quantity is below 0; write 0 or more".to_owned());
    };
    let limit = burst.saturating_add(1);
    match u64::try_from(limit) {
        Ok(capacity @ 1..) => {
            let rate = ThrottleRate { capacity, count, period_secs };
            Ok(ThrottleRequest::Decide(rate, act_of(quantity)))
        }
        _ => Ok(ThrottleRequest::NeverFits { limit, denied: quantity > 0 || limit < 0 }),
    }
}

fn parse_throttlecrab(arguments: &Arguments<'_>) -> Result<ThrottleRequest, String> {
    if !matches!(arguments.len(), 5 | 6) {
        return Err("ERR wrong number of arguments for 'throttle' command".to_owned());
    }
    let number = |at: usize, name: &str| parse_integer(&arguments[at]).ok_or_else(|| format!("ERR invalid {name}"));
    let burst = number(2, "max_burst")?;
    let count = number(3, "count_per_period")?;
    let period = number(4, "period")?;
    let quantity = match arguments.len() {
        6 => number(5, "quantity")?,
        _ => 1,
    };
    let Ok(quantity) = u64::try_from(quantity) else {
        let message = format!("ERR Rate limit check failed: negative quantity: {quantity}");
        return Err(message);
    };
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    match (positive(burst), positive(count), positive(period)) {
        (Some(capacity), Some(count), Some(period_secs)) => {
            let rate = ThrottleRate { capacity, count, period_secs };
            Ok(ThrottleRequest::Decide(rate, act_of(quantity)))
        }
        _ => Err("ERR Rate limit check failed: invalid rate limit parameters".to_owned()),
    }
}

fn act_of(quantity: u64) -> KeyAction {
    Cost::new(quantity).map_or(KeyAction::Peek, KeyAction::Charge)
}

/// Parses a number like both originals, which allow a leading plus.
fn parse_integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;
    use tidegate_core::algorithms::Figures;
    use tidegate_core::store::{LimitReading, Source};
    use tidegate_core::units::Nanos;

    fn parse_command(line: &str) -> Result<ThrottleRequest, String> {
        let arguments: Arguments<'_> = line.split(' ').map(|word| Cow::Borrowed(word.as_bytes())).collect();
        let dialect = if line.starts_with("CL") { ThrottleDialect::RedisCell } else { ThrottleDialect::Throttlecrab };
        dialect.parse(&arguments)
    }

    fn rate(capacity: u64) -> ThrottleRate {
        ThrottleRate { capacity, count: 30, period_secs: 60 }
    }

    #[test]
    fn the_same_numbers_mean_different_capacities_in_the_dialects() {
        let one = KeyAction::Charge(Cost::ONE);
        assert_eq!(parse_command("CL.THROTTLE k 15 30 60"), Ok(ThrottleRequest::Decide(rate(16), one)));
        assert_eq!(parse_command("THROTTLE k 15 30 60"), Ok(ThrottleRequest::Decide(rate(15), one)));
        let peek = Ok(ThrottleRequest::Decide(rate(1), KeyAction::Peek));
        assert_eq!(parse_command("CL.THROTTLE k 0 +30 60 0"), peek);
    }

    #[test]
    fn a_burst_below_zero_denies_as_in_redis_cell() {
        let nothing = |limit, denied| Ok(ThrottleRequest::NeverFits { limit, denied });
        assert_eq!(parse_command("CL.THROTTLE k -1 1 10"), nothing(0, true));
        assert_eq!(parse_command("CL.THROTTLE k -1 1 10 0"), nothing(0, false));
        assert_eq!(parse_command("CL.THROTTLE k -2 1 10 0"), nothing(-1, true));
    }

    #[test]
    fn each_dialect_has_its_own_error_texts() {
        let cases = [
            (
                "CL.THROTTLE k 1 1",
                "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]",
            ),
            (
                "CL.THROTTLE k 1 1 1 1 1",
                "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]",
            ),
            ("CL.THROTTLE k x 1 1", "Cell error: Couldn't parse as integer: x"),
            ("CL.THROTTLE k 1 0 1", "Cell error: Zero rates are not supported"),
            ("CL.THROTTLE k 1 1 0", "Cell error: Zero rates are not supported"),
            ("CL.THROTTLE k 1 -1 1", "Cell error: the rate is below 0; write 1 or more"),
            ("CL.THROTTLE k 1 1 1 -1", "Cell error: the quantity is below 0; write 0 or more"),
            ("THROTTLE k 1 1", "ERR wrong number of arguments for 'throttle' command"),
            ("THROTTLE k x 1 1", "ERR invalid max_burst"),
            ("THROTTLE k 1 x 1", "ERR invalid count_per_period"),
            ("THROTTLE k 1 1 x", "ERR invalid period"),
            ("THROTTLE k 1 1 1 x", "ERR invalid quantity"),
            ("THROTTLE k 0 1 1 -1", "ERR Rate limit check failed: negative quantity: -1"),
            ("THROTTLE k 0 1 1", "ERR Rate limit check failed: invalid rate limit parameters"),
        ];
        for (line, want) in cases {
            assert_eq!(parse_command(line), Err(want.to_owned()), "{line}");
        }
    }

    #[test]
    fn waits_are_rounded_up_and_minus_one_means_never() {
        let outcome = |admitted, verdict| KeyOutcome {
            admitted,
            reading: LimitReading {
                verdict,
                figures: Figures { remaining: 3, reset_after: Nanos::from_millis(3_900), more_after: Nanos::ZERO },
            },
            at: Nanos::ZERO,
            source: Source::Exact,
        };
        let allowed = outcome(true, Verdict::Allow { delay: Nanos::ZERO });
        let retry = Retry::After(Nanos::from_millis(100));
        let later = outcome(false, Verdict::Deny { retry });
        let never = outcome(false, Verdict::Deny { retry: Retry::Never });
        let one = KeyAction::Charge(Cost::ONE);
        let cases = [
            (ThrottleDialect::RedisCell, one, allowed, [0, 5, 3, -1, 4]),
            (ThrottleDialect::RedisCell, one, later, [1, 5, 3, 1, 4]),
            (ThrottleDialect::RedisCell, one, never, [1, 5, 3, -1, 4]),
            (ThrottleDialect::RedisCell, KeyAction::Peek, later, [0, 5, 3, -1, 4]),
            (ThrottleDialect::Throttlecrab, one, allowed, [1, 5, 3, 4, 0]),
            (ThrottleDialect::Throttlecrab, one, later, [0, 5, 3, 4, 1]),
            (ThrottleDialect::Throttlecrab, one, never, [0, 5, 3, 4, -1]),
        ];
        for (dialect, act, outcome, want) in cases {
            assert_eq!(dialect.reply_numbers(5, act, &outcome), want, "{dialect:?} {outcome:?}");
        }
    }
}

//! The commands that bring their limit: `CL.THROTTLE` as redis-cell has it, `THROTTLE` as throttlecrab
//! does. Pure.
//!
//! Both are a bucket that fills at `count` per `period` seconds. They differ in what its capacity is, in
//! the order and sense of what they answer, and in how they word errors. Seconds are rounded up: a
//! client that waits as long as it is told is let in.

use tidegate::Act;
use tidegate_core::algorithms::{Retry, Unfit, Verdict};
use tidegate_core::store::Single;
use tidegate_core::units::Cost;

use super::reply::{echoed, signed};
use super::tariffs::Rate;
use super::wire::Arguments;

/// Whose command it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    /// `CL.THROTTLE`
    Cell,
    /// `THROTTLE`
    Crab,
}

/// What a command asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// A charge or a look under this rate.
    Of(Rate, Act),
    /// redis-cell takes a burst below zero, and then nothing fits: no counter is asked.
    Nothing {
        /// The capacity it would tell.
        limit: i64,
        /// Whether even a look is refused.
        refused: bool,
    },
}

impl Dialect {
    /// What its counters are called in metrics. Each has its own: by the same numbers they mean
    /// different capacities, and a shared counter would be converted at every other call.
    pub(super) const fn family(self) -> &'static str {
        match self {
            Dialect::Cell => "cl.throttle",
            Dialect::Crab => "throttle",
        }
    }

    /// Reads the arguments, or says what is wrong with them.
    pub(super) fn read(self, arguments: &Arguments<'_>) -> Result<Asked, String> {
        match self {
            Dialect::Cell => cell(arguments),
            Dialect::Crab => crab(arguments),
        }
    }

    /// A rate that the store cannot count exactly.
    pub(super) fn unfit(self, unfit: Unfit) -> String {
        let code = match self {
            Dialect::Cell => "Cell error:",
            Dialect::Crab => "ERR",
        };
        format!("{code} {unfit}; write a smaller burst or a shorter period")
    }

    /// What it answers.
    pub(super) fn told(self, capacity: u64, act: Act, answer: &Single) -> [i64; 5] {
        let figures = answer.reading.figures;
        // A look is never refused, not even where nothing is left.
        let admitted = answer.admitted || act == Act::Peek;
        let retry = match answer.reading.verdict {
            Verdict::Deny {
                retry: Retry::After(wait),
            } if !admitted => Some(signed(wait.secs_up())),
            _ => None,
        };
        let (limit, remaining) = (signed(capacity), signed(figures.remaining));
        let reset = signed(figures.reset_after.secs_up());
        match self {
            Dialect::Cell => {
                let limited = i64::from(!admitted);
                [limited, limit, remaining, retry.unwrap_or(-1), reset]
            }
            Dialect::Crab => {
                let never = if admitted { 0 } else { -1 };
                let allowed = i64::from(admitted);
                [allowed, limit, remaining, reset, retry.unwrap_or(never)]
            }
        }
    }
}

fn cell(arguments: &Arguments<'_>) -> Result<Asked, String> {
    if !matches!(arguments.len(), 5 | 6) {
        return Err(
            "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> \
                    [<quantity>]"
                .to_owned(),
        );
    }
    let number = |at: usize| {
        let text = &arguments[at];
        let unread = || format!("Cell error: Couldn't parse as integer: {}", echoed(text));
        integer(text).ok_or_else(unread)
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
            let rate = Rate {
                capacity,
                count,
                period_secs,
            };
            Ok(Asked::Of(rate, act(quantity)))
        }
        _ => Ok(Asked::Nothing {
            limit,
            refused: quantity > 0 || limit < 0,
        }),
    }
}

fn crab(arguments: &Arguments<'_>) -> Result<Asked, String> {
    if !matches!(arguments.len(), 5 | 6) {
        return Err("ERR wrong number of arguments for 'throttle' command".to_owned());
    }
    let number = |at: usize, name: &str| {
        integer(&arguments[at]).ok_or_else(|| format!("ERR invalid {name}"))
    };
    let burst = number(2, "max_burst")?;
    let count = number(3, "count_per_period")?;
    let period = number(4, "period")?;
    let quantity = match arguments.len() {
        6 => number(5, "quantity")?,
        _ => 1,
    };
    let Ok(quantity) = u64::try_from(quantity) else {
        let told = format!("ERR Rate limit check failed: negative quantity: {quantity}");
        return Err(told);
    };
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    match (positive(burst), positive(count), positive(period)) {
        (Some(capacity), Some(count), Some(period_secs)) => {
            let rate = Rate {
                capacity,
                count,
                period_secs,
            };
            Ok(Asked::Of(rate, act(quantity)))
        }
        _ => Err("ERR Rate limit check failed: invalid rate limit parameters".to_owned()),
    }
}

fn act(quantity: u64) -> Act {
    Cost::new(quantity).map_or(Act::Peek, Act::Charge)
}

/// A number as both originals read it, a plus in front allowed.
fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;
    use tidegate_core::algorithms::Figures;
    use tidegate_core::store::{Reading, Source};
    use tidegate_core::units::Nanos;

    fn read(line: &str) -> Result<Asked, String> {
        let arguments: Arguments<'_> = line
            .split(' ')
            .map(|word| Cow::Borrowed(word.as_bytes()))
            .collect();
        let dialect = match line.starts_with("CL") {
            true => Dialect::Cell,
            false => Dialect::Crab,
        };
        dialect.read(&arguments)
    }

    fn rate(capacity: u64) -> Rate {
        Rate {
            capacity,
            count: 30,
            period_secs: 60,
        }
    }

    #[test]
    fn the_same_numbers_mean_another_capacity_to_each() {
        let one = Act::Charge(Cost::ONE);
        assert_eq!(read("CL.THROTTLE k 15 30 60"), Ok(Asked::Of(rate(16), one)));
        assert_eq!(read("THROTTLE k 15 30 60"), Ok(Asked::Of(rate(15), one)));
        let peek = Ok(Asked::Of(rate(1), Act::Peek));
        assert_eq!(read("CL.THROTTLE k 0 +30 60 0"), peek);
    }

    #[test]
    fn a_burst_below_zero_refuses_as_the_module_does() {
        let nothing = |limit, refused| Ok(Asked::Nothing { limit, refused });
        assert_eq!(read("CL.THROTTLE k -1 1 10"), nothing(0, true));
        assert_eq!(read("CL.THROTTLE k -1 1 10 0"), nothing(0, false));
        assert_eq!(read("CL.THROTTLE k -2 1 10 0"), nothing(-1, true));
    }

    #[test]
    fn each_words_its_errors_in_its_own_way() {
        let cases = [
            (
                "CL.THROTTLE k 1 1",
                "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]",
            ),
            (
                "CL.THROTTLE k 1 1 1 1 1",
                "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]",
            ),
            (
                "CL.THROTTLE k x 1 1",
                "Cell error: Couldn't parse as integer: x",
            ),
            (
                "CL.THROTTLE k 1 0 1",
                "Cell error: Zero rates are not supported",
            ),
            (
                "CL.THROTTLE k 1 1 0",
                "Cell error: Zero rates are not supported",
            ),
            (
                "CL.THROTTLE k 1 -1 1",
                "Cell error: the rate is below 0; write 1 or more",
            ),
            (
                "CL.THROTTLE k 1 1 1 -1",
                "Cell error: the quantity is below 0; write 0 or more",
            ),
            (
                "THROTTLE k 1 1",
                "ERR wrong number of arguments for 'throttle' command",
            ),
            ("THROTTLE k x 1 1", "ERR invalid max_burst"),
            ("THROTTLE k 1 x 1", "ERR invalid count_per_period"),
            ("THROTTLE k 1 1 x", "ERR invalid period"),
            ("THROTTLE k 1 1 1 x", "ERR invalid quantity"),
            (
                "THROTTLE k 0 1 1 -1",
                "ERR Rate limit check failed: negative quantity: -1",
            ),
            (
                "THROTTLE k 0 1 1",
                "ERR Rate limit check failed: invalid rate limit parameters",
            ),
        ];
        for (line, want) in cases {
            assert_eq!(read(line), Err(want.to_owned()), "{line}");
        }
    }

    #[test]
    fn waits_are_rounded_up_and_never_is_told() {
        let answer = |admitted, verdict| Single {
            admitted,
            reading: Reading {
                verdict,
                figures: Figures {
                    remaining: 3,
                    reset_after: Nanos::from_millis(3_900),
                    more_after: Nanos::ZERO,
                },
            },
            at: Nanos::ZERO,
            source: Source::Exact,
        };
        let allowed = answer(true, Verdict::Allow { delay: Nanos::ZERO });
        let retry = Retry::After(Nanos::from_millis(100));
        let later = answer(false, Verdict::Deny { retry });
        let never = answer(
            false,
            Verdict::Deny {
                retry: Retry::Never,
            },
        );
        let one = Act::Charge(Cost::ONE);
        let cases = [
            (Dialect::Cell, one, allowed, [0, 5, 3, -1, 4]),
            (Dialect::Cell, one, later, [1, 5, 3, 1, 4]),
            (Dialect::Cell, one, never, [1, 5, 3, -1, 4]),
            (Dialect::Cell, Act::Peek, later, [0, 5, 3, -1, 4]),
            (Dialect::Crab, one, allowed, [1, 5, 3, 4, 0]),
            (Dialect::Crab, one, later, [0, 5, 3, 4, 1]),
            (Dialect::Crab, one, never, [0, 5, 3, 4, -1]),
        ];
        for (dialect, act, answer, want) in cases {
            assert_eq!(
                dialect.told(5, act, &answer),
                want,
                "{dialect:?} {answer:?}"
            );
        }
    }
}

//! Durations and sizes with units, the same for flags, the environment and the file.
//!
//! A duration has the units that rules have: `250ms`, `5s`, `10m`, `2h`, `1d`. A size has `KiB`, `MiB`, `GiB` and
//! `TiB`, or short `K`, `M`, `G` and `T`, which are powers of 1024; `KB`, `MB`, `GB` and `TB` are powers of 1000. A
//! plain number is in the original unit of the setting.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};
use tidegate_rules::parse_duration;

/// A duration. A plain number is in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs, "10s")
}

/// A duration. A plain number is in milliseconds.
pub(crate) fn millis(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis, "25ms")
}

fn duration(text: &str, plain: fn(u64) -> Duration, example: &str) -> Result<Duration, String> {
    let number = text.parse().ok().map(plain);
    let written = || parse_duration(text).map(|span| span.duration());
    let bad = || {
        let text = text.escape_default();
        format!("`{text}` is not a duration; write a number and ms, s, m, h or d, such as {example}")
    };
    number.or_else(written).ok_or_else(bad)
}

/// [`seconds`] in a file.
pub(super) fn file_seconds<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Duration>, D::Error> {
    parse_in_file(file, seconds)
}

/// [`millis`] in a file.
pub(super) fn file_millis<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Duration>, D::Error> {
    parse_in_file(file, millis)
}

fn parse_in_file<'de, D: Deserializer<'de>>(
    file: D,
    parse: fn(&str) -> Result<Duration, String>,
) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(file)?;
    let parsed = text.map(|text| parse(&text));
    parsed.transpose().map_err(D::Error::custom)
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ByteSize(pub(crate) u64);

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            let text = text.escape_default();
            format!("`{text}` is not a size; write bytes, or a number and MiB, GiB, MB or GB, such as 512MiB")
        };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad()),
        };
        let number: u64 = number.parse().map_err(|_| bad())?;
        number.checked_mul(unit).map(ByteSize).ok_or_else(bad)
    }
}

impl TryFrom<String> for ByteSize {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_is_in_the_unit_of_its_setting() {
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(millis("5"), Ok(Duration::from_millis(5)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_unit_means_the_same_everywhere() {
        for (text, want_ms) in
            [("5ms", 5), ("0s", 0), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000), ("1d", 86_400_000)]
        {
            let want = Ok(Duration::from_millis(want_ms));
            assert_eq!((seconds(text), millis(text)), (want.clone(), want), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_rejected_with_an_example() {
        for text in ["", "s", "-1", "1.5s", "5 parsecs", "99999999999999999999s"] {
            let error = seconds(text).unwrap_err();
            assert!(error.ends_with("such as 10s"), "{error}");
        }
    }

    #[test]
    fn sizes_are_read_and_never_wrap() {
        for (text, want) in [
            ("7", 7),
            ("64KiB", 65_536),
            ("64k", 65_536),
            ("256MB", 256_000_000),
            ("256M", 256 << 20),
            ("10G", 10 << 30),
            ("1 GiB", 1 << 30),
            ("2gb", 2_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(want)), "{text}");
        }
        for text in ["", "MiB", "1MX", "-1", "1.5GiB", "99999999999GiB"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.ends_with("such as 512MiB"), "{error}");
        }
    }
}

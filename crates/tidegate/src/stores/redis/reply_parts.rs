//! Reads the parts of a server's reply to a plain command.

use redis::Value;
use tidegate_core::units::Nanos;

pub(super) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A number in decimal digits.
pub(super) fn decimal(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// The time in a reply to `TIME`.
pub(super) fn time_of(reply: &Value) -> Option<Nanos> {
    match list(reply)? {
        [secs, micros] => time([secs, micros]),
        _ => None,
    }
}

/// The time in seconds and microseconds.
pub(super) fn time([secs, micros]: [&Value; 2]) -> Option<Nanos> {
    Some(Nanos::from_secs(decimal(secs)?).plus(Nanos::new(decimal(micros)?.saturating_mul(1_000))))
}

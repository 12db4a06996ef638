//! What a script answers: the time first, then what its contract says.

use redis::Value;
use tidegate_core::units::Nanos;

/// The answer of a script that tells the time.
pub(super) struct Reply {
    /// The server's time at which it was decided.
    pub(super) at: Nanos,
    /// What follows the time.
    pub(super) rest: Vec<Value>,
}

/// An answer that its contract does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Nonsense {
    /// Not of the shape it should have.
    #[error("a script answered in a shape it does not have")]
    Shape,
    /// The script admits what the library refuses, or the other way around.
    #[error("a script and the library decided differently")]
    Disagreement,
}

impl Reply {
    pub(super) fn read(value: Value) -> Result<Reply, Nonsense> {
        let Value::Array(mut values) = value else {
            return Err(Nonsense::Shape);
        };
        if values.len() < 2 {
            return Err(Nonsense::Shape);
        }
        let rest = values.split_off(2);
        let (secs, micros) = (number(&values[0])?, number(&values[1])?);
        let micros = secs.saturating_mul(1_000_000).saturating_add(micros);
        Ok(Reply {
            at: Nanos::new(micros.saturating_mul(1_000)),
            rest,
        })
    }

    /// Whether the script did nothing, because it was told of other windows than the present ones.
    pub(super) fn is_only_time(&self) -> bool {
        self.rest.is_empty()
    }

    /// The first number after the time.
    pub(super) fn code(&self) -> Result<i64, Nonsense> {
        match self.rest.first() {
            Some(Value::Int(code)) => Ok(*code),
            _ => Err(Nonsense::Shape),
        }
    }

    /// The records from the `first` value after the time on.
    pub(super) fn records(&self, first: usize) -> Result<Vec<Option<&[u8]>>, Nonsense> {
        let values = self.rest.get(first..).ok_or(Nonsense::Shape)?;
        values.iter().map(record).collect()
    }
}

/// A number, which travels as text where it may be large.
pub(super) fn number(value: &Value) -> Result<u64, Nonsense> {
    match value {
        Value::BulkString(text) => {
            let text = std::str::from_utf8(text).ok();
            text.and_then(|text| text.parse().ok())
                .ok_or(Nonsense::Shape)
        }
        Value::Int(number) => u64::try_from(*number).map_err(|_| Nonsense::Shape),
        _ => Err(Nonsense::Shape),
    }
}

fn record(value: &Value) -> Result<Option<&[u8]>, Nonsense> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        _ => Err(Nonsense::Shape),
    }
}

//! The reply of a script: the time, a verdict, and the records it found. `scripts/charge.lua` documents the format.

use redis::Value;
use tidegate_core::units::Nanos;

use super::reply_parts::list;

/// The reply of a script that begins with the time.
pub(super) struct ScriptReply {
    /// The server's time of the decision.
    pub(super) at: Nanos,
    bytes: Vec<u8>,
}

/// A reply that breaks the script's contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum ScriptReplyError {
    /// The bytes do not have the documented shape.
    #[error("a script replied in an unknown shape")]
    Shape,
    /// The script admits a request that the library denies, or the other way around.
    #[error("a script and the library decided differently")]
    Disagreement,
}

const TIME_LEN: usize = 7;
const VERDICT_LEN: usize = 8;

impl ScriptReply {
    pub(super) fn read(value: Value) -> Result<ScriptReply, ScriptReplyError> {
        let Value::BulkString(bytes) = value else {
            return Err(ScriptReplyError::Shape);
        };
        let mut micros = [0; 8];
        let time = bytes.get(..TIME_LEN).ok_or(ScriptReplyError::Shape)?;
        micros[..TIME_LEN].copy_from_slice(time);
        let micros = u64::from_le_bytes(micros);
        Ok(ScriptReply { at: Nanos::new(micros.saturating_mul(1_000)), bytes })
    }

    /// Whether the script did nothing, because the plan's windows are not those around the server's time.
    pub(super) fn is_only_time(&self) -> bool {
        self.bytes.len() == TIME_LEN
    }

    /// The verdict, an integer.
    pub(super) fn verdict(&self) -> Result<i64, ScriptReplyError> {
        let bytes = self.bytes.get(TIME_LEN..).and_then(<[u8]>::first_chunk);
        let verdict = f64::from_le_bytes(*bytes.ok_or(ScriptReplyError::Shape)?);
        if verdict.fract() == 0.0 { Ok(verdict as i64) } else { Err(ScriptReplyError::Shape) }
    }

    /// The records, in the order of their keys.
    pub(super) fn records(&self) -> Result<Vec<Option<&[u8]>>, ScriptReplyError> {
        let mut records = Vec::new();
        let mut rest = self.bytes.get(TIME_LEN + VERDICT_LEN..).ok_or(ScriptReplyError::Shape)?;
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = u32::from_le_bytes(*len) as usize;
            let (record, after) = after.split_at_checked(len).ok_or(ScriptReplyError::Shape)?;
            records.push((len > 0).then_some(record));
            rest = after;
        }
        if rest.is_empty() { Ok(records) } else { Err(ScriptReplyError::Shape) }
    }
}

/// The number in the reply of a script that returns only that.
pub(super) fn number(value: &Value) -> Result<u64, ScriptReplyError> {
    match list(value) {
        Some([Value::Int(number)]) => u64::try_from(*number).map_err(|_| ScriptReplyError::Shape),
        _ => Err(ScriptReplyError::Shape),
    }
}

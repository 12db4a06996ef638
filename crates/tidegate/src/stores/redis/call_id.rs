//! Call ids, which show the call that a reply belongs to.
//!
//! Redis replies in the order of the commands and names none of them. If something between this node and
//! the server drops or repeats a reply, every later reply on that connection belongs to another call. So
//! each call carries an id, the server returns it, and a reply with another id is never used.

use std::sync::atomic::{AtomicU32, Ordering};

use redis::{Cmd, Value};

/// The id of one call. Four bytes: a reply would have to be 4 billion calls late to match another call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallId([u8; 4]);

/// Generates the ids of one server's connections.
pub(super) struct CallIds(AtomicU32);

impl CallIds {
    /// A sequence with a random start, so that two nodes behind one proxy hardly have the same ids.
    pub(super) fn new() -> Self {
        let mut start = [0; 4];
        let _starts_at_0_without_randomness = getrandom::fill(&mut start);
        CallIds(AtomicU32::new(u32::from_le_bytes(start)))
    }

    pub(super) fn next(&self) -> CallId {
        CallId(self.0.fetch_add(1, Ordering::Relaxed).to_le_bytes())
    }
}

impl CallId {
    /// The id as the last argument of a script.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The command that returns the id and does nothing else.
    pub(super) fn ping(self) -> Cmd {
        let mut ping = redis::cmd("PING");
        ping.arg(self.bytes());
        ping
    }

    /// Whether this is the reply to `ping`.
    pub(super) fn is_echoed_by(self, reply: &Value) -> bool {
        matches!(reply, Value::BulkString(bytes) if bytes == self.bytes())
    }

    /// The reply of a script without the id at its end. None if it has another id or none.
    pub(super) fn strip(self, reply: Value) -> Option<Value> {
        match reply {
            Value::BulkString(mut bytes) => {
                let length = bytes.strip_suffix(self.bytes())?.len();
                bytes.truncate(length);
                Some(Value::BulkString(bytes))
            }
            Value::Array(mut values) => {
                let last = values.pop()?;
                self.is_echoed_by(&last).then_some(Value::Array(values))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    #[test]
    fn only_the_reply_with_the_same_id_is_used() {
        let ids = CallIds::new();
        let (own, other) = (ids.next(), ids.next());
        let reply = |id: CallId| text(&[b"decided", id.bytes()].concat());
        assert_eq!(own.strip(reply(own)), Some(text(b"decided")));
        assert_eq!(own.strip(reply(other)), None);
        let list = |id: CallId| Value::Array(vec![Value::Int(1), text(id.bytes())]);
        assert_eq!(own.strip(list(own)), Some(Value::Array(vec![Value::Int(1)])));
        assert_eq!(own.strip(list(other)), None);
        for foreign in [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![]), text(b"")] {
            assert_eq!(own.strip(foreign), None);
        }
        assert!(own.is_echoed_by(&text(own.bytes())));
        assert!(!own.is_echoed_by(&text(other.bytes())));
        assert!(!own.is_echoed_by(&Value::SimpleString("PONG".to_owned())));
    }
}

//! Enforces one reply for each set of a batch, as the port requires.

use super::{Outcome, StoreError};

/// A store returned a number of replies that differs from the number of sets. The pairing of replies and sets is
/// unknown then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found} replies to {expected} charge sets")]
pub struct ReplyCountError {
    /// The number of sets.
    pub expected: usize,
    /// The number of replies.
    pub found: usize,
}

/// The replies of a store to `sets` charge sets, if there is one for each. Otherwise an error for each
/// set: a list that is too short would silently shorten the caller's batch.
pub fn one_reply_per_set(sets: usize, replies: Vec<Result<Outcome, StoreError>>) -> Vec<Result<Outcome, StoreError>> {
    if replies.len() == sets {
        return replies;
    }
    let found = replies.len();
    let error = |_| {
        Err(StoreError::Rejected {
            command: "charge_each",
            source: Box::new(ReplyCountError { expected: sets, found }),
        })
    };
    (0..sets).map(error).collect()
}

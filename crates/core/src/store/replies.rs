//! One reply for each set of a batch, as the port promises.

use super::{Outcome, StoreError};

/// A store replied to a batch with another number of replies than there were sets. Which reply belongs to
/// which set is unknown then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found} replies to {expected} charge sets")]
pub struct ReplyCountError {
    /// How many sets there were.
    pub expected: usize,
    /// How many replies there were.
    pub found: usize,
}

/// The replies of a store to `sets` charge sets, if there is one for each. Otherwise an error for each
/// set: a list that is too short would silently shorten the caller's batch.
pub fn one_reply_per_set(
    sets: usize,
    replies: Vec<Result<Outcome, StoreError>>,
) -> Vec<Result<Outcome, StoreError>> {
    if replies.len() == sets {
        return replies;
    }
    let found = replies.len();
    let error = |_| {
        Err(StoreError::Rejected {
            command: "charge_each",
            source: Box::new(ReplyCountError {
                expected: sets,
                found,
            }),
        })
    };
    (0..sets).map(error).collect()
}

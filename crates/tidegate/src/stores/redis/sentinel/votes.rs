//! What several sentinels say together.

use super::{RedisAddress, RedisStoreError, SentinelReply};

/// Answers, as they come in.
pub(super) struct Votes {
    /// How many were asked.
    total: usize,
    /// How many answered.
    replied: usize,
    candidates: Vec<(RedisAddress, usize)>,
    /// Why the first that did not answer did not.
    first_error: Option<RedisStoreError>,
}

impl Votes {
    pub(super) fn of(total: usize) -> Self {
        Votes {
            total,
            replied: 0,
            candidates: Vec::new(),
            first_error: None,
        }
    }

    /// Counts one answer: a place, or that it knows of none.
    pub(super) fn cast(&mut self, vote: SentinelReply) {
        let address = match vote {
            Ok(address) => address,
            Err(error) => {
                self.first_error.get_or_insert(error);
                return;
            }
        };
        self.replied += 1;
        let Some(address) = address else { return };
        match self
            .candidates
            .iter_mut()
            .find(|(known, _)| *known == address)
        {
            Some((_, votes)) => *votes += 1,
            None => self.candidates.push((address, 1)),
        }
    }

    /// The place that no further answer can change.
    pub(super) fn majority(&self) -> Option<RedisAddress> {
        self.majority_of(self.total)
    }

    /// The place that most of those that answered agree on.
    pub(super) fn result(self) -> Result<RedisAddress, RedisStoreError> {
        if let Some(address) = self.majority_of(self.replied) {
            return Ok(address);
        }
        match (self.replied, self.candidates.len()) {
            (0, _) => Err(self
                .first_error
                .unwrap_or_else(|| RedisStoreError::not_connected(None))),
            (_, 0) => Err(RedisStoreError::needs_operator(
                "unknown primary",
                "",
                "write the name by which the sentinels know it after the hosts",
            )),
            _ => Err(RedisStoreError::sentinels_disagree()),
        }
    }

    fn majority_of(&self, all: usize) -> Option<RedisAddress> {
        let winner = self.candidates.iter().find(|(_, votes)| votes * 2 > all);
        winner.map(|(address, _)| address.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::error::Action;

    /// One letter per sentinel: a place, `?` for one that knows none, `-` for one that is silent.
    /// What they say together is the letter of a place, or what is to be done.
    fn check(letters: &str, want: &str) {
        let mut votes = Votes::of(letters.len());
        for vote in letters.chars() {
            votes.cast(match vote {
                '-' => Err(RedisStoreError::not_connected(None)),
                '?' => Ok(None),
                letter => Ok(Some(RedisAddress::Tcp {
                    host: letter.to_string(),
                    port: 1,
                })),
            });
        }
        let found = match votes.majority().map_or_else(|| votes.result(), Ok) {
            Ok(address) => address.to_string().replace(":1", ""),
            Err(error) if error.action() == Action::NeedsOperator => "ask".to_owned(),
            Err(_) => "again".to_owned(),
        };
        assert_eq!(found, want, "{letters}");
    }

    #[test]
    fn most_of_those_that_answer_decide() {
        for (letters, want) in [
            ("aaa", "a"),
            ("aab", "a"),
            ("baa", "a"),
            ("aa-", "a"),
            ("a--", "a"),
            ("a", "a"),
            ("aaa--", "a"),
            ("b?aaa", "a"),
            ("ab", "again"),
            ("ab-", "again"),
            ("abc", "again"),
            ("aabb", "again"),
            ("a?", "again"),
            ("a??", "again"),
            ("---", "again"),
            ("???", "ask"),
            ("??-", "ask"),
        ] {
            check(letters, want);
        }
    }

    #[test]
    fn it_is_settled_once_no_further_answer_can_change_it() {
        let address = || {
            let host = "a".to_owned();
            RedisAddress::Tcp { host, port: 1 }
        };
        let mut votes = Votes::of(3);
        votes.cast(Ok(Some(address())));
        assert_eq!(votes.majority(), None);
        votes.cast(Ok(Some(address())));
        assert_eq!(votes.majority(), Some(address()));
    }
}

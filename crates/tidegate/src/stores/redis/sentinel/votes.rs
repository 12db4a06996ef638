//! Counts the votes of several sentinels.

use super::{RedisAddress, RedisStoreError, SentinelReply};

/// The votes received so far.
pub(super) struct Votes {
    /// The number of sentinels queried.
    total: usize,
    /// The number of sentinels that replied.
    replied: usize,
    candidates: Vec<(RedisAddress, usize)>,
    /// The error of the first sentinel that failed.
    first_error: Option<RedisStoreError>,
}

impl Votes {
    pub(super) fn of(total: usize) -> Self {
        Votes { total, replied: 0, candidates: Vec::new(), first_error: None }
    }

    /// Counts one reply: an address, or that the sentinel knows no such primary.
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
        match self.candidates.iter_mut().find(|(known, _)| *known == address) {
            Some((_, votes)) => *votes += 1,
            None => self.candidates.push((address, 1)),
        }
    }

    /// The address that no further reply can change.
    pub(super) fn majority(&self) -> Option<RedisAddress> {
        self.majority_of(self.total)
    }

    /// The address named by most of the sentinels that replied.
    pub(super) fn result(self) -> Result<RedisAddress, RedisStoreError> {
        if let Some(address) = self.majority_of(self.replied) {
            return Ok(address);
        }
        match (self.replied, self.candidates.len()) {
            (0, _) => Err(self.first_error.unwrap_or(RedisStoreError::NOT_CONNECTED)),
            (_, 0) => Err(RedisStoreError::needs_operator(
                "unknown primary",
                "",
                "write the name by which the sentinels know it after the hosts",
            )),
            _ => Err(RedisStoreError::SENTINELS_DISAGREE),
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

    /// One letter per sentinel: an address, `?` if it knows no primary, `-` if it is silent. `want` is the letter
    /// of the elected address, `operator` if an operator must act, or `retry`.
    fn check(letters: &str, want: &str) {
        let mut votes = Votes::of(letters.len());
        for vote in letters.chars() {
            votes.cast(match vote {
                '-' => Err(RedisStoreError::NOT_CONNECTED),
                '?' => Ok(None),
                letter => Ok(Some(RedisAddress::Tcp { host: letter.to_string(), port: 1 })),
            });
        }
        let found = match votes.majority().map_or_else(|| votes.result(), Ok) {
            Ok(address) => address.to_string().replace(":1", ""),
            Err(error) if error.action() == Action::NeedsOperator => "operator".to_owned(),
            Err(_) => "retry".to_owned(),
        };
        assert_eq!(found, want, "{letters}");
    }

    #[test]
    fn the_majority_of_the_sentinels_that_reply_decides() {
        for (letters, want) in [
            ("aaa", "a"),
            ("aab", "a"),
            ("baa", "a"),
            ("aa-", "a"),
            ("a--", "a"),
            ("a", "a"),
            ("aaa--", "a"),
            ("b?aaa", "a"),
            ("ab", "retry"),
            ("ab-", "retry"),
            ("abc", "retry"),
            ("aabb", "retry"),
            ("a?", "retry"),
            ("a??", "retry"),
            ("---", "retry"),
            ("???", "operator"),
            ("??-", "operator"),
        ] {
            check(letters, want);
        }
    }

    #[test]
    fn a_majority_of_all_sentinels_decides_at_once() {
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

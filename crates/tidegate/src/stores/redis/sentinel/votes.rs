//! What several sentinels say together.

use super::{Answer, Fault, Place};

/// Answers, as they come in.
pub(super) struct Votes {
    /// How many were asked.
    asked: usize,
    /// How many answered.
    answered: usize,
    places: Vec<(Place, usize)>,
    /// Why the first that did not answer did not.
    silent: Option<Fault>,
}

impl Votes {
    pub(super) fn of(asked: usize) -> Self {
        Votes {
            asked,
            answered: 0,
            places: Vec::new(),
            silent: None,
        }
    }

    /// Counts one answer: a place, or that it knows of none.
    pub(super) fn cast(&mut self, answer: Answer) {
        let place = match answer {
            Ok(place) => place,
            Err(fault) => {
                self.silent.get_or_insert(fault);
                return;
            }
        };
        self.answered += 1;
        let Some(place) = place else { return };
        match self.places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, votes)) => *votes += 1,
            None => self.places.push((place, 1)),
        }
    }

    /// The place that no further answer can change.
    pub(super) fn settled(&self) -> Option<Place> {
        self.of_more_than_half(self.asked)
    }

    /// The place that most of those that answered agree on.
    pub(super) fn counted(self) -> Result<Place, Fault> {
        if let Some(place) = self.of_more_than_half(self.answered) {
            return Ok(place);
        }
        match (self.answered, self.places.len()) {
            (0, _) => Err(self.silent.unwrap_or_else(|| Fault::not_connected(None))),
            (_, 0) => Err(Fault::of_operator(
                "unknown primary",
                "",
                "write the name by which the sentinels know it after the hosts",
            )),
            _ => Err(Fault::undecided()),
        }
    }

    fn of_more_than_half(&self, all: usize) -> Option<Place> {
        let most = self.places.iter().find(|(_, votes)| votes * 2 > all);
        most.map(|(place, _)| place.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::fault::Action;

    /// One letter per sentinel: a place, `?` for one that knows none, `-` for one that is silent.
    /// What they say together is the letter of a place, or what is to be done.
    fn check(answers: &str, want: &str) {
        let mut votes = Votes::of(answers.len());
        for answer in answers.chars() {
            votes.cast(match answer {
                '-' => Err(Fault::not_connected(None)),
                '?' => Ok(None),
                letter => Ok(Some(Place::Port {
                    host: letter.to_string(),
                    port: 1,
                })),
            });
        }
        let found = match votes.settled().map_or_else(|| votes.counted(), Ok) {
            Ok(place) => place.to_string().replace(":1", ""),
            Err(fault) if fault.action() == Action::AskOperator => "ask".to_owned(),
            Err(_) => "again".to_owned(),
        };
        assert_eq!(found, want, "{answers}");
    }

    #[test]
    fn most_of_those_that_answer_decide() {
        for (answers, want) in [
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
            check(answers, want);
        }
    }

    #[test]
    fn it_is_settled_once_no_further_answer_can_change_it() {
        let place = || {
            let host = "a".to_owned();
            Place::Port { host, port: 1 }
        };
        let mut votes = Votes::of(3);
        votes.cast(Ok(Some(place())));
        assert_eq!(votes.settled(), None);
        votes.cast(Ok(Some(place())));
        assert_eq!(votes.settled(), Some(place()));
    }
}

//! What observers are told, after the fact. They cannot change a decision.

use crate::engine::{Decision, Opening};
use crate::request::{Edge, Request};
use crate::store::{Single, Source};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A request was decided.
    Decided {
        /// What was asked.
        request: &'a Request<'a>,
        /// What was answered.
        decision: &'a Decision,
    },
    /// A key was charged under a limit that the caller brought, without a rule.
    Charged {
        /// Which door it came through.
        edge: Edge,
        /// What the counters of this kind are called.
        family: &'a str,
        /// What was answered.
        answer: &'a Single,
    },
    /// Too many requests were open for one more. Where the rule only watches, it is open all the same.
    Full {
        /// Which door it came through.
        edge: Edge,
        /// The limit.
        opening: &'a Opening<'a>,
        /// How it was decided.
        source: Source,
    },
}

/// Someone who wants to know. Called on the path of every decision: it must neither wait nor fail.
pub trait Observer: Send + Sync {
    /// Takes notice.
    fn notice(&self, event: &Event<'_>);
}

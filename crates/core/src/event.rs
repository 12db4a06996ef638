//! What observers are told, after the fact. They cannot change a decision.

use crate::engine::Decision;
use crate::request::Request;

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
}

/// Someone who wants to know. Called on the path of every decision: it must neither wait nor fail.
pub trait Observer: Send + Sync {
    /// Takes notice.
    fn notice(&self, event: &Event<'_>);
}

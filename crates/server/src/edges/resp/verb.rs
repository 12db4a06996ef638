//! The commands there are, by name.

use super::greeting::Greeting;
use super::pass::Then;
use super::reply::{self, echoed};
use super::throttle::Dialect;
use super::transaction::TransactionVerb;
use super::wire::Arguments;

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    /// Charges a key under the limit it brings.
    Throttle(Dialect),
    /// Decides by rules.
    Check,
    /// The same without charging.
    Peek,
    /// Gives back what a receipt says was charged.
    Refund,
    /// Keeps commands and runs them.
    Transaction(TransactionVerb),
    /// Anything that charges nothing.
    Greet(Greeting),
}

/// A command and what clients may want to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) verb: Verb,
    /// How many words it has with its name; at least so many if negative.
    pub(super) arity: i8,
    /// Whether the first word after its name is a key.
    pub(super) has_key: bool,
}

const fn known(name: &'static str, verb: Verb, arity: i8) -> Known {
    Known {
        name,
        has_key: matches!(verb, Verb::Throttle(_)),
        verb,
        arity,
    }
}

/// Every command, those that clients send most first.
pub(super) const VERBS: [Known; 18] = [
    known("CL.THROTTLE", Verb::Throttle(Dialect::Cell), -5),
    known("THROTTLE", Verb::Throttle(Dialect::Crab), -5),
    known("TG.CHECK", Verb::Check, -1),
    known("TG.PEEK", Verb::Peek, -1),
    known("TG.REFUND", Verb::Refund, 2),
    known("MULTI", Verb::Transaction(TransactionVerb::Multi), 1),
    known("EXEC", Verb::Transaction(TransactionVerb::Exec), 1),
    known("DISCARD", Verb::Transaction(TransactionVerb::Discard), 1),
    known("PING", Verb::Greet(Greeting::Ping), -1),
    known("HELLO", Verb::Greet(Greeting::Hello), -1),
    known("CLIENT", Verb::Greet(Greeting::Client), -2),
    known("AUTH", Verb::Greet(Greeting::Auth), -2),
    known("INFO", Verb::Greet(Greeting::Info), -1),
    known("SELECT", Verb::Greet(Greeting::Select), 2),
    known("ECHO", Verb::Greet(Greeting::Echo), 2),
    known("COMMAND", Verb::Greet(Greeting::Command), -1),
    known("RESET", Verb::Greet(Greeting::Reset), 1),
    known("QUIT", Verb::Greet(Greeting::Quit), -1),
];

impl Known {
    /// The command called `name`, in either case.
    pub(super) fn of(name: &[u8]) -> Option<&'static Self> {
        let mut known = VERBS.iter();
        known.find(|known| name.eq_ignore_ascii_case(known.name.as_bytes()))
    }

    /// Whether it may have so many words, its name included.
    pub(super) fn takes(&self, words: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        words == arity || (self.arity < 0 && words > arity)
    }
}

impl Verb {
    /// Whether it is answered before the password is shown.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Verb::Greet(greeting) if greeting.is_open())
    }

    /// Whether it is answered at once between `MULTI` and `EXEC`.
    pub(super) fn ends_or_runs(self) -> bool {
        matches!(
            self,
            Verb::Transaction(_) | Verb::Greet(Greeting::Quit | Greeting::Reset)
        )
    }
}

/// Answers a command that is none. Words of another protocol are not answered: a browser can be made to
/// send those.
pub(super) fn unknown(out: &mut Vec<u8>, arguments: &Arguments<'_>) -> Then {
    let name = &arguments[0];
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
        return Then::Close;
    }
    let name = echoed(name);
    let mut told = format!("ERR unknown command '{name}', with args beginning with: ");
    for argument in arguments[1..].iter().take(4) {
        told += &format!("'{}' ", echoed(&argument[..argument.len().min(32)]));
    }
    reply::error(out, &told);
    Then::GoOn
}

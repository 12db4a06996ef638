//! The commands there are, by name.

use super::greeting::Greeting;
use super::pass::Then;
use super::reply::{self, echoed};
use super::throttle::Dialect;
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
    /// Anything that charges nothing.
    Greet(Greeting),
}

/// Every command, those that clients send most first.
const VERBS: [(&str, Verb); Verb::COUNT] = [
    ("CL.THROTTLE", Verb::Throttle(Dialect::Cell)),
    ("THROTTLE", Verb::Throttle(Dialect::Crab)),
    ("TG.CHECK", Verb::Check),
    ("TG.PEEK", Verb::Peek),
    ("TG.REFUND", Verb::Refund),
    ("PING", Verb::Greet(Greeting::Ping)),
    ("HELLO", Verb::Greet(Greeting::Hello)),
    ("CLIENT", Verb::Greet(Greeting::Client)),
    ("AUTH", Verb::Greet(Greeting::Auth)),
    ("INFO", Verb::Greet(Greeting::Info)),
    ("SELECT", Verb::Greet(Greeting::Select)),
    ("ECHO", Verb::Greet(Greeting::Echo)),
    ("COMMAND", Verb::Greet(Greeting::Command)),
    ("RESET", Verb::Greet(Greeting::Reset)),
    ("QUIT", Verb::Greet(Greeting::Quit)),
];

impl Verb {
    /// How many there are.
    pub(super) const COUNT: usize = 15;

    /// The command called `name`, in either case.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let named = |(verb, _): &&(&str, Verb)| name.eq_ignore_ascii_case(verb.as_bytes());
        VERBS.iter().find(named).map(|(_, verb)| *verb)
    }

    /// Whether it is answered before the password is shown.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Verb::Greet(greeting) if greeting.is_open())
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

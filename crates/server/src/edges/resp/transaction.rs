//! `MULTI`, `EXEC`, `DISCARD`: commands that are kept and then decided one after another.
//!
//! Redis clients send a pipeline this way unless told otherwise. A decision cannot be rolled back, and
//! neither can a command in Redis: each has its own reply in the reply to `EXEC`. Kept true: a client
//! makes this node keep no more than [`MAX_BYTES`] and [`MAX_COMMANDS`]; beyond that, and after a command
//! that does not exist, `EXEC` runs nothing.

use super::reply;
use super::wire::Arguments;

/// The most bytes that are kept: as many as one command may have.
pub(crate) const MAX_BYTES: usize = super::wire::LONGEST;
/// The most commands that are kept. Their replies are sent as one.
pub(crate) const MAX_COMMANDS: usize = 1_000;

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const TOO_LONG: &str = "ERR the transaction has more than 1000 commands or 65536 bytes; send \
                        a pipeline without MULTI";

/// The commands of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TransactionVerb {
    Multi,
    Exec,
    Discard,
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// As they are sent, one after another.
    commands: Vec<u8>,
    count: usize,
    /// Whether one of them was rejected.
    aborted: bool,
}

/// The commands of a whole transaction.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) commands: Vec<u8>,
    pub(super) count: usize,
}

impl Transaction {
    /// Keeps a command until `EXEC`, and says so.
    pub(super) fn queue(&mut self, arguments: &Arguments<'_>, out: &mut Vec<u8>) {
        let before = self.commands.len();
        reply::array(&mut self.commands, arguments.len());
        for argument in arguments {
            reply::bulk(&mut self.commands, argument);
        }
        if self.commands.len() > MAX_BYTES || self.count == MAX_COMMANDS {
            self.commands.truncate(before);
            self.abort();
            return reply::error(out, TOO_LONG);
        }
        self.count += 1;
        reply::simple(out, "QUEUED");
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.commands.capacity()
    }

    /// Marks it as one that runs nothing.
    pub(super) fn abort(&mut self) {
        self.aborted = true;
        self.commands = Vec::new();
    }
}

/// Answers a command of this file, with the state of the connection. What `EXEC` has to run, if anything.
pub(super) fn answer(
    verb: TransactionVerb,
    open: &mut Option<Box<Transaction>>,
    out: &mut Vec<u8>,
) -> Option<Queued> {
    match (verb, open.take()) {
        (TransactionVerb::Multi, None) => {
            *open = Some(Box::default());
            reply::simple(out, "OK");
        }
        (TransactionVerb::Multi, Some(mut known)) => {
            known.abort();
            *open = Some(known);
            reply::error(out, "ERR MULTI calls can not be nested");
        }
        (TransactionVerb::Exec, None) => reply::error(out, "ERR EXEC without MULTI"),
        (TransactionVerb::Discard, None) => reply::error(out, "ERR DISCARD without MULTI"),
        (TransactionVerb::Discard, Some(_)) => reply::simple(out, "OK"),
        (TransactionVerb::Exec, Some(known)) if known.aborted => reply::error(out, ABORTED),
        (TransactionVerb::Exec, Some(known)) => {
            let Transaction {
                commands, count, ..
            } = *known;
            reply::array(out, count);
            return Some(Queued { commands, count });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::wire::{Front, front};
    use super::*;

    fn words(line: &str) -> Arguments<'static> {
        let words = line.split(' ').map(|word| word.as_bytes().to_vec());
        words.map(Cow::Owned).collect()
    }

    fn line(arguments: &Arguments<'_>) -> String {
        let words = arguments.iter().map(|word| String::from_utf8_lossy(word));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_kept_is_read_back_as_it_came() {
        let (mut open, mut out) = (None, Vec::new());
        answer(TransactionVerb::Multi, &mut open, &mut out);
        for line in ["CL.THROTTLE k 1 1 60", "PING"] {
            open.as_mut().unwrap().queue(&words(line), &mut out);
        }
        let queued = answer(TransactionVerb::Exec, &mut open, &mut out).unwrap();
        assert_eq!(out, b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
        let mut arguments = Arguments::new();
        let Ok(Front::Command(length)) = front(&queued.commands, &mut arguments) else {
            panic!("a command");
        };
        assert_eq!(line(&arguments), "CL.THROTTLE k 1 1 60");
        let mut arguments = Arguments::new();
        let rest = front(&queued.commands[length..], &mut arguments);
        assert!(matches!(rest, Ok(Front::Command(_))));
        assert_eq!(line(&arguments), "PING");
        assert!(open.is_none());
    }

    #[test]
    fn a_client_makes_nobody_keep_more_than_the_bound() {
        let long = format!("ECHO {}", "x".repeat(1_000));
        for (line, fit) in [("PING", MAX_COMMANDS), (&*long, 64)] {
            let (mut open, mut out) = (Some(Box::<Transaction>::default()), Vec::new());
            for _ in 0..fit {
                open.as_mut().unwrap().queue(&words(line), &mut out);
            }
            assert!(!open.as_ref().unwrap().aborted);
            open.as_mut().unwrap().queue(&words(line), &mut out);
            assert!(open.as_ref().unwrap().commands.is_empty());
            out.clear();
            assert!(answer(TransactionVerb::Exec, &mut open, &mut out).is_none());
            assert_eq!(out, format!("-{ABORTED}\r\n").as_bytes());
        }
    }

    #[test]
    fn without_multi_there_is_nothing_to_run_and_it_does_not_nest() {
        let (mut open, mut out) = (None, Vec::new());
        for verb in [TransactionVerb::Exec, TransactionVerb::Discard] {
            assert!(answer(verb, &mut open, &mut out).is_none());
        }
        let want = "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n";
        assert_eq!(out, want.as_bytes());
        out.clear();
        for verb in [TransactionVerb::Multi, TransactionVerb::Multi] {
            answer(verb, &mut open, &mut out);
        }
        assert!(answer(TransactionVerb::Exec, &mut open, &mut out).is_none());
        let want = format!("+OK\r\n-ERR MULTI calls can not be nested\r\n-{ABORTED}\r\n");
        assert_eq!(out, want.as_bytes());
        out.clear();
        for verb in [TransactionVerb::Multi, TransactionVerb::Discard] {
            answer(verb, &mut open, &mut out);
        }
        assert_eq!(out, b"+OK\r\n+OK\r\n");
    }
}

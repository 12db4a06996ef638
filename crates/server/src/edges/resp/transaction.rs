//! `MULTI`, `EXEC`, `DISCARD`: commands that are queued and then decided one after another.
//!
//! Redis clients send a pipeline this way by default. A decision cannot be rolled back, and neither can a command in
//! Redis: each has its own reply in the reply to `EXEC`. Invariant: the queue of a client takes no more than
//! [`MAX_BYTES`] and [`MAX_COMMANDS`]. Beyond that, and after an unknown command, `EXEC` runs nothing.

use super::reply;
use super::wire::Arguments;

/// Maximum size of the queue: as much as one command.
pub(crate) const MAX_BYTES: usize = super::wire::MAX_COMMAND_BYTES;
/// Maximum number of queued commands. Their replies are sent as one.
pub(crate) const MAX_COMMANDS: usize = 1_000;

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const TOO_LONG: &str = "ERR the transaction has more than 1000 commands or 65536 bytes; send \
                        a pipeline without MULTI";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TransactionCommand {
    Multi,
    Exec,
    Discard,
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The encoded commands, one after another.
    pub(super) commands: Vec<u8>,
    pub(super) count: usize,
    /// Whether one of them was rejected.
    aborted: bool,
}

impl Transaction {
    /// Queues a command until `EXEC`, and replies `QUEUED`.
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

    /// The memory of the queue.
    pub(super) fn bytes(&self) -> usize {
        self.commands.capacity()
    }

    /// Makes `EXEC` run nothing.
    pub(super) fn abort(&mut self) {
        self.aborted = true;
        self.commands = Vec::new();
    }
}

/// Runs a command of this module with the state of the connection. Returns the transaction that `EXEC` has to run, if
/// any.
pub(super) fn execute(
    command: TransactionCommand,
    open: &mut Option<Box<Transaction>>,
    out: &mut Vec<u8>,
) -> Option<Box<Transaction>> {
    match (command, open.take()) {
        (TransactionCommand::Multi, None) => {
            *open = Some(Box::default());
            reply::simple(out, "OK");
        }
        (TransactionCommand::Multi, Some(mut transaction)) => {
            transaction.abort();
            *open = Some(transaction);
            reply::error(out, "ERR MULTI calls can not be nested");
        }
        (TransactionCommand::Exec, None) => reply::error(out, "ERR EXEC without MULTI"),
        (TransactionCommand::Discard, None) => reply::error(out, "ERR DISCARD without MULTI"),
        (TransactionCommand::Discard, Some(_)) => reply::simple(out, "OK"),
        (TransactionCommand::Exec, Some(transaction)) if transaction.aborted => reply::error(out, ABORTED),
        (TransactionCommand::Exec, Some(transaction)) => {
            reply::array(out, transaction.count);
            return Some(transaction);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::wire::{ParsedCommand, parse_command};
    use super::*;

    fn parse_words(line: &str) -> Arguments<'static> {
        let words = line.split(' ').map(|word| word.as_bytes().to_vec());
        words.map(Cow::Owned).collect()
    }

    fn join_words(arguments: &Arguments<'_>) -> String {
        let words = arguments.iter().map(|word| String::from_utf8_lossy(word));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn queued_commands_read_back_unchanged() {
        let (mut open, mut out) = (None, Vec::new());
        execute(TransactionCommand::Multi, &mut open, &mut out);
        for line in ["CL.THROTTLE k 1 1 60", "PING"] {
            open.as_mut().unwrap().queue(&parse_words(line), &mut out);
        }
        let queued = execute(TransactionCommand::Exec, &mut open, &mut out).unwrap();
        assert_eq!(out, b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
        let mut arguments = Arguments::new();
        let Ok(ParsedCommand::Complete(length)) = parse_command(&queued.commands, &mut arguments) else {
            panic!("a command is expected");
        };
        assert_eq!(join_words(&arguments), "CL.THROTTLE k 1 1 60");
        let mut arguments = Arguments::new();
        let rest = parse_command(&queued.commands[length..], &mut arguments);
        assert!(matches!(rest, Ok(ParsedCommand::Complete(_))));
        assert_eq!(join_words(&arguments), "PING");
        assert!(open.is_none());
    }

    #[test]
    fn the_queue_is_bounded() {
        let long = format!("ECHO {}", "x".repeat(1_000));
        for (line, fit) in [("PING", MAX_COMMANDS), (&*long, 64)] {
            let (mut open, mut out) = (Some(Box::<Transaction>::default()), Vec::new());
            for _ in 0..fit {
                open.as_mut().unwrap().queue(&parse_words(line), &mut out);
            }
            assert!(!open.as_ref().unwrap().aborted);
            open.as_mut().unwrap().queue(&parse_words(line), &mut out);
            assert!(open.as_ref().unwrap().commands.is_empty());
            out.clear();
            assert!(execute(TransactionCommand::Exec, &mut open, &mut out).is_none());
            assert_eq!(out, format!("-{ABORTED}\r\n").as_bytes());
        }
    }

    #[test]
    fn exec_needs_multi_and_multi_does_not_nest() {
        let (mut open, mut out) = (None, Vec::new());
        for command in [TransactionCommand::Exec, TransactionCommand::Discard] {
            assert!(execute(command, &mut open, &mut out).is_none());
        }
        let want = "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n";
        assert_eq!(out, want.as_bytes());
        out.clear();
        for command in [TransactionCommand::Multi, TransactionCommand::Multi] {
            execute(command, &mut open, &mut out);
        }
        assert!(execute(TransactionCommand::Exec, &mut open, &mut out).is_none());
        let want = format!("+OK\r\n-ERR MULTI calls can not be nested\r\n-{ABORTED}\r\n");
        assert_eq!(out, want.as_bytes());
        out.clear();
        for command in [TransactionCommand::Multi, TransactionCommand::Discard] {
            execute(command, &mut open, &mut out);
        }
        assert_eq!(out, b"+OK\r\n+OK\r\n");
    }
}

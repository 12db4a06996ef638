//! The table of commands, and the replies to `COMMAND` and `COMMAND INFO`: the properties of a command that clients
//! query before they send it, such as the position of its key.

use super::connection_commands::ConnectionCommand;
use super::pipeline::NextStep;
use super::reply::{self, Protocol, echo};
use super::throttle::ThrottleDialect;
use super::transaction::TransactionCommand;
use super::wire::Arguments;

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RespCommand {
    /// Charges a key under the limit in the command.
    Throttle(ThrottleDialect),
    /// Decides by rules.
    Check,
    /// Decides by rules without charging.
    Peek,
    /// Refunds the charges of a receipt.
    Refund,
    /// Queues commands and runs them.
    Transaction(TransactionCommand),
    /// Any command that charges nothing.
    Connection(ConnectionCommand),
}

/// A command and the properties that clients query.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandSpec {
    pub(super) name: &'static str,
    pub(super) command: RespCommand,
    /// The number of words including its name. Negative: the minimum.
    pub(super) arity: i8,
    /// Whether the first word after its name is a key.
    pub(super) has_key: bool,
}

const fn spec(name: &'static str, command: RespCommand, arity: i8) -> CommandSpec {
    CommandSpec { name, has_key: matches!(command, RespCommand::Throttle(_)), command, arity }
}

/// All commands, the most frequent ones first.
pub(super) const COMMANDS: [CommandSpec; 18] = [
    spec("CL.THROTTLE", RespCommand::Throttle(ThrottleDialect::RedisCell), -5),
    spec("THROTTLE", RespCommand::Throttle(ThrottleDialect::Throttlecrab), -5),
    spec("TG.CHECK", RespCommand::Check, -1),
    spec("TG.PEEK", RespCommand::Peek, -1),
    spec("TG.REFUND", RespCommand::Refund, 2),
    spec("MULTI", RespCommand::Transaction(TransactionCommand::Multi), 1),
    spec("EXEC", RespCommand::Transaction(TransactionCommand::Exec), 1),
    spec("DISCARD", RespCommand::Transaction(TransactionCommand::Discard), 1),
    spec("PING", RespCommand::Connection(ConnectionCommand::Ping), -1),
    spec("HELLO", RespCommand::Connection(ConnectionCommand::Hello), -1),
    spec("CLIENT", RespCommand::Connection(ConnectionCommand::Client), -2),
    spec("AUTH", RespCommand::Connection(ConnectionCommand::Auth), -2),
    spec("INFO", RespCommand::Connection(ConnectionCommand::Info), -1),
    spec("SELECT", RespCommand::Connection(ConnectionCommand::Select), 2),
    spec("ECHO", RespCommand::Connection(ConnectionCommand::Echo), 2),
    spec("COMMAND", RespCommand::Connection(ConnectionCommand::Command), -1),
    spec("RESET", RespCommand::Connection(ConnectionCommand::Reset), 1),
    spec("QUIT", RespCommand::Connection(ConnectionCommand::Quit), -1),
];

impl CommandSpec {
    /// The command called `name`, in either case.
    pub(super) fn of(name: &[u8]) -> Option<&'static Self> {
        let mut specs = COMMANDS.iter();
        specs.find(|known| name.eq_ignore_ascii_case(known.name.as_bytes()))
    }

    /// Whether the command accepts `words` words, its name included.
    pub(super) fn accepts_arity(&self, words: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        words == arity || (self.arity < 0 && words > arity)
    }
}

impl RespCommand {
    /// Whether it runs before authentication.
    pub(super) fn allowed_unauthenticated(self) -> bool {
        matches!(self, RespCommand::Connection(command) if command.allowed_unauthenticated())
    }

    /// Whether it runs at once between `MULTI` and `EXEC`.
    pub(super) fn runs_in_transaction(self) -> bool {
        matches!(
            self,
            RespCommand::Transaction(_) | RespCommand::Connection(ConnectionCommand::Quit | ConnectionCommand::Reset)
        )
    }
}

/// Replies to an unknown command. Words of HTTP get no reply: a browser can be made to send those.
pub(super) fn reply_unknown_command(out: &mut Vec<u8>, arguments: &Arguments<'_>) -> NextStep {
    let name = &arguments[0];
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
        return NextStep::Close;
    }
    let name = echo(name);
    let mut message = format!("ERR unknown command '{name}', with args beginning with: ");
    for argument in arguments[1..].iter().take(4) {
        message += &format!("'{}' ", echo(&argument[..argument.len().min(32)]));
    }
    reply::error(out, &message);
    NextStep::Continue
}

/// The fields that Redis returns for a command since version 7.
const INFO_FIELDS: usize = 10;

pub(super) fn write_all_info(out: &mut Vec<u8>) {
    reply::array(out, COMMANDS.len());
    COMMANDS.iter().for_each(|spec| write_info(spec, out));
}

/// Writes the properties of the command called `name`, or a null.
pub(super) fn write_info_of(name: &[u8], protocol: Protocol, out: &mut Vec<u8>) {
    match CommandSpec::of(name) {
        Some(spec) => write_info(spec, out),
        None => reply::null(out, protocol),
    }
}

fn write_info(spec: &CommandSpec, out: &mut Vec<u8>) {
    reply::array(out, INFO_FIELDS);
    reply::bulk(out, spec.name.to_ascii_lowercase().as_bytes());
    reply::integer(out, spec.arity.into());
    let flags: &[&str] = if spec.has_key { &["write"] } else { &["fast"] };
    reply::array(out, flags.len());
    for flag in flags {
        reply::simple(out, flag);
    }
    // The first key, the last and the step between them.
    for _ in 0..3 {
        reply::integer(out, spec.has_key.into());
    }
    // Access categories, tips, key specifications and subcommands. There are none.
    for _ in 6..INFO_FIELDS {
        reply::array(out, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_has_one_key_and_writes() {
        let mut out = Vec::new();
        write_info_of(b"CL.Throttle", Protocol::Resp2, &mut out);
        let want = "*10\r\n$11\r\ncl.throttle\r\n:-5\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut out = Vec::new();
        write_info_of(b"ping", Protocol::Resp2, &mut out);
        assert!(out.starts_with(b"*10\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0\r\n"));
        let mut out = Vec::new();
        write_info_of(b"GET", Protocol::Resp3, &mut out);
        assert_eq!(out, b"_\r\n");
    }
}

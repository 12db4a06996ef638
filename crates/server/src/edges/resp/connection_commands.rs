//! The commands that set up, probe and end a connection.
//!
//! The replies are those of a Redis without databases, scripts and replicas, because clients probe for that. Texts are
//! those of Redis, because clients parse them.

use super::commands::{COMMANDS, write_all_info, write_info_of};
use super::password::RespPassword;
use super::password_guesses::MAX_PER_CONNECTION;
use super::pipeline::NextStep;
use super::reply::{self, Protocol, echo};
use super::session::Session;
use super::wire::Arguments;

/// The announced version: new enough that clients speak RESP3 and send their names, old enough that they expect no
/// missing feature.
const VERSION: &str = "7.2.0";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the \
                           default user. Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, \
                           otherwise the HELLO AUTH <user> <pass> option can be used to authenticate \
                           the client and select the RESP protocol version at the same time";
/// Maximum length of the name of a client, in bytes.
const MAX_NAME_BYTES: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionCommand {
    Auth,
    Client,
    Command,
    Echo,
    Hello,
    Info,
    Ping,
    Quit,
    Reset,
    Select,
}

impl ConnectionCommand {
    /// Whether it runs before authentication.
    pub(super) fn allowed_unauthenticated(self) -> bool {
        matches!(
            self,
            ConnectionCommand::Auth | ConnectionCommand::Hello | ConnectionCommand::Quit | ConnectionCommand::Reset
        )
    }

    /// Runs the command, whose number of words is in the table, and writes its reply.
    pub(super) fn execute(
        self,
        arguments: &Arguments<'_>,
        session: &mut Session,
        password: Option<&RespPassword>,
        out: &mut Vec<u8>,
    ) -> NextStep {
        let rest = &arguments[1..];
        match self {
            // The table has no maximum.
            ConnectionCommand::Ping if rest.len() > 1 => reply_wrong_arity(out, "ping"),
            ConnectionCommand::Ping if rest.is_empty() => reply::simple(out, "PONG"),
            ConnectionCommand::Ping | ConnectionCommand::Echo => reply::bulk(out, &rest[0]),
            ConnectionCommand::Select => select(&rest[0], out),
            ConnectionCommand::Info => info(&arguments[1..], out),
            ConnectionCommand::Command => command(arguments, session, out),
            ConnectionCommand::Client => client(arguments, session, out),
            ConnectionCommand::Auth => auth(arguments, session, password, out),
            ConnectionCommand::Hello => hello(arguments, session, password, out),
            ConnectionCommand::Reset => {
                let wrong_passwords = session.wrong_passwords;
                *session = Session::new(session.id, password.is_some());
                session.wrong_passwords = wrong_passwords;
                reply::simple(out, "RESET");
            }
            ConnectionCommand::Quit => {
                reply::simple(out, "OK");
                return NextStep::Close;
            }
        }
        if session.wrong_passwords >= MAX_PER_CONNECTION {
            return NextStep::Close;
        }
        NextStep::Continue
    }
}

/// Replies to a command with too many arguments or too few.
pub(super) fn reply_wrong_arity(out: &mut Vec<u8>, command: &str) {
    let message = format!("ERR wrong number of arguments for '{command}' command");
    reply::error(out, &message);
}

fn equals_ignore_case(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn select(database: &[u8], out: &mut Vec<u8>) {
    let number = std::str::from_utf8(database).ok();
    match number.and_then(|number| number.parse::<i64>().ok()) {
        Some(0) => reply::simple(out, "OK"),
        Some(_) => reply::error(out, "ERR DB index is out of range"),
        None => reply::error(out, "ERR value is not an integer or out of range"),
    }
}

/// The sections that clients read.
fn info(sections: &[std::borrow::Cow<'_, [u8]>], out: &mut Vec<u8>) {
    let all = ["all", "default", "everything"];
    let wants = |section: &str| {
        let named =
            |word: &[u8]| equals_ignore_case(word, section) || all.iter().any(|all| equals_ignore_case(word, all));
        sections.is_empty() || sections.iter().any(|word| named(word))
    };
    let version = env!("CARGO_PKG_VERSION");
    let server = format!("redis_version:{VERSION}\r\nredis_mode:standalone\r\ntidegate_version:{version}\r\n");
    let facts = [
        ("Server", &*server),
        ("Persistence", "loading:0\r\n"),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n"),
        ("Cluster", "cluster_enabled:0\r\n"),
    ];
    let wanted = facts.iter().filter(|(section, _)| wants(section));
    let rendered: Vec<_> = wanted.map(|(s, facts)| format!("# {s}\r\n{facts}")).collect();
    reply::bulk(out, rendered.join("\r\n").as_bytes());
}

fn command(arguments: &Arguments<'_>, session: &Session, out: &mut Vec<u8>) {
    match arguments.get(1) {
        None => write_all_info(out),
        // Hints for users at a prompt. Programs do not need them.
        Some(word) if equals_ignore_case(word, "DOCS") => reply::map(out, session.protocol, 0),
        Some(word) if equals_ignore_case(word, "COUNT") => {
            reply::integer(out, reply::saturating_i64(COMMANDS.len() as u64))
        }
        Some(word) if equals_ignore_case(word, "INFO") && arguments.len() == 2 => write_all_info(out),
        Some(word) if equals_ignore_case(word, "INFO") => {
            reply::array(out, arguments.len() - 2);
            for name in &arguments[2..] {
                write_info_of(name, session.protocol, out);
            }
        }
        Some(word) => reply_unknown_subcommand(out, word, "COMMAND"),
    }
}

fn reply_unknown_subcommand(out: &mut Vec<u8>, word: &[u8], command: &str) {
    let word = echo(word);
    let message = format!("ERR unknown subcommand '{word}'. Try {command} HELP.");
    reply::error(out, &message);
}

fn client(arguments: &Arguments<'_>, session: &mut Session, out: &mut Vec<u8>) {
    let word = &arguments[1];
    let has_arguments = |count: usize| arguments.len() == 2 + count;
    let known = [("SETINFO", 2), ("SETNAME", 1), ("GETNAME", 0), ("ID", 0)];
    let Some((name, count)) = known.iter().find(|(name, _)| equals_ignore_case(word, name)) else {
        return reply_unknown_subcommand(out, word, "CLIENT");
    };
    if !has_arguments(*count) {
        return reply_wrong_arity(out, &format!("client|{}", name.to_ascii_lowercase()));
    }
    match *name {
        "SETNAME" => match set_name(&arguments[2], session) {
            Ok(()) => reply::simple(out, "OK"),
            Err(message) => reply::error(out, message),
        },
        "GETNAME" => match &session.name {
            Some(name) => reply::bulk(out, name),
            None => reply::null(out, session.protocol),
        },
        "ID" => reply::integer(out, reply::saturating_i64(session.id)),
        // The library of a client is not stored, but the command must succeed.
        _ if equals_ignore_case(&arguments[2], "LIB-NAME") || equals_ignore_case(&arguments[2], "LIB-VER") => {
            reply::simple(out, "OK");
        }
        _ => {
            let message = format!("ERR Unrecognized option '{}'", echo(&arguments[2]));
            reply::error(out, &message);
        }
    }
}

fn set_name(name: &[u8], session: &mut Session) -> Result<(), &'static str> {
    if name.len() > MAX_NAME_BYTES {
        return Err("ERR Client names have at most 256 bytes");
    }
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.");
    }
    session.name = (!name.is_empty()).then(|| name.into());
    Ok(())
}

fn auth(arguments: &Arguments<'_>, session: &mut Session, password: Option<&RespPassword>, out: &mut Vec<u8>) {
    let (user, given) = match &arguments[1..] {
        [given] if password.is_some() => (&b"default"[..], given),
        [_] => return reply::error(out, NO_PASSWORD),
        [user, given] => (&**user, given),
        _ => return reply::error(out, "ERR syntax error"),
    };
    if authenticate(user, given, session, password) {
        reply::simple(out, "OK")
    } else {
        reply::error(out, WRONG_PASSWORD)
    }
}

/// Authenticates a client by the password. There is one user, as in a Redis with a password.
fn authenticate(user: &[u8], given: &[u8], session: &mut Session, password: Option<&RespPassword>) -> bool {
    let authenticated = password.is_none_or(|password| password.matches(given)) && user == b"default";
    session.authenticated |= authenticated;
    session.wrong_passwords += u32::from(!authenticated);
    authenticated
}

fn hello(arguments: &Arguments<'_>, session: &mut Session, password: Option<&RespPassword>, out: &mut Vec<u8>) {
    let protocol = match arguments.get(1).map(|version| &**version) {
        None => session.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(other) if !other.is_empty() && other.iter().all(u8::is_ascii_digit) => {
            return reply::error(out, "NOPROTO unsupported protocol version");
        }
        Some(_) => {
            let message = "ERR Protocol version is not an integer or out of range";
            return reply::error(out, message);
        }
    };
    let mut name = None;
    let mut rest = arguments.get(2..).unwrap_or_default();
    while let Some(option) = rest.first() {
        rest = match rest {
            [_, user, given, after @ ..] if equals_ignore_case(option, "AUTH") => {
                if !authenticate(user, given, session, password) {
                    return reply::error(out, WRONG_PASSWORD);
                }
                after
            }
            [_, called, after @ ..] if equals_ignore_case(option, "SETNAME") => {
                name = Some(called);
                after
            }
            _ => {
                let message = format!("ERR Syntax error in HELLO option '{}'", echo(option));
                return reply::error(out, &message);
            }
        };
    }
    if !session.authenticated {
        return reply::error(out, HELLO_NEEDS_AUTH);
    }
    if let Some(name) = name
        && let Err(message) = set_name(name, session)
    {
        return reply::error(out, message);
    }
    session.protocol = protocol;
    write_hello(session, out);
}

fn write_hello(session: &Session, out: &mut Vec<u8>) {
    reply::map(out, session.protocol, 7);
    let version = match session.protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let text = |out: &mut Vec<u8>, name: &str, text: &str| {
        reply::bulk(out, name.as_bytes());
        reply::bulk(out, text.as_bytes());
    };
    text(out, "server", "redis");
    text(out, "version", VERSION);
    reply::bulk(out, b"proto");
    reply::integer(out, version);
    reply::bulk(out, b"id");
    reply::integer(out, reply::saturating_i64(session.id));
    text(out, "mode", "standalone");
    text(out, "role", "master");
    reply::bulk(out, b"modules");
    reply::array(out, 0);
}

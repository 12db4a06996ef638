//! The protocol of Redis clients: `CL.THROTTLE`, `THROTTLE`, `TG.CHECK` and what clients say first.
//!
//! `wire` turns bytes into commands and `reply` answers into bytes; `throttle` reads the commands that
//! bring their limit, `check` those that are decided by rules, `connection_commands` all the others, and `commands` tells
//! them apart; `command_info` describes them, and `transaction` keeps those between `MULTI` and `EXEC`. `pipeline` decides what has arrived, `buffers` lends it room, `serve` reads and writes. There
//! is no way from here to a Redis behind: a command that is not one of these is unknown. An error is an
//! answer like any other, in the words of the service that a command comes from, so each is written beside
//! its command, and what breaks the protocol itself in `wire`.
//!
//! | what | bound | then |
//! |---|---|---|
//! | arguments of a command | [`wire::MAX_ARGUMENTS`] | error, closed |
//! | bytes of a command, of an argument, of an inline line | [`wire::MAX_COMMAND_BYTES`] | error, closed |
//! | bytes read before they are answered | [`buffers::INPUT_BYTES`], or one command | the rest waits |
//! | wrong passwords of a connection | [`password_guesses::MAX_PER_CONNECTION`] | error, closed |
//! | guesses of a peer | one connection each [`password_guesses::DELAY`] | its commands wait |
//! | commands between `MULTI` and `EXEC` | 1,000, and [`wire::MAX_COMMAND_BYTES`] bytes | error, `EXEC` runs nothing |
//! | answers before they are sent | [`buffers::OUTPUT_BYTES`] and one answer | nothing is read until they are |

pub(crate) mod buffers;
mod check;
mod command_info;
mod commands;
mod connection_commands;
mod limit_cache;
mod password;
pub(crate) mod password_guesses;
mod pipeline;
mod reply;
pub(crate) mod serve;
mod session;
mod throttle;
pub(crate) mod transaction;
pub(crate) mod wire;

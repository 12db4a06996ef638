//! The Redis protocol: `CL.THROTTLE`, `THROTTLE`, `TG.CHECK`, and the commands that clients send first.
//!
//! `wire` parses commands and `reply` writes replies. `throttle` parses the commands that carry their limit, `check`
//! those that are decided by rules, `connection_commands` all others, and `commands` is the table of them.
//! `transaction` queues those between `MULTI` and `EXEC`. `pipeline` decides the
//! input, `buffers` lends memory, `serve` reads and writes. Commands never reach a Redis behind this edge: a command
//! that is not one of these is unknown. An error is a reply like any other, in the words of the service that a command
//! comes from. So each error text is beside its command, and protocol errors are in `wire`.
//!
//! | resource | bound | beyond it |
//! |---|---|---|
//! | arguments of a command | [`wire::MAX_ARGUMENTS`] | error, closed |
//! | bytes of a command, of an argument, of an inline line | [`wire::MAX_COMMAND_BYTES`] | error, closed |
//! | input before it is decided | [`buffers::INPUT_BYTES`], or one command | the rest waits |
//! | wrong passwords of a connection | [`password_guesses::MAX_PER_CONNECTION`] | error, closed |
//! | guesses of a peer | [`password_guesses::MAX_PER_CONNECTION`] per connection and [`password_guesses::DELAY`] | its commands wait |
//! | commands between `MULTI` and `EXEC` | 1,000, and [`wire::MAX_COMMAND_BYTES`] bytes | error, `EXEC` runs nothing |
//! | replies before they are sent | [`buffers::OUTPUT_BYTES`] and one reply | nothing is read until they are sent |

pub(crate) mod buffers;
mod check;
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

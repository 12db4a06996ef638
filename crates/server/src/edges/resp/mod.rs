//! The protocol of Redis clients: `CL.THROTTLE`, `THROTTLE`, `TG.CHECK` and what clients say first.
//!
//! `wire` turns bytes into commands and `reply` answers into bytes; `throttle` reads the commands that
//! bring their limit, `ask` those that are decided by rules, `greeting` all the others, and `verb` tells
//! them apart; `catalog` describes them, and `transaction` keeps those between `MULTI` and `EXEC`. `pass` decides what has arrived, `buffers` lends it room, `serve` reads and writes. There
//! is no way from here to a Redis behind: a command that is not one of these is unknown. An error is an
//! answer like any other, in the words of the service that a command comes from, so each is written beside
//! its command, and what breaks the protocol itself in `wire`.
//!
//! | what | bound | then |
//! |---|---|---|
//! | arguments of a command | [`wire::MOST_ARGUMENTS`] | error, closed |
//! | bytes of a command, of an argument, of an inline line | [`wire::LONGEST`] | error, closed |
//! | bytes read before they are answered | [`buffers::ROOM`], or one command | the rest waits |
//! | wrong passwords of a connection | [`guesses::MAX_PER_CONNECTION`] | error, closed |
//! | guesses of a peer | one connection each [`guesses::DELAY`] | its commands wait |
//! | commands between `MULTI` and `EXEC` | 1,000, and [`wire::LONGEST`] bytes | error, `EXEC` runs nothing |
//! | answers before they are sent | [`buffers::BACKLOG`] and one answer | nothing is read until they are |

mod ask;
pub(crate) mod buffers;
mod catalog;
mod greeting;
pub(crate) mod guesses;
mod pass;
mod password;
mod reply;
pub(crate) mod serve;
mod session;
mod tariffs;
mod throttle;
pub(crate) mod transaction;
mod verb;
pub(crate) mod wire;

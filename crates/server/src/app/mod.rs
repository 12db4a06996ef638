//! The running service: how it starts, which listeners it has, what it does besides requests, and how it shuts down.

mod listeners;
pub(crate) mod public_listener;
pub(crate) mod shutdown;
pub(crate) mod start;
mod warnings;

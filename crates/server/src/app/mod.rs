//! The running service: whether it is ready, and how it shuts down.

pub(crate) mod readiness;
pub(crate) mod shutdown;

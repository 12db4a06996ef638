//! Tidegate as a library: the limiter, its stores, live rules and identity.

pub mod identity;
pub mod live;
pub mod observe;

//! Tidegate as a library: the limiter, its stores, live rules and identity.

pub mod clock;
pub mod identity;
pub mod live;
pub mod observe;
pub mod stores;

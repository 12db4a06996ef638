//! The rules: read, checked, indexed, matched, explained.

mod model;

pub use model::{Alternatives, By, IfMissing, Mode, OnStoreFailure, Rule};

//! An empty crate. It has `redis-cell` in the lock file, so that `cargo build -p redis-cell` builds the
//! module that the server loads.

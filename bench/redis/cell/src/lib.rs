//! Nothing by itself: it has `redis-cell` in the lock file, so that `cargo build -p redis-cell` makes the
//! module that the server loads.

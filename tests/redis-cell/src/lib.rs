//! An empty crate. It has `redis-cell` in its lock file, so that `scripts/tools` can build the module.

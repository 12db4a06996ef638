//! Nothing by itself: it has `redis-cell` in a lock file, so that `scripts/tools` can build the module.

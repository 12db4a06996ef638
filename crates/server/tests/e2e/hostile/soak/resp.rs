//! The ways in which a connection of a Redis client can end.

use super::{AttackFn, SlowPeer, closed, left, left_half};

pub(super) const ATTACKS: [AttackFn; 9] = [
    // The server closes.
    |target| closed(target, b"*99999999999999999999\r\n"),
    |target| closed(target, b"*1\r\n$536870912\r\n"),
    |target| closed(target, b"PING\r\nQUIT\r\nPING\r\n"),
    |target| closed(target, &[b'a'; 100_000]),
    // The client leaves.
    |target| left(target, b"*2\r\n$4\r\nECHO\r\n$60000\r\nhalf"),
    |target| left(target, &b"INFO\r\n".repeat(5_000)),
    |target| left(target, &b"CL.THROTTLE user 15 30 60\r\n".repeat(5_000)),
    |target| left_half(target, b"*2\r\n$4\r\nECHO\r\n$60000\r\nhalf"),
    |target| left_half(target, &b"CL.THROTTLE user 15 30 60\r\n".repeat(500)),
];

pub(super) const SLOW: [SlowPeer; 3] = [
    SlowPeer { first: b"", then: b"" },
    SlowPeer { first: b"*2\r\n$4\r\nECHO\r\n$60000\r\n", then: b"x" },
    SlowPeer { first: b"PING\r\n", then: b"" },
];

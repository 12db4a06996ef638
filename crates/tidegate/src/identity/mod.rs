//! The identity of a client: the address and the API key a limit counts by.
//!
//! Everything here is a pure function of the edge's input (socket peer, header values, key text) and of the
//! operator's configuration (trusted proxies, prefix length, keys file). Invariant: one client has one key, no client
//! chooses its own address unless a trusted proxy vouches for it, and no raw API key is stored or printed. Knows
//! nothing of rules, stores or any protocol's request type.

pub mod forwarded;
pub mod ip;
pub mod keys;
mod rfc7239;
mod trusted;

pub use forwarded::ForwardedClient;
pub use ip::{ClientIp, IpNormalizer};
pub use keys::{Digest, KeyTable};
pub use trusted::{TrustedProxies, TrustedProxyError};

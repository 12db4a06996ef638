//! Who sent this request: the address and the API key a limit counts by.
//!
//! Everything here is a pure function of what the edge saw (socket peer, header values, key text)
//! and of what the operator wrote (trusted proxies, prefix length, keys file). It keeps true that
//! one client has one key, that nobody chooses their own address unless a trusted proxy vouches
//! for it, and that no raw API key is stored or printed. It knows nothing of rules, stores or any
//! protocol's request type.

pub mod forwarded;
pub mod ip;
pub mod keys;
mod rfc7239;
mod trusted;

pub use forwarded::ForwardedClient;
pub use ip::{ClientIp, IpNormalizer};
pub use keys::{Digest, KeyTable};
pub use trusted::{TrustedProxies, TrustedProxyError};

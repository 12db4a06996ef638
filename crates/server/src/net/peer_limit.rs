//! Shares the connections of a listener among its peers, so that a few peers cannot use them all.
//!
//! A peer is an IPv4 address or a /64 of IPv6, because the holder of one address there has all of them. Trusted peers
//! (loopback, unix sockets, trusted proxies) are not counted here. They send requests of many clients, and a part of
//! the listener's connections is reserved for them. The table is bounded by the number of connections: a peer without
//! one is not in it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::identity::{ClientIp, IpNormalizer};

/// Maximum connections of peers that are not trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerCaps {
    /// Of all such peers together.
    pub(crate) all: usize,
    /// Of each such peer.
    pub(crate) each: usize,
}

impl PeerCaps {
    /// Maximum number of connections reserved for trusted peers.
    const MAX_RESERVED: usize = 256;

    /// Divides the `connections` of a listener. An eighth is reserved for trusted peers. One peer may have a quarter of
    /// the rest, or `each` as configured, but never more than half.
    pub(crate) fn of(connections: usize, each: Option<usize>) -> Self {
        let all = connections - (connections / 8).min(Self::MAX_RESERVED);
        let each = each.unwrap_or(all / 4).min(all / 2).max(1);
        PeerCaps { all, each }
    }
}

/// The connections of all peers.
pub(crate) struct PeerLimit {
    caps: PeerCaps,
    open: Mutex<OpenByPeer>,
}

#[derive(Default)]
struct OpenByPeer {
    all: usize,
    each: HashMap<ClientIp, usize>,
}

/// Permits one connection of a peer, until it is dropped.
pub(crate) struct PeerPermit {
    limit: Arc<PeerLimit>,
    peer: ClientIp,
}

/// The cap that a connection exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExceededCap {
    /// The cap of its peer.
    Peer,
    /// The cap of all peers that are not trusted.
    Listener,
}

impl PeerLimit {
    pub(crate) fn new(caps: PeerCaps) -> Arc<Self> {
        Arc::new(PeerLimit { caps, open: Mutex::default() })
    }

    /// A permit for one more connection of `address`.
    pub(crate) fn acquire(self: &Arc<Self>, address: IpAddr) -> Result<PeerPermit, ExceededCap> {
        let peer = peer_for(address);
        let open = self.open.lock();
        if open.each.get(&peer).is_some_and(|own| *own >= self.caps.each) {
            return Err(ExceededCap::Peer);
        }
        if open.all >= self.caps.all {
            return Err(ExceededCap::Listener);
        }
        drop(open);
        Ok(self.acquire_after_eviction(peer))
    }

    /// A permit for a connection that replaces an evicted one. The evicted connection drops its own permit soon. Until
    /// then there is one more than the caps allow.
    pub(crate) fn acquire_after_eviction(self: &Arc<Self>, peer: ClientIp) -> PeerPermit {
        let mut open = self.open.lock();
        open.all += 1;
        *open.each.entry(peer).or_default() += 1;
        PeerPermit { limit: Arc::clone(self), peer }
    }
}

/// The peer of this address.
pub(crate) fn peer_for(address: IpAddr) -> ClientIp {
    IpNormalizer::default().client(address)
}

impl Drop for PeerPermit {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
        open.all -= 1;
        if let Some(own) = open.each.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                open.each.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(all: usize, each: usize) -> Arc<PeerLimit> {
        PeerLimit::new(PeerCaps { all, each })
    }

    #[test]
    fn a_peer_has_a_number_of_permits_and_a_closed_connection_frees_one() {
        let peers = peers(100, 2);
        let acquire = |text: &str| peers.acquire(text.parse().unwrap());
        let (first, second) = (acquire("192.0.2.1"), acquire("::ffff:192.0.2.1"));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(acquire("192.0.2.1").err(), Some(ExceededCap::Peer));
        let other = acquire("192.0.2.2");
        assert!(other.is_ok());
        drop(first);
        let again = acquire("192.0.2.1");
        assert!(again.is_ok());
        drop((second, again, other));
        let open = peers.open.lock();
        assert!(open.each.is_empty() && open.all == 0, "the table is empty");
    }

    #[test]
    fn a_64_of_ipv6_is_one_peer() {
        let peers = peers(100, 1);
        let held = peers.acquire("2001:db8::1".parse().unwrap());
        assert!(held.is_ok());
        assert!(peers.acquire("2001:db8::ffff:2".parse().unwrap()).is_err());
        assert!(peers.acquire("2001:db8:0:1::1".parse().unwrap()).is_ok());
    }

    #[test]
    fn peers_together_leave_the_reserved_connections() {
        let peers = peers(3, 2);
        let acquire = |text: &str| peers.acquire(text.parse().unwrap());
        let held = [acquire("192.0.2.1"), acquire("192.0.2.2"), acquire("192.0.2.3")];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(acquire("192.0.2.4").err(), Some(ExceededCap::Listener));
        drop(held);
        assert!(acquire("192.0.2.4").is_ok());
    }

    /// With 1,024 open files a listener had 480 connections, and one peer was allowed 1,024 of them.
    #[test]
    fn the_cap_of_a_peer_scales_with_the_listener() {
        let caps = |connections, each| {
            let caps = PeerCaps::of(connections, each);
            assert!((1..=connections).contains(&caps.all) && caps.each <= caps.all);
            (connections - caps.all, caps.each)
        };
        assert_eq!(caps(4_096, None), (256, 960));
        assert_eq!(caps(480, None), (60, 105));
        assert_eq!(caps(480, Some(1_024)), (60, 210), "never more than half");
        assert_eq!(caps(4_096, Some(10)), (256, 10));
        assert_eq!(caps(1, None), (0, 1));
        assert_eq!(caps(8, Some(0)), (1, 1));
    }
}

//! How many connections each peer has open, so that one alone cannot take them all.
//!
//! A peer is an IPv4 address or a /64 of IPv6, because whoever has one address there has all of them.
//! Bounded by the connections there are: a peer without one is not kept.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::identity::{Canon, ClientIp};
use tracing::warn;

/// The connections of all peers.
pub(crate) struct Peers {
    most: usize,
    open: Mutex<HashMap<ClientIp, Open>>,
}

struct Open {
    connections: usize,
    /// Whether it was told in the log that this peer wants more.
    told: bool,
}

/// One connection of a peer, as long as it is held.
pub(crate) struct Seat {
    peers: Arc<Peers>,
    peer: ClientIp,
}

impl Peers {
    /// At most so many connections each.
    pub(crate) fn of_at_most(most: usize) -> Arc<Self> {
        Arc::new(Peers {
            most,
            open: Mutex::default(),
        })
    }

    /// A seat for one more connection of `address`, unless it has all it may.
    pub(crate) fn seat(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let peer = Canon::default().client(address);
        let mut peers = self.open.lock();
        let open = peers.entry(peer).or_insert(Open {
            connections: 0,
            told: false,
        });
        if open.connections >= self.most {
            if !std::mem::replace(&mut open.told, true) {
                warn!(%peer, most = self.most, "a peer has all the connections it may have");
            }
            return None;
        }
        open.connections += 1;
        Some(Seat {
            peers: Arc::clone(self),
            peer,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut peers = self.peers.open.lock();
        if let Some(open) = peers.get_mut(&self.peer) {
            open.connections -= 1;
            if open.connections == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_number_of_seats_and_gets_one_back_when_it_leaves() {
        let peers = Peers::of_at_most(2);
        let seat = |text: &str| peers.seat(text.parse().unwrap());
        let (first, second) = (seat("192.0.2.1"), seat("::ffff:192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        assert!(seat("192.0.2.1").is_none());
        let other = seat("192.0.2.2");
        assert!(other.is_some());
        drop(first);
        let again = seat("192.0.2.1");
        assert!(again.is_some());
        drop((second, again, other));
        assert!(peers.open.lock().is_empty(), "nobody is kept");
    }

    #[test]
    fn a_64_of_ipv6_is_one_peer() {
        let peers = Peers::of_at_most(1);
        let held = peers.seat("2001:db8::1".parse().unwrap());
        assert!(held.is_some());
        assert!(peers.seat("2001:db8::ffff:2".parse().unwrap()).is_none());
        assert!(peers.seat("2001:db8:0:1::1".parse().unwrap()).is_some());
    }
}

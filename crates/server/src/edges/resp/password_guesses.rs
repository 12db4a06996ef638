//! Limits the rate of password guesses.
//!
//! A connection is closed after its [`MAX_PER_CONNECTION`]th wrong password. Once a peer has sent a wrong one, its
//! connections that are not authenticated wait for [`DELAY`] before their commands are handled. To disconnect earlier
//! gains nothing, so a peer makes at most [`MAX_PER_CONNECTION`] guesses a second for each connection that it may have.
//! No client is locked out: the right password is always accepted, after the delay. Bounded: [`MAX_PEERS`] peers are
//! stored. Beyond that, all peers are delayed.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::identity::{ClientIp, IpNormalizer};
use tidegate::observe::NetworkMetrics;
use tokio::time::Instant;
use tracing::warn;

use crate::config::EndpointAddress;
use crate::logging::RateLimitedLog;

/// Wrong passwords per connection. Clients that reconnect with a wrong one send it once each time.
pub(crate) const MAX_PER_CONNECTION: u32 = 5;
/// Delay before the commands of a connection are handled.
pub(crate) const DELAY: Duration = Duration::from_secs(1);
/// How long a wrong password is remembered.
const REMEMBER_FOR: Duration = Duration::from_secs(60);
const MAX_PEERS: usize = 1024;

/// The peers that sent a wrong password lately.
pub(super) struct PasswordGuesses {
    wrong: Mutex<HashMap<Option<ClientIp>, Instant>>,
    log_line: RateLimitedLog,
}

impl Default for PasswordGuesses {
    fn default() -> Self {
        PasswordGuesses { wrong: Mutex::default(), log_line: RateLimitedLog::new() }
    }
}

impl PasswordGuesses {
    /// Records that `peer` sent a wrong password.
    pub(super) fn record_wrong(&self, peer: &EndpointAddress, metrics: &NetworkMetrics) {
        metrics.wrong_passwords.inc();
        if let Some(times) = self.log_line.count() {
            warn!(%peer, times, "wrong password from a Redis client");
        }
        let mut wrong = self.wrong.lock();
        let now = Instant::now();
        if wrong.len() >= MAX_PEERS {
            wrong.retain(|_, at| is_recent(*at, now));
        }
        if wrong.len() < MAX_PEERS || wrong.contains_key(&key(peer)) {
            wrong.insert(key(peer), now);
        }
    }

    /// How long a connection of `peer` waits before its commands are handled.
    pub(super) fn delay(&self, peer: &EndpointAddress) -> Option<Duration> {
        let wrong = self.wrong.lock();
        let now = Instant::now();
        let recent = match wrong.get(&key(peer)) {
            Some(at) => is_recent(*at, now),
            None => wrong.len() >= MAX_PEERS && wrong.values().all(|at| is_recent(*at, now)),
        };
        recent.then_some(DELAY)
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now < at + REMEMBER_FOR
}

/// Local processes on a unix socket count as one peer.
fn key(peer: &EndpointAddress) -> Option<ClientIp> {
    match peer {
        EndpointAddress::Tcp(address) => Some(IpNormalizer::default().client(address.ip())),
        EndpointAddress::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_address(number: usize) -> EndpointAddress {
        let [.., a, b] = number.to_be_bytes();
        EndpointAddress::Tcp(([192, 0, a, b], 1).into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_guesses_waits_and_others_do_not() {
        let (guesses, metrics) = (PasswordGuesses::default(), NetworkMetrics::default());
        let unix = EndpointAddress::Unix("/run/s".into());
        assert_eq!(guesses.delay(&peer_address(1)), None);
        guesses.record_wrong(&peer_address(1), &metrics);
        assert_eq!(guesses.delay(&peer_address(1)), Some(DELAY));
        assert_eq!(guesses.delay(&peer_address(2)), None);
        assert_eq!(guesses.delay(&unix), None);
        guesses.record_wrong(&unix, &metrics);
        assert_eq!(guesses.delay(&unix), Some(DELAY));
        tokio::time::advance(REMEMBER_FOR).await;
        assert_eq!(guesses.delay(&peer_address(1)), None);
        assert_eq!(metrics.wrong_passwords.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn with_too_many_peers_all_wait_until_the_entries_expire() {
        let (guesses, metrics) = (PasswordGuesses::default(), NetworkMetrics::default());
        for number in 0..2 * MAX_PEERS {
            guesses.record_wrong(&peer_address(number), &metrics);
        }
        assert_eq!(guesses.wrong.lock().len(), MAX_PEERS);
        assert_eq!(guesses.delay(&peer_address(5 * MAX_PEERS)), Some(DELAY));
        tokio::time::advance(REMEMBER_FOR).await;
        assert_eq!(guesses.delay(&peer_address(5 * MAX_PEERS)), None);
        guesses.record_wrong(&peer_address(3), &metrics);
        assert_eq!(guesses.wrong.lock().len(), 1);
    }
}

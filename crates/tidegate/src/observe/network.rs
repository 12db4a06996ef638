//! Connections, streams and credentials that a service rejects before it parses a request.

use tidegate_rules::request::Edge;

use super::exposition::{Exposition, MetricKind, expose};
use super::series::{Counter, Gauge};

/// Rejected connections, streams and credentials.
#[derive(Debug, Default)]
pub struct NetworkMetrics {
    /// Connections of a peer that has reached its cap.
    pub rejected_by_peer_cap: Counter,
    /// Connections beyond the common cap of untrusted peers.
    pub rejected_by_listener_cap: Counter,
    /// Silent connections closed to make room: those of a small listener, and large HTTP/2 ones of any listener.
    pub silent_evicted: Counter,
    /// HTTP/2 streams whose head exceeds the memory for heads.
    pub heads_rejected: Counter,
    /// HTTP/2 streams that were reset to make room for newer ones.
    pub streams_evicted: Counter,
    /// Bytes of responses that peers have not read. Only connections with some KiB of them are counted.
    pub unread_bytes: Gauge,
    /// Connections closed because others needed the memory of their unread responses.
    pub unread_evicted: Counter,
    /// Connections closed because their peer read none of its responses for too long.
    pub unread_timed_out: Counter,
    /// Wrong passwords of Redis clients.
    pub wrong_passwords: Counter,
    /// Wrong tokens on the admin listener.
    pub wrong_tokens: Counter,
}

impl NetworkMetrics {
    /// A disabled edge has no series until something is counted.
    pub(super) fn expose(&self, page: &mut Exposition, is_on: impl Fn(Edge) -> bool) {
        expose! { page;
            gauge "tidegate_unread_response_bytes" = self.unread_bytes.get();
                "Bytes of responses that peers have not read."
            counter "tidegate_silent_connections_closed_total" = self.silent_evicted.get();
                "Silent connections closed to make room: those of the admin and metrics listeners, and large HTTP/2 ones."
        }
        let mut family = |name, help, label, samples: &[(&str, &Counter)]| {
            let family = page.family(name, MetricKind::Counter, help);
            for (value, counter) in samples {
                family.sample(&[(label, value)], counter.get());
            }
        };
        family(
            "tidegate_connections_refused_total",
            "Connections closed at once because a cap was reached.",
            "cap",
            &[("peer", &self.rejected_by_peer_cap), ("listener", &self.rejected_by_listener_cap)],
        );
        family(
            "tidegate_streams_refused_total",
            "HTTP/2 streams that were rejected or reset because of the memory they take.",
            "cause",
            &[("head", &self.heads_rejected), ("evicted", &self.streams_evicted)],
        );
        family(
            "tidegate_unread_connections_closed_total",
            "Connections closed whose responses were not read.",
            "cause",
            &[("memory", &self.unread_evicted), ("idle", &self.unread_timed_out)],
        );
        let mut failures = vec![("admin", &self.wrong_tokens)];
        if is_on(Edge::Resp) || self.wrong_passwords.get() > 0 {
            failures.insert(0, (Edge::Resp.name(), &self.wrong_passwords));
        }
        family("tidegate_authentication_failures_total", "Wrong passwords and tokens.", "edge", &failures);
    }
}

//! What a service refuses to peers before it looks at a request.

use tidegate_core::request::Edge;

use super::exposition::{Exposition, MetricKind};
use super::series::{Counter, Gauge};

/// Connections, streams and credentials that were refused.
#[derive(Debug, Default)]
pub struct NetworkMetrics {
    /// Connections of a peer that has all it may have.
    pub rejected_by_peer_cap: Counter,
    /// Connections beyond those that peers which are not trusted may have together.
    pub rejected_by_listener_cap: Counter,
    /// Connections of a small listener, and large ones of any listener, closed because others needed their place.
    pub silent_evicted: Counter,
    /// HTTP/2 streams whose head was more than is held in memory.
    pub heads_rejected: Counter,
    /// HTTP/2 streams that were reset because newer ones needed their room.
    pub streams_evicted: Counter,
    /// Bytes of responses that peers have not read, of connections that have some KiB of them.
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
    /// An edge that is off has no series until something is counted.
    pub(super) fn expose(&self, page: &mut Exposition, is_on: impl Fn(Edge) -> bool) {
        page.single(
            "tidegate_unread_response_bytes",
            MetricKind::Gauge,
            "Bytes of responses that peers have not read.",
            self.unread_bytes.get(),
        );
        page.single(
            "tidegate_silent_connections_closed_total",
            MetricKind::Counter,
            "Silent connections closed to make room: of the admin and metrics listeners, and with many streams once.",
            self.silent_evicted.get(),
        );
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
            &[
                ("peer", &self.rejected_by_peer_cap),
                ("listener", &self.rejected_by_listener_cap),
            ],
        );
        family(
            "tidegate_streams_refused_total",
            "HTTP/2 streams that were refused or reset because of the memory they take.",
            "cause",
            &[
                ("head", &self.heads_rejected),
                ("evicted", &self.streams_evicted),
            ],
        );
        family(
            "tidegate_unread_connections_closed_total",
            "Connections closed whose responses were not read.",
            "cause",
            &[
                ("memory", &self.unread_evicted),
                ("idle", &self.unread_timed_out),
            ],
        );
        let mut failures = vec![("admin", &self.wrong_tokens)];
        if is_on(Edge::Resp) || self.wrong_passwords.get() > 0 {
            failures.insert(0, (Edge::Resp.name(), &self.wrong_passwords));
        }
        family(
            "tidegate_authentication_failures_total",
            "Wrong passwords and tokens.",
            "edge",
            &failures,
        );
    }
}

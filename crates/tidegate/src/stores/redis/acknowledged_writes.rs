//! Writes that a server has acknowledged and must not lose: heartbeats, refunds and settlements.
//!
//! A server that restarts from a snapshot, or a replica that takes over, may have the data of an earlier moment.
//! Writes keep their order, so a heartbeat that such a server finds shows that every older write is there.
//! `heartbeat.lua` compares it with the time known here, and draws a new epoch if a write may be lost.

use tidegate_core::units::Nanos;

/// A heartbeat that is earlier than the one before by more than this shows that the server's clock was set back.
/// Replies that overtake each other differ by less.
const CLOCK_STEP_MILLIS: u64 = 5_000;

/// The last writes that were acknowledged, by the server's clock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct AcknowledgedWrites {
    /// The run of the server that replied to the last heartbeat, as `heartbeat.lua` names it. Empty before the first one.
    pub(super) run: Vec<u8>,
    heartbeat_millis: u64,
    /// 0 if a later heartbeat was acknowledged.
    refund_millis: u64,
}

impl AcknowledgedWrites {
    /// The time of the last acknowledged write, in milliseconds.
    pub(super) fn millis(&self) -> u64 {
        self.heartbeat_millis.max(self.refund_millis)
    }

    /// Records an acknowledged heartbeat. The register has its whole milliseconds.
    pub(super) fn note_heartbeat(&mut self, run: &[u8], at: Nanos) {
        let millis = at.get() / 1_000_000;
        let is_known = self.run == run && millis + CLOCK_STEP_MILLIS >= self.millis();
        if !is_known {
            *self = AcknowledgedWrites { run: run.to_vec(), ..AcknowledgedWrites::default() };
        }
        self.heartbeat_millis = self.heartbeat_millis.max(millis);
        if self.refund_millis <= self.heartbeat_millis {
            self.refund_millis = 0;
        }
    }

    /// Records an acknowledged refund or settlement. Only a later heartbeat shows that it is not lost.
    pub(super) fn note_refund(&mut self, at: Nanos) {
        let millis = at.get().div_ceil(1_000_000);
        self.refund_millis = self.refund_millis.max(millis);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Nanos {
        Nanos::new(micros * 1_000)
    }

    #[test]
    fn a_refund_counts_until_a_later_heartbeat() {
        let mut writes = AcknowledgedWrites::default();
        writes.note_heartbeat(b"a", micros(5_900));
        assert_eq!(writes.millis(), 5);
        writes.note_refund(micros(7_100));
        writes.note_heartbeat(b"a", micros(7_900));
        assert_eq!(writes.millis(), 8, "may be from before the refund");
        writes.note_heartbeat(b"a", micros(6_000));
        assert_eq!(writes.millis(), 8, "a late reply");
        writes.note_heartbeat(b"a", micros(9_000));
        assert_eq!((writes.millis(), writes.refund_millis), (9, 0));
    }

    #[test]
    fn another_run_or_a_clock_set_back_starts_anew() {
        let mut writes = AcknowledgedWrites::default();
        writes.note_heartbeat(b"a", Nanos::from_secs(100));
        writes.note_refund(Nanos::from_secs(100));
        writes.note_heartbeat(b"a", Nanos::from_secs(90));
        assert_eq!(writes.millis(), 90_000);
        writes.note_heartbeat(b"b", Nanos::from_secs(89));
        assert_eq!((&writes.run[..], writes.millis()), (&b"b"[..], 89_000));
    }
}

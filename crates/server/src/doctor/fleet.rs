//! The nodes that count in this store, and whether a node with these settings would count with them.

use std::path::Path;

use tidegate::Secret;
use tidegate::stores::redis::{AdminConnection, RegisteredNode, StoredSecret};
use tidegate_core::units::Nanos;

use super::finding::DoctorFinding;
use super::probe::{SilentServer, unless_silent};
use crate::state::data_dir;

/// Nodes send a heartbeat every 200 ms, and are removed from the register after this time without one.
const HEARTBEAT_TIMEOUT: Nanos = Nanos::from_secs(3);

pub(super) fn nodes(registered: &[RegisteredNode]) -> DoctorFinding {
    let check = "nodes";
    match registered.iter().filter(|node| node.ago <= HEARTBEAT_TIMEOUT).count() {
        0 => DoctorFinding::ok(check, "none is registered"),
        1 => DoctorFinding::ok(check, "1 is registered"),
        some => DoctorFinding::ok(check, format!("{some} are registered")),
    }
}

/// Compares the secret in the store with the one in `file`. A bad file is a finding too.
pub(super) async fn secret(connection: &AdminConnection, file: Option<&Path>) -> Result<DoctorFinding, SilentServer> {
    let own = match file.map(data_dir::read_secret_file).transpose() {
        Ok(own) => own,
        Err(reason) => {
            return Ok(DoctorFinding::fail("secret", reason, "correct --secret-file"));
        }
    };
    let stored = unless_silent(connection.secret(own.as_ref()).await)?;
    let judge = |stored: &StoredSecret| judge_secret(stored, own.as_ref());
    Ok(DoctorFinding::of_probe("secret", &stored, ("the secret", "+get on ~tg:*"), judge))
}

fn judge_secret(stored: &StoredSecret, own: Option<&Secret>) -> DoctorFinding {
    let check = "secret";
    match stored {
        StoredSecret::None if own.is_some() => {
            DoctorFinding::ok(check, "none there yet; the first node brings the one of --secret-file")
        }
        StoredSecret::None => DoctorFinding::ok(check, "none there yet; the first node makes one"),
        StoredSecret::Ours => DoctorFinding::ok(check, "the one of --secret-file"),
        StoredSecret::Check => {
            let found = "the nodes have it from a file";
            DoctorFinding::warn(check, found, "give --secret-file to see whether yours is theirs")
        }
        StoredSecret::Whole => {
            let found = "in the store itself: a new node that first joins a store which lost it \
                         makes another, and all counts begin anew";
            DoctorFinding::warn(check, found, "give all nodes one --secret-file")
        }
        StoredSecret::Another => {
            let found = "another than in --secret-file: this node would not count with the others";
            DoctorFinding::fail(check, found, "give it theirs, or a store of its own")
        }
        StoredSecret::Unreadable => {
            let found = "the key tg:ctl:secret holds no secret; another program wrote it";
            DoctorFinding::fail(check, found, "leave keys that begin with tg: to Tidegate")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::store::NodeId;

    #[test]
    fn a_node_without_a_recent_heartbeat_does_not_count() {
        let registered = |secs| RegisteredNode { node: NodeId(secs), ago: Nanos::from_secs(secs) };
        for (ago, want) in
            [(&[][..], "none is registered"), (&[1, 60], "1 is registered"), (&[0, 3, 4], "2 are registered")]
        {
            let line = nodes(&ago.iter().copied().map(registered).collect::<Vec<_>>()).line();
            assert!(line.ends_with(want), "{line}");
        }
    }

    #[test]
    fn another_secret_than_the_nodes_have_is_a_failure() {
        for (stored, want) in [
            (StoredSecret::None, "ok "),
            (StoredSecret::Ours, "ok "),
            (StoredSecret::Whole, "warn"),
            (StoredSecret::Check, "warn"),
            (StoredSecret::Another, "FAIL"),
            (StoredSecret::Unreadable, "FAIL"),
        ] {
            let line = judge_secret(&stored, None).line();
            assert!(line.starts_with(want), "{line}");
        }
    }
}

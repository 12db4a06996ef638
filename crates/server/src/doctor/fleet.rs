//! Who counts in this store, and whether we would count with them.

use std::path::Path;

use tidegate::Secret;
use tidegate::stores::redis::{Console, SecretKept, SignedIn};
use tidegate_core::units::Nanos;

use super::finding::Finding;
use super::seen::{Seen, Silent, seen};
use crate::secret_file;

/// Nodes give a sign of life every 200 ms, and are taken from the register after this.
const ALIVE: Nanos = Nanos::from_secs(3);

pub(super) fn nodes(signed: &Seen<Vec<SignedIn>>) -> Finding {
    let check = "nodes";
    let signed = match signed {
        Ok(signed) => signed,
        Err(why) => return Finding::unseen(check, "who has signed in", why, "+hgetall +time"),
    };
    match signed.iter().filter(|node| node.ago <= ALIVE).count() {
        0 => Finding::ok(check, "none is signed in"),
        1 => Finding::ok(check, "1 is signed in"),
        some => Finding::ok(check, format!("{some} are signed in")),
    }
}

/// The secret in the store beside the one in `file`. What is wrong with the file is a finding too.
pub(super) async fn secret(console: &Console, file: Option<&Path>) -> Result<Finding, Silent> {
    let own = match file.map(secret_file::read).transpose() {
        Ok(own) => own,
        Err(reason) => return Ok(Finding::fail("secret", reason, "correct --secret-file")),
    };
    let kept = seen(console.secret(own.as_ref()).await)?;
    Ok(judge(&kept, own.as_ref()))
}

fn judge(kept: &Seen<SecretKept>, own: Option<&Secret>) -> Finding {
    let check = "secret";
    let kept = match kept {
        Ok(kept) => kept,
        Err(why) => return Finding::unseen(check, "the secret", why, "+get on ~tg:*"),
    };
    match kept {
        SecretKept::None if own.is_some() => Finding::ok(
            check,
            "none there yet; --secret-file is what the first node brings",
        ),
        SecretKept::None => Finding::ok(check, "none there yet; the first node makes one"),
        SecretKept::Ours => Finding::ok(check, "the one of --secret-file"),
        SecretKept::Check => {
            let found = "the nodes have it from a file";
            Finding::warn(
                check,
                found,
                "give --secret-file to see whether yours is theirs",
            )
        }
        SecretKept::Whole => {
            let found = "in the store itself: a new node that first meets a store which lost it \
                         makes another, and all counts begin anew";
            Finding::warn(check, found, "give all nodes one --secret-file")
        }
        SecretKept::Another => {
            let found = "another than in --secret-file: this node would not count with the others";
            Finding::fail(check, found, "give it theirs, or a store of its own")
        }
        SecretKept::Unreadable => {
            let found = "the key tg:ctl:secret holds no secret; another program wrote it";
            Finding::fail(check, found, "leave keys that begin with tg: to Tidegate")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::store::NodeId;

    #[test]
    fn who_has_gone_silent_does_not_count() {
        let signed = |secs| SignedIn {
            node: NodeId(secs),
            ago: Nanos::from_secs(secs),
        };
        for (ago, want) in [
            (&[][..], "none is signed in"),
            (&[1, 60], "1 is signed in"),
            (&[0, 3, 4], "2 are signed in"),
        ] {
            let line = nodes(&Ok(ago.iter().copied().map(signed).collect())).line();
            assert!(line.ends_with(want), "{line}");
        }
    }

    #[test]
    fn a_secret_that_is_not_theirs_is_a_failure() {
        for (kept, want) in [
            (SecretKept::None, "ok "),
            (SecretKept::Ours, "ok "),
            (SecretKept::Whole, "warn"),
            (SecretKept::Check, "warn"),
            (SecretKept::Another, "FAIL"),
            (SecretKept::Unreadable, "FAIL"),
        ] {
            let line = judge(&Ok(kept), None).line();
            assert!(line.starts_with(want), "{line}");
        }
    }
}

//! The deployment secret that all nodes of one store share.
//!
//! The first node writes the secret, or, if its secret is from a file, only a check value. All other nodes use the
//! stored one. With two secrets one client would have two counters, and twice the limit would be allowed.

use redis::Value;
use tidegate_core::units::Nanos;

use super::Redis;
use super::error::RedisStoreError;
use super::heartbeat::registered_nodes;
use super::reply_parts::time_of;
use crate::secret::Secret;

pub(super) const KEY: &str = "tg:ctl:secret";
/// The prefix of the secret itself.
const SECRET_PREFIX: &str = "secret:";
/// The prefix of a check value, which only shows whether a secret is the right one.
const CHECK_PREFIX: &str = "check:";

/// A node that has been silent for longer is not waited for. Nodes check the key far more often.
const RESTORED_WITHIN: Nanos = Nanos::from_secs(5);

/// Why a node cannot use this store.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The nodes of this store have another secret.
    #[error("this node's secret differs from that of the nodes of this store; give it theirs, or a store of its own")]
    Another,
    /// The nodes of this store have a secret from a file, and this node has none.
    #[error("the nodes of this store have their secret from a file; give this node the same with --secret-file")]
    FileNeeded,
    /// The key was there a moment ago.
    #[error("the store has just lost its secret; this node reads it again")]
    Gone,
    /// The key holds something else.
    #[error("the key `{KEY}` of the store holds no secret; another program wrote it")]
    Unreadable,
    /// The operating system has no randomness for a new secret.
    #[error("no randomness for a secret")]
    NoRandomness(#[from] getrandom::Error),
    /// The store did not reply.
    #[error(transparent)]
    Store(#[from] RedisStoreError),
}

/// The stored form of the secret, compared with the secret of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredSecret {
    /// Nothing: no node has used the store yet.
    None,
    /// The secret itself; this node has none to compare.
    Whole,
    /// A check value; this node has no secret to compare. The nodes have theirs from a file.
    Check,
    /// The secret of this node.
    Ours,
    /// Another secret than that of this node.
    Another,
    /// Data of another program.
    Unreadable,
}

impl StoredSecret {
    pub(super) fn of(found: &[u8], own: Option<&Secret>) -> Self {
        let whole = whole_secret(found);
        let text = std::str::from_utf8(found).unwrap_or_default();
        let check = match &whole {
            Some(theirs) => Some(theirs.check_value()),
            None => text.strip_prefix(CHECK_PREFIX).map(str::to_owned),
        };
        match (check, own) {
            (None, _) => StoredSecret::Unreadable,
            (Some(_), None) if whole.is_some() => StoredSecret::Whole,
            (Some(_), None) => StoredSecret::Check,
            (Some(check), Some(own)) if check == own.check_value() => StoredSecret::Ours,
            (Some(_), Some(_)) => StoredSecret::Another,
        }
    }
}

/// The stored secret, if it is a secret and no check value.
fn whole_secret(found: &[u8]) -> Option<Secret> {
    Secret::from_hex(std::str::from_utf8(found).ok()?.strip_prefix(SECRET_PREFIX)?)
}

impl Redis {
    /// The secret of the store's nodes. `own` is the secret of this node, if it has one: then it is not written to
    /// the store, and must be theirs.
    ///
    /// # Errors
    /// When this node must not use this store, or the store does not reply.
    pub async fn share_secret(&self, own: Option<&Secret>) -> Result<Secret, SecretError> {
        match own {
            Some(own) => self.agree(own, Offer::Check).await,
            None => self.agree(&Secret::random()?, Offer::Whole).await,
        }
    }

    /// Whether the key was deleted under running nodes: one of them has sent a heartbeat recently and restores the
    /// key soon. A new node that wrote a secret of its own meanwhile would reset all counts.
    ///
    /// # Errors
    /// When the store does not reply.
    pub async fn awaits_secret(&self) -> Result<bool, RedisStoreError> {
        if self.command(KEY.as_bytes(), redis::cmd("GET").arg(KEY)).await? != Value::Nil {
            return Ok(false);
        }
        for register in self.registers() {
            let nodes = self.command(&register, redis::cmd("HGETALL").arg(&register)).await?;
            let newest = registered_nodes(&nodes).into_iter().map(|(_, at)| at).max();
            let Some(newest) = newest else {
                continue;
            };
            let now = time_of(&self.command(&register, &redis::cmd("TIME")).await?);
            if now.is_some_and(|now| now.since(newest) <= RESTORED_WITHIN) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same after the store may have lost the secret. `secret` is the one that the nodes agreed on before,
    /// `given` whether it is from the configuration of this node.
    ///
    /// # Errors
    /// When this node must not use this store any more, or the store does not reply.
    pub async fn restore_secret(&self, secret: &Secret, given: bool) -> Result<Secret, SecretError> {
        let offer = if given { Offer::Check } else { Offer::Whole };
        self.agree(secret, offer).await
    }

    /// Offers a secret, and returns the stored one.
    async fn agree(&self, mine: &Secret, offer: Offer) -> Result<Secret, SecretError> {
        let offered = match offer {
            Offer::Check => format!("{CHECK_PREFIX}{}", mine.check_value()),
            Offer::Whole => format!("{SECRET_PREFIX}{}", mine.to_hex()),
        };
        self.command(KEY.as_bytes(), redis::cmd("SET").arg(KEY).arg(&offered).arg("NX")).await?;
        let found = match self.command(KEY.as_bytes(), redis::cmd("GET").arg(KEY)).await? {
            Value::BulkString(found) => found,
            Value::Nil => return Err(SecretError::Gone),
            _ => return Err(SecretError::Unreadable),
        };
        match (StoredSecret::of(&found, Some(mine)), offer) {
            (StoredSecret::Ours, _) => Ok(mine.clone()),
            (StoredSecret::Another, Offer::Check) => Err(SecretError::Another),
            (StoredSecret::Another, Offer::Whole) => whole_secret(&found).ok_or(SecretError::FileNeeded),
            _ => Err(SecretError::Unreadable),
        }
    }
}

/// The value that a node writes if the store has no secret yet.
#[derive(Clone, Copy)]
enum Offer {
    /// The secret itself.
    Whole,
    /// Only a check value.
    Check,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_secret_is_compared_with_that_of_this_node() {
        let own = Secret::from_bytes(b"0123456789abcdef").expect("long enough");
        let other = Secret::from_bytes(b"0123456789abcdeX").expect("long enough");
        for (of, alone) in [
            (format!("{SECRET_PREFIX}{}", own.to_hex()), StoredSecret::Whole),
            (format!("{CHECK_PREFIX}{}", own.check_value()), StoredSecret::Check),
        ] {
            let status = |given| StoredSecret::of(of.as_bytes(), given);
            assert_eq!(status(None), alone);
            assert_eq!(status(Some(&own)), StoredSecret::Ours);
            assert_eq!(status(Some(&other)), StoredSecret::Another);
        }
        for unreadable in [&b"something else"[..], b"secret:00", b"\xff"] {
            assert_eq!(StoredSecret::of(unreadable, Some(&own)), StoredSecret::Unreadable);
        }
    }
}

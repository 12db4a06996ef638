//! Reports every primary of a cluster, for tools that check them one by one.
//!
//! All configured servers are queried at once, and the map of the highest cluster epoch wins: a server that was cut
//! off has an old map.

use super::hash_slot_map::HashSlotMap;
use super::hash_slots::{hash_slot_of, tag_for};
use super::shard_handle::register_key;
use super::topology_refresh::{TopologyReply, query_at};
use crate::stores::redis::access::{Access, RedisAddress};
use crate::stores::redis::connection_pool::RedisConfig;
use crate::stores::redis::error::RedisStoreError;
use crate::stores::redis::secret;
use crate::stores::redis::topology::{RedisServer, RedisTopology, ServerKeys};

/// Queries `seeds` for the hash slot map.
pub(in crate::stores::redis) async fn report(
    seeds: &[RedisAddress],
    access: &Access,
    config: &RedisConfig,
) -> Result<RedisTopology, RedisStoreError> {
    let query = |seed: &RedisAddress| {
        let (seed, access, config) = (seed.clone(), access.clone(), config.clone());
        tokio::spawn(async move { query_at(&seed, &access, &config).await })
    };
    let queries: Vec<_> = seeds.iter().map(query).collect();
    let (mut best, mut unreachable): (Option<TopologyReply>, _) = (None, Vec::new());
    for (seed, query) in seeds.iter().zip(queries) {
        let reply = query.await;
        match reply.unwrap_or_else(|_| Err(RedisStoreError::not_connected(None))) {
            Ok(reply) if best.as_ref().is_none_or(|best| best.cluster_epoch < reply.cluster_epoch) => {
                best = Some(reply);
            }
            Ok(_) => {}
            Err(error) => unreachable.push((seed.to_string(), error)),
        }
    }
    match (best, unreachable.first()) {
        (Some(reply), _) => Ok(build_topology(&reply.map, access, unreachable)),
        (None, Some((_, error))) => Err(error.clone()),
        (None, None) => Err(RedisStoreError::not_connected(None)),
    }
}

fn build_topology(map: &HashSlotMap, access: &Access, unreachable: Vec<(String, RedisStoreError)>) -> RedisTopology {
    let secret = map.owner(hash_slot_of(secret::KEY.as_bytes()));
    let primaries = map.primaries.iter().enumerate();
    let servers = primaries.filter_map(|(index, primary)| {
        // Keys of the tool go to the hash slot of the register, which is as good as any other.
        let hash_slot = map.register_hash_slot(index, &[])?;
        let keys = ServerKeys {
            tag: Some(tag_for(hash_slot)),
            hash_slots: map.count(Some(index)),
            register: register_key(hash_slot),
            has_secret: secret == Some(index),
        };
        Some(RedisServer { address: primary.address.clone(), access: access.clone(), keys })
    });
    let mut primaries: Vec<RedisServer> = servers.collect();
    primaries.sort_by_key(RedisServer::address);
    RedisTopology::Cluster { primaries, unowned: map.count(None), unreachable }
}

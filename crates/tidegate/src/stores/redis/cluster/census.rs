//! Every primary of a cluster, for whoever looks at them one by one.
//!
//! All servers that were written are asked at once, and the map of the highest epoch counts: one that
//! was cut off tells of the past.

use super::branch::register_key;
use super::map::SlotMap;
use super::slots::{slot_of, tag_for};
use super::survey::{Told, ask_at};
use crate::stores::redis::access::{Access, Place};
use crate::stores::redis::fault::Fault;
use crate::stores::redis::layout::{Layout, Share, Site};
use crate::stores::redis::link::RedisConfig;
use crate::stores::redis::secret;

/// Asks `seeds` who serves what.
pub(in crate::stores::redis) async fn take(
    seeds: &[Place],
    access: &Access,
    config: &RedisConfig,
) -> Result<Layout, Fault> {
    let ask = |seed: &Place| {
        let (seed, access, config) = (seed.clone(), access.clone(), config.clone());
        tokio::spawn(async move { ask_at(&seed, &access, &config).await })
    };
    let asked: Vec<_> = seeds.iter().map(ask).collect();
    let (mut best, mut silent): (Option<Told>, _) = (None, Vec::new());
    for (seed, asked) in seeds.iter().zip(asked) {
        let told = asked.await;
        match told.unwrap_or_else(|_| Err(Fault::not_connected(None))) {
            Ok(told) if best.as_ref().is_none_or(|best| best.epoch < told.epoch) => {
                best = Some(told);
            }
            Ok(_) => {}
            Err(fault) => silent.push((seed.to_string(), fault)),
        }
    }
    match (best, silent.first()) {
        (Some(told), _) => Ok(laid_out(&told.map, access, silent)),
        (None, Some((_, fault))) => Err(fault.clone()),
        (None, None) => Err(Fault::not_connected(None)),
    }
}

fn laid_out(map: &SlotMap, access: &Access, silent: Vec<(String, Fault)>) -> Layout {
    let secret = map.owner(slot_of(secret::KEY.as_bytes()));
    let primaries = map.primaries.iter().enumerate();
    let sites = primaries.filter_map(|(turn, primary)| {
        // Keys of whoever looks are in the slot where nodes sign in: one as good as any other.
        let slot = map.register_slot(turn, &[])?;
        let share = Share {
            tag: Some(tag_for(slot)),
            slots: map.count(Some(turn)),
            register: register_key(slot),
            has_secret: secret == Some(turn),
        };
        Some(Site {
            place: primary.place.clone(),
            access: access.clone(),
            share,
        })
    });
    let mut primaries: Vec<Site> = sites.collect();
    primaries.sort_by_key(Site::address);
    Layout::Cluster {
        primaries,
        unowned: map.count(None),
        silent,
    }
}

//! The reference service, naively: it reads every node and has a map of counts.

use std::collections::{HashMap, HashSet};

use tidegate::envoy::{ChargeOnDenial, DescriptorOptions, Hits, ZeroHits};

use super::traffic::{DescriptorQuery, ModelLimit, ModelNode, TrafficKind};

/// The naive service.
pub(super) struct ReferenceService {
    pub(super) nodes: Vec<ModelNode>,
    pub(super) options: DescriptorOptions,
    pub(super) traffic: TrafficKind,
    /// By counter: its window, its count, and the limit it was last written under.
    pub(super) counts: HashMap<String, (u64, u64, u32)>,
}

/// A limit that was found, and the name of its counter.
#[derive(Clone)]
struct LimitHit {
    limit: ModelLimit,
    shadow: bool,
    quota: bool,
    counter: String,
}

impl ReferenceService {
    fn find(&self, query: &DescriptorQuery) -> Option<LimitHit> {
        let mut counter = String::new();
        if query.own.is_some() {
            for (key, value) in &query.entries {
                counter += &format!("{key}={value};");
            }
            let (name, replaces) = ("", "");
            let limit = ModelLimit { rate: query.own, name, replaces };
            let (shadow, quota) = (false, false);
            return Some(LimitHit { limit, shadow, quota, counter });
        }
        let (mut nodes, mut last) = (&self.nodes, None);
        for (key, value) in &query.entries {
            let of_key = || nodes.iter().filter(|node| node.key == *key);
            let exact = of_key().find(|node| node.value == *value && !value.is_empty());
            let pattern = || of_key().find(|n| n.value.contains('*') && matches(n.value, value));
            let bare = || of_key().find(|node| node.value.is_empty());
            let node = exact.or_else(pattern).or_else(bare)?;
            let shared = node.shares && exact.is_none();
            let value = if shared { node.value } else { value };
            counter += &format!("{key}={value};");
            (nodes, last) = (&node.below, Some(node));
        }
        let node = last?;
        Some(LimitHit { limit: node.limit.clone()?, shadow: node.shadow, quota: node.quota, counter })
    }

    /// The status of each descriptor, and the overall result; `None` if two of them share a counter.
    pub(super) fn decide(&mut self, queries: &[DescriptorQuery], now: u64) -> Option<String> {
        let hits: Vec<Option<LimitHit>> = queries.iter().map(|query| self.find(query)).collect();
        let replaced: HashSet<&str> = hits.iter().flatten().map(|hit| hit.limit.replaces).collect();
        let (mut statuses, mut seen) = (Vec::new(), HashSet::new());
        let (mut failed, mut quotas, mut failed_quotas) = (0, 0, 0);
        // Checked before anything is counted: a run must not depend on half a request.
        for hit in hits.iter().flatten() {
            let unit = hit.limit.rate.map(|(_, unit)| unit);
            if unit.is_some() && !seen.insert((hit.counter.clone(), unit)) {
                return None;
            }
        }
        let limited = |hit: &Option<LimitHit>| {
            let hit = hit.clone();
            hit.filter(|hit| hit.limit.name.is_empty() || !replaced.contains(hit.limit.name))
        };
        for (query, hit) in queries.iter().zip(&hits) {
            if hit.as_ref().is_some_and(|hit| hit.limit.rate.is_none()) {
                continue;
            }
            let hit = limited(hit);
            let quota = self.options.all_quota || hit.as_ref().is_some_and(|hit| hit.quota);
            let over = hit.is_some_and(|hit| !hit.shadow && !self.fits(&hit, query.hits, now));
            quotas += u32::from(quota);
            failed_quotas += u32::from(quota && over);
            failed += u32::from(!quota && over);
        }
        let denied = failed > 0 || (quotas > 0 && quotas == failed_quotas);
        let denied = denied && !self.options.all_shadow;
        for (query, hit) in queries.iter().zip(&hits) {
            statuses.push(match (hit, limited(hit)) {
                (Some(hit), _) if hit.limit.rate.is_none() => "unlimited".to_owned(),
                (_, None) => "free".to_owned(),
                (_, Some(hit)) => self.count(&hit, query.hits, denied, now),
            });
        }
        let overall = if denied { "deny" } else { "pass" };
        Some(format!("{overall}: {}", statuses.join(" | ")))
    }

    /// The counter of a limit: its name, its current window, its count, and the limit it was written under.
    fn counter_of(&self, hit: &LimitHit, now: u64) -> (String, u64, u64, u32) {
        let (_, unit) = hit.limit.rate.unwrap();
        let counter = format!("{} {}", hit.counter, unit.name());
        let window = now / (unit.length().get() / 1_000_000_000);
        let known = self.counts.get(&counter).copied();
        let known = known.filter(|known| known.0 == window);
        let (_, count, under) = known.unwrap_or((window, 0, 0));
        (counter, window, count, under)
    }

    /// Whether a denial at the limit is counted, so that the limit is exceeded from then on.
    fn counts_beyond(&self) -> bool {
        self.options.zero_hits == ZeroHits::OverAboveLimit
    }

    fn fits(&self, hit: &LimitHit, hits: Hits, now: u64) -> bool {
        let limit = u64::from(hit.limit.rate.unwrap().0);
        let (_, _, count, _) = self.counter_of(hit, now);
        match hits {
            Hits::Check => match self.options.zero_hits {
                ZeroHits::OverAtLimit => count < limit,
                // A limit of zero counts nothing, so it is never known to be exceeded.
                ZeroHits::OverAboveLimit => count <= limit && limit > 0,
            },
            Hits::Refund(_) => true,
            Hits::Charge(cost) | Hits::Used(cost) => count + cost.get() <= limit,
        }
    }

    fn count(&mut self, hit: &LimitHit, hits: Hits, denied: bool, now: u64) -> String {
        let (requests, unit) = hit.limit.rate.unwrap();
        let (limit, fits) = (u64::from(requests), self.fits(hit, hits, now));
        let (counter, window, before, under) = self.counter_of(hit, now);
        let pays = match self.options.charge_on_denial {
            _ if fits && !denied => true,
            ChargeOnDenial::Nothing => matches!(hits, Hits::Used(_)),
            ChargeOnDenial::Violated => !fits,
            ChargeOnDenial::All => true,
        };
        let after = match hits {
            Hits::Refund(cost) if under == requests => before.saturating_sub(cost.get()),
            Hits::Charge(cost) | Hits::Used(cost) if pays => match self.traffic {
                TrafficKind::Common => before + cost.get(),
                TrafficKind::Mixed if before > limit || limit == 0 => before,
                TrafficKind::Mixed if before == limit && !self.counts_beyond() => before,
                TrafficKind::Mixed => (before + cost.get()).min(2 * limit),
            },
            _ => before,
        };
        if after != before {
            self.counts.insert(counter, (window, after, requests));
        }
        let code = match (fits, hit.shadow) {
            (true, _) => "ok",
            (false, true) => "watched",
            (false, false) => "over",
        };
        let left = if fits { limit.saturating_sub(after) } else { 0 };
        let name = match hit.limit.name {
            "" => String::new(),
            name => format!(" {name}"),
        };
        format!("{code} {left} of {requests}/{}{name}", unit.name())
    }
}

/// Tries every way to match a pattern.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_at_checked(1) {
        None => text.is_empty(),
        Some(("*", rest)) => (0..=text.len()).any(|from| matches(rest, &text[from..])),
        Some((letter, rest)) => text.strip_prefix(letter).is_some_and(|text| matches(rest, text)),
    }
}

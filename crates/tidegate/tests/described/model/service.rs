//! The reference service, naively: it looks at every node and has a map of counts.

use std::collections::{HashMap, HashSet};

use tidegate::described::{Hits, Manner, RefusedPays, ZeroHits};

use super::traffic::{Asked, Limit, Node, Traffic};

/// The naive service.
pub(super) struct Service {
    pub(super) nodes: Vec<Node>,
    pub(super) manner: Manner,
    pub(super) traffic: Traffic,
    /// By counter: the window it is of, the count, and the limit it was last written under.
    pub(super) counts: HashMap<String, (u64, u64, u32)>,
}

/// A limit that was found, and the name of its counter.
#[derive(Clone)]
struct Hit {
    limit: Limit,
    shadow: bool,
    quota: bool,
    counter: String,
}

impl Service {
    fn find(&self, asked: &Asked) -> Option<Hit> {
        let mut counter = String::new();
        if asked.own.is_some() {
            for (key, value) in &asked.entries {
                counter += &format!("{key}={value};");
            }
            let (name, replaces) = ("", "");
            let limit = Limit {
                rate: asked.own,
                name,
                replaces,
            };
            let (shadow, quota) = (false, false);
            return Some(Hit {
                limit,
                shadow,
                quota,
                counter,
            });
        }
        let (mut nodes, mut last) = (&self.nodes, None);
        for (key, value) in &asked.entries {
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
        Some(Hit {
            limit: node.limit.clone()?,
            shadow: node.shadow,
            quota: node.quota,
            counter,
        })
    }

    /// What each descriptor is told, and the whole; nothing if two of them meet in one counter.
    pub(super) fn answer(&mut self, asked: &[Asked], now: u64) -> Option<String> {
        let hits: Vec<Option<Hit>> = asked.iter().map(|asked| self.find(asked)).collect();
        let replaced: HashSet<&str> = hits
            .iter()
            .flatten()
            .map(|hit| hit.limit.replaces)
            .collect();
        let (mut told, mut seen) = (Vec::new(), HashSet::new());
        let (mut failed, mut quotas, mut failed_quotas) = (0, 0, 0);
        // Looked at before anything is counted: a run is not to depend on half a request.
        for hit in hits.iter().flatten() {
            let unit = hit.limit.rate.map(|(_, unit)| unit);
            if unit.is_some() && !seen.insert((hit.counter.clone(), unit)) {
                return None;
            }
        }
        let limited = |hit: &Option<Hit>| {
            let hit = hit.clone();
            hit.filter(|hit| hit.limit.name.is_empty() || !replaced.contains(hit.limit.name))
        };
        for (asked, hit) in asked.iter().zip(&hits) {
            if hit.as_ref().is_some_and(|hit| hit.limit.rate.is_none()) {
                continue;
            }
            let hit = limited(hit);
            let quota = self.manner.all_quota || hit.as_ref().is_some_and(|hit| hit.quota);
            let over = hit.is_some_and(|hit| !hit.shadow && !self.fits(&hit, asked.hits, now));
            quotas += u32::from(quota);
            failed_quotas += u32::from(quota && over);
            failed += u32::from(!quota && over);
        }
        let refused = failed > 0 || (quotas > 0 && quotas == failed_quotas);
        let refused = refused && !self.manner.all_shadow;
        for (asked, hit) in asked.iter().zip(&hits) {
            told.push(match (hit, limited(hit)) {
                (Some(hit), _) if hit.limit.rate.is_none() => "unlimited".to_owned(),
                (_, None) => "free".to_owned(),
                (_, Some(hit)) => self.count(&hit, asked.hits, refused, now),
            });
        }
        let overall = if refused { "refuse" } else { "pass" };
        Some(format!("{overall}: {}", told.join(" | ")))
    }

    /// The counter of a limit: its name, the window it is in, its count, and the limit it was written
    /// under.
    fn standing(&self, hit: &Hit, now: u64) -> (String, u64, u64, u32) {
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
        self.manner.zero_hits == ZeroHits::OverWhenExceeded
    }

    fn fits(&self, hit: &Hit, hits: Hits, now: u64) -> bool {
        let limit = u64::from(hit.limit.rate.unwrap().0);
        let (_, _, count, _) = self.standing(hit, now);
        match hits {
            Hits::Nothing => match self.manner.zero_hits {
                ZeroHits::OverWhenSpent => count < limit,
                // A limit of nothing counts nothing, so nobody can say that it is exceeded.
                ZeroHits::OverWhenExceeded => count <= limit && limit > 0,
            },
            Hits::GivenBack(_) => true,
            Hits::Asked(cost) | Hits::Used(cost) => count + cost.get() <= limit,
        }
    }

    fn count(&mut self, hit: &Hit, hits: Hits, refused: bool, now: u64) -> String {
        let (requests, unit) = hit.limit.rate.unwrap();
        let (limit, fits) = (u64::from(requests), self.fits(hit, hits, now));
        let (counter, window, before, under) = self.standing(hit, now);
        let pays = match self.manner.refused {
            _ if fits && !refused => true,
            RefusedPays::Nothing => matches!(hits, Hits::Used(_)),
            RefusedPays::Violated => !fits,
            RefusedPays::All => true,
        };
        let after = match hits {
            Hits::GivenBack(cost) if under == requests => before.saturating_sub(cost.get()),
            Hits::Asked(cost) | Hits::Used(cost) if pays => match self.traffic {
                Traffic::Common => before + cost.get(),
                Traffic::Mixed if before > limit || limit == 0 => before,
                Traffic::Mixed if before == limit && !self.counts_beyond() => before,
                Traffic::Mixed => (before + cost.get()).min(2 * limit),
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

/// Every way to read a pattern.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_at_checked(1) {
        None => text.is_empty(),
        Some(("*", rest)) => (0..=text.len()).any(|from| matches(rest, &text[from..])),
        Some((letter, rest)) => text
            .strip_prefix(letter)
            .is_some_and(|text| matches(rest, text)),
    }
}

//! The keys of a run and the order in which they are visited, prepared before any timing.

use bench_subjects::Key;

/// How often each key is visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Every key equally often: the worst case for caches.
    Uniform,
    /// The n-th most popular key 1/n as often as the first (exponent 1): typical traffic.
    Zipf,
}

/// The visits of one run: so many that a round never repeats a part.
const ORDER_LEN: usize = 1 << 20;

/// The first `count` keys.
pub(crate) fn keys(count: usize) -> Vec<Key> {
    (0..count).map(Key::number).collect()
}

/// An order of visits to `keys` keys; the same seed gives the same order.
pub(crate) fn order(pattern: Pattern, keys: usize, seed: u64) -> Vec<u32> {
    let mut random = KeyShuffleRng(seed);
    match pattern {
        Pattern::Uniform => (0..ORDER_LEN).map(|_| random.below(keys)).collect(),
        Pattern::Zipf => zipf(keys, &mut random),
    }
}

/// An order of visits to the keys whose number is `subset` modulo `subsets`.
pub(crate) fn order_of_subset(keys: usize, subset: usize, subsets: usize, seed: u64) -> Vec<u32> {
    let mut random = KeyShuffleRng(seed);
    let (offset, stride) = (subset as u32, subsets as u32);
    (0..ORDER_LEN).map(|_| random.below(keys / subsets) * stride + offset).collect()
}

/// Popularity is assigned to the keys at random, or popular keys would be adjacent in memory.
fn zipf(keys: usize, random: &mut KeyShuffleRng) -> Vec<u32> {
    let mut total = 0.0;
    let cumulated: Vec<f64> = (1..=keys)
        .map(|rank| {
            total += 1.0 / rank as f64;
            total
        })
        .collect();
    let mut by_popularity: Vec<u32> = (0..keys as u32).collect();
    // The popularity of a key is the same for every thread, so the assignment has its own seed.
    shuffle(&mut by_popularity, &mut KeyShuffleRng(42));
    (0..ORDER_LEN)
        .map(|_| {
            let point = random.unit() * total;
            let rank = cumulated.partition_point(|sum| *sum <= point);
            by_popularity[rank.min(keys - 1)]
        })
        .collect()
}

fn shuffle(items: &mut [u32], random: &mut KeyShuffleRng) {
    for last in (1..items.len()).rev() {
        let other = random.below(last + 1) as usize;
        items.swap(last, other);
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): small, seeded, and good enough to pick keys.
struct KeyShuffleRng(u64);

impl KeyShuffleRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is at most 2^32.
    fn below(&mut self, bound: usize) -> u32 {
        (((self.next() >> 32) * bound as u64) >> 32) as u32
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_most_popular(order: &[u32], keys: usize) -> f64 {
        let mut visits = vec![0_usize; keys];
        order.iter().for_each(|key| visits[*key as usize] += 1);
        visits.into_iter().max().unwrap_or(0) as f64 / order.len() as f64
    }

    #[test]
    fn the_first_of_a_thousand_zipf_keys_gets_its_share() {
        // 1 / H(1000) = 1 / 7.485
        let share = share_of_most_popular(&order(Pattern::Zipf, 1_000, 1), 1_000);
        assert!((share - 0.1336).abs() < 0.003, "{share}");
    }

    #[test]
    fn uniform_keys_have_equal_shares() {
        let share = share_of_most_popular(&order(Pattern::Uniform, 100, 1), 100);
        assert!(share < 0.011, "{share}");
    }

    #[test]
    fn subsets_are_disjoint() {
        assert!(order_of_subset(1_000, 0, 2, 1).iter().all(|key| key % 2 == 0));
        assert!(order_of_subset(1_000, 1, 2, 1).iter().all(|key| key % 2 == 1));
    }

    #[test]
    fn threads_agree_on_which_key_is_popular() {
        let most = |seed| {
            let mut visits = [0_usize; 100];
            order(Pattern::Zipf, 100, seed).iter().for_each(|key| visits[*key as usize] += 1);
            (0..100).max_by_key(|key| visits[*key])
        };
        assert_eq!(most(1), most(2));
    }
}

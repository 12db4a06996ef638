//! Random trees against a matcher that checks every node and tries every way to match a pattern.

use super::{set, tree};
use crate::envoy::DescriptorEntry;
use crate::language::descriptors::tree::{
    DescriptorLevel, DescriptorLookup, DescriptorNode, Domain, LimitMatch, NodeLimit,
};

/// Splitmix64: the same seed gives the same choices on every machine.
struct TreeRng(u64);

impl TreeRng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn text(&mut self, letters: &[&str], max_length: usize) -> String {
        let length = self.below(max_length + 1);
        (0..length).map(|_| letters[self.below(letters.len())]).collect()
    }
}

fn random_level(rng: &mut TreeRng, depth: usize) -> DescriptorLevel {
    let mut level = DescriptorLevel::default();
    for _ in 0..=rng.below(6) {
        let key = ["a", "b", "a_b", "a*"][rng.below(4)].to_owned();
        let value = rng.text(&["a", "b", "_", "*"], 3);
        let joined = match value.as_str() {
            "" => key,
            value => format!("{key}_{value}"),
        };
        let children =
            if depth < 3 && rng.below(2) == 0 { random_level(rng, depth + 1) } else { DescriptorLevel::default() };
        let mut node = node(&joined, children);
        if rng.below(3) > 0 {
            node.limit.as_mut().unwrap().path = format!("{depth}.{joined}").into();
        } else {
            node.limit = None;
        }
        let _twice = level.add(node).is_err();
    }
    level
}

fn node(composite_key: &str, children: DescriptorLevel) -> DescriptorNode {
    let Some(DescriptorNode { limit, location, metadata, .. }) =
        set(&tree("k !\n")).descriptors.domains.remove(0).root.nodes.pop()
    else {
        panic!("the tree has a node");
    };
    DescriptorNode {
        composite_key: composite_key.into(),
        key_len: composite_key.find('_').unwrap_or(composite_key.len()),
        location,
        limit,
        children,
        value_to_metric: false,
        share_threshold: false,
        metadata,
    }
}

/// Tries all ways to match `pattern`, one after another.
fn naive_match(pattern: &str, text: &str) -> bool {
    match pattern.split_at_checked(1) {
        None => text.is_empty(),
        Some(("*", rest)) => (0..=text.len()).any(|from| naive_match(rest, &text[from..])),
        Some((letter, rest)) => text.strip_prefix(letter).is_some_and(|t| naive_match(rest, t)),
    }
}

/// Checks every node of every level.
fn naive_find<'l>(level: &'l DescriptorLevel, entries: &[DescriptorEntry<'_>]) -> Option<&'l DescriptorNode> {
    let ((key, value), rest) = entries.split_first()?;
    let joined = format!("{key}_{value}");
    let by = |wanted: &dyn Fn(&DescriptorNode) -> bool| level.nodes.iter().find(|node| wanted(node));
    let node = by(&|node| *node.composite_key == joined)
        .or_else(|| by(&|node| node.composite_key.contains('*') && naive_match(&node.composite_key, &joined)))
        .or_else(|| by(&|node| *node.composite_key == **key))?;
    match rest {
        [] => Some(node),
        rest => naive_find(&node.children, rest),
    }
}

#[test]
fn random_trees_are_searched_as_a_naive_matcher_would() {
    let mut rng = TreeRng(7);
    let mut hits = 0;
    for _ in 0..300 {
        let domain = Domain {
            name: "d".into(),
            location: node("k", DescriptorLevel::default()).location,
            root: random_level(&mut rng, 0),
            override_rule: 0,
        };
        for _ in 0..100 {
            let words: Vec<(String, String)> = (0..=rng.below(3))
                .map(|_| {
                    let key = ["a", "b", "a_b", "ab"][rng.below(4)].to_owned();
                    (key, rng.text(&["a", "b", "_"], 4))
                })
                .collect();
            let entries: Vec<_> = words.iter().map(|(k, v)| (k.as_str(), v.as_str().into())).collect();
            let naive = naive_find(&domain.root, &entries);
            let want = naive.and_then(|node| node.limit.as_ref());
            let got = match domain.find(&entries, &mut String::new()) {
                DescriptorLookup::Limit(LimitMatch { limit, .. }) => Some(limit),
                DescriptorLookup::NotFound | DescriptorLookup::Exempt => None,
            };
            let path = |limited: &NodeLimit| limited.path.clone();
            assert_eq!(got.map(path), want.map(path), "{entries:?} in {domain:?}");
            hits += usize::from(got.is_some());
        }
    }
    assert!((2_000..28_000).contains(&hits), "{hits} of 30000 were found");
}

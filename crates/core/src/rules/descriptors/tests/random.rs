//! Random trees against a matcher that looks at every node and tries every way to read a pattern.

use super::{set, tree};
use crate::described::DescriptorEntry;
use crate::rules::descriptors::tree::{Domain, Found, Hit, Level, Limited, Node};

/// Splitmix64: the same seed gives the same choices on every machine.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn text(&mut self, letters: &[&str], most: usize) -> String {
        let length = self.below(most + 1);
        (0..length)
            .map(|_| letters[self.below(letters.len())])
            .collect()
    }
}

fn random_level(choices: &mut Choices, depth: usize) -> Level {
    let mut level = Level::default();
    for _ in 0..=choices.below(6) {
        let key = ["a", "b", "a_b", "a*"][choices.below(4)].to_owned();
        let value = choices.text(&["a", "b", "_", "*"], 3);
        let joined = match value.as_str() {
            "" => key,
            value => format!("{key}_{value}"),
        };
        let below = match depth < 3 && choices.below(2) == 0 {
            true => random_level(choices, depth + 1),
            false => Level::default(),
        };
        let mut node = node(&joined, below);
        if choices.below(3) > 0 {
            node.limited.as_mut().unwrap().path = format!("{depth}.{joined}").into();
        } else {
            node.limited = None;
        }
        let _twice = level.add(node).is_err();
    }
    level
}

fn node(joined: &str, below: Level) -> Node {
    let Some(Node {
        limited,
        place,
        metadata,
        ..
    }) = set(&tree("k !\n"))
        .descriptors
        .domains
        .remove(0)
        .top
        .nodes
        .pop()
    else {
        panic!("the tree has a node");
    };
    Node {
        joined: joined.into(),
        key_len: joined.find('_').unwrap_or(joined.len()),
        place,
        limited,
        below,
        value_to_metric: false,
        shares: false,
        metadata,
    }
}

/// All ways in which `pattern` can be read, tried one after another.
fn naive_match(pattern: &str, text: &str) -> bool {
    match pattern.split_at_checked(1) {
        None => text.is_empty(),
        Some(("*", rest)) => (0..=text.len()).any(|from| naive_match(rest, &text[from..])),
        Some((letter, rest)) => text
            .strip_prefix(letter)
            .is_some_and(|t| naive_match(rest, t)),
    }
}

/// Looks at every node of every level.
fn naive_find<'l>(level: &'l Level, entries: &[DescriptorEntry<'_>]) -> Option<&'l Node> {
    let ((key, value), rest) = entries.split_first()?;
    let joined = format!("{key}_{value}");
    let by = |wanted: &dyn Fn(&Node) -> bool| level.nodes.iter().find(|node| wanted(node));
    let node = by(&|node| *node.joined == joined)
        .or_else(|| by(&|node| node.joined.contains('*') && naive_match(&node.joined, &joined)))
        .or_else(|| by(&|node| *node.joined == **key))?;
    match rest {
        [] => Some(node),
        rest => naive_find(&node.below, rest),
    }
}

#[test]
fn random_trees_are_searched_as_a_naive_matcher_would() {
    let mut choices = Choices(7);
    let mut hits = 0;
    for _ in 0..300 {
        let domain = Domain {
            name: "d".into(),
            place: node("k", Level::default()).place,
            top: random_level(&mut choices, 0),
            brought: 0,
        };
        for _ in 0..100 {
            let words: Vec<(String, String)> = (0..=choices.below(3))
                .map(|_| {
                    let key = ["a", "b", "a_b", "ab"][choices.below(4)].to_owned();
                    (key, choices.text(&["a", "b", "_"], 4))
                })
                .collect();
            let entries: Vec<_> = words
                .iter()
                .map(|(k, v)| (k.as_str(), v.as_str().into()))
                .collect();
            let naive = naive_find(&domain.top, &entries);
            let want = naive.and_then(|node| node.limited.as_ref());
            let got = match domain.find(&entries, &mut String::new()) {
                Found::Limit(Hit { limited, .. }) => Some(limited),
                Found::Nothing | Found::Exempt => None,
            };
            let path = |limited: &Limited| limited.path.clone();
            assert_eq!(got.map(path), want.map(path), "{entries:?} in {domain:?}");
            hits += usize::from(got.is_some());
        }
    }
    assert!(
        (2_000..28_000).contains(&hits),
        "{hits} of 30000 were found"
    );
}

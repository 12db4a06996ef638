//! Random descriptor trees, as in a file, and random requests.

use tidegate::envoy::{Hits, Unit};
use tidegate::units::Cost;

/// SplitMix64: the same seed gives the same run on every machine.
pub(super) struct TrafficRng(pub(super) u64);

impl TrafficRng {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(super) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
pub(super) struct ModelNode {
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    pub(super) limit: Option<ModelLimit>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    pub(super) shares: bool,
    pub(super) below: Vec<ModelNode>,
}

#[derive(Clone, Debug)]
pub(super) struct ModelLimit {
    /// `None`: unlimited.
    pub(super) rate: Option<(u32, Unit)>,
    pub(super) name: &'static str,
    pub(super) replaces: &'static str,
}

pub(super) const UNITS: [Unit; 3] = [Unit::Second, Unit::Minute, Unit::Hour];

pub(super) fn level(choices: &mut TrafficRng, depth: u64) -> Vec<ModelNode> {
    let mut nodes: Vec<ModelNode> = Vec::new();
    for _ in 0..=choices.below(5) {
        let key = choices.pick(&["a", "b"]);
        let value = choices.pick(&["", "x", "y", "x*", "*y"]);
        if nodes.iter().any(|node| (node.key, node.value) == (key, value)) {
            continue;
        }
        let below = if depth == 0 && choices.once_in(2) { level(choices, depth + 1) } else { Vec::new() };
        nodes.push(ModelNode {
            key,
            value,
            limit: (!choices.once_in(5)).then(|| limit(choices)),
            shadow: choices.once_in(6),
            quota: choices.once_in(3),
            shares: value.contains('*') && choices.once_in(2),
            below,
        });
    }
    nodes
}

fn limit(choices: &mut TrafficRng) -> ModelLimit {
    let name = choices.pick(&["", "", "n", "m"]);
    let replaces = choices.pick(&["", "", "", "n", "m"]);
    let requests = choices.below(5) as u32;
    ModelLimit {
        rate: (!choices.once_in(8)).then(|| (requests, choices.pick(&UNITS))),
        name,
        replaces: if replaces == name { "" } else { replaces },
    }
}

/// The nodes in the syntax of a file.
pub(super) fn written(nodes: &[ModelNode]) -> String {
    let node = |node: &ModelNode| {
        let limit = node.limit.as_ref().map(|limit| {
            let rate = match limit.rate {
                None => "unlimited: true".to_owned(),
                Some((requests, unit)) => {
                    format!("unit: {}, requests_per_unit: {requests}", unit.name())
                }
            };
            let replaces = match limit.replaces {
                "" => String::new(),
                name => format!(", replaces: [{{ name: {name} }}]"),
            };
            format!(", rate_limit: {{ {rate}, name: '{}'{replaces} }}", limit.name)
        });
        format!(
            "{{ key: {}, value: '{}', shadow_mode: {}, quota_mode: {}, share_threshold: {}{}, \
             descriptors: [{}] }}",
            node.key,
            node.value,
            node.shadow,
            node.quota,
            node.shares,
            limit.unwrap_or_default(),
            written(&node.below)
        )
    };
    nodes.iter().map(node).collect::<Vec<_>>().join(", ")
}

/// One descriptor of a request to the reference service.
#[derive(Clone, Debug)]
pub(super) struct DescriptorQuery {
    pub(super) entries: Vec<(&'static str, &'static str)>,
    pub(super) own: Option<(u32, Unit)>,
    pub(super) hits: Hits,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TrafficKind {
    /// Requests that the reference service and Tidegate decide alike.
    Common,
    /// Requests with their own limits, with any charge and with refunds.
    Mixed,
}

pub(super) fn random_query(choices: &mut TrafficRng, traffic: TrafficKind) -> DescriptorQuery {
    let mixed = traffic == TrafficKind::Mixed;
    let entry = |choices: &mut TrafficRng| {
        let value = choices.pick(&["x", "y", "xx", "xy", "z", ""]);
        (choices.pick(&["a", "b", "c"]), value)
    };
    let cost = Cost::new(1 + choices.below(3)).unwrap();
    let hits = match choices.below(8) {
        0 => Hits::Check,
        1 if mixed => Hits::Refund(cost),
        2 if mixed => Hits::Used(cost),
        1 => Hits::Used(cost),
        _ => Hits::Charge(cost),
    };
    let own = (mixed && choices.once_in(3)).then(|| (1 + choices.below(7) as u32, choices.pick(&UNITS)));
    DescriptorQuery { entries: (0..1 + choices.below(2)).map(|_| entry(choices)).collect(), own, hits }
}

//! What dies while leases are out, at random: nodes, the store, a node together with it.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_mutations::Dice;
use tidegate_parts::Server as Redis;

use crate::fleet::Fleet;
use crate::history::{History, Record, now};

/// What dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    Node,
    Store,
    Both,
}

/// One of the faults, from the blow until every node is exact again.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) blow: Blow,
    node: usize,
    pub(crate) began: Nanos,
    /// When everything that died was there again.
    ended: Nanos,
    /// When every node was exact again.
    pub(crate) exact: Nanos,
}

impl Fault {
    pub(crate) fn hits_store(&self) -> bool {
        self.blow != Blow::Node
    }

    /// Whether a request may have failed by it: it was sent to the node that was away.
    pub(crate) fn excuses(&self, record: &Record) -> bool {
        let away = record.heard >= self.began && record.sent <= self.ended;
        self.blow != Blow::Store && record.node == self.node && away
    }

    /// Whether the charge of an admission may be known to nobody any more: the node that made it died
    /// together with the store, and no other node heard of the store since.
    pub(crate) fn took_along<'h>(
        &self,
        history: &'h History,
        rule: &str,
    ) -> impl Fn(&Record) -> bool + use<'h> {
        let (dead, began, ended, both) =
            (self.node, self.began, self.ended, self.blow == Blow::Both);
        let heard = history.of_rule(rule);
        let heard = heard.filter(|r| r.exact() && r.node != dead && r.sent <= began);
        let last = heard.map(|record| record.sent).max().unwrap_or(Nanos::ZERO);
        move |record| {
            both && record.node == dead
                && record.admitted()
                && record.heard > last
                && record.sent <= ended
        }
    }
}

/// What happens next: every kind comes up, in no order.
pub(crate) struct Chance {
    dice: Dice,
    deck: Vec<Blow>,
}

impl Chance {
    pub(crate) fn of(seed: u64) -> Chance {
        Chance {
            dice: Dice::of(seed, 0),
            deck: Vec::new(),
        }
    }

    /// A span from `from` to `to` milliseconds.
    pub(crate) fn millis(&mut self, from: usize, to: usize) -> Duration {
        let millis = from + self.dice.below(to - from);
        Duration::from_millis(millis as u64)
    }

    fn blow(&mut self) -> Blow {
        if self.deck.is_empty() {
            self.deck = vec![Blow::Node, Blow::Node, Blow::Store, Blow::Both];
        }
        let at = self.dice.below(self.deck.len());
        self.deck.swap_remove(at)
    }
}

/// Lets something die, lets it come back after a while, and waits until every node is exact again.
pub(crate) fn strike(store: &mut Redis, fleet: &mut Fleet, chance: &mut Chance) -> Fault {
    let (blow, node) = (chance.blow(), chance.dice.below(fleet.nodes.len()));
    let away = chance.millis(0, 1_500);
    let began = now();
    if blow != Blow::Node {
        store.kill();
    }
    if blow != Blow::Store {
        fleet.kill(node);
    }
    std::thread::sleep(away);
    if blow != Blow::Node {
        store.restart();
    }
    if blow != Blow::Store {
        fleet.restart(node);
    }
    let ended = now();
    fleet.wait_exact();
    Fault {
        blow,
        node,
        began,
        ended,
        exact: now(),
    }
}

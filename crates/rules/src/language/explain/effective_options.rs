//! Effective options of a rule for one request: counting mode, ceiling of its priority, delays and concurrency.

use std::fmt;

use crate::language::load_shedding::{Permille, SoftLimit};
use crate::language::rule::{Rates, Rule};
use crate::language::rule_options::Concurrency;
use crate::request::{Priority, Request};
use tidegate_core::algorithms::Limit;
use tidegate_core::rate::{Rate, parse_rate};
use tidegate_core::store::Counting;
use tidegate_core::units::{Cost, Nanos};

/// Options of a rule for one request, apart from its rates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveOptions {
    /// How the counts of all nodes are combined.
    pub counting: Counting,
    /// What each leased rate gives up for its leases.
    pub leases: Vec<LeasedRate>,
    /// What requests of this priority may use of each rate, if priorities differ.
    pub ceiling: Option<EffectiveCeiling>,
    /// When requests are delayed, and for how long.
    pub soft: Option<SoftLimit>,
    /// How many requests may be in flight at once.
    pub concurrent: Option<Concurrency>,
    /// Cost of the request, if the rule counts in a unit.
    pub unit_cost: Option<UnitCost>,
}

/// Cost of a request in the unit of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitCost {
    /// The unit.
    pub unit: Box<str>,
    /// Number of units.
    pub cost: u64,
    /// Whether the request states the cost. An unstated cost counts as one.
    pub stated: bool,
}

impl UnitCost {
    fn of(unit: &str, request: &Request<'_>) -> Self {
        UnitCost {
            unit: unit.into(),
            cost: request.cost_in(Some(unit)).map_or(0, Cost::get),
            stated: request.costs.iter().any(|(named, _)| named == unit),
        }
    }
}

/// A rate from which leases are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeasedRate {
    /// Lifetime of a lease: how long its units may wait to be used.
    pub duration: Nanos,
    /// The burst as written; `None` for a window, which gives nothing up.
    pub burst: Option<u64>,
    /// How many units can be used at once.
    pub capacity: u64,
}

/// How much of a rule's rates a request may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveCeiling {
    /// Priority of the request.
    pub priority: Priority,
    /// Fraction of each rate that this priority may use.
    pub fraction: Permille,
    /// For each rate, the units that it may use and all units.
    pub units: Vec<(u64, u64)>,
}

impl EffectiveOptions {
    pub(super) fn of(rule: &Rule, rates: &Rates, request: &Request<'_>) -> Self {
        let limits = rates.limits.iter().zip(&rates.texts);
        EffectiveOptions {
            counting: rule.options.counting,
            leases: limits.filter_map(|(limit, text)| leased_rate(limit, text)).collect(),
            ceiling: rule.priority.map(|ceilings| {
                let priority = request.priority();
                let limits = rates.limits_for(priority).iter();
                EffectiveCeiling {
                    priority,
                    fraction: ceilings.of(priority),
                    units: limits.map(|limit| (limit.capacity(), limit.full_capacity())).collect(),
                }
            }),
            soft: rule.soft,
            concurrent: rule.concurrent,
            unit_cost: rule.unit().map(|unit| UnitCost::of(unit, request)),
        }
    }
}

fn leased_rate(limit: &Limit, text: &str) -> Option<LeasedRate> {
    let duration = limit.lease_ttl()?;
    let burst = match parse_rate(text) {
        Ok(Rate::PerWindow(rate)) => rate.burst.unwrap_or(rate.count),
        _ => limit.full_capacity(),
    };
    Some(LeasedRate {
        duration,
        burst: limit.algorithm().takes_burst().then_some(burst),
        capacity: limit.full_capacity(),
    })
}

/// Prints one line for each option that differs from the default.
impl fmt::Display for EffectiveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(UnitCost { unit, cost, stated }) = &self.unit_cost {
            let absent = if *stated { "" } else { ", because the request names no cost in it" };
            write!(f, "\n  cost: {cost} {unit}{absent}")?;
        }
        if let Some(ceiling) = &self.ceiling {
            write!(f, "\n  priority: {ceiling}")?;
        }
        if let Some(soft) = self.soft {
            let (threshold, max_delay) = (soft.threshold(), soft.max_delay());
            write!(f, "\n  soft: delayed from {threshold} of the limit on, by up to {max_delay}")?;
        }
        if self.counting != Counting::Exact {
            write!(f, "\n  counting: {}", self.counting.name())?;
        }
        for leased in &self.leases {
            write!(f, ", {leased}")?;
        }
        match self.concurrent {
            Some(concurrent) => write!(f, "\n  concurrent: {concurrent}, counted by acquire and release alone"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for EffectiveCeiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} may use {}", self.priority.name(), self.fraction)?;
        for (i, (units, whole)) in self.units.iter().enumerate() {
            let before = if i == 0 { ":" } else { " and" };
            write!(f, "{before} {units} of {whole}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LeasedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for {} at most", self.duration)?;
        match self.burst {
            Some(burst) => write!(f, " (burst {} of the {burst} written)", self.capacity),
            None => Ok(()),
        }
    }
}

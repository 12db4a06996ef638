//! A rule after it has been read and checked. Only the compiler of rules makes one.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::concurrency::Concurrency;
use super::condition::{Attribute, Match};
use super::diagnostics::SourceLocation;
use super::load_shedding::{PriorityCeilings, SoftLimit};
use super::subject::{SubjectValue, subject_value};
use crate::algorithms::{Algorithm, Limit};
use crate::request::{Priority, Request};
use crate::store::RuleOptions;
use crate::subject::RuleName;
use crate::units::Nanos;

/// One rule, compiled.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: RuleName,
    pub(crate) kind: RuleKind,
    pub(crate) location: SourceLocation,
    pub(crate) matching: Match,
    pub(crate) by: Arc<By>,
    pub(crate) if_missing: IfMissing,
    pub(crate) mode: Mode,
    pub(crate) unit: Option<Arc<str>>,
    pub(crate) options: RuleOptions,
    pub(crate) max_delay: Option<Nanos>,
    pub(crate) concurrent: Option<Concurrency>,
    /// Whether it has `concurrent` and no `rate`, so that only acquiring a permit concerns it.
    pub(crate) counts_only_permits: bool,
    pub(crate) priority: Option<PriorityCeilings>,
    pub(crate) soft: Option<SoftLimit>,
    pub(crate) algorithm: Algorithm,
    pub(crate) stagger: bool,
    pub(crate) guard: Nanos,
    /// Positions of the rules it takes the place of, ascending.
    pub(crate) replaces: Box<[u32]>,
    /// Every set of rates the rule has; the first is for a client that no tier or override names.
    /// Rules that write the same rates share them.
    pub(crate) rates: Box<[Arc<Rates>]>,
    /// By position in the rules' list of tiers; a tier not named here has the first.
    pub(crate) tiers: Box<[RateClass]>,
    /// By the text of the subject.
    pub(crate) overrides: FxHashMap<Box<str>, RateClass>,
}

/// How a request comes under a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RuleKind {
    /// By its attributes.
    #[default]
    Match,
    /// By its descriptors: the rule is the limit of a node in a tree.
    Descriptor,
    /// By a limit that it brings along: the rule stands for all such limits of a domain.
    RequestOverride,
}

/// Which of a rule's sets of rates applies to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateClass(pub(crate) u32);

/// The rates of a rule for one kind of client.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub(crate) limits: Box<[Limit]>,
    /// As written, one per limit: `1000/minute burst 200`.
    pub(crate) texts: Box<[Box<str>]>,
    /// The same limits as far as each priority may use them, in the order of [`Priority::ALL`]. Made
    /// once, so that a request finds its own.
    by_priority: Option<Box<[Box<[Limit]>; 3]>>,
}

impl Rates {
    pub(crate) fn new(limits: Vec<Limit>, texts: Vec<Box<str>>) -> Self {
        Rates {
            limits: limits.into(),
            texts: texts.into(),
            by_priority: None,
        }
    }

    /// The same, of which each priority may use a part.
    pub(crate) fn with_ceilings(mut self, ceilings: PriorityCeilings) -> Self {
        let scaled_limits = |priority| {
            let limits = self.limits.iter();
            limits.map(move |limit| {
                limit.with_ceiling(ceilings.units(priority, limit.full_capacity()))
            })
        };
        let by_priority = Priority::ALL.map(|priority| scaled_limits(priority).collect());
        self.by_priority = Some(Box::new(by_priority));
        self
    }

    /// The limits, whole. None at all means unlimited.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limits as far as requests of `priority` may use them.
    pub fn limits_for(&self, priority: Priority) -> &[Limit] {
        match &self.by_priority {
            None => &self.limits,
            Some(by_priority) => &by_priority[priority as usize],
        }
    }

    /// Whether that differs.
    pub fn has_priorities(&self) -> bool {
        self.by_priority.is_some()
    }

    /// One rate as written.
    pub fn text(&self, rate: usize) -> &str {
        &self.texts[rate]
    }
}

/// Whose counter a rule charges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// One counter for everybody.
    Global,
    /// The values of all these together.
    All(Vec<Alternatives>),
}

/// Attribute names of which the first that is present counts.
pub type Alternatives = Vec<Box<str>>;

impl By {
    /// Whether `request` has all it takes, so that nothing need be substituted.
    pub(crate) fn is_present(&self, request: &Request<'_>) -> bool {
        let one_of = |names: &Alternatives| {
            names
                .iter()
                .any(|name| Attribute::is_present(name, request))
        };
        match self {
            By::Global => true,
            By::All(parts) => parts.iter().all(one_of),
        }
    }

    /// How many values make a subject; for everybody, none.
    pub(crate) fn arity(&self) -> u8 {
        match self {
            By::Global => 0,
            By::All(parts) => u8::try_from(parts.len()).unwrap_or(u8::MAX),
        }
    }

    /// Every attribute it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let parts = match self {
            By::Global => &[][..],
            By::All(parts) => &parts[..],
        };
        parts.iter().flatten().map(|name| &**name)
    }
}

/// As a rules file writes it: `api_key|ip`, `[api_key, method]`, `global`.
impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Global => f.write_str("global"),
            By::All(parts) if parts.len() == 1 => f.write_str(&parts[0].join("|")),
            By::All(parts) => {
                let parts: Vec<String> = parts.iter().map(|names| names.join("|")).collect();
                write!(f, "[{}]", parts.join(", "))
            }
        }
    }
}

/// What happens to a request without the attribute a rule counts by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IfMissing {
    /// It is counted by its address, and without one together with all others that have none.
    #[default]
    Substitute,
    /// The rule does not apply.
    Skip,
}

/// What a rule does with its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Refuses.
    #[default]
    Enforce,
    /// Counts what it would refuse.
    Shadow,
    /// Nothing.
    Off,
}

/// What a caller wants of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To have one request decided.
    Check,
    /// To have it decided and to hold a permit of every rule with `concurrent`.
    Acquire,
}

impl Rule {
    /// A rule that has a name, a place and rates, and all else as usual.
    pub(crate) fn with_defaults(
        name: RuleName,
        location: SourceLocation,
        rates: Arc<Rates>,
    ) -> Self {
        Rule {
            name,
            kind: RuleKind::default(),
            location,
            matching: Match::default(),
            by: Arc::new(By::Global),
            if_missing: IfMissing::default(),
            mode: Mode::default(),
            unit: None,
            options: RuleOptions::DEFAULT,
            max_delay: None,
            concurrent: None,
            counts_only_permits: false,
            priority: None,
            soft: None,
            algorithm: Algorithm::FixedWindow,
            stagger: false,
            guard: Nanos::ZERO,
            replaces: Box::default(),
            rates: [rates].into(),
            tiers: Box::default(),
            overrides: FxHashMap::default(),
        }
    }

    /// How a request comes under it.
    pub fn kind(&self) -> RuleKind {
        self.kind
    }

    /// Its name: unique among the rules that requests come under by their attributes.
    pub fn name(&self) -> &RuleName {
        &self.name
    }

    /// Whose counter it charges.
    pub fn by(&self) -> &By {
        &self.by
    }

    /// What happens when that is absent.
    pub fn if_missing(&self) -> IfMissing {
        self.if_missing
    }

    /// What it does with its verdict.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The unit it counts, if not requests.
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// The longest delay a client of this rule may be given.
    pub fn max_delay(&self) -> Option<Nanos> {
        self.max_delay
    }

    /// How many requests of one subject may be open at once, if that is limited.
    pub fn concurrent(&self) -> Option<Concurrency> {
        self.concurrent
    }

    /// How much of its limits requests of each priority may use, if they differ.
    pub fn priority(&self) -> Option<PriorityCeilings> {
        self.priority
    }

    /// How requests are delayed before they are refused, if they are.
    pub fn soft(&self) -> Option<SoftLimit> {
        self.soft
    }

    /// What it asks of the store.
    pub fn options(&self) -> &RuleOptions {
        &self.options
    }

    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Where it stands in the rules.
    pub fn location(&self) -> &SourceLocation {
        &self.location
    }

    /// Whether single subjects have rates of their own, so that the text of a subject matters.
    pub fn has_overrides(&self) -> bool {
        !self.overrides.is_empty()
    }

    /// Which rates a client of `tier` has whose subject reads `subject`. A client without a tier has
    /// the first tier. The text of a subject is the value of `by`: of an API key the name it is
    /// listed under, of an address its canonical form, of several attributes their values joined by
    /// `,`, with a backslash before a comma or backslash inside a value.
    pub fn rate_class(&self, tier: Option<u16>, subject: &str) -> RateClass {
        if let Some(own) = self.overrides.get(subject) {
            return *own;
        }
        let tier = usize::from(tier.unwrap_or(0));
        self.tiers.get(tier).copied().unwrap_or_default()
    }

    /// The rates of a class.
    pub fn rates(&self, rate_class: RateClass) -> &Rates {
        &self.rates[rate_class.0 as usize]
    }

    /// The limits for a client of `tier` whose subject reads `subject`. Empty means unlimited.
    pub fn limits(&self, tier: Option<u16>, subject: &str) -> &[Limit] {
        self.rates(self.rate_class(tier, subject)).limits()
    }

    /// The limit in place `rate` of any class that has parameters `tag`: what a counter was charged
    /// under, if the rule still knows it.
    pub fn limit_with_tag(&self, rate: usize, tag: u32) -> Option<&Limit> {
        let limits = self.rates.iter().filter_map(|rates| rates.limits.get(rate));
        limits.into_iter().find(|limit| limit.tag() == tag)
    }

    /// Whether the counter of this rule for `request` belongs to the client that the request names: by the
    /// attributes of `by`, or by the address in their place. A `by: global` rule has one counter for all
    /// clients, and requests with neither attribute nor address share another.
    pub fn has_own_counter(&self, request: &Request<'_>) -> bool {
        let By::All(parts) = &*self.by else {
            return false;
        };
        parts.iter().all(|alternatives| {
            let value = subject_value(alternatives, self.if_missing, request);
            value.is_some_and(|value| !matches!(value, SubjectValue::Anonymous))
        })
    }

    /// Whether it has anything to say about `request`, before others take its place.
    pub(crate) fn applies(&self, request: &Request<'_>) -> bool {
        self.mode != Mode::Off
            && self.counts(request)
            && self.matching.matches(request)
            && (self.if_missing == IfMissing::Substitute || self.by.is_present(request))
    }

    /// Whether `request` costs anything in the unit of this rule.
    pub(crate) fn counts(&self, request: &Request<'_>) -> bool {
        self.unit.is_none() || request.cost_in(self.unit()).is_some()
    }

    /// Whether it takes the place of `other`, which stands at `position`, where both apply. A rule
    /// that is only tried out never takes the place of one that is in force, and one that counts only
    /// permits takes the place of another only where a permit is acquired: a check would pass free.
    pub(crate) fn displaces(&self, other: &Rule, position: u32, purpose: Purpose) -> bool {
        self.replaces.binary_search(&position).is_ok()
            && (self.mode == Mode::Enforce || other.mode == Mode::Shadow)
            && (purpose == Purpose::Acquire || !self.counts_only_permits)
    }
}

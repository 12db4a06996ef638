//! A rule after parsing and checking. Only the rules compiler creates one.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::condition::{Attribute, Match};
use super::diagnostics::SourceLocation;
use super::load_shedding::{PriorityCeilings, SoftLimit};
use super::rule_options::Concurrency;
use super::subject::{SubjectValue, subject_value};
use crate::request::{Priority, Request};
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::rule_options::RuleOptions;
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

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
    /// Whether it has `concurrent` and no `rate`, so that it matters only when a permit is acquired.
    pub(crate) counts_only_permits: bool,
    pub(crate) priority: Option<PriorityCeilings>,
    pub(crate) soft: Option<SoftLimit>,
    pub(crate) algorithm: Algorithm,
    pub(crate) stagger: bool,
    pub(crate) guard: Nanos,
    /// Positions of the rules that it replaces, ascending.
    pub(crate) replaces: Box<[u32]>,
    /// All rate sets of the rule. The first is for clients without a tier or override of their own. Rules with equal
    /// rates share them.
    pub(crate) rates: Box<[Arc<Rates>]>,
    /// Rate classes by position in the list of tiers. A tier that the rule does not name has the first class.
    pub(crate) tiers: Box<[RateClass]>,
    /// Rate classes by the text of the subject.
    pub(crate) overrides: FxHashMap<Box<str>, RateClass>,
}

/// How a request matches a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RuleKind {
    /// By its attributes.
    #[default]
    Match,
    /// By its descriptors: the rule is the limit of a node in a tree.
    Descriptor,
    /// By a limit that the request brings along: the rule stands for all such limits of a domain.
    RequestOverride,
}

/// Which of a rule's rate sets applies to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateClass(pub(crate) u32);

/// The rates of a rule for one class of clients.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub(crate) limits: Box<[Limit]>,
    /// As written, one per limit: `1000/minute burst 200`.
    pub(crate) texts: Box<[Box<str>]>,
    /// The same limits with the ceiling of each priority, in the order of [`Priority::ALL`]. Computed once, so that a
    /// request only looks up its own.
    by_priority: Option<Box<[Box<[Limit]>; 3]>>,
}

impl Rates {
    pub(crate) fn new(limits: Vec<Limit>, texts: Vec<Box<str>>) -> Self {
        Rates { limits: limits.into(), texts: texts.into(), by_priority: None }
    }

    /// Adds the ceiling of each priority.
    pub(crate) fn with_ceilings(mut self, ceilings: PriorityCeilings) -> Self {
        let scaled_limits = |priority| {
            self.limits.iter().map(move |limit| limit.with_ceiling(ceilings.units(priority, limit.full_capacity())))
        };
        let by_priority = Priority::ALL.map(|priority| scaled_limits(priority).collect());
        self.by_priority = Some(Box::new(by_priority));
        self
    }

    /// The full limits. Empty means unlimited.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limits with the ceiling of `priority`.
    pub fn limits_for(&self, priority: Priority) -> &[Limit] {
        match &self.by_priority {
            None => &self.limits,
            Some(by_priority) => &by_priority[priority as usize],
        }
    }

    /// Whether priorities have different ceilings.
    pub fn has_priorities(&self) -> bool {
        self.by_priority.is_some()
    }

    /// One rate as written.
    pub fn text(&self, rate: usize) -> &str {
        &self.texts[rate]
    }
}

/// Which counter a rule charges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// One counter for everybody.
    Global,
    /// One counter for each combination of these values.
    All(Vec<Alternatives>),
}

/// Names of attributes. The first that is present counts.
pub type Alternatives = Vec<Box<str>>;

impl By {
    /// Whether `request` has every attribute, so that none has to be substituted.
    pub(crate) fn is_present(&self, request: &Request<'_>) -> bool {
        let one_of = |names: &Alternatives| names.iter().any(|name| Attribute::is_present(name, request));
        match self {
            By::Global => true,
            By::All(parts) => parts.iter().all(one_of),
        }
    }

    /// Number of values in a subject; 0 for `global`.
    pub(crate) fn arity(&self) -> u8 {
        match self {
            By::Global => 0,
            By::All(parts) => u8::try_from(parts.len()).unwrap_or(u8::MAX),
        }
    }

    /// Every attribute that it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let parts = match self {
            By::Global => &[][..],
            By::All(parts) => &parts[..],
        };
        parts.iter().flatten().map(|name| &**name)
    }
}

/// Prints the form of a rules file: `api_key|ip`, `[api_key, method]`, `global`.
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

tidegate_core::named_enum! {
    /// Treatment of a request without the attribute that a rule counts by.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub enum IfMissing {
        /// The request is counted by its address. Requests without an address share one counter.
        #[default]
        Substitute = "substitute",
        /// The rule does not apply.
        Skip = "skip",
    }
}

tidegate_core::named_enum! {
    /// Effect of a rule's verdict.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub enum Mode {
        /// Denies.
        #[default]
        Enforce = "enforce",
        /// Counts what it would deny.
        Shadow = "shadow",
        /// None: the rule never applies.
        Off = "off",
    }
}

/// What a caller needs from the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A decision about one request.
    Check,
    /// A decision, and a permit of every rule with `concurrent`.
    Acquire,
}

impl Rule {
    /// A rule with a name, a location and rates, and defaults for all else.
    pub(crate) fn with_defaults(name: RuleName, location: SourceLocation, rates: Arc<Rates>) -> Self {
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

    /// How a request matches the rule.
    pub fn kind(&self) -> RuleKind {
        self.kind
    }

    /// Name of the rule, unique among the rules that match by attributes.
    pub fn name(&self) -> &RuleName {
        &self.name
    }

    /// Which counter it charges.
    pub fn by(&self) -> &By {
        &self.by
    }

    /// Treatment of a request without the attribute that it counts by.
    pub fn if_missing(&self) -> IfMissing {
        self.if_missing
    }

    /// Effect of its verdict.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Every attribute that it matches or counts by.
    pub(crate) fn attribute_names(&self) -> impl Iterator<Item = &str> {
        self.matching.conditions().map(|condition| condition.attribute.name()).chain(self.by.names())
    }

    /// The unit that it counts, if not requests.
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// Maximum delay for a client of this rule.
    pub fn max_delay(&self) -> Option<Nanos> {
        self.max_delay
    }

    /// How many requests of one subject may be in flight at once, if that is limited.
    pub fn concurrent(&self) -> Option<Concurrency> {
        self.concurrent
    }

    /// How much of its limits requests of each priority may use, if they differ.
    pub fn priority(&self) -> Option<PriorityCeilings> {
        self.priority
    }

    /// How requests are delayed before they are denied, if they are.
    pub fn soft(&self) -> Option<SoftLimit> {
        self.soft
    }

    /// Options that the store has to follow.
    pub fn options(&self) -> &RuleOptions {
        &self.options
    }

    /// Algorithm of its limits.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Source location of the rule.
    pub fn location(&self) -> &SourceLocation {
        &self.location
    }

    /// Whether single subjects have rates of their own, so that the text of a subject matters.
    pub fn has_overrides(&self) -> bool {
        !self.overrides.is_empty()
    }

    /// The rate class of a client with `tier` whose subject reads `subject`. A client without a tier has the first
    /// tier. The text of a subject is the value of `by`: for an API key the name it is listed under, for an address
    /// its canonical form, for several attributes their values joined by `,`, with a backslash before a comma or
    /// backslash inside a value.
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

    /// The limits of a client with `tier` whose subject reads `subject`. Empty means unlimited.
    pub fn limits(&self, tier: Option<u16>, subject: &str) -> &[Limit] {
        self.rates(self.rate_class(tier, subject)).limits()
    }

    /// The limit at index `rate` of any class whose parameters have `tag`: the limit under which a counter was
    /// charged, if the rule still has it.
    pub fn limit_with_tag(&self, rate: usize, tag: u32) -> Option<&Limit> {
        self.rates.iter().filter_map(|rates| rates.limits.get(rate)).find(|limit| limit.tag() == tag)
    }

    /// Whether the counter of this rule for `request` belongs to the client that the request names: by the
    /// attributes of `by`, or by the address in their place. A `by: global` rule has one counter for all
    /// clients, and requests with neither attribute nor address share another.
    pub fn has_own_counter(&self, request: &Request<'_>) -> bool {
        let By::All(parts) = &*self.by else { return false };
        parts.iter().all(|alternatives| {
            let value = subject_value(alternatives, self.if_missing, request);
            value.is_some_and(|value| !matches!(value, SubjectValue::Anonymous))
        })
    }

    /// Whether the rule applies to `request`, before replacements.
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

    /// Whether this rule replaces `other`, the rule at `position`, where both apply. A shadow rule never replaces one
    /// that is in force. A rule that counts only permits replaces another only where a permit is acquired: otherwise
    /// a check would pass without a limit.
    pub(crate) fn displaces(&self, other: &Rule, position: u32, purpose: Purpose) -> bool {
        self.replaces.binary_search(&position).is_ok()
            && (self.mode == Mode::Enforce || other.mode == Mode::Shadow)
            && (purpose == Purpose::Acquire || !self.counts_only_permits)
    }
}

//! The types of the Envoy rate limit protocol: the descriptors of a request, and the status of each. The rules find
//! limits for descriptors, the engine charges them, the edge handles bytes.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use tidegate_core::units::{Cost, Nanos};

/// A request as Envoy describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DescribedRequest<'a> {
    /// The domain of its limits. A domain that no file names has none.
    pub domain: &'a str,
    /// Each is looked up on its own, and has its own status.
    pub descriptors: SmallVec<[Descriptor<'a>; 4]>,
}

/// A key and a value. The operator chooses the key. The value may be anything a client has sent, so it is owned if it
/// had to be made valid UTF-8.
pub type DescriptorEntry<'a> = (&'a str, Cow<'a, str>);

/// One description of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor<'a> {
    /// Keys and values, from the general to the special.
    pub entries: SmallVec<[DescriptorEntry<'a>; 4]>,
    /// A limit from the caller, in place of the limits in the files.
    pub limit_override: Option<DescriptorOverride>,
    /// The charge of this descriptor.
    pub hits: Hits,
}

/// A limit that comes with a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DescriptorOverride {
    /// Requests per unit; zero denies everything.
    pub requests: u32,
    /// The window.
    pub unit: Unit,
}

/// The kind and size of a descriptor's charge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hits {
    /// The cost of the request, charged if it may pass.
    Charge(Cost),
    /// The units already used, as reported by the descriptor: counted even beyond the limit.
    Used(Cost),
    /// Nothing: only checks whether any units are left.
    Check,
    /// The excess of an earlier charge.
    Refund(Cost),
}

tidegate_core::named_enum! {
    /// The windows of the protocol. They begin at multiples of their length since the Unix epoch, not by the calendar.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Unit {
        /// A second.
        Second = "second",
        /// A minute.
        Minute = "minute",
        /// An hour.
        Hour = "hour",
        /// A day.
        Day = "day",
        /// Seven days.
        Week = "week",
        /// Thirty days.
        Month = "month",
        /// 365 days.
        Year = "year",
    }
}

impl Unit {
    /// The unit with this name in a file, in letters of any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// The unit of this length.
    pub fn of_length(length: Nanos) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.length() == length)
    }

    /// The time left in the window that contains `at`.
    pub const fn time_left_at(self, at: Nanos) -> Nanos {
        let length = self.length().get();
        Nanos::new(length - at.get() % length)
    }

    /// Its length.
    pub const fn length(self) -> Nanos {
        const DAY: u64 = 86_400;
        Nanos::from_secs(match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        })
    }
}

/// How descriptors are decided. The reference service has other defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DescriptorOptions {
    /// The charge of a denied request.
    pub charge_on_denial: ChargeOnDenial,
    /// When a descriptor with 0 hits is over its limit.
    pub zero_hits: ZeroHits,
    /// Whether every descriptor is a budget of which one must have room.
    pub all_quota: bool,
    /// Whether no request is denied, whatever the statuses of its descriptors.
    pub all_shadow: bool,
}

/// When a descriptor with 0 hits is over its limit. It charges nothing and only checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroHits {
    /// When nothing of the limit is left.
    #[default]
    OverAtLimit,
    /// When more than the limit was charged. Requests that are denied at the limit are charged for that.
    OverAboveLimit,
}

/// The charge of a denied request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChargeOnDenial {
    /// Nothing, except the units that it reports as used.
    #[default]
    Nothing,
    /// The limits that deny it.
    Violated,
    /// Every limit.
    All,
}

/// The status of one descriptor.
#[derive(Clone, PartialEq, Debug)]
pub struct Status<'r> {
    /// Whether it is over its limit. Never in shadow mode.
    pub over_limit: bool,
    /// Whether it would be, without shadow mode.
    pub shadow_over_limit: bool,
    /// The limit that decided, if there is one.
    pub limit: Option<StatusLimit<'r>>,
    /// The units left; `u32::MAX` for an `unlimited` node, 0 without a limit.
    pub remaining: u32,
    /// When its window ends, if it has a limit.
    pub reset_after: Option<Nanos>,
    /// Whether it is one of several budgets.
    pub quota: bool,
    /// The metadata of its rule.
    pub metadata: Option<&'r Metadata>,
    /// The units of its limit used before, at most all of it.
    pub used_before: u32,
    /// The stats key of the reference service, as written: the path of its node, or one with values of the request in
    /// it. The caller chooses those values, so the edge must bound their number; the text is at most
    /// [`MAX_STATS_BYTES`] long. `None` without a limit.
    pub stats: Option<Cow<'r, str>>,
}

/// The maximum length of a stats key with values of the request in it.
pub const MAX_STATS_BYTES: usize = 256;

impl Status<'_> {
    /// The status of a descriptor without a limit.
    pub const NO_LIMIT: Status<'static> = Status {
        over_limit: false,
        shadow_over_limit: false,
        limit: None,
        remaining: 0,
        reset_after: None,
        quota: false,
        metadata: None,
        used_before: 0,
        stats: None,
    };
}

/// The limit in the status of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusLimit<'r> {
    /// Requests per unit, as written.
    pub requests: u32,
    /// The window, if it is one of the protocol's.
    pub unit: Option<Unit>,
    /// The name of the limit, if it has one.
    pub name: Option<&'r str>,
}

/// Metadata that a rule attaches to the status of a descriptor: any YAML value, unchanged.
#[derive(Clone, PartialEq, Debug)]
pub enum Metadata {
    /// Nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number, as in protocols without integers.
    Number(f64),
    /// A text.
    Text(Box<str>),
    /// A sequence.
    List(Vec<Metadata>),
    /// A mapping, in the order written.
    Map(Vec<(Box<str>, Metadata)>),
}

/// Numbers are hashed by their bits.
impl Hash for Metadata {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        std::mem::discriminant(self).hash(hasher);
        match self {
            Metadata::Null => {}
            Metadata::Bool(value) => value.hash(hasher),
            Metadata::Number(number) => number.to_bits().hash(hasher),
            Metadata::Text(text) => text.hash(hasher),
            Metadata::List(values) => values.hash(hasher),
            Metadata::Map(values) => values.hash(hasher),
        }
    }
}

//! The words of the Envoy rate limit protocol: what a request says of itself by descriptors, and what it
//! is told about each. How limits are found for descriptors is the rules' business, what they are charged
//! the engine's; bytes are the edge's.

mod metadata;

use std::borrow::Cow;

use smallvec::SmallVec;

pub use self::metadata::Metadata;
use crate::units::{Cost, Nanos};

/// A request as Envoy describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DescribedRequest<'a> {
    /// Whose limits. A domain that no file names has none.
    pub domain: &'a str,
    /// Each is looked up on its own, and answered on its own.
    pub descriptors: SmallVec<[Descriptor<'a>; 4]>,
}

/// A key and a value. The operator chooses the key; the value may be anything a client has sent, so it
/// is owned where it had to be made readable.
pub type DescriptorEntry<'a> = (&'a str, Cow<'a, str>);

/// One description of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor<'a> {
    /// Keys and values, from the general to the special.
    pub entries: SmallVec<[DescriptorEntry<'a>; 4]>,
    /// A limit that the caller brings along, instead of what the files say.
    pub limit_override: Option<DescriptorOverride>,
    /// What this is about to use.
    pub hits: Hits,
}

/// A limit that comes with a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DescriptorOverride {
    /// Requests per unit; none at all means that everything is refused.
    pub requests: u32,
    /// The window.
    pub unit: Unit,
}

/// What a descriptor is charged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hits {
    /// What the request costs, if it may pass.
    Charge(Cost),
    /// What has been used, by the descriptor's own word: counted whether it fits or not.
    Used(Cost),
    /// Nothing: whether anything is left is all that is asked.
    Check,
    /// What was charged too much.
    Refund(Cost),
}

/// The windows of the protocol. They begin at multiples of their length since the epoch, not by the
/// calendar.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// Seven days.
    Week,
    /// Thirty days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Unit; 7] = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Week,
        Unit::Month,
        Unit::Year,
    ];

    /// As a file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// The unit that a file calls `name`, in letters of any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// The unit that is so long.
    pub fn of_length(length: Nanos) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.length() == length)
    }

    /// How long the window that holds `at` goes on.
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

/// In what manner descriptors are decided; the reference service has others than we.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DescriptorOptions {
    /// What a refused request is charged.
    pub charge_on_denial: ChargeOnDenial,
    /// When a descriptor with 0 hits is over its limit.
    pub zero_hits: ZeroHits,
    /// Whether every descriptor is a budget of which one must have room.
    pub all_quota: bool,
    /// Whether no request is refused, whatever its descriptors are told.
    pub all_shadow: bool,
}

/// When a descriptor with 0 hits is over its limit. It spends nothing and only checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroHits {
    /// When nothing of the limit is left.
    #[default]
    OverAtLimit,
    /// When more than the limit was charged. Requests that are denied at the limit are charged for that.
    OverAboveLimit,
}

/// What a refused request is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChargeOnDenial {
    /// Nothing, but for what it says has been used.
    #[default]
    Nothing,
    /// The limits that refuse it.
    Violated,
    /// Every limit.
    All,
}

/// What one descriptor is told.
#[derive(Clone, PartialEq, Debug)]
pub struct Status<'r> {
    /// Whether it is over its limit. One that only watches never is.
    pub over_limit: bool,
    /// Whether it would be, if it did not only watch.
    pub shadow_over_limit: bool,
    /// The limit that decided, if there is one.
    pub limit: Option<StatusLimit<'r>>,
    /// What is left; of what is unlimited, `u32::MAX`.
    pub remaining: u32,
    /// When its window ends, where it has a limit.
    pub reset_after: Option<Nanos>,
    /// Whether it is one of several budgets.
    pub quota: bool,
    /// What its rule wants to be told along.
    pub metadata: Option<&'r Metadata>,
    /// What was used of its limit before, at most all of it.
    pub used_before: u32,
    /// What the reference service counts it under, as written: the path of its node, or one with
    /// values of the request in it. Those a caller chooses, so their number is for the edge to bound;
    /// the text is at most [`MAX_STATS_BYTES`] long. None without a limit.
    pub stats: Option<Cow<'r, str>>,
}

/// The longest text under which a status is counted that has values of the request in it.
pub const MAX_STATS_BYTES: usize = 256;

impl Status<'_> {
    /// What a descriptor without a limit is told.
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

/// The limit a descriptor is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusLimit<'r> {
    /// Requests per unit, as written.
    pub requests: u32,
    /// The window, if it is one of the protocol's.
    pub unit: Option<Unit>,
    /// The name of the limit, if it has one.
    pub name: Option<&'r str>,
}

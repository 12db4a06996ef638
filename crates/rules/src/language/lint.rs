//! Warnings about rules that are valid and probably not meant.
//!
//! Each check looks at one thing and reports what it causes and what to write. A warning never stops a reload.

mod access_lists;
mod client_choice;
mod hidden_descriptors;
pub(super) mod keys;
mod names;
mod unreachable_rules;

use std::cmp::Ordering;

use super::diagnostics::{SourceLocation, Warning, quoted};
use super::glob::Glob;
use super::rule::{By, IfMissing, Mode, RateClass, Rates, Rule};
use super::rule_set::RuleSet;
use super::values::{self, methods};
use tidegate_core::algorithms::{Algorithm, Limit, MAX_LOG_ENTRIES};
use tidegate_core::rate::{Rate, RateWindow, parse_rate};
use tidegate_core::rule_options::Counting;
use tidegate_core::units::Nanos;

/// All warnings about `set`, in file order.
pub fn lint(set: &RuleSet) -> Vec<Warning> {
    let mut warnings = set.warnings.clone();
    check_set(set, &mut warnings);
    let guarded = set.native_rules().any(limits_addresses);
    for rule in set.native_rules() {
        let mut warn = |message: String| warnings.push(warning(rule, message));
        login_by_fixed_window(rule, &mut warn);
        large_log(rule, &mut warn);
        skipped_when_missing(rule, &mut warn);
        small_burst(rule, &mut warn);
        redundant_rate(rule, &mut warn);
        client_chosen_subject(rule, guarded, &mut warn);
        client_choice::check(rule, set, &mut warn);
        unverified_keys(rule, set, &mut warn);
        named_keys(rule, set, &mut warn);
        matched_digests(rule, &mut warn);
        ineffective_fields(rule, &mut warn);
        durable_for_seconds(rule, &mut warn);
        never_leased(rule, &mut warn);
        lenient_and_strict(rule, &mut warn);
        concurrency_without_rate(rule, &mut warn);
        options_without_rate(rule, &mut warn);
        unknown_method(rule, &mut warn);
        descending_tiers(rule, set, &mut warn);
    }
    domains_without_limits(set, &mut warnings);
    hidden_descriptors::check(set, &mut warnings);
    names::check(set, &mut warnings);
    unreachable_rules::check(set, &mut warnings);
    access_lists::check(set, &mut warnings);
    sort(set, &mut warnings);
    warnings
}

/// As [`lint`], with the checks that depend on the time and on the keys file: list entries that have expired at
/// `now`, names of keys for which `is_listed` is false, overrides for `sha256:HEX` where `name_of` has a name for that
/// key or `None`: the key is not listed, and blocked keys that `allow` has in their other form. The name of a key without
/// one is empty.
pub fn lint_with_keys<'k>(
    set: &RuleSet,
    now: Nanos,
    is_listed: impl Fn(&str) -> bool,
    name_of: impl Fn(&str) -> Option<&'k str>,
) -> Vec<Warning> {
    let mut warnings = lint(set);
    access_lists::check_ended(set, now, &mut warnings);
    access_lists::check_overridden_keys(set, &name_of, &mut warnings);
    keys::check(set, &is_listed, &mut warnings);
    keys::check_digests(set, &name_of, &mut warnings);
    sort(set, &mut warnings);
    warnings
}

/// Sorts by file and line.
fn sort(set: &RuleSet, warnings: &mut [Warning]) {
    let mut files: Vec<_> = set.rules().iter().map(|rule| &rule.location.file).collect();
    files.dedup();
    warnings.sort_by_key(|warning| {
        let file = files.iter().position(|file| **file == warning.location.file);
        (file, warning.location.line)
    });
}

fn warning(rule: &Rule, message: String) -> Warning {
    Warning { location: rule.location.clone(), rule: Some(rule.name.as_str().into()), message }
}

fn check_set(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let location = SourceLocation { file: set.source.clone(), line: 0 };
    let mut warn = |message: &str| warnings.push(Warning::new(&location, message.to_owned()));
    if set.rules().is_empty() {
        warn("has no rules: everything passes");
    } else if set.rules().iter().all(|rule| rule.mode == Mode::Off) {
        warn("has only rules that are off: everything passes");
    }
    if !set.tiers().is_empty() && set.keys_file().is_none() {
        warn("has tiers but no `keys_file`, so that every client is in the first tier; write one");
    }
    if set.has_timezone && !set.rules().iter().any(follows_calendar) {
        warn(
            "has a `timezone`, but no rate per day, week or month that follows it; remove it, or write \
             a rate such as 1000/day",
        );
    }
}

/// Domains of Envoy without any limit.
fn domains_without_limits(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let domains = set.descriptors.domains.iter();
    warnings.extend(domains.filter(|domain| !domain.root.has_limits()).map(|domain| {
        let message = format!("has no limits in the domain {}: everything passes", quoted(&domain.name));
        Warning::new(&domain.location, message)
    }));
}

/// Whether a rule has a calendar window.
fn follows_calendar(rule: &Rule) -> bool {
    let on_calendar = |text: &str| match parse_rate(text) {
        Ok(Rate::PerWindow(rate)) => matches!(rate.window, RateWindow::Calendar(_)),
        _ => false,
    };
    rule.algorithm == Algorithm::FixedWindow && all_limits(rule).any(|(_, text)| on_calendar(text))
}

/// Words in paths where passwords are guessed.
const LOGIN_WORDS: [&str; 8] = ["login", "signin", "sign-in", "password", "otp", "token", "auth", "session"];

fn login_by_fixed_window(rule: &Rule, warn: &mut impl FnMut(String)) {
    let login = unreachable_rules::paths(rule).find(|path| {
        let path = path.to_ascii_lowercase();
        LOGIN_WORDS.iter().any(|word| path.contains(word))
    });
    if let Some(path) = login
        && rule.algorithm == Algorithm::FixedWindow
        && rule.guard.get() == 0
    {
        warn(format!(
            "counts {path} by a fixed window, which allows twice the limit around an edge; \
             write `algorithm: sliding-log`, or a `guard`"
        ));
    }
}

fn large_log(rule: &Rule, warn: &mut impl FnMut(String)) {
    if rule.algorithm != Algorithm::SlidingLog {
        return;
    }
    let counts = all_limits(rule).map(|(limit, _)| limit.count());
    if let Some(count) = counts.max().filter(|count| *count > MAX_LOG_ENTRIES) {
        warn(format!(
            "logs {count} requests per subject, but a log stores only {MAX_LOG_ENTRIES} times, rounded \
             up; write `algorithm: sliding-window-strict`"
        ));
    }
}

fn skipped_when_missing(rule: &Rule, warn: &mut impl FnMut(String)) {
    if rule.if_missing == IfMissing::Skip && *rule.by != By::Global {
        warn(format!(
            "has `if_missing: skip`, so that clients that leave out {} are not limited by it; remove it \
             unless another rule limits them",
            rule.by
        ));
    }
}

/// The largest cost that a unit usually has: a response of a language model, an upload.
const TYPICAL_UNIT_COST: u64 = 1_000;

fn small_burst(rule: &Rule, warn: &mut impl FnMut(String)) {
    let Some(unit) = &rule.unit else { return };
    for (limit, written) in all_limits(rule) {
        if limit.count() >= TYPICAL_UNIT_COST && limit.capacity() < TYPICAL_UNIT_COST {
            warn(format!(
                "has rate `{written}`, which always denies requests that cost more than {} {unit}; write a larger burst",
                limit.capacity()
            ));
        }
    }
}

/// Warns about a rate that another rate of the rule always undercuts.
fn redundant_rate(rule: &Rule, warn: &mut impl FnMut(String)) {
    for rates in all_rates(rule) {
        for (i, limit) in rates.limits.iter().enumerate() {
            let binds_first = rates.limits.iter().enumerate().position(|(j, other)| {
                let no_more = other.count() <= limit.count()
                    && other.per() >= limit.per()
                    && other.capacity() <= limit.capacity();
                j != i && no_more && (other != limit || j < i)
            });
            if let Some(other) = binds_first {
                warn(format!(
                    "has rate `{}`, which can never bind beside `{}`; remove it",
                    rates.texts[i], rates.texts[other]
                ));
            }
        }
    }
}

fn client_chosen_subject(rule: &Rule, guarded: bool, warn: &mut impl FnMut(String)) {
    let chosen = rule.by.names().find(|name| name.starts_with("header."));
    if let Some(name) = chosen.filter(|_| !guarded) {
        warn(format!(
            "counts by {name}, which clients choose themselves, and there is no rule by ip beside it; write one"
        ));
    }
}

/// Whether a rule limits nothing for anybody.
fn is_unlimited(rule: &Rule) -> bool {
    rule.rates.len() == 1 && rule.rates[0].limits.is_empty() && rule.concurrent.is_none()
}

/// Whether a rule limits one address, or all clients together.
fn limits_addresses(rule: &Rule) -> bool {
    let by_address = *rule.by == By::Global || rule.by.names().eq(["ip"]);
    by_address && rule.mode == Mode::Enforce && !rule.rates[0].limits.is_empty()
}

fn unverified_keys(rule: &Rule, set: &RuleSet, warn: &mut impl FnMut(String)) {
    if set.keys_file().is_none() && rule.by.names().any(|name| name == "api_key") {
        warn(
            "counts by api_key, but there is no `keys_file`: every invented key has a budget of its own; write one"
                .to_owned(),
        );
    }
}

/// Warns about a pattern for names of keys where no key has a name.
fn named_keys(rule: &Rule, set: &RuleSet, warn: &mut impl FnMut(String)) {
    if set.keys_file().is_some() {
        return;
    }
    for texts in rule.matching.texts("api_key") {
        if let Some(glob) = texts.globs.iter().find(|glob| !glob.matches_everything()) {
            warn(format!(
                "matches api_key {}, but without a `keys_file` no key has a name, so that it has no effect; write one",
                quoted(glob.as_str())
            ));
        }
    }
}

/// Warns about the digest of a key in a `match`, which compares names.
fn matched_digests(rule: &Rule, warn: &mut impl FnMut(String)) {
    for texts in rule.matching.texts("api_key") {
        let texts = texts.literals.iter().map(|text| &**text).chain(texts.globs.iter().map(Glob::as_str));
        for text in texts.filter(|text| keys::is_digest(text)) {
            warn(format!(
                "matches api_key {}, but a match compares names, so that it has no effect; give the key a name in \
                 the keys file and write that",
                quoted(text)
            ));
        }
    }
}

fn unknown_method(rule: &Rule, warn: &mut impl FnMut(String)) {
    let literals = rule.matching.texts("method").flat_map(|texts| &texts.literals);
    for method in literals.filter(|text| !methods::is_known(text)) {
        warn(format!("matches {}", values::unregistered_method(method)));
    }
}

fn ineffective_fields(rule: &Rule, warn: &mut impl FnMut(String)) {
    let mut calendar_rates = all_limits(rule).filter(|(limit, _)| !limit.is_staggered());
    if rule.stagger
        && let Some((_, rate)) = calendar_rates.next()
    {
        warn(format!(
            "has `stagger`, but the windows of {rate} follow the calendar and are not staggered; write days as \
             24h, weeks as 168h and months as 720h, or remove it"
        ));
    }
    if is_unlimited(rule) && rule.replaces.is_empty() {
        warn("is unlimited and replaces nothing, so that it has no effect; remove it".to_owned());
    }
}

/// Starting a process or promoting a replica takes about this long.
const TYPICAL_FAILOVER_TIME: Nanos = Nanos::from_secs(10);

fn durable_for_seconds(rule: &Rule, warn: &mut impl FnMut(String)) {
    let spans = all_limits(rule).map(|(limit, _)| limit.per());
    if let Some(longest) = spans.max().filter(|longest| *longest <= TYPICAL_FAILOVER_TIME)
        && rule.options.durability.is_required()
    {
        warn(format!(
            "has durability {}, but its longest window of {longest} ends before a restart or failover is \
             over; remove it, or write a longer window",
            rule.options.durability.name()
        ));
    }
}

/// Every limit of a rule, with its rate as written.
fn all_limits(rule: &Rule) -> impl Iterator<Item = (&Limit, &str)> {
    all_rates(rule).flat_map(|rates| rates.limits.iter().zip(rates.texts.iter().map(|text| &**text)))
}

fn all_rates(rule: &Rule) -> impl Iterator<Item = &Rates> {
    rule.rates.iter().map(|rates| &**rates)
}

/// A node leases only what it expects to use, and at least this many units at once.
const MIN_UNITS_PER_LEASE: u128 = 8;

fn never_leased(rule: &Rule, warn: &mut impl FnMut(String)) {
    let hot = |limit: &Limit| {
        let duration = limit.lease_ttl().map_or(0, |ttl| ttl.get());
        let units = u128::from(limit.count()) * u128::from(duration);
        units >= MIN_UNITS_PER_LEASE * u128::from(limit.per().get())
    };
    let mut leased = all_limits(rule).filter_map(|(limit, written)| Some((limit.lease_ttl()?, written)));
    if let Some((duration, written)) = leased.next()
        && !all_limits(rule).any(|(limit, _)| hot(limit))
    {
        warn(format!(
            "has counting leased, but `{written}` is less than {MIN_UNITS_PER_LEASE} in {duration}, so that \
             nothing is ever leased; write `counting: exact`"
        ));
    }
}

fn lenient_and_strict(rule: &Rule, warn: &mut impl FnMut(String)) {
    let strict = matches!(rule.algorithm, Algorithm::SlidingLog | Algorithm::SlidingWindowStrict);
    if strict && rule.options.counting == Counting::Lenient {
        warn(format!(
            "has counting lenient with algorithm {}, which is for limits that are never exceeded; write \
             `counting: exact`, or `algorithm: sliding-window`",
            rule.algorithm
        ));
    }
}

fn concurrency_without_rate(rule: &Rule, warn: &mut impl FnMut(String)) {
    if rule.concurrent.is_some() && has_no_limits(rule) {
        warn(
            "has `concurrent` and no rate: only acquire and release count it, so that every check \
             passes; write a rate beside it unless all callers acquire"
                .to_owned(),
        );
    }
}

fn options_without_rate(rule: &Rule, warn: &mut impl FnMut(String)) {
    let fields = [
        (rule.priority.is_some(), "priority"),
        (rule.soft.is_some(), "soft"),
        (rule.options.counting != Counting::Exact, "counting"),
    ];
    for (_, field) in fields.into_iter().filter(|(is_set, _)| *is_set && has_no_limits(rule)) {
        warn(format!("has `{field}`, but no rate that it could apply to; remove it"));
    }
}

fn has_no_limits(rule: &Rule) -> bool {
    all_limits(rule).next().is_none()
}

/// Warns if the first tier, which clients without a tier have too, has more than every other tier of a rule.
fn descending_tiers(rule: &Rule, set: &RuleSet, warn: &mut impl FnMut(String)) {
    let [first, others @ ..] = set.tiers() else { return };
    if rule.tiers.is_empty() || others.is_empty() {
        return;
    }
    let limits = |tier: usize| {
        let class = rule.tiers.get(tier).copied().unwrap_or_else(RateClass::default);
        rule.rates(class).limits()
    };
    let is_less = |tier: usize| compare_limits(limits(tier), limits(0)) == Ordering::Less;
    if (1..=others.len()).all(is_less) {
        warn(format!(
            "has its largest rate for tier `{first}`, which clients without a tier have too; write \
             `tiers` at the top with the least first"
        ));
    }
}

/// Which of two sets of limits allows less, by the fastest rate of each: a slower one beside it, such as a
/// daily quota, need not be in both. No limits allow everything.
fn compare_limits(a: &[Limit], b: &[Limit]) -> Ordering {
    match (fastest(a), fastest(b)) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => compare_rates(a, b),
    }
}

fn fastest(limits: &[Limit]) -> Option<&Limit> {
    limits.iter().max_by(|a, b| compare_rates(a, b))
}

fn compare_rates(a: &Limit, b: &Limit) -> Ordering {
    let left = u128::from(a.count()) * u128::from(b.per().get());
    let right = u128::from(b.count()) * u128::from(a.per().get());
    left.cmp(&right)
}

//! Denials in the log: the rule, the subject and the reason, with a bounded number of lines a second for each rule.
//!
//! Denials of rules in shadow mode are logged too. Subjects are masked unless the settings show them in clear. API keys
//! and the values of headers that hold credentials are never shown. A line has no fields for attributes that its
//! request does not have.

use tidegate::ConcurrencyDenial;
use tidegate::clock::Clock;
use tidegate::identity::Digest;
use tidegate::observe::{LogAction, RuleSeries};
use tidegate_core::algorithms::{Retry, Verdict};
use tidegate_core::store::SingleOutcome;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{Decision, DecisionKind, LimitView};
use tidegate_rules::request::{Edge, PRIORITY, Request};
use tidegate_rules::{By, Rule};
use tracing::info;

use super::Decider;
use crate::config::LogSubjects;
use crate::logging::{DecisionId, SanitizedText};

/// Headers whose values allow a reader to act as the client.
const CREDENTIAL_HEADERS: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"];

/// Words in the names of other headers whose values allow a reader to act as the client.
const CREDENTIAL_WORDS: [&str; 13] = [
    "auth",
    "bearer",
    "cookie",
    "credential",
    "jwt",
    "key",
    "otp",
    "passwd",
    "password",
    "secret",
    "session",
    "signature",
    "token",
];

struct DenialLine<'d> {
    rule: String,
    view: Option<LimitView<'d>>,
    kind: DenialKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DenialKind {
    Enforced,
    Shadow,
}

/// Which denials of a decision are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DenialScope {
    All,
    Shadow,
}

impl Decider {
    /// Logs the counts of skipped lines of rules that deny nothing any more. Called at every maintenance tick.
    pub(crate) fn log_missed_denials(&self) {
        self.metrics.take_skipped_lines(second(self.clock.now()), log_missed_count);
    }

    /// Logs the denials of rules in shadow mode and that of the decision, as far as each rule has lines left in this
    /// second. `request` is only called when a line is written.
    pub(super) fn log_denials<'a>(
        &self,
        id: &DecisionId,
        edge: Edge,
        (decision, scope): (&Decision, DenialScope),
        request: impl FnOnce() -> Option<Request<'a>>,
    ) {
        let mut denials = self.shadow_denials(decision);
        if scope == DenialScope::All && !decision.allowed() {
            denials.extend(self.denial(decision));
        }
        if denials.is_empty() {
            return;
        }
        let request = request().unwrap_or_default();
        for denial in &denials {
            self.write_denial(denial, id, edge, decision, &request);
        }
    }

    fn denial<'d>(&self, decision: &'d Decision) -> Option<DenialLine<'d>> {
        let second = second(decision.at());
        let count_line = |series: &RuleSeries| (series.log_throttle.admit(second), series.name().to_owned());
        let (line, rule) = self.metrics.with_binding(decision, count_line);
        let is_written = self.admit_line(&rule, line);
        is_written.then(|| DenialLine { rule, view: decision.binding(), kind: DenialKind::Enforced })
    }

    /// One line for each rule, however many of its rates are exhausted.
    fn shadow_denials<'d>(&self, decision: &'d Decision) -> Vec<DenialLine<'d>> {
        let mut denials: Vec<DenialLine<'d>> = Vec::new();
        let mut last = None;
        for view in decision.shadows() {
            if view.reading.verdict.allows() || last == Some(view.position) {
                continue;
            }
            last = Some(view.position);
            let (rule, second) = (view.rule.name().as_str(), second(decision.at()));
            let line = self.metrics.with_named(rule, |series| series.log_throttle.admit(second));
            if self.admit_line(rule, line) {
                denials.push(DenialLine { rule: rule.to_owned(), view: Some(view), kind: DenialKind::Shadow });
            }
        }
        denials
    }

    /// Whether a line about `rule` is written. If so, logs how many were skipped before it.
    fn admit_line(&self, rule: &str, line: LogAction) -> bool {
        let LogAction::Write { skipped } = line else {
            self.metrics.lines_skipped.inc();
            return false;
        };
        log_missed_count(rule, skipped);
        true
    }

    fn write_denial(
        &self,
        denial: &DenialLine<'_>,
        id: &DecisionId,
        edge: Edge,
        decision: &Decision,
        request: &Request<'_>,
    ) {
        let text = |name| request.text(name).map(|text| SanitizedText(text).to_string());
        let counted = denial.view.filter(|view| *view.rule.by() != By::Global);
        let subject = counted.and_then(|view| subject(view.rule, request, self.log_subjects));
        let subject_id = counted.map(|view| view.subject.to_string()[..16].to_owned());
        let (id, rule, edge) = (id.as_str(), &*denial.rule, edge.name());
        let source = decision.source().name();
        let ip = request.ip.map(|ip| ip.to_string());
        let (method, path) = (text("method"), text("path"));
        let (retry_after_ms, message) = match denial.kind {
            DenialKind::Enforced => (retry_ms(decision), "denied"),
            DenialKind::Shadow => (None, "would be denied, but the rule is in shadow mode"),
        };
        info!(id, rule, edge, source, subject, subject_id, ip, method, path, retry_after_ms, "{message}");
    }

    /// Logs the denial of a permit.
    pub(crate) fn log_concurrency_denial(&self, id: &DecisionId, edge: Edge, denial: &ConcurrencyDenial) {
        let (rule, second) = (denial.rule.as_str(), second(self.clock.now()));
        let count_line = |series: &RuleSeries| series.log_throttle.admit(second);
        if !self.admit_line(rule, self.metrics.with_named(rule, count_line)) {
            return;
        }
        info!(
            id = id.as_str(),
            rule,
            edge = edge.name(),
            source = denial.source.name(),
            limit = denial.max_permits,
            open = denial.open,
            "denied, too many permits are open"
        );
    }

    /// Logs the denial of a charge without a rule. The key is not logged: it may hold anything.
    pub(crate) fn log_keyed_denial(&self, edge: Edge, family: &str, outcome: &SingleOutcome) {
        let second = second(outcome.at);
        let count_line = |series: &RuleSeries| series.log_throttle.admit(second);
        if !self.admit_line(family, self.metrics.with_family(family, count_line)) {
            return;
        }
        let retry_after_ms = match outcome.reading.verdict {
            Verdict::Deny { retry: Retry::After(wait) } => Some(wait.millis_up()),
            _ => None,
        };
        info!(
            id = self.ids.next().as_str(),
            rule = family,
            edge = edge.name(),
            source = outcome.source.name(),
            retry_after_ms,
            "denied"
        );
    }
}

/// The attributes that a rule counts by, with their values: `user=ad… region=eu`.
fn subject(rule: &Rule, request: &Request<'_>, shown: LogSubjects) -> Option<String> {
    let By::All(attributes) = rule.by() else {
        return None;
    };
    let parts = attributes.iter().filter_map(|alternatives| {
        let mut names = alternatives.iter();
        names.find_map(|name| Some(format!("{name}={}", attribute_value(name, request, shown)?)))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// The value to show. An address is shown unchanged, like the field `ip`. Of an API key and of other credentials only
/// the first digits of the digest are shown.
fn attribute_value(name: &str, request: &Request<'_>, shown: LogSubjects) -> Option<String> {
    match name {
        "ip" => request.ip.map(|ip| ip.to_string()),
        "api_key" => request.api_key.map(|key| digest_prefix(&key.digest)),
        PRIORITY => Some(request.priority().name().to_owned()),
        name => {
            let text = request.text(name).filter(|text| !text.is_empty())?;
            if is_credential(name) {
                return Some(digest_prefix(Digest::of(text).as_bytes()));
            }
            Some(match shown {
                LogSubjects::Clear => SanitizedText(text).to_string(),
                LogSubjects::Masked => SanitizedText(&mask(text)).to_string(),
            })
        }
    }
}

/// The subject of an entry of `allow` or `block`. A network is shown unchanged and the name of a key like the value of
/// an attribute. Of a digest only the first digits are shown.
pub(crate) fn listed_subject(entry: &str, shown: LogSubjects) -> String {
    const DIGITS: usize = 8;
    if let Some(digits) = entry.strip_prefix("sha256:") {
        let first: String = digits.chars().take(DIGITS).collect();
        return SanitizedText(&format!("sha256:{first}…")).to_string();
    }
    match (entry.strip_prefix("key:"), shown) {
        (Some(name), LogSubjects::Masked) => SanitizedText(&format!("key:{}", mask(name))).to_string(),
        _ => SanitizedText(entry).to_string(),
    }
}

/// Whether an attribute holds credentials, by its name: the name of a header, with or without `header.`, as Envoy
/// descriptors often name it.
fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    match name.strip_prefix("header.") {
        Some(header) => CREDENTIAL_WORDS.iter().any(|word| header.contains(word)),
        None => CREDENTIAL_HEADERS.contains(&&*name),
    }
}

fn digest_prefix(digest: &[u8; 32]) -> String {
    let digits = digest[..4].iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}…", digits.collect::<String>())
}

/// The first quarter of a value, at most 4 characters: enough to recognise the value, and not to know it.
fn mask(text: &str) -> String {
    let visible = (text.chars().count() / 4).min(4);
    text.chars().take(visible).chain(['…']).collect()
}

fn second(at: Nanos) -> u32 {
    u32::try_from(at.get() / 1_000_000_000).unwrap_or(u32::MAX)
}

fn log_missed_count(rule: &str, count: u64) {
    if count > 0 {
        info!(rule, count, "denied more than the log has room for");
    }
}

fn retry_ms(decision: &Decision) -> Option<u64> {
    match decision.kind() {
        DecisionKind::Deny(Retry::After(wait)) => Some(wait.millis_up()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rules::request::ApiKey;
    use tidegate_rules::{SourceFile, parse};

    #[track_caller]
    fn check(by: &str, shown: LogSubjects, want: Option<&str>) {
        let text = format!("version: 1\nrules: [{{ name: r, by: {by}, rate: 1/hour }}]\n");
        let file = SourceFile { name: "rules.yaml", text: &text };
        let rules = parse(&[file]).unwrap();
        let request = Request {
            ip: Some("203.0.113.9".parse().unwrap()),
            api_key: Some(ApiKey { digest: [0xab; 32], name: Some("Ada's"), tier: None }),
            attributes: vec![
                ("user".into(), "ada@example.com".into()),
                ("region".into(), "eu\n".into()),
                ("header.authorization".into(), "Bearer k1".into()),
                ("header.cookie".into(), "k1".into()),
                ("header.proxy-authorization".into(), "k1".into()),
                ("header.x-api-key".into(), "k1".into()),
                ("header.x-access-token".into(), "k1".into()),
                ("Authorization".into(), "k1".into()),
            ],
            ..Request::default()
        };
        let found = subject(&rules.rules()[0], &request, shown);
        assert_eq!(found.as_deref(), want, "{by}");
    }

    #[test]
    fn a_subject_is_masked_unless_configured_clear() {
        use LogSubjects::{Clear, Masked};
        check("user", Masked, Some("user=ada…"));
        check("user", Clear, Some("user=ada@example.com"));
        check("[user, region]", Masked, Some("user=ada… region=…"));
        check("[user, region]", Clear, Some("user=ada@example.com region=eu\\u{a}"));
        check("ip", Masked, Some("ip=203.0.113.9"));
        check("global", Clear, None);
    }

    #[test]
    fn list_entries_are_masked_like_subjects() {
        use LogSubjects::{Clear, Masked};
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (entry, shown, want) in [
            ("192.0.2.0/24", Masked, "192.0.2.0/24"),
            ("key:stolen-laptop", Masked, "key:sto…"),
            ("key:stolen-laptop", Clear, "key:stolen-laptop"),
            (&digest, Masked, "sha256:abababab…"),
            (&digest, Clear, "sha256:abababab…"),
        ] {
            assert_eq!(listed_subject(entry, shown), want);
        }
    }

    #[test]
    fn keys_are_never_shown_and_missing_attributes_are_left_out() {
        for shown in [LogSubjects::Masked, LogSubjects::Clear] {
            check("api_key", shown, Some("api_key=sha256:abababab…"));
            check("org", shown, None);
            check("org|ip", shown, Some("ip=203.0.113.9"));
        }
    }

    #[test]
    fn credentials_in_headers_are_never_shown() {
        for shown in [LogSubjects::Masked, LogSubjects::Clear] {
            let want = "header.authorization=sha256:d531ce3d…";
            check("header.authorization", shown, Some(want));
            for name in [
                "header.cookie",
                "header.proxy-authorization",
                "header.x-api-key",
                "header.x-access-token",
                "Authorization",
            ] {
                check(name, shown, Some(&format!("{name}=sha256:6ab9f1eb…")));
            }
        }
    }
}

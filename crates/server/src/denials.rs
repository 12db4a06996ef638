//! Denials in the log: which rule denied whom, a bounded number of lines a second for each rule.
//!
//! Rules that only watch are logged too. A subject is masked unless the settings say otherwise, and API keys
//! and the values of headers that hold credentials are never shown. Fields that a request does not have are not on its line.

use tidegate::Full;
use tidegate::clock::Clock;
use tidegate::identity::Digest;
use tidegate::observe::{Line, RuleSeries};
use tidegate_core::algorithms::{Retry, Verdict};
use tidegate_core::engine::{Decision, Fate, LimitView};
use tidegate_core::request::{Edge, PRIORITY, Request};
use tidegate_core::rules::{By, Rule};
use tidegate_core::store::Single;
use tidegate_core::units::Nanos;
use tracing::info;

use crate::config::LogSubjects;
use crate::ids::Id;
use crate::logs::Shown;
use crate::service::Service;

/// Headers whose values let whoever reads them act as the client.
const CREDENTIAL_HEADERS: [&str; 5] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "api-key",
];

/// Words in the names of other headers whose values let whoever reads them act as the client.
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

/// One line to write.
struct Denial<'d> {
    rule: String,
    view: Option<LimitView<'d>>,
    /// What came before it and found no room.
    missed: u64,
    kind: DenialKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DenialKind {
    Enforced,
    Shadow,
}

impl Service {
    /// Logs a denial, and what rules that only watch would have denied, as far as each rule has lines left
    /// in this second. `request` is only called when a line is written.
    pub(crate) fn log_denial<'a>(
        &self,
        id: &Id,
        edge: Edge,
        decision: &Decision,
        request: impl FnOnce() -> Option<Request<'a>>,
    ) {
        let mut denials = self.shadow_denials(decision);
        if !decision.allowed() {
            denials.extend(self.denial(decision));
        }
        self.write_denials(&denials, id, edge, decision, request);
    }

    /// Logs only what rules that only watch would have denied.
    pub(crate) fn log_shadow_denials<'a>(
        &self,
        id: &Id,
        edge: Edge,
        decision: &Decision,
        request: impl FnOnce() -> Option<Request<'a>>,
    ) {
        let denials = self.shadow_denials(decision);
        self.write_denials(&denials, id, edge, decision, request);
    }

    fn denial<'d>(&self, decision: &'d Decision) -> Option<Denial<'d>> {
        let second = second(decision.at());
        let room = |series: &RuleSeries| (series.lines.denial(second), series.name().to_owned());
        let (line, rule) = self.metrics.with_binding(decision, room);
        Some(Denial {
            rule,
            view: decision.binding(),
            missed: self.room(line)?,
            kind: DenialKind::Enforced,
        })
    }

    /// One for each rule, however many of its rates are used up.
    fn shadow_denials<'d>(&self, decision: &'d Decision) -> Vec<Denial<'d>> {
        let mut denials: Vec<Denial<'d>> = Vec::new();
        let mut last = None;
        for view in decision.shadows() {
            if view.reading.verdict.allows() || last == Some(view.position) {
                continue;
            }
            last = Some(view.position);
            let (rule, second) = (view.rule.name().as_str(), second(decision.at()));
            let line = self
                .metrics
                .with_named(rule, |series| series.lines.denial(second));
            denials.extend(self.room(line).map(|missed| Denial {
                rule: rule.to_owned(),
                view: Some(view),
                missed,
                kind: DenialKind::Shadow,
            }));
        }
        denials
    }

    /// How many lines were left out before this one; nothing if it is left out too.
    fn room(&self, line: Line) -> Option<u64> {
        match line {
            Line::Write { missed } => Some(missed),
            Line::Skip => {
                self.metrics.lines_skipped.inc();
                None
            }
        }
    }

    fn write_denials<'a>(
        &self,
        denials: &[Denial<'_>],
        id: &Id,
        edge: Edge,
        decision: &Decision,
        request: impl FnOnce() -> Option<Request<'a>>,
    ) {
        if denials.is_empty() {
            return;
        }
        let request = request().unwrap_or_default();
        for denial in denials {
            if denial.missed > 0 {
                told_as_count(&denial.rule, denial.missed);
            }
            self.write_denial(denial, id, edge, decision, &request);
        }
    }

    fn write_denial(
        &self,
        denial: &Denial<'_>,
        id: &Id,
        edge: Edge,
        decision: &Decision,
        request: &Request<'_>,
    ) {
        let text = |name| request.text(name).map(|text| Shown(text).to_string());
        let counted = denial.view.filter(|view| *view.rule.by() != By::Global);
        let subject = counted.and_then(|view| subject(view.rule, request, self.log_subjects));
        let subject_id = counted.map(|view| view.subject.to_string()[..16].to_owned());
        let (id, rule, edge) = (id.as_str(), &*denial.rule, edge.name());
        let source = decision.source().name();
        let ip = request.ip.map(|ip| ip.to_string());
        let (method, path) = (text("method"), text("path"));
        match denial.kind {
            DenialKind::Enforced => {
                let retry_after_ms = retry_ms(decision);
                info!(
                    id,
                    rule,
                    edge,
                    source,
                    subject,
                    subject_id,
                    ip,
                    method,
                    path,
                    retry_after_ms,
                    "denied"
                );
            }
            DenialKind::Shadow => info!(
                id,
                rule,
                edge,
                source,
                subject,
                subject_id,
                ip,
                method,
                path,
                "would be denied, but the rule only watches"
            ),
        }
    }

    /// The same for a request that finds too many open.
    pub(crate) fn log_full(&self, id: &Id, edge: Edge, full: &Full) {
        let (rule, second) = (full.rule.as_str(), second(self.clock.now()));
        let room = |series: &RuleSeries| series.lines.denial(second);
        let missed = match self.metrics.with_named(rule, room) {
            Line::Write { missed } => missed,
            Line::Skip => return self.metrics.lines_skipped.inc(),
        };
        if missed > 0 {
            told_as_count(rule, missed);
        }
        info!(
            id = id.as_str(),
            rule,
            edge = edge.name(),
            source = full.source.name(),
            limit = full.most,
            open = full.open,
            "denied, too many are open"
        );
    }

    /// The same for a charge without a rule. What its key was is not told: it is anything.
    pub(crate) fn log_refusal(&self, edge: Edge, family: &str, answer: &Single) {
        let second = second(answer.at);
        let room = |series: &RuleSeries| series.lines.denial(second);
        let missed = match self.metrics.with_family(family, room) {
            Line::Write { missed } => missed,
            Line::Skip => return self.metrics.lines_skipped.inc(),
        };
        if missed > 0 {
            told_as_count(family, missed);
        }
        let retry_after_ms = match answer.reading.verdict {
            Verdict::Deny {
                retry: Retry::After(wait),
            } => Some(wait.millis_up()),
            _ => None,
        };
        info!(
            id = self.ids.next().as_str(),
            rule = family,
            edge = edge.name(),
            source = answer.source.name(),
            retry_after_ms,
            "denied"
        );
    }
}

/// The attributes that a rule counts by, with their values: `user=ad… region=eu`.
fn subject(rule: &Rule, request: &Request<'_>, shown: LogSubjects) -> Option<String> {
    let By::All(places) = rule.by() else {
        return None;
    };
    let parts = places.iter().filter_map(|alternatives| {
        let mut names = alternatives.iter();
        names.find_map(|name| Some(format!("{name}={}", value(name, request, shown)?)))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// An address is shown as it is, like the field `ip`; of an API key and of other credentials only the beginning
/// of the digest.
fn value(name: &str, request: &Request<'_>, shown: LogSubjects) -> Option<String> {
    match name {
        "ip" => request.ip.map(|ip| ip.to_string()),
        "api_key" => request.api_key.map(|key| shortened(&key.digest)),
        PRIORITY => Some(request.priority().name().to_owned()),
        name => {
            let text = request.text(name).filter(|text| !text.is_empty())?;
            if is_credential(name) {
                return Some(shortened(Digest::of(text).as_bytes()));
            }
            Some(match shown {
                LogSubjects::Clear => Shown(text).to_string(),
                LogSubjects::Masked => Shown(&masked(text)).to_string(),
            })
        }
    }
}

/// Whom an entry of `allow` or `block` is about. A network is shown as it is, the name of a key as values of
/// attributes are, and of a digest only the beginning.
pub(crate) fn listed_subject(whom: &str, shown: LogSubjects) -> String {
    const DIGITS: usize = 8;
    if let Some(digits) = whom.strip_prefix("sha256:") {
        let first: String = digits.chars().take(DIGITS).collect();
        return Shown(&format!("sha256:{first}…")).to_string();
    }
    match (whom.strip_prefix("key:"), shown) {
        (Some(name), LogSubjects::Masked) => Shown(&format!("key:{}", masked(name))).to_string(),
        _ => Shown(whom).to_string(),
    }
}

/// Whether an attribute holds credentials, by its name: that of a header, with or without `header.`, as
/// descriptors of Envoy often name it.
fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    match name.strip_prefix("header.") {
        Some(header) => CREDENTIAL_WORDS.iter().any(|word| header.contains(word)),
        None => CREDENTIAL_HEADERS.contains(&&*name),
    }
}

fn shortened(digest: &[u8; 32]) -> String {
    let digits = digest[..4].iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}…", digits.collect::<String>())
}

/// A quarter of a value, at most 4 characters: enough to recognise it by, and not to know it.
fn masked(text: &str) -> String {
    let kept = (text.chars().count() / 4).min(4);
    text.chars().take(kept).chain(['…']).collect()
}

pub(crate) fn second(at: Nanos) -> u32 {
    u32::try_from(at.get() / 1_000_000_000).unwrap_or(u32::MAX)
}

pub(crate) fn told_as_count(rule: &str, count: u64) {
    info!(rule, count, "denied more than the log has room for");
}

fn retry_ms(decision: &Decision) -> Option<u64> {
    match decision.fate() {
        Fate::Deny(Retry::After(wait)) => Some(wait.millis_up()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::request::ApiKey;
    use tidegate_core::rules::{SourceFile, parse};

    #[track_caller]
    fn check(by: &str, shown: LogSubjects, want: Option<&str>) {
        let text = format!("version: 1\nrules: [{{ name: r, by: {by}, rate: 1/hour }}]\n");
        let file = SourceFile {
            name: "rules.yaml",
            text: &text,
        };
        let rules = parse(&[file]).unwrap();
        let request = Request {
            ip: Some("203.0.113.9".parse().unwrap()),
            api_key: Some(ApiKey {
                digest: [0xab; 32],
                name: Some("Ada's"),
                tier: None,
            }),
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
    fn a_subject_is_masked_unless_it_is_wanted_clear() {
        use LogSubjects::{Clear, Masked};
        check("user", Masked, Some("user=ada…"));
        check("user", Clear, Some("user=ada@example.com"));
        check("[user, region]", Masked, Some("user=ada… region=…"));
        check(
            "[user, region]",
            Clear,
            Some("user=ada@example.com region=eu\\u{a}"),
        );
        check("ip", Masked, Some("ip=203.0.113.9"));
        check("global", Clear, None);
    }

    #[test]
    fn entries_of_lists_are_shown_as_subjects_are() {
        use LogSubjects::{Clear, Masked};
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (whom, shown, want) in [
            ("192.0.2.0/24", Masked, "192.0.2.0/24"),
            ("key:stolen-laptop", Masked, "key:sto…"),
            ("key:stolen-laptop", Clear, "key:stolen-laptop"),
            (&digest, Masked, "sha256:abababab…"),
            (&digest, Clear, "sha256:abababab…"),
        ] {
            assert_eq!(listed_subject(whom, shown), want);
        }
    }

    #[test]
    fn a_key_is_never_shown_and_absent_attributes_are_absent() {
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

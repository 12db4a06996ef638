//! A cluster: every primary is looked at like a single server, and what they say is put together.
//!
//! One that is silent is a failure of its own and does not keep us from the others. Findings that
//! several primaries share are told once.

use tidegate::stores::redis::{Console, Fault, RedisConfig, Site};

use super::finding::Finding;
use super::seen::{Seen, Silent, setting};
use super::{Order, Reached, look, patiently, stopped};

/// Slots of any cluster.
const SLOTS: usize = 16_384;

/// A cluster as it was found.
pub(super) struct Cluster {
    pub(super) primaries: Vec<Site>,
    pub(super) unowned: usize,
    /// Servers that were written and tell nothing.
    pub(super) silent: Vec<(String, Fault)>,
}

impl Cluster {
    pub(super) async fn examine(
        &self,
        order: &Order,
        config: &RedisConfig,
        tell: &mut impl FnMut(Finding),
        wait: &impl Fn(&str),
    ) -> Reached {
        let (mut open, mut lost) = (Vec::new(), Vec::new());
        for site in &self.primaries {
            match patiently(&site.address(), wait, site.open(config)).await {
                Ok(console) => open.push(console),
                Err(fault) => lost.push((site, fault)),
            }
        }
        self.reach(&open, &lost).into_iter().for_each(&mut *tell);
        let unserved: Vec<_> = lost.iter().map(|(site, _)| *site).collect();
        tell(slots(self.unowned, &unserved));
        let mut heard = lost.iter().any(|(_, fault)| !fault.is_silence());
        let mut secret_seen = false;
        let mut gathered = Vec::with_capacity(open.len());
        for console in &open {
            let mut findings = Vec::new();
            let wait = |what: &str| wait(&format!("{what} of {}", console.address()));
            let mut note = |finding| findings.push(finding);
            match look(console, order, &mut note, &wait).await {
                Ok(()) => {
                    heard = true;
                    secret_seen |= console.keeps_secret();
                }
                Err(Silent(fault)) => findings.push(stopped(&fault)),
            }
            gathered.push((console.address().to_owned(), findings));
        }
        together(gathered).into_iter().for_each(&mut *tell);
        if !secret_seen {
            let found = "cannot be seen: nobody answers for the slot of tg:ctl:secret";
            tell(Finding::warn("secret", found, "see slots"));
        }
        if heard { Reached::Yes } else { Reached::No }
    }

    /// Who answers, and who does not.
    fn reach(&self, open: &[Console], lost: &[(&Site, Fault)]) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !open.is_empty() {
            let answer: Vec<_> = open.iter().map(Console::address).collect();
            let found = format!("{} answer", answer.join(", "));
            findings.push(Finding::ok("reach", found));
        }
        for (site, fault) in lost {
            let problem = fault.problem();
            let found = format!("{problem}, so nothing else of it could be seen");
            findings.push(Finding::fail("reach", found, fault.cure()).at(vec![site.address()]));
        }
        for (seed, fault) in &self.silent {
            if lost.iter().all(|(site, _)| site.address() != *seed) {
                let found = format!("does not tell of the cluster: {}", fault.problem());
                let cure = "name a server of the cluster in its place";
                findings.push(Finding::warn("reach", found, cure).at(vec![seed.clone()]));
            }
        }
        findings
    }
}

/// Whether every slot has somebody who serves it.
fn slots(unowned: usize, lost: &[&Site]) -> Finding {
    let lost: Vec<_> = lost.iter().map(|s| (s.address(), s.slots())).collect();
    judge_slots(unowned, &lost)
}

fn judge_slots(unowned: usize, lost: &[(String, usize)]) -> Finding {
    let check = "slots";
    let gone = unowned + lost.iter().map(|(_, slots)| slots).sum::<usize>();
    if gone == 0 {
        return Finding::ok(check, format!("all {SLOTS} are served"));
    }
    let mut whose: Vec<String> = lost
        .iter()
        .map(|(address, slots)| format!("{slots} of {address}, which cannot be used"))
        .collect();
    let mut cures = Vec::new();
    if !lost.is_empty() {
        cures.push("bring the primary back or let a replica take over");
    }
    if unowned > 0 {
        whose.push(format!("{unowned} of nobody"));
        cures.push("give those of nobody to a primary with redis-cli --cluster fix HOST:PORT");
    }
    let found = format!("{gone} of {SLOTS} are not served: {}", whose.join(", "));
    Finding::fail(check, found, cures.join("; "))
}

pub(super) async fn full_coverage(console: &Console) -> Result<Finding, Silent> {
    let required = setting(console, "cluster-require-full-coverage").await?;
    Ok(coverage(&required))
}

fn coverage(required: &Seen<String>) -> Finding {
    let check = "coverage";
    let what = "whether keys are served while a primary is missing";
    match required.as_deref() {
        Err(why) => Finding::unseen(check, what, why, "+config|get"),
        Ok("no") => Finding::ok(
            check,
            "while a primary is missing the others serve their keys",
        ),
        Ok(_) => {
            let found = "while one primary is missing every key is refused";
            Finding::warn(check, found, "CONFIG SET cluster-require-full-coverage no")
        }
    }
}

/// The findings of several servers, those of one check beside each other, each told once.
fn together(gathered: Vec<(String, Vec<Finding>)>) -> Vec<Finding> {
    let servers = gathered.len();
    let mut told: Vec<(Finding, Vec<String>)> = Vec::new();
    for (server, findings) in gathered {
        for finding in findings {
            if let Some((_, at)) = told.iter_mut().find(|(known, _)| *known == finding) {
                at.push(server.clone());
                continue;
            }
            let last = told
                .iter()
                .rposition(|(known, _)| known.is_beside(&finding));
            let place = last.map_or(told.len(), |last| last + 1);
            told.insert(place, (finding, vec![server.clone()]));
        }
    }
    let merged = told.into_iter().map(|(finding, at)| match at.len() {
        some if some == servers && some > 1 => finding.at_each(at),
        _ => finding.at(at),
    });
    merged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_servers_share_is_told_once_and_beside_the_rest_of_its_check() {
        let of = |server: &str, policy: &str| {
            let findings = vec![
                Finding::ok("version", "Redis 7.0"),
                Finding::ok("eviction", policy),
                Finding::ok("nodes", "none"),
            ];
            (server.to_owned(), findings)
        };
        let told = together(vec![of("a:1", "x"), of("b:1", "y"), of("c:1", "x")]);
        let lines: Vec<_> = told.iter().map(Finding::line).collect();
        assert_eq!(
            lines,
            [
                "ok    version      each: Redis 7.0",
                "ok    eviction     a:1, c:1: x",
                "ok    eviction     b:1: y",
                "ok    nodes        each: none",
            ]
        );
        assert_eq!(told[1].json()["at"], serde_json::json!(["a:1", "c:1"]));
        assert_eq!(
            together(vec![of("a:1", "x")])[1].line(),
            "ok    eviction     a:1: x"
        );
    }

    #[test]
    fn slots_without_an_owner_and_of_a_silent_one_are_both_missing() {
        let lost = [("a:1".to_owned(), 100)];
        for (unowned, lost, want) in [
            (0, &[][..], "ok    slots        all 16384 are served"),
            (
                5,
                &[],
                "FAIL  slots        5 of 16384 are not served: 5 of nobody; ",
            ),
            (
                0,
                &lost[..],
                "FAIL  slots        100 of 16384 are not served: 100 of a:1,",
            ),
            (
                5,
                &lost,
                "FAIL  slots        105 of 16384 are not served: 100 of a:1,",
            ),
        ] {
            let line = judge_slots(unowned, lost).line();
            assert!(line.starts_with(want), "{line}");
        }
    }

    #[test]
    fn a_cluster_that_refuses_all_for_the_lack_of_one_is_a_warning() {
        assert!(coverage(&Ok("no".to_owned())).line().starts_with("ok "));
        assert!(coverage(&Ok("yes".to_owned())).line().starts_with("warn"));
    }
}

//! Examines a cluster: every primary like a single server, with the findings merged.
//!
//! A silent primary is its own failure and does not stop the examination of the others. Findings that several
//! primaries share are reported once.

use tidegate::stores::redis::{AdminConnection, RedisConfig, RedisServer, RedisStoreError};

use super::finding::DoctorFinding;
use super::probe::{SilentServer, config_setting};
use super::{Reached, announce_if_slow, examine_server, stopped_replying};
use crate::config::ServerSettings;

/// The number of hash slots of any cluster.
const HASH_SLOTS: usize = 16_384;

/// A cluster as it was found.
pub(super) struct ClusterExamination {
    pub(super) primaries: Vec<RedisServer>,
    pub(super) unowned_slots: usize,
    /// Configured servers that do not describe the cluster.
    pub(super) unreachable: Vec<(String, RedisStoreError)>,
}

impl ClusterExamination {
    pub(super) async fn examine(
        &self,
        options: &ServerSettings,
        config: &RedisConfig,
        report: &mut impl FnMut(DoctorFinding),
        announce: &impl Fn(&str),
    ) -> Reached {
        let (mut open, mut lost) = (Vec::new(), Vec::new());
        for server in &self.primaries {
            match announce_if_slow(&server.address(), announce, server.open(config)).await {
                Ok(connection) => open.push(connection),
                Err(error) => lost.push((server, error)),
            }
        }
        self.reachability(&open, &lost).into_iter().for_each(&mut *report);
        let unserved: Vec<_> = lost.iter().map(|(server, _)| (server.address(), server.hash_slots())).collect();
        report(hash_slots(self.unowned_slots, &unserved));
        let mut has_replied = lost.iter().any(|(_, error)| !error.is_silence());
        let mut is_secret_seen = false;
        let mut findings_by_server = Vec::with_capacity(open.len());
        for connection in &open {
            let mut findings = Vec::new();
            let announce = |what: &str| announce(&format!("{what} of {}", connection.address()));
            let mut record = |finding| findings.push(finding);
            match examine_server(connection, options, &mut record, &announce).await {
                Ok(()) => {
                    has_replied = true;
                    is_secret_seen |= connection.has_secret();
                }
                Err(SilentServer(error)) => findings.push(stopped_replying(&error)),
            }
            findings_by_server.push((connection.address().to_owned(), findings));
        }
        merge_findings(findings_by_server).into_iter().for_each(&mut *report);
        if !is_secret_seen {
            let found = "cannot be read: no server serves the hash slot of tg:ctl:secret";
            report(DoctorFinding::warn("secret", found, "see slots"));
        }
        if has_replied { Reached::Yes } else { Reached::No }
    }

    /// Which servers reply and which do not.
    fn reachability(&self, open: &[AdminConnection], lost: &[(&RedisServer, RedisStoreError)]) -> Vec<DoctorFinding> {
        let mut findings = Vec::new();
        if !open.is_empty() {
            let replying: Vec<_> = open.iter().map(AdminConnection::address).collect();
            let found = format!("{} reply", replying.join(", "));
            findings.push(DoctorFinding::ok("reach", found));
        }
        for (server, error) in lost {
            let problem = error.problem();
            let found = format!("{problem}, so nothing else of it could be seen");
            findings.push(DoctorFinding::fail("reach", found, error.cure()).at(vec![server.address()]));
        }
        for (seed, error) in &self.unreachable {
            if lost.iter().all(|(server, _)| server.address() != *seed) {
                let found = format!("does not describe the cluster: {}", error.problem());
                let cure = "name a server of the cluster in its place";
                findings.push(DoctorFinding::warn("reach", found, cure).at(vec![seed.clone()]));
            }
        }
        findings
    }
}

/// Whether every hash slot is served. `lost` are the servers that cannot be used, with the number of their slots.
fn hash_slots(unowned: usize, lost: &[(String, usize)]) -> DoctorFinding {
    let check = "slots";
    let unserved = unowned + lost.iter().map(|(_, slots)| slots).sum::<usize>();
    if unserved == 0 {
        return DoctorFinding::ok(check, format!("all {HASH_SLOTS} are served"));
    }
    let mut owners: Vec<String> =
        lost.iter().map(|(address, slots)| format!("{slots} of {address}, which cannot be used")).collect();
    let mut cures = Vec::new();
    if !lost.is_empty() {
        cures.push("restart the primary or fail over to a replica");
    }
    if unowned > 0 {
        owners.push(format!("{unowned} without an owner"));
        cures.push("assign those without an owner to a primary with redis-cli --cluster fix HOST:PORT");
    }
    let found = format!("{unserved} of {HASH_SLOTS} are not served: {}", owners.join(", "));
    DoctorFinding::fail(check, found, cures.join("; "))
}

pub(super) async fn full_coverage(connection: &AdminConnection) -> Result<DoctorFinding, SilentServer> {
    let required = config_setting(connection, "cluster-require-full-coverage").await?;
    let hidden = ("whether keys are served while a primary is missing", "+config|get");
    Ok(DoctorFinding::of_probe("coverage", &required, hidden, |required| coverage(required)))
}

fn coverage(required: &str) -> DoctorFinding {
    let check = "coverage";
    if required == "no" {
        return DoctorFinding::ok(check, "while a primary is missing the others serve their keys");
    }
    let found = "while one primary is missing every key is rejected";
    DoctorFinding::warn(check, found, "CONFIG SET cluster-require-full-coverage no")
}

/// Merges the findings of several servers: findings of one check are adjacent, and each is reported once.
fn merge_findings(findings_by_server: Vec<(String, Vec<DoctorFinding>)>) -> Vec<DoctorFinding> {
    let servers = findings_by_server.len();
    let mut by_finding: Vec<(DoctorFinding, Vec<String>)> = Vec::new();
    for (server, findings) in findings_by_server {
        for finding in findings {
            if let Some((_, at)) = by_finding.iter_mut().find(|(known, _)| *known == finding) {
                at.push(server.clone());
                continue;
            }
            let last = by_finding.iter().rposition(|(known, _)| known.is_same_check(&finding));
            let place = last.map_or(by_finding.len(), |last| last + 1);
            by_finding.insert(place, (finding, vec![server.clone()]));
        }
    }
    let merged = by_finding.into_iter().map(|(finding, at)| match at.len() {
        some if some == servers && some > 1 => finding.at_each(at),
        _ => finding.at(at),
    });
    merged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_shared_by_servers_are_merged_next_to_the_rest_of_their_check() {
        let of = |server: &str, policy: &str| {
            let findings = vec![
                DoctorFinding::ok("version", "Redis 7.0"),
                DoctorFinding::ok("eviction", policy),
                DoctorFinding::ok("nodes", "none"),
            ];
            (server.to_owned(), findings)
        };
        let merged = merge_findings(vec![of("a:1", "x"), of("b:1", "y"), of("c:1", "x")]);
        let lines: Vec<_> = merged.iter().map(DoctorFinding::line).collect();
        assert_eq!(
            lines,
            [
                "ok    version      each: Redis 7.0",
                "ok    eviction     a:1, c:1: x",
                "ok    eviction     b:1: y",
                "ok    nodes        each: none",
            ]
        );
        assert_eq!(merged[1].json()["at"], serde_json::json!(["a:1", "c:1"]));
        assert_eq!(merge_findings(vec![of("a:1", "x")])[1].line(), "ok    eviction     a:1: x");
    }

    #[test]
    fn hash_slots_without_an_owner_and_of_a_silent_primary_are_both_unserved() {
        let lost = [("a:1".to_owned(), 100)];
        for (unowned, lost, want) in [
            (0, &[][..], "ok    slots        all 16384 are served"),
            (5, &[], "FAIL  slots        5 of 16384 are not served: 5 without an owner; "),
            (0, &lost[..], "FAIL  slots        100 of 16384 are not served: 100 of a:1,"),
            (5, &lost, "FAIL  slots        105 of 16384 are not served: 100 of a:1,"),
        ] {
            let line = hash_slots(unowned, lost).line();
            assert!(line.starts_with(want), "{line}");
        }
    }

    #[test]
    fn a_cluster_that_rejects_every_key_without_one_primary_is_a_warning() {
        assert!(coverage("no").line().starts_with("ok "));
        assert!(coverage("yes").line().starts_with("warn"));
    }
}

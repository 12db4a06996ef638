//! Whether the sentinels agree on the address of the primary.

use tidegate::stores::redis::SentinelReport;

use super::finding::DoctorFinding;

/// `primary` is the address that most of them name, if there is one.
pub(super) fn agreement(sentinels: &[SentinelReport], primary: Option<&str>) -> DoctorFinding {
    let check = "sentinels";
    let all = sentinels.len();
    let disagreeing: Vec<String> =
        sentinels.iter().filter_map(|one| Some(format!("{} {}", one.sentinel, disagreement(one, primary)?))).collect();
    let errors = || sentinels.iter().filter_map(|one| one.primary.as_ref().err());
    let cure = match errors().find(|error| !error.is_silence()) {
        Some(error) => error.cure(),
        None => "see whether each runs, can be reached and watches this primary, or write another",
    };
    match primary {
        None => {
            let found = format!("most of {all} name no primary: {}", disagreeing.join(", "));
            DoctorFinding::fail(check, found, cure)
        }
        Some(primary) if disagreeing.is_empty() => {
            DoctorFinding::ok(check, format!("{primary} is what all {all} name"))
        }
        Some(primary) => {
            let agree = all - disagreeing.len();
            let disagreeing = disagreeing.join(", ");
            let found = format!("{primary} is what {agree} of {all} name; {disagreeing}");
            DoctorFinding::warn(check, found, cure)
        }
    }
}

/// What this sentinel reports instead.
fn disagreement(report: &SentinelReport, primary: Option<&str>) -> Option<String> {
    match &report.primary {
        Ok(Some(named)) if Some(named.as_str()) == primary => None,
        Ok(Some(named)) => Some(format!("names {named}")),
        Ok(None) => Some("knows none of that name".to_owned()),
        Err(error) if error.is_silence() => Some("does not reply".to_owned()),
        Err(error) => Some(format!("rejects the query ({})", error.problem())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[Option<&str>], primary: Option<&str>, want: &str) {
        let report = |(turn, names): (usize, &Option<&str>)| SentinelReport {
            sentinel: format!("s{turn}"),
            primary: Ok(names.map(str::to_owned)),
        };
        let sentinels: Vec<_> = names.iter().enumerate().map(report).collect();
        let line = agreement(&sentinels, primary).line();
        assert!(line.starts_with(want), "{line}");
    }

    #[test]
    fn sentinels_that_disagree_are_named() {
        let (a, b) = (Some("a:1"), Some("b:1"));
        check(&[a, a], a, "ok    sentinels    a:1 is what all 2 name");
        let want = "warn  sentinels    a:1 is what 2 of 3 name; s1 names b:1; ";
        check(&[a, b, a], a, want);
        let want = "warn  sentinels    a:1 is what 2 of 3 name; s2 knows none of that name; ";
        check(&[a, a, None], a, want);
        let want = "FAIL  sentinels    most of 2 name no primary: s0 names a:1, s1 names b:1; ";
        check(&[a, b], None, want);
    }
}

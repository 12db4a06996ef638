//! Whether the sentinels agree on where the primary is.

use tidegate::stores::redis::Witness;

use super::finding::Finding;

/// `primary` is the one that most of them name, if there is one.
pub(super) fn agreement(sentinels: &[Witness], primary: Option<&str>) -> Finding {
    let check = "sentinels";
    let all = sentinels.len();
    let apart: Vec<String> = sentinels
        .iter()
        .filter_map(|one| Some(format!("{} {}", one.sentinel, dissent(one, primary)?)))
        .collect();
    let refusals = || sentinels.iter().filter_map(|one| one.names.as_ref().err());
    let cure = match refusals().find(|fault| !fault.is_silence()) {
        Some(fault) => fault.cure(),
        None => "see whether each runs, can be reached and watches this primary, or write another",
    };
    match primary {
        None => {
            let found = format!("most of {all} name no primary: {}", apart.join(", "));
            Finding::fail(check, found, cure)
        }
        Some(primary) if apart.is_empty() => {
            Finding::ok(check, format!("{primary} is what all {all} name"))
        }
        Some(primary) => {
            let agree = all - apart.len();
            let apart = apart.join(", ");
            let found = format!("{primary} is what {agree} of {all} name; {apart}");
            Finding::warn(check, found, cure)
        }
    }
}

/// What one says instead.
fn dissent(witness: &Witness, primary: Option<&str>) -> Option<String> {
    match &witness.names {
        Ok(Some(named)) if Some(named.as_str()) == primary => None,
        Ok(Some(named)) => Some(format!("names {named}")),
        Ok(None) => Some("knows none of that name".to_owned()),
        Err(fault) if fault.is_silence() => Some("does not answer".to_owned()),
        Err(fault) => Some(format!("refuses ({})", fault.problem())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[Option<&str>], primary: Option<&str>, want: &str) {
        let witness = |(turn, names): (usize, &Option<&str>)| Witness {
            sentinel: format!("s{turn}"),
            names: Ok(names.map(str::to_owned)),
        };
        let sentinels: Vec<_> = names.iter().enumerate().map(witness).collect();
        let line = agreement(&sentinels, primary).line();
        assert!(line.starts_with(want), "{line}");
    }

    #[test]
    fn who_says_otherwise_is_named() {
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

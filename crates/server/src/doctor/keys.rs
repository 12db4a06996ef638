//! The keys: how many, how large, and whether each counter will go by itself.

use std::time::{Duration, Instant};

use tidegate::stores::redis::{Console, Said};

use super::finding::Finding;
use super::seen::{Info, Seen, Silent, seen};
use crate::logs::Shown;

/// How long to look, and at how many keys: a sample, not a census of a server at work.
const LOOK_FOR: Duration = Duration::from_secs(5);
const LOOK_AT: u64 = 50_000;
/// Keys of one step. Each blocks the server for a fraction of a millisecond.
const STEP: &[u8] = b"500";
/// Keys whose memory is asked for.
const WEIGHED: u64 = 100;
/// Every key of ours, and every counter.
const OURS: &[u8] = b"tg:";
const COUNTER: &[u8] = b"tg:{";

/// What the two questions about a key take.
const WEIGH: &str = "+memory|usage";
const TIME: &str = "+ttl";

/// What a look at some keys told.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    looked: u64,
    /// Whether these were all keys there are.
    all: bool,
    ours: u64,
    counters: u64,
    /// Counters that never end, and one of them.
    lasting: u64,
    example: Option<String>,
    weighed: u64,
    bytes: u64,
    /// What could not be asked.
    hidden: Vec<&'static str>,
}

/// Looks at keys until all were seen, or it has been long or many enough.
pub(super) async fn look(console: &Console) -> Result<Seen<Look>, Silent> {
    let (began, mut look) = (Instant::now(), Look::default());
    let mut cursor = b"0".to_vec();
    while began.elapsed() < LOOK_FOR && look.looked < LOOK_AT {
        let scan = [b"SCAN".as_slice(), &cursor, b"COUNT", STEP];
        let keys = match seen(console.ask(&scan).await)? {
            Err(refused) => return Ok(Err(refused)),
            Ok(said) => step(said, &mut cursor),
        };
        look.looked += keys.len() as u64;
        let ours: Vec<Vec<u8>> = keys
            .into_iter()
            .filter(|key| key.starts_with(OURS))
            .collect();
        look.ours += ours.len() as u64;
        look.weigh(console, &ours).await?;
        look.time(console, &ours).await?;
        if cursor == b"0" {
            look.all = true;
            break;
        }
    }
    Ok(Ok(look))
}

/// The keys of one answer to `SCAN`, and where to go on.
fn step(said: Said, cursor: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut parts = match said {
        Said::List(parts) => parts.into_iter(),
        _ => Vec::new().into_iter(),
    };
    *cursor = match parts.next() {
        Some(Said::Text(next)) => next,
        _ => b"0".to_vec(),
    };
    let Some(Said::List(keys)) = parts.next() else {
        return Vec::new();
    };
    let text = |key| match key {
        Said::Text(key) => Some(key),
        _ => None,
    };
    keys.into_iter().filter_map(text).collect()
}

impl Look {
    /// Asks what some keys take.
    async fn weigh(&mut self, console: &Console, ours: &[Vec<u8>]) -> Result<(), Silent> {
        let room = usize::try_from(WEIGHED.saturating_sub(self.weighed)).unwrap_or(0);
        let some = &ours[..ours.len().min(room)];
        let answers = self
            .ask(console, &[b"MEMORY", b"USAGE"], some, WEIGH)
            .await?;
        for bytes in answers.into_iter().flatten() {
            self.weighed += 1;
            self.bytes += u64::try_from(bytes).unwrap_or(0);
        }
        Ok(())
    }

    /// Asks when counters end.
    async fn time(&mut self, console: &Console, ours: &[Vec<u8>]) -> Result<(), Silent> {
        let counters = ours.iter().filter(|key| key.starts_with(COUNTER)).cloned();
        let counters: Vec<Vec<u8>> = counters.collect();
        let answers = self.ask(console, &[b"TTL"], &counters, TIME).await?;
        for (key, left) in counters.iter().zip(answers) {
            self.counters += 1;
            if left == Some(-1) {
                self.lasting += 1;
                self.example = Some(Shown(&String::from_utf8_lossy(key)).to_string());
            }
        }
        Ok(())
    }

    /// The number that the server answers about each key, if it answers with one. Nothing at all from
    /// the first time on that we may not ask.
    async fn ask(
        &mut self,
        console: &Console,
        verb: &[&[u8]],
        keys: &[Vec<u8>],
        permission: &'static str,
    ) -> Result<Vec<Option<i64>>, Silent> {
        if keys.is_empty() || self.hidden.contains(&permission) {
            return Ok(Vec::new());
        }
        let commands: Vec<Vec<&[u8]>> = keys
            .iter()
            .map(|key| verb.iter().copied().chain([key.as_slice()]).collect())
            .collect();
        let answers = seen(console.ask_each(&commands).await)?.unwrap_or_default();
        let denied = |answer: &Seen<Said>| answer.as_ref().is_err_and(|f| f.denied().is_some());
        if answers.iter().any(denied) {
            self.hidden.push(permission);
            return Ok(Vec::new());
        }
        let number = |answer| match answer {
            Ok(Said::Number(number)) => Some(number),
            _ => None,
        };
        Ok(answers.into_iter().map(number).collect())
    }
}

pub(super) fn expiry(look: &Seen<Look>) -> Finding {
    let check = "expiry";
    let what = "whether every counter will go by itself";
    let look = match look {
        Ok(look) => look,
        Err(why) => return Finding::unseen(check, what, why, "+scan +ttl"),
    };
    if look.hidden.contains(&TIME) {
        let found = format!("{what} cannot be seen: NOPERM");
        return Finding::warn(check, found, format!("grant {TIME} to see it"));
    }
    let counters = look.counters;
    let of = match look.all {
        true => format!("{counters} counters"),
        false => format!("{counters} counters among the first {} keys", look.looked),
    };
    match &look.example {
        None => Finding::ok(check, format!("{of}, each will go by itself")),
        Some(example) => {
            let found = format!("{of}, {} stay for ever, such as {example}", look.lasting);
            let cure = "delete them; another program wrote them, or removed their expiry";
            Finding::warn(check, found, cure)
        }
    }
}

pub(super) fn memory(look: &Seen<Look>, info: &Seen<Info>, database: i64) -> Finding {
    let check = "memory";
    let look = match look {
        Ok(look) => look,
        Err(why) => return Finding::unseen(check, "what our keys take", why, "+scan"),
    };
    let there = info.as_ref().ok().and_then(|info| {
        let keys = info.part(&format!("db{database}"), "keys")?;
        keys.parse::<u64>().ok()
    });
    let keys = match (look.all, there) {
        (false, Some(there)) => scaled(look.ours, there, look.looked),
        _ => look.ours,
    };
    let about = if look.all { "" } else { "about " };
    let others = match look.all {
        true => look.looked - look.ours,
        false => there.unwrap_or(look.looked).saturating_sub(keys),
    };
    let beside = format!("{about}{keys} keys tg:*, {others} others");
    if look.hidden.contains(&WEIGH) {
        return Finding::ok(
            check,
            format!("{beside}; what they take is seen with {WEIGH}"),
        );
    }
    let bytes = scaled(look.bytes, keys, look.weighed);
    Finding::ok(check, format!("{beside}; ours take about {}", size(bytes)))
}

/// `part` of `of`, for `whole`.
fn scaled(part: u64, whole: u64, of: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(whole) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Bytes as people read them.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(finding: Finding, want: &str) {
        assert_eq!(finding.line(), want);
    }

    #[test]
    fn a_counter_that_stays_is_a_warning() {
        let mut look = Look {
            looked: 9,
            all: true,
            ours: 7,
            counters: 5,
            ..Look::default()
        };
        let fine = "ok    expiry       5 counters, each will go by itself";
        check(expiry(&Ok(look.clone())), fine);
        look.lasting = 2;
        look.example = Some("tg:{a}:b".to_owned());
        let line = expiry(&Ok(look.clone())).line();
        assert!(line.starts_with("warn") && line.contains("2 stay for ever, such as tg:{a}:b"));
        look.hidden.push(TIME);
        let line = expiry(&Ok(look)).line();
        assert!(
            line.starts_with("warn") && line.ends_with("grant +ttl to see it"),
            "{line}"
        );
    }

    #[test]
    fn what_was_not_looked_at_is_reckoned() {
        let mut look = Look {
            looked: 100,
            all: true,
            ours: 50,
            weighed: 10,
            bytes: 2_000,
            ..Look::default()
        };
        let info = Ok(Info::of("db3:keys=1000,expires=5"));
        let all = "ok    memory       50 keys tg:*, 50 others; ours take about 9.8 KiB";
        check(memory(&Ok(look.clone()), &info, 3), all);
        look.all = false;
        let some = "ok    memory       about 500 keys tg:*, 500 others; ours take about 97.7 KiB";
        check(memory(&Ok(look), &info, 3), some);
    }

    #[test]
    fn an_answer_to_scan_is_read_and_nonsense_ends_it() {
        let key = |text: &str| Said::Text(text.as_bytes().to_vec());
        let mut cursor = b"0".to_vec();
        let said = Said::List(vec![key("17"), Said::List(vec![key("a"), key("b")])]);
        assert_eq!(step(said, &mut cursor), [b"a", b"b"]);
        assert_eq!(cursor, b"17");
        assert!(step(Said::Nothing, &mut cursor).is_empty());
        assert_eq!(cursor, b"0");
    }
}

//! The keys: how many, how large, and whether each counter will go by itself.

use std::time::{Duration, Instant};

use tidegate::stores::redis::{AdminConnection, RespValue};

use super::finding::DoctorFinding;
use super::probe::{ProbeResult, ServerInfo, SilentServer, unless_silent};
use crate::logs::SanitizedText;

/// How long to look, and at how many keys: a sample, not a census of a server at work.
const SCAN_TIME: Duration = Duration::from_secs(5);
const MAX_SCANNED_KEYS: u64 = 50_000;
/// Keys of one step. Each blocks the server for a fraction of a millisecond.
const SCAN_COUNT: &[u8] = b"500";
/// Keys whose memory is asked for.
const MAX_MEASURED_KEYS: u64 = 100;
/// Every key of ours, and every counter.
const KEY_PREFIX: &[u8] = b"tg:";
const COUNTER_PREFIX: &[u8] = b"tg:{";

/// What the two questions about a key take.
const MEMORY_PERMISSION: &str = "+memory|usage";
const TTL_PERMISSION: &str = "+ttl";

/// What a look at some keys told.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySample {
    scanned: u64,
    /// Whether these were all keys there are.
    is_complete: bool,
    ours: u64,
    counters: u64,
    /// Counters that never end, and one of them.
    without_expiry: u64,
    example: Option<String>,
    measured: u64,
    bytes: u64,
    /// What could not be asked.
    denied_permissions: Vec<&'static str>,
}

/// Looks at keys until all were seen, or it has been long or many enough.
pub(super) async fn sample_keys(
    console: &AdminConnection,
) -> Result<ProbeResult<KeySample>, SilentServer> {
    let (began, mut sample) = (Instant::now(), KeySample::default());
    let mut cursor = b"0".to_vec();
    while began.elapsed() < SCAN_TIME && sample.scanned < MAX_SCANNED_KEYS {
        let scan = [b"SCAN".as_slice(), &cursor, b"COUNT", SCAN_COUNT];
        let keys = match unless_silent(console.query(&scan).await)? {
            Err(error) => return Ok(Err(error)),
            Ok(reply) => parse_scan_reply(reply, &mut cursor),
        };
        sample.scanned += keys.len() as u64;
        let ours: Vec<Vec<u8>> = keys
            .into_iter()
            .filter(|key| key.starts_with(KEY_PREFIX))
            .collect();
        sample.ours += ours.len() as u64;
        sample.measure_memory(console, &ours).await?;
        sample.check_expiry(console, &ours).await?;
        if cursor == b"0" {
            sample.is_complete = true;
            break;
        }
    }
    Ok(Ok(sample))
}

/// The keys of one answer to `SCAN`, and where to go on.
fn parse_scan_reply(reply: RespValue, cursor: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut parts = match reply {
        RespValue::List(parts) => parts.into_iter(),
        _ => Vec::new().into_iter(),
    };
    *cursor = match parts.next() {
        Some(RespValue::Text(next)) => next,
        _ => b"0".to_vec(),
    };
    let Some(RespValue::List(keys)) = parts.next() else {
        return Vec::new();
    };
    let text = |key| match key {
        RespValue::Text(key) => Some(key),
        _ => None,
    };
    keys.into_iter().filter_map(text).collect()
}

impl KeySample {
    /// Asks what some keys take.
    async fn measure_memory(
        &mut self,
        console: &AdminConnection,
        ours: &[Vec<u8>],
    ) -> Result<(), SilentServer> {
        let room = usize::try_from(MAX_MEASURED_KEYS.saturating_sub(self.measured)).unwrap_or(0);
        let some = &ours[..ours.len().min(room)];
        let replies = self
            .query_each(console, &[b"MEMORY", b"USAGE"], some, MEMORY_PERMISSION)
            .await?;
        for bytes in replies.into_iter().flatten() {
            self.measured += 1;
            self.bytes += u64::try_from(bytes).unwrap_or(0);
        }
        Ok(())
    }

    /// Asks when counters end.
    async fn check_expiry(
        &mut self,
        console: &AdminConnection,
        ours: &[Vec<u8>],
    ) -> Result<(), SilentServer> {
        let counters = ours
            .iter()
            .filter(|key| key.starts_with(COUNTER_PREFIX))
            .cloned();
        let counters: Vec<Vec<u8>> = counters.collect();
        let replies = self
            .query_each(console, &[b"TTL"], &counters, TTL_PERMISSION)
            .await?;
        for (key, left) in counters.iter().zip(replies) {
            self.counters += 1;
            if left == Some(-1) {
                self.without_expiry += 1;
                self.example = Some(SanitizedText(&String::from_utf8_lossy(key)).to_string());
            }
        }
        Ok(())
    }

    /// The number that the server answers about each key, if it answers with one. Nothing at all from
    /// the first time on that we may not ask.
    async fn query_each(
        &mut self,
        console: &AdminConnection,
        verb: &[&[u8]],
        keys: &[Vec<u8>],
        permission: &'static str,
    ) -> Result<Vec<Option<i64>>, SilentServer> {
        if keys.is_empty() || self.denied_permissions.contains(&permission) {
            return Ok(Vec::new());
        }
        let commands: Vec<Vec<&[u8]>> = keys
            .iter()
            .map(|key| verb.iter().copied().chain([key.as_slice()]).collect())
            .collect();
        let replies = unless_silent(console.query_each(&commands).await)?.unwrap_or_default();
        let denied = |reply: &ProbeResult<RespValue>| {
            reply
                .as_ref()
                .is_err_and(|f| f.missing_permission().is_some())
        };
        if replies.iter().any(denied) {
            self.denied_permissions.push(permission);
            return Ok(Vec::new());
        }
        let number = |reply| match reply {
            Ok(RespValue::Number(number)) => Some(number),
            _ => None,
        };
        Ok(replies.into_iter().map(number).collect())
    }
}

pub(super) fn expiry(sample: &ProbeResult<KeySample>) -> DoctorFinding {
    let check = "expiry";
    let what = "whether every counter will go by itself";
    let sample = match sample {
        Ok(sample) => sample,
        Err(error) => return DoctorFinding::hidden(check, what, error, "+scan +ttl"),
    };
    if sample.denied_permissions.contains(&TTL_PERMISSION) {
        let found = format!("{what} cannot be seen: NOPERM");
        return DoctorFinding::warn(check, found, format!("grant {TTL_PERMISSION} to see it"));
    }
    let counters = sample.counters;
    let of = match sample.is_complete {
        true => format!("{counters} counters"),
        false => format!(
            "{counters} counters among the first {} keys",
            sample.scanned
        ),
    };
    match &sample.example {
        None => DoctorFinding::ok(check, format!("{of}, each will go by itself")),
        Some(example) => {
            let found = format!(
                "{of}, {} stay for ever, such as {example}",
                sample.without_expiry
            );
            let cure = "delete them; another program wrote them, or removed their expiry";
            DoctorFinding::warn(check, found, cure)
        }
    }
}

pub(super) fn memory(
    sample: &ProbeResult<KeySample>,
    info: &ProbeResult<ServerInfo>,
    database: i64,
) -> DoctorFinding {
    let check = "memory";
    let sample = match sample {
        Ok(sample) => sample,
        Err(error) => return DoctorFinding::hidden(check, "what our keys take", error, "+scan"),
    };
    let total_keys = info.as_ref().ok().and_then(|info| {
        let keys = info.subfield(&format!("db{database}"), "keys")?;
        keys.parse::<u64>().ok()
    });
    let keys = match (sample.is_complete, total_keys) {
        (false, Some(there)) => scaled(sample.ours, there, sample.scanned),
        _ => sample.ours,
    };
    let about = if sample.is_complete { "" } else { "about " };
    let others = match sample.is_complete {
        true => sample.scanned - sample.ours,
        false => total_keys.unwrap_or(sample.scanned).saturating_sub(keys),
    };
    let beside = format!("{about}{keys} keys tg:*, {others} others");
    if sample.denied_permissions.contains(&MEMORY_PERMISSION) {
        return DoctorFinding::ok(
            check,
            format!("{beside}; what they take is seen with {MEMORY_PERMISSION}"),
        );
    }
    let bytes = scaled(sample.bytes, keys, sample.measured);
    DoctorFinding::ok(check, format!("{beside}; ours take about {}", size(bytes)))
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
    fn check(finding: DoctorFinding, want: &str) {
        assert_eq!(finding.line(), want);
    }

    #[test]
    fn a_counter_that_stays_is_a_warning() {
        let mut sample = KeySample {
            scanned: 9,
            is_complete: true,
            ours: 7,
            counters: 5,
            ..KeySample::default()
        };
        let fine = "ok    expiry       5 counters, each will go by itself";
        check(expiry(&Ok(sample.clone())), fine);
        sample.without_expiry = 2;
        sample.example = Some("tg:{a}:b".to_owned());
        let line = expiry(&Ok(sample.clone())).line();
        assert!(line.starts_with("warn") && line.contains("2 stay for ever, such as tg:{a}:b"));
        sample.denied_permissions.push(TTL_PERMISSION);
        let line = expiry(&Ok(sample)).line();
        assert!(
            line.starts_with("warn") && line.ends_with("grant +ttl to see it"),
            "{line}"
        );
    }

    #[test]
    fn what_was_not_looked_at_is_reckoned() {
        let mut sample = KeySample {
            scanned: 100,
            is_complete: true,
            ours: 50,
            measured: 10,
            bytes: 2_000,
            ..KeySample::default()
        };
        let info = Ok(ServerInfo::parse("db3:keys=1000,expires=5"));
        let all = "ok    memory       50 keys tg:*, 50 others; ours take about 9.8 KiB";
        check(memory(&Ok(sample.clone()), &info, 3), all);
        sample.is_complete = false;
        let some = "ok    memory       about 500 keys tg:*, 500 others; ours take about 97.7 KiB";
        check(memory(&Ok(sample), &info, 3), some);
    }

    #[test]
    fn an_answer_to_scan_is_read_and_nonsense_ends_it() {
        let key = |text: &str| RespValue::Text(text.as_bytes().to_vec());
        let mut cursor = b"0".to_vec();
        let reply = RespValue::List(vec![key("17"), RespValue::List(vec![key("a"), key("b")])]);
        assert_eq!(parse_scan_reply(reply, &mut cursor), [b"a", b"b"]);
        assert_eq!(cursor, b"17");
        assert!(parse_scan_reply(RespValue::Nil, &mut cursor).is_empty());
        assert_eq!(cursor, b"0");
    }
}

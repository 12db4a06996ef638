//! The keys: how many, how large, and whether each counter will expire.

use std::time::{Duration, Instant};

use tidegate::stores::redis::{AdminConnection, RespValue};

use super::finding::DoctorFinding;
use super::probe::{ProbeResult, ServerInfo, SilentServer, unless_silent};
use crate::logging::SanitizedText;

/// Limits of the scan: a sample, not a census of a server at work.
const SCAN_TIME: Duration = Duration::from_secs(5);
const MAX_SCANNED_KEYS: u64 = 50_000;
/// Keys per `SCAN`. Each call blocks the server for a fraction of a millisecond.
const SCAN_COUNT: &[u8] = b"500";
/// Maximum number of keys whose memory is measured.
const MAX_MEASURED_KEYS: u64 = 100;
/// The prefix of all Tidegate keys, and of counters.
const KEY_PREFIX: &[u8] = b"tg:";
const COUNTER_PREFIX: &[u8] = b"tg:{";

/// The permissions that measuring memory and reading expiry need.
const MEMORY_PERMISSION: &str = "+memory|usage";
const TTL_PERMISSION: &str = "+ttl";

/// The result of a scan of some keys.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySample {
    scanned: u64,
    /// Whether the sample contains all keys.
    is_complete: bool,
    ours: u64,
    counters: u64,
    /// Counters without an expiry, and one of them.
    without_expiry: u64,
    example: Option<String>,
    measured: u64,
    bytes: u64,
    /// Permissions that were denied.
    denied_permissions: Vec<&'static str>,
}

/// Scans until all keys are seen, or until the time or the number of keys reaches its maximum.
pub(super) async fn sample_keys(connection: &AdminConnection) -> Result<ProbeResult<KeySample>, SilentServer> {
    let (began, mut sample) = (Instant::now(), KeySample::default());
    let mut cursor = b"0".to_vec();
    while began.elapsed() < SCAN_TIME && sample.scanned < MAX_SCANNED_KEYS {
        let scan = [b"SCAN".as_slice(), &cursor, b"COUNT", SCAN_COUNT];
        let keys = match unless_silent(connection.query(&scan).await)? {
            Err(error) => return Ok(Err(error)),
            Ok(reply) => parse_scan_reply(reply, &mut cursor),
        };
        sample.scanned += keys.len() as u64;
        let ours: Vec<Vec<u8>> = keys.into_iter().filter(|key| key.starts_with(KEY_PREFIX)).collect();
        sample.ours += ours.len() as u64;
        sample.measure_memory(connection, &ours).await?;
        sample.check_expiry(connection, &ours).await?;
        if cursor == b"0" {
            sample.is_complete = true;
            break;
        }
    }
    Ok(Ok(sample))
}

/// The keys of one `SCAN` reply, and the next cursor.
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
    /// Measures the memory of some keys.
    async fn measure_memory(&mut self, connection: &AdminConnection, ours: &[Vec<u8>]) -> Result<(), SilentServer> {
        let room = usize::try_from(MAX_MEASURED_KEYS.saturating_sub(self.measured)).unwrap_or(0);
        let some = &ours[..ours.len().min(room)];
        let replies = self.query_each(connection, &[b"MEMORY", b"USAGE"], some, MEMORY_PERMISSION).await?;
        for bytes in replies.into_iter().flatten() {
            self.measured += 1;
            self.bytes += u64::try_from(bytes).unwrap_or(0);
        }
        Ok(())
    }

    /// Reads the expiry of counters.
    async fn check_expiry(&mut self, connection: &AdminConnection, ours: &[Vec<u8>]) -> Result<(), SilentServer> {
        let counters = ours.iter().filter(|key| key.starts_with(COUNTER_PREFIX)).cloned();
        let counters: Vec<Vec<u8>> = counters.collect();
        let replies = self.query_each(connection, &[b"TTL"], &counters, TTL_PERMISSION).await?;
        for (key, left) in counters.iter().zip(replies) {
            self.counters += 1;
            if left == Some(-1) {
                self.without_expiry += 1;
                self.example = Some(SanitizedText(&String::from_utf8_lossy(key)).to_string());
            }
        }
        Ok(())
    }

    /// The number that the server replies for each key, if the reply is a number. Stops at the first permission
    /// error.
    async fn query_each(
        &mut self,
        connection: &AdminConnection,
        verb: &[&[u8]],
        keys: &[Vec<u8>],
        permission: &'static str,
    ) -> Result<Vec<Option<i64>>, SilentServer> {
        if keys.is_empty() || self.denied_permissions.contains(&permission) {
            return Ok(Vec::new());
        }
        let commands: Vec<Vec<&[u8]>> =
            keys.iter().map(|key| verb.iter().copied().chain([key.as_slice()]).collect()).collect();
        let replies = unless_silent(connection.query_each(&commands).await)?.unwrap_or_default();
        let denied = |reply: &ProbeResult<RespValue>| reply.as_ref().is_err_and(|f| f.missing_permission().is_some());
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

pub(super) fn expiry(sample: &KeySample) -> DoctorFinding {
    let check = "expiry";
    if sample.denied_permissions.contains(&TTL_PERMISSION) {
        let found = "whether every counter will expire cannot be seen: NOPERM";
        return DoctorFinding::warn(check, found, format!("grant {TTL_PERMISSION} to see it"));
    }
    let counters = sample.counters;
    let of = if sample.is_complete {
        format!("{counters} counters")
    } else {
        format!("{counters} counters among the first {} keys", sample.scanned)
    };
    match &sample.example {
        None => DoctorFinding::ok(check, format!("{of}, each will expire")),
        Some(example) => {
            let found = format!("{of}, {} never expire, such as {example}", sample.without_expiry);
            let cure = "delete them; another program wrote them, or removed their expiry";
            DoctorFinding::warn(check, found, cure)
        }
    }
}

pub(super) fn memory(sample: &KeySample, info: &ProbeResult<ServerInfo>, database: i64) -> DoctorFinding {
    let check = "memory";
    let total_keys = info.as_ref().ok().and_then(|info| {
        let keys = info.subfield(&format!("db{database}"), "keys")?;
        keys.parse::<u64>().ok()
    });
    let keys = match (sample.is_complete, total_keys) {
        (false, Some(there)) => scaled(sample.ours, there, sample.scanned),
        _ => sample.ours,
    };
    let about = if sample.is_complete { "" } else { "about " };
    let others = if sample.is_complete {
        sample.scanned - sample.ours
    } else {
        total_keys.unwrap_or(sample.scanned).saturating_sub(keys)
    };
    let beside = format!("{about}{keys} keys tg:*, {others} others");
    if sample.denied_permissions.contains(&MEMORY_PERMISSION) {
        return DoctorFinding::ok(check, format!("{beside}; their memory is seen with {MEMORY_PERMISSION}"));
    }
    let bytes = scaled(sample.bytes, keys, sample.measured);
    DoctorFinding::ok(check, format!("{beside}; ours take about {}", size(bytes)))
}

/// `part` of `of`, scaled to `whole`.
fn scaled(part: u64, whole: u64, of: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(whole) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Bytes in a readable unit.
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
    fn a_counter_without_expiry_is_a_warning() {
        let mut sample = KeySample { scanned: 9, is_complete: true, ours: 7, counters: 5, ..KeySample::default() };
        let fine = "ok    expiry       5 counters, each will expire";
        check(expiry(&sample), fine);
        sample.without_expiry = 2;
        sample.example = Some("tg:{a}:b".to_owned());
        let line = expiry(&sample).line();
        assert!(line.starts_with("warn") && line.contains("2 never expire, such as tg:{a}:b"));
        sample.denied_permissions.push(TTL_PERMISSION);
        let line = expiry(&sample).line();
        assert!(line.starts_with("warn") && line.ends_with("grant +ttl to see it"), "{line}");
    }

    #[test]
    fn keys_beyond_the_sample_are_estimated() {
        let mut sample =
            KeySample { scanned: 100, is_complete: true, ours: 50, measured: 10, bytes: 2_000, ..KeySample::default() };
        let info = Ok(ServerInfo::parse("db3:keys=1000,expires=5"));
        let all = "ok    memory       50 keys tg:*, 50 others; ours take about 9.8 KiB";
        check(memory(&sample, &info, 3), all);
        sample.is_complete = false;
        let some = "ok    memory       about 500 keys tg:*, 500 others; ours take about 97.7 KiB";
        check(memory(&sample, &info, 3), some);
    }

    #[test]
    fn a_scan_reply_is_parsed_and_an_invalid_one_ends_the_scan() {
        let key = |text: &str| RespValue::Text(text.as_bytes().to_vec());
        let mut cursor = b"0".to_vec();
        let reply = RespValue::List(vec![key("17"), RespValue::List(vec![key("a"), key("b")])]);
        assert_eq!(parse_scan_reply(reply, &mut cursor), [b"a", b"b"]);
        assert_eq!(cursor, b"17");
        assert!(parse_scan_reply(RespValue::Nil, &mut cursor).is_empty());
        assert_eq!(cursor, b"0");
    }
}

//! The server itself: its version, its round trip time, and its clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate::resilience::{ClockLevel, ClockReading, ClockTolerance, ClockWatch};
use tidegate::stores::redis::AdminConnection;
use tidegate_core::units::Nanos;

use super::finding::DoctorFinding;
use super::probe::{ProbeResult, ServerInfo, SilentServer, unless_silent};

/// The versions that the tests run.
const TESTED_VERSIONS: [(&str, &str); 4] = [("Redis", "7.0"), ("Redis", "8.2"), ("Valkey", "8.1"), ("Valkey", "9.1")];
/// Enough for a median that one outlier does not move.
const MAX_PINGS: usize = 50;
/// A distant server gets fewer pings.
const PING_TIME: Duration = Duration::from_secs(3);
/// As many as `ClockWatch` remembers.
const CLOCK_EXCHANGES: usize = 8;

pub(super) fn version(info: &ServerInfo) -> DoctorFinding {
    let check = "version";
    let (name, version) = match info.text("valkey_version") {
        Some(version) => ("Valkey", version),
        None => ("Redis", info.text("redis_version").unwrap_or("unknown")),
    };
    let found = format!("{name} {version}");
    let tested = |(of, line): &(&str, &str)| {
        let rest = version.strip_prefix(line);
        *of == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if TESTED_VERSIONS.iter().any(tested) {
        DoctorFinding::ok(check, found)
    } else {
        let lines: Vec<String> = TESTED_VERSIONS.iter().map(|(n, v)| format!("{n} {v}")).collect();
        let cure = format!("tested are {}", lines.join(", "));
        DoctorFinding::warn(check, found + ", which the tests do not run", cure)
    }
}

/// The round trip times of some pings.
pub(super) async fn pings(connection: &AdminConnection) -> Result<Vec<Duration>, SilentServer> {
    let began = Instant::now();
    let mut times = Vec::with_capacity(MAX_PINGS);
    while times.is_empty() || (times.len() < MAX_PINGS && began.elapsed() < PING_TIME) {
        let sent = Instant::now();
        let _reply_or_error = unless_silent(connection.query(&[b"PING"]).await)?;
        times.push(sent.elapsed());
    }
    Ok(times)
}

pub(super) fn round_trip(mut times: Vec<Duration>, budget: Duration) -> DoctorFinding {
    let check = "round trip";
    times.sort_unstable();
    let max = times.last().copied().unwrap_or_default();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let found = format!(
        "{:.2} ms median of {} pings, {:.2} ms maximum; a decision waits {} ms",
        ms(median),
        times.len(),
        ms(max),
        budget.as_millis(),
    );
    let cure = "bring nodes and store closer together, or raise --store-budget";
    if median >= budget {
        let found = found + ": most would be decided without the store";
        DoctorFinding::fail(check, found, cure)
    } else if max >= budget {
        let found = found + ": some would be decided without the store";
        DoctorFinding::warn(check, found, cure)
    } else {
        DoctorFinding::ok(check, found)
    }
}

/// Compares the server's clock with this machine's.
pub(super) async fn clock_exchanges(
    connection: &AdminConnection,
    tolerance: ClockTolerance,
) -> Result<ProbeResult<Option<ClockReading>>, SilentServer> {
    let mut watch = ClockWatch::new(tolerance);
    for _ in 0..CLOCK_EXCHANGES {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let sent = Instant::now();
        let at = match unless_silent(connection.time().await)? {
            Ok(Some(at)) => at,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        let took = Nanos::from(sent.elapsed());
        watch.record(wall.map_or(Nanos::ZERO, Nanos::from), took, at);
    }
    Ok(Ok(watch.reading()))
}

pub(super) fn clock(reading: &Option<ClockReading>) -> DoctorFinding {
    let check = "clock";
    let Some(reading) = reading else {
        return DoctorFinding::warn(check, "TIME returned no time", "see the server's log");
    };
    let offset = reading.offset;
    let side = if offset.nanos < 0 { "behind" } else { "ahead of" };
    let found = format!(
        "{:.2} ms {side} this machine, give or take {:.2}",
        offset.nanos.unsigned_abs() as f64 / 1e6,
        offset.error.get() as f64 / 1e6,
    );
    let cure = "let both follow one source of time; decisions follow the store's clock, dates in \
                headers and logs follow this machine's";
    match reading.level {
        ClockLevel::Fine => DoctorFinding::ok(check, found),
        ClockLevel::Warn => DoctorFinding::warn(check, found, cure),
        ClockLevel::Alarm => DoctorFinding::fail(check, found, cure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::resilience::ClockOffset;

    #[track_caller]
    fn check(finding: DoctorFinding, begins: &str) {
        let line = finding.line();
        assert!(line.starts_with(begins), "{line}");
    }

    #[test]
    fn versions_that_are_tested_are_known_and_no_others() {
        for (text, want) in [
            ("redis_version:7.0.15", "ok    version      Redis 7.0.15"),
            ("redis_version:8.2.1", "ok "),
            ("redis_version:7.2.4\nvalkey_version:8.1.3", "ok    version      Valkey 8.1.3"),
            ("redis_version:7.2.4\nvalkey_version:9.1.0", "ok "),
            ("redis_version:7.2.4", "warn"),
            ("redis_version:8.20.0", "warn"),
            ("redis_version:6.2.1", "warn"),
            ("redis_version:7.2.4\nvalkey_version:8.2.0", "warn"),
            ("", "warn"),
        ] {
            check(version(&ServerInfo::parse(text)), want);
        }
    }

    #[test]
    fn a_round_trip_is_held_against_the_budget() {
        let ms = Duration::from_millis;
        let budget = ms(5);
        check(round_trip(vec![ms(1); 9], budget), "ok ");
        check(round_trip(vec![ms(1), ms(1), ms(9)], budget), "warn");
        check(round_trip(vec![ms(1), ms(9), ms(9)], budget), "FAIL");
    }

    #[test]
    fn a_clock_is_judged_by_its_level() {
        for (level, want) in [(ClockLevel::Fine, "ok "), (ClockLevel::Warn, "warn"), (ClockLevel::Alarm, "FAIL")] {
            let offset = ClockOffset { nanos: -30_000_000, error: Nanos::from_millis(1) };
            let finding = clock(&Some(ClockReading { offset, level }));
            assert!(finding.line().contains("30.00 ms behind"), "{}", finding.line());
            check(finding, want);
        }
    }
}

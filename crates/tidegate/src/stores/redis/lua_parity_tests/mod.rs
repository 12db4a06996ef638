//! Compares every script with the library: the same verdicts, the same bytes, the same expiry, on random operations at
//! injected times.
//!
//! The text is that of the shipped script except for the expression that reads the clock. Subjects are independent, so
//! that one round is one long pipeline. A failure prints the seed that repeats it.

mod cases;
mod memory;
mod model;
mod run;
mod wire;

use redis::Value;
use tidegate_core::subject::{Fingerprint, RuleName};

use self::cases::{LimitKind, ParityRng, START};
use self::model::StoredRecord;
use self::run::{ExpectedReply, ParityRun, ParitySubject};
use self::wire::{WireClient, WireReply};
use super::plan;
use super::scripts::{self, Script};
use tidegate_testkit::{RedisProgram, TestRedis};

const SUBJECTS: u64 = 1_000;
const ROUNDS: u64 = 200;
/// The id of every call.
const CALL_ID: &[u8] = b"call";

/// The script with the time in the two arguments before the call id.
fn timed(script: Script) -> String {
    let clock = "redis.call('TIME')";
    assert_eq!(script.text.matches(clock).count(), 1, "{}", script.name);
    script.text.replace(clock, "{ ARGV[#ARGV - 2], ARGV[#ARGV - 1] }")
}

/// The hashes of the scripts on a server.
struct ScriptHashes(Vec<(&'static str, Vec<u8>)>);

impl ScriptHashes {
    fn load(wire: &mut WireClient) -> ScriptHashes {
        let load = |script: Script| {
            let hash = wire.call(&[b"SCRIPT", b"LOAD", timed(script).as_bytes()]);
            (script.name, hash.bytes().expect("a hash").to_vec())
        };
        ScriptHashes(scripts::ALL.map(load).to_vec())
    }

    fn of(&self, script: Script) -> &[u8] {
        let found = self.0.iter().find(|(name, _)| *name == script.name);
        &found.expect("a loaded script").1
    }
}

/// Compares a reply with the expected one. Returns the difference as an error.
fn compare(expect: &ExpectedReply, reply: &WireReply) -> Result<(), String> {
    if let WireReply::Error(error) = reply {
        return Err(error.clone());
    }
    let Some(reply) = &reply.without(CALL_ID) else {
        return Err(format!("{reply:?} does not end with the call id"));
    };
    let same = |what: &str, found: i64, want: i64| {
        if found == want {
            return Ok(());
        }
        Err(format!("{what} is {found}, not {want}"))
    };
    let verdict = |reply: &WireReply, found: &[Option<Vec<u8>>], want: i64| {
        let bytes = reply.bytes().unwrap_or_default().to_vec();
        let read = super::script_reply::ScriptReply::read(Value::BulkString(bytes));
        let read = read.map_err(|error| error.to_string())?;
        let records = read.records().map_err(|error| error.to_string())?;
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        if records != found {
            return Err(format!("found {records:02x?}, not {found:02x?}"));
        }
        same("the verdict", read.verdict().map_err(|error| error.to_string())?, want)
    };
    match expect {
        ExpectedReply::Number(number) => same("the number", reply.number(), *number),
        ExpectedReply::Code(code) => verdict(reply, &[], *code),
        ExpectedReply::Draw { units, found } => verdict(reply, std::slice::from_ref(found), *units as i64),
        ExpectedReply::Charge { admitted, found } => verdict(reply, found, i64::from(*admitted)),
    }
}

/// Checks that the stored records and their expiry are those that the library computes.
fn check_stored(run: &mut ParityRun, subjects: &[ParitySubject], context: &str) {
    let rules = run.rules.clone();
    let stored = |subject: &ParitySubject| {
        let keys = rules.each_ref().map(|rule| plan::key(subject.id, ":", rule.as_str()));
        keys.into_iter().zip(subject.records.clone())
    };
    let all: Vec<(Vec<u8>, StoredRecord)> = subjects.iter().flat_map(stored).collect();
    for (key, _) in &all {
        run.wire.push([b"GET", key.as_slice()]);
        run.wire.push([b"EXPIRETIME", key.as_slice()]);
    }
    for (reply, (key, stored)) in run.wire.replies().chunks(2).zip(&all) {
        let want = stored.as_ref().map(|(bytes, _)| bytes.as_slice());
        let name = String::from_utf8_lossy(key);
        assert_eq!(reply[0].bytes(), want, "{context}: {name}");
        let expires = stored.as_ref().map_or(-2, |(_, expires)| *expires as i64);
        // Nanoseconds cannot represent later times, and the library returns "the end of time".
        let max = (u64::MAX / 1_000_000_000) as i64;
        let found = reply[1].number().min(max);
        assert_eq!(found, expires, "{context}: when {name} expires");
    }
}

fn try_kind(server: &TestRedis, kind: LimitKind, seed: u64) {
    let mut random = ParityRng(seed);
    let mut pool = cases::limits(kind, &mut random);
    // Some limits of other kinds, to convert to and from.
    for _ in 0..2 {
        let other = *random.pick(&LimitKind::ALL);
        pool.push(cases::limits(other, &mut random).swap_remove(0));
    }
    let mut wire = WireClient::connect(&server.socket());
    wire.call(&[b"FLUSHALL"]);
    let hashes = ScriptHashes::load(&mut wire);
    let mut run = ParityRun {
        random,
        pool: pool.into(),
        rules: [RuleName::new("a"), RuleName::new("rule-b")],
        wire,
        hashes,
        admitted: 0,
        denied: 0,
    };
    let mut subjects: Vec<ParitySubject> = (0..SUBJECTS)
        .map(|i| ParitySubject {
            id: Fingerprint::new((u128::from(seed) << 64) | u128::from(i)),
            now: START + run.random.below(1 << 40),
            limits: [[(); 3]; 2].map(|rates| rates.map(|()| run.random.below(12) as usize)),
            records: [None, None],
            charged: None,
            refunds: 0,
        })
        .collect();
    for round in 0..ROUNDS {
        let expects: Vec<ExpectedReply> = subjects.iter_mut().map(|s| run.step(s)).collect();
        let replies = run.wire.replies();
        for ((expect, reply), subject) in expects.iter().zip(&replies).zip(&subjects) {
            if let Err(reason) = compare(expect, reply) {
                let limits = subject.limits.map(|rates| rates.map(|at| &run.pool[at]));
                let (id, now) = (subject.id, subject.now);
                panic!("{kind:?}, seed {seed}, round {round}, subject {id} at {now}: {reason}\n{limits:?}");
            }
        }
        if round % 20 == 19 {
            check_stored(&mut run, &subjects, &format!("{kind:?}, seed {seed}, round {round}"));
        }
    }
    let total = run.admitted + run.denied;
    let both = run.admitted > total / 10 && run.denied > total / 20;
    assert!(both, "{kind:?}: {} of {total} admitted", run.admitted);
}

fn all_kinds(program: RedisProgram) {
    let server = TestRedis::start(program, &[]);
    let seed = std::env::var("TG_TEST_SEED").map_or(1, |seed| seed.parse().expect("a seed"));
    let only = std::env::var("TG_TEST_KIND").unwrap_or_default();
    for kind in LimitKind::ALL {
        if format!("{kind:?}").contains(&only) {
            try_kind(&server, kind, seed);
        }
    }
}

#[test]
fn redis_7_decides_as_the_library_does() {
    all_kinds(RedisProgram::Redis7);
}

#[test]
fn redis_8_decides_as_the_library_does() {
    all_kinds(RedisProgram::Redis8);
}

#[test]
fn valkey_8_decides_as_the_library_does() {
    all_kinds(RedisProgram::Valkey8);
}

#[test]
fn valkey_9_decides_as_the_library_does() {
    all_kinds(RedisProgram::Valkey9);
}

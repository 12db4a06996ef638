//! Open reservations until there is no room for more: they take no more memory than is counted for them.
//!
//! A binary of its own, because it measures the resident memory of its process.

mod common;

use std::time::Duration;

use common::{TestLimiter, request};

const CAP: u64 = 64 << 20;
const HOUR: Duration = Duration::from_secs(3_600);

const RULES: &str = "
version: 1
rules:
  - { name: tokens-of-a-user-in-a-rule-with-a-long-name, by: user, unit: tokens, rate: 100000/hour }
  - { name: tokens-of-a-user-per-minute, by: user, unit: tokens, rate: 50000/minute }
  - { name: calls-of-a-user, by: user, rate: 1000/hour }
";

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a count of pages") * 4_096
}

/// Reserves for a new subject each time until there is no room. Returns the tokens.
async fn fill(fixture: &TestLimiter, subjects: &mut impl Iterator<Item = u32>) -> Vec<String> {
    let mut tokens = Vec::new();
    loop {
        let user = format!("user={:x>200} tokens:1500", subjects.next().expect("enough subjects"));
        match fixture.limiter.reserve(request(&user), HOUR).await {
            Ok(reserved) => tokens.extend(reserved.token),
            Err(_) => return tokens,
        }
    }
}

/// A reservation of a new subject was counted as 192 bytes for each limit and took up to 1.2 KB for each.
#[tokio::test]
async fn open_reservations_take_no_more_memory_than_is_counted() {
    let fixture = TestLimiter::with(RULES, |builder| builder.memory_cap(CAP));
    let before = resident();
    let mut subjects = 0..;
    let mut open = fill(&fixture, &mut subjects).await;
    assert!(open.len() > 5_000, "{} reservations", open.len());
    for round in 0..4 {
        let tokens = open.iter().map(String::len).sum::<usize>() as u64;
        let counted = fixture.limiter.store().stats().bytes + CAP / 64;
        let grown = resident() - before;
        assert!(grown < counted + 2 * tokens, "{grown} bytes for {counted} and {tokens} of tokens, round {round}");
        // Others take the place of two in three: the tables are as sparse as they become.
        for token in open.iter().enumerate().filter(|(index, _)| index % 3 != 0).map(|(_, token)| token) {
            fixture.limiter.settle(token, &Default::default()).await.expect("memory replies");
        }
        open = open.into_iter().step_by(3).collect();
        open.extend(fill(&fixture, &mut subjects).await);
    }
}

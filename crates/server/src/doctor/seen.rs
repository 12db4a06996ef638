//! What a server lets us see: an answer, a refusal, or nothing.

use std::collections::HashMap;

use tidegate::stores::redis::{Console, Fault, Said};

/// Nothing came back. There is no use in asking on.
#[derive(Debug)]
pub(crate) struct Silent(pub(super) Fault);

/// An answer, or why it was refused.
pub(super) type Seen<T> = Result<T, Fault>;

/// An answer or a refusal; silence ends the examination.
pub(super) fn seen<T>(answer: Result<T, Fault>) -> Result<Seen<T>, Silent> {
    match answer {
        Err(fault) if fault.is_silence() => Err(Silent(fault)),
        answer => Ok(answer),
    }
}

/// What `INFO` tells, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Info(HashMap<String, String>);

impl Info {
    pub(super) async fn read(console: &Console) -> Result<Seen<Info>, Silent> {
        let answer = seen(console.ask(&[b"INFO"]).await)?;
        Ok(answer.map(|said| Info::of(said.text().unwrap_or_default())))
    }

    pub(super) fn of(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        let owned = |text: &str| text.trim().to_owned();
        Info(pairs.map(|(k, v)| (owned(k), owned(v))).collect())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// One part of a value that has several: `slave0:ip=..,lag=1`.
    pub(super) fn part(&self, name: &str, part: &str) -> Option<&str> {
        let mut parts = self.text(name)?.split(',');
        parts.find_map(|one| one.strip_prefix(part)?.strip_prefix('='))
    }
}

/// One setting of the server.
pub(super) async fn setting(console: &Console, name: &str) -> Result<Seen<String>, Silent> {
    let answer = console.ask(&[b"CONFIG", b"GET", name.as_bytes()]).await;
    let value = |said: Said| match said {
        Said::List(pair) => pair.get(1).and_then(Said::text).map(str::to_owned),
        _ => None,
    };
    Ok(seen(answer)?.map(|said| value(said).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_info_tells_is_found_by_name() {
        let text = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:1024\r\n\
                    slave0:ip=127.0.0.1,port=1,state=online,offset=5,lag=1\r\n";
        let info = Info::of(text);
        assert_eq!(info.text("redis_version"), Some("7.0.15"));
        assert_eq!(info.number("maxmemory"), Some(1_024));
        assert_eq!(info.part("slave0", "lag"), Some("1"));
        assert_eq!(info.part("slave0", "la"), None);
        assert_eq!(info.number("no_such"), None);
    }
}

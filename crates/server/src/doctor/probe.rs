//! The result of a query to a server: a reply, an error reply, or nothing.

use std::collections::HashMap;

use tidegate::stores::redis::{AdminConnection, RedisStoreError, RespValue};

/// The server did not reply. Further queries are useless.
#[derive(Debug)]
pub(crate) struct SilentServer(pub(super) RedisStoreError);

/// A reply, or the error reply of the server.
pub(super) type ProbeResult<T> = Result<T, RedisStoreError>;

/// Passes replies and error replies on; a missing reply ends the examination.
pub(super) fn unless_silent<T>(result: Result<T, RedisStoreError>) -> Result<ProbeResult<T>, SilentServer> {
    match result {
        Err(error) if error.is_silence() => Err(SilentServer(error)),
        result => Ok(result),
    }
}

/// The fields of `INFO`, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerInfo(HashMap<String, String>);

impl ServerInfo {
    pub(super) async fn read(connection: &AdminConnection) -> Result<ProbeResult<ServerInfo>, SilentServer> {
        let reply = unless_silent(connection.query(&[b"INFO"]).await)?;
        Ok(reply.map(|text| ServerInfo::parse(text.text().unwrap_or_default())))
    }

    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        let owned = |text: &str| text.trim().to_owned();
        ServerInfo(pairs.map(|(k, v)| (owned(k), owned(v))).collect())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// One subfield of a value that has several: `slave0:ip=..,lag=1`.
    pub(super) fn subfield(&self, name: &str, key: &str) -> Option<&str> {
        let mut subfields = self.text(name)?.split(',');
        subfields.find_map(|one| one.strip_prefix(key)?.strip_prefix('='))
    }
}

/// One configuration setting of the server.
pub(super) async fn config_setting(
    connection: &AdminConnection,
    name: &str,
) -> Result<ProbeResult<String>, SilentServer> {
    let reply = connection.query(&[b"CONFIG", b"GET", name.as_bytes()]).await;
    let value = |values: RespValue| match values {
        RespValue::List(pair) => pair.get(1).and_then(RespValue::text).map(str::to_owned),
        _ => None,
    };
    Ok(unless_silent(reply)?.map(|values| value(values).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_values_are_found_by_name() {
        let text = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:1024\r\n\
                    slave0:ip=127.0.0.1,port=1,state=online,offset=5,lag=1\r\n";
        let info = ServerInfo::parse(text);
        assert_eq!(info.text("redis_version"), Some("7.0.15"));
        assert_eq!(info.number("maxmemory"), Some(1_024));
        assert_eq!(info.subfield("slave0", "lag"), Some("1"));
        assert_eq!(info.subfield("slave0", "la"), None);
        assert_eq!(info.number("no_such"), None);
    }
}

//! A charge as the store sends it, recorded by `MONITOR`: the script and its arguments.
//!
//! So the bench sends whatever the store sends, and needs no private part of it.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bench_load::BenchError;
use redis::{Connection, Value};

use crate::calls::admitted;
use crate::command::RespCommand;

/// One call of the charge script.
#[derive(Debug)]
pub(crate) struct RecordedScriptCall {
    hash: String,
    key: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    /// The text of the script.
    script: String,
}

impl RecordedScriptCall {
    /// The recorded call, each time with another key.
    pub(crate) fn call(&self) -> io::Result<RespCommand> {
        RespCommand::script(&self.hash, &self.key, &self.arguments).ok_or_else(|| no_tag(&self.key))
    }

    /// The same call without a zero byte, because `redis-benchmark` ends a word there.
    ///
    /// The script is loaded once more with its arguments written into it, and the call has as many other
    /// bytes in their place. The server reads as many bytes as for the true call and runs about 1% fewer
    /// instructions: the comparison is not made easier for us.
    pub(crate) fn call_without_zeros(&self, server: &mut Connection) -> Result<RespCommand, BenchError> {
        let mut script = self.script.clone();
        for (index, bytes) in self.arguments.iter().enumerate() {
            script = script.replace(&format!("ARGV[{}]", index + 1), &lua_text(bytes));
        }
        let hash = load(server, &script)?;
        let blank = |bytes: &Vec<u8>| vec![b'-'; bytes.len()];
        let blanks: Vec<Vec<u8>> = self.arguments.iter().map(blank).collect();
        let command = RespCommand::script(&hash, &self.key, &blanks);
        let command = command.ok_or_else(|| no_tag(&self.key))?;
        // redis-benchmark would not notice a script that does something else.
        let reply: Value = command.numbered(0).query(server)?;
        if admitted(&reply) {
            Ok(command)
        } else {
            Err(format!("with its arguments written in, our script replies {reply:?}").into())
        }
    }
}

/// Records the commands of a server.
pub(crate) struct CommandMonitor(BufReader<TcpStream>);

impl CommandMonitor {
    /// Starts to record.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut monitor = CommandMonitor(BufReader::new(stream));
        monitor.line()?; // +OK
        Ok(monitor)
    }

    /// Reads up to the first call of a script by its hash, and finds that script among those loaded before
    /// it.
    pub(crate) fn first_call(mut self, server: &mut Connection) -> Result<RecordedScriptCall, BenchError> {
        let mut scripts = Vec::new();
        loop {
            let words = words(&self.line()?);
            match words.as_slice() {
                [verb, load, script] if verb == b"SCRIPT" && load == b"LOAD" => {
                    scripts.push(String::from_utf8(script.clone())?);
                }
                [verb, hash, keys, key, arguments @ ..] if verb == b"EVALSHA" && keys == b"1" => {
                    let hash = String::from_utf8(hash.clone())?;
                    return Ok(RecordedScriptCall {
                        script: script_of(&hash, scripts, server)?,
                        hash,
                        key: key.clone(),
                        arguments: arguments.to_vec(),
                    });
                }
                _ => {}
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::Error::other("the server ended MONITOR")),
            _ => Ok(line),
        }
    }
}

/// The script with this hash; loading returns the hash of each.
fn script_of(hash: &str, scripts: Vec<String>, server: &mut Connection) -> Result<String, BenchError> {
    for script in scripts {
        if load(server, &script)? == hash {
            return Ok(script);
        }
    }
    Err("the store ran a script that it had not loaded".into())
}

fn load(server: &mut Connection, script: &str) -> redis::RedisResult<String> {
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query(server)
}

fn no_tag(key: &[u8]) -> io::Error {
    io::Error::other(format!("the key {:?} has no hash tag", String::from_utf8_lossy(key)))
}

/// The words of a line of `MONITOR`: each in double quotes, with escapes as in C.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut bytes = line.bytes();
    let mut words = Vec::new();
    while bytes.by_ref().any(|byte| byte == b'"') {
        words.push(word(&mut bytes));
    }
    words
}

fn word(bytes: &mut impl Iterator<Item = u8>) -> Vec<u8> {
    let mut word = Vec::new();
    while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
        word.push(if byte == b'\\' { escaped(bytes) } else { byte });
    }
    word
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> u8 {
    let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16)).unwrap_or(0) as u8;
    match bytes.next().unwrap_or(b'\\') {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'x' => digit(bytes.next()) << 4 | digit(bytes.next()),
        other => other,
    }
}

/// Bytes as a Lua string.
fn lua_text(bytes: &[u8]) -> String {
    let mut text = String::from("'");
    for byte in bytes {
        let _ = write!(text, "\\{byte:03}");
    }
    text + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_decoded_to_the_bytes_that_were_sent() {
        let line = r#"1794752686.162298 [0 127.0.0.1:55294] "SET" "a\"b\\" "\x00\xffz\n""#;
        let want: [&[u8]; 3] = [b"SET", b"a\"b\\", b"\x00\xffz\n"];
        assert_eq!(words(line), want);
    }

    #[test]
    fn a_line_without_words_has_none() {
        assert!(words("OK").is_empty());
    }

    #[test]
    fn a_lua_string_has_any_byte() {
        assert_eq!(lua_text(&[0, 65, 255]), r"'\000\065\255'");
    }
}

//! A command that both `redis-benchmark` and our clients can send, each time with another key.

use redis::Cmd;

/// The text that `redis-benchmark` replaces by a number of twelve digits.
const NUMBER: &str = "__rand_int__";

/// The words of a command. The key of a limit holds [`NUMBER`].
#[derive(Debug, Clone)]
pub(crate) struct RespCommand(Vec<Vec<u8>>);

impl RespCommand {
    /// A charge by redis-cell, with a key as long as those of the other benches.
    pub(crate) fn throttle(burst: u32, count: u32, period_secs: u32) -> Self {
        let words = format!("CL.THROTTLE user:{NUMBER} {burst} {count} {period_secs} 1");
        RespCommand(words.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }

    /// A call of a script. The number replaces the last twelve characters of the hash tag of `key`, so that
    /// all keys have its length; `None` if it has no such tag.
    pub(crate) fn script(hash: &str, key: &[u8], arguments: &[Vec<u8>]) -> Option<Self> {
        let end = key.iter().position(|byte| *byte == b'}')?;
        let begin = end.checked_sub(NUMBER.len())?;
        let key = [&key[..begin], NUMBER.as_bytes(), &key[end..]].concat();
        let head = [b"EVALSHA".to_vec(), hash.into(), b"1".to_vec(), key];
        Some(RespCommand(head.into_iter().chain(arguments.iter().cloned()).collect()))
    }

    /// The words as `redis-benchmark` takes them.
    pub(crate) fn words(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// The command with the key of this number.
    pub(crate) fn numbered(&self, number: usize) -> Cmd {
        let number = format!("{number:012}");
        let mut command = Cmd::new();
        for word in &self.0 {
            let position = word.windows(NUMBER.len()).position(|part| part == NUMBER.as_bytes());
            match position {
                Some(at) => {
                    let after = &word[at + NUMBER.len()..];
                    command.arg([&word[..at], number.as_bytes(), after].concat())
                }
                None => command.arg(word.as_slice()),
            };
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_as_long_as_the_one_recorded() {
        let command = RespCommand::script("ab", b"tg:{0123456789ABCDEFGHIJKL}:api", &[b"\0x".to_vec()]);
        let packed = command.expect("a key with a tag").numbered(42).get_packed_command();
        let want = b"*5\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$1\r\n1\r\n\
            $31\r\ntg:{0123456789000000000042}:api\r\n$2\r\n\0x\r\n";
        assert_eq!(packed, want);
    }

    #[test]
    fn a_key_without_a_tag_cannot_be_numbered() {
        assert!(RespCommand::script("ab", b"plain", &[]).is_none());
    }
}

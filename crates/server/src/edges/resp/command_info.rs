//! `COMMAND` and `COMMAND INFO`: the properties of a command that clients query before they send it, such as the
//! position of its key.

use super::commands::{COMMANDS, CommandSpec};
use super::reply::{self, Protocol};

/// The fields that Redis returns for a command since version 7.
const INFO_FIELDS: usize = 10;

pub(super) fn write_all(out: &mut Vec<u8>) {
    reply::array(out, COMMANDS.len());
    COMMANDS.iter().for_each(|spec| write_info(spec, out));
}

/// Writes the properties of the command called `name`, or a null.
pub(super) fn write_one(name: &[u8], protocol: Protocol, out: &mut Vec<u8>) {
    match CommandSpec::of(name) {
        Some(spec) => write_info(spec, out),
        None => reply::null(out, protocol),
    }
}

fn write_info(spec: &CommandSpec, out: &mut Vec<u8>) {
    reply::array(out, INFO_FIELDS);
    reply::bulk(out, spec.name.to_ascii_lowercase().as_bytes());
    reply::integer(out, spec.arity.into());
    let flags: &[&str] = if spec.has_key { &["write"] } else { &["fast"] };
    reply::array(out, flags.len());
    for flag in flags {
        reply::simple(out, flag);
    }
    // The first key, the last and the step between them.
    for _ in 0..3 {
        reply::integer(out, spec.has_key.into());
    }
    // Access categories, tips, key specifications and subcommands. There are none.
    for _ in 6..INFO_FIELDS {
        reply::array(out, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_has_one_key_and_writes() {
        let mut out = Vec::new();
        write_one(b"CL.Throttle", Protocol::Resp2, &mut out);
        let want = "*10\r\n$11\r\ncl.throttle\r\n:-5\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut out = Vec::new();
        write_one(b"ping", Protocol::Resp2, &mut out);
        assert!(out.starts_with(b"*10\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0\r\n"));
        let mut out = Vec::new();
        write_one(b"GET", Protocol::Resp3, &mut out);
        assert_eq!(out, b"_\r\n");
    }
}

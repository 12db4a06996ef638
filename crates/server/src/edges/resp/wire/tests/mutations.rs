//! Hostile input of Redis clients: any bytes parse alike however they are split, and a parsed command parses again when
//! it is encoded as an array.

use super::super::*;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

const GOOD: &[&[u8]] = &[
    b"*5\r\n$11\r\nCL.THROTTLE\r\n$7\r\nuser123\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n",
    b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n*0\r\n*-1\r\n",
    b"*3\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n",
    b"PING\r\nCL.THROTTLE user123 15 30 60 1\r\n",
    b"ECHO \"a\\x00\\n\\\"b\" 'c\\'d'\n\r\n  TG.CHECK   ip 203.0.113.9\tpath /api COST 2\r\n",
    b"*4\r\n$8\r\nTG.CHECK\r\n$2\r\nip\r\n$11\r\n203.0.113.9\r\n$6\r\n\xff\0\r\n\xc3\xa9\r\n",
];
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\r",
    b"\n",
    b"*",
    b"$",
    b"*1\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"*0\r\n",
    b"+",
    b"-",
    b":",
    b"_",
    b"%2\r\n",
    b"\"",
    b"'",
    b"\\x",
    b"\\",
    b" ",
    b"\0",
    b"\xff",
    b"PING\r\n",
    b"$65536\r\n",
];
const NESTS: &[(&[u8], &[u8])] = &[(b"*1\r\n", b""), (b"*2\r\n$1\r\na\r\n", b""), (b"\"", b"\""), (b"", b" ")];

/// The words of a command.
type CommandWords = Vec<Vec<u8>>;

/// The commands in `bytes`, and the error after them.
fn parse_all(mut bytes: &[u8]) -> (Vec<CommandWords>, Result<(), RespError>) {
    let mut found = Vec::new();
    loop {
        let mut arguments = Arguments::new();
        match parse_command(bytes, &mut arguments) {
            Ok(ParsedCommand::Complete(length)) => {
                assert!((1..=bytes.len()).contains(&length));
                assert!(arguments.len() <= MAX_ARGUMENTS && length <= MAX_COMMAND_BYTES + 2);
                found.push(arguments.iter().map(|part| part.to_vec()).collect());
                bytes = &bytes[length..];
            }
            Ok(ParsedCommand::Incomplete) => return (found, Ok(())),
            Err(error) => return (found, Err(error)),
        }
    }
}

/// The first command of `bytes`, or the error, or `None` if it is incomplete.
fn first_command(bytes: &[u8]) -> Option<Result<(usize, CommandWords), RespError>> {
    let mut arguments = Arguments::new();
    match parse_command(bytes, &mut arguments) {
        Ok(ParsedCommand::Incomplete) => None,
        Ok(ParsedCommand::Complete(length)) => {
            let arguments = arguments.iter().map(|part| part.to_vec());
            Some(Ok((length, arguments.collect())))
        }
        Err(error) => Some(Err(error)),
    }
}

fn as_arrays(commands: &[CommandWords]) -> Vec<u8> {
    let mut out = Vec::new();
    for command in commands {
        out.extend(format!("*{}\r\n", command.len()).bytes());
        for part in command {
            out.extend(format!("${}\r\n", part.len()).bytes());
            out.extend([part, &b"\r\n"[..]].concat());
        }
    }
    out
}

#[test]
fn no_input_panics_is_slow_or_parses_differently_in_pieces() {
    let attack = FuzzTarget {
        parser: "resp",
        seed: 0x7265_7370,
        inputs: inputs::RESP,
        corpus: GOOD,
        tokens: TOKENS,
        delimiters: NESTS,
        numbers: NumberEncoding::Digits,
        max_len: 8_000,
    };
    let accepts = |bytes: &[u8]| {
        let (found, rest) = parse_all(bytes);
        !found.is_empty() && rest.is_ok()
    };
    let outcome = attack.run(accepts, |bytes| {
        let whole = first_command(bytes);
        // Splits the input at each offset. Of long inputs only at some.
        for cut in (0..bytes.len()).step_by(1 + bytes.len() / 200) {
            let prefix = first_command(&bytes[..cut]);
            assert!(prefix.is_none() || prefix == whole, "cut at {cut}: {prefix:?}");
        }
        let (found, _) = parse_all(bytes);
        assert_eq!(parse_all(&as_arrays(&found)), (found, Ok(())));
    });
    eprintln!("resp: {outcome:?}");
}

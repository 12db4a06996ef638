mod mutations;

use super::*;

/// Every command in `bytes`, its arguments joined by bars, and the result at the end of the bytes.
fn parse_all(bytes: &[u8]) -> (Vec<String>, Result<&[u8], RespError>) {
    let (mut commands, mut rest) = (Vec::new(), bytes);
    loop {
        let mut arguments = Arguments::new();
        match parse_command(rest, &mut arguments) {
            Ok(ParsedCommand::Complete(length)) => rest = &rest[length..],
            Ok(ParsedCommand::Incomplete) => return (commands, Ok(rest)),
            Err(error) => return (commands, Err(error)),
        }
        let shown: Vec<_> = arguments.iter().map(|a| a.escape_ascii().to_string()).collect();
        commands.push(shown.join("|"));
    }
}

#[track_caller]
fn check(bytes: &str, want: &[&str]) {
    assert_eq!(parse_all(bytes.as_bytes()), (want.iter().map(|w| (*w).to_owned()).collect(), Ok(&[][..])));
}

#[track_caller]
fn check_error(bytes: &[u8], want: &str) {
    let (_, ended) = parse_all(bytes);
    assert_eq!(ended.unwrap_err().to_string(), format!("Protocol error: {want}"));
}

#[test]
fn arrays_of_bulk_strings_are_commands() {
    check("*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &["PING", "ECHO|"]);
    check("*2\r\n$4\r\nECHO\r\n$4\r\na\r\nb\r\n", &["ECHO|a\\r\\nb"]);
    check("*0\r\n*-1\r\n*1\r\n$1\r\nx\r\n", &["", "", "x"]);
}

#[test]
fn lines_are_commands_too() {
    check("PING\r\n  echo  a b \n\r\n", &["PING", "echo|a|b", ""]);
}

#[test]
fn quotes_may_contain_any_bytes() {
    check("ECHO \"a \\x41\\n\\\"\" 'it\\'s \\n' \"\" k\"q\"\n", &["ECHO|a A\\n\\\"|it\\'s \\\\n||kq"]);
    for line in ["ECHO \"a\n", "ECHO 'a\n", "ECHO \"a\"b\n", "ECHO \"a\\\n"] {
        check_error(line.as_bytes(), "unbalanced quotes in request");
    }
}

#[test]
fn errors_have_the_texts_of_redis() {
    check_error(b"*x\r\n", "invalid multibulk length");
    check_error(b"*+1\r\n", "invalid multibulk length");
    check_error(b"*01\r\n", "invalid multibulk length");
    check_error(b"*1\rx", "invalid multibulk length");
    check_error(b"*9999999999\r\n", "invalid multibulk length");
    check_error(b"*99999999999999999999999\r\n", "invalid multibulk length");
    check_error(&[b"*", [b'1'; 40].as_slice()].concat(), "too big mbulk count string");
    check_error(b"*1\r\n:4\r\n", "expected '$', got ':'");
    check_error(b"*1\r\n\x00", "expected '$', got '?'");
    check_error(b"*1\r\n$-1\r\n", "invalid bulk length");
    check_error(b"*1\r\n$ 4\r\n", "invalid bulk length");
    check_error(b"*1\r\n$99999999999\r\n", "invalid bulk length");
    check_error(&[b"*1\r\n$", [b'1'; 40].as_slice()].concat(), "too big bulk count string");
    check_error(b"*1\r\n$4\r\nPINGxx", "expected CRLF after a bulk string");
    check_error(&[b'a'; MAX_COMMAND_BYTES], "too big inline request");
}

#[test]
fn input_that_is_too_large_is_rejected_before_it_arrives() {
    check_error(format!("*{}\r\n", MAX_ARGUMENTS + 1).as_bytes(), "invalid multibulk length");
    check_error(format!("*1\r\n${}\r\n", MAX_COMMAND_BYTES + 1).as_bytes(), "invalid bulk length");
    check_error(format!("*1\r\n${}\r\n", MAX_COMMAND_BYTES - 1).as_bytes(), "too big request");
    check_error(("a ".repeat(MAX_ARGUMENTS + 1) + "\n").as_bytes(), "too big request");
    let most = "a ".repeat(MAX_ARGUMENTS) + "\n";
    assert_eq!(parse_all(most.as_bytes()).0.len(), 1);
    let longest = "x".repeat(MAX_COMMAND_BYTES - 16);
    let command = format!("*1\r\n${}\r\n{longest}\r\n", longest.len());
    assert_eq!(parse_all(command.as_bytes()).0, [longest]);
}

/// A command is the same however it is split.
#[test]
fn a_command_is_incomplete_until_its_last_byte() {
    let commands =
        ["*3\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n$11\r\n*1\r\n$1\r\nx\r\n\r\n", "ECHO 'a b' \"\\x00\"\r\n", "*0\r\n"];
    for command in commands {
        let whole = parse_all(command.as_bytes());
        assert_eq!((whole.0.len(), whole.1), (1, Ok(&[][..])), "{command:?}");
        for end in 0..command.len() {
            let cut = &command.as_bytes()[..end];
            assert_eq!(parse_all(cut), (vec![], Ok(cut)), "{command:?} cut at {end}");
        }
    }
}

/// Commands that both parsers accept are equal.
#[test]
fn redis_protocol_reads_the_same_commands() {
    use redis_protocol::resp2::decode::decode;
    use redis_protocol::resp2::types::OwnedFrame;
    let mut state = 0x5eed_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..20_000 {
        let mut bytes = format!("*{}\r\n", 1 + random(7)).into_bytes();
        for _ in 0..1 + random(7) {
            let word: Vec<u8> = (0..random(40)).map(|_| random(256) as u8).collect();
            bytes.extend(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend([word.as_slice(), b"\r\n"].concat());
        }
        bytes.truncate(bytes.len() - random(3) as usize);
        let mut arguments = Arguments::new();
        match (parse_command(&bytes, &mut arguments), decode(&bytes)) {
            (Ok(ParsedCommand::Complete(length)), Ok(Some((OwnedFrame::Array(words), theirs)))) => {
                assert_eq!(length, theirs);
                let words = words.into_iter().map(|word| match word {
                    OwnedFrame::BulkString(word) => word,
                    other => panic!("{other:?}"),
                });
                assert!(words.eq(arguments.iter().map(|a| a.to_vec())));
            }
            (Ok(ParsedCommand::Incomplete), Ok(None)) | (Err(_), _) => {}
            other => panic!("{other:?} of {}", bytes.escape_ascii()),
        }
    }
}

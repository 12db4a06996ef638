//! Hostile keys files: mutations of valid and invalid ones.
//!
//! Every file is loaded or rejected within 10 ms, with the same result each time, and no key that is in it by mistake
//! is repeated in an error.
#![allow(clippy::unwrap_used)]

use tidegate::identity::keys::{Digest, KeyFileError, KeyTable, hash_line};
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

const TIERS: [&str; 3] = ["free", "pro", "enterprise"];

/// Part of a key that was written in place of its digest.
const PLANTED: &str = "planted0planted0planted0";

const TOKENS: &[&[u8]] = &[
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"#",
    b"sha256:",
    b"SHA256:",
    b"free",
    b"Pro",
    b"enterprize",
    b"\0",
    b"\xff",
    b"\xc3\xa9",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b"planted0planted0planted0",
];

fn read(text: &[u8]) -> Result<KeyTable, KeyFileError> {
    KeyTable::read("keys", text, &TIERS)
}

fn corpus() -> Vec<String> {
    let line = |key: &str, tier, name| hash_line(key, tier, name).unwrap();
    let good = [line("k1", "pro", "Harbour Café"), line("k2", "free", ""), line("k3", "enterprise", "x")];
    let bad = [
        format!("tg_{PLANTED} pro"),
        format!("sha256:{PLANTED} pro"),
        format!("{} tg_{PLANTED}", good[0].split(' ').next().unwrap()),
    ];
    let commented = format!("# keys\n\n{}\r\n  {}\n", good.join("\n"), "# end");
    let mut all: Vec<String> = good.to_vec();
    all.extend([good.join("\n"), commented]);
    all.extend(bad.map(|bad| format!("{}\n{bad}\n", good[1])));
    all
}

#[test]
fn no_keys_file_panics_takes_long_or_reveals_a_key() {
    let corpus = corpus();
    let good: Vec<&[u8]> = corpus.iter().map(String::as_bytes).collect();
    let attack = FuzzTarget {
        parser: "keys",
        seed: 0x6b65_7973,
        inputs: inputs::KEYS,
        corpus: &good,
        tokens: TOKENS,
        delimiters: &[(b"\"", b"\""), (b"sha256:", b" pro\n")],
        numbers: NumberEncoding::Digits,
        max_len: 8_000,
    };
    let digests = ["k1", "k2", "k3"].map(Digest::of);
    let accepts = |text: &[u8]| match read(text) {
        Ok(_) => true,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(PLANTED), "{message}");
            assert!(!message.contains(['\0', '\u{1b}', '\u{202e}']), "{message:?}");
            false
        }
    };
    let outcome = attack.run(accepts, |text| {
        let (table, again) = (read(text).unwrap(), read(text).unwrap());
        assert_eq!(table.len(), again.len());
        for digest in &digests {
            assert_eq!(table.get(digest), again.get(digest));
        }
    });
    println!("{outcome:?}");
}

//! Measures how fast a keys file loads and how much memory it takes: writes 1,000,000 keys to a temporary file, reads
//! it five times, watches it as the service does, then looks up every key.
//!
//!     cargo bench -p tidegate --features internals --bench load_keys

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::time::Instant;

use tidegate::identity::keys::{Digest, KeyTable, hash_line};
use tidegate::live::{FileSnapshot, Target, Watch};

const KEYS: usize = 1_000_000;
const TIERS: [&str; 3] = ["free", "pro", "enterprise"];

fn key(n: usize) -> String {
    format!("tg_example_{n}")
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = tempfile::NamedTempFile::new()?;
    let mut writer = BufWriter::new(file.as_file());
    for n in 0..KEYS {
        writeln!(writer, "{}", hash_line(&key(n), TIERS[n % 3], &format!("customer {n}"))?)?;
    }
    writer.flush()?;
    drop(writer);
    let file_bytes = file.as_file().metadata()?.len();
    println!("{KEYS} keys, {file_bytes} bytes of file");

    let mut table = KeyTable::default();
    for _ in 0..5 {
        let start = Instant::now();
        table = KeyTable::read("keys.txt", BufReader::new(File::open(file.path())?), &TIERS)?;
        println!("loaded in {:?}", start.elapsed());
    }
    println!("{:.1} bytes per key, names included", table.heap_bytes() as f64 / table.len() as f64);

    let start = Instant::now();
    let load = |snapshot: &FileSnapshot| {
        let reader = snapshot.files()[0].open().map_err(|error| error.to_string())?;
        KeyTable::read("keys.txt", reader, &TIERS).map(drop).map_err(|error| error.to_string())
    };
    let watch = Watch::start(Target::keys(file.path()), load, |_| {})?;
    println!("first look of a watch in {:?}: {:?}", start.elapsed(), watch.state());

    let digests: Vec<Digest> = (0..KEYS).map(|n| Digest::of(key(n))).collect();
    let start = Instant::now();
    let found = digests.iter().filter(|digest| table.get(digest).is_some()).count();
    println!("{found} found, {:?} each", start.elapsed() / KEYS as u32);
    Ok(())
}

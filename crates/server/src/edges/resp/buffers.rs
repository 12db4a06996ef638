//! Room for what was read and what is to be written, lent to a connection while it has something to
//! say.
//!
//! Most connections are idle, and an idle one holds none. Each thread keeps a few to lend again, so that
//! a busy one costs no allocation.

use std::cell::RefCell;

use super::wire::MAX_COMMAND_BYTES;

/// What is read at once: some hundreds of commands, so that a long pipeline is decided in pieces and
/// others have their turn in between.
pub(crate) const INPUT_BYTES: usize = 16 << 10;
/// When answers take this much they are sent before anything more is decided.
pub(crate) const OUTPUT_BYTES: usize = 16 << 10;
/// Kept by each thread. More are in use only where clients do not read, or a store is slow.
const MAX_SPARE: usize = 8;

thread_local! {
    static POOL: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that have come, and bytes that are to go.
pub(super) struct Buffers {
    input: Vec<u8>,
    filled: usize,
    pub(super) output: Vec<u8>,
}

impl Buffers {
    /// Lends some, empty.
    pub(super) fn acquire() -> Self {
        let spare = POOL.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Buffers {
            input: vec![0; INPUT_BYTES],
            filled: 0,
            output: Vec::with_capacity(INPUT_BYTES),
        })
    }

    /// What they take in memory.
    pub(super) fn bytes(&self) -> usize {
        self.input.len() + self.output.capacity()
    }

    /// Takes them back.
    pub(super) fn recycle(mut self) {
        if self.input.len() > INPUT_BYTES || self.output.capacity() > 4 * OUTPUT_BYTES {
            return; // larger than most need
        }
        self.filled = 0;
        self.output.clear();
        POOL.with_borrow_mut(|pool| {
            if pool.len() < MAX_SPARE {
                pool.push(self);
            }
        });
    }

    /// Where to read into, behind `before` bytes that are known already.
    pub(super) fn space_after(&mut self, before: usize) -> &mut [u8] {
        // The rest of a long command is read in few steps, but not paid for before it comes.
        if before * 2 > self.input.len() {
            self.input.resize((before * 2).min(MAX_COMMAND_BYTES), 0);
        }
        &mut self.input[before..]
    }

    /// What has come: `before`, and so many bytes more behind it.
    pub(super) fn fill(&mut self, before: &[u8], more: usize) {
        self.input[..before.len()].copy_from_slice(before);
        self.filled = before.len() + more;
    }

    /// What has come and is not understood yet, and where answers go.
    pub(super) fn split(&mut self, from: usize) -> (&[u8], &mut Vec<u8>) {
        (&self.input[from..self.filled], &mut self.output)
    }
}

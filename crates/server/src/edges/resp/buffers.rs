//! Input and output buffers, lent to a connection while it has commands or replies.
//!
//! Most connections are idle, and an idle one holds no buffer. Each thread keeps a few spare ones, so that a busy
//! connection costs no allocation.

use std::cell::RefCell;

use super::wire::MAX_COMMAND_BYTES;

/// Size of one read: some hundreds of commands, so that a long pipeline is decided in pieces and other connections have
/// their turn in between.
pub(crate) const INPUT_BYTES: usize = 16 << 10;
/// When replies take this much they are sent before anything more is decided.
pub(crate) const OUTPUT_BYTES: usize = 16 << 10;
/// Spare buffers per thread. More are in use only where clients do not read, or a store is slow.
const MAX_SPARE: usize = 8;

thread_local! {
    static POOL: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

/// Input and output bytes.
pub(super) struct Buffers {
    input: Vec<u8>,
    filled: usize,
    pub(super) output: Vec<u8>,
}

impl Buffers {
    /// Lends empty buffers.
    pub(super) fn acquire() -> Self {
        let spare = POOL.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Buffers {
            input: vec![0; INPUT_BYTES],
            filled: 0,
            output: Vec::with_capacity(INPUT_BYTES),
        })
    }

    /// Their memory.
    pub(super) fn bytes(&self) -> usize {
        self.input.len() + self.output.capacity()
    }

    /// Returns them to the thread.
    pub(super) fn recycle(mut self) {
        if self.input.len() > INPUT_BYTES || self.output.capacity() > 4 * OUTPUT_BYTES {
            return; // too large to keep
        }
        self.filled = 0;
        self.output.clear();
        POOL.with_borrow_mut(|pool| {
            if pool.len() < MAX_SPARE {
                pool.push(self);
            }
        });
    }

    /// The space to read into, behind `before` bytes of input.
    pub(super) fn space_after(&mut self, before: usize) -> &mut [u8] {
        // The rest of a long command is read in few steps, but not allocated before it arrives.
        if before * 2 > self.input.len() {
            self.input.resize((before * 2).min(MAX_COMMAND_BYTES), 0);
        }
        &mut self.input[before..]
    }

    /// Sets the input: `before`, and `more` bytes read behind it.
    pub(super) fn fill(&mut self, before: &[u8], more: usize) {
        self.input[..before.len()].copy_from_slice(before);
        self.filled = before.len() + more;
    }

    /// The input that is not parsed yet, and the output.
    pub(super) fn split(&mut self, from: usize) -> (&[u8], &mut Vec<u8>) {
        (&self.input[from..self.filled], &mut self.output)
    }
}

//! Things too large or too uneven for an entry, by number: logs, and holders of slots.
//!
//! Grows by 64 at a time. What is taken down leaves its place to the next; places are kept.

const PER_CHUNK: usize = 64;

pub(super) struct Shelf<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf {
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T: Default> Shelf<T> {
    /// A place for one, if `take` grants the bytes. It holds nothing yet.
    pub(super) fn place(&mut self, take: impl FnOnce(u64) -> bool) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        if self
            .chunks
            .last()
            .is_none_or(|last| last.len() == PER_CHUNK)
        {
            // Each place may later stand in the list of free ones, too.
            let bytes = PER_CHUNK * (size_of::<T>() + 2 * size_of::<u32>()) + 32;
            if !take(bytes as u64) {
                return None;
            }
            self.chunks.push(Vec::with_capacity(PER_CHUNK));
        }
        let before = self.chunks.len() - 1;
        let last = self.chunks.last_mut()?;
        last.push(T::default());
        Some((before * PER_CHUNK + last.len() - 1) as u32)
    }

    pub(super) fn get(&self, number: u32) -> &T {
        &self.chunks[number as usize / PER_CHUNK][number as usize % PER_CHUNK]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize / PER_CHUNK][number as usize % PER_CHUNK]
    }

    /// Takes it down.
    pub(super) fn remove(&mut self, number: u32) -> T {
        self.free.push(number);
        std::mem::take(self.get_mut(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again() {
        let mut shelf = Shelf::<String>::default();
        let places: Vec<u32> = (0..200).map_while(|_| shelf.place(|_| true)).collect();
        *shelf.get_mut(places[130]) = "kept".into();
        assert_eq!(shelf.get(130), "kept");
        assert_eq!(shelf.remove(130), "kept");
        assert_eq!(shelf.place(|_| false), Some(130));
        assert_eq!(shelf.get(130), "");
    }

    #[test]
    fn without_memory_there_is_no_place() {
        assert_eq!(Shelf::<u64>::default().place(|_| false), None);
    }
}

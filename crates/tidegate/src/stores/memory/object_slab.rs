//! Objects too large or too uneven for an entry, by number: the counts of strict windows, logs, and lists of permits.
//!
//! Grows by 64 places at a time, and frees their memory when none of the 64 is in use. Only the list of such chunks
//! never shrinks.

const PER_CHUNK: usize = 64;
const ALL_FREE: u64 = u64::MAX;

pub(super) struct ObjectSlab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with memory and at least one free place.
    open: Vec<u32>,
    /// Chunks without memory.
    bare: Vec<u32>,
}

struct Chunk<T> {
    places: Vec<T>,
    /// One bit for each empty place.
    free: u64,
}

impl<T> Default for ObjectSlab<T> {
    fn default() -> Self {
        ObjectSlab { chunks: Vec::new(), open: Vec::new(), bare: Vec::new() }
    }
}

impl<T: Default> ObjectSlab<T> {
    /// The memory of a chunk's places, with the allocator's header.
    const PLACES_BYTES: u64 = (PER_CHUNK * size_of::<T>() + 16) as u64;
    /// The memory of a chunk itself in lists that may be half empty.
    const LIST_BYTES: u64 = 2 * (size_of::<Chunk<T>>() + 2 * size_of::<u32>()) as u64;

    /// Allocates a place, if `reserve` grants the bytes. It is empty at first.
    pub(super) fn allocate(&mut self, reserve: impl FnOnce(u64) -> bool) -> Option<u32> {
        let number = match self.open.last() {
            Some(open) => *open,
            None => self.open_chunk(reserve)?,
        };
        let chunk = &mut self.chunks[number as usize];
        let place = chunk.free.trailing_zeros();
        chunk.free &= !(1 << place);
        if chunk.free == 0 {
            self.open.pop();
        }
        Some(number * PER_CHUNK as u32 + place)
    }

    /// Opens a chunk that has no memory yet.
    fn open_chunk(&mut self, reserve: impl FnOnce(u64) -> bool) -> Option<u32> {
        let bytes = match self.bare.last() {
            Some(_) => Self::PLACES_BYTES,
            None => Self::PLACES_BYTES + Self::LIST_BYTES,
        };
        if !reserve(bytes) {
            return None;
        }
        let number = self.bare.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk { places: Vec::new(), free: ALL_FREE });
            self.chunks.len() as u32 - 1
        });
        let places = &mut self.chunks[number as usize].places;
        places.reserve_exact(PER_CHUNK);
        places.resize_with(PER_CHUNK, T::default);
        self.open.push(number);
        Some(number)
    }

    pub(super) fn get(&self, number: u32) -> &T {
        &self.chunks[number as usize / PER_CHUNK].places[number as usize % PER_CHUNK]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize / PER_CHUNK].places[number as usize % PER_CHUNK]
    }

    /// Removes an object. Calls `release` with the number of bytes that become free.
    pub(super) fn remove(&mut self, number: u32, release: impl FnOnce(u64)) -> T {
        let taken = std::mem::take(self.get_mut(number));
        let of = number / PER_CHUNK as u32;
        let chunk = &mut self.chunks[of as usize];
        if chunk.free == 0 {
            self.open.push(of);
        }
        chunk.free |= 1 << (number as usize % PER_CHUNK);
        if chunk.free == ALL_FREE {
            chunk.places = Vec::new();
            self.open.retain(|open| *open != of);
            self.bare.push(of);
            release(Self::PLACES_BYTES);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_place_is_used_again() {
        let mut slab = ObjectSlab::<String>::default();
        let places: Vec<u32> = (0..200).map_while(|_| slab.allocate(|_| true)).collect();
        *slab.get_mut(places[130]) = "kept".into();
        assert_eq!(slab.get(130), "kept");
        assert_eq!(slab.remove(130, |_| panic!("others are there")), "kept");
        assert_eq!(slab.allocate(|_| false), Some(130));
        assert_eq!(slab.get(130), "");
    }

    #[test]
    fn without_memory_there_is_no_place() {
        assert_eq!(ObjectSlab::<u64>::default().allocate(|_| false), None);
    }

    #[test]
    fn unused_chunks_take_no_memory_and_no_place_has_two_objects() {
        let mut slab = ObjectSlab::<u64>::default();
        let mut counted = 0_u64;
        let mut listed = None;
        for round in 0..20_u64 {
            let mut numbers: Vec<u32> = Vec::new();
            for value in 0..1_000 {
                let reserve = |bytes| {
                    counted += bytes;
                    true
                };
                let place = slab.allocate(reserve).expect("a place");
                *slab.get_mut(place) = value;
                numbers.push(place);
            }
            for (value, place) in numbers.iter().enumerate() {
                assert_eq!(*slab.get(*place), value as u64);
            }
            // In another order each time.
            numbers.sort_by_key(|place| u64::from(*place).wrapping_mul(2 * round + 1) % 257);
            for place in numbers {
                slab.remove(place, |bytes| counted -= bytes);
            }
            let lists = 16 * ObjectSlab::<u64>::LIST_BYTES;
            assert_eq!(counted, lists, "round {round}");
            assert_eq!(*listed.get_or_insert(slab.chunks.len()), 16);
        }
        assert_eq!((slab.open.len(), slab.bare.len()), (0, 16));
    }
}

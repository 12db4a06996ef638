//! The permits of one rule and subject: a short inline list, and a set by holder once there are many.
//!
//! A list reports the bytes it needs before it grows, so that the growth can be denied. Time is an argument.

use smallvec::SmallVec;
use tidegate_core::units::Nanos;

use crate::permit_set::PermitSet;

/// From this number of permits on they are in a set: walking fewer costs less than keeping them in order.
const MANY: usize = 32;

/// A permit and its expiry.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedPermit {
    holder: u128,
    until: Nanos,
}

/// Permits of one rule and subject.
#[derive(Debug, Default)]
pub(super) struct PermitList {
    few: SmallVec<[ListedPermit; 1]>,
    /// Replaces `few`, which is then empty.
    many: Option<Box<PermitSet<()>>>,
    /// Until when permits of this subject may be only counted, because this list could not grow.
    pub(super) counted_until: Nanos,
}

impl PermitList {
    /// Drops expired permits. Returns how many are open.
    pub(super) fn open(&mut self, now: Nanos) -> u32 {
        if let Some(many) = &mut self.many {
            while many.pop_ended(now).is_some() {}
        } else {
            self.few.retain(|permit| permit.until > now);
        }
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.many.as_ref().map_or(self.few.len(), |many| many.len())
    }

    /// The expiry of a holder's permit.
    pub(super) fn end_of(&self, holder: u128) -> Option<Nanos> {
        if let Some(many) = &self.many {
            return many.get(holder).map(|(until, ())| until);
        }
        let own = self.few.iter().find(|permit| permit.holder == holder);
        own.map(|permit| permit.until)
    }

    /// The expiry of the last permit.
    pub(super) fn last_end(&self) -> Nanos {
        let few = self.few.iter().map(|permit| permit.until).max();
        let many = self.many.as_ref().and_then(|many| many.last_end());
        let last = few.max(many).unwrap_or(Nanos::ZERO);
        last.max(self.counted_until)
    }

    /// Approximate bytes on the heap.
    pub(super) fn bytes(&self) -> u64 {
        match &self.many {
            Some(many) => set_bytes(many.len()),
            None if self.few.spilled() => heap_bytes(self.few.capacity()),
            None => 0,
        }
    }

    /// Bytes on the heap with one permit more.
    pub(super) fn bytes_with_one_more(&self) -> u64 {
        let (len, room) = (self.few.len(), self.few.capacity());
        match &self.many {
            Some(many) => set_bytes(many.len() + 1),
            None if len + 1 >= MANY => set_bytes(len + 1),
            None if len < room => self.bytes(),
            None => heap_bytes(grown(room)),
        }
    }

    /// Inserts or replaces the permit of a holder.
    pub(super) fn put(&mut self, holder: u128, until: Nanos) {
        if let Some(many) = &mut self.many {
            many.put(holder, until, ());
            return;
        }
        if let Some(own) = self.few.iter_mut().find(|permit| permit.holder == holder) {
            own.until = until;
            return;
        }
        if self.few.len() + 1 >= MANY {
            let mut many = PermitSet::default();
            many.put(holder, until, ());
            for permit in std::mem::take(&mut self.few) {
                many.put(permit.holder, permit.until, ());
            }
            self.many = Some(Box::new(many));
            return;
        }
        if self.few.len() == self.few.capacity() {
            self.few.grow(grown(self.few.capacity()));
        }
        self.few.push(ListedPermit { holder, until });
    }

    pub(super) fn remove(&mut self, holder: u128) {
        match &mut self.many {
            Some(many) => {
                many.remove(holder);
            }
            None => self.few.retain(|permit| permit.holder != holder),
        }
    }
}

fn grown(room: usize) -> usize {
    (2 * room).max(4)
}

/// Including the allocator's header.
fn heap_bytes(room: usize) -> u64 {
    (room * size_of::<ListedPermit>()) as u64 + 16
}

fn set_bytes(permits: usize) -> u64 {
    permits as u64 * PermitSet::<()>::PERMIT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;

    /// Compares with a plain list, through the change from few to many.
    #[test]
    fn a_list_behaves_the_same_however_many_permits_it_has() {
        let (mut list, mut plain) = (PermitList::default(), Vec::<(u128, Nanos)>::new());
        for step in 0..4_000_u64 {
            let holder = u128::from(step.wrapping_mul(2_654_435_761) % 97);
            let now = AT(step);
            plain.retain(|(_, until)| *until > now);
            assert_eq!(list.open(now) as usize, plain.len(), "step {step}");
            plain.retain(|(known, _)| *known != holder);
            if step % 5 == 4 {
                list.remove(holder);
                continue;
            }
            let until = now.plus(AT(1 + step % 89));
            let before = list.bytes_with_one_more();
            list.put(holder, until);
            assert!(list.bytes() <= before, "step {step}");
            plain.push((holder, until));
            assert_eq!(list.end_of(holder), Some(until));
            let last = plain.iter().map(|(_, until)| *until).max();
            assert_eq!(Some(list.last_end()), last);
        }
        assert!(list.many.is_some());
    }
}

//! Hash maps whose keys are ids of a device's objects.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map from ids ([`BufferId`](backend_api::BufferId), [`HostId`](backend_api::HostId),
/// [`QueueId`](backend_api::QueueId)) to objects, with a fast hash function, because backends look up several
/// ids in each call.
///
/// ```
/// use backend_api::BufferHandle;
/// use vmarray_support::IdMap;
/// let mut lengths = IdMap::default();
/// let buffer = BufferHandle::unique().id();
/// lengths.insert(buffer, 4096);
/// assert_eq!(lengths.get(&buffer), Some(&4096));
/// ```
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// The hasher of [`IdMap`]: one multiplication. This suffices because the process issues ids as consecutive
/// numbers, so no attacker can choose them.
///
/// ```
/// use std::hash::{BuildHasher, BuildHasherDefault};
/// use backend_api::BufferHandle;
/// use vmarray_support::IdHasher;
/// let build = BuildHasherDefault::<IdHasher>::default();
/// let (one, other) = (BufferHandle::unique().id(), BufferHandle::unique().id());
/// assert_eq!(build.hash_one(one), build.hash_one(one));
/// assert_ne!(build.hash_one(one), build.hash_one(other));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplying by 2^64 divided by the golden ratio spreads neighbouring numbers over all bits.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn names_are_spread() {
        use std::hash::BuildHasher;
        let build = BuildHasherDefault::<IdHasher>::default();
        // Hash maps use the low bits for buckets and the high bits for tags.
        let low: std::collections::HashSet<u64> = (0..1000_u64).map(|n| build.hash_one(n) & 0xffff).collect();
        let high: std::collections::HashSet<u64> = (0..1000_u64).map(|n| build.hash_one(n) >> 57).collect();
        assert!(low.len() > 950 && high.len() > 100);
    }
}

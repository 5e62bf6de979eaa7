//! Detection of repeated indices in the list of a scatter: finds entries whose index occurs again later.

/// Reusable memory for the search of repeated indices in a list.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    /// Filters of the hashes seen once, and of the hashes seen again.
    seen: Filter,
    repeated: Filter,
    /// Positions in the list whose indices may be duplicates.
    suspects: Vec<u32>,
    /// A hash table with open addressing, at most half full. Entries are numbers of suspects plus one; 0 is
    /// empty.
    table: Vec<u32>,
    /// A bit for each position in the list: set if the index occurs again later.
    superseded: Vec<u64>,
}

impl Duplicates {
    /// Finds repeated indices in a list of fewer than 2^31 indices. Returns true if an index occurs twice.
    ///
    /// Most indices of a long list occur once and have a unique hash. A first filter, with a bit for each
    /// hash, finds the other indices, a few per cent. A second filter contains their hashes, and finds all
    /// indices that may equal one of them. Only these candidates are compared.
    pub(super) fn find(&mut self, indices: &[usize]) -> bool {
        self.superseded.clear();
        // Return early for an ascending list, which has no duplicates. The check is cheap.
        if indices.is_sorted_by(|a, b| a < b) {
            return false;
        }
        self.suspects.clear();
        self.seen.clear(indices.len());
        for (place, &index) in indices.iter().enumerate() {
            if self.seen.insert(index) {
                self.suspects.push(place as u32);
            }
        }
        if self.suspects.is_empty() {
            return false;
        }
        self.repeated.clear(self.suspects.len());
        for &place in &self.suspects {
            self.repeated.insert(indices[place as usize]);
        }
        self.suspects.clear();
        for (place, &index) in indices.iter().enumerate() {
            if self.repeated.has(index) {
                self.suspects.push(place as u32);
            }
        }
        self.compare(indices)
    }

    fn compare(&mut self, indices: &[usize]) -> bool {
        let slots = (2 * self.suspects.len()).next_power_of_two();
        self.table.clear();
        self.table.resize(slots, 0);
        self.superseded.resize(indices.len().div_ceil(64), 0);
        let mut found = false;
        for (number, &place) in self.suspects.iter().enumerate() {
            let index = indices[place as usize];
            let mut slot = hash(index, slots.trailing_zeros());
            loop {
                let known = self.table[slot] as usize;
                if known == 0 {
                    break;
                }
                let known = self.suspects[known - 1] as usize;
                if indices[known] == index {
                    self.superseded[known / 64] |= 1 << (known % 64);
                    found = true;
                    break;
                }
                slot = (slot + 1) & (slots - 1);
            }
            self.table[slot] = number as u32 + 1;
        }
        found
    }

    /// Returns bits for 64 positions of the last list, from `64 * word` on. A set bit means that the index
    /// occurs again later.
    #[inline]
    pub(super) fn superseded_in(&self, word: usize) -> u64 {
        self.superseded.get(word).copied().unwrap_or(0)
    }
}

/// Hashes an index to `bits` bits (1 to 63): Fibonacci hashing, the upper bits of a product.
#[inline]
fn hash(index: usize, bits: u32) -> usize {
    ((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits)) as usize
}

/// A set of hashes, with a bit for each hash.
#[derive(Debug, Default)]
struct Filter {
    bits: u32,
    words: Vec<u64>,
}

impl Filter {
    /// Clears the set, and resizes it for a number of indices.
    fn clear(&mut self, indices: usize) {
        let words = indices.div_ceil(4).next_power_of_two();
        self.bits = words.trailing_zeros() + 6;
        self.words.clear();
        self.words.resize(words, 0);
    }

    /// Adds the hash of an index. Returns true if the set already had the hash.
    #[inline]
    fn insert(&mut self, index: usize) -> bool {
        let hash = hash(index, self.bits);
        let word = &mut self.words[hash / 64];
        let bit = 1 << (hash % 64);
        let was_there = *word & bit != 0;
        *word |= bit;
        was_there
    }

    #[inline]
    fn has(&self, index: usize) -> bool {
        let hash = hash(index, self.bits);
        self.words[hash / 64] >> (hash % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_filter_that_was_emptied_has_nothing() {
        let mut filter = Filter::default();
        for indices in [1000, 10, 1000] {
            filter.clear(indices);
            assert!((0..5000).all(|index| !filter.has(index)));
            (0..indices).for_each(|index| _ = filter.insert(index));
            assert!((0..indices).all(|index| filter.has(index)));
        }
    }

    #[test]
    fn few_of_many_indices_that_come_once_are_compared() {
        let mut duplicates = Duplicates::default();
        let list: Vec<usize> = (0..10_000).rev().collect();
        assert!(!duplicates.find(&list));
        assert!(duplicates.suspects.len() < 1000, "{}", duplicates.suspects.len());
    }

    proptest! {
        #[test]
        fn all_but_the_last_of_equal_indices_are_superseded(
            lists in prop::collection::vec(prop::collection::vec(0_usize..40, 1..100), 1..4)
        ) {
            let mut duplicates = Duplicates::default();
            for list in lists {
                let found = duplicates.find(&list);
                let again = |place: usize| list[place + 1..].contains(&list[place]);
                prop_assert_eq!(found, (0..list.len()).any(again));
                for place in 0..list.len() {
                    prop_assert_eq!(duplicates.superseded_in(place / 64) >> (place % 64) & 1 != 0, again(place));
                }
            }
        }
    }
}

//! Which elements of a list come again further on.

/// A table that is used for one list after another.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    /// Places in the list, plus one; 0 is empty. Open addressing, at most half full.
    table: Vec<u32>,
    /// A bit for each place in the list.
    superseded: Vec<u64>,
}

impl Duplicates {
    /// Looks at a list of fewer than 2^31 indices. Tells whether any comes twice.
    pub(super) fn find(&mut self, indices: &[usize]) -> bool {
        // An ascending list has none, and that is found out in no time.
        if indices.is_sorted_by(|a, b| a < b) {
            return false;
        }
        let slots = (2 * indices.len()).next_power_of_two();
        self.table.clear();
        self.table.resize(slots, 0);
        self.superseded.clear();
        self.superseded.resize(indices.len().div_ceil(64), 0);
        let mut found = false;
        for (place, &index) in indices.iter().enumerate() {
            // Fibonacci hashing: the upper bits of the product.
            let hash = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut slot = (hash >> (64 - slots.trailing_zeros())) as usize;
            loop {
                let known = self.table[slot] as usize;
                if known == 0 {
                    break;
                }
                if indices[known - 1] == index {
                    self.superseded[(known - 1) / 64] |= 1 << ((known - 1) % 64);
                    found = true;
                    break;
                }
                slot = (slot + 1) & (slots - 1);
            }
            self.table[slot] = place as u32 + 1;
        }
        found
    }

    /// Whether the index at a place of the last list that had [duplicates](Self::find) comes again further on.
    #[inline]
    pub(super) fn is_superseded(&self, place: usize) -> bool {
        self.superseded[place / 64] >> (place % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                    prop_assert_eq!(found && duplicates.is_superseded(place), again(place));
                }
            }
        }
    }
}

//! Bit set of a search's matches, with one bit for each element, and its conversion to a list of indices.

use backend_api::{Error, ErrorKind, Result};

/// Number of indices listed at once; they fit the first-level cache.
const LISTED: usize = 1024;
/// Entries that a list needs beyond its end: for each byte of the set, eight indices are written.
pub(super) const SPARE: usize = 8;

/// For each byte, the positions of its set bits, followed by zeroes.
pub(super) static PLACES: [[u8; 8]; 256] = {
    let mut places = [[0; 8]; 256];
    let mut byte = 0;
    while byte < places.len() {
        let (mut next, mut bit) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 != 0 {
                places[byte][next] = bit;
                next += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    places
};

/// Bit set of the matches, with bit 0 for element `first`, 64 to a word; empty if no match was marked.
#[derive(Debug, Default)]
pub(super) struct Marked {
    first: u64,
    words: Vec<u64>,
}

#[cfg_attr(
    not(all(target_arch = "x86_64", not(any(portable_copy, miri)))),
    allow(dead_code, reason = "only comparisons in vector registers mark")
)]
impl Marked {
    /// Clears the set, and reserves memory for the bits of `count` elements from element `first` on.
    pub fn start(&mut self, operation: &'static str, first: u64, count: u64) -> Result<()> {
        let words = count.div_ceil(64) as usize;
        self.clear();
        self.first = first;
        self.words.try_reserve(words).map_err(|_| no_memory(operation, words))
    }

    pub fn clear(&mut self) {
        self.words.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Appends the bits of the next elements, 64 elements to a word.
    pub fn extend(&mut self, words: &[u64]) {
        self.words.extend_from_slice(words);
    }

    /// Calls `put` with lists of the first `wanted` matches, and the number of matches in earlier lists.
    pub fn each_list(&self, wanted: usize, mut put: impl FnMut(usize, &[u64])) {
        let mut block = [0; LISTED];
        let (mut words, mut first, mut done) = (&self.words[..], self.first, 0);
        while done < wanted && !words.is_empty() {
            let (used, listed) = list(words, first, &mut block);
            let listed = listed.min(wanted - done);
            put(done, &block[..listed]);
            (words, first, done) = (&words[used..], first + 64 * used as u64, done + listed);
        }
    }
}

/// Lists the matches of as many words as fit in `into`. Returns the number of words and of matches.
fn list(words: &[u64], first: u64, into: &mut [u64; LISTED]) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,popcnt,bmi1")]
        fn wide(words: &[u64], first: u64, into: &mut [u64; LISTED]) -> (usize, usize) {
            list_here(words, first, into)
        }
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("bmi1")
        {
            // SAFETY: the processor has these instructions.
            return unsafe { wide(words, first, into) };
        }
    }
    list_here(words, first, into)
}

#[inline(always)]
fn list_here(words: &[u64], first: u64, into: &mut [u64; LISTED]) -> (usize, usize) {
    let mut next = 0;
    for (used, (word, first)) in words.iter().zip((first..).step_by(64)).enumerate() {
        let Some(places) = into[next..].first_chunk_mut::<{ 64 + SPARE }>() else { return (used, next) };
        let matches = word.count_ones() as usize;
        if matches <= SPARE {
            // Write entries by halves of `SPARE`, even beyond the matches, so the loop has a fixed length.
            let mut rest = *word;
            for places in
                places.as_chunks_mut::<{ SPARE / 2 }>().0.iter_mut().take(matches.div_ceil(SPARE / 2))
            {
                for place in places {
                    *place = first + u64::from(rest.trailing_zeros());
                    rest &= rest.wrapping_sub(1);
                }
            }
        } else {
            let mut at = 0;
            for (byte, first) in word.to_le_bytes().into_iter().zip((first..).step_by(8)) {
                // The slice is inside of the 64 + `SPARE` entries, because the earlier bytes have at most 56
                // set bits.
                for (place, bit) in places[at..at + SPARE].iter_mut().zip(PLACES[usize::from(byte)]) {
                    *place = first + u64::from(bit);
                }
                at += byte.count_ones() as usize;
            }
        }
        next += matches;
    }
    (words.len(), next)
}

#[cold]
pub(super) fn no_memory(operation: &'static str, more: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, operation)
        .with_bytes(more as u64 * 8)
        .with_detail("no RAM for the list of matches")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_become_the_list_of_their_numbers(
            words in proptest::collection::vec((any::<u64>(), any::<u64>(), 0_u8..4), 0..60),
            first in 0_u64..1000,
            wanted in 0_usize..5000,
        ) {
            // Words with no bits, few bits, about half of the bits, and all bits.
            let word = |(a, b, kind)| match kind {
                0 => 0,
                1 => a & b & (a >> 7) & (b >> 9),
                2 => a,
                _ => u64::MAX,
            };
            let words: Vec<u64> = words.into_iter().map(word).collect();
            let mut marked = Marked::default();
            marked.start("test", first, 64 * words.len() as u64).unwrap();
            words.chunks(7).for_each(|words| marked.extend(words));
            let numbers = (0..64 * words.len()).filter(|at| words[at / 64] >> (at % 64) & 1 != 0);
            let expected: Vec<u64> = numbers.map(|at| first + at as u64).take(wanted).collect();
            let mut listed = Vec::new();
            marked.each_list(wanted, |done, numbers| {
                assert_eq!(done, listed.len());
                listed.extend_from_slice(numbers);
            });
            prop_assert_eq!(listed, expected);
        }
    }
}

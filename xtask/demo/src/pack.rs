//! Packs eight 4-bit codes of bases in a 32-bit word; the first base is in the lowest bits.

use crate::letters::Code;

/// Number of bases in a word.
pub const BASES: usize = 8;

/// Repacks `bases` bases from `words`, without the first `skip` (0 to 7) bases, so that the result begins at
/// the start of a word. Gap codes fill the last word. `words` must have at least `skip + bases` bases.
pub fn realigned(words: &[u32], skip: usize, bases: usize) -> impl Iterator<Item = u32> {
    (0..bases.div_ceil(BASES)).map(move |index| {
        let both = u64::from(words[index]) | u64::from(words.get(index + 1).copied().unwrap_or(0)) << 32;
        let left = bases - index * BASES;
        let mask = if left < BASES { (1 << (left * 4)) - 1 } else { u32::MAX };
        (both >> (skip * 4)) as u32 & mask
    })
}

/// Packs up to eight codes into a word; missing ones become gaps.
fn word(codes: &[Code]) -> u32 {
    codes.iter().rev().fold(0, |word, code| word << 4 | u32::from(*code))
}

/// Packs codes into words of eight bases. Gap codes fill the last word.
pub fn words(codes: &[Code]) -> impl Iterator<Item = u32> {
    codes.chunks(BASES).map(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_base_is_in_its_place() {
        let codes: Vec<Code> = (0..997_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 28) as Code).collect();
        let bases = words(&codes).flat_map(|word| (0..BASES).map(move |at| (word >> (at * 4) & 15) as Code));
        assert_eq!(bases.collect::<Vec<_>>(), [&codes[..], &[0; 3]].concat());
        assert_eq!(word(&[1, 2, 15]), 0xf21);
    }

    #[test]
    fn words_begin_where_they_are_wanted() {
        let codes: Vec<Code> = (0..64).map(|i| i % 15 + 1).collect();
        let packed: Vec<u32> = words(&codes).collect();
        for skip in 0..BASES {
            for len in 0..=64 - skip {
                let held = &packed[..(skip + len).div_ceil(BASES)];
                assert!(realigned(held, skip, len).eq(words(&codes[skip..skip + len])), "{len} from {skip}");
            }
        }
    }
}

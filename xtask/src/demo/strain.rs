//! Strains: copies of a genome that differ from it by point mutations at seeded places.
//!
//! Strain 0 is the genome itself. Any other has exactly one changed base in every block of 1024 places (a gap
//! or an N there stays what it is). A place counts bases as they are stored, the filling between records
//! included.

use super::letters::Code;
use super::pack::BASES;
use crate::random::mix;
use std::ops::Range;

/// Places in a block.
const BLOCK: usize = 1024;

/// The changed place of a block, and by how many bits its code is rotated: 1, 2 or 3.
fn mutation(strain: usize, block: usize) -> (usize, u32) {
    let bits = mix(mix(strain as u64).wrapping_add(block as u64));
    (block * BLOCK + bits as usize % BLOCK, 1 + ((bits >> 32) % 3) as u32)
}

/// The changed places of a strain within a range of places.
fn mutations(strain: usize, places: Range<usize>) -> impl Iterator<Item = (usize, u32)> {
    let blocks = match strain {
        0 => 0..0,
        _ => places.start / BLOCK..places.end.div_ceil(BLOCK),
    };
    blocks.map(move |block| mutation(strain, block)).filter(move |(place, _)| places.contains(place))
}

/// Another base for a base: the code, rotated within its four bits.
fn rotate(code: Code, by: u32) -> Code {
    (code << by | code >> (4 - by)) & 15
}

/// Turns codes of the genome, the first one at `place`, into those of a strain.
pub fn change_codes(strain: usize, place: usize, codes: &mut [Code]) {
    for (at, by) in mutations(strain, place..place + codes.len()) {
        let code = &mut codes[at - place];
        *code = rotate(*code, by);
    }
}

/// Turns packed words of the genome, the first one the word `index` of it, into those of a strain.
pub fn change_words(strain: usize, index: usize, words: &mut [u32]) {
    let place = index * BASES;
    for (at, by) in mutations(strain, place..place + words.len() * BASES) {
        let (word, shift) = ((at - place) / BASES, (at % BASES) as u32 * 4);
        let code = (words[word] >> shift & 15) as Code;
        words[word] = words[word] & !(15 << shift) | u32::from(rotate(code, by)) << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::pack;

    #[test]
    fn bases_become_other_bases() {
        for by in 1..4 {
            for code in [1, 2, 4, 8] {
                assert_ne!(rotate(code, by), code);
                assert_eq!(rotate(code, by).count_ones(), 1);
            }
            assert_eq!((rotate(0, by), rotate(15, by)), (0, 15));
        }
    }

    #[test]
    fn one_change_a_block_and_none_in_strain_zero() {
        let genome: Vec<Code> = (0..5 * BLOCK).map(|i| 1 << (mix(i as u64) % 4)).collect();
        for strain in 0..20 {
            let mut codes = genome.clone();
            change_codes(strain, 0, &mut codes);
            for (ours, theirs) in codes.chunks(BLOCK).zip(genome.chunks(BLOCK)) {
                let changed = ours.iter().zip(theirs).filter(|(a, b)| a != b).count();
                assert_eq!(changed, usize::from(strain != 0));
            }
        }
    }

    #[test]
    fn pieces_words_and_codes_agree() {
        let genome: Vec<Code> = (0..4 * BLOCK).map(|i| (mix(i as u64) % 16) as Code).collect();
        for strain in 0..5 {
            let mut whole = genome.clone();
            change_codes(strain, 0, &mut whole);
            let mut pieces = genome.clone();
            for (number, piece) in (0..).zip(pieces.chunks_mut(77)) {
                change_codes(strain, number * 77, piece);
            }
            assert_eq!(pieces, whole);
            let mut words: Vec<u32> = pack::words(&genome).collect();
            for (number, piece) in (0..).zip(words.chunks_mut(13)) {
                change_words(strain, number * 13, piece);
            }
            let unpacked: Vec<Code> = (0..whole.len()).map(|index| pack::base(&words, index)).collect();
            assert_eq!(unpacked, whole);
        }
    }
}

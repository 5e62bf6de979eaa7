//! Strains: copies of a genome with point mutations, whose random positions a seed determines.
//!
//! Strain 0 is the genome itself. Each other strain has exactly one changed base in each block of 1024 bases;
//! if that base is a gap or an N, the block is unchanged. Padding between records counts as bases.

use crate::letters::Code;
use std::ops::Range;
use vmarray::device::wrap::SplitMix64;

/// The number of bases in a block; each block has one mutation.
const BLOCK: usize = 1024;

/// Returns the mutated base of a block, and the number of bits by which its code is rotated: 1, 2 or 3.
fn mutation(strain: usize, block: usize) -> (usize, u32) {
    let bits = SplitMix64::new((strain << 32 | block) as u64).next();
    (block * BLOCK + bits as usize % BLOCK, 1 + ((bits >> 32) % 3) as u32)
}

/// Mutates a base: rotates its code within the four bits, which results in another base.
fn rotate(code: Code, by: u32) -> Code {
    (code << by | code >> (4 - by)) & 15
}

/// Returns the codes of a strain (mutated copy) of `genome` in the range `places`, cut off at the end.
pub fn codes(genome: &[Code], strain: usize, places: Range<usize>) -> Vec<Code> {
    let places = places.start.min(genome.len())..places.end.min(genome.len());
    let mut codes = genome[places.clone()].to_vec();
    let blocks = if strain == 0 { 0..0 } else { places.start / BLOCK..places.end.div_ceil(BLOCK) };
    for (place, by) in blocks.map(|block| mutation(strain, block)) {
        if places.contains(&place) {
            let code = &mut codes[place - places.start];
            *code = rotate(*code, by);
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_change_a_block_and_none_in_strain_zero() {
        let genome: Vec<Code> = (0..5 * BLOCK).map(|i| 1 << (i % 4)).collect();
        for strain in 0..20 {
            let codes = codes(&genome, strain, 0..genome.len());
            for (ours, theirs) in codes.chunks(BLOCK).zip(genome.chunks(BLOCK)) {
                let changed = ours.iter().zip(theirs).filter(|(a, b)| a != b).count();
                assert_eq!(changed, usize::from(strain != 0));
                assert!(ours.iter().all(|code| code.count_ones() == 1), "bases become bases");
            }
        }
    }

    #[test]
    fn pieces_are_parts_of_the_whole() {
        let genome: Vec<Code> = (0..4 * BLOCK).map(|i| (i % 16) as Code).collect();
        for strain in 0..5 {
            let whole = codes(&genome, strain, 0..genome.len());
            let pieces = (0..genome.len()).step_by(77).map(|at| codes(&genome, strain, at..at + 77));
            assert_eq!(pieces.collect::<Vec<_>>().concat(), whole);
        }
    }
}

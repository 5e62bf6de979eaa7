//! Searches a genome store for a motif, a short sequence of bases, on both strands.
//!
//! The devices compare only whole words of eight bases. A motif of at least 15 bases always covers one whole
//! word. The word's contents depend only on the motif's offset, 0 to 7, in its first word. Eight searches per
//! strand therefore find all candidates. The host then compares each candidate with the whole motif.

use crate::letters::{self, Code};
use crate::pack::{self, BASES};
use anyhow::{Result, bail};
use std::fmt;

/// The minimum length of a motif in bases: at any offset it covers a whole word.
const LEN_MIN: usize = 2 * BASES - 1;
/// The maximum length of a motif in bases: its codes fit into 128 bits.
const LEN_MAX: usize = 32;

/// A motif and its reverse complement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Motif {
    /// The motif, then its reverse complement, unless they are equal.
    strands: Vec<Vec<Code>>,
}

/// The strand of a hit of the motif: true for the motif itself, false for its reverse complement.
pub type Forward = bool;

/// One way in which the motif can lie in the store's words of eight bases: a strand, and an offset in a word.
#[derive(Debug)]
pub struct Placement {
    /// True for the motif itself, false for its reverse complement.
    pub strand: Forward,
    /// Offset of the motif's first base in the first word, in bases.
    pub skip: usize,
    /// For each word that the motif touches: a mask of the motif's bits, and their values.
    pub words: Vec<(u32, u32)>,
    /// The index in `words` of a word that the motif covers entirely; devices search for this word.
    pub seed: usize,
}

impl Motif {
    /// Creates a motif from 15 to 32 letters A, C, G and T.
    pub fn new(text: &str) -> Result<Self> {
        let forward: Option<Vec<Code>> = text.bytes().map(letters::code).collect();
        let Some(forward) = forward.filter(|codes| codes.iter().all(|code| code.count_ones() == 1)) else {
            bail!("the motif `{text}` has letters other than A, C, G and T");
        };
        if !(LEN_MIN..=LEN_MAX).contains(&forward.len()) {
            bail!("the motif `{text}` has {} bases, not {LEN_MIN} to {LEN_MAX}", forward.len());
        }
        let backward: Vec<Code> = forward.iter().rev().map(|code| letters::complement(*code)).collect();
        let strands = if forward == backward { vec![forward] } else { vec![forward, backward] };
        Ok(Self { strands })
    }

    /// Number of bases.
    pub fn len(&self) -> usize {
        self.strands[0].len()
    }

    /// Returns all placements of the motif relative to word boundaries, on both strands.
    pub fn placements(&self) -> Vec<Placement> {
        let one = |strand: usize, skip: usize| {
            let codes = &self.strands[strand];
            let mut values = vec![0; skip];
            values.extend_from_slice(codes);
            let mut bits = vec![0; skip];
            bits.resize(values.len(), 15);
            let words = pack::words(&bits).zip(pack::words(&values)).collect();
            // A motif of at least 15 bases covers the second word (eight bases) unless the offset is 0.
            Placement { strand: strand == 0, skip, words, seed: usize::from(skip > 0) }
        };
        (0..self.strands.len()).flat_map(|strand| (0..BASES).map(move |skip| one(strand, skip))).collect()
    }

    /// Compares base by base: returns each index in `codes` at which the motif or its reverse complement
    /// begins, with the strand.
    pub fn hits(&self, codes: &[Code]) -> impl Iterator<Item = (usize, Forward)> {
        codes.windows(self.len()).enumerate().filter_map(|(at, window)| {
            let strand = self.strands.iter().position(|strand| strand == window)?;
            Some((at, strand == 0))
        })
    }
}

impl fmt::Display for Motif {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.strands[0].iter().try_for_each(|code| write!(f, "{}", char::from(letters::letter(*code))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> Vec<Code> {
        text.bytes().map(|letter| letters::code(letter).unwrap()).collect()
    }

    #[test]
    fn unsuitable_motifs_are_refused() {
        for text in ["", "ACGTACGTACGTAC", "ACGTACGTACGTACGTN", "ACGTACGTACGTACGTX", &"A".repeat(33)] {
            assert!(Motif::new(text).is_err(), "{text}");
        }
        assert_eq!(Motif::new(&"A".repeat(32)).unwrap().len(), 32);
        assert_eq!(Motif::new("ACGTACGTACGTACGT").unwrap().strands.len(), 1);
    }

    #[test]
    fn placements_meet_every_place_at_every_length() {
        let text = "AGAGTTTGATCATGGCTCAGATTGAACGCTGG";
        for len in [15, 16, 17, 20, 23, 24, 32] {
            let motif = Motif::new(&text[..len]).unwrap();
            let placements = motif.placements();
            assert!(placements.iter().all(|placement| placement.words[placement.seed].0 == u32::MAX));
            for (strand, bases) in motif.strands.iter().enumerate() {
                for start in 0..40 {
                    let codes = [&vec![15; start], bases.as_slice(), &[15; 9]].concat();
                    let words: Vec<u32> = pack::words(&codes).collect();
                    let mut hits = Vec::new();
                    for placement in &placements {
                        for first in 0..words.len().saturating_sub(placement.words.len() - 1) {
                            let mut pairs = placement.words.iter().zip(&words[first..]);
                            if pairs.all(|((mask, value), word)| word & mask == *value) {
                                hits.push((first * BASES + placement.skip, placement.strand));
                            }
                        }
                    }
                    assert_eq!(hits, [(start, strand == 0)], "length {len}");
                }
            }
        }
    }

    #[test]
    fn hits_are_on_both_strands() {
        let motif = Motif::new("AAACCCGGGTTTACA").unwrap();
        assert_eq!(motif.to_string(), "AAACCCGGGTTTACA");
        let hits = |text: &str| motif.hits(&codes(text)).collect::<Vec<_>>();
        assert_eq!(hits("GAAACCCGGGTTTACAC"), [(1, true)]);
        assert_eq!(hits("TGTAAACCCGGGTTTGAAACCC"), [(0, false)]);
        assert_eq!(hits("GGGTTTACA"), []);
    }
}

//! Looks up short words (seeds) of DNA reads in a genome. The devices build and query an index of all words.
//! The index stores the positions of each word contiguously; a table has the start of each word's positions.

use crate::setting::{Setting, starts_of};
use vmarray::kernel::{Anywhere, Append, Appended, At, Own, Shared, Window};
use vmarray::{Result, prelude::*};

/// Number of letters of a word; a letter has two bits.
const WORD: usize = 6;
const WORDS: usize = 1 << (2 * WORD);

/// Computes the word that begins at each letter, and counts each word.
#[vmarray::kernel]
fn count(at: At<1>, genome: &Window<u8, 1>, words: &mut Own<u32>, counts: &Shared<u64>) {
    let mut word = 0;
    for k in 0..WORD {
        word = word << 2 | genome[at.plus(k as isize)] as u32;
    }
    words.set(word);
    counts.add(word as usize, 1);
}

/// Writes the positions of each word to its part of `places`; `next` has the word's next free index.
#[vmarray::kernel]
fn place(at: At<1>, word: &Own<u32>, next: &Shared<u64>, places: &Shared<u32>) {
    let free = next.add(word.get() as usize, 1);
    places.exchange(free as usize, at.index() as u32);
}

/// Looks up the word of each read: writes the number of its positions, and one of them.
#[vmarray::kernel]
fn look_up(
    at: At<1>,
    read: &Own<u32>,
    starts: &Anywhere<u64>,
    places: &Anywhere<u32>,
    hits: &Append<[u32; 2]>,
) {
    let word = read.get() as usize;
    for k in starts[word]..starts[word + 1] {
        hits.push([at.index() as u32, places[k as usize]]);
    }
}

fn run(on: &mut Setting, genome: &[u8], reads: &[u32]) -> Result<Vec<[u32; 2]>> {
    let last = genome.len() - WORD + 1;
    let (genome, mut words) = (on.array_on_one(genome)?, on.array_on_one(&vec![0_u32; last])?);
    let mut counts = on.array_on_one(&[0_u64; WORDS])?;
    count::run((genome.window(WORD), &mut words, &mut counts))?;
    let starts = starts_of(counts.to_vec(..)?);
    let (mut next, mut places) = (on.array_on_one(&starts[..WORDS])?, on.array_on_one(&vec![0_u32; last])?);
    place::run((&words, &mut next, &mut places))?;

    let (reads, starts) = (on.array_on_one(reads)?, on.array_on_one(&starts)?);
    let mut hits = Vec::new();
    look_up::run((&reads, &starts, &places, Appended::to(&mut hits, 20_000)))?;
    hits.sort_unstable();
    Ok(hits)
}

fn word(of: &[u8]) -> u32 {
    of[..WORD].iter().fold(0, |word, letter| word << 2 | u32::from(*letter))
}

pub fn show(on: &mut Setting) -> Result<()> {
    let genome: Vec<u8> = (0..10_000).map(|_| on.below(4) as u8).collect();
    // The letters A, C, G and T are stored as 0 to 3.
    let hits = run(on, &genome, &[word(&[2, 0, 3, 3, 0, 1])])?;
    println!("    GATTAC is at {:?}", hits.iter().map(|hit| hit[1]).collect::<Vec<_>>());
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let genome: Vec<u8> = (0..WORD + on.below(4000)).map(|_| on.below(4) as u8).collect();
    let reads: Vec<u32> = (0..1 + on.below(200)).map(|_| on.below(WORDS) as u32).collect();
    let found = |read: u32| (0..).zip(genome.windows(WORD)).filter(move |(_, of)| word(of) == read);
    let hits = (0..).zip(&reads).flat_map(|(number, read)| found(*read).map(move |(at, _)| [number, at]));
    assert_eq!(run(on, &genome, &reads)?, hits.collect::<Vec<[u32; 2]>>());
    Ok(())
}

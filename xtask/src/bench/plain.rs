//! Measures a benchmark's work on plain RAM: loops over slices, and copies between slices.

use super::elements::Payload;
use super::measure::{Effort, Sample, Summary, Unit, on_threads, repeat};
use super::setup::{CHUNK_BYTES, Setup, part, pieces};
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::hint::black_box;

/// Measurements on plain RAM, in GB/s, for comparison. The memory is allocated at the first use.
pub struct Plain {
    bytes: usize,
    effort: Effort,
    is_omitted: bool,
    words: Vec<u32>,
    known: HashMap<(&'static str, usize), Summary>,
}

impl Plain {
    pub fn new(setup: &Setup) -> Self {
        let (bytes, effort) = (setup.plain_bytes, setup.brief);
        Self { bytes, effort, is_omitted: setup.is_in_turns, words: Vec::new(), known: HashMap::new() }
    }

    /// Measures copies to buffers of a few MiB, for comparison with bulk reads of arrays.
    pub fn memcpy(&mut self, threads: usize) -> Result<Summary> {
        self.get("memcpy", threads, |words| {
            on_threads(threads, |thread| {
                let mut buffer = vec![0_u32; CHUNK_BYTES / 4];
                let part = part(words.len(), threads, thread, 1024);
                for piece in pieces(part.clone(), buffer.len()) {
                    buffer[..piece.len()].copy_from_slice(black_box(&words[piece]));
                    black_box(&mut buffer);
                }
                Ok(part.len() as f64 * 4.0)
            })
        })
    }

    /// Measures the sum of all words.
    pub fn scan(&mut self, threads: usize) -> Result<Summary> {
        self.get("scan", threads, |words| {
            on_threads(threads, |thread| {
                let part = part(words.len(), threads, thread, 1024);
                black_box(sum(&words[part.clone()]));
                Ok(part.len() as f64 * 4.0)
            })
        })
    }

    /// Measures the speed of writes to all words.
    pub fn overwrite(&mut self, threads: usize) -> Result<Summary> {
        self.get("overwrite", threads, |words| on_slices(split(words, threads), |_, part| number(part, 7)))
    }

    /// Measures an addition to all words. The result counts only the read bytes, not the written bytes.
    pub fn update(&mut self, threads: usize) -> Result<Summary> {
        let add = |words: &mut [u32]| words.iter_mut().for_each(|word| *word = word.wrapping_add(1));
        self.get("update", threads, |words| on_slices(split(words, threads), |_, part| add(part)))
    }

    /// Measures a copy of one half of the memory to the other half.
    pub fn copy(&mut self, threads: usize) -> Result<Summary> {
        self.get("copy", threads, |words| {
            let (from, to) = words.split_at_mut(words.len() / 2);
            on_slices(split(to, threads), |start, to| to.copy_from_slice(&from[start..start + to.len()]))
        })
    }

    fn get(
        &mut self,
        name: &'static str,
        threads: usize,
        run: impl Fn(&mut [u32]) -> Result<Sample>,
    ) -> Result<Summary> {
        if self.is_omitted {
            return Ok(Summary::NONE);
        }
        if let Some(known) = self.known.get(&(name, threads)) {
            return Ok(*known);
        }
        if self.words.is_empty() {
            self.words = (0..self.bytes / 4).map(u32::of).collect();
        }
        let series = repeat(&self.effort, || run(&mut self.words))?;
        let summary = series.summary(Unit::GigabytesPerSecond).context("nothing was measured")?;
        self.known.insert((name, threads), summary);
        Ok(summary)
    }
}

/// Measures a search of `elements` by `threads` threads that finds no match. The result counts bytes.
pub fn search<T: Sync>(
    elements: &[T],
    threads: usize,
    matches: impl Fn(&T) -> bool + Sync,
) -> Result<Sample> {
    on_threads(threads, |thread| {
        let part = part(elements.len(), threads, thread, 1);
        let found = elements[part.clone()].iter().filter(|element| matches(element)).count();
        ensure!(black_box(found) == 0, "the search found a value that the array does not contain");
        Ok((part.len() * size_of::<T>()) as f64)
    })
}

/// Divides a slice into parts for threads, with the index of each part's first element.
fn split(words: &mut [u32], threads: usize) -> Vec<(usize, &mut [u32])> {
    let len = words.len().div_ceil(threads).max(1);
    words.chunks_mut(len).enumerate().map(|(thread, part)| (thread * len, part)).collect()
}

fn on_slices(parts: Vec<(usize, &mut [u32])>, run: impl Fn(usize, &mut [u32]) + Sync) -> Result<Sample> {
    let threads = parts.len();
    let parts: Vec<_> = parts.into_iter().map(|part| std::sync::Mutex::new(Some(part))).collect();
    on_threads(threads, |thread| {
        let part = parts[thread].lock().ok().and_then(|mut part| part.take());
        let (start, part) = part.context("a part was taken twice")?;
        run(start, part);
        black_box(&part);
        Ok(part.len() as f64 * 4.0)
    })
}

/// Computes the sum of all words. Uses four partial sums, because each addition to a single sum would have to
/// wait for the previous addition.
pub fn sum(words: &[u32]) -> u64 {
    let mut sums = [0_u64; 4];
    for piece in words.chunks(1 << 16) {
        let mut part = [0_u64; 4];
        let (fours, rest) = piece.as_chunks::<4>();
        for four in fours {
            for (sum, word) in part.iter_mut().zip(four) {
                *sum += u64::from(*word);
            }
        }
        part[0] += rest.iter().map(|word| u64::from(*word)).sum::<u64>();
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
    }
    sums.iter().sum()
}

/// Overwrites `words` with the numbers `first`, `first + 1`, ….
pub fn number(words: &mut [u32], first: u32) {
    let mut next = first;
    for word in words {
        *word = next;
        next = next.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_numbers() {
        let mut words = vec![0; 1003];
        number(&mut words, 5);
        assert_eq!((words[0], words[1002]), (5, 1007));
        assert_eq!(sum(&words), (5..1008).sum::<u64>());
        assert_eq!(sum(&[u32::MAX; 9]), 9 * u64::from(u32::MAX));
    }

    #[test]
    fn parts_of_a_slice_know_where_they_start() {
        let mut words: Vec<u32> = (0..10).collect();
        let parts = split(&mut words, 3);
        assert!(parts.iter().all(|(start, part)| part[0] as usize == *start));
        assert_eq!(parts.iter().map(|(_, part)| part.len()).sum::<usize>(), 10);
    }
}

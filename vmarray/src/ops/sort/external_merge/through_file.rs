//! Sort of elements in files, with little RAM, through a temporary file:
//!
//! 1. Pieces are sorted in RAM, and written to the temporary file as *runs*.
//! 2. Evenly spaced keys of all runs give *splitters*, such that all elements between two splitters fit into
//!    a piece. Each run is cut there; the parts are read, sorted, and written to their final place.
//!
//! So each element is read twice and written twice. The splitters are samples as in H. Shi, J. Schaeffer,
//! "Parallel sorting by regular sampling", 1992. Equal keys are ordered by their place in the file, so a part
//! of equal keys is no longer than others.
//!
//! The first step does not change the elements. If the second step fails, the elements that are only in the
//! temporary file are copied back, in another order.

use std::ops::Range;

use vmarray_support::warn;

use super::rows::{RowSorting, SomeRows};
use crate::array::VirtualArray;
use crate::array::empty_like::temporary;
use crate::base::error::{Result, interrupted};
use crate::ops::sort::keys::SortKey;
use crate::ops::view::{Store, StoreMut};

/// The bytes of RAM for pieces and scratch memory.
pub(super) const BYTES: usize = if cfg!(test) { 4 << 10 } else { 40 << 20 };
/// Bytes of a page of the temporary file.
const PAGE_BYTES: usize = 64 << 10;
/// The most runs. Longer arrays have longer pieces.
const RUNS_MAX: usize = if cfg!(test) { 16 } else { 256 };
/// The samples of a run, for each run.
const SAMPLES: usize = 8;

/// Sorted runs in a temporary file.
struct Runs<T: SortKey, S: Store> {
    keys: VirtualArray<T, S::Device>,
    values: VirtualArray<u8, S::Device>,
    stride: usize,
    /// The bounds of all runs.
    starts: Vec<usize>,
    /// The distance of two samples.
    spacing: usize,
    /// The sampled keys of each run: the last one of every `spacing` elements.
    samples: Vec<Vec<u64>>,
}

/// A sampled element: its key, its run, and its place in the run. Elements with equal keys are in the order
/// of their runs.
type Sample = (u64, usize, usize);

impl<T: SortKey, S: Store> Runs<T, S> {
    fn read(&self, place: usize, into: &mut SomeRows<'_, T>) -> Result<()> {
        self.keys.read_range(place, into.keys)?;
        if self.stride == 0 { Ok(()) } else { self.values.read_range(place * self.stride, into.values) }
    }

    fn write(&self, place: usize, from: &SomeRows<'_, T>) -> Result<()> {
        self.keys.write_range(place, from.keys)?;
        if self.stride == 0 { Ok(()) } else { self.values.write_range(place * self.stride, from.values) }
    }

    /// Returns the splitters: the elements between two of them fit into a piece.
    fn splitters(&self, piece: usize) -> Vec<Sample> {
        let of_run = |(run, keys): (usize, &Vec<u64>)| -> Vec<Sample> {
            let place = |sample: usize| (sample + 1) * self.spacing - 1;
            keys.iter().enumerate().map(|(sample, key)| (*key, run, place(sample))).collect()
        };
        let mut samples: Vec<_> = self.samples.iter().enumerate().flat_map(of_run).collect();
        samples.sort_unstable();
        // Between two splitters, a run has fewer than `spacing` elements more than its samples stand for.
        let each = piece / self.spacing - self.samples.len();
        samples.into_iter().skip(each - 1).step_by(each).collect()
    }

    /// Returns the end of the elements of a run that are not behind the splitter.
    fn cut(&self, run: usize, splitter: Sample, key: impl Fn(T) -> u64, read: &mut [T]) -> Result<usize> {
        let (own, samples) = (self.starts[run]..self.starts[run + 1], &self.samples[run]);
        if splitter.1 == run {
            return Ok(own.start + splitter.2 + 1);
        }
        let is_before = |key: u64| (key, run) < (splitter.0, splitter.1);
        let block = own.start + self.spacing * samples.partition_point(|sample| is_before(*sample));
        let read = &mut read[..self.spacing.min(own.end - block)];
        self.keys.read_range(block, read)?;
        Ok(block + read.partition_point(|element| is_before(key(*element))))
    }
}

impl<T: SortKey, S: StoreMut<Element = T>> RowSorting<'_, T, S> {
    /// Returns the numbers of elements of a piece, and of scratch memory beside it.
    pub(super) fn piece_through_file(len: usize, stride: usize) -> (usize, usize) {
        // A piece has at least twice as many elements as there are runs, so that there are samples.
        let least = len.div_ceil(RUNS_MAX).max((2 * len).isqrt() + 2);
        let fitting = BYTES / (size_of::<T>() + stride);
        match stride {
            0 => (least.max(fitting / 2), least.max(fitting / 2)),
            // The sort of pairs allocates its scratch memory, in which a pair may be longer.
            4 | 8 => (least.max(fitting / 3), 0),
            _ => (least.max(fitting / 4), least.max(fitting / 4)),
        }
    }

    /// Sorts a range through a temporary file. Returns false, without a change, if there can be no file.
    pub(super) fn sort_through_file(&mut self, range: &Range<usize>) -> Result<bool> {
        let (stride, piece) = (self.stride(), self.piece.keys.len());
        let page_len = (PAGE_BYTES / size_of::<T>()).max(1);
        let files = temporary(range.len(), page_len)
            .and_then(|keys| Ok(keys.zip(temporary(range.len() * stride, PAGE_BYTES)?)));
        let (keys, values) = match files {
            Ok(Some(files)) => files,
            Ok(None) => return Ok(false),
            Err(error) => {
                warn::warn(format!("the sort takes more RAM, because it has no temporary file: {error}"));
                return Ok(false);
            }
        };
        let starts: Vec<_> = (0..range.len()).step_by(piece).chain([range.len()]).collect();
        let spacing = (piece / (SAMPLES * starts.len())).max(1);
        let mut runs = Runs::<T, S> { keys, values, stride, starts, spacing, samples: Vec::new() };
        for run in 0..runs.starts.len() - 1 {
            let samples = self.make_run(range.start, runs.starts[run]..runs.starts[run + 1], &runs)?;
            runs.samples.push(samples);
        }
        let mut cuts = runs.starts[..runs.samples.len()].to_vec();
        let merged = self.merge_runs(range.start, &runs, &mut cuts);
        if let Err(error) = merged {
            self.put_back(range, &runs, &cuts)
                .map_err(|(error, place)| interrupted(error, 0..0, place..range.end))?;
            return Err(error);
        }
        Ok(true)
    }

    /// Sorts a piece into the temporary file. Returns the samples.
    fn make_run(&mut self, first: usize, run: Range<usize>, runs: &Runs<T, S>) -> Result<Vec<u64>> {
        self.with_memory(run.len(), |this, mut rows, beside| {
            this.report(run.len())?;
            this.read(first + run.start, &mut rows)?;
            let rows = this.sorted(rows, beside)?;
            runs.write(run.start, &rows)?;
            let samples = rows.keys.iter().skip(runs.spacing - 1).step_by(runs.spacing);
            Ok(samples.map(|element| this.key(*element)).collect())
        })
    }

    /// Moves the elements to their final places. `cuts` are the starts of the parts of runs that have not
    /// arrived, even after an error.
    fn merge_runs(&mut self, first: usize, runs: &Runs<T, S>, cuts: &mut [usize]) -> Result<()> {
        let mut place = first;
        let splitters = runs.splitters(self.piece.keys.len());
        for splitter in splitters.into_iter().map(Some).chain([None]) {
            let ends = self.ends(runs, splitter)?;
            let len = cuts.iter().zip(&ends).map(|(start, end)| end - start).sum();
            self.with_memory(len, |this, mut rows, beside| {
                this.report(len)?;
                let mut at = 0;
                for (start, end) in cuts.iter().zip(&ends) {
                    runs.read(*start, &mut rows.part(at..at + end - start))?;
                    at += end - start;
                }
                let rows = this.sorted(rows, beside)?;
                this.write_all(place, &rows)
            })?;
            cuts.copy_from_slice(&ends);
            place += len;
        }
        Ok(())
    }

    /// Returns the ends of the parts of runs up to a splitter.
    fn ends(&mut self, runs: &Runs<T, S>, splitter: Option<Sample>) -> Result<Vec<usize>> {
        let Some(splitter) = splitter else { return Ok(runs.starts[1..].to_vec()) };
        self.with_memory(runs.spacing, |this, rows, _| {
            let cut = |run| runs.cut(run, splitter, |element| this.key(element), rows.keys);
            (0..runs.samples.len()).map(cut).collect()
        })
    }

    /// Copies the elements of runs from `cuts` on to the end of the range. If that fails, returns the place
    /// of the first element that is only in the temporary file.
    fn put_back(
        &mut self,
        range: &Range<usize>,
        runs: &Runs<T, S>,
        cuts: &[usize],
    ) -> std::result::Result<(), (crate::Error, usize)> {
        let left = || cuts.iter().zip(&runs.starts[1..]);
        let mut place = range.end - left().map(|(start, end)| end - start).sum::<usize>();
        let at_once = self.piece.keys.len();
        for (start, end) in left() {
            for from in (*start..*end).step_by(at_once) {
                let len = at_once.min(end - from);
                let copied = self.with_memory(len, |this, mut rows, _| {
                    runs.read(from, &mut rows)?;
                    this.write_all(place, &rows)
                });
                copied.map_err(|error| (error, place))?;
                place += len;
            }
        }
        Ok(())
    }
}

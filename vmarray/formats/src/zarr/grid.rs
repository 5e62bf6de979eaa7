//! Computation of the Zarr chunks that overlap a box of indices.

use std::ops::Range;

use crate::pieces::{Piece, element_count};

/// Maximum bytes of a chunk or shard.
pub(super) const CHUNK_MAX: u64 = 1 << 30;

/// A box of a chunked array; chunks at the far edges extend beyond the array.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) bounds: Vec<Range<usize>>,
    pub(super) chunk: Vec<usize>,
}

/// A chunk, and the part of it that a box contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Index of the chunk among the chunks, along each axis.
    pub(super) place: Vec<u64>,
    /// The elements of the part, as index ranges of the array.
    pub(super) part: Vec<Range<usize>>,
    /// The index of the chunk's first element, along each axis.
    origin: Vec<usize>,
}

impl Grid {
    /// Returns the grid of the whole array.
    pub(super) fn whole(shape: &[usize], chunk: &[usize]) -> Self {
        Self { bounds: shape.iter().map(|extent| 0..*extent).collect(), chunk: chunk.to_vec() }
    }

    /// Number of chunks that overlap the box.
    pub(super) fn count(&self) -> usize {
        element_count(&self.counts())
    }

    fn counts(&self) -> Vec<usize> {
        let count = |(of, chunk): (&Range<usize>, &usize)| {
            if of.is_empty() { 0 } else { of.end.div_ceil(*chunk) - of.start / chunk }
        };
        self.bounds.iter().zip(&self.chunk).map(count).collect()
    }

    /// Number of elements of the box.
    pub(super) fn len(&self) -> usize {
        element_count(&lengths(&self.bounds))
    }

    /// Maximum number of elements that the box and one chunk have in common.
    pub(super) fn largest(&self) -> usize {
        let most = self.bounds.iter().zip(&self.chunk).map(|(of, chunk)| of.len().min(*chunk));
        element_count(&most.collect::<Vec<_>>())
    }

    /// Returns chunk number `number` of the box.
    pub(super) fn cell(&self, number: usize) -> Cell {
        let (counts, mut rest) = (self.counts(), number);
        let mut place = vec![0; counts.len()];
        for axis in (0..counts.len()).rev() {
            place[axis] = self.bounds[axis].start / self.chunk[axis] + rest % counts[axis];
            rest /= counts[axis];
        }
        let origin: Vec<usize> = place.iter().zip(&self.chunk).map(|(at, chunk)| at * chunk).collect();
        let part = self.bounds.iter().zip(origin.iter().zip(&self.chunk));
        let part =
            part.map(|(of, (start, chunk))| of.start.max(*start)..of.end.min(start.saturating_add(*chunk)));
        Cell { part: part.collect(), origin, place: place.into_iter().map(|at| at as u64).collect() }
    }

    /// Returns the part of the box in the chunk, as a piece of a view of the box.
    pub(super) fn piece(&self, cell: &Cell) -> Piece {
        let bounds = cell.part.iter().zip(&self.bounds);
        let bounds = bounds.map(|(part, of)| part.start - of.start..part.end - of.start).collect();
        Piece { bounds, start: None }
    }

    /// Returns the elements of a chunk that are within an array of this shape.
    pub(super) fn within(&self, cell: &Cell, shape: &[usize]) -> Vec<Range<usize>> {
        let axes = cell.origin.iter().zip(self.chunk.iter().zip(shape));
        axes.map(|(start, (chunk, extent))| *start..start.saturating_add(*chunk).min(*extent).max(*start))
            .collect()
    }

    /// Copies elements of a box of the array to their positions in a chunk's memory.
    pub(super) fn put<T: Copy>(&self, cell: &Cell, of: &[Range<usize>], elements: &[T], chunk: &mut [T]) {
        self.rows(cell, of, |place, row| chunk[place..][..row.len()].copy_from_slice(&elements[row]));
    }

    /// Copies elements of a box of the array from their positions in a chunk's memory.
    pub(super) fn take<T: Copy>(&self, cell: &Cell, of: &[Range<usize>], chunk: &[T], elements: &mut [T]) {
        self.rows(cell, of, |place, row| {
            let len = row.len();
            elements[row].copy_from_slice(&chunk[place..][..len]);
        });
    }

    /// Calls `work` for each row of a box, with its position in the chunk's memory and its range of elements
    /// of the box.
    fn rows(&self, cell: &Cell, of: &[Range<usize>], mut work: impl FnMut(usize, Range<usize>)) {
        let lengths = lengths(of);
        let Some((row, outer)) = lengths.split_last().filter(|(row, _)| **row > 0) else { return };
        for number in 0..element_count(outer) {
            let (mut rest, mut stride) = (number, self.chunk[outer.len()]);
            let mut place = of[outer.len()].start - cell.origin[outer.len()];
            for axis in (0..outer.len()).rev() {
                place += (of[axis].start - cell.origin[axis] + rest % outer[axis]) * stride;
                rest /= outer[axis];
                stride *= self.chunk[axis];
            }
            work(place, number * row..(number + 1) * row);
        }
    }
}

/// The extent along each axis.
pub(super) fn lengths(of: &[Range<usize>]) -> Vec<usize> {
    of.iter().map(ExactSizeIterator::len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_at_the_edges_have_less() {
        let grid = Grid { bounds: vec![1..3, 2..5], chunk: vec![2, 3] };
        assert_eq!((grid.count(), grid.largest(), grid.len()), (4, 6, 6));
        let cell = grid.cell(3);
        assert_eq!((&cell.part[..], &cell.place[..]), (&[2..3, 3..5][..], &[1, 1][..]));
        assert_eq!(
            (&grid.piece(&cell).bounds[..], grid.within(&cell, &[9, 4])),
            (&[1..2, 1..3][..], vec![2..4, 3..4])
        );
        let mut chunk = [0; 6];
        grid.put(&cell, &cell.part, &[7, 8], &mut chunk);
        assert_eq!(chunk, [7, 8, 0, 0, 0, 0]);
        let cell = grid.cell(0);
        grid.put(&cell, &cell.part, &[9], &mut chunk);
        assert_eq!(chunk, [7, 8, 0, 0, 0, 9]);
        // The grid has one chunk, which is longer than the array.
        let huge = Grid::whole(&[7], &[usize::MAX]);
        assert_eq!((huge.count(), huge.cell(0).part[0].clone(), huge.largest()), (1, 0..7, 7));
        assert_eq!(Grid::whole(&[3, 0], &[2, 2]).count(), 0);
    }

    proptest! {
        #[test]
        fn every_element_is_in_one_chunk(
            axes in prop::collection::vec((0_usize..6, 0_usize..6, 1_usize..5), 1..5),
        ) {
            let grid = Grid {
                bounds: axes.iter().map(|(start, len, _)| *start..start + len).collect(),
                chunk: axes.iter().map(|(_, _, chunk)| *chunk).collect(),
            };
            let mut seen = std::collections::BTreeSet::new();
            for number in 0..grid.count() {
                let cell = grid.cell(number);
                let len = element_count(&lengths(&cell.part));
                prop_assert!((1..=grid.largest()).contains(&len));
                let elements: Vec<usize> = (1..=len).collect();
                let mut chunk = vec![0; grid.chunk.iter().product()];
                grid.put(&cell, &cell.part, &elements, &mut chunk);
                let mut again = vec![0; len];
                grid.take(&cell, &cell.part, &chunk, &mut again);
                prop_assert_eq!(again, elements);
                let mut next = 1;
                for (place, element) in chunk.into_iter().enumerate() {
                    let mut rest = place;
                    let mut at: Vec<usize> = (0..grid.chunk.len()).rev().map(|axis| {
                        let of = rest % grid.chunk[axis];
                        rest /= grid.chunk[axis];
                        of + grid.chunk[axis] * cell.place[axis] as usize
                    }).collect();
                    at.reverse();
                    let is_in = grid.bounds.iter().zip(&at).all(|(bounds, at)| bounds.contains(at));
                    prop_assert_eq!(element, if is_in { next } else { 0 });
                    if is_in {
                        next += 1;
                        prop_assert!(seen.insert(at));
                    }
                }
            }
            prop_assert_eq!(seen.len(), grid.len());
        }
    }
}

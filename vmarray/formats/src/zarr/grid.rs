//! The chunks that a shape is cut into.

use crate::pieces::{Piece, element_count};

/// A shape in chunks, of which those at the far edges reach beyond it.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) shape: Vec<usize>,
    pub(super) chunk: Vec<usize>,
}

impl Grid {
    /// How many chunks there are.
    pub(super) fn count(&self) -> usize {
        let counts: Vec<usize> = self.counts().collect();
        element_count(&counts)
    }

    fn counts(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.shape.iter().zip(&self.chunk).map(|(extent, chunk)| extent.div_ceil(*chunk))
    }

    /// How many elements the longest one has that are in the shape.
    pub(super) fn largest(&self) -> usize {
        let lengths: Vec<usize> = self.shape.iter().zip(&self.chunk).map(|(a, b)| *a.min(b)).collect();
        element_count(&lengths)
    }

    /// What a chunk has of the shape, and its place among the chunks along each axis.
    pub(super) fn chunk(&self, number: usize) -> (Piece, Vec<u64>) {
        let mut rest = number;
        let mut place: Vec<usize> = self
            .counts()
            .rev()
            .map(|count| {
                let at = rest % count;
                rest /= count;
                at
            })
            .collect();
        place.reverse();
        let bounds = place
            .iter()
            .zip(self.shape.iter().zip(&self.chunk))
            .map(|(at, (extent, chunk))| at * chunk..((at + 1).saturating_mul(*chunk)).min(*extent))
            .collect();
        (Piece { bounds, start: None }, place.into_iter().map(|at| at as u64).collect())
    }

    /// Moves the elements of a piece, which lie together at the start of a chunk's memory, to where they are
    /// in the chunk, and fills what is beyond the shape.
    pub(super) fn spread<T: Copy>(&self, piece: &Piece, elements: &mut [T], fill: T) {
        let extents: Vec<usize> = piece.bounds.iter().map(ExactSizeIterator::len).collect();
        if extents == self.chunk {
            return;
        }
        let Some((row, outer)) = extents.split_last() else { return };
        let row_of_chunk = self.chunk[outer.len()];
        let rows: usize = outer.iter().product();
        // From the end, so that nothing is overwritten that was not moved.
        let mut end = elements.len();
        for number in (0..rows).rev() {
            let (mut rest, mut place, mut stride) = (number, 0, row_of_chunk);
            for axis in (0..outer.len()).rev() {
                place += rest % outer[axis] * stride;
                rest /= outer[axis];
                stride *= self.chunk[axis];
            }
            elements.copy_within(number * row..(number + 1) * row, place);
            elements[place + row..end].fill(fill);
            end = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_at_the_edges_are_filled() {
        let grid = Grid { shape: vec![3, 5], chunk: vec![2, 3] };
        assert_eq!((grid.count(), grid.largest()), (4, 6));
        let (piece, place) = grid.chunk(3);
        assert_eq!((&piece.bounds[..], &place[..]), (&[2..3, 3..5][..], &[1, 1][..]));
        let mut elements = [1, 2, 0, 0, 0, 0];
        grid.spread(&piece, &mut elements, 9);
        assert_eq!(elements, [1, 2, 9, 9, 9, 9]);
        let (piece, _) = grid.chunk(1);
        let mut elements = [1, 2, 3, 4, 0, 0];
        grid.spread(&piece, &mut elements, 9);
        assert_eq!(elements, [1, 2, 9, 3, 4, 9]);
        // One chunk, longer than the shape.
        let huge = Grid { shape: vec![7], chunk: vec![usize::MAX] };
        assert_eq!((huge.count(), huge.chunk(0).0.bounds[0].clone(), huge.largest()), (1, 0..7, 7));
    }

    proptest! {
        #[test]
        fn every_element_is_in_one_chunk(
            shape in prop::collection::vec(0_usize..6, 1..5),
            chunk in prop::collection::vec(1_usize..5, 4),
        ) {
            let grid = Grid { chunk: chunk[..shape.len()].to_vec(), shape };
            let mut seen = std::collections::BTreeSet::new();
            for number in 0..grid.count() {
                let (piece, _) = grid.chunk(number);
                let mut elements = vec![0_usize; grid.chunk.iter().product()];
                (0..piece.len()).for_each(|i| elements[i] = 1 + i);
                grid.spread(&piece, &mut elements, 0);
                let mut next = 1;
                for (place, element) in elements.into_iter().enumerate() {
                    let mut rest = place;
                    let mut at: Vec<usize> = (0..grid.chunk.len()).rev().map(|axis| {
                        let of = rest % grid.chunk[axis];
                        rest /= grid.chunk[axis];
                        of + piece.bounds[axis].start
                    }).collect();
                    at.reverse();
                    let is_in = piece.bounds.iter().zip(&at).all(|(bounds, at)| bounds.contains(at));
                    prop_assert_eq!(element, if is_in { next } else { 0 });
                    if is_in {
                        next += 1;
                        prop_assert!(seen.insert(at));
                    }
                }
            }
            prop_assert_eq!(seen.len(), grid.shape.iter().product::<usize>());
        }
    }
}

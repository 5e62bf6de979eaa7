//! Copies between a view and a file that stores the elements contiguously (raw or `.npy`).

use std::fs::File;
use std::path::Path;

use vmarray::Element;
use vmarray::bytemuck::{cast_slice, cast_slice_mut};

use crate::data_type::Swaps;
use crate::error::{Result, zeroed};
use crate::files;
use crate::options::FileOptions;
use crate::pieces::{Piece, Pieces, element_count, in_parallel};
use crate::views::{FileView, FileViewMut};

/// The part of a file that contains the elements of a view.
pub(crate) struct FileElements<'a> {
    pub(crate) file: &'a File,
    pub(crate) path: &'a Path,
    /// Byte offset of the first element in the file.
    pub(crate) offset: u64,
    pub(crate) swaps: Swaps,
    /// True if the first axis is contiguous, as in Fortran.
    pub(crate) is_first_fastest: bool,
}

impl FileElements<'_> {
    /// Writes all elements of a view, with the last axis contiguous.
    pub(crate) fn write<V: FileView>(&self, view: V, options: &mut FileOptions<'_>) -> Result<()> {
        let (pieces, total) = self.pieces(view, options);
        let buffer = || zeroed::<V::Element>(pieces.largest());
        in_parallel(pieces.count(), total, self.path, options, buffer, |buffer, number| {
            let piece = pieces.piece(number);
            let elements = &mut buffer[..piece.len()];
            view.read_piece(&piece, elements)?;
            self.swaps.apply(cast_slice_mut(elements));
            files::write_at(self.file, self.path, self.place::<V::Element>(&piece), cast_slice(elements))?;
            Ok(size_of_val(elements) as u64)
        })
    }

    /// Reads all elements into a view. The caller has checked that the file is long enough.
    pub(crate) fn read<V: FileViewMut>(&self, view: V, options: &mut FileOptions<'_>) -> Result<()> {
        let (pieces, total) = self.pieces(view, options);
        let buffer = || {
            let len = pieces.largest();
            let turned = if self.is_first_fastest { len } else { 0 };
            Ok((zeroed::<V::Element>(len)?, zeroed::<V::Element>(turned)?))
        };
        in_parallel(pieces.count(), total, self.path, options, buffer, |(buffer, turned), number| {
            let piece = pieces.piece(number);
            let elements = &mut buffer[..piece.len()];
            files::read_at(self.file, self.path, self.place::<V::Element>(&piece), cast_slice_mut(elements))?;
            self.swaps.apply(cast_slice_mut(elements));
            if self.is_first_fastest {
                let turned = &mut turned[..elements.len()];
                let piece = turn(&piece, elements, turned);
                view.write_piece(&piece, turned)?;
            } else {
                view.write_piece(&piece, elements)?;
            }
            Ok(size_of_val(elements) as u64)
        })
    }

    /// Returns the pieces of a view in file order, and their total length in bytes.
    fn pieces<V: FileView>(&self, view: V, options: &FileOptions<'_>) -> (Pieces, u64) {
        let (mut shape, mut steps) = (view.extents(), view.steps());
        let len = element_count(&shape);
        if self.is_first_fastest {
            shape.reverse();
            steps.reverse();
        }
        let bytes = size_of::<V::Element>();
        (Pieces::new(&shape, &steps, options.piece_bytes / bytes), len as u64 * bytes as u64)
    }

    /// Byte offset of a piece in the file.
    fn place<T: Element>(&self, piece: &Piece) -> u64 {
        self.offset + piece.start.unwrap_or(0) as u64 * size_of::<T>() as u64
    }
}

/// Transposes a piece: copies its elements, which are in reversed axis order, to their positions in `to`.
fn turn<T: Copy>(piece: &Piece, from: &[T], to: &mut [T]) -> Piece {
    let extents: Vec<usize> = piece.bounds.iter().map(ExactSizeIterator::len).collect();
    // For each axis of the file: the distance in `to`, in elements, between adjacent indices.
    let strides: Vec<usize> =
        (0..extents.len()).map(|axis| extents[..axis].iter().product::<usize>()).collect();
    let mut at = vec![0; extents.len()];
    let mut place = 0;
    for &element in from {
        to[place] = element;
        for axis in (0..extents.len()).rev() {
            at[axis] += 1;
            place += strides[axis];
            if at[axis] < extents[axis] {
                break;
            }
            place -= strides[axis] * extents[axis];
            at[axis] = 0;
        }
    }
    let bounds = piece.bounds.iter().rev().cloned().collect();
    Piece { bounds, start: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reversed_axes_are_turned() {
        // Two by three in the file's order, three by two in the view's.
        let piece = Piece { bounds: vec![4..6, 0..3], start: Some(12) };
        let mut turned = [0; 6];
        let of_view = turn(&piece, &[1, 2, 3, 4, 5, 6], &mut turned);
        assert_eq!(of_view, Piece { bounds: vec![0..3, 4..6], start: None });
        assert_eq!(turned, [1, 4, 2, 5, 3, 6]);
    }
}

//! The traits of views that can be exported to files, and of views that can be filled from files.

use std::ops::Range;

use vmarray::device::Device;
use vmarray::nd::{NdLayout, NdSection};
use vmarray::ragged::RaggedRow;
use vmarray::source::{Home, HomeMut};
use vmarray::views::{Section, SharedSection, Store, StoreMut};
use vmarray::{Element, NdArray, Source, VirtualArray, prelude::*};

use crate::pieces::{Piece, element_count};

mod sealed {
    pub trait SealedFileView {}
}

/// A view that can be written to a file: an array or a source (memory of the program on which devices work)
/// of one or several dimensions, a section of an array or source, or the rows of a ragged array.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray_formats::FileView;
/// let image = NdArray::<u8, 2>::new([30, 40])?;
/// assert_eq!(image.section([10, 0]..)?.extents(), [20, 40]);
/// assert_eq!(image.elements().extents(), [1200]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait FileView: sealed::SealedFileView + Copy + Send + Sync {
    /// The element type.
    type Element: Element;

    /// The number of elements along each axis.
    #[must_use]
    fn extents(self) -> Vec<usize>;

    /// The preferred number of elements of pieces along each axis: a page, or a tile.
    #[doc(hidden)]
    fn steps(self) -> Vec<usize> {
        vec![1; self.extents().len()]
    }

    /// The extents of a tile, if the storage is tiled.
    #[doc(hidden)]
    fn tile_extents(self) -> Option<Vec<usize>> {
        None
    }

    /// Copies the elements of a piece to `into`, in row-major order.
    #[doc(hidden)]
    fn read_piece(self, piece: &Piece, into: &mut [Self::Element]) -> vmarray::Result<()>;
}

/// A [`FileView`] into which the elements of a file can be read.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray_formats::{FileViewMut, FileOptions, raw};
/// fn load(view: impl FileViewMut<Element = u8>, path: &std::path::Path) -> vmarray_formats::Result<()> {
///     raw::read(path, .., view, FileOptions::new())
/// }
/// let path = std::env::temp_dir().join(format!("views {}.raw", std::process::id()));
/// std::fs::write(&path, b"abc")?;
/// let array = VirtualArray::<u8>::new(10)?;
/// load(array.section_mut(4..7)?, &path)?;
/// assert_eq!(array.to_vec(3..8)?, b"\0abc\0");
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FileViewMut: FileView {
    /// Copies elements from `from`, in row-major order, to a piece of the view.
    #[doc(hidden)]
    fn write_piece(self, piece: &Piece, from: &[Self::Element]) -> vmarray::Result<()>;
}

/// Returns the index range of a piece of a one-dimensional view.
fn range_of(piece: &Piece) -> Range<usize> {
    piece.bounds[0].clone()
}

/// Returns the box of indices of a piece.
fn box_of<const M: usize>(piece: &Piece) -> Range<[usize; M]> {
    let start = std::array::from_fn(|axis| piece.bounds[axis].start);
    start..std::array::from_fn(|axis| piece.bounds[axis].end)
}

macro_rules! ranges {
    ($([$($parameters:tt)*] $View:ty, of $Element:ty, by |$view:ident| $step:expr;)*) => { $(
        impl<$($parameters)*> sealed::SealedFileView for $View {}

        impl<$($parameters)*> FileView for $View {
            type Element = $Element;

            fn extents(self) -> Vec<usize> {
                vec![View::len(self)]
            }

            fn steps(self) -> Vec<usize> {
                let $view = self;
                vec![$step]
            }

            fn read_piece(self, piece: &Piece, into: &mut [Self::Element]) -> vmarray::Result<()> {
                self.read(range_of(piece).start, into)
            }
        }
    )* };
}
ranges! {
    ['a, T: Element, D: Device] &'a VirtualArray<T, D>, of T, by |array| array.page_len();
    ['a, T: Element, H: Home<T>, D: Device] &'a Source<T, H, D>, of T, by |_source| 1;
    ['a, S: Store, const WRITES: bool] Section<'a, S, WRITES>, of S::Element, by |_section| 1;
    ['a, S: Store] &'a SharedSection<S>, of S::Element, by |_section| 1;
    ['a, T: Element, D: Device] RaggedRow<'a, VirtualArray<T, D>>, of T, by |_row| 1;
}

macro_rules! changed_ranges {
    ($([$($parameters:tt)*] $View:ty;)*) => { $(
        impl<$($parameters)*> FileViewMut for $View {
            fn write_piece(self, piece: &Piece, from: &[Self::Element]) -> vmarray::Result<()> {
                self.write(range_of(piece).start, from)
            }
        }
    )* };
}
changed_ranges! {
    ['a, T: Element, D: Device] &'a VirtualArray<T, D>;
    ['a, T: Element, H: HomeMut<T>, D: Device] &'a Source<T, H, D>;
    ['a, S: StoreMut] Section<'a, S, true>;
    ['a, S: StoreMut] &'a SharedSection<S>;
    ['a, T: Element, D: Device] RaggedRow<'a, VirtualArray<T, D>>;
}

impl<T: Element, const N: usize, D: Device> sealed::SealedFileView for &NdArray<T, N, D> {}

impl<T: Element, const N: usize, D: Device> FileView for &NdArray<T, N, D> {
    type Element = T;

    fn extents(self) -> Vec<usize> {
        self.shape().to_vec()
    }

    fn steps(self) -> Vec<usize> {
        self.tile_extents().unwrap_or_else(|| {
            // For each axis, prefer the smallest number of indices whose elements fill at least a page.
            let rows = |axis: usize| element_count(&self.shape()[axis + 1..]).max(1);
            (0..N).map(|axis| self.elements().page_len().div_ceil(rows(axis))).collect()
        })
    }

    fn tile_extents(self) -> Option<Vec<usize>> {
        match self.layout() {
            NdLayout::Tiled(extent) => Some(extent.to_vec()),
            _ => None,
        }
    }

    fn read_piece(self, piece: &Piece, into: &mut [T]) -> vmarray::Result<()> {
        match (self.layout(), piece.start) {
            // Read a contiguous range directly, because long ranges bypass the array's cache.
            (NdLayout::RowMajor, Some(start)) => self.elements().read(start, into),
            _ => self.read_box(box_of(piece), into),
        }
    }
}

impl<T: Element, const N: usize, D: Device> FileViewMut for &NdArray<T, N, D> {
    fn write_piece(self, piece: &Piece, from: &[T]) -> vmarray::Result<()> {
        match (self.layout(), piece.start) {
            (NdLayout::RowMajor, Some(start)) => self.elements().write(start, from),
            _ => self.write_box(box_of(piece), from),
        }
    }
}

impl<S: Store, const N: usize, const M: usize, const WRITES: bool> sealed::SealedFileView
    for NdSection<'_, S, N, M, WRITES>
{
}

impl<S: Store, const N: usize, const M: usize, const WRITES: bool> FileView
    for NdSection<'_, S, N, M, WRITES>
{
    type Element = S::Element;

    fn extents(self) -> Vec<usize> {
        self.shape().to_vec()
    }

    fn read_piece(self, piece: &Piece, into: &mut [S::Element]) -> vmarray::Result<()> {
        self.read_box(box_of(piece), into)
    }
}

impl<S: StoreMut, const N: usize, const M: usize> FileViewMut for NdSection<'_, S, N, M, true> {
    fn write_piece(self, piece: &Piece, from: &[S::Element]) -> vmarray::Result<()> {
        self.write_box(box_of(piece), from)
    }
}

//! What views of N-dimensional data are built on.

use backend_api::Device;

use super::copy::{self, BoxPlaces, FromPlaces};
use super::shape::{Positions, check_extent};
use super::{NdArray, NdSection, NdSectionMut, NdView as _, segments};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::view::{View as _, ViewMut as _};

/// Neighbours along one axis of a [`Grid`], and where they go along the same axis of memory.
///
/// ```
/// let segment = vmarray::boundary::Segment { start: 5, len: 2, place: 0 };
/// assert_eq!(segment.start + segment.len, 7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The index of the first.
    pub start: usize,
    /// How many there are.
    pub len: usize,
    /// Where the first goes.
    pub place: usize,
}

/// Elements that are read by position: what a [`BoundaryView`](crate::boundary::BoundaryView) can be a view
/// of.
///
/// Arrays, of one dimension or more, and their sections are grids, and so are references to grids. Positions
/// have the slowest axis first.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::{Grid, NdArray, VirtualArray};
/// fn corner<G: Grid<2>>(grid: G) -> vmarray::Result<G::Element> {
///     grid.element([0, 0])
/// }
/// let image = NdArray::<u8, 2>::new([4, 5])?;
/// image.set([1, 1], 3)?;
/// assert_eq!(corner(&image)?, 0);
/// assert_eq!(corner(image.section([1, 1]..)?)?, 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Grid<const N: usize> {
    /// What the elements are.
    type Element: Element;

    /// The extents along each axis.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::Grid;
    /// assert_eq!(vmarray::NdArray::<u8, 2>::new([4, 5])?.extents(), [4, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn extents(&self) -> [usize; N];

    /// Reads an element.
    ///
    /// # Errors
    /// As [`NdArray::get`].
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::Grid;
    /// assert_eq!(vmarray::NdArray::<u8, 2>::new([4, 5])?.element([3, 4])?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn element(&self, at: [usize; N]) -> Result<Self::Element>;

    /// Copies the box of an extent at a start into a slice: the element at `[i, j, …]` of the box to place
    /// `i * strides[0] + j * strides[1] + …`. Other places stay as they are.
    ///
    /// # Errors
    /// As [`NdView::read_box`](crate::NdView::read_box); a slice that is too short is a
    /// [`LengthMismatch`](crate::ErrorKind::LengthMismatch).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::{Grid, NdArray};
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.write_box([0, 0]..[2, 2], &[1, 2, 3, 4])?;
    /// let mut buffer = [9; 6];
    /// image.read_strided([0, 0], [2, 2], [3, 1], &mut buffer)?;
    /// assert_eq!(buffer, [1, 2, 9, 3, 4, 9]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn read_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        into: &mut [Self::Element],
    ) -> Result<()>;

    /// Copies what several boxes have into one slice: those of all combinations of one segment an axis. An
    /// element goes to the place that the sum of its places along all axes, times `strides`, says.
    ///
    /// The segments of an axis ascend and do not overlap. Arrays visit each page once for all of them.
    ///
    /// # Errors
    /// As [`read_strided`](Self::read_strided).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::boundary::Segment;
    /// use vmarray::{Grid, VirtualArray};
    /// let array = VirtualArray::<u8>::new(9)?;
    /// array.write(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9])?;
    /// let ends = [Segment { start: 0, len: 2, place: 2 }, Segment { start: 7, len: 2, place: 0 }];
    /// let mut buffer = [0; 4];
    /// array.read_segments([&ends], [1], &mut buffer)?;
    /// assert_eq!(buffer, [8, 9, 1, 2]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn read_segments(
        &self,
        segments: [&[Segment]; N],
        strides: [usize; N],
        into: &mut [Self::Element],
    ) -> Result<()> {
        for at in Positions::new([0; N]..segments.map(<[Segment]>::len)) {
            let one: [Segment; N] = std::array::from_fn(|axis| segments[axis][at[axis]]);
            let first = (0..N)
                .fold(0_usize, |sum, axis| sum.saturating_add(one[axis].place.saturating_mul(strides[axis])));
            let got = into.len();
            let into = into.get_mut(first..).ok_or(ErrorKind::LengthMismatch {
                of: "the strided slice",
                expected: first,
                got,
            })?;
            self.read_strided(one.map(|s| s.start), one.map(|s| s.len), strides, into)?;
        }
        Ok(())
    }

    /// Starts to fetch what a box has, and returns without waiting.
    ///
    /// # Errors
    /// As [`View::prefetch`](crate::View::prefetch).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::Grid;
    /// vmarray::NdArray::<u8, 2>::new([4, 5])?.fetch_ahead([1, 1], [2, 2])?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn fetch_ahead(&self, start: [usize; N], extent: [usize; N]) -> Result<()>;
}

/// A [`Grid`] whose elements can be written, by any number of threads.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::{GridMut, VirtualArray};
/// fn zero<G: GridMut<1>>(grid: G, at: usize) -> vmarray::Result<()> {
///     grid.set_element([at], bytemuck::Zeroable::zeroed())
/// }
/// let array = VirtualArray::<u32>::new(10)?;
/// array.fill(.., 5)?;
/// zero(&array, 3)?;
/// assert_eq!(array.get(3)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait GridMut<const N: usize>: Grid<N> {
    /// Writes an element.
    ///
    /// # Errors
    /// As [`NdArray::set`].
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::{Grid, GridMut, NdArray};
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.set_element([1, 1], 2)?;
    /// assert_eq!(image.element([1, 1])?, 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn set_element(&self, at: [usize; N], value: Self::Element) -> Result<()>;

    /// Copies places of a slice to the box of an extent at a start; as [`Grid::read_strided`], the other way
    /// about.
    ///
    /// # Errors
    /// As [`NdViewMut::write_box`](crate::NdViewMut::write_box); a slice that is too short is a
    /// [`LengthMismatch`](crate::ErrorKind::LengthMismatch).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::{GridMut, NdArray};
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.write_strided([0, 0], [2, 2], [3, 1], &[1, 2, 9, 3, 4, 9])?;
    /// assert_eq!(image.to_vec(..[2, 2])?, [1, 2, 3, 4]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn write_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        from: &[Self::Element],
    ) -> Result<()>;
}

/// The methods of a [`Grid`] of so many axes by those of another one.
macro_rules! forward_reads {
    ($self:ident => $other:expr, $axes:tt) => {
        fn extents(&$self) -> [usize; $axes] {
            $other.extents()
        }

        #[inline(always)]
        fn element(&$self, at: [usize; $axes]) -> Result<Self::Element> {
            $other.element(at)
        }

        fn read_strided(
            &$self,
            start: [usize; $axes],
            extent: [usize; $axes],
            strides: [usize; $axes],
            into: &mut [Self::Element],
        ) -> Result<()> {
            $other.read_strided(start, extent, strides, into)
        }

        fn read_segments(
            &$self,
            segments: [&[Segment]; $axes],
            strides: [usize; $axes],
            into: &mut [Self::Element],
        ) -> Result<()> {
            $other.read_segments(segments, strides, into)
        }

        fn fetch_ahead(&$self, start: [usize; $axes], extent: [usize; $axes]) -> Result<()> {
            $other.fetch_ahead(start, extent)
        }
    };
}

impl<const N: usize, G: Grid<N> + ?Sized> Grid<N> for &G {
    type Element = G::Element;

    forward_reads!(self => **self, N);
}

impl<const N: usize, G: GridMut<N> + ?Sized> GridMut<N> for &G {
    #[inline(always)]
    fn set_element(&self, at: [usize; N], value: Self::Element) -> Result<()> {
        (**self).set_element(at, value)
    }

    fn write_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        from: &[Self::Element],
    ) -> Result<()> {
        (**self).write_strided(start, extent, strides, from)
    }
}

impl<T: Element, const N: usize, D: Device> Grid<N> for NdArray<T, N, D> {
    type Element = T;

    fn extents(&self) -> [usize; N] {
        self.shape()
    }

    #[inline(always)]
    fn element(&self, at: [usize; N]) -> Result<T> {
        self.get(at)
    }

    fn read_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        into: &mut [T],
    ) -> Result<()> {
        let of = check_extent(&self.shape(), start, extent)?;
        copy::read(&self.elements, &self.geometry, &of, BoxPlaces::strided(&extent, strides, into)?)
    }

    fn read_segments(&self, segments: [&[Segment]; N], strides: [usize; N], into: &mut [T]) -> Result<()> {
        segments::read(&self.elements, &self.geometry, segments.map(<[Segment]>::to_vec), &strides, into)
    }

    fn fetch_ahead(&self, start: [usize; N], extent: [usize; N]) -> Result<()> {
        self.prefetch(check_extent(&self.shape(), start, extent)?)
    }
}

impl<T: Element, const N: usize, D: Device> GridMut<N> for NdArray<T, N, D> {
    #[inline(always)]
    fn set_element(&self, at: [usize; N], value: T) -> Result<()> {
        self.set(at, value)
    }

    fn write_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        from: &[T],
    ) -> Result<()> {
        let of = check_extent(&self.shape(), start, extent)?;
        copy::write(&self.elements, &self.geometry, &of, FromPlaces::strided(&extent, strides, from)?)
    }
}

impl<T: Element, const N: usize, const M: usize, const W: bool, D: Device> Grid<M>
    for NdSection<'_, VirtualArray<T, D>, N, M, W>
{
    type Element = T;

    fn extents(&self) -> [usize; M] {
        self.shape()
    }

    #[inline(always)]
    fn element(&self, at: [usize; M]) -> Result<T> {
        self.get(at)
    }

    fn read_strided(
        &self,
        start: [usize; M],
        extent: [usize; M],
        strides: [usize; M],
        into: &mut [T],
    ) -> Result<()> {
        self.read_places(&check_extent(&self.shape(), start, extent)?, strides, into)
    }

    fn read_segments(&self, segments: [&[Segment]; M], strides: [usize; M], into: &mut [T]) -> Result<()> {
        self.read_segments_of(segments, &strides, into)
    }

    fn fetch_ahead(&self, start: [usize; M], extent: [usize; M]) -> Result<()> {
        self.prefetch(check_extent(&self.shape(), start, extent)?)
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> GridMut<M>
    for NdSectionMut<'_, VirtualArray<T, D>, N, M>
{
    #[inline(always)]
    fn set_element(&self, at: [usize; M], value: T) -> Result<()> {
        self.set(at, value)
    }

    fn write_strided(
        &self,
        start: [usize; M],
        extent: [usize; M],
        strides: [usize; M],
        from: &[T],
    ) -> Result<()> {
        self.write_places(&check_extent(&self.shape(), start, extent)?, strides, from)
    }
}

//! [`NdArray`]: arrays of several dimensions.

#[forbid(unsafe_code)]
mod builder;
#[forbid(unsafe_code)]
mod copy;
#[forbid(unsafe_code)]
mod geometry;
#[cfg(feature = "ndarray")]
#[forbid(unsafe_code)]
mod interchange;
#[forbid(unsafe_code)]
mod pieces;
#[forbid(unsafe_code)]
mod region;
#[forbid(unsafe_code)]
mod section;
#[forbid(unsafe_code)]
mod sets;
#[forbid(unsafe_code)]
mod shape;
mod sort;
#[cfg(feature = "host")]
#[forbid(unsafe_code)]
mod stored;
#[forbid(unsafe_code)]
mod tile;
#[forbid(unsafe_code)]
mod tiles;
#[forbid(unsafe_code)]
mod view;

use std::fmt;
use std::ops::{Range, RangeBounds};

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::sealed::{Internal, Sealed};
use crate::ops::view::{View, ViewMut};
use crate::setup::any::AnyDevice;

pub use builder::NdBuilder;
pub use geometry::NdLayout;
pub use region::NdShape;
pub use section::{NdSection, NdSectionMut};
pub use tile::{Tile, TileMut, TileRef};
pub use tiles::Tiles;
pub use view::{NdView, NdViewMut};

pub(crate) use geometry::LayoutGeometry;
pub(crate) use pieces::Segment;
pub(crate) use shape::{Positions, element_count, position_outside, strides, volume};

/// An array of `N` dimensions that may be larger than RAM. Any number of threads access elements by position.
///
/// A [`VirtualArray`] stores the elements in the order of the [layout](NdLayout): row-major, or tiled with
/// one tile per page. Consistency, cost and locks are as in `VirtualArray`. In a position such as
/// `[row, column]`, the slowest axis is first. A box is a range of positions, `[top, left]..[bottom, right]`,
/// half open along each axis.
///
/// # Access
///
/// | task | methods |
/// |---|---|
/// | one element | [`get`](crate::views::View::get), [`set`](crate::views::ViewMut::set), [`replace`](crate::views::ViewMut::replace), [`update`](crate::views::ViewMut::update) |
/// | boxes | [`read_box`](crate::nd::NdView::read_box), [`write_box`](crate::nd::NdViewMut::write_box), [`to_vec`](crate::views::View::to_vec), [`fill`](crate::views::ViewMut::fill) |
/// | views | [`section`](crate::views::View::section), [`section_mut`](crate::views::ViewMut::section_mut), [`project`](crate::nd::NdView::project), [`bounded`](crate::boundary::Bounded::bounded) |
/// | tiles | [`tiles`](Self::tiles), [`for_each_tile`](Self::for_each_tile), [`tile`](Self::tile), [`tile_mut`](Self::tile_mut) |
/// | on the devices | [`find`](crate::views::View::find), [`find_first`](crate::views::View::find_first), [`count`](crate::views::View::count), [`fill`](crate::views::ViewMut::fill) |
/// | with expressions | [`count_where`](crate::views::Query::count_where), [`find_where`](crate::views::Query::find_where), [`select_where`](crate::views::Select::select_where), [`any`](crate::views::Query::any), [`all`](crate::views::Query::all), [`sum`](crate::views::Query::sum), [`arg_min`](crate::views::Query::arg_min), [`histogram`](crate::views::Query::histogram), [`transform`](crate::views::QueryMut::transform), [`assign_where`](crate::views::QueryMut::assign_where), [`coordinate`](crate::nd::NdView::coordinate) |
/// | along an axis | [`sum_axis`](crate::nd::NdView::sum_axis), [`min_axis`](crate::nd::NdView::min_axis), [`max_axis`](crate::nd::NdView::max_axis), [`min_axis_or_nan`](crate::nd::NdView::min_axis_or_nan), [`max_axis_or_nan`](crate::nd::NdView::max_axis_or_nan), [`arg_min_axis`](crate::nd::NdView::arg_min_axis), [`arg_max_axis`](crate::nd::NdView::arg_max_axis), [`count_axis`](crate::nd::NdView::count_axis), [`accumulate_axis`](crate::nd::NdView::accumulate_axis), [`prefix_sum_axis`](crate::nd::NdViewMut::prefix_sum_axis) |
/// | other tasks | [`elements`](Self::elements), with [`index_of`](Self::index_of) and [`element_ranges`](Self::element_ranges) |
///
/// # Example
///
/// ```
/// use vmarray::{nd::NdLayout, prelude::*};
/// let image = NdArray::<f32, 2>::builder([480, 640]).tiled().build()?;
/// image.set([10, 20], 0.5)?;
/// let mut block = [0.0; 4 * 4];
/// image.read_box([8, 18]..[12, 22], &mut block)?;
/// assert_eq!(block[2 * 4 + 2], 0.5);
///
/// // In order of storage, and in place.
/// assert_eq!((image.layout(), image.tiles().len()), (NdLayout::Tiled([128, 128]), 20));
/// let index = image.index_of([10, 20])?;
/// assert_eq!((image.elements().get(index)?, image.position_of(index)), (0.5, Some([10, 20])));
/// image.tile_mut([3, 0])?.row_mut([1]).fill(1.0);
/// assert_eq!((image.get([385, 127])?, image.get([385, 128])?), (1.0, 0.0));
///
/// let matrix = NdArray::from_elements(VirtualArray::<u32>::new(12)?, [3, 4])?;
/// assert_eq!((matrix.shape(), NdArray::<u8, 3>::new([16, 32, 64])?.len()), ([3, 4], 32_768));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct NdArray<T: Element, const N: usize, D: Device = AnyDevice> {
    elements: VirtualArray<T, D>,
    geometry: LayoutGeometry<N>,
}

impl<T: Element, const N: usize> NdArray<T, N> {
    /// Creates a row-major array of this shape on the [machine's devices](crate::devices), with defaults.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::build`].
    pub fn new(shape: [usize; N]) -> Result<Self> {
        Self::builder(shape).build()
    }
}

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// Creates an array of this shape from the elements of `elements`, in row-major order, without a copy.
    ///
    /// # Errors
    /// [`ShapeMismatch`](ErrorKind::ShapeMismatch) if the shape has more or fewer elements,
    /// [`ShapeOverflow`](ErrorKind::ShapeOverflow) if the number of elements overflows.
    pub fn from_elements(elements: VirtualArray<T, D>, shape: [usize; N]) -> Result<Self> {
        let geometry = LayoutGeometry::row_major(shape, elements.len())?;
        Ok(Self { elements, geometry })
    }

    /// Returns the storage layout of the elements: row-major or tiled.
    #[must_use]
    pub fn layout(&self) -> NdLayout<N> {
        self.geometry.layout()
    }

    /// Returns the one-dimensional array that stores the elements, for operations without positions, such as
    /// statistics, flushes and evictions. In a tiled array this array may contain padding, which must stay
    /// zero, because counts on devices rely on this. To write by index, use
    /// [`element_ranges`](Self::element_ranges).
    #[must_use]
    pub fn elements(&self) -> &VirtualArray<T, D> {
        &self.elements
    }

    /// Returns the index in [`elements`](Self::elements) of the element at a position.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside) for a position outside of the shape.
    #[inline]
    pub fn index_of(&self, at: [usize; N]) -> Result<usize> {
        shape::check_position(&self.geometry.shape, &at)?;
        Ok(self.geometry.index_of(&at))
    }

    /// Returns the position of the element at an index of [`elements`](Self::elements); `None` for padding
    /// and for indices outside.
    #[must_use]
    pub fn position_of(&self, index: usize) -> Option<[usize; N]> {
        self.geometry.position_of(index)
    }

    /// Returns the elements of a box as ascending ranges of indices in [`elements`](Self::elements); adjacent
    /// ranges are merged.
    ///
    /// Use these ranges to apply operations of a [`VirtualArray`] on ranges to a box.
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.element_ranges([1, 1]..[3, 3])?.collect::<Vec<_>>(), [6..8, 11..13]);
    /// assert_eq!(image.element_ranges([1, 0]..[3, 5])?.collect::<Vec<_>>(), [5..15]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn element_ranges<B: RangeBounds<[usize; N]>>(
        &self,
        bounds: B,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<T, N, D, B>> {
        let of = shape::check_box(&self.geometry.shape, bounds)?;
        Ok(geometry::merged(self.geometry.ranges(&of)))
    }

    /// Returns the storage index of the element at a position, which must be inside of the shape.
    #[inline(always)]
    fn place_of(&self, at: &[usize; N]) -> usize {
        let index = self.geometry.index_of(at);
        debug_assert!(index < self.elements.len());
        index
    }
}

impl<'a, T: Element, const N: usize, D: Device> View<'a> for &'a NdArray<T, N, D> {
    type Element = T;
    type Index = [usize; N];
    type Store = VirtualArray<T, D>;
    type Shape = NdShape<N>;
    type Section = NdSection<'a, Self::Store, N>;

    #[inline(always)]
    fn parts(self) -> (&'a Self::Store, NdShape<N>) {
        (&self.elements, NdShape::whole(self.geometry))
    }

    #[inline]
    fn get(self, at: [usize; N]) -> Result<T> {
        shape::check_position(&self.geometry.shape, &at)?;
        self.elements.get(self.place_of(&at))
    }

    fn of_parts(store: &'a Self::Store, shape: NdShape<N>, _: Internal) -> Self::Section {
        NdSection::new(store, shape)
    }
}

impl<'a, T: Element, const N: usize, D: Device> ViewMut<'a> for &'a NdArray<T, N, D> {
    type SectionMut = NdSectionMut<'a, Self::Store, N>;

    #[inline]
    fn set(self, at: [usize; N], value: T) -> Result<()> {
        shape::check_position(&self.geometry.shape, &at)?;
        self.elements.set(self.place_of(&at), value)
    }

    fn of_parts_mut(store: &'a Self::Store, shape: NdShape<N>, _: Internal) -> Self::SectionMut {
        NdSection::new(store, shape)
    }
}

impl<T: Element, const N: usize, D: Device> Sealed for &NdArray<T, N, D> {}

/// Converts to the array of elements in order of storage, without the shape.
impl<T: Element, const N: usize, D: Device> From<NdArray<T, N, D>> for VirtualArray<T, D> {
    fn from(array: NdArray<T, N, D>) -> Self {
        array.elements
    }
}

impl<T: Element, const N: usize, D: Device> fmt::Debug for NdArray<T, N, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NdArray")
            .field("shape", &self.geometry.shape)
            .field("layout", &self.layout())
            .field("elements", &self.elements)
            .finish()
    }
}

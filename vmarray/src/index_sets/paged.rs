//! [`PagedIndexSet`]: an index set with its tuples in a [`VirtualArray`], so it may be larger than RAM.

use std::ops::RangeBounds;

use backend_api::Device;

use super::{Dimension, IndexSet, Tuples, distinct, whole_tuples};
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::executor::OperandStore;
use crate::ops::view::{View as _, ViewMut as _};
use crate::setup::any::AnyDevice;

/// An index set whose tuples are stored in a [`VirtualArray`], one after the other, so it may exceed RAM.
///
/// Any number of threads may use the set at once. A tuple may span two pages. A read of a tuple is then
/// atomic for each page, not for the whole tuple, as in all operations on ranges. The trait [`Tuples`]
/// provides the labels and the length.
///
/// ```
/// use vmarray::{prelude::*, IndexSet};
/// use vmarray::index_set::{Combine, PagedIndexSet, Tuples};
/// let a = IndexSet::from_rows([0, 1], [[0, 5], [1, 6]])?;
/// let paged = PagedIndexSet::from_index_set(&a, |array| array.page_len(64))?;
/// let b = IndexSet::from_rows([1], [[6]])?;
/// assert_eq!(Combine::new(&paged, &b).run()?.to_index_set()?.values(), [1, 6]);
/// paged.array().set(2, 9)?;
/// assert_eq!(paged.to_index_set(1..)?.values(), [9, 6]);
/// let same = PagedIndexSet::new([4, 2], paged.into_array())?;
/// assert_eq!((same.dimensions(), same.len()), (&[4, 2][..], 2));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct PagedIndexSet<D: Device = AnyDevice> {
    dimensions: Vec<Dimension>,
    array: VirtualArray<u64, D>,
    len: usize,
}

impl<D: Device> PagedIndexSet<D> {
    /// Creates a set from the elements of an array, tuple after tuple, without a copy.
    ///
    /// # Errors
    /// [`DuplicateDimension`](crate::ErrorKind::DuplicateDimension);
    /// [`RaggedTuple`](crate::ErrorKind::RaggedTuple) if the last tuple is incomplete, or if the array has
    /// elements but there are no dimensions.
    pub fn new(dimensions: impl IntoIterator<Item = Dimension>, array: VirtualArray<u64, D>) -> Result<Self> {
        let dimensions = distinct(dimensions)?;
        let len = whole_tuples(array.len(), dimensions.len())?;
        Ok(Self { dimensions, array, len })
    }

    /// Creates a set from parts that the caller has checked.
    pub(super) fn assemble(dimensions: Vec<Dimension>, array: VirtualArray<u64, D>, len: usize) -> Self {
        debug_assert_eq!(array.len(), len * dimensions.len());
        Self { dimensions, array, len }
    }

    /// Copies an index set to a new array. The closure `describe` gets the array's builder, and may set its
    /// devices and its cache.
    ///
    /// # Errors
    /// The errors of [`Builder::build`] and [`ViewMut::write`](crate::views::ViewMut::write).
    pub fn from_index_set(
        set: &IndexSet,
        describe: impl FnOnce(Builder<u64, AnyDevice>) -> Builder<u64, D>,
    ) -> Result<Self> {
        let array = describe(VirtualArray::builder(set.values().len())).build()?;
        array.write(0, set.values())?;
        Ok(Self::assemble(set.dimensions().to_vec(), array, set.len()))
    }

    /// Returns the array that stores the values, tuple after tuple.
    #[must_use]
    pub fn array(&self) -> &VirtualArray<u64, D> {
        &self.array
    }

    /// Converts the set into the array that stores its values, without a copy.
    #[must_use]
    pub fn into_array(self) -> VirtualArray<u64, D> {
        self.array
    }

    /// Copies consecutive tuples to RAM; `tuples` is the range of their numbers.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside) and
    /// [`RangeReversed`](crate::ErrorKind::RangeReversed), whose numbers count tuples;
    /// [`NoMemory`](crate::ErrorKind::NoMemory); errors of [`View::read`](crate::views::View::read).
    pub fn to_index_set(&self, tuples: impl RangeBounds<usize>) -> Result<IndexSet> {
        let tuples = crate::array::range::checked(tuples, self.len)?;
        let width = self.dimensions.len();
        let mut values = zeroed_vec(tuples.len() * width)?;
        self.array.read(tuples.start * width, &mut values)?;
        Ok(IndexSet::assemble(self.dimensions.clone(), values, tuples.len()))
    }
}

impl<D: Device> Tuples for PagedIndexSet<D> {
    fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read_tuples(&self, first: usize, into: &mut [u64]) -> Result<()> {
        self.array.read(first * self.dimensions.len(), into)
    }

    fn in_array(&self) -> Option<&dyn OperandStore> {
        Some(&self.array)
    }
}

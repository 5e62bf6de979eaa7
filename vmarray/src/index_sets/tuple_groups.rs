//! [`TupleGroups`]: the tuples of an index set, grouped by equal values in some dimensions.

use backend_api::Device;

use super::{Dimension, PagedIndexSet, Tuples as _, distinct, on_devices};
use crate::array::VirtualArray;
use crate::base::error::{ErrorKind, Result};
use crate::ops::order::Groups;
use crate::setup::any::AnyDevice;

/// The tuples of a [`PagedIndexSet`], grouped by equal values in some dimensions; the result of
/// [`group_by`](PagedIndexSet::group_by).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::{IndexSet, index_set::{PagedIndexSet, Tuples}};
/// let set = IndexSet::from_rows([4, 0, 9], [[1, 7, 10], [1, 3, 20], [1, 7, 30], [0, 8, 5]])?;
/// let paged = PagedIndexSet::from_index_set(&set, |array| array)?;
/// let groups = paged.group_by([4, 0])?;
/// assert_eq!(groups.tuples().dimensions(), [4, 0]);
/// assert_eq!(groups.tuples().to_index_set(..)?.values(), [0, 8, 1, 3, 1, 7]);
/// assert_eq!(groups.by_number().counts()?.to_vec(..)?, [1, 1, 2]);
/// assert_eq!(groups.by_number().sum(&paged.column(9)?)?.to_vec(..)?, [5, 20, 40]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct TupleGroups<D: Device = AnyDevice> {
    tuples: PagedIndexSet<D>,
    groups: Groups<u64, D>,
}

impl<D: Device> TupleGroups<D> {
    /// Returns the keys of the groups: for each group, the values that its tuples have in common. The keys
    /// are in lexicographic order of the given dimensions.
    #[must_use]
    pub fn tuples(&self) -> &PagedIndexSet<D> {
        &self.tuples
    }

    /// Returns the groups, numbered in the order of their keys in [`tuples`](Self::tuples). Use them for
    /// counts, for sums of [columns](PagedIndexSet::column), and for the indices of each group's tuples.
    #[must_use]
    pub fn by_number(&self) -> &Groups<u64, D> {
        &self.groups
    }
}

impl<D: Device> PagedIndexSet<D> {
    /// Returns the values of one dimension in a new array on the same devices, in the order of the tuples.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension); errors of devices, and of [building
    /// arrays](crate::Builder::build).
    ///
    /// ```
    /// use vmarray::{IndexSet, index_set::PagedIndexSet, prelude::*};
    /// let set = IndexSet::from_rows([4, 0], [[1, 7], [2, 8]])?;
    /// let paged = PagedIndexSet::from_index_set(&set, |array| array)?;
    /// assert_eq!(paged.column(0)?.to_vec(..)?, [7, 8]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn column(&self, dimension: Dimension) -> Result<VirtualArray<u64, D>> {
        on_devices::column(self, self.position(dimension)?)
    }

    /// Sorts the tuples by `dimensions` on the devices that store them. Tuples with equal values in all of
    /// these dimensions form a group. Needs 24 bytes of device memory a tuple during the call, 16 afterwards.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension),
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension); [`TooLong`](ErrorKind::TooLong) for more
    /// than 2^32 - 2 tuples; errors of devices, and of [building arrays](crate::Builder::build).
    ///
    /// ```
    /// use vmarray::{IndexSet, index_set::PagedIndexSet, prelude::*};
    /// let set = IndexSet::from_rows([4, 0], [[1, 7], [2, 8], [1, 9]])?;
    /// let groups = PagedIndexSet::from_index_set(&set, |array| array)?.group_by([4])?;
    /// assert_eq!(groups.by_number().counts()?.to_vec(..)?, [2, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn group_by(&self, dimensions: impl IntoIterator<Item = Dimension>) -> Result<TupleGroups<D>> {
        let dimensions = distinct(dimensions)?;
        let keys = dimensions.iter().map(|label| self.position(*label)).collect::<Result<Vec<_>>>()?;
        let (tuples, groups) = on_devices::group_by(self, dimensions, &keys)?;
        Ok(TupleGroups { tuples, groups })
    }

    fn position(&self, dimension: Dimension) -> Result<usize> {
        let place = self.dimensions().iter().position(|label| *label == dimension);
        place.ok_or_else(|| ErrorKind::UnknownDimension { dimension }.into())
    }
}

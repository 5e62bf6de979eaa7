//! The natural join of two index sets: pairs of tuples with equal values in the common dimensions.

use std::fmt;

use backend_api::Device;

use super::combination::Combination;
use super::engine::JoinLimits;
use super::merge::Merge;
use super::{PagedIndexSet, Tuples, distinct, on_devices};
use crate::array::VirtualArray;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::base::scoped_threads;
use crate::ops::sort::is_unsupported;

/// A natural join of two sets of tuples: each pair of tuples with equal values in the common dimensions
/// becomes one tuple over the union of the dimensions.
///
/// | setting | default |
/// |---|---|
/// | [`threads`](Self::threads) | the number of cores that the process may use |
/// | [`memory_bytes`](Self::memory_bytes) | no bound if both sets are in RAM, 1 GiB otherwise |
///
/// # Order
///
/// A result has all dimensions of the first set, in its order. The dimensions that only the second set has
/// follow in the order of the second set. Results have the order of nested loops: by the tuple of the first
/// set, then by the tuple of the second set. The order depends on neither the threads nor the values. If the
/// second set exceeds the memory bound, the join divides it into blocks of consecutive tuples. All results of
/// a block then precede the results of the next one.
///
/// The join keeps duplicates. For example, if equal tuples occur twice in one set and three times in the
/// other set, the result contains six equal tuples.
///
/// # Cost
///
/// The join groups the second set in RAM by the common values. These groups take about 100 bytes per tuple,
/// plus a copy of the values that go into results. The first set takes 24 bytes per tuple during the
/// look-ups, and 8 bytes afterwards. [`run`](Self::run) counts the results; the methods of [`Combination`]
/// write them. If the order of results does not matter, pass the smaller set as the second one.
///
/// The join processes sources that exceed the memory bound in pieces. For each block of the second source it
/// reads the first source twice: once to count, and once to write.
///
/// Scoped threads share the work, and end before the call returns. If the calling thread holds page guards,
/// it works alone, and the call returns [`WouldDeadlock`](ErrorKind::WouldDeadlock) if it would have to wait
/// for a page. The hash function has no secret key: an attacker who chooses the values can make the join
/// slow, but not wrong.
///
/// ```
/// use vmarray::{index_set::Combine, IndexSet};
/// let a = IndexSet::from_rows([1, 2, 3], [[2, 0, 1]])?;
/// let b = IndexSet::from_rows([1, 4, 5], [[2, 4, 7]])?;
/// let merged = Combine::new(&a, &b).threads(1).memory_bytes(256 << 10).run()?;
/// assert_eq!((merged.len(), merged.dimensions()), (1, &[1, 2, 3, 4, 5][..]));
/// assert_eq!(merged.to_index_set()?.values(), [2, 0, 1, 4, 7]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "describes an operation; `run` runs it"]
pub struct Combine<'a, A: ?Sized, B: ?Sized> {
    a: &'a A,
    b: &'a B,
    is_product: bool,
    threads: Option<usize>,
    memory_bytes: Option<usize>,
}

impl<A: ?Sized, B: ?Sized> fmt::Debug for Combine<'_, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, memory_bytes, is_product, .. } = self;
        f.debug_struct("Combine")
            .field("is_product", is_product)
            .field("threads", threads)
            .field("memory_bytes", memory_bytes)
            .finish_non_exhaustive()
    }
}

impl<'a, A: Tuples + ?Sized, B: Tuples + ?Sized> Combine<'a, A, B> {
    /// Creates a join on the dimensions that both sets have.
    pub fn new(a: &'a A, b: &'a B) -> Self {
        Self { a, b, is_product: false, threads: None, memory_bytes: None }
    }

    /// Creates the product of two sets without a common dimension: all pairs of tuples.
    ///
    /// ```
    /// use vmarray::{index_set::Combine, IndexSet};
    /// let a = IndexSet::from_rows([0], [[1], [2]])?;
    /// let b = IndexSet::from_rows([1], [[3], [4]])?;
    /// let pairs = Combine::product(&a, &b).run()?;
    /// assert_eq!(pairs.to_index_set()?.values(), [1, 3, 1, 4, 2, 3, 2, 4]);
    /// assert!(Combine::product(&a, &a).run().is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn product(a: &'a A, b: &'a B) -> Self {
        Self { is_product: true, ..Self::new(a, b) }
    }

    /// Sets the number of threads of the join, including the calling one; 0 counts as 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets an approximate limit in bytes for the RAM of the join's index structures and of the loaded parts
    /// of the two sets. The limit does not include the results.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Finds and counts the result tuples, without writing them.
    ///
    /// # Errors
    /// [`NoCommonDimension`](ErrorKind::NoCommonDimension), or
    /// [`CommonDimension`](ErrorKind::CommonDimension) for a product;
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if a set has a label twice;
    /// [`TooLong`](ErrorKind::TooLong) if the number of results overflows; [`NoMemory`](ErrorKind::NoMemory);
    /// errors of reads of the sets.
    pub fn run(self) -> Result<Combination<'a, A, B>> {
        let merge = self.merge()?;
        self.found(merge)
    }

    /// Computes the join on the devices of `array`, and writes the results to a new array with the same
    /// devices and page length. The call does not use the elements of `array`. If both sets are in arrays
    /// that share the handle of one GPU, the GPU reads them in place, without a copy through the host. This
    /// needs 20 bytes of memory per tuple of the first set, 24 per tuple of the second, and up to 128 MiB.
    ///
    /// If a set is elsewhere, such as in a file or in RAM, the call copies it to the devices in parts. Then
    /// [`memory_bytes`](Self::memory_bytes) limits the device memory, and the [order](Self#order) of results
    /// is by blocks. Each device has a copy of the join's index. In three cases the host computes the join:
    /// there is no GPU, the sets do not fit into the memory of the GPUs, or the second set has more than 64
    /// dimensions; see [`run`](Self::run) and [`write_to`](Combination::write_to). Other threads must not
    /// write to the sets during the call.
    ///
    /// ```
    /// use vmarray::{IndexSet, VirtualArray, index_set::{Combine, Tuples}};
    /// let a = IndexSet::from_rows([0, 1], [[7, 5], [8, 6], [9, 5]])?;
    /// let b = IndexSet::from_rows([1, 2], [[5, 1], [6, 2], [5, 3]])?;
    /// let there = VirtualArray::<u64>::builder(0).page_len(64).build()?;
    /// let merged = Combine::new(&a, &b).memory_bytes(256).run_on_devices_of(&there)?;
    /// assert_eq!((merged.len(), merged.dimensions()), (5, &[0, 1, 2][..]));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`run`](Self::run) and [`Combination::write_to`]; errors of devices, and of [building
    /// arrays](crate::Builder::build). Neither set is changed.
    pub fn run_on_devices_of<T: Element, D: Device>(
        self,
        array: &VirtualArray<T, D>,
    ) -> Result<PagedIndexSet<D>> {
        let merge = self.merge()?;
        if on_devices::is_better(&merge, array) {
            match on_devices::combine(self.a, self.b, &merge, self.memory_bytes, array) {
                Err(error) if error.device_error().is_some_and(is_unsupported) => {}
                done => return done,
            }
        }
        self.found(merge)?.to_alike(array)
    }

    /// Checks the dimensions of the sets, and returns the columns to compare and the result's columns.
    fn merge(&self) -> Result<Merge> {
        let (a, b) = (self.a, self.b);
        // Check the labels, because a program's own `Tuples` may have duplicates.
        distinct(a.dimensions().iter().copied())?;
        distinct(b.dimensions().iter().copied())?;
        match self.is_product {
            true => Merge::of_all(a.dimensions(), b.dimensions()),
            false => Merge::on_common(a.dimensions(), b.dimensions()),
        }
    }

    fn found(self, merge: Merge) -> Result<Combination<'a, A, B>> {
        /// Default memory limit for sources outside of RAM. Their loaded parts must leave RAM free.
        const MEMORY_BYTES: usize = 1 << 30;
        let (a, b) = (self.a, self.b);
        let in_memory = a.in_memory().is_some() && b.in_memory().is_some();
        let default_bytes = if in_memory { usize::MAX } else { MEMORY_BYTES };
        let limits = JoinLimits {
            threads: self.threads.unwrap_or(*scoped_threads::CORES).max(1),
            memory_bytes: self.memory_bytes.unwrap_or(default_bytes),
        };
        Combination::find(a, b, merge, limits)
    }
}

impl<D: Device> PagedIndexSet<D> {
    /// Computes the natural join with another set on the devices that store this set. Each pair of tuples
    /// with equal values in the common dimensions becomes one result, which stays on these devices.
    /// [`Combine::run_on_devices_of`] documents the copies of the other set.
    ///
    /// # Errors
    /// The errors of [`Combine::run_on_devices_of`].
    ///
    /// ```
    /// use vmarray::{IndexSet, index_set::PagedIndexSet};
    /// let a = IndexSet::from_rows([0, 1], [[7, 5], [8, 6], [9, 5]])?;
    /// let b = IndexSet::from_rows([1, 2], [[5, 1], [6, 2], [5, 3]])?;
    /// let paged = PagedIndexSet::from_index_set(&a, |array| array)?;
    /// let merged = paged.combine(&PagedIndexSet::from_index_set(&b, |array| array)?)?;
    /// assert_eq!(merged.to_index_set(..)?, a.combine(&b)?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn combine(&self, other: &(impl Tuples + ?Sized)) -> Result<Self> {
        Combine::new(self, other).run_on_devices_of(self.array())
    }
}

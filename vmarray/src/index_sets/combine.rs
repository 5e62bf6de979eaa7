//! The natural join of two sets on their common dimensions.

use std::fmt;

use backend_api::Device;

use super::combination::Combination;
use super::engine::Limits;
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
/// A result's dimensions are all dimensions of the first set in its order, then the remaining ones of the
/// second set in its order. Results have the order of nested loops: by the tuple of the first set, then by
/// the tuple of the second set. The order depends on neither the threads nor the values. If the second set
/// exceeds the memory bound, it is divided into blocks of consecutive tuples. All results of a block then
/// precede the results of the next one.
///
/// Duplicates are kept. For example, a tuple that occurs twice in one set and three times in the other one
/// occurs six times in the result.
///
/// # Cost
///
/// The join groups the second set in memory by the common values. It uses about 100 bytes per tuple, plus a
/// copy of the values that go into results. The first set takes 24 bytes per tuple during the look-ups, and 8
/// bytes afterwards. After that the number of results is known; the results are written on demand. If the
/// order does not matter, pass the smaller set as the second one.
///
/// Sources that exceed the memory bound are processed in pieces: the first source is read twice (once to
/// count, once to write) for each block of the second source.
///
/// Scoped threads share the work, and end before the call returns; no feature is needed. A thread that holds
/// guards of pages works alone, and gets [`WouldDeadlock`](ErrorKind::WouldDeadlock) if it would have to
/// wait. Hashes are not keyed: an attacker who chooses the values can make the operation slow, but not wrong.
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

    /// Sets the number of threads, including the calling one; at least one.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets an approximate bound in bytes for the RAM of index structures, and of loaded parts of the
    /// sources. Results do not count.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Finds and counts the results, without writing them.
    ///
    /// # Errors
    /// [`NoCommonDimension`](ErrorKind::NoCommonDimension), or
    /// [`CommonDimension`](ErrorKind::CommonDimension) for a product;
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if a source has a label twice;
    /// [`TooLong`](ErrorKind::TooLong) if the number of results overflows;
    /// [`NoMemory`](ErrorKind::NoMemory); errors of the sources.
    pub fn run(self) -> Result<Combination<'a, A, B>> {
        let merge = self.merge()?;
        self.found(merge)
    }

    /// Finds the results on the devices of an array, and writes them to a new array with the same devices and
    /// page length. The elements of the given array are not used. If both sets are in arrays on one GPU,
    /// opened once for all of them, the GPU reads them in place: no tuple goes through the host. The GPU
    /// needs 20 bytes of memory per tuple of the first set, 24 per tuple of the second, and up to 128 MiB.
    ///
    /// Sets in other places, such as files or RAM, are copied to the devices a part at a time.
    /// [`memory_bytes`](Self::memory_bytes) then bounds the devices' memory, and the order is by blocks, as
    /// [above](Self#order). With several devices, each has a copy of the index. [`run`](Self::run) and
    /// [`write_to`](Combination::write_to) do the work instead if there is no GPU, for sets that do not fit
    /// into the GPUs' memory, and for second sets of more than 64 dimensions. Other threads must not write to
    /// the sets meanwhile.
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

    /// Returns the merge of these sets' tuples.
    fn merge(&self) -> Result<Merge> {
        let (a, b) = (self.a, self.b);
        // The crate's own sets are checked, but sources of programs are not.
        distinct(a.dimensions().iter().copied())?;
        distinct(b.dimensions().iter().copied())?;
        match self.is_product {
            true => Merge::of_all(a.dimensions(), b.dimensions()),
            false => Merge::on_common(a.dimensions(), b.dimensions()),
        }
    }

    fn found(self, merge: Merge) -> Result<Combination<'a, A, B>> {
        /// The bound for sources outside of RAM, whose parts should leave room for others.
        const MEMORY_BYTES: usize = 1 << 30;
        let (a, b) = (self.a, self.b);
        let in_memory = a.in_memory().is_some() && b.in_memory().is_some();
        let default_bytes = if in_memory { usize::MAX } else { MEMORY_BYTES };
        let limits = Limits {
            threads: self.threads.unwrap_or(*scoped_threads::CORES).max(1),
            memory_bytes: self.memory_bytes.unwrap_or(default_bytes),
        };
        Combination::find(a, b, merge, limits)
    }
}
